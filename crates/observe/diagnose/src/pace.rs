//! The pace of a job: when its steps became slower, and whether they stay so.
//!
//! Step times are taken as logarithms, so that a change is a factor. What is usual is the median of the latest good steps and
//! how far medians of a few steps lie from it in this very job: series of real jobs spread by 0.4 % or by 8 %, and neighbours
//! resemble each other, so no fixed percentage works and no formula for independent noise either. A slowdown is *found*
//! when the median of the last few steps is beyond that; it is *firm* when it lasts.
//!
//! One value at a time, in order, and in bounded memory; steps beside evaluations, checkpoints, compilation and starts
//! must be left out by the caller with [`Pace::pause`] and [`Pace::restart`].

use std::collections::VecDeque;

use bedplate_units::statistics::{median, quantile};

/// Good steps that the usual pace is taken from, at most and at least.
const REMEMBERED: usize = 121;
const FEWEST: usize = 15;
/// Steps after a start whose times say nothing yet.
const WARM_UP: u32 = 20;
/// This many latest steps are compared with those before: the smallest slowdown that they may tell, and how many of their usual
/// distances they have to be away. Short windows are asked more often and have to be surer.
const WINDOWS: [Window; 7] = [
    Window { steps: 7, least: 0.07, distances: 5.0 },
    Window { steps: 11, least: 0.05, distances: 4.0 },
    Window { steps: 16, least: 0.05, distances: 3.5 },
    Window { steps: 24, least: 0.045, distances: 3.0 },
    Window { steps: 36, least: 0.04, distances: 2.75 },
    Window { steps: 54, least: 0.04, distances: 2.75 },
    Window { steps: 80, least: 0.035, distances: 2.75 },
];
/// What is firm is so many usual distances away, and by so much.
const FIRM: Window = Window { steps: 80, least: 0.044, distances: 5.0 };
/// Steps further than this many spreads from the middle count as if they were there, so that no few of them decide.
const CLIPPED_AT: f64 = 2.5;
/// No job's steps are taken to spread less than this.
const SMALLEST_SPREAD: f64 = 0.004;
/// A slowdown is firm after this many slow steps.
const FIRM_AFTER: u64 = 40;
/// After so many steps at a new pace it is the usual one.
const ADOPTED_AFTER: u64 = 400;

/// A change of pace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slowdown {
    /// The first slow step, as a number of values taken.
    pub onset: u64,
    /// When it was found.
    pub found: u64,
    /// Median seconds before and since.
    pub before: f64,
    pub since: f64,
    /// Slow steps so far.
    pub lasted: u64,
    pub is_firm: bool,
    /// When the steps were as fast as before again.
    pub ended: Option<u64>,
}

impl Slowdown {
    /// How much longer a step takes, 0.1 for ten per cent.
    pub fn excess(&self) -> f64 {
        self.since / self.before - 1.0
    }
}

/// How the latest steps are compared with those before.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Window {
    steps: usize,
    least: f64,
    distances: f64,
}

/// What is usual for a job, as logarithms of seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Usual {
    middle: f64,
    /// What the median of a slowdown has to exceed.
    limit: f64,
}

/// A slowdown that goes on.
#[derive(Debug, Clone)]
struct Open {
    slowdown: Slowdown,
    usual: Usual,
    /// How many steps it took to tell, and so to tell that it is over.
    window: usize,
    /// The values before it, which count again when it is over.
    before: VecDeque<(u64, f64)>,
}

#[derive(Debug, Clone, Default)]
pub struct Pace {
    taken: u64,
    warming: u32,
    /// Logarithms of the latest steps at the present pace, with their numbers.
    values: VecDeque<(u64, f64)>,
    /// Slowdowns that go on, each on top of the one before it.
    open: Vec<Open>,
    closed: Vec<Slowdown>,
}

impl Pace {
    pub fn new() -> Self {
        Self { warming: WARM_UP, ..Self::default() }
    }

    /// The next step's seconds.
    pub fn take(&mut self, seconds: f64) {
        self.taken += 1;
        if self.warming > 0 {
            self.warming -= 1;
            return;
        }
        if !(seconds.is_finite() && seconds > 0.0) {
            return;
        }
        self.values.push_back((self.taken, seconds.ln()));
        if self.values.len() > REMEMBERED + WINDOWS[WINDOWS.len() - 1].steps {
            self.values.pop_front();
        }
        self.follow();
        let found = WINDOWS.iter().find_map(|window| self.compare(window));
        if let Some((window, usual)) = found {
            self.open(window, usual);
        }
    }

    /// A step whose time is known to say nothing.
    pub fn pause(&mut self) {
        self.taken += 1;
    }

    /// The program began anew: its first steps are slow again.
    pub fn restart(&mut self) {
        self.warming = WARM_UP;
    }

    /// All slowdowns so far, those that are over first; one that goes on has no end.
    pub fn slowdowns(&self) -> Vec<Slowdown> {
        self.closed.iter().copied().chain(self.open.iter().map(|open| open.slowdown)).collect()
    }

