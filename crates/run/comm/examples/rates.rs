//! A first look at the rates of collectives on this machine: `cargo run --release --example rates -- RANKS [tcp|private]`.
//! `bedplate bench comm` is the measurement that counts.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "an example")]

use std::net::TcpListener;
use std::process::Command;
use std::time::Instant;

use bedplate_comm::{Group, Operation, Options, Reduction, Rendezvous, Transport, World};
use bedplate_kernels::{Buffer, Device};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ranks: u32 = arguments[0].parse().unwrap();
    let Some(rank) = std::env::var("RANK").ok() else { return start(ranks, &arguments) };
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let port = std::env::var("PORT").unwrap().parse().unwrap();
    let rendezvous = Rendezvous::on_this_machine(rank.parse().unwrap(), ranks, port, b"rates of collectives");
    let transport = if has("tcp") { Transport::Tcp } else { Transport::Automatic };
    let world = World::join(&rendezvous, &Options { transport, ..Options::default() }).unwrap();
    let (device, group) = (Device::cpu(1), world.everyone().unwrap());
    let largest = if has("tcp") { 64 << 20 } else { 256 << 20 };
    for operation in [
        Operation::AllReduce,
        Operation::AllGather,
        Operation::ReduceScatter,
        Operation::AllToAll,
        Operation::Broadcast,
    ] {
        let mut bytes = 1 << 10;
        while bytes <= largest {
            let numbers = bytes / 4;
            if has("private") {
                let (mut a, mut b) = (device.zeros::<f32>(numbers), device.zeros::<f32>(numbers));
                measure(&world, &group, &device, operation, &mut a, &mut b);
            } else {
                let mut a = world.shared::<f32>(&device, numbers).unwrap();
                let mut b = world.shared::<f32>(&device, numbers).unwrap();
                measure(&world, &group, &device, operation, &mut a, &mut b);
            }
            bytes *= 8;
        }
    }
}

fn start(ranks: u32, arguments: &[String]) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank: u32| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(arguments).env("RANK", rank.to_string()).env("PORT", port.to_string()).spawn().unwrap()
    };
    let children: Vec<_> = (0..ranks).map(start).collect();
    children.into_iter().for_each(|mut child| assert!(child.wait().unwrap().success()));
}

fn measure(
    world: &World,
    group: &Group,
    device: &Device,
    operation: Operation,
    a: &mut Buffer<f32>,
    b: &mut Buffer<f32>,
) {
    let (numbers, members) = (a.len(), group.members());
    let part = numbers / members;
    device.write(a.view_mut(), &vec![1.0; numbers]);
    device.write(b.view_mut(), &vec![1.0; numbers]);
    let rounds = if numbers <= 1 << 17 {
        200
    } else if numbers <= 1 << 23 {
        20
    } else {
        5
    };
    let mut times = Vec::new();
    for _ in 0..rounds {
        group.barrier().unwrap();
        let began = Instant::now();
        match operation {
            Operation::AllReduce => group.all_reduce(device, a.view_mut(), Reduction::Max),
            Operation::AllGather => {
                group.all_gather(device, a.range(0..part), b.range_mut(0..part * members))
            }
            Operation::ReduceScatter => {
                group.reduce_scatter(device, a.range(0..part * members), b.range_mut(0..part), Reduction::Max)
            }
            Operation::AllToAll => {
                group.all_to_all(device, a.range(0..part * members), b.range_mut(0..part * members))
            }
            _ => group.broadcast(device, a.view_mut(), 0),
        }
        .unwrap();
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    let bytes = numbers as f64 * 4.0;
    let rate = |us: f64| bytes / us / 1e3 * operation.bus_factor(members as u32);
    if world.rank() == 0 {
        println!(
            "{operation:15} {bytes:12} best {:10.1} us {:7.2} GB/s   median {:10.1} us {:7.2} GB/s",
            times[0],
            rate(times[0]),
            times[rounds / 2],
            rate(times[rounds / 2])
        );
    }
}
