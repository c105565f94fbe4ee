//! A plan for serving as text and as JSON.

use bedplate_deploy::test_time::{Effort, EffortPrice};
use bedplate_deploy::{
    Energy, Expectation, FrontPoint, HeldPlan, Outlook, Plan, PlanExplanation, Supply, Workers, front_outlook,
};
use bedplate_perf::serving::{KvRoom, ServingMemory};
use bedplate_replay::requests::{Objectives, seconds};
use bedplate_terminal::present::{Column, Facts, Table, wrap};
use bedplate_terminal::{CliError, Console};
use bedplate_units::{Count, Dollars, Seconds, grouped};
use serde_json::{Value, json};

use super::{Found, load};
use crate::replayed::show as replayed;

pub(super) fn show(found: &Found<'_>, top: usize, console: &mut Console) -> Result<(), CliError> {
    console.line(&wrap(&found.title(), console.width().unwrap_or(usize::MAX)).join("\n"))?;
    console.text(&facts(found).render(console.width()))?;
    console.line("\nLatencies in the replay")?;
    console.table(&replayed::latencies(&found.answer.best.shown.outcome))?;
    if let Some(outlook) = &found.outlook {
        console.line(&format!("\n{}", expected_title(found)))?;
        console.table(&expected(outlook))?;
    }
    if !found.answer.others.is_empty() {
        console.line("\nPlans that meet the objectives, the chosen one first")?;
        console.table(&others(found))?;
    }
    console.line("\nTokens per second per user against tokens per second per GPU")?;
    console.table(&front(&sample(&found.answer.front, top), found.supplies))?;
    if !found.efforts.is_empty() {
        console.line("\nWhat thinking longer costs here, with all slots taken")?;
        console.table(&efforts(&found.efforts))?;
    }
    if let Some(explanation) = &found.explanation {
        console.line("\nWhy")?;
        console.text(&explained(explanation, found.supplies).render(console.width()))?;
    }
    console.say(&account(found));
    if let Some(remark) = tie(found) {
        console.say(&remark);
    }
    Ok(())
}

pub(super) fn expected_title(found: &Found<'_>) -> String {
    let share = found.need.options.share * 100.0;
    format!("What {share:.0}% of requests get, with 80% intervals by held-out measurements")
}

/// Predicted figures with what held-out measurements say about them.
pub(super) fn expected(outlook: &Outlook) -> Table {
    let mut table = Table::new(vec![
        Column::left("FIGURE", 0),
        Column::right("PREDICTED", 0),
        Column::right("LOW", 0),
        Column::right("HIGH", 0),
        Column::right("LIMIT", 0),
        Column::right("HOLDS WITH", 0),
    ]);
    let time = |value: f64| Seconds::new(value).to_string();
    let rate = |value: f64| Count(value as u64).to_string();
    let mut add = |name: &str, figure: &Expectation, text: &dyn Fn(f64) -> String| {
        let mut row = vec![name.to_owned(), text(figure.predicted), text(figure.low), text(figure.high)];
        row.push(figure.limit.map(|limit| text(limit.value)).unwrap_or_default());
        row.push(figure.limit.map(|limit| confidence(limit.confidence)).unwrap_or_default());
        table.row(row);
    };
    add("time to first token", &outlook.ttft, &time);
    add("between tokens", &outlook.itl, &time);
    add("end to end", &outlook.end_to_end, &time);
    add("tokens/s, all slots taken", &outlook.throughput, &rate);
    table
}

/// Errors of a few dozen sources tell nothing about the last percent.
fn confidence(share: f64) -> String {
    match share {
        share if share > 0.99 => ">99%".into(),
        share if share < 0.01 => "<1%".into(),
        share => format!("{:.0}%", share * 100.0),
    }
}

/// Why a near tie that costs less was not taken.
fn tie(found: &Found<'_>) -> Option<String> {
    let (cheaper, less) = found.answer.cheaper_tie()?;
    Some(format!(
        "{} costs {:.0}% less, within the error of {:.0}% between deployments: a near tie, and the chosen plan {}",
        cheaper.held.plan,
        less * 100.0,
        found.need.options.near * 100.0,
        cheaper.edge
    ))
}

pub(super) fn account(found: &Found<'_>) -> String {
    let tried = found.answer.tried.len() as u64;
    format!("judged {} choices, replayed {}", grouped(tried), grouped(found.answer.replays.into()))
}

