//! Plans that should hold by the estimate, with as many replicas as the rate needs.

use bedplate_perf::serving::Replica;

use crate::estimate::{
    Estimate, Miss, Steady, TimeLimits, decode_max_seqs, decode_rate, decoding, prefill_rate,
};
use crate::launch::Duty;
use crate::{
    Need, Plan, Pooling, ServingLayout, ServingLayoutRefusal, Supply, Tried, TriedSubject, Verdict, Workers,
};

/// A layout whose replica fits.
#[derive(Debug, Clone)]
pub(crate) struct Fitting {
    pub(crate) supply: usize,
    /// What it is for: one of the duties where prompts have GPUs of their own.
    pub(crate) duty: Duty,
    pub(crate) layout: ServingLayout,
    pub(crate) replica: Replica,
}

/// A plan that should hold, before it is replayed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PlanCandidate {
    pub(crate) supply: usize,
    pub(crate) plan: Plan,
    /// Seconds of a request with as many in flight as the limits permit.
    pub(crate) end_to_end: f64,
    /// Seconds of a request at the rate.
    pub(crate) latency: f64,
}

/// Layouts that fit, and the verdict on all others.
pub(crate) fn fitting(need: &Need<'_>, supplies: &[Supply], tried: &mut Vec<Tried>) -> Vec<Fitting> {
    let mut found = Vec::new();
    for (supply, it) in supplies.iter().enumerate() {
        for (duty, gpus) in duties(it) {
            for layout in crate::space::layouts(need, gpus) {
                match fit(need, gpus, &layout) {
                    Ok(replica) => found.push(Fitting { supply, duty, layout, replica }),
                    Err(refusal) => {
                        let verdict = Verdict::Refused(refusal);
                        tried.push(Tried { supply, what: TriedSubject::Layout(layout), verdict });
                    }
                }
            }
        }
    }
    found
}

/// The GPUs of each duty.
fn duties(supply: &Supply) -> Vec<(Duty, &Supply)> {
    match &supply.prompts {
        Some(prompts) => vec![(Duty::Prefill, prompts), (Duty::Decode, supply)],
        None => vec![(Duty::Both, supply)],
    }
}

/// The replica of a layout, if it is legal and holds at least one request.
pub fn fit(
    need: &Need<'_>,
    supply: &Supply,
    layout: &ServingLayout,
) -> Result<Replica, ServingLayoutRefusal> {
    if let Some(refusal) = layout.refusal(need, supply) {
        return Err(refusal);
    }
    let Ok(replica) = layout.replica(need, supply) else {
        return Err(ServingLayoutRefusal::NotPriced);
    };
    let memory = replica.memory();
    if let bedplate_perf::serving::KvRoom::DoesNotFit { over_per_gpu } = memory.room {
        return Err(ServingLayoutRefusal::DoesNotFit { over_per_gpu });
    }
    let (needed, room) = (memory.tokens_of(need.load.context()), memory.room.tokens());
    if needed > room {
        return Err(ServingLayoutRefusal::NoRoom { needed_tokens: needed, room_tokens: room });
    }
    Ok(replica)
}

/// Candidates of all arrangements, unordered.
pub(crate) fn candidates(
    need: &Need<'_>,
    supplies: &[Supply],
    fitting: &[Fitting],
    tried: &mut Vec<Tried>,
) -> Vec<PlanCandidate> {
    let mut found = Vec::new();
    if need.options.pooling != Pooling::Disaggregated {
        found.extend(aggregated(need, supplies, fitting, tried));
    }
    if need.options.pooling != Pooling::Aggregated {
        found.extend(disaggregated(need, supplies, fitting, tried));
    }
    found
}

/// One pool: for each way to split a replica the chunk with the most throughput, with as many replicas as the rate needs.
fn aggregated(
    need: &Need<'_>,
    supplies: &[Supply],
    fitting: &[Fitting],
    tried: &mut Vec<Tried>,
) -> Vec<PlanCandidate> {
    let mut found: Vec<PlanCandidate> = Vec::new();
    let limits = TimeLimits::of(&need.objectives);
    let whole: Vec<&Fitting> = fitting.iter().filter(|it| it.duty == Duty::Both).collect();
    for group in whole.chunk_by(|a, b| a.supply == b.supply && is_sibling(&a.layout, &b.layout)) {
        let mut carrying: Vec<(&Fitting, Estimate)> = Vec::new();
        for it in group.iter().copied() {
            match (Steady { replica: &it.replica, load: need.load }).largest(&limits) {
                Ok(estimate) => carrying.push((it, estimate)),
                Err(miss) => tried.push(it.verdict(Verdict::TooSlow(miss))),
            }
        }
        let Some((it, estimate)) = carrying.iter().copied().max_by(|a, b| a.1.rate.total_cmp(&b.1.rate))
        else {
            continue;
        };
        let others = carrying.iter().filter(|(other, _)| other.layout != it.layout);
        tried.extend(others.map(|(other, _)| other.verdict(Verdict::OtherChunk { chunk: it.layout.chunk })));
        let steady = Steady { replica: &it.replica, load: need.load };
        let workers = Workers {
            layout: it.layout,
            replicas: count(need.load.per_second, estimate.rate),
            max_seqs: steady.max_seqs(&limits).max(estimate.batch),
        };
        let share = need.load.per_second / f64::from(workers.replicas);
        let at_full = estimate.end_to_end(&need.load);
        let latency = settled(share, |batch| steady.at(batch).end_to_end(&need.load));
        let plan = Plan::Aggregated(workers);
        found.extend(within(supplies, it.supply, plan, (at_full, latency), tried));
    }
    found
}

