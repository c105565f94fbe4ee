//! Several hosts on one machine: network namespaces with a link between them, which needs root.

use std::process::Command;
use std::time::Duration;

use bedplate_comm::{Reduction, Transport};
use bedplate_kernels::Device;

use crate::process::{Launch, RankProcess, say, world};

/// Two namespaces that reach each other over a pair of virtual devices; gone when dropped.
struct TwoHosts;

/// The names of this test's namespaces; another run on this machine has others.
fn names() -> [String; 2] {
    ["a", "b"].map(|host| format!("bpcomm-{}-{host}", std::process::id()))
}

const ADDRESSES: [&str; 2] = ["10.231.7.1", "10.231.7.2"];

impl TwoHosts {
    fn make() -> Option<Self> {
        let hosts = Self;
        hosts.remove();
        let set_up = || {
            let [a, b] = &names();
            ip(&["netns", "add", a])?;
            ip(&["netns", "add", b])?;
            ip(&["-n", a, "link", "add", "up0", "type", "veth", "peer", "name", "up0", "netns", b])?;
            for (name, address) in names().iter().zip(ADDRESSES) {
                ip(&["-n", name, "addr", "add", &format!("{address}/24"), "dev", "up0"])?;
                ip(&["-n", name, "link", "set", "up0", "up"])?;
                ip(&["-n", name, "link", "set", "lo", "up"])?;
            }
            Some(())
        };
        set_up().map(|()| hosts)
    }

    fn cut(&self) {
        ip(&["-n", &names()[1], "link", "set", "up0", "down"]).expect("a link can be cut");
    }

    fn remove(&self) {
        for name in names() {
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        self.remove();
    }
}

fn ip(arguments: &[&str]) -> Option<()> {
    let done = Command::new("ip").args(arguments).output().ok()?;
    done.status.success().then_some(())
}

/// Ranks 0 and 1 on the first host, 2 and 3 on the second.
fn start() -> Vec<RankProcess> {
    let prefix = |rank: u32| {
        let name = &names()[rank as usize / 2];
        ["ip", "netns", "exec", name].map(str::to_owned).to_vec()
    };
    let usual = Launch::new("hosts::rank_on_a_host", 4, Transport::Automatic, Duration::from_secs(3));
    let address = ADDRESSES[0].to_owned();
    let mut ranks = Launch { address, port: 23_457, prefix, ..usual }.start();
    ranks.iter_mut().for_each(|rank| rank.expect_line("runs"));
    ranks
}

/// Sums until there is an error, then says it.
#[test]
fn rank_on_a_host() {
    let Some(world) = world() else { return };
    let device = Device::cpu(1);
    let group = world.everyone().unwrap();
    assert_eq!(world.host_ranks().len(), 2, "two ranks share a host");
    let mut elements = world.shared::<f32>(&device, 100_000).unwrap();
    let mut rounds = 0;
    let error = loop {
        device.write(elements.view_mut(), &vec![1.0; 100_000]);
        if let Err(error) = group.all_reduce(&device, elements.view_mut(), Reduction::Sum) {
            break error;
        }
        let mut found = vec![0.0; 100_000];
        device.read(elements.view(), &mut found);
        assert!(found.iter().all(|number| *number == 4.0));
        rounds += 1;
        if rounds == 20 {
            say("runs");
        }
    };
    say(&format!("error {error}"));
}

#[test]
fn ranks_on_two_hosts_sum_and_a_cut_link_is_noticed_on_both_sides() {
    let Some(hosts) = TwoHosts::make() else {
        println!("SKIPPED: network namespaces need root and the program `ip`");
        return;
    };
    let mut ranks = start();
    hosts.cut();
    for (rank, process) in ranks.iter_mut().enumerate() {
        let line = process.line();
        // Each side misses a rank of the other.
        let others = if rank < 2 { ["rank 2", "rank 3"] } else { ["rank 0", "rank 1"] };
        let names = others.iter().any(|other| line.contains(&format!("{other} has been silent for 3 s")));
        assert!(names, "rank {rank}: {line}");
    }
}
