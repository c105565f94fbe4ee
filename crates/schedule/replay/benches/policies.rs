//! Policies by traces, loads and four measures, as the table of docs/replay.md.
//!
//! `cargo bench -p bedplate-replay --bench policies` prints it as Markdown: means and standard errors over seeds, what is best or within 5 % of it
//! in bold, and the policies by how far they are from the best. `BEDPLATE_TRACES` names the folder with `pwa_swf/NASA-iPSC-1993-3.1-cln.swf` (unpacked) and
//! `philly/philly_jobs_sia.csv`; without it those rows are skipped with a message. Names of policies and of loads (`lublin`, `llm`, `nasa`, `philly`; `0.7`, `0.9`)
//! choose some of them. What is shown are seeds 0 to 19, and both traces without their first jobs.
//!
//! `BEDPLATE_TUNING=1` shows instead what the defaults of the scheduler were chosen on: seeds 100 to 109, the first third of NASA's jobs and the first
//! eighth of Philly's.
#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_catalog::Catalog;
use bedplate_diag::Source;
use bedplate_gangs::Time;
use bedplate_replay::jobs::{
    Generator, LoadMixture, Lublin, Replay, ReplayPolicy, ReplaySummary, Trace, read, simulate,
};
use bedplate_topology::Cluster;

const POLICIES: [&str; 8] = ["easy", "conservative", "sjf", "saf", "wfp3", "f1", "ours", "ours-plain"];
const LOADS: [f64; 2] = [0.7, 0.9];
const MEASURES: [&str; 4] = ["mean wait, h", "slowdown", "longest wait, h", "utilisation, %"];
/// Within this factor of the best counts as best.
const CLOSE: f64 = 1.05;

/// A load by name: where its jobs come from, on how many nodes of eight GPUs, over how many seeds.
struct Kind {
    name: &'static str,
    nodes: u32,
    seeds: Range<u64>,
    recorded: Option<Trace>,
}

struct Row {
    load: String,
    policy: &'static str,
    /// Of each measure, a value for each seed.
    values: [Vec<f64>; 4],
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|each| !each.starts_with("--")).collect();
    let is_named = |name: &str| arguments.iter().any(|each| each == name);
    let kinds: Vec<Kind> = kinds();
    let some_kinds = kinds.iter().any(|kind| is_named(kind.name));
    let some_loads = LOADS.iter().any(|load| is_named(&load.to_string()));
    let some_policies = ReplayPolicy::ALL.iter().any(|policy| is_named(policy.name));
    let policies: Vec<ReplayPolicy> = match some_policies {
        true => ReplayPolicy::ALL.into_iter().filter(|policy| is_named(policy.name)).collect(),
        false => POLICIES.iter().filter_map(|name| ReplayPolicy::find(name)).collect(),
    };
    println!("| load | policy | {} |", MEASURES.join(" | "));
    println!("|---|---|---|---|---|---|");
    let mut rows = Vec::new();
    for kind in kinds.iter().filter(|kind| !some_kinds || is_named(kind.name)) {
        for load in LOADS.into_iter().filter(|load| !some_loads || is_named(&load.to_string())) {
            let of_load = measure(kind, load, &policies);
            show(&of_load);
            rows.extend(of_load);
        }
    }
    println!();
    show_distances(&rows);
}

fn kinds() -> Vec<Kind> {
    let seeds = if is_tuning() { 100..110 } else { 0..20 };
    let generated = |name| Kind { name, nodes: 32, seeds: seeds.clone(), recorded: None };
    let mut kinds = vec![generated("lublin"), generated("llm")];
    let recorded = [
        ("nasa", "pwa_swf/NASA-iPSC-1993-3.1-cln.swf", 16, 5, 3),
        ("philly", "philly/philly_jobs_sia.csv", 64, 2, 8),
    ];
    for (name, path, nodes, seeds, tuned_on) in recorded {
        match trace(path) {
            Some(trace) => {
                let (first, rest) = split(trace, tuned_on);
                let (seeds, part) =
                    if is_tuning() { (100..100 + seeds.min(3), first) } else { (0..seeds, rest) };
                kinds.push(Kind { name, nodes, seeds, recorded: Some(part) });
            }
            None => println!("SKIPPED: {name}: BEDPLATE_TRACES names no folder with {path}"),
        }
    }
    kinds
}

fn trace(path: &str) -> Option<Trace> {
    let path = format!("{}/{path}", std::env::var("BEDPLATE_TRACES").unwrap_or_default());
    let text = std::fs::read_to_string(&path).ok()?;
    Some(read(Source::new(&path, &text), None).expect("the trace is valid"))
}

/// The first of so many equal parts, and the rest.
fn split(mut trace: Trace, parts: usize) -> (Trace, Trace) {
    let mut rest = trace.clone();
    rest.jobs.drain(..trace.jobs.len() / parts);
    trace.jobs.truncate(trace.jobs.len() / parts);
    let first = rest.jobs[0].submit;
    rest.jobs.iter_mut().for_each(|job| job.submit = Time::ZERO + job.submit.since(first));
    (trace, rest)
}

