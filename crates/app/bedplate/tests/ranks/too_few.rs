//! Ranks that are no whole replica any more: they wait for others, or go on with fewer.

use nix::sys::signal::Signal;

use crate::place::{Place, assert_same, end, rank, start, strike};

#[test]
fn ranks_that_are_no_whole_replica_wait_for_another() {
    let place = Place::new("wait");
    for layout in ["tp2", "pp2"] {
        let more = ["--ranks", "2", "--layout", layout];
        let undisturbed = place.finish(&format!("undisturbed-{layout}"), 60, &more);
        let run = start(place.train(layout, 60, &more));
        place.wait_for_step(layout, 10);
        strike(rank(&run, 1), Signal::SIGKILL);
        let done = end(run);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{said}");
        assert_same(&undisturbed, &place.losses(layout), 0.0);
        assert!(place.weights(layout) == place.weights(&format!("undisturbed-{layout}")), "the same bits");
    }
}

#[test]
fn ranks_that_nobody_will_join_say_how_to_go_on() {
    let place = Place::new("too-few");
    let more = ["--ranks", "2", "--layout", "tp2", "--restarts", "0", "--set", "checkpoint.every=5"];
    let undisturbed = place.finish("undisturbed", 40, &more);
    let run = start(place.train("run", 40, &more));
    place.wait_for_step("run", 12);
    strike(rank(&run, 0), Signal::SIGKILL);
    let done = end(run);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(3), "{said}");
    assert_eq!(said.matches("error[train/too-few-ranks]").count(), 1, "{said}");
    assert!(said.contains("1 ranks are left") && said.contains("--resume"), "{said}");
    let mut again = more.to_vec();
    again.push("--resume");
    assert_same(&undisturbed, &place.finish("run", 40, &again), 0.0);
}

/// Three of four ranks are left of two replicas of two: one goes on, and the third rank gives away what it holds.
#[test]
fn whole_replicas_go_on_and_the_rest_hands_over_its_state() {
    let place = Place::new("surplus");
    for layout in ["dp2.tp2.zero1", "dp4.hsdp2"] {
        let more = ["--ranks", "4", "--layout", layout, "--restarts", "0"];
        let undisturbed = place.finish(&format!("undisturbed-{layout}"), 40, &more);
        let run = start(place.train(layout, 40, &more));
        place.wait_for_step(layout, 10);
        strike(rank(&run, 2), Signal::SIGKILL);
        let done = end(run);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert_same(&undisturbed, &place.losses(layout), 1e-5);
        assert_eq!(place.ranks_now(layout), Some(2), "{layout}");
    }
}
