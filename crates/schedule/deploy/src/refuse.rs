//! Why there is no answer, and the nearest question that has one.

use bedplate_perf::Hardware;
use bedplate_perf::serving::{LoadedAdapters, WeightFormat};
use bedplate_units::Seconds;

use crate::candidate::{Fitting, PlanCandidate, fit};
use crate::error::{Failing, Longer, Shortage};
use crate::estimate::{Miss, Steady, TimeLimits};
use crate::launch::Duty;
use crate::{
    DeployError, DeployOptions, LimitBound, Need, OfferedLoad, Plan, Pooling, ReplayStage, ServingLayout,
    ServingLayoutRefusal, Supply, Tried, TriedSubject, Verdict,
};

/// What makes a question invalid.
pub(crate) fn check(need: &Need<'_>, supplies: &[Supply]) -> Result<(), DeployError> {
    let OfferedLoad { per_second, .. } = need.load;
    let (input, output) = need.load.lengths();
    let options = &need.options;
    let lists = [
        (options.weights.is_empty(), "the number of weight formats"),
        (options.kv.is_empty(), "the number of KV formats"),
        (options.chunks.is_empty() || options.chunks.contains(&0), "a chunk"),
        (options.adapters.is_some_and(|it| it.loaded == 0), "the number of adapters"),
        (options.adapters.is_some_and(|it| it.rank == 0), "the rank of adapters"),
        (input.shortest() == 0, "the length of prompts"),
        (output.shortest() == 0, "the length of answers"),
        (!(per_second > 0.0 && per_second.is_finite()), "the rate"),
        (!(options.share > 0.0 && options.share <= 1.0), "the share of requests"),
        (supplies.iter().all(|supply| supply.gpus() == 0), "the number of GPUs"),
    ];
    if let Some((_, what)) = lists.into_iter().find(|(is_wrong, _)| *is_wrong) {
        return Err(DeployError::NothingAsked { what });
    }
    let context = need.model.transformer.max_context;
    if context > 0 && need.load.context() > context {
        let model = need.model.transformer.name.clone();
        let longer =
            need.traced.map(|traced| Longer { requests: traced.longer_than(context), of: traced.len() });
        return Err(DeployError::ContextTooLong { model, asked: need.load.context(), context, longer });
    }
    Ok(())
}

fn machines(supplies: &[Supply]) -> String {
    let each = |supply: &Supply| match &supply.prompts {
        Some(prompts) => format!(
            "{} GPUs of {} for prompts and {} of {} for decodes",
            prompts.gpus(),
            prompts.name,
            supply.gpus(),
            supply.name
        ),
        None => format!("{} GPUs of {}", supply.gpus(), supply.name),
    };
    match supplies {
        [one] => each(one),
        [first, rest @ ..] => format!("{} or {} other machines", each(first), rest.len()),
        [] => "nothing".into(),
    }
}

/// The layout closest to fitting, and what would fit: more GPUs, narrower formats, other machines.
pub(crate) fn does_not_fit(need: &Need<'_>, supplies: &[Supply]) -> DeployError {
    let shortage = |(layout, refusal): (ServingLayout, ServingLayoutRefusal)| match refusal {
        ServingLayoutRefusal::DoesNotFit { over_per_gpu } => {
            Some((1, over_per_gpu.get(), layout, Shortage::PerGpu(over_per_gpu)))
        }
        ServingLayoutRefusal::NoRoom { needed_tokens, room_tokens } => {
            let over = needed_tokens - room_tokens;
            Some((0, over as f64, layout, Shortage::Tokens(over)))
        }
        _ => None,
    };
    // Of GPUs for prompts and GPUs for decodes, one may have room.
    let short = supplies.iter().flat_map(Supply::kinds).filter(|gpus| !has_room(need, gpus));
    let refused = short.flat_map(|gpus| {
        let refusal = |layout: ServingLayout| Some((layout, fit(need, gpus, &layout).err()?));
        crate::space::layouts(need, gpus).into_iter().filter_map(refusal)
    });
    let least = refused.filter_map(shortage).min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let (layout, over) = match least {
        Some((_, _, layout, over)) => (layout.to_string(), over),
        None => ("any".into(), Shortage::Tokens(need.load.context())),
    };
    let mut nearest = Vec::new();
    nearest.extend(supplies.iter().find_map(|supply| more_gpus(need, supply)));
    nearest.extend(narrower(need, supplies));
    nearest.extend(fewer_adapters(need, supplies));
    nearest.extend(other_machine(need));
    DeployError::DoesNotFit {
        model: need.model.transformer.name.clone(),
        machines: machines(supplies),
        layout,
        over,
        nearest,
    }
}

