//! Ranks that are lost while a world is rebuilt.

use std::thread;
use std::time::Duration;

use bedplate_comm::{JoinError, MeetingPoint, Numbering, Rendezvous, Transport, World};
use nix::sys::signal::Signal;

use crate::fixture::{SECRET, Together, options, ranks};
use crate::process::{RankProcess, await_turn, say, start, world};

const AT_MOST: Duration = Duration::from_secs(60);
const COMPACT: Numbering = Numbering::Compact { newcomers: 0 };
/// Who is stopped is noticed by silence. Who is killed is noticed at once: no deadline passes in the test.
const DEADLINE: Duration = Duration::from_secs(2);
const NEVER: Duration = Duration::from_secs(600);

/// A rank that rebuilds when it is its turn.
#[test]
fn rank_that_rebuilds() {
    let Some(world) = world() else { return };
    world.everyone().unwrap().barrier().unwrap();
    say("runs");
    // A rank that rebuilds ends the calls of all others, so the test waits until all have left the barrier.
    await_turn();
    say("rebuilds");
    match world.rebuild(COMPACT, AT_MOST) {
        Ok(world) => {
            world.everyone().unwrap().barrier().unwrap();
            say(&format!("rebuilt {} of {}", world.rank(), world.size()));
        }
        Err(error) => say(&format!("failed: {error}")),
    }
}

/// What the others say when one gets a signal while rank 1 is waited for.
fn after(signal: Signal, to: usize, transport: Transport) -> Vec<String> {
    let test = "rebuilding_loss::rank_that_rebuilds";
    let deadline = if signal == Signal::SIGSTOP { DEADLINE } else { NEVER };
    let mut ranks = start(test, 3, transport, deadline);
    ranks.iter_mut().for_each(|rank| rank.expect_line("runs"));
    for early in [0, 2] {
        ranks[early].give_turn();
        ranks[early].expect_line("rebuilds");
    }
    // Most likely it has come to the rebuild by then, and when rank 1 comes, the other has noticed.
    thread::sleep(Duration::from_secs(1));
    ranks[to].signal(signal);
    thread::sleep(DEADLINE + Duration::from_secs(1));
    ranks[1].give_turn();
    ranks[1].expect_line("rebuilds");
    let _lost = ranks.remove(to);
    ranks.iter_mut().map(RankProcess::line).collect()
}

#[test]
fn a_rank_that_is_killed_after_it_came_to_a_rebuild_is_left_out() {
    for transport in [Transport::Automatic, Transport::Tcp] {
        assert_eq!(after(Signal::SIGKILL, 2, transport), ["rebuilt 0 of 2", "rebuilt 1 of 2"]);
    }
}

#[test]
fn the_next_rank_gathers_when_the_one_that_gathers_is_killed_or_stopped() {
    for transport in [Transport::Automatic, Transport::Tcp] {
        for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
            assert_eq!(after(signal, 0, transport), ["rebuilt 0 of 2", "rebuilt 1 of 2"]);
        }
    }
}

#[test]
fn newcomers_for_whom_there_is_no_place_are_left_out() {
    let options = options(Transport::Automatic);
    let together = Together::new(2);
    ranks(2, &options, |world| {
        world.everyone().unwrap().barrier().unwrap();
        together.wait();
        let point = MeetingPoint { epoch: 1, ..world.next_meeting_point() };
        let world = thread::scope(|scope| {
            let uninvited = (world.rank() == 0).then(|| {
                let new = Rendezvous::on_this_machine(0, 0, 0, SECRET);
                let options = &options;
                let started = scope.spawn(move || World::join_next(point, &new, options).err());
                // It waits at the meeting point before anyone listens there, and rank 1 comes after both.
                thread::sleep(Duration::from_millis(500));
                started
            });
            if world.rank() == 1 {
                thread::sleep(Duration::from_millis(1500));
            }
            let world = world.rebuild(COMPACT, AT_MOST).unwrap();
            if let Some(uninvited) = uninvited {
                let error = uninvited.join().unwrap().expect("nobody waits for a newcomer");
                assert!(matches!(error, JoinError::LeftOut { .. }), "{error}");
            }
            world
        });
        assert_eq!(world.size(), 2);
        world.everyone().unwrap().barrier().unwrap();
    });
}
