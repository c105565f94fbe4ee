//! Training on several ranks of this machine: the same losses as one process, whatever happens to the ranks.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod adapters;
mod cluster;
mod place;
mod survival;
mod too_few;
mod whole;

use place::{Place, assert_same, end, start};

#[test]
fn ranks_of_this_machine_learn_what_one_process_learns() {
    let place = Place::new("layouts");
    let alone = place.finish("alone", 12, &[]);
    for layout in ["dp2", "dp2.zero3", "tp2.sp", "pp2"] {
        let found = place.finish(layout, 12, &["--ranks", "2", "--layout", layout]);
        assert_same(&alone, &found, 1e-5);
        assert!(!place.weights(layout).is_empty());
    }
}

/// Any layout goes on from the checkpoint of any other, with the losses of a run that was never stopped.
#[test]
fn a_run_goes_on_in_another_layout() {
    let place = Place::new("resume");
    let whole = place.finish("whole", 12, &[]);
    let every = ["--set", "checkpoint.every=6"];
    let mut first = vec!["--ranks", "2", "--layout", "dp2.zero3", "--set", "training.steps=12"];
    first.extend(every);
    place.finish("run", 12, &first);
    for (layout, ranks) in [("tp2", "2"), ("dp4.zero1", "4")] {
        let back = ["--resume", "step-6", "--ranks", ranks, "--layout", layout];
        let found = place.finish("run", 12, &back);
        assert_same(&whole, &found, 1e-5);
    }
    let alone = place.finish("run", 12, &["--resume", "step-6"]);
    assert_same(&whole, &alone, 1e-5);
}

#[test]
fn the_rank_that_fails_says_why_and_the_others_are_silent() {
    let place = Place::new("fails");
    let run = place.train(
        "run",
        20,
        &[
            "--ranks",
            "3",
            "--layout",
            "dp3.zero3",
            "--set",
            "optimizer.learning_rate=100",
            "--set",
            "optimizer.warmup=0",
            "--set",
            "optimizer.clip=0",
        ],
    );
    let done = end(start(run));
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(!done.status.success());
    assert_eq!(said.matches("train/not-finite").count(), 1, "{said}");
    let wrong = place.train("wrong", 5, &["--ranks", "2", "--layout", "dp4"]).output().unwrap();
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert_eq!(said.matches("train/bad-layout").count(), 1, "{said}");
}