    /// Median seconds of a step before any slowdown that goes on.
    pub fn usual(&self) -> Option<f64> {
        match self.open.first() {
            Some(open) => Some(open.usual.middle.exp()),
            None if self.values.is_empty() => None,
            None => Some(median(&self.latest(0, REMEMBERED)).exp()),
        }
    }

    /// The latest `count` values behind the newest `skipped`.
    fn latest(&self, skipped: usize, count: usize) -> Vec<f64> {
        self.values.iter().rev().skip(skipped).take(count).map(|(_, value)| *value).collect()
    }

    /// Whether the latest window is beyond what is usual before it.
    fn compare(&self, window: &Window) -> Option<(usize, Usual)> {
        if self.values.len() < window.steps + FEWEST.max(window.steps / 2) {
            return None;
        }
        let now = self.latest(0, window.steps);
        let before = self.latest(window.steps, REMEMBERED);
        let middle = median(&before);
        let is_slower = median(&now) >= middle + window.least && window.tells(&before, &now, middle);
        is_slower.then_some((window.steps, Usual { middle, limit: middle + window.least }))
    }

    fn open(&mut self, window: usize, usual: Usual) {
        let from = self.values.len() - self.slow_at_the_end(window, usual);
        let slow = self.values.split_off(from);
        let before = std::mem::replace(&mut self.values, slow);
        let slowdown = Slowdown {
            onset: self.values[0].0,
            found: self.taken,
            before: usual.middle.exp(),
            since: median(&self.latest(0, REMEMBERED)).exp(),
            lasted: self.values.len() as u64,
            is_firm: false,
            ended: None,
        };
        self.open.push(Open { slowdown, usual, window, before });
    }

    /// How many of the latest steps belong to the slowdown that a window has found: where, counted from the end, slow steps
    /// outweigh usual ones most.
    fn slow_at_the_end(&self, window: usize, usual: Usual) -> usize {
        let half = (usual.middle + usual.limit) / 2.0;
        let (mut best, mut best_at, mut sum) = (i64::MIN, window, 0);
        for (at, (_, value)) in self.values.iter().rev().take(2 * window).enumerate() {
            sum += if *value > half { 1 } else { -1 };
            if sum >= best {
                (best, best_at) = (sum, at + 1);
            }
        }
        best_at.clamp(window / 2, self.values.len() - 1)
    }

    /// Sees whether the slowdowns that go on still do.
    fn follow(&mut self) {
        let Some(open) = self.open.last_mut() else { return };
        let newest: Vec<f64> = self.values.iter().rev().take(open.window).map(|(_, value)| *value).collect();
        let since = median(&Vec::from_iter(self.values.iter().map(|(_, value)| *value)));
        let slowdown = &mut open.slowdown;
        (slowdown.since, slowdown.lasted) = (since.exp(), slowdown.lasted + 1);
        let is_over = newest.len() >= open.window
            && median(&newest) < (open.usual.middle + since.min(open.usual.limit)) / 2.0;
        if is_over {
            slowdown.ended = Some(self.taken + 1 - newest.len() as u64 / 2);
            slowdown.lasted = slowdown.ended.unwrap_or(0).saturating_sub(slowdown.onset);
            self.closed.push(*slowdown);
            self.values = std::mem::take(&mut open.before);
            self.open.pop();
            return;
        }
        if !slowdown.is_firm && slowdown.lasted >= FIRM_AFTER && since > open.usual.middle + FIRM.least {
            let before: Vec<f64> =
                open.before.iter().rev().take(REMEMBERED).map(|(_, value)| *value).collect();
            let slow: Vec<f64> = self.values.iter().rev().take(FIRM.steps).map(|(_, value)| *value).collect();
            slowdown.is_firm = FIRM.tells(&before, &slow, open.usual.middle);
        }
        if slowdown.lasted >= ADOPTED_AFTER && self.open.len() == 1 {
            // The new pace is the usual one from here on.
            self.closed.push(self.open.remove(0).slowdown);
        }
    }
}

impl Window {
    fn tells(&self, before: &[f64], now: &[f64], middle: f64) -> bool {
        self.by_mean(before, now, middle) || self.by_quarter(before, now, middle)
    }

    /// By their mean, with few slow steps clipped: tells most where steps spread evenly.
    fn by_mean(&self, before: &[f64], now: &[f64], middle: f64) -> bool {
        let furthest = CLIPPED_AT * deviation(before, |value| Some((value - middle).abs()));
        let clip = |value: &f64| (value - middle).clamp(-furthest, furthest);
        let before = Vec::from_iter(before.iter().map(clip));
        let usual = mean(&before);
        let single = mean(&Vec::from_iter(before.iter().map(|value| (value - usual).powi(2)))).sqrt();
        let shift = mean(&Vec::from_iter(now.iter().map(clip))) - usual;
        shift > self.distances * error(&before, now.len(), single.max(SMALLEST_SPREAD), usual, mean)
    }