pub(super) fn facts(found: &Found<'_>) -> Facts {
    let best = &found.answer.best;
    let supply = found.supply();
    let gpus = best.plan.gpus();
    let mut facts = Facts::default();
    match &best.plan {
        Plan::Aggregated(workers) => {
            facts.add("deployment", pool(workers, "replica"));
        }
        Plan::Disaggregated { prefill, decode } => {
            facts.add("prompts", pool(prefill, "worker")).add("decodes", pool(decode, "worker"));
        }
    }
    facts
        .add_known("trace", found.need.traced.map(|traced| load::taken(traced, &found.need.load)))
        .add_known("images", found.need.options.images.as_ref().map(load::pictured))
        .add_known("no measurements", found.doubts())
        .add("GPUs", on(&best.plan, supply))
        .add_known("memory", memory(found))
        .add_known("cost", cost(best))
        .add_known("energy", energy(found, best).map(|energy| energy.to_string()))
        .add("objectives", share(found))
        .add(
            "throughput",
            format!(
                "{} tokens/s generated, {:.0} per GPU",
                Count(best.shown.outcome.output_tokens_per_second() as u64),
                best.shown.outcome.output_tokens_per_second() / f64::from(gpus)
            ),
        )
        .add(
            "KV blocks",
            format!(
                "{:.0}% in use on average, {:.0}% at most",
                best.shown.outcome.kv_mean * 100.0,
                best.shown.outcome.kv_highest * 100.0
            ),
        );
    facts
}

/// How many GPUs of which machines a plan takes.
fn on(plan: &Plan, supply: &Supply) -> String {
    let of = |plan: &Plan, supply: &Supply| {
        format!("{} of {}, on {} x {}", plan.gpus(), supply.gpus(), supply.units_of(plan), supply.name)
    };
    match (plan, &supply.prompts) {
        (Plan::Disaggregated { prefill, decode }, Some(prompts)) => {
            let [prefill, decode] = [prefill, decode].map(|workers| Plan::Aggregated(*workers));
            format!("{} for prompts; {} for decodes", of(&prefill, prompts), of(&decode, supply))
        }
        _ => of(plan, supply),
    }
}

fn pool(workers: &Workers, what: &str) -> String {
    let plural = if workers.replicas == 1 { "" } else { "s" };
    format!(
        "{} {what}{plural} of {}, {} sequence slots each",
        workers.replicas, workers.layout, workers.max_seqs
    )
}

/// Memory of a replica that decodes.
fn memory_of(found: &Found<'_>) -> Option<ServingMemory> {
    let replica = found.answer.best.plan.decoders().layout.replica(found.need, found.supply()).ok()?;
    Some(*replica.memory())
}

fn memory(found: &Found<'_>) -> Option<String> {
    let memory = memory_of(found)?;
    let KvRoom::Fits { tokens, .. } = memory.room else { return None };
    let adapters = found.need.options.adapters.map_or(String::new(), |adapters| {
        format!(", {} of {} adapters of rank {}", memory.adapters_per_gpu, adapters.loaded, adapters.rank)
    });
    let encoder = found.need.model.vision.as_ref().map_or(String::new(), |vision| {
        format!(", {} of a vision encoder of {} parameters", memory.encoder_per_gpu, Count(vision.parameters))
    });
    Some(format!(
        "{} of weights{adapters}{encoder} on a GPU, room for {} tokens of KV in a replica that decodes",
        memory.weights_per_gpu,
        Count(tokens)
    ))
}

fn cost(held: &HeldPlan) -> Option<String> {
    let hourly = held.dollars_per_hour?;
    let million = held.shown.outcome.dollars_per_million_output_tokens();
    let each = million.map(|each| format!("; {} per million tokens generated", Dollars::new(each)));
    Some(format!("{}/h{}", Dollars::new(hourly), each.unwrap_or_default()))
}

fn energy(found: &Found<'_>, held: &HeldPlan) -> Option<Energy> {
    Energy::of(&found.supplies[held.supply], held)
}

fn share(found: &Found<'_>) -> String {
    let shown = &found.answer.best.shown;
    let share = format!("{:.1}% of replayed requests", shown.share * 100.0);
    let asked = limits(&found.need.objectives);
    let requests = grouped(shown.outcome.requests);
    match asked.is_empty() {
        true => format!("{requests} requests were replayed; no objectives were given"),
        false => format!(
            "{share} had {asked}; {:.0}% must, and {requests} were replayed with each of two seeds",
            found.need.options.share * 100.0
        ),
    }
}

pub(super) fn limits(objectives: &Objectives) -> String {
    let limits = [("ttft", objectives.ttft), ("itl", objectives.itl), ("e2e", objectives.end_to_end)];
    let texts = limits
        .into_iter()
        .filter_map(|(name, limit)| Some(format!("{name} within {}", Seconds::new(seconds(limit?)))));
    texts.collect::<Vec<_>>().join(", ")
}

