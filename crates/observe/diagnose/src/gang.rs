//! Ranks beside each other: whose own work takes longer than its peers', and in which part of a step.
//!
//! The steps of a gang end together, so a slow rank does not show in its steps' durations but in what it does *not* wait:
//! its own work, a step without communication and bubbles, is longer, and its peers wait for it. A rank is compared with the
//! peers of its stage, and with what it did itself before. What is kept of a rank is bounded: its latest steps, and its usual one.

use std::collections::{BTreeMap, VecDeque};

use bedplate_breakdown::Part;
use bedplate_report::StepReport;
use bedplate_units::statistics::{median, quantile};

/// Steps of a rank that are kept.
const KEPT: usize = 32;
/// Steps whose medians are compared.
const WINDOW: usize = 12;
/// Steps after a start that say nothing, and those that a rank's usual work is taken from.
const WARM_UP: u64 = 5;
const FIRST_USUAL: usize = 12;
/// A rank's own work is slow when it takes this much longer than its peers'…
const STRAGGLES: f64 = 0.05;
/// …and this many of their usual distances, and when the step would be this much shorter without it.
const DISTANCES: f64 = 5.0;
const LEAST_OF_STEP: f64 = 0.04;
/// Of a group at most this share straggles; if more ranks are slow, the reason is common to all.
const MOST: f64 = 0.25;

/// What a rank itself does within a step, as four kinds of work, and how long it waits for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RankWork {
    Compute,
    Storage,
    Host,
    Other,
}

impl RankWork {
    pub(crate) const ALL: [RankWork; 4] =
        [RankWork::Compute, RankWork::Storage, RankWork::Host, RankWork::Other];

    fn of(part: Part) -> Option<RankWork> {
        match part {
            Part::Compute | Part::Memory | Part::Optimizer => Some(RankWork::Compute),
            Part::Storage => Some(RankWork::Storage),
            Part::Host => Some(RankWork::Host),
            Part::Other | Part::Queue => Some(RankWork::Other),
            Part::ScaleUp | Part::ScaleOut | Part::Bubble => None,
        }
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            RankWork::Compute => "computing",
            RankWork::Storage => "reading or writing data",
            RankWork::Host => "work of the host",
            RankWork::Other => "work that it does not name",
        }
    }
}

/// One step of one rank, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Step {
    number: u64,
    at: f64,
    seconds: f32,
    work: [f32; RankWork::ALL.len()],
    waits: f32,
    bubble: f32,
}

impl Step {
    fn own(&self) -> f64 {
        self.work.iter().map(|part| f64::from(*part)).sum()
    }
}

/// Medians of a rank's steps.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Typical {
    pub(crate) seconds: f64,
    pub(crate) own: f64,
    pub(crate) work: [f64; RankWork::ALL.len()],
    pub(crate) waits: f64,
}

impl Typical {
    fn of<'a>(steps: impl Iterator<Item = &'a Step> + Clone) -> Self {
        let of = |value: &dyn Fn(&Step) -> f64| median(&Vec::from_iter(steps.clone().map(value)));
        Self {
            seconds: of(&|step| f64::from(step.seconds)),
            own: of(&Step::own),
            work: std::array::from_fn(|at| of(&|step| f64::from(step.work[at]))),
            waits: of(&|step| f64::from(step.waits)),
        }
    }
}

#[derive(Debug, Clone, Default)]
struct RankSteps {
    stage: u32,
    taken: u64,
    last: u64,
    latest: VecDeque<Step>,
    usual: Option<Typical>,
    has_parts: bool,
    /// The first step of those that it is slow in now.
    slow_from: Option<(u64, f64)>,
}

/// A rank that holds up the others.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Straggler {
    pub(crate) rank: u32,
    /// Own work of its typical step, and of its peers'.
    pub(crate) own: f64,
    pub(crate) peers: f64,
    /// In which kind of work most of the difference lies.
    pub(crate) work: RankWork,
    pub(crate) step_seconds: f64,
    pub(crate) from: (u64, f64),
}

/// What grew on all ranks of a job, in seconds of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Growth {
    pub(crate) work: [f64; RankWork::ALL.len()],
    pub(crate) waits: f64,
    /// How much longer the slowest rank of a step works than the median one, whoever that is.
    pub(crate) unevenness: f64,
}

/// The ranks of a job that report steps of their own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Peers {
    ranks: BTreeMap<u32, RankSteps>,
    /// Of the first steps, and how many ranks have had those.
    usual_unevenness: Option<f64>,
    settled: usize,
}