/// Whether the loads are those that defaults are chosen on.
fn is_tuning() -> bool {
    std::env::var_os("BEDPLATE_TUNING").is_some()
}

/// Every policy under every seed, on all cores.
fn measure(kind: &Kind, load: f64, policies: &[ReplayPolicy]) -> Vec<Row> {
    let spec = format!("p5.48xlarge:{}", kind.nodes);
    let cluster = Cluster::from_spec(&spec, &Catalog::builtin()).expect("the cluster is valid");
    let plays: Vec<(usize, u64)> =
        kind.seeds.clone().flat_map(|seed| (0..policies.len()).map(move |policy| (policy, seed))).collect();
    let next = AtomicUsize::new(0);
    let found: Mutex<BTreeMap<(usize, u64), [f64; 4]>> = Mutex::new(BTreeMap::new());
    let work = || {
        while let Some((policy, seed)) = plays.get(next.fetch_add(1, Ordering::Relaxed)) {
            let trace = jobs(kind, load, *seed, &cluster);
            let replay = Replay { seed: *seed, ..Replay::new(policies[*policy]) };
            let outcome = simulate(&trace, &cluster, &replay, &mut |_| {});
            let values = values(&ReplaySummary::of(&trace, &outcome));
            found.lock().expect("no worker panics").insert((*policy, *seed), values);
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
    let found = found.into_inner().expect("no worker panics");
    let row = |(place, policy): (usize, &ReplayPolicy)| Row {
        load: format!("{} {load}", kind.name),
        policy: policy.name,
        values: [0, 1, 2, 3]
            .map(|measure| kind.seeds.clone().map(|seed| found[&(place, seed)][measure]).collect()),
    };
    policies.iter().enumerate().map(row).collect()
}

fn jobs(kind: &Kind, load: f64, seed: u64, cluster: &Cluster) -> Trace {
    let gpus = cluster.gpu_count();
    match &kind.recorded {
        Some(trace) => trace.clone().scaled_to_load_of(load, cluster),
        None if kind.name == "lublin" => Lublin { jobs: 5000, processors: gpus, load, seed }.generate(),
        None => {
            let mixture = LoadMixture::SEREN;
            Generator { mixture, jobs: 6000, days: None, load, gpus, gpus_per_node: 8, seed }.generate()
        }
    }
}

fn values(summary: &ReplaySummary) -> [f64; 4] {
    let hours = |span: bedplate_gangs::Span| span.as_seconds() / 3600.0;
    [
        hours(summary.wait.mean),
        summary.bounded_slowdown,
        hours(summary.wait.longest),
        summary.utilisation * 100.0,
    ]
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn standard_error(values: &[f64]) -> f64 {
    let (mean, count) = (mean(values), values.len() as f64);
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    (variance / count).sqrt()
}

/// How many times worse than the best policy of its load; 1 is best.
fn distance(row: &Row, rows: &[Row], measure: usize) -> f64 {
    let cost = |row: &Row| match measure {
        3 => 1.0 / mean(&row.values[3]),
        _ => mean(&row.values[measure]).max(1e-3),
    };
    let of_load = rows.iter().filter(|other| other.load == row.load);
    cost(row) / of_load.map(cost).fold(f64::INFINITY, f64::min)
}

fn show(rows: &[Row]) {
    for row in rows {
        let shown = |measure: usize| {
            let digits = [2, 1, 0, 1][measure];
            let (mean, error) = (mean(&row.values[measure]), standard_error(&row.values[measure]));
            let text = format!("{mean:.digits$} ± {error:.digits$}");
            if distance(row, rows, measure) <= CLOSE { format!("**{text}**") } else { text }
        };
        let cells: Vec<String> = (0..4).map(shown).collect();
        println!("| {} | `{}` | {} |", row.load, row.policy, cells.join(" | "));
    }
}

/// Geometric means over loads of how many times worse than the best each policy is.
fn show_distances(rows: &[Row]) {
    println!("| policy | {} | all four | worst of all |", MEASURES.join(" | "));
    println!("|---|---|---|---|---|---|---|");
    let mut lines: BTreeMap<&str, Vec<[f64; 4]>> = BTreeMap::new();
    for row in rows {
        let distances = [0, 1, 2, 3].map(|measure| distance(row, rows, measure));
        lines.entry(row.policy).or_default().push(distances);
    }
    let geometric =
        |values: &[f64]| (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp();
    let mut shown: Vec<(f64, String)> = Vec::new();
    for (policy, distances) in lines {
        let of = |measure: usize| geometric(&distances.iter().map(|each| each[measure]).collect::<Vec<_>>());
        let flat: Vec<f64> = distances.iter().flatten().copied().collect();
        let cells: Vec<String> = (0..4).map(|measure| format!("{:.2}", of(measure))).collect();
        let worst = flat.iter().copied().fold(1.0, f64::max);
        let all = geometric(&flat);
        shown.push((all, format!("| `{policy}` | {} | {all:.2} | {worst:.1} |", cells.join(" | "))));
    }
    shown.sort_by(|a, b| a.0.total_cmp(&b.0));
    shown.iter().for_each(|(_, line)| println!("{line}"));
}
