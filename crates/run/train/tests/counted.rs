//! What a step of training costs: allocations, and work started on a GPU, counted, so that slow decay shows.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[expect(dead_code, reason = "the other tests of whole runs need more of it")]
#[path = "run/place.rs"]
mod place;

use bedplate_fakenvml::{launches, on_stand_in};
use bedplate_kernels::DeviceChoice;
use bedplate_record::StepRecord;
use bedplate_testkit::counting::{Allocations, CountingAllocator, assert_at_most};
use bedplate_train::{Observer, RunOptions, TrainError, run};

use place::Place;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// What has been counted when each step is over.
struct Watch {
    count: fn() -> u64,
    so_far: Vec<u64>,
}

impl Observer for Watch {
    fn step(&mut self, _record: &StepRecord) -> Result<(), TrainError> {
        self.so_far.push((self.count)());
        Ok(())
    }
}

/// What a step of two micro-batches costs of what `count` counts, on average.
fn cost_of_a_step(device: DeviceChoice, count: fn() -> u64) -> u64 {
    let place = Place::new("counted");
    let mut config = place.config("out");
    (config.evaluation.every, config.checkpoint.every) = (0, 1000);
    (config.training.device, config.training.steps) = (device, 60);
    let mut watch = Watch { count, so_far: Vec::with_capacity(60) };
    run(&config, &RunOptions::default(), &mut watch).unwrap();
    // The thread that reads ahead is as many batches ahead at one step as at the other, give or take one.
    (watch.so_far[50] - watch.so_far[10]).div_ceil(40)
}

#[test]
fn a_step_costs_few_allocations_and_launches() {
    let allocations = cost_of_a_step(DeviceChoice::Cpu, || Allocations::so_far().count);
    assert_at_most("allocations per step of training", allocations, 24);
    let (said, _) = on_stand_in("steps_on_the_stand_in", "").unwrap();
    assert!(said.contains("1 passed"), "{said}");
}

/// In a process of its own, whose GPU computes nothing; elsewhere it has nothing to do.
#[test]
fn steps_on_the_stand_in() {
    if std::env::var_os("BEDPLATE_TEST_CHILD").is_some() {
        let started = cost_of_a_step(DeviceChoice::Cuda(0), || launches().unwrap());
        assert_at_most("launches per step of training", started, 149);
    }
}
