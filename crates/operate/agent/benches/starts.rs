//! How many one-rank runs a node takes through their whole life in a second, beside plain `fork` and `exec` of
//! the same program on the same machine in the same minute.
//!
//! `cargo bench -p bedplate-agent`

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench fails loudly and prints what it measured"
)]

#[path = "../tests/fixture/mod.rs"]
mod fixture;

use std::fs;
use std::process::Command;
use std::time::Instant;

use bedplate_control::wire::*;
use fixture::{Cluster, gang};

const RUNS: u64 = 2000;
/// Runs that are under way at once.
const WINDOW: u64 = 32;

fn main() {
    let plain =
        rate(|| (0..RUNS).for_each(|_| assert!(Command::new("/bin/true").status().unwrap().success())));
    for nodes in [&["n1"][..], &["n1", "n2"]] {
        let cluster = Cluster::start(nodes);
        let before = cpu_ms(&cluster, nodes);
        let ours = rate(|| play(&cluster, nodes));
        let spent = cpu_ms(&cluster, nodes) - before;
        let ranks = RUNS * nodes.len() as u64;
        println!(
            "{} nodes: {ours:.0} runs/s, {:.0} rank starts/s; fork+exec+wait alone {plain:.0}/s; ratio {:.2}; \
             agents and fork servers used {:.2} ms of CPU a rank",
            nodes.len(),
            ours * nodes.len() as f64,
            ours * nodes.len() as f64 / plain,
            spent as f64 / ranks as f64
        );
    }
}

/// Of agents and fork servers; ranks count only in the fork server's time to start them.
fn cpu_ms(cluster: &Cluster, nodes: &[&str]) -> u64 {
    let pids = nodes.iter().flat_map(|node| [cluster.agent_pid(node), cluster.fork_server_pid(node)]);
    pids.map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat[stat.rfind(')').unwrap()..].split(' ').collect();
        // In hundredths of a second.
        10 * (fields[12].parse::<u64>().unwrap() + fields[13].parse::<u64>().unwrap())
    })
    .sum()
}

fn rate(act: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    act();
    RUNS as f64 / begun.elapsed().as_secs_f64()
}

/// All runs through two phases to their end, as many at once as the window holds.
fn play(cluster: &Cluster, nodes: &[&str]) {
    let (mut begun, mut ended) = (0, 0);
    while ended < RUNS {
        while begun < RUNS && begun - ended < WINDOW {
            begun += 1;
            for launch in gang(begun, nodes, "") {
                let program = Program::Command(vec!["/bin/true".to_owned()]);
                let node = launch.peers[launch.node_index as usize].name.clone();
                cluster.tell(&node, &ToAgent::Prepare(Box::new(Launch { program, ..launch })));
            }
        }
        ended += cluster.advance(nodes);
    }
}
