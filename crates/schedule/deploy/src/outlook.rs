//! What held-out measurements say about a plan: 80 % intervals, and with which confidence its objectives hold.
//!
//! A replay shows what the predicted engine would do. A real one is slower or faster by a factor, whose distribution is that
//! of the errors of similar deployments. The confidence in a limit is the share of these errors with which it would hold. The factor
//! multiplies what the replay shows; a queue near its limit reacts more strongly, which the confidence in the rate tells.

use bedplate_calibrate::serving::{Likeness, Measure, ServingErrors, Spread};
use bedplate_perf::serving::{
    ClosedLoop, Latency, LengthSpread, Pools, Prefixes, Replica, closed_loop, disaggregated,
};
use bedplate_replay::requests::{self, Picoseconds, RequestRecord, seconds};

use crate::estimate::Steady;
use crate::{FrontPoint, Need, Plan, Shown, Supply};

/// What to expect of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Outlook {
    /// Within which the asked share of requests are, in seconds.
    pub ttft: Expectation,
    pub itl: Expectation,
    pub end_to_end: Expectation,
    /// Tokens generated per second with all slots taken; its limit is what the rate asks for.
    pub throughput: Expectation,
}

/// A predicted figure with its 80 % interval, and the confidence in its limit where it has one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expectation {
    pub predicted: f64,
    pub low: f64,
    pub high: f64,
    pub limit: Option<OutlookLimit>,
}

/// A limit, and the share of errors with which it would hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OutlookLimit {
    pub value: f64,
    pub confidence: f64,
}

impl Outlook {
    /// The confidence in the limit that is least certain.
    pub fn least_confidence(&self) -> f64 {
        let all = [&self.ttft, &self.itl, &self.end_to_end, &self.throughput];
        all.into_iter().filter_map(|each| each.limit).map(|limit| limit.confidence).fold(1.0, f64::min)
    }
}

/// The outlook of a plan that was replayed; none for chips of which no family was measured.
pub fn outlook(
    need: &Need<'_>,
    supply: &Supply,
    plan: &Plan,
    shown: &Shown,
    errors: &ServingErrors,
) -> Option<Outlook> {
    let spread = spread(need, supply, plan, errors)?;
    let at_share = |value: fn(&RequestRecord) -> Picoseconds| {
        let mut values: Vec<Picoseconds> = shown.judged().map(value).collect();
        values.sort_unstable();
        let place = (need.options.share * values.len() as f64).ceil() as usize;
        values.get(place.saturating_sub(1)).copied().map_or(0.0, seconds)
    };
    let limits = &need.objectives;
    let latency = |measure: Measure, predicted: f64, limit: Option<Picoseconds>| {
        Expectation::of(&spread, measure, Direction::AtMost, predicted, limit.map(seconds))
    };
    let asked = need.load.per_second * f64::from(need.load.output);
    let full = at_full_slots(need, supply, plan)?;
    Some(Outlook {
        ttft: latency(Measure::FirstToken, at_share(RequestRecord::ttft), limits.ttft),
        itl: latency(Measure::InterToken, at_share(|record| record.itl().unwrap_or(0)), limits.itl),
        end_to_end: latency(Measure::EndToEnd, at_share(RequestRecord::end_to_end), limits.end_to_end),
        throughput: Expectation::of(&spread, Measure::Throughput, Direction::AtLeast, full, Some(asked)),
    })
}

/// Intervals of a point of the front: tokens per second for a user and from a GPU, and seconds to a first token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FrontOutlook {
    pub per_user: Expectation,
    pub per_gpu: Expectation,
    pub ttft: Expectation,
}

pub fn front_outlook(
    need: &Need<'_>,
    supply: &Supply,
    point: &FrontPoint,
    errors: &ServingErrors,
) -> Option<FrontOutlook> {
    let spread = spread(need, supply, &point.plan, errors)?;
    let of = |measure: Measure, predicted: f64| {
        Expectation::of(&spread, measure, Direction::AtMost, predicted, None)
    };
    let gap = of(Measure::InterToken, 1.0 / point.per_user);
    Some(FrontOutlook {
        per_user: Expectation {
            predicted: point.per_user,
            low: 1.0 / gap.high,
            high: 1.0 / gap.low,
            limit: None,
        },
        per_gpu: of(Measure::Throughput, point.per_gpu),
        ttft: of(Measure::FirstToken, point.ttft),
    })
}