/// Both pools have room, but in no format that they share.
pub(crate) fn no_common_format(need: &Need<'_>, supplies: &[Supply]) -> DeployError {
    DeployError::NoCommonFormat { model: need.model.transformer.name.clone(), machines: machines(supplies) }
}

fn first_fit(need: &Need<'_>, supply: &Supply, options: &DeployOptions) -> Option<ServingLayout> {
    let need = Need { options: options.clone(), ..need.clone() };
    let first = |gpus: &Supply| {
        crate::space::layouts(&need, gpus).into_iter().find(|layout| fit(&need, gpus, layout).is_ok())
    };
    // Prompts need a layout of their own where they have other GPUs.
    supply.kinds().map(first).collect::<Option<Vec<ServingLayout>>>()?.pop()
}

/// Doublings tried.
const DOUBLINGS: u32 = 6;

fn more_gpus(need: &Need<'_>, supply: &Supply) -> Option<String> {
    let more = |gpus: &Supply, power: u32| -> Option<Supply> {
        let times = if has_room(need, gpus) { 1 } else { 1 << power };
        let hardware = Hardware { gpus: gpus.gpus().checked_mul(times)?, ..gpus.hardware };
        Some(Supply { hardware, ..gpus.clone() })
    };
    (1..=DOUBLINGS).find_map(|power| {
        let larger = more(supply, power)?;
        let larger = match &supply.prompts {
            Some(prompts) => Supply::apart(more(prompts, power)?, larger),
            None => larger,
        };
        let layout = first_fit(need, &larger, &need.options)?;
        Some(format!("it fits on {} ({layout})", machines(std::slice::from_ref(&larger))))
    })
}

/// Whether some layout fits on these GPUs alone.
fn has_room(need: &Need<'_>, gpus: &Supply) -> bool {
    crate::space::layouts(need, gpus).iter().any(|layout| fit(need, gpus, layout).is_ok())
}

/// The cheapest alternative, with the number of units on which it fits.
fn other_machine(need: &Need<'_>) -> Option<String> {
    let smallest = |supply: &Supply| {
        let units = supply.units(supply.gpus());
        let counts = (0..=DOUBLINGS).map(|power| 1 << power).take_while(move |count| *count <= units);
        let fits = |count: u32| {
            let gpus = count * supply.gpus_per_unit;
            let fewer = Supply { hardware: Hardware { gpus, ..supply.hardware }, ..supply.clone() };
            first_fit(need, &fewer, &need.options).map(|_| (supply.dollars_per_hour(gpus), count))
        };
        let (dollars, count) = counts.into_iter().find_map(fits)?;
        Some((dollars.unwrap_or(f64::INFINITY), count, supply.name.clone()))
    };
    let found = need.alternatives.iter().filter_map(smallest);
    let (_, count, name) = found.min_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(format!("it fits on {count} x {name}"))
}

fn narrower(need: &Need<'_>, supplies: &[Supply]) -> Option<String> {
    let formats = WeightFormat::ALL.into_iter().filter(|format| !need.options.weights.contains(format));
    for format in formats {
        let options = DeployOptions { weights: vec![format], ..need.options.clone() };
        if let Some(layout) = supplies.iter().find_map(|supply| first_fit(need, supply, &options)) {
            return Some(format!("it fits with {} weights ({layout})", format.name()));
        }
    }
    None
}