pub(super) fn others(found: &Found<'_>) -> Table {
    let mut table = Table::new(vec![
        Column::left("DEPLOYMENT", 0),
        Column::right("GPUS", 0),
        Column::right("COST", 0),
        Column::right("HOLD", 0),
        Column::right("WITH", 0),
        Column::right("TTFT P95", 1),
        Column::right("ITL P95", 1),
        Column::left("MACHINE", 2),
        Column::left("THE FIRST ONE", 2),
    ]);
    let others = found.answer.others.iter().map(|other| (&other.held, other.edge.to_string()));
    for (held, edge) in std::iter::once((&found.answer.best, String::new())).chain(others) {
        let outcome = &held.shown.outcome;
        let least = found.outlook_of(held).map(|outlook| confidence(outlook.least_confidence()));
        table.row(vec![
            held.plan.to_string(),
            held.plan.gpus().to_string(),
            held.dollars_per_hour.map(|hourly| format!("{}/h", Dollars::new(hourly))).unwrap_or_default(),
            format!("{:.1}%", held.shown.share * 100.0),
            least.unwrap_or_default(),
            Seconds::new(seconds(outcome.ttft.p95)).to_string(),
            Seconds::new(seconds(outcome.itl.p95)).to_string(),
            found.supplies[held.supply].label(),
            edge,
        ]);
    }
    table
}

/// At most this many points, including the ends.
fn sample(front: &[FrontPoint], most: usize) -> Vec<FrontPoint> {
    let Some(last) = front.len().checked_sub(1) else { return Vec::new() };
    let shown = front.len().min(most.max(2));
    let at = |index: usize| if shown < 2 { 0 } else { index * last / (shown - 1) };
    (0..shown).map(|index| front[at(index)]).collect()
}

pub(super) fn front(points: &[FrontPoint], supplies: &[Supply]) -> Table {
    let mut table = Table::new(vec![
        Column::right("PER USER", 0),
        Column::right("PER GPU", 0),
        Column::right("USERS", 1),
        Column::right("TTFT", 1),
        Column::left("DEPLOYMENT", 0),
        Column::left("MACHINE", 2),
    ]);
    for point in points {
        table.row(vec![
            format!("{:.1}", point.per_user),
            format!("{:.1}", point.per_gpu),
            point.users.to_string(),
            Seconds::new(point.ttft).to_string(),
            point.plan.to_string(),
            supplies[point.supply].label(),
        ]);
    }
    table
}

pub(super) fn efforts(efforts: &[(Effort, Option<EffortPrice>)]) -> Table {
    let mut table = Table::new(vec![
        Column::left("EFFORT", 0),
        Column::right("P50", 0),
        Column::right("P95", 0),
        Column::right("PER THOUSAND", 0),
        Column::right("GPUS AT RATE", 0),
    ]);
    for (effort, price) in efforts {
        let mut row = vec![effort.to_string()];
        match price {
            None => row.extend(["does not fit".to_owned(), String::new(), String::new(), String::new()]),
            Some(price) => row.extend([
                price.p50.to_string(),
                price.p95.to_string(),
                price.dollars_per_thousand.map(|dollars| dollars.to_string()).unwrap_or_default(),
                format!("{:.1}", price.gpus_at_rate),
            ]),
        }
        table.row(row);
    }
    table
}

/// The verdicts that got furthest.
pub(super) fn explained(explanation: &PlanExplanation, supplies: &[Supply]) -> Facts {
    const MOST: usize = 5;
    let mut facts = Facts::default();
    for tried in explanation.matches.iter().take(MOST) {
        let name = match supplies.len() {
            1 => tried.what.to_string(),
            _ => format!("{} on {}", tried.what, supplies[tried.supply].label()),
        };
        facts.add(&name, tried.verdict.to_string());
    }
    facts
}