    /// By the step that a quarter are faster than: tells most where steps have a floor that some exceed by much.
    fn by_quarter(&self, before: &[f64], now: &[f64], middle: f64) -> bool {
        // The standard error of a quarter of normal values, in their spreads.
        const OF_QUARTER: f64 = 1.36;
        let below = deviation(before, |value| (*value <= middle).then_some(middle - value));
        let quarter = |values: &[f64]| quantile(values, 0.25);
        let usual = quarter(before);
        let shift = quarter(now) - usual;
        shift > self.least.max(self.distances * error(before, now.len(), OF_QUARTER * below, usual, quarter))
    }
}

/// How far a figure of `window` steps usually lies from that of all: as for independent steps that spread by `single`, or more where
/// neighbours resemble each other.
fn error(before: &[f64], window: usize, single: f64, usual: f64, figure: impl Fn(&[f64]) -> f64) -> f64 {
    let figures: Vec<f64> = before.windows(window).step_by((window / 2).max(1)).map(figure).collect();
    let of_windows = match figures.len() {
        0..3 => 0.0,
        _ => deviation(&figures, |value| Some((value - usual).abs())),
    };
    let independent = single / (window as f64).sqrt();
    independent.max(of_windows) * (1.0 + window as f64 / before.len() as f64).sqrt()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The standard deviation of normal values that lie as far from their middle as these.
fn deviation(values: &[f64], distance: impl Fn(&f64) -> Option<f64>) -> f64 {
    const OF_NORMAL: f64 = 1.4826;
    (OF_NORMAL * median(&Vec::from_iter(values.iter().filter_map(distance)))).max(SMALLEST_SPREAD)
}

#[cfg(test)]
mod tests {
    use bedplate_random::Random;
    use proptest::prelude::*;

    use super::*;

    /// Steps of about a second, spread by `noise`, and slower by `factor` between two steps.
    fn run(noise: f64, factor: f64, from: u64, to: u64, steps: u64, seed: u64) -> Vec<Slowdown> {
        let mut random = Random::new(seed);
        let mut pace = Pace::new();
        for step in 1..=steps {
            let is_slow = (from..to).contains(&step);
            pace.take((1.0 + noise * random.normal()).max(0.1) * if is_slow { factor } else { 1.0 });
        }
        pace.slowdowns()
    }

    #[test]
    fn a_slowdown_has_its_beginning_and_its_end() {
        let found = run(0.01, 1.1, 200, 300, 500, 1);
        assert_eq!(found.len(), 1, "{found:?}");
        let slow = found[0];
        assert!(slow.is_firm && (196..=204).contains(&slow.onset), "{slow:?}");
        assert!(
            slow.found - 200 <= 8 && slow.ended.is_some_and(|end| (296..=308).contains(&end)),
            "{slow:?}"
        );
        assert!((slow.excess() - 0.1).abs() < 0.01);
    }

    #[test]
    fn one_slowdown_on_top_of_another_is_two() {
        let mut pace = Pace::new();
        for step in 0..400 {
            pace.take(
                if step < 150 {
                    1.0
                } else if step < 250 {
                    1.1
                } else {
                    1.3
                } + 0.001 * f64::from(step % 7),
            );
        }
        let onsets: Vec<u64> = pace.slowdowns().iter().map(|slow| slow.onset).collect();
        assert_eq!(onsets, [151, 251]);
        assert!((pace.usual().unwrap() - 1.003).abs() < 0.01);
    }

    #[test]
    fn noise_and_single_slow_steps_are_no_slowdowns() {
        let found: Vec<Slowdown> = (0..20).flat_map(|seed| run(0.05, 1.0, 0, 0, 2000, seed)).collect();
        // Of 40,000 steps that spread by 5 %, a few are suspected for a moment and none is found slow.
        assert!(found.len() <= 24 && found.iter().all(|slow| !slow.is_firm), "{found:?}");
        let mut pace = Pace::new();
        for step in 0..1000 {
            pace.take(if step % 10 == 0 { 5.0 } else { 1.0 });
        }
        assert_eq!(pace.slowdowns(), []);
    }

    proptest! {
        /// Seconds or milliseconds: a change is a factor.
        #[test]
        fn the_unit_does_not_matter(unit in 1e-3_f64..1e3, seed in 0_u64..50) {
            let mut random = Random::new(seed);
            let (mut one, mut other) = (Pace::new(), Pace::new());
            for step in 0..200 {
                let seconds = (1.0 + 0.02 * random.normal()) * if step > 120 { 1.2 } else { 1.0 };
                one.take(seconds);
                other.take(seconds * unit);
            }
            let onsets = |pace: &Pace| pace.slowdowns().iter().map(|slow| slow.onset).collect::<Vec<_>>();
            prop_assert_eq!(onsets(&one), onsets(&other));
        }
    }
}