/// Half as many adapters, or a quarter, and so on.
fn fewer_adapters(need: &Need<'_>, supplies: &[Supply]) -> Option<String> {
    let asked = need.options.adapters?;
    let halves = std::iter::successors(Some(asked.loaded / 2), |loaded| Some(loaded / 2));
    halves.take_while(|loaded| *loaded > 0).find_map(|loaded| {
        let adapters = Some(LoadedAdapters { loaded, ..asked });
        let options = DeployOptions { adapters, ..need.options.clone() };
        let layout = supplies.iter().find_map(|supply| first_fit(need, supply, &options))?;
        Some(format!("it fits with {loaded} adapters ({layout})"))
    })
}

/// The limit that fails and what would hold.
pub(crate) fn none_holds(
    need: &Need<'_>,
    supplies: &[Supply],
    fitting: &[Fitting],
    candidates: &[PlanCandidate],
    tried: &[Tried],
) -> DeployError {
    let wanting = tried.iter().filter_map(|tried| match (&tried.verdict, &tried.what) {
        (Verdict::NeedsMoreGpus { needed, available }, TriedSubject::Plan(plan)) => {
            Some((*needed, *available, *plan, tried.supply))
        }
        _ => None,
    });
    let wanting = wanting.min_by_key(|(needed, ..)| *needed);
    let (reason, nearest) = match (best_miss(need, supplies, fitting, tried), wanting, most_shown(tried)) {
        (_, _, Some(shown)) if !candidates.is_empty() => by_replay(need, supplies, shown),
        (_, Some((needed, available, plan, supply)), _) => {
            let reason = Failing::Gpus { needed, available, plan: plan.to_string() };
            (reason, rate_that_holds(need, &supplies[supply], plan, needed))
        }
        (Some((miss, layout)), _, _) => by_speed(miss, &layout),
        _ => by_speed(Miss { bound: LimitBound::Itl, best: f64::INFINITY, limit: 0.0 }, &fitting[0].layout),
    };
    let model = need.model.transformer.name.clone();
    let rate = need.load.per_second;
    DeployError::NoneHolds { model, machines: machines(supplies), rate, reason, nearest }
}

/// The layout that misses a limit by the smallest factor. Of two pools only one may be too slow, and then its limit is the one.
fn best_miss(
    need: &Need<'_>,
    supplies: &[Supply],
    fitting: &[Fitting],
    tried: &[Tried],
) -> Option<(Miss, ServingLayout)> {
    let slow: Vec<(usize, Miss, ServingLayout)> = tried
        .iter()
        .filter_map(|tried| match (&tried.verdict, &tried.what) {
            (Verdict::TooSlow(miss), TriedSubject::Layout(layout)) => Some((tried.supply, *miss, *layout)),
            _ => None,
        })
        .collect();
    let is_slow = |it: &Fitting, bound: LimitBound| {
        slow.iter()
            .any(|(supply, miss, layout)| (*supply, miss.bound, *layout) == (it.supply, bound, it.layout))
    };
    // Workers of prompts are judged by first tokens alone, those that decode by the time between tokens.
    let mut kept = Vec::new();
    for (at, supply) in supplies.iter().enumerate() {
        if need.options.pooling == Pooling::Disaggregated || supply.prompts.is_some() {
            for (bound, other) in [(LimitBound::Ttft, Duty::Decode), (LimitBound::Itl, Duty::Prefill)] {
                let mut able = fitting.iter().filter(|it| it.supply == at && it.duty != other);
                if able.any(|it| !is_slow(it, bound)) {
                    kept.push((at, bound));
                }
            }
        }
    }
    let factor = |miss: &Miss| miss.best / miss.limit;
    let least = |all: &mut dyn Iterator<Item = &(usize, Miss, ServingLayout)>| {
        all.min_by(|a, b| factor(&a.1).total_cmp(&factor(&b.1))).map(|(_, miss, layout)| (*miss, *layout))
    };
    least(&mut slow.iter().filter(|(supply, miss, _)| !kept.contains(&(*supply, miss.bound))))
        .or_else(|| least(&mut slow.iter()))
}

