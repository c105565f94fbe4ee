//! A writer that is killed at any instant leaves a checkpoint that loads and is exact.
//!
//! The writer is this test program again, in another process. `BEDPLATE_CHECKPOINT_KILLS=200` kills it that often.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use bedplate_checkpoint::{Checkpoints, Keep, Saving, SavingOptions};
use bedplate_random::Random;
use bedplate_testkit::wait_until;

use crate::place::{Place, Shard, check, facts, newest, simple};

const FOLDER: &str = "BEDPLATE_CHECKPOINT_WRITER";
const ROWS: usize = 20_000;

fn checkpoints(output: &Path) -> Checkpoints {
    Checkpoints::in_output(output, Keep { count: 2, age: Duration::ZERO })
}

/// Not a test of its own: saves the state of step after step until it is killed, changing it while a part is still being written.
#[test]
fn writer() {
    let Some(output) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let checkpoints = checkpoints(&output);
    let mut step = checkpoints.newest_good().unwrap().map_or(0, |(newest, _)| newest.facts().step);
    let regions = simple(ROWS).remove(0);
    loop {
        step += 1;
        let attempt = checkpoints.begin(step).unwrap();
        let mut shard = Shard { regions: regions.clone(), step };
        let options = SavingOptions { pool: Some(512 << 10) };
        let mut saving = Saving::start(checkpoints.store(), &attempt, 0, regions.clone(), options).unwrap();
        saving.advance(&shard);
        saving.complete(&shard);
        shard.step = u64::MAX;
        saving.advance(&shard);
        let part = saving.wait().unwrap();
        checkpoints.publish(&attempt, vec![part], facts(step, "one")).unwrap();
    }
}

fn start(output: &Path) -> Child {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", "killed::writer"]).env(FOLDER, output);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_writer_that_is_killed_at_any_instant_leaves_an_exact_state() {
    let kills: u64 = std::env::var("BEDPLATE_CHECKPOINT_KILLS").map_or(12, |text| text.parse().unwrap());
    let place = Place::new("killed");
    let (mut random, mut last) = (Random::new(1), 0);
    for number in 0..kills {
        let mut child = start(&place.0);
        wait_for_the_first(&place.0, &mut child);
        thread::sleep(Duration::from_micros((random.uniform() * 60_000.0) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        let checkpoints = checkpoints(&place.0);
        let (found, remarks) = checkpoints.newest_good().unwrap().expect("one was there before");
        assert!(remarks.is_empty(), "kill {number}: {remarks:?}");
        assert!(found.facts().step >= last, "kill {number}: nothing published is lost");
        last = found.facts().step;
        check(&found, &simple(ROWS));
    }
    assert!(last > 0);
    println!("{kills} kills, the last state is that of step {last}");
    check(&newest(&checkpoints(&place.0)), &simple(ROWS));
}

/// The writer has published, or is about to write its next.
fn wait_for_the_first(output: &Path, child: &mut Child) {
    wait_until("something is published", || {
        assert!(child.try_wait().unwrap().is_none(), "the writer has ended");
        fs::read_dir(output.join("checkpoints")).is_ok_and(|entries| {
            entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("step-"))
        })
    });
}
