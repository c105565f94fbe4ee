//! A run from its first step to its last: how long it takes with failures.

use bedplate_units::{Bytes, Seconds};

use crate::{CheckpointCosts, CheckpointStore, GoodputError, Recovery};

/// Everything besides the step time that decides how long a run takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunSpec {
    /// One step when nothing fails.
    pub step: Seconds,
    pub steps: f64,
    pub nodes: u32,
    pub gpus_per_node: u32,
    /// Interruptions of the job per node and day, from any cause.
    pub failures_per_node_day: f64,
    pub checkpoint: CheckpointCost,
    pub recovery: Recovery,
    /// Work between checkpoints; `None` finds the best one.
    pub interval: Option<Seconds>,
}

/// What writing and reading one durable checkpoint takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CheckpointCost {
    pub bytes: Bytes,
    /// Work stalls this long.
    pub stall: Seconds,
    /// From the end of the stall until the checkpoint is durable.
    pub drain: Seconds,
    pub restore: Seconds,
}

impl CheckpointCost {
    /// Work waits until everything is written.
    pub fn synchronous(bytes: Bytes, store: &CheckpointStore, nodes: u32) -> Result<Self, GoodputError> {
        let transfer = store.transfer(bytes, nodes)?;
        Ok(Self { bytes, stall: transfer, drain: Seconds::ZERO, restore: transfer })
    }

    /// Work waits for the copy to host memory, `copy` seconds; the rest overlaps with work.
    pub fn asynchronous(
        bytes: Bytes,
        store: &CheckpointStore,
        nodes: u32,
        copy: Seconds,
    ) -> Result<Self, GoodputError> {
        let transfer = store.transfer(bytes, nodes)?;
        Ok(Self { bytes, stall: copy, drain: transfer, restore: transfer })
    }
}

/// The expected course of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunOutlook {
    /// Mean time between failures of the job.
    pub mtbf: Seconds,
    /// Work between durable checkpoints, as used.
    pub interval: Seconds,
    /// By the exact formula, and by Young's and Daly's estimates.
    pub best_interval: Seconds,
    pub young_interval: Seconds,
    pub daly_interval: Seconds,
    /// Share of time that advances the run.
    pub goodput: f64,
    pub losses: Losses,
    /// The run when nothing fails and nothing is saved.
    pub ideal: Seconds,
    pub expected: Seconds,
    pub interruptions: f64,
    pub checkpoints: f64,
    pub gpu_hours: f64,
}

/// Shares of time that do not advance the run. With [`RunOutlook::goodput`] they add up to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Losses {
    /// Stalls for checkpoints and copies.
    pub stalls: f64,
    /// Redoing work lost to failures.
    pub rework: f64,
    /// Detecting, replacing, restarting, reading.
    pub recovery: f64,
    /// Missing nodes while the job continues.
    pub shrunk: f64,
}

impl RunSpec {
    pub fn outlook(&self) -> Result<RunOutlook, GoodputError> {
        self.check()?;
        let levels = self.levels();
        let durable = levels.durable;
        let best_interval = durable.best_interval().max(self.step);
        let ideal = self.step * self.steps;
        self.check_interval(&durable)?;
        let interval = self.interval.unwrap_or(best_interval).min(ideal);
        let steady = durable.goodput(interval);
        let shrunk = self.shrunk_share();
        let goodput = steady * (1.0 - shrunk);
        let expected = ideal / goodput;
        // A run whose work alone takes this long is just slow; this one never ends because of failures.
        if !expected.get().is_finite() || expected > FOREVER && expected > ideal * 10.0 {
            return Err(GoodputError::NeverEnds { mtbf: self.mtbf(), ideal });
        }
        let stalls = steady * (durable.stall / interval + levels.copy_stalls);
        let recovery = -(-levels.recovery_load).exp_m1();
        let losses = Losses {
            stalls: stalls * (1.0 - shrunk),
            recovery: recovery * (1.0 - shrunk),
            rework: (1.0 - steady - stalls - recovery).max(0.0) * (1.0 - shrunk),
            shrunk,
        };
        Ok(RunOutlook {
            mtbf: self.mtbf(),
            interval,
            best_interval,
            young_interval: durable.young_interval(),
            daly_interval: durable.daly_interval(),
            goodput,
            losses,
            ideal,
            expected,
            interruptions: if self.mtbf().get().is_infinite() { 0.0 } else { expected / self.mtbf() },
            checkpoints: ideal / interval,
            gpu_hours: expected.as_hours() * f64::from(self.nodes) * f64::from(self.gpus_per_node),
        })
    }