impl Peers {
    /// Ranks of different stages do different work.
    pub(crate) fn of_stage(&mut self, rank: u32, stage: u32) {
        self.ranks.entry(rank).or_default().stage = stage;
    }

    pub(crate) fn take(&mut self, rank: u32, at: f64, report: &StepReport) {
        let known = self.ranks.entry(rank).or_default();
        if report.step < known.last {
            // It began anew, from a checkpoint.
            *known = RankSteps { stage: known.stage, ..RankSteps::default() };
        }
        known.last = report.step;
        known.taken += 1;
        if known.taken <= WARM_UP {
            return;
        }
        let mut step = Step { number: report.step, at, seconds: report.seconds as f32, ..Step::default() };
        known.has_parts = report.breakdown.is_some();
        if let Some(breakdown) = &report.breakdown {
            for (part, span) in breakdown.parts() {
                let seconds = span.exposed.get() as f32;
                match RankWork::of(part) {
                    Some(work) => step.work[work as usize] += seconds,
                    None => step.waits += seconds,
                }
            }
            step.bubble = breakdown[Part::Bubble].exposed.get() as f32;
            // What the parts leave open was somebody's work.
            step.work[RankWork::Other as usize] += (step.seconds - step.own() as f32 - step.waits).max(0.0);
        }
        if known.latest.len() == KEPT {
            known.latest.pop_front();
        }
        known.latest.push_back(step);
        if known.usual.is_none() && known.latest.len() >= FIRST_USUAL {
            known.usual = Some(Typical::of(known.latest.iter()));
            self.settled += 1;
            if self.usual_unevenness.is_none() && self.settled >= self.ranks.len() {
                self.usual_unevenness = self.unevenness();
            }
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.ranks.len()
    }

    /// The last step of each rank.
    pub(crate) fn last_steps(&self) -> impl Iterator<Item = (u32, u64)> {
        self.ranks.iter().map(|(rank, steps)| (*rank, steps.last))
    }

    /// Ranks whose work takes longer than that of their peers now.
    pub(crate) fn stragglers(&mut self) -> Vec<Straggler> {
        let mut groups: BTreeMap<u32, Vec<(u32, Typical)>> = BTreeMap::new();
        let mut has_bubbles = false;
        for (rank, steps) in &self.ranks {
            if steps.has_parts && steps.latest.len() >= WINDOW {
                let newest = || steps.latest.iter().rev().take(WINDOW);
                groups.entry(steps.stage).or_default().push((*rank, Typical::of(newest())));
                has_bubbles |= newest().any(|step| step.bubble > 0.0);
            }
        }
        // Without word of stages, ranks of a pipeline differ in their work by design.
        let are_alike = groups.len() > 1 || !has_bubbles;
        let mut found = Vec::new();
        for group in groups.values().filter(|group| group.len() > 1) {
            found.extend(self.of_group(group, are_alike));
        }
        for steps in self.ranks.values_mut() {
            steps.slow_from = None;
        }
        for straggler in &found {
            if let Some(steps) = self.ranks.get_mut(&straggler.rank) {
                steps.slow_from = Some(straggler.from);
            }
        }
        found
    }

    fn of_group(&self, group: &[(u32, Typical)], are_alike: bool) -> Vec<Straggler> {
        let usual = |rank: &u32| self.ranks.get(rank).and_then(|steps| steps.usual);
        let absolute = |(_, now): &(u32, Typical)| now.own;
        let relative =
            |(rank, now): &(u32, Typical)| now.own / usual(rank).map_or(now.own, |usual| usual.own).max(1e-9);
        let by_value = if are_alike { beyond(group, &absolute) } else { Vec::new() };
        let by_history = match group {
            // Two have no majority: the one that changed is it.
            [one, other] if relative(other) < 1.0 + STRAGGLES / 2.0 => {
                Vec::from_iter((relative(one) > 1.0 + STRAGGLES).then_some(0))
            }
            [one, other] if relative(one) < 1.0 + STRAGGLES / 2.0 => {
                Vec::from_iter((relative(other) > 1.0 + STRAGGLES).then_some(1))
            }
            _ => beyond(group, &relative),
        };
        let slow: Vec<usize> =
            (0..group.len()).filter(|at| by_value.contains(at) || by_history.contains(at)).collect();
        if slow.is_empty() || slow.len() as f64 > (MOST * group.len() as f64).max(1.0) {
            return Vec::new();
        }
        let of_peers = |value: &dyn Fn(&Typical) -> f64| {
            let peers = group.iter().enumerate().filter(|(at, _)| !slow.contains(at));
            median(&Vec::from_iter(peers.map(|(_, (_, typical))| value(typical))))
        };
        let mut found = Vec::new();
        for at in &slow {
            let (rank, now) = &group[*at];
            let Some(steps) = self.ranks.get(rank) else { continue };
            // Of a stage with work of its own, what it did itself before stands for its peers.
            let before = usual(rank).filter(|_| !by_value.contains(at));
            let peers = before.map_or_else(|| of_peers(&|typical| typical.own), |before| before.own);
            let own: Vec<f64> = steps.latest.iter().rev().take(WINDOW).map(Step::own).collect();
            let is_steady = quantile(&own, 0.25) > peers * (1.0 + STRAGGLES / 2.0);
            if now.own - peers < LEAST_OF_STEP * now.seconds || !is_steady {
                continue;
            }
            let grown = |work: RankWork| {
                let peers = |typical: &Typical| typical.work[work as usize];
                now.work[work as usize] - before.map_or_else(|| of_peers(&peers), |before| peers(&before))
            };
            let work = RankWork::ALL.into_iter().max_by(|one, other| grown(*one).total_cmp(&grown(*other)));
            let limit = (now.own + peers) / 2.0;
            let slow_steps = steps.latest.iter().rev().take_while(|step| step.own() > limit);
            let from = slow_steps.last().map_or((steps.last, 0.0), |step| (step.number, step.at));
            let from = steps.slow_from.filter(|known| known.0 < from.0).unwrap_or(from);
            let work = work.unwrap_or(RankWork::Other);
            found.push(Straggler { rank: *rank, own: now.own, peers, work, step_seconds: now.seconds, from });
        }
        found
    }

    /// What grew on the ranks of the job since they began, as medians over ranks.
    pub(crate) fn growth(&self) -> Option<Growth> {
        let pairs: Vec<(Typical, Typical)> = self
            .ranks
            .values()
            .filter(|steps| steps.has_parts && steps.latest.len() >= WINDOW)
            .filter_map(|steps| Some((steps.usual?, Typical::of(steps.latest.iter().rev().take(WINDOW)))))
            .collect();
        if pairs.is_empty() {
            return None;
        }
        let over = |value: &dyn Fn(&Typical) -> f64| {
            median(&Vec::from_iter(pairs.iter().map(|(before, now)| value(now) - value(before))))
        };
        Some(Growth {
            work: std::array::from_fn(|at| over(&|typical| typical.work[at])),
            waits: over(&|typical| typical.waits),
            unevenness: self.unevenness().unwrap_or(0.0) - self.usual_unevenness.unwrap_or(0.0),
        })
    }

    /// How much longer the slowest of a step's ranks works than the median one, typically.
    fn unevenness(&self) -> Option<f64> {
        let mut by_step: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        let ranks = self.ranks.values().filter(|steps| steps.has_parts);
        for step in ranks.flat_map(|steps| steps.latest.iter().rev().take(WINDOW)) {
            by_step.entry(step.number).or_default().push(step.own());
        }
        let of_step = |works: &Vec<f64>| works.iter().copied().fold(0.0, f64::max) - median(works);
        let all = by_step.values().filter(|works| works.len() * 2 > self.ranks.len()).map(of_step);
        Some(median(&Vec::from_iter(all))).filter(|unevenness| unevenness.is_finite())
    }
}

/// Which of a group lie beyond what is usual in it.
fn beyond(group: &[(u32, Typical)], value: &dyn Fn(&(u32, Typical)) -> f64) -> Vec<usize> {
    const OF_NORMAL: f64 = 1.4826;
    let values: Vec<f64> = group.iter().map(|each| value(each).max(1e-9).ln()).collect();
    let middle = median(&values);
    let distance = OF_NORMAL * median(&Vec::from_iter(values.iter().map(|value| (value - middle).abs())));
    // The more ranks there are, the farther the farthest of them lies by chance.
    let distances = DISTANCES + (group.len() as f64 / 64.0).log10().max(0.0);
    let limit = middle + (1.0 + STRAGGLES).ln().max(distances * distance);
    values.iter().enumerate().filter(|(_, value)| **value > limit).map(|(at, _)| at).collect()
}
