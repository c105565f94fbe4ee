//! The failure process simulated from a seed, to check the formulas.
//!
//! The same rules as in `interval`, event by event: work, stall, drain, failure, recovery that may fail, a copy
//! or a durable checkpoint to go back to. Elastic runs are not simulated.

use bedplate_random::Random;
use bedplate_units::Seconds;

use crate::RunSpec;

/// Mean and spread of simulated runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Simulated {
    pub mean: Seconds,
    /// Standard error of the mean.
    pub error: Seconds,
    /// The 90th percentile.
    pub p90: Seconds,
    pub interruptions: f64,
}

/// Simulates `repeats` runs with checkpoints every `interval` of work.
pub fn simulate(run: &RunSpec, interval: Seconds, repeats: usize, seed: u64) -> Simulated {
    let mut random = Random::new(seed);
    let mut interruptions = 0.0;
    let mut times: Vec<f64> = Vec::with_capacity(repeats);
    for _ in 0..repeats.max(1) {
        let mut played = Played::new(run, interval, &mut random);
        times.push(played.play());
        interruptions += played.failures as f64;
    }
    times.sort_by(f64::total_cmp);
    let count = times.len() as f64;
    let mean = times.iter().sum::<f64>() / count;
    let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    Simulated {
        mean: Seconds::new(mean),
        error: Seconds::new((variance / count).sqrt()),
        p90: Seconds::new(times[((count * 0.9) as usize).min(times.len() - 1)]),
        interruptions: interruptions / count,
    }
}

/// One run in progress.
struct Played<'a> {
    run: &'a RunSpec,
    random: &'a mut Random,
    interval: f64,
    /// Work between restore points: copies, or durable checkpoints.
    chunk: f64,
    now: f64,
    next_failure: f64,
    /// Work done, in the last copy, in the last durable checkpoint.
    done: f64,
    copied: f64,
    durable: f64,
    /// A draining checkpoint: its work, and when it is durable.
    draining: Option<(f64, f64)>,
    /// Work after which the next durable checkpoint is due.
    due: f64,
    failures: u64,
}

impl<'a> Played<'a> {
    fn new(run: &'a RunSpec, interval: Seconds, random: &'a mut Random) -> Self {
        let interval = interval.get();
        let chunk = run.recovery.copies.map_or(interval, |copies| copies.every.max(run.step).get());
        let next_failure = random.exponential(run.mtbf().get());
        Self {
            run,
            random,
            interval,
            chunk: chunk.min(interval),
            now: 0.0,
            next_failure,
            done: 0.0,
            copied: 0.0,
            durable: 0.0,
            draining: None,
            due: interval,
            failures: 0,
        }
    }

    fn play(&mut self) -> f64 {
        let work = (self.run.step * self.run.steps).get();
        while self.done < work {
            let target = (self.done + self.chunk).min(self.due).min(work);
            let is_checkpoint = target >= self.due;
            let is_copy = self.run.recovery.copies.is_some();
            let mut stall = if is_checkpoint { self.run.checkpoint.stall.get() } else { 0.0 };
            stall += self.run.recovery.copies.map_or(0.0, |copies| copies.stall.get());
            let mut end = self.now + (target - self.done) + stall;
            if is_checkpoint {
                // One checkpoint drains at a time; the formula's interval leaves each the time it needs.
                end = self.draining.map_or(end, |(_, ready)| ready.max(end));
            }
            if self.next_failure < end {
                self.fail();
                continue;
            }
            self.now = end;
            self.done = target;
            if is_copy {
                self.copied = target;
            }
            if is_checkpoint {
                self.settle();
                self.draining = Some((target, end + self.run.checkpoint.drain.get()));
                self.due = target + self.interval;
            }
        }
        self.now
    }

    /// A checkpoint that had time to drain is durable.
    fn settle(&mut self) {
        if let Some((work, ready)) = self.draining
            && ready <= self.now
        {
            self.durable = work;
            self.draining = None;
        }
    }

    fn fail(&mut self) {
        self.now = self.next_failure;
        self.settle();
        let wait =
            if self.run.recovery.elastic.is_some() { 0.0 } else { self.run.recovery.replacement.get() };
        loop {
            self.failures += 1;
            let copies = self.run.recovery.copies.filter(|copies| self.random.unit() > copies.lost_share);
            let recovery = match copies {
                Some(copies) => {
                    self.done = self.copied.max(self.durable);
                    copies.downtime.get() + wait
                }
                None => {
                    self.draining = None;
                    self.done = self.durable;
                    self.copied = self.durable;
                    self.run.recovery.until_restored(self.run.checkpoint.restore).get() + wait
                }
            };
            self.due = self.due.min(self.durable_or_draining() + self.interval);
            self.next_failure = self.now + self.random.exponential(self.run.mtbf().get());
            if self.next_failure >= self.now + recovery {
                self.now += recovery;
                return;
            }
            self.now = self.next_failure;
        }
    }

    fn durable_or_draining(&self) -> f64 {
        self.draining.map_or(self.durable, |(work, _)| work)
    }
}