fn is_sibling(a: &ServingLayout, b: &ServingLayout) -> bool {
    ServingLayout { chunk: 0, ..*a } == ServingLayout { chunk: 0, ..*b }
}

impl Fitting {
    /// Whether it can serve alone, or decode what another computes in the same formats.
    pub(crate) fn has_partner(&self, all: &[Fitting]) -> bool {
        let key = |it: &Fitting| (it.supply, it.layout.weights, it.layout.kv);
        match self.duty {
            Duty::Both => true,
            Duty::Prefill => false,
            Duty::Decode => all.iter().any(|it| it.duty == Duty::Prefill && key(it) == key(self)),
        }
    }

    /// What it computes as a prompt worker, from which first tokens go by way of another.
    pub(crate) fn prompts(&self, need: &Need<'_>, limits: &TimeLimits) -> Result<Estimate, Miss> {
        let arrival = self.replica.arrival();
        let way = arrival.sent(need.load.input) + arrival.first_token + need.constants.hand_off;
        prefill_rate(&Steady { replica: &self.replica, load: need.load }, limits, way)
    }

    fn verdict(&self, verdict: Verdict) -> Tried {
        Tried { supply: self.supply, what: TriedSubject::Layout(self.layout), verdict }
    }
}

fn count(per_second: f64, each: f64) -> u32 {
    (per_second / each).ceil().clamp(1.0, 1e6) as u32
}

/// By how much the estimate may be too pessimistic.
const CAREFUL: f64 = 1.4;

/// The candidate if there are enough GPUs for it, or nearly enough: then it gets all of them.
fn within(
    supplies: &[Supply],
    supply: usize,
    plan: Plan,
    (end_to_end, latency): (f64, f64),
    tried: &mut Vec<Tried>,
) -> Option<PlanCandidate> {
    let it = &supplies[supply];
    let (needed, available) = match (&it.prompts, &plan) {
        // Of the pool that lacks more.
        (Some(prompts), Plan::Disaggregated { prefill, decode }) => {
            let (first, second) = ((prefill.gpus(), prompts.gpus()), (decode.gpus(), it.gpus()));
            let lack = |(needed, available): (u32, u32)| f64::from(needed) / f64::from(available.max(1));
            if lack(first) > lack(second) { first } else { second }
        }
        _ => (plan.gpus(), it.gpus()),
    };
    let is_near = f64::from(needed) <= CAREFUL * f64::from(available);
    let Some(plan) = plan.within(it).filter(|_| is_near) else {
        let verdict = Verdict::NeedsMoreGpus { needed, available };
        tried.push(Tried { supply, what: TriedSubject::Plan(plan), verdict });
        return None;
    };
    Some(PlanCandidate { supply, plan, end_to_end, latency })
}

/// Rounds after which the sequences in flight and their latency agree.
const ROUNDS: u32 = 6;

/// Seconds of a request at a rate, given those with a number of sequences in flight (Little's law).
fn settled(per_second: f64, latency: impl Fn(u32) -> f64) -> f64 {
    let mut found = latency(1);
    for _ in 0..ROUNDS {
        found = latency((per_second * found).clamp(1.0, 4096.0) as u32);
    }
    found
}

/// Prompt workers and decode workers of which the best few are paired, for each format.
const PREFILL_KEPT: usize = 4;
const DECODE_KEPT: usize = 4;
/// Prompts that a prompt worker processes at once.
pub(crate) const PREFILL_MAX_SEQS: u32 = 64;