fn spread(need: &Need<'_>, supply: &Supply, plan: &Plan, errors: &ServingErrors) -> Option<Spread> {
    let is_pooled = matches!(plan, Plan::Disaggregated { .. });
    if let (Plan::Disaggregated { prefill, .. }, Some(prompts)) = (plan, &supply.prompts) {
        // Errors of the chips that decode say nothing about prompts on those of a family that was never measured.
        let replica = prefill.layout.replica(need, prompts).ok()?;
        errors.spread(Likeness::of(replica.deployment(), is_pooled)?)?;
    }
    let replica = plan.decoders().layout.replica(need, supply).ok()?;
    errors.spread(Likeness::of(replica.deployment(), is_pooled)?)
}

/// On which side of its limit a figure has to be.
#[derive(Clone, Copy)]
enum Direction {
    AtMost,
    AtLeast,
}

impl Expectation {
    fn of(
        spread: &Spread,
        measure: Measure,
        direction: Direction,
        predicted: f64,
        limit: Option<f64>,
    ) -> Self {
        let interval = spread.interval(measure);
        let confidence = |limit: f64| {
            let within = spread.share_within(measure, limit / predicted);
            match direction {
                Direction::AtMost => within,
                Direction::AtLeast => 1.0 - within,
            }
        };
        Self {
            predicted,
            low: predicted * interval.low,
            high: predicted * interval.high,
            limit: limit.map(|value| OutlookLimit { value, confidence: confidence(value) }),
        }
    }
}

/// Tokens per second of users who keep all slots taken, by Little's law.
fn at_full_slots(need: &Need<'_>, supply: &Supply, plan: &Plan) -> Option<f64> {
    let replica = |workers: &crate::Workers, gpus: &Supply| workers.layout.replica(need, gpus).ok();
    let (users, copies, latency) = match plan {
        Plan::Aggregated(both) => (
            both.max_seqs,
            both.replicas,
            looped(need, supply, plan, (None, &replica(both, supply)?), both.max_seqs)?,
        ),
        Plan::Disaggregated { prefill, decode } => {
            let users = decode.max_seqs.saturating_mul(decode.replicas).saturating_add(prefill.replicas);
            let replicas = (Some(&replica(prefill, supply.of_prompts())?), &replica(decode, supply)?);
            (users, 1, looped(need, supply, plan, replicas, users)?)
        }
    };
    let answers = f64::from(users) / latency.end_to_end.max(f64::MIN_POSITIVE);
    Some(f64::from(copies) * answers * f64::from(need.load.output))
}

/// Requests for each user of a closed loop, and the most in all.
const ROUNDS: u32 = 5;
const MOST_REQUESTS: u32 = 4_000;

/// Users who ask again as soon as they are answered: of one replica of one pool, or of both pools.
pub(crate) fn looped(
    need: &Need<'_>,
    supply: &Supply,
    plan: &Plan,
    (prefill, decode): (Option<&Replica>, &Replica),
    users: u32,
) -> Option<Latency> {
    let spread = |lengths: requests::Lengths| LengthSpread {
        longest: lengths.longest(),
        shortest_share: f64::from(lengths.shortest()) / f64::from(lengths.longest().max(1)),
    };
    let (input, output) = need.load.lengths();
    // Prompts hit where they are computed; what is kept is kept where they are decoded.
    let of = |replica| Steady { replica, load: need.load }.prefixes();
    let prefixes = Prefixes { cached_share: of(prefill.unwrap_or(decode)).cached_share, ..of(decode) };
    let load = ClosedLoop {
        concurrency: users,
        requests: users.saturating_mul(ROUNDS).clamp(ROUNDS, MOST_REQUESTS.max(users.saturating_mul(2))),
        input: spread(input),
        output: spread(output),
        prefixes,
    };
    match (plan, prefill) {
        (Plan::Disaggregated { prefill: prompts, decode: decodes }, Some(replica)) => {
            let pools = Pools {
                prefill: replica,
                prefill_workers: prompts.replicas,
                decode,
                decode_workers: decodes.replicas,
                link: plan.link(supply),
                hand_off: need.constants.hand_off,
            };
            disaggregated(&pools, &load)
        }
        _ => closed_loop(decode, &load),
    }
}