pub(super) fn json(found: &Found<'_>) -> Value {
    let best = &found.answer.best;
    let point = |point: &FrontPoint| {
        let outlook = front_outlook(found.need, &found.supplies[point.supply], point, found.errors);
        let interval = |figure: Option<Expectation>| figure.map(|figure| [figure.low, figure.high]);
        json!({
            "deployment": point.plan.to_string(),
            "machine": found.supplies[point.supply].label(),
            "gpus": point.plan.gpus(),
            "users": point.users,
            "tokens_per_s_per_user": point.per_user,
            "tokens_per_s_per_gpu": point.per_gpu,
            "ttft_s": point.ttft,
            "tokens_per_s_per_user_interval_80": interval(outlook.map(|it| it.per_user)),
            "tokens_per_s_per_gpu_interval_80": interval(outlook.map(|it| it.per_gpu)),
            "ttft_s_interval_80": interval(outlook.map(|it| it.ttft)),
        })
    };
    let other = |other: &bedplate_deploy::Other| {
        let mut value = held(&other.held, found);
        value["chosen_plan"] = json!(other.edge.to_string());
        value
    };
    let effort = |(effort, price): &(Effort, Option<EffortPrice>)| {
        json!({
            "samples": effort.samples,
            "thinking_tokens": effort.thinking,
            "p50_s": price.map(|price| price.p50.get()),
            "p95_s": price.map(|price| price.p95.get()),
            "requests_per_s": price.map(|price| price.requests_per_second),
            "gpus_at_rate": price.map(|price| price.gpus_at_rate),
            "dollars_per_thousand": price.and_then(|price| price.dollars_per_thousand).map(Dollars::get),
        })
    };
    let explained = |explanation: &PlanExplanation| {
        let matches = explanation.matches.iter().map(|tried| {
            json!({
                "what": tried.what.to_string(),
                "machine": found.supplies[tried.supply].label(),
                "verdict": tried.verdict.to_string(),
            })
        });
        matches.collect::<Vec<_>>()
    };
    json!({
        "model": found.need.model.transformer.name,
        "machine": found.supply().label(),
        "input_tokens": found.need.load.input,
        "output_tokens": found.need.load.output,
        "trace": found.need.traced.map(load::json),
        "memory": memory_of(found).map(|memory| json!({
            "weights_bytes_per_gpu": memory.weights_per_gpu.get(),
            "adapter_bytes_per_gpu": memory.adapters_per_gpu.get(),
            "encoder_bytes_per_gpu": memory.encoder_per_gpu.get(),
            "kv_room_tokens": memory.room.tokens(),
        })),
        "adapters": found.need.options.adapters.map(|adapters| json!({
            "loaded": adapters.loaded,
            "rank": adapters.rank,
            "bytes_per_gpu": memory_of(found).map(|memory| memory.adapters_per_gpu.get()),
        })),
        "images": found.need.options.images.map(|pictures| json!({
            "per_request": pictures.per_request,
            "patches": pictures.image.patches,
            "tokens": pictures.image.tokens,
            "encoder_bytes_per_gpu": memory_of(found).map(|memory| memory.encoder_per_gpu.get()),
        })),
        "input_tokens_longest": found.need.load.longest_prompt(),
        "output_tokens_longest": found.need.traced.map_or(found.need.load.lengths().1.longest(), |it| it.output.longest),
        "shared_prefix_percent": found.need.load.shared.map(|shared| shared.percent),
        "shared_prefixes": found.need.load.shared.map(|shared| shared.groups),
        "requests_per_s": found.need.load.per_second,
        "best": held(best, found),
        "replay": replayed::json(&best.shown.outcome, &found.need.objectives),
        "others": found.answer.others.iter().map(other).collect::<Vec<_>>(),
        "no_measurements": found.doubts(),
        "near_tie": found.need.options.near,
        "chips_left_out": found.left_out,
        "pareto_front": found.answer.front.iter().map(point).collect::<Vec<_>>(),
        "choices": found.answer.tried.len(),
        "replays": found.answer.replays,
        "test_time": found.efforts.iter().map(effort).collect::<Vec<_>>(),
        "explanation": found.explanation.as_ref().map(explained),
        "launch": found.launch,
    })
}

fn held(held: &HeldPlan, found: &Found<'_>) -> Value {
    let supply = &found.supplies[held.supply];
    let workers = |workers: &Workers| {
        json!({
            "layout": workers.layout.to_string(),
            "replicas": workers.replicas,
            "gpus_per_replica": workers.layout.gpus(),
            "seats": workers.max_seqs,
        })
    };
    let (prefill, decode) = match &held.plan {
        Plan::Aggregated(both) => (None, both),
        Plan::Disaggregated { prefill, decode } => (Some(workers(prefill)), decode),
    };
    json!({
        "deployment": held.plan.to_string(),
        "machine": supply.label(),
        "prompt_machine": supply.prompts.as_ref().map(|prompts| &prompts.name),
        "is_measured_chip": supply.kinds().all(|kind| found.errors.has_measured(&kind.accelerator)),
        "gpus": held.plan.gpus(),
        "dollars_per_hour": held.dollars_per_hour,
        "most_joules_per_token": energy(found, held).map(|energy| energy.joules_per_token),
        "share": held.shown.share,
        "expected": found.outlook_of(held).as_ref().map(outlook_json),
        "prefill": prefill,
        "decode": workers(decode),
    })
}

fn outlook_json(outlook: &Outlook) -> Value {
    let figure = |figure: &Expectation| {
        json!({
            "predicted": figure.predicted,
            "interval_80": [figure.low, figure.high],
            "limit": figure.limit.map(|limit| limit.value),
            "holds_with": figure.limit.map(|limit| limit.confidence),
        })
    };
    json!({
        "ttft_s": figure(&outlook.ttft),
        "itl_s": figure(&outlook.itl),
        "e2e_s": figure(&outlook.end_to_end),
        "tokens_per_s_all_seats": figure(&outlook.throughput),
        "least_confidence": outlook.least_confidence(),
    })
}
