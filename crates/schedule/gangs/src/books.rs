//! The books are right: small storms in which everything is counted again after every event.
//!
//! A seed makes a site, a load and its troubles: nodes that fail, drain, leave and join, maintenance,
//! cancellations, holds, late and unasked-for reports. After every event, everything the scheduler keeps up
//! to date is counted afresh from what runs, and must agree:
//!
//! - timelines: every node is booked for what runs there and for when it is closed, planned for that and for
//!   the reservations, and never for more than it holds;
//! - devices: a GPU has one holder, or sharers that together have no more than all of it, and the rest is free;
//! - ledgers and quotas: limits and queues count exactly the gangs that run, and none is exceeded;
//! - the calendar: whatever runs has an end, whoever leaves has a date, the next wakeup lies ahead;
//! - claims and reservations: only gangs that wait in the queue have any;
//! - starts: every gang is whole, on nodes in service of its partition, as close together as it must be.
//!
//! In between, a second scheduler is told all that the first knows, and must decide the same (`recall`).
//!
//! Then it is calm: nodes return, holds are released, and everybody must have run except those who wait for
//! a job that never comes. A storm that breaks something prints its seed, its step and what happened last.

mod nodes;
mod random;
mod recall;
mod recount;
mod requests;
mod site;
mod starts;
mod storm;
mod world;

use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use proptest::prelude::*;

use recall::decides_the_same_elsewhere;
use storm::Storm;

/// Storms that are told in every run of the tests.
const SEEDS: RangeInclusive<u64> = 1..=40;

/// Storms that once broke something.
const ONCE_BROKEN: [u64; 2] = [708, 3308];

/// After so many steps each, what is known is told to another scheduler.
const RECALLED: u32 = 5;

/// How many lines of its log a storm that broke something shows.
const SHOWN: usize = 40;

/// `STORMS=17` or `STORMS=1..=200` tells those storms instead; read when the tests are built.
fn seeds() -> Vec<u64> {
    let Some(asked) = option_env!("STORMS") else { return SEEDS.chain(ONCE_BROKEN).collect() };
    let (first, last) = asked.split_once("..=").unwrap_or((asked, asked));
    let number = |text: &str| text.parse().expect("STORMS is a seed or a range like 1..=200");
    (number(first)..=number(last)).collect()
}

fn tell(seed: u64) -> Storm {
    tell_with(seed, Storm::tell)
}

/// Tells a storm and, every few steps, all that is known to another scheduler.
fn tell_to_another(seed: u64) {
    tell_with(seed, |storm| {
        while storm.step < Storm::STEPS {
            storm.take_a_step();
            if storm.step.is_multiple_of(RECALLED) {
                decides_the_same_elsewhere(&storm.world);
            }
        }
    });
}

/// Tells a storm; when it breaks something, says how to see that again.
fn tell_with(seed: u64, telling: impl FnOnce(&mut Storm)) -> Storm {
    let mut storm = Storm::new(seed);
    let told = catch_unwind(AssertUnwindSafe(|| telling(&mut storm)));
    if let Err(panic) = told {
        let lines = &storm.world.log;
        let shown = lines[lines.len().saturating_sub(SHOWN)..].join("\n");
        eprintln!("{shown}\nstorm {seed} broke the books at step {} of {}", storm.step, Storm::STEPS);
        eprintln!("rerun: STORMS={seed} cargo test -p bedplate-gangs --lib books");
        resume_unwind(panic);
    }
    storm
}

#[test]
fn the_books_are_right_after_every_event_and_nobody_is_stuck_once_it_is_calm() {
    for seed in seeds() {
        tell(seed);
    }
}

#[test]
fn a_scheduler_made_from_what_another_knows_decides_the_same() {
    for seed in seeds() {
        tell_to_another(seed);
    }
}

#[test]
fn a_storm_told_twice_ends_the_same() {
    assert_eq!(tell(1).world.log, tell(1).world.log);
}

#[test]
fn the_storms_together_see_everything_that_can_be_decided() {
    let log: Vec<String> = SEEDS.take(10).flat_map(|seed| tell(seed).world.log).collect();
    let is_missing = |decision: &&str| !log.iter().any(|line| line.trim_start().starts_with(decision));
    let all = ["Start", "Stop", "Resume", "Shrink", "Grow", "Swap", "Reject", "Drop"];
    let missing: Vec<&str> = all.into_iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "no storm saw {missing:?}");
}

proptest! {
    // Nothing is shrunk: a smaller seed is another storm.
    #![proptest_config(ProptestConfig { cases: 4, max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_books_are_right_in_storms_nobody_has_seen(seed in any::<u64>()) {
        tell(seed);
    }
}
