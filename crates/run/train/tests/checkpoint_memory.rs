//! A process of its own, so that its memory is the run's: a checkpoint is written without a copy of the state.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[expect(dead_code, reason = "the other tests of whole runs need more of it")]
#[path = "run/place.rs"]
mod place;

use std::fs;

use bedplate_report::Phase;
use bedplate_train::{Observer, Published, RunOptions, TrainError, run};

use place::Place;

/// Bytes that the process holds, and the most that it has held since this was last reset.
fn status(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim_start_matches(':').split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

#[derive(Default)]
struct Watch {
    before: u64,
    grown: Option<u64>,
}

impl Observer for Watch {
    fn turned_to(&mut self, phase: Phase) {
        if phase == Phase::Saving {
            // Forgets the most so far.
            fs::write("/proc/self/clear_refs", "5").unwrap();
            self.before = status("VmRSS");
        }
    }

    fn published(&mut self, _checkpoint: &Published) -> Result<(), TrainError> {
        self.grown = Some(status("VmHWM").saturating_sub(self.before));
        Ok(())
    }
}

#[test]
fn a_checkpoint_is_written_within_the_plan() {
    let place = Place::new("within");
    let model = place::config_json(512).replace(
        "\"hidden_size\": 32, \"intermediate_size\": 64",
        "\"hidden_size\": 256, \"intermediate_size\": 1024",
    );
    fs::write(place.path("config.json"), model).unwrap();
    let mut config = place.config("out");
    (config.data.sequence, config.training.steps) = (8, 1);
    (config.training.batch, config.training.micro_batch) = (1, 1);
    config.evaluation.every = 0;
    let mut watch = Watch::default();
    let summary = run(&config, &RunOptions::default(), &mut watch).unwrap();
    let state = fs::metadata(summary.checkpoint.unwrap().path.join("part-00000.data")).unwrap().len();
    let grown = watch.grown.unwrap();
    assert!(state > 24 << 20, "the state has {state} bytes");
    assert!(grown < state / 20 + (4 << 20), "writing {state} bytes took {grown} bytes of memory");
}
