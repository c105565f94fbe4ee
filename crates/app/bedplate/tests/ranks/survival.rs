//! Ranks that are killed: the others go on from memory.

use std::fs;
use std::thread;
use std::time::Duration;

use bedplate_testkit::wait_until;
use nix::sys::signal::Signal;

use crate::place::{Place, assert_same, children, end, rank, start, strike};

#[test]
fn a_spare_takes_the_place_of_a_killed_rank_without_a_checkpoint() {
    let place = Place::new("spare");
    let layout = ["--ranks", "3", "--layout", "dp3.zero3", "--set", "training.batch=6"];
    let undisturbed = place.finish("undisturbed", 60, &layout);
    let mut more = layout.to_vec();
    more.extend(["--spares", "1"]);
    let run = start(place.train("run", 60, &more));
    place.wait_for_step("run", 10);
    strike(rank(&run, 1), Signal::SIGKILL);
    let done = end(run);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_same(&undisturbed, &place.losses("run"), 0.0);
    assert!(place.weights("run") == place.weights("undisturbed"), "the weights have the same bits");
    assert_eq!(fs::read_dir(place.0.join("run/checkpoints")).unwrap().count(), 1, "only the last checkpoint");
}

#[test]
fn without_a_spare_the_others_go_on_and_take_the_rank_back() {
    let place = Place::new("shrink");
    let layout = ["--ranks", "3", "--layout", "dp3.zero2"];
    let undisturbed = place.finish("undisturbed", 120, &layout);
    let run = start(place.train("run", 120, &layout));
    for (step, victim) in [(10, 2), (40, 0)] {
        place.wait_for_step("run", step);
        strike(rank(&run, victim), Signal::SIGKILL);
    }
    let done = end(run);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    assert!(said.contains("rank 2 was killed by SIGKILL"), "{said}");
    assert_same(&undisturbed, &place.losses("run"), 1e-5);
}

/// The second loss falls into the time in which the others meet again, share out the state or build their networks.
#[test]
fn a_rank_that_is_lost_while_the_others_meet_again_is_survived_too() {
    let place = Place::new("double");
    let layout = ["--ranks", "4", "--layout", "dp4"];
    let undisturbed = place.finish("undisturbed", 240, &layout);
    let mut more = layout.to_vec();
    more.extend(["--restarts", "20"]);
    let run = start(place.train("run", 240, &more));
    for (number, delay) in [0, 20, 60, 150].into_iter().enumerate() {
        place.wait_for_step("run", 40 * (number as u64 + 1));
        wait_until("a world of four", || place.ranks_now("run").is_none_or(|ranks| ranks == 4));
        let ranks = children(&run);
        strike(ranks[number % 4], Signal::SIGKILL);
        thread::sleep(Duration::from_millis(delay));
        strike(ranks[(number + 2) % 4], Signal::SIGKILL);
    }
    let done = end(run);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_same(&undisturbed, &place.losses("run"), 1e-5);
}

/// Ranks 1 and 3 do not keep each other's copies, so all state is there whenever they are lost.
#[test]
fn split_state_outlives_two_ranks_that_do_not_keep_each_others_copies() {
    let place = Place::new("double-split");
    let layout = ["--ranks", "4", "--layout", "dp4.zero3"];
    let undisturbed = place.finish("undisturbed", 60, &layout);
    for delay in [0, 40, 120] {
        let run = start(place.train("run", 60, &layout));
        place.wait_for_step("run", 10);
        let victims = [1, 3].map(|number| rank(&run, number));
        strike(victims[0], Signal::SIGKILL);
        thread::sleep(Duration::from_millis(delay));
        strike(victims[1], Signal::SIGKILL);
        let done = end(run);
        assert!(done.status.success(), "{delay} ms: {}", String::from_utf8_lossy(&done.stderr));
        assert_same(&undisturbed, &place.losses("run"), 1e-5);
        fs::remove_dir_all(place.0.join("run")).unwrap();
    }
}

#[test]
fn a_rank_that_is_killed_before_the_ranks_have_met_is_no_loss() {
    let place = Place::new("early");
    let layout = ["--ranks", "3", "--layout", "dp3.zero3"];
    let undisturbed = place.finish("undisturbed", 20, &layout);
    for victim in [0, 2] {
        let run = start(place.train("run", 20, &layout));
        wait_until("all processes", || children(&run).len() == 3);
        strike(children(&run)[victim], Signal::SIGKILL);
        let done = end(run);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert_same(&undisturbed, &place.losses("run"), 1e-5);
        fs::remove_dir_all(place.0.join("run")).unwrap();
    }
}

/// Each time the rank that writes the records is lost, and the next one goes on with them.
#[test]
fn records_are_complete_when_the_rank_that_writes_them_is_lost() {
    let place = Place::new("records");
    let layout =
        ["--ranks", "3", "--layout", "dp3", "--set", "evaluation.every=5", "--set", "evaluation.prompt=The"];
    let undisturbed = place.finish("undisturbed", 100, &layout);
    let run = start(place.train("run", 100, &layout));
    place.wait_for_step("run", 5);
    let first = [0, 1].map(|number| rank(&run, number));
    for (step, victim) in [(12, first[0]), (47, first[1])] {
        place.wait_for_step("run", step);
        strike(victim, Signal::SIGKILL);
    }
    let done = end(run);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_same(&undisturbed, &place.losses("run"), 1e-5);
    let evaluated = |output: &str| -> Vec<u64> {
        let lines = place.lines(output);
        let of = lines.iter().filter(|line| line["kind"] == "evaluation");
        of.map(|line| line["step"].as_u64().unwrap()).collect()
    };
    assert_eq!(evaluated("run"), evaluated("undisturbed"));
}
