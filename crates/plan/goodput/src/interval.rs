//! How often to write a checkpoint, and what share of time is then useful.
//!
//! Failures come as a Poisson process with mean time between failures `M`. A run alternates `t` seconds of
//! work with `s` seconds of stall, in which a checkpoint is taken; the checkpoint is durable `d` seconds
//! later (`d <= t + s`; zero when it is written before work continues). A failure costs a recovery of `r`
//! seconds, which may itself fail, and the work since the last durable checkpoint.
//!
//! The expected time from one durable checkpoint to the next is exactly
//! `M e^((r+d)/M) (e^((t+s)/M) - 1)`: after a restart a period must survive `t + s + d` to count, after a
//! durable checkpoint `t + s` more, and the two cases combine to this product. With `d = 0` it is equation 20 of
//! Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006).

use bedplate_units::Seconds;

/// What checkpoints and failures cost, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CheckpointCosts {
    /// Mean time between failures of the whole job; infinite when nothing fails.
    pub mtbf: Seconds,
    /// Work stalls this long for each checkpoint.
    pub stall: Seconds,
    /// From the end of the stall until the checkpoint can be restored from.
    pub drain: Seconds,
    /// From a failure until work continues.
    pub recovery: Seconds,
    /// Wall-clock seconds per second of work for other reasons, at least 1.
    pub dilation: f64,
}

impl CheckpointCosts {
    /// Share of time that is useful when a checkpoint follows every `interval` of work.
    pub fn goodput(&self, interval: Seconds) -> f64 {
        let (work, mtbf) = (interval.get(), self.mtbf.get());
        let period = work * self.dilation + self.stall.get();
        if work <= 0.0 {
            return if self.stall.is_zero() { self.limit() } else { 0.0 };
        }
        if mtbf.is_infinite() {
            return work / period;
        }
        let after_failure = ((self.recovery + self.drain).get() / mtbf).exp();
        work / (mtbf * after_failure * (period / mtbf).exp_m1())
    }

    /// Goodput when checkpoints cost nothing and are taken continuously.
    fn limit(&self) -> f64 {
        (-(self.recovery + self.drain).get() / self.mtbf.get()).exp() / self.dilation
    }

    /// The least work between checkpoints for one to be durable before the next: `d <= t + s`.
    pub fn shortest_interval(&self) -> Seconds {
        self.drain.saturating_sub(self.stall)
    }

    /// The interval with the highest goodput, by the exact formula.
    ///
    /// Where the derivative of `(e^((a t + s)/M) - 1)/t` is zero, `y = a t / M` solves `y = 1 - e^-(y + s/M)`;
    /// the difference of the two sides is increasing on (0, 1), so bisection finds its only root. A checkpoint must be
    /// durable before the next is taken, which is a lower bound on the interval.
    pub fn best_interval(&self) -> Seconds {
        let shortest = self.shortest_interval();
        let mtbf = self.mtbf.get();
        if mtbf.is_infinite() {
            return Seconds::new(f64::INFINITY);
        }
        let stall = self.stall.get() / mtbf;
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..80 {
            let middle = 0.5 * (low + high);
            if middle < -(-(middle + stall)).exp_m1() { low = middle } else { high = middle }
        }
        shortest.max(Seconds::new(0.5 * (low + high) * mtbf / self.dilation))
    }

    /// First order: `sqrt(2 s M)`. Young, "A first order approximation to the optimum checkpoint interval",
    /// CACM 17 (1974).
    pub fn young_interval(&self) -> Seconds {
        Seconds::new((2.0 * self.stall.get() * self.mtbf.get()).sqrt())
    }

    /// Higher order: `sqrt(2 s M) (1 + sqrt(s/2M)/3 + (s/2M)/9) - s`, and `M` when `s >= 2M`. Daly (2006),
    /// equation 37.
    pub fn daly_interval(&self) -> Seconds {
        let (stall, mtbf) = (self.stall.get(), self.mtbf.get());
        if stall >= 2.0 * mtbf {
            return self.mtbf;
        }
        let ratio = stall / (2.0 * mtbf);
        Seconds::new((2.0 * stall * mtbf).sqrt() * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - stall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn process(mtbf: f64, stall: f64, drain: f64, recovery: f64) -> CheckpointCosts {
        let seconds = Seconds::new;
        CheckpointCosts {
            mtbf: seconds(mtbf),
            stall: seconds(stall),
            drain: seconds(drain),
            recovery: seconds(recovery),
            dilation: 1.0,
        }
    }

    #[test]
    fn without_failures_only_stalls_cost() {
        let process = process(f64::INFINITY, 10.0, 0.0, 100.0);
        assert_eq!(process.goodput(Seconds::new(90.0)), 0.9);
        assert!(process.best_interval().get().is_infinite());
    }

    proptest! {
        #[test]
        fn goodput_lies_between_zero_and_one(
            mtbf in 60.0..1e7f64, stall in 0.0..600.0f64, drain in 0.0..600.0f64, recovery in 0.0..3600.0f64,
            interval in 1.0..1e5f64,
        ) {
            let goodput = process(mtbf, stall, drain, recovery).goodput(Seconds::new(interval));
            prop_assert!((0.0..=1.0).contains(&goodput), "{goodput}");
        }

        #[test]
        fn more_reliable_is_never_worse(
            mtbf in 600.0..1e6f64, more in 1.0..10.0f64, stall in 0.1..300.0f64, recovery in 0.0..3600.0f64,
            interval in 10.0..1e5f64,
        ) {
            let (worse, better) = (process(mtbf, stall, 0.0, recovery), process(mtbf * more, stall, 0.0, recovery));
            let interval = Seconds::new(interval);
            prop_assert!(better.goodput(interval) >= worse.goodput(interval) - 1e-12);
            prop_assert!(
                better.goodput(better.best_interval()) >= worse.goodput(worse.best_interval()) - 1e-12
            );
        }

        #[test]
        fn no_other_interval_beats_the_best(
            mtbf in 600.0..1e6f64, stall in 0.1..600.0f64, recovery in 0.0..3600.0f64, factor in 0.05..20.0f64,
        ) {
            let process = process(mtbf, stall, 0.0, recovery);
            let best = process.best_interval();
            prop_assert!(process.goodput(best) >= process.goodput(best * factor) - 1e-12);
        }

        /// Young loses at most 1 % and Daly at most 0.1 % of goodput when a stall is below 1 % of the time
        /// between failures.
        #[test]
        fn young_and_daly_are_near_the_optimum_when_checkpoints_are_short(
            mtbf in 600.0..1e6f64, ratio in 1e-6..0.01f64, recovery in 0.0..3600.0f64,
        ) {
            let process = process(mtbf, mtbf * ratio, 0.0, recovery);
            let best = process.goodput(process.best_interval());
            prop_assert!(process.goodput(process.young_interval()) >= 0.99 * best);
            prop_assert!(process.goodput(process.daly_interval()) >= 0.999 * best);
            let difference = process.daly_interval() / process.best_interval() - 1.0;
            prop_assert!(difference.abs() < 0.01, "{difference}");
        }

        #[test]
        fn slow_draining_bounds_the_interval_from_below(
            mtbf in 600.0..1e6f64, stall in 0.1..100.0f64, drain in 0.0..10_000.0f64,
        ) {
            let process = process(mtbf, stall, drain, 60.0);
            prop_assert!(process.best_interval().get() >= drain - stall - 1e-9);
        }
    }
}