fn disaggregated(
    need: &Need<'_>,
    supplies: &[Supply],
    fitting: &[Fitting],
    tried: &mut Vec<Tried>,
) -> Vec<PlanCandidate> {
    let limits = TimeLimits::of(&need.objectives);
    let mut found = Vec::new();
    for (prefill, decode) in pairs(need, fitting, tried) {
        let (p, d) = (prefill.fitting, decode.fitting);
        let rate = need.load.per_second;
        let steady = Steady { replica: &d.replica, load: need.load };
        let transfer = transfer_seconds(need, p, d);
        let max_seqs = decode_max_seqs(&steady, &limits, transfer);
        let decodes = count(rate, decode.estimate.rate);
        let plan = Plan::Disaggregated {
            prefill: Workers {
                layout: p.layout,
                replicas: count(rate, prefill.estimate.rate),
                max_seqs: PREFILL_MAX_SEQS,
            },
            decode: Workers { layout: d.layout, replicas: decodes, max_seqs },
        };
        let tokens = f64::from(need.load.output);
        let at_full = prefill.estimate.ttft + decode.estimate.itl * tokens;
        let answer = |batch: u32| decoding(&steady, batch, transfer).itl * tokens;
        let latency = prefill.estimate.ttft + settled(rate / f64::from(decodes), answer);
        found.extend(within(supplies, p.supply, plan, (at_full, latency), tried));
    }
    found
}

/// A fitting layout in one of the two roles.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolRole<'a> {
    pub(crate) fitting: &'a Fitting,
    pub(crate) estimate: Estimate,
}

impl PoolRole<'_> {
    fn rate_per_gpu(&self) -> f64 {
        self.estimate.rate / f64::from(self.fitting.layout.gpus())
    }
}

/// The best prompt workers with the best decode workers of the same formats, by rate per GPU.
fn pairs<'a>(
    need: &Need<'_>,
    fitting: &'a [Fitting],
    tried: &mut Vec<Tried>,
) -> Vec<(PoolRole<'a>, PoolRole<'a>)> {
    let limits = TimeLimits::of(&need.objectives);
    let mut pairs = Vec::new();
    for group in formats(fitting) {
        let prompts: Vec<&Fitting> = group.iter().copied().filter(|it| it.duty != Duty::Decode).collect();
        let decodes: Vec<&Fitting> = group.iter().copied().filter(|it| it.duty != Duty::Prefill).collect();
        // What is tried as one pool too is judged there.
        let mut miss = |it: &Fitting, miss: Miss| {
            if need.options.pooling == Pooling::Disaggregated || it.duty != Duty::Both {
                tried.push(it.verdict(Verdict::TooSlow(miss)));
            }
        };
        let prefill = best(&prompts, PREFILL_KEPT, &mut miss, |it| it.prompts(need, &limits));
        let decode = best(&decodes, DECODE_KEPT, &mut miss, |it| {
            let steady = Steady { replica: &it.replica, load: need.load };
            decode_rate(&steady, &limits, transfer_seconds(need, it, it))
        });
        for prefill in &prefill {
            pairs.extend(decode.iter().map(|decode| (*prefill, *decode)));
        }
    }
    pairs
}

/// Seconds to transfer the KV of a prompt, assuming the network, which is slower than NVLink.
pub(crate) fn transfer_seconds(need: &Need<'_>, from: &Fitting, to: &Fitting) -> f64 {
    let link = bedplate_perf::serving::KvLink::ScaleOut;
    from.replica.kv_transfer_to(&to.replica, need.load.input.into(), link).get()
}

/// Layouts of one supply and the same formats, in the order of the first of each.
fn formats(fitting: &[Fitting]) -> Vec<Vec<&Fitting>> {
    let mut groups: Vec<Vec<&Fitting>> = Vec::new();
    for it in fitting {
        let key = |it: &Fitting| (it.supply, it.layout.weights, it.layout.kv);
        match groups.iter_mut().find(|group| key(group[0]) == key(it)) {
            Some(group) => group.push(it),
            None => groups.push(vec![it]),
        }
    }
    groups
}

fn best<'a>(
    group: &[&'a Fitting],
    kept: usize,
    missed: &mut impl FnMut(&Fitting, Miss),
    estimate: impl Fn(&Fitting) -> Result<Estimate, Miss>,
) -> Vec<PoolRole<'a>> {
    let mut roles: Vec<PoolRole<'a>> = Vec::new();
    for fitting in group {
        match estimate(fitting) {
            Ok(estimate) => roles.push(PoolRole { fitting, estimate }),
            Err(miss) => missed(fitting, miss),
        }
    }
    roles.sort_by(|a, b| b.rate_per_gpu().total_cmp(&a.rate_per_gpu()));
    // Chunks hardly matter to either role: one per way to split is enough.
    roles.dedup_by(|a, b| a.fitting.layout.parallel == b.fitting.layout.parallel);
    roles.truncate(kept);
    roles
}
