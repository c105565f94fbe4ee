//! The Pareto front: tokens per second for each user against tokens per second from each GPU.
//!
//! The estimate finds the front among everything that fits and whose prompts are in time; each of its points is then
//! simulated by the performance model's own closed loop, and dominated points are dropped.

use bedplate_perf::serving::Replica;

use crate::candidate::{Fitting, PREFILL_MAX_SEQS, transfer_seconds};
use crate::estimate::{Steady, TimeLimits, decoding};
use crate::launch::Duty;
use crate::outlook::looped;
use crate::{Need, Plan, Pooling, Supply, Workers};

/// A deployment under a constant number of users.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FrontPoint {
    /// Index of the supply.
    pub supply: usize,
    pub plan: Plan,
    /// Users of the whole plan.
    pub users: u32,
    /// Tokens per second that one of them sees.
    pub per_user: f64,
    /// Tokens per second per GPU.
    pub per_gpu: f64,
    /// Mean seconds to a first token.
    pub ttft: f64,
}

/// A point with its replicas.
#[derive(Debug, Clone, Copy)]
struct Sketch<'a> {
    point: FrontPoint,
    prefill: Option<&'a Replica>,
    decode: &'a Replica,
}

/// Sequences on one replica: powers of two and one and a half times them.
fn ladder(most: u32) -> impl Iterator<Item = u32> {
    let powers = (0..13).map(|power| 1u32 << power);
    let rungs = powers.flat_map(|power| [Some(power), (power >= 2).then(|| power / 2 * 3)]).flatten();
    rungs.take_while(move |rung| *rung <= most)
}

/// The front, from the most tokens per user to the most per GPU.
pub(crate) fn front(need: &Need<'_>, supplies: &[Supply], fitting: &[Fitting]) -> Vec<FrontPoint> {
    let mut sketches = Vec::new();
    if need.options.pooling != Pooling::Disaggregated {
        sketches.extend(one_pool(need, fitting));
    }
    if need.options.pooling != Pooling::Aggregated {
        sketches.extend(two_pools(need, supplies, fitting));
    }
    let sketches = unbeaten(sketches, |sketch| &sketch.point);
    // A closed loop begins with all users at once; limits do not apply to that burst.
    let latest = BURST * TimeLimits::of(&need.objectives).ttft;
    let played = sketches.iter().filter_map(|sketch| played(need, supplies, sketch));
    let played = played.filter(|point| point.ttft <= latest).collect();
    unbeaten(played, |point| point)
}

fn one_pool<'a>(need: &Need<'_>, fitting: &'a [Fitting]) -> Vec<Sketch<'a>> {
    let limits = TimeLimits::of(&need.objectives);
    let mut sketches = Vec::new();
    for it in fitting.iter().filter(|it| it.duty == Duty::Both) {
        let steady = Steady { replica: &it.replica, load: need.load };
        for batch in ladder(steady.most_sequences()) {
            let estimate = steady.at(batch);
            if estimate.ttft > limits.ttft {
                break;
            }
            let plan = Plan::Aggregated(Workers { layout: it.layout, replicas: 1, max_seqs: batch });
            let point = FrontPoint {
                supply: it.supply,
                plan,
                users: batch,
                per_user: 1.0 / estimate.itl,
                per_gpu: estimate.rate * f64::from(need.load.output) / f64::from(plan.gpus()),
                ttft: estimate.ttft,
            };
            sketches.push(Sketch { point, prefill: None, decode: &it.replica });
        }
    }
    sketches
}

