//! How a run scales over numbers of GPUs: the best layout at each, and the efficiency lost.

use bedplate_perf::Workload;
use bedplate_units::TokenRate;

use crate::{Axes, LayoutCandidate, SearchError, Setup, search};

/// What stays the same while GPUs are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuScaling {
    /// The batch: the same step, faster.
    Strong,
    /// The batch per GPU: larger steps, in the same time at best.
    Weak,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ScalingPoint {
    pub gpus: u32,
    pub global_batch: u64,
    /// The best layout, or why there is none.
    pub outcome: Result<ScaledStep, SearchError>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaledStep {
    pub candidate: LayoutCandidate,
    /// Over all GPUs.
    pub rate: TokenRate,
    /// Tokens per second and GPU, against the smallest number of GPUs that works.
    pub efficiency: f64,
}

/// The best layout at each number of GPUs, in rising order. Each takes a search within `axes`.
///
/// Weak scaling gives every number the batch per GPU that `setup` has, rounded down to a whole sequence and at
/// least one.
pub fn scaling(setup: &Setup<'_>, axes: &Axes, gpus: &[u32], scaling: GpuScaling) -> Vec<ScalingPoint> {
    let mut counts = gpus.to_vec();
    counts.sort_unstable();
    counts.dedup();
    let mut reference: Option<f64> = None;
    let mut points = Vec::with_capacity(counts.len());
    for count in counts {
        let scaled = scaled(setup, count, scaling);
        let found = search(&scaled, axes, 1).map(|answer| answer.best[0]);
        let outcome = found.map(|candidate| {
            let rate = TokenRate::new(scaled.workload.tokens() / candidate.seconds.get());
            let per_gpu = rate.get() / f64::from(count);
            let efficiency = per_gpu / *reference.get_or_insert(per_gpu);
            ScaledStep { candidate, rate, efficiency }
        });
        points.push(ScalingPoint { gpus: count, global_batch: scaled.workload.global_batch, outcome });
    }
    points
}

/// From an eighth to eight times the GPUs, in doublings.
pub fn scaling_curve(setup: &Setup<'_>, axes: &Axes, kind: GpuScaling) -> Vec<ScalingPoint> {
    let gpus = setup.gpus();
    let smaller = (1..=3).map(|power| gpus >> power).filter(|count| *count > 0);
    let larger = (0..=3).filter_map(|power: u32| gpus.checked_mul(1 << power));
    let counts: Vec<u32> = smaller.chain(larger).collect();
    scaling(setup, axes, &counts, kind)
}

fn scaled<'a>(setup: &Setup<'a>, gpus: u32, scaling: GpuScaling) -> Setup<'a> {
    let batch = setup.workload.global_batch;
    let global_batch = match scaling {
        GpuScaling::Strong => batch,
        GpuScaling::Weak => {
            let grown = u128::from(batch) * u128::from(gpus) / u128::from(setup.gpus().max(1));
            (grown as u64).max(1)
        }
    };
    let workload = Workload { global_batch, ..setup.workload };
    Setup { workload, ..setup.with_gpus(gpus) }
}