    /// Mean time between failures of the job; infinite without failures.
    pub fn mtbf(&self) -> Seconds {
        Seconds::days(1.0 / (self.failures_per_node_day * f64::from(self.nodes)))
    }

    /// A checkpoint must be durable before the next one is taken.
    fn check_interval(&self, durable: &CheckpointCosts) -> Result<(), GoodputError> {
        let least = durable.shortest_interval();
        match self.interval {
            Some(interval) if interval < least => Err(GoodputError::IntervalTooShort { interval, least }),
            _ => Ok(()),
        }
    }

    fn check(&self) -> Result<(), GoodputError> {
        let figures = [
            ("the time of a step", self.step.get(), true),
            ("the number of steps", self.steps, true),
            ("the number of nodes", f64::from(self.nodes), true),
            ("the failure rate", self.failures_per_node_day, false),
            ("the stall of a checkpoint", self.checkpoint.stall.get(), false),
            ("the drain of a checkpoint", self.checkpoint.drain.get(), false),
            ("the time to restore", self.checkpoint.restore.get(), false),
            ("the downtime", self.recovery.downtime.get(), false),
            ("the time to replace a node", self.recovery.replacement.get(), false),
            ("the interval", self.interval.map_or(1.0, Seconds::get), true),
        ];
        let is_bad = |value: f64, must_be_there: bool| {
            !value.is_finite() || value < 0.0 || (must_be_there && value == 0.0)
        };
        match figures.into_iter().find(|(_, value, must_be_there)| is_bad(*value, *must_be_there)) {
            Some((what, value, _)) => Err(GoodputError::BadFigure { what, value }),
            None => Ok(()),
        }
    }

    /// The process of durable checkpoints, slowed by the process of copies inside it where there is one.
    ///
    /// Copies are short compared with the time between failures that they do not survive, so the inner process
    /// acts on the outer one as a constant slowdown.
    fn levels(&self) -> Levels {
        let wait = if self.recovery.elastic.is_some() { Seconds::ZERO } else { self.recovery.replacement };
        let recovery = self.recovery.until_restored(self.checkpoint.restore) + wait;
        let rate = 1.0 / self.mtbf().get();
        let process = |share: f64, recovery: Seconds, dilation: f64| CheckpointCosts {
            mtbf: Seconds::new(1.0 / (rate * share)),
            stall: self.checkpoint.stall,
            drain: self.checkpoint.drain,
            recovery,
            dilation,
        };
        let Some(copies) = self.recovery.copies else {
            let load = rate * recovery.get();
            return Levels { durable: process(1.0, recovery, 1.0), copy_stalls: 0.0, recovery_load: load };
        };
        let lost = copies.lost_share.clamp(0.0, 1.0);
        let from_copies = copies.downtime + wait;
        let inner = CheckpointCosts {
            stall: copies.stall,
            drain: Seconds::ZERO,
            ..process(1.0 - lost, from_copies, 1.0)
        };
        let slowdown = 1.0 / inner.goodput(copies.every.max(self.step));
        Levels {
            durable: process(lost, recovery, slowdown),
            copy_stalls: copies.stall / copies.every.max(self.step),
            recovery_load: rate * ((1.0 - lost) * from_copies.get() + lost * recovery.get()),
        }
    }

    /// Expected share of nodes that are missing: by Little's law `rate x replacement` failures are open at a
    /// time, each taking its nodes.
    fn shrunk_share(&self) -> f64 {
        let Some(elastic) = self.recovery.elastic else { return 0.0 };
        let open = self.recovery.replacement / self.mtbf();
        (open * elastic.nodes_per_failure / f64::from(self.nodes)).min(1.0)
    }
}

/// A thousand years.
const FOREVER: Seconds = Seconds::new(1000.0 * 365.25 * 86_400.0);

struct Levels {
    durable: CheckpointCosts,
    /// Stall per second of work for copies.
    copy_stalls: f64,
    /// Expected recovery seconds per second, failures during recovery aside.
    recovery_load: f64,
}