fn by_speed(miss: Miss, layout: &ServingLayout) -> (Failing, Vec<String>) {
    let Miss { bound, best, limit } = miss;
    let flag = match bound {
        LimitBound::Ttft => "ttft",
        LimitBound::Itl => "itl",
        LimitBound::EndToEnd | LimitBound::Rate => "e2e",
    };
    // 10 % above the latency of an empty replica leaves room for load.
    let relaxed = Seconds::new(best * 1.1);
    let (best, limit) = (Seconds::new(best), Seconds::new(limit));
    let reason = Failing::Speed { bound: bound.name(), best, limit, layout: layout.to_string() };
    (
        reason,
        vec![format!(
            "{flag}={} can hold at a low rate, with {layout}",
            relaxed.to_string().replace(' ', "")
        )],
    )
}

/// The plan with the highest share of requests within the objectives.
fn most_shown(tried: &[Tried]) -> Option<(f64, Option<LimitBound>, Plan, usize)> {
    let shown = tried.iter().filter_map(|tried| match (&tried.verdict, &tried.what) {
        (Verdict::Missed { share, bound }, TriedSubject::Plan(plan)) => {
            Some((*share, *bound, *plan, tried.supply))
        }
        _ => None,
    });
    shown.max_by(|a, b| a.0.total_cmp(&b.0))
}

fn by_replay(
    need: &Need<'_>,
    supplies: &[Supply],
    (share, bound, plan, supply): (f64, Option<LimitBound>, Plan, usize),
) -> (Failing, Vec<String>) {
    let bound = bound.map_or("an objective", LimitBound::name);
    let reason = Failing::Replay { share, asked: need.options.share, bound, plan: plan.to_string() };
    (reason, rate_that_holds(need, &supplies[supply], plan, plan.gpus()))
}

/// Bisection steps to find the highest rate that holds.
const HALVINGS: u32 = 6;

/// How often a rate is halved to find one that holds.
const FARTHEST: usize = 24;

/// Rounded down to two digits, the precision of a replay.
fn floored(rate: f64) -> f64 {
    let unit = 10f64.powf(rate.log10().floor() - 1.0);
    let floored = (rate / unit).floor() * unit;
    if unit < 1.0 { (floored * 1000.0).round() / 1000.0 } else { floored }
}

/// The highest rate that all replicas with room for them can hold, by replay.
fn rate_that_holds(need: &Need<'_>, supply: &Supply, plan: Plan, needed: u32) -> Vec<String> {
    let Some(plan) = plan.within(supply) else { return Vec::new() };
    let holds = |per_second: f64| {
        let need = Need { load: OfferedLoad { per_second, ..need.load }, ..need.clone() };
        let Ok(stage) = ReplayStage::new(&need, supply, plan) else { return false };
        let replica = plan.decoders().layout.replica(&need, supply);
        let Ok(replica) = replica else { return false };
        let steady = Steady { replica: &replica, load: need.load };
        let end_to_end = steady
            .largest(&TimeLimits::of(&need.objectives))
            .map_or(1.0, |estimate| estimate.end_to_end(&need.load));
        let seed = need.options.seed;
        [seed, seed.wrapping_add(1)]
            .into_iter()
            .all(|seed| stage.play(end_to_end, seed).is_ok_and(|shown| shown.holds(need.options.share)))
    };
    let halves = std::iter::successors(Some(need.load.per_second), |rate| Some(rate / 2.0));
    let Some(found) = halves.skip(1).take(FARTHEST).find(|rate| holds(*rate)) else {
        return Vec::new();
    };
    let (mut low, mut high) = (found, 2.0 * found);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        if holds(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    let mut nearest = vec![format!("{plan} holds {} requests/s on {} GPUs", floored(low), plan.gpus())];
    if supply.prompts.is_none() && needed > supply.gpus() {
        nearest.push(format!("by the estimate {needed} GPUs hold the rate"));
    }
    nearest
}
