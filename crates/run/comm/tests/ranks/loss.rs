//! Ranks that are killed, stopped, or paused together with all others.

use std::thread;
use std::time::{Duration, Instant};

use bedplate_comm::{Numbering, Reduction, Transport};
use bedplate_kernels::Device;
use nix::sys::signal::Signal;

use crate::fixture::TRANSPORTS;
use crate::process::{RankProcess, say, start, world};

/// Patience with a slow machine; what is measured is printed.
const LONG: Duration = Duration::from_secs(60);

/// A rank: says that it runs, computes sums until there is an error, says it, and goes on with who is left.
#[test]
fn rank_that_sums_until_a_fault() {
    let Some(world) = world() else { return };
    let device = Device::cpu(1);
    let group = world.everyone().unwrap();
    let mut elements = world.shared::<f32>(&device, 200_000).unwrap();
    let mut rounds = 0u64;
    let error = loop {
        match group.all_reduce(&device, elements.view_mut(), Reduction::Max) {
            Ok(()) => rounds += 1,
            Err(error) => break error,
        }
        if rounds == 3 {
            say("runs");
        }
        if rounds.is_multiple_of(100) {
            say(&format!("round {rounds}"));
        }
    };
    say(&format!("error {error}"));
    drop((elements, group));
    let world = world.rebuild(Numbering::Compact { newcomers: 0 }, LONG).unwrap();
    world.everyone().unwrap().barrier().unwrap();
    say(&format!("rebuilt {} of {}", world.rank(), world.size()));
}

fn running(world_size: u32, transport: Transport, deadline: Duration) -> Vec<RankProcess> {
    let mut ranks = start("loss::rank_that_sums_until_a_fault", world_size, transport, deadline);
    ranks.iter_mut().for_each(|rank| rank.expect_line("runs"));
    ranks
}

fn after_rounds(rank: &mut RankProcess) -> String {
    loop {
        let line = rank.line();
        if !line.starts_with("round ") {
            return line;
        }
    }
}

/// What the survivors say once a rank is lost, and how long the last of them took.
fn survivors_say(mut ranks: Vec<RankProcess>, lost: usize, began: Instant, part: &str) -> Duration {
    let _lost = ranks.remove(lost);
    for rank in &mut ranks {
        let line = after_rounds(rank);
        assert!(line.starts_with("error ") && line.contains(part), "{line}");
    }
    let took = began.elapsed();
    for (index, rank) in ranks.iter_mut().enumerate() {
        assert_eq!(after_rounds(rank), format!("rebuilt {index} of 3"));
    }
    took
}

#[test]
fn a_killed_rank_is_named_by_every_survivor_and_they_go_on() {
    for transport in TRANSPORTS {
        for lost in [0, 2] {
            let ranks = running(4, transport, Duration::from_secs(10));
            let began = Instant::now();
            ranks[lost].signal(Signal::SIGKILL);
            let took = survivors_say(ranks, lost, began, &format!("rank {lost} is gone"));
            println!("{transport:?}: rank {lost} killed, named by all survivors after {took:.2?}");
            assert!(took < LONG);
        }
    }
}

#[test]
fn a_stopped_rank_is_named_when_the_deadline_has_passed() {
    for transport in TRANSPORTS {
        let ranks = running(4, transport, Duration::from_secs(2));
        let began = Instant::now();
        ranks[1].signal(Signal::SIGSTOP);
        let took = survivors_say(ranks, 1, began, "rank 1 has been silent for 2 s");
        println!(
            "{transport:?}: rank 1 stopped, named by all survivors after {took:.2?} of a deadline of 2 s"
        );
        assert!(took < LONG);
    }
}

fn cycles() -> u32 {
    std::env::var("COMM_CYCLES").ok().and_then(|cycles| cycles.parse().ok()).unwrap_or(3)
}

#[test]
fn a_gang_that_is_suspended_and_resumed_raises_no_alarm() {
    for transport in [Transport::Automatic, Transport::Tcp] {
        let deadline = Duration::from_secs(2);
        let mut ranks = running(3, transport, deadline);
        for _ in 0..cycles() {
            ranks.iter().for_each(|rank| rank.signal(Signal::SIGSTOP));
            // Longer than a silent rank is waited for; then they run for a moment.
            thread::sleep(deadline + Duration::from_millis(300));
            ranks.iter().for_each(|rank| rank.signal(Signal::SIGCONT));
            thread::sleep(Duration::from_millis(100));
        }
        // All go on: each says rounds and nothing else.
        for rank in &mut ranks {
            for _ in 0..3 {
                let line = rank.line();
                assert!(line.starts_with("round "), "{line}");
            }
        }
        ranks[0].signal(Signal::SIGKILL);
        let names = after_rounds(&mut ranks[1]);
        assert!(names.contains("rank 0 is gone"), "{names}");
    }
}