/// For each format the prompt worker with the highest rate per GPU, with every decode worker.
fn two_pools<'a>(need: &Need<'_>, supplies: &[Supply], fitting: &'a [Fitting]) -> Vec<Sketch<'a>> {
    let limits = TimeLimits::of(&need.objectives);
    let mut sketches = Vec::new();
    for decode in
        fitting.iter().filter(|it| it.duty != Duty::Prefill && it.layout.chunk == need.options.chunks[0])
    {
        let is_partner = |it: &&Fitting| {
            it.duty != Duty::Decode
                && it.supply == decode.supply
                && it.layout.weights == decode.layout.weights
                && it.layout.kv == decode.layout.kv
        };
        let per_gpu = |it: &Fitting, rate: f64| rate / f64::from(it.layout.gpus());
        let partners =
            fitting.iter().filter(is_partner).filter_map(|it| Some((it, it.prompts(need, &limits).ok()?)));
        let Some((prefill, prompts)) =
            partners.max_by(|a, b| per_gpu(a.0, a.1.rate).total_cmp(&per_gpu(b.0, b.1.rate)))
        else {
            continue;
        };
        let steady = Steady { replica: &decode.replica, load: need.load };
        let transfer = transfer_seconds(need, prefill, decode);
        for batch in ladder(steady.most_sequences()) {
            let tokens = decoding(&steady, batch, transfer);
            let workers = |layout, replicas, max_seqs| Workers { layout, replicas, max_seqs };
            let plan = |prefills, decodes| Plan::Disaggregated {
                prefill: workers(prefill.layout, prefills, PREFILL_MAX_SEQS),
                decode: workers(decode.layout, decodes, batch),
            };
            let fits = |prefills, decodes| supplies[decode.supply].holds(&plan(prefills, decodes));
            let Some((prefills, decodes)) =
                ratio((prefill.layout.gpus(), prompts.rate), (decode.layout.gpus(), tokens.rate), fits)
            else {
                continue;
            };
            let plan = plan(prefills, decodes);
            let rate = (f64::from(prefills) * prompts.rate).min(f64::from(decodes) * tokens.rate);
            let point = FrontPoint {
                supply: decode.supply,
                plan,
                users: decodes * batch + prefills,
                per_user: 1.0 / tokens.itl,
                per_gpu: rate * f64::from(need.load.output) / f64::from(plan.gpus()),
                ttft: prompts.ttft,
            };
            sketches.push(Sketch { point, prefill: Some(&prefill.replica), decode: &decode.replica });
        }
    }
    sketches
}

/// Prompt and decode workers, of so many GPUs and requests per second each, in the ratio that wastes the least of those that fit.
fn ratio(
    (prefill_gpus, prefill): (u32, f64),
    (decode_gpus, decode): (u32, f64),
    fits: impl Fn(u32, u32) -> bool,
) -> Option<(u32, u32)> {
    const MOST: u32 = 16;
    let mut best: Option<(f64, (u32, u32))> = None;
    for decodes in 1..=MOST {
        let prefills = (f64::from(decodes) * decode / prefill).ceil().max(1.0) as u32;
        let total = prefills.saturating_mul(prefill_gpus).saturating_add(decodes * decode_gpus);
        if !fits(prefills, decodes) {
            break;
        }
        let each = f64::from(decodes) * decode / f64::from(total);
        if best.is_none_or(|(known, _)| each > known) {
            best = Some((each, (prefills, decodes)));
        }
    }
    best.map(|(_, workers)| workers)
}

/// By how much that burst may exceed the first-token limit, on average over all rounds.
const BURST: f64 = 3.0;

fn played(need: &Need<'_>, supplies: &[Supply], sketch: &Sketch<'_>) -> Option<FrontPoint> {
    let point = sketch.point;
    let replicas = (sketch.prefill, sketch.decode);
    let latency = looped(need, &supplies[point.supply], &point.plan, replicas, point.users)?;
    let per_gpu = latency.output_tokens_per_second / f64::from(point.plan.gpus());
    Some(FrontPoint { per_user: 1.0 / latency.inter_token, per_gpu, ttft: latency.first_token, ..point })
}

/// The points that no other dominates, from the most per user to the most per GPU.
fn unbeaten<T>(mut all: Vec<T>, point: impl Fn(&T) -> &FrontPoint) -> Vec<T> {
    all.retain(|it| point(it).per_user.is_finite() && point(it).per_gpu.is_finite());
    all.sort_by(|a, b| {
        let (a, b) = (point(a), point(b));
        b.per_user.total_cmp(&a.per_user).then(b.per_gpu.total_cmp(&a.per_gpu))
    });
    let mut highest = f64::NEG_INFINITY;
    all.retain(|it| {
        let is_better = point(it).per_gpu > highest;
        highest = highest.max(point(it).per_gpu);
        is_better
    });
    all
}
