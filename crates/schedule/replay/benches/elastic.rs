//! Fixed sizes, elastic sizes and sizes by goodput on generated loads of language models, as the table of docs/replay.md.
//!
//! `cargo bench -p bedplate-replay --bench elastic` prints it as Markdown: means and standard errors over seeds 0 to 19, and by how much goodput changes
//! each measure, seed by seed. Names choose some of the loads (`llm`, `training`), numbers some of their loads (`0.9`), `tune` the seeds on which the
//! defaults were chosen (100 to 103).
#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_catalog::Catalog;
use bedplate_gangs::Span;
use bedplate_replay::jobs::{
    Generator, LoadMixture, Outcome, Replay, ReplayPolicy, ReplaySummary, Trace, TraceJob, simulate,
};
use bedplate_topology::Cluster;

const LOADS: [f64; 3] = [0.7, 0.9, 1.1];
const MEASURES: [&str; 9] = [
    "mean JCT, h",
    "JCT of elastic, h",
    "JCT of largest, h",
    "mean wait, h",
    "slowdown",
    "longest wait, h",
    "utilisation, %",
    "delivered, %",
    "resizes per elastic job",
];
const DIGITS: [usize; 9] = [2, 2, 1, 2, 1, 0, 1, 1, 1];
/// Name, policy and error of predictions.
const CONTENDERS: [(&str, &str, f64); 6] = [
    ("fixed", "ours-rigid", 0.0),
    ("elastic", "ours", 0.0),
    ("elastic, error 20 %", "ours", 0.2),
    ("goodput", "goodput", 0.0),
    ("goodput, error 10 %", "goodput", 0.1),
    ("goodput, error 20 %", "goodput", 0.2),
];
const NODES: u32 = 32;

type Values = [f64; MEASURES.len()];

/// A generated load by name, with its number of jobs.
struct Kind {
    name: &'static str,
    mixture: LoadMixture,
    jobs: usize,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|each| !each.starts_with("--")).collect();
    let is_named = |name: &str| arguments.iter().any(|each| each == name);
    let kinds = [
        Kind { name: "llm", mixture: LoadMixture::SEREN, jobs: 6000 },
        Kind { name: "training", mixture: LoadMixture::TRAINING, jobs: 2000 },
    ];
    let seeds: Vec<u64> = if is_named("tune") { (100..104).collect() } else { (0..20).collect() };
    let some_kinds = kinds.iter().any(|kind| is_named(kind.name));
    let some_loads = LOADS.iter().any(|load| is_named(&load.to_string()));
    println!("| load | sizes | {} |", MEASURES.join(" | "));
    println!("|---|---{}|", "|---".repeat(MEASURES.len()));
    let mut gains = Vec::new();
    for kind in kinds.iter().filter(|kind| !some_kinds || is_named(kind.name)) {
        for load in LOADS.into_iter().filter(|load| !some_loads || is_named(&load.to_string())) {
            let rows = measure(kind, load, &seeds);
            for ((name, ..), values) in CONTENDERS.iter().zip(&rows) {
                let cells: Vec<String> = (0..MEASURES.len()).map(|measure| cell(values, measure)).collect();
                println!("| {} {load} | {name} | {} |", kind.name, cells.join(" | "));
            }
            gains.extend(changes(kind, load, &rows));
        }
    }
    println!("\n| load | mean JCT against | fixed | elastic |\n|---|---|---|---|");
    gains.iter().for_each(|line| println!("{line}"));
}

/// Every contender under every seed, on all cores.
fn measure(kind: &Kind, load: f64, seeds: &[u64]) -> Vec<Vec<Values>> {
    let spec = format!("p5.48xlarge:{NODES}");
    let cluster = Cluster::from_spec(&spec, &Catalog::builtin()).expect("the cluster is valid");
    let plays: Vec<(usize, u64)> = seeds
        .iter()
        .flat_map(|seed| (0..CONTENDERS.len()).map(move |contender| (contender, *seed)))
        .collect();
    let next = AtomicUsize::new(0);
    let found: Mutex<BTreeMap<(usize, u64), Values>> = Mutex::new(BTreeMap::new());
    let work = || {
        while let Some((contender, seed)) = plays.get(next.fetch_add(1, Ordering::Relaxed)) {
            let values = play(kind, load, *contender, *seed, &cluster);
            found.lock().expect("no worker panics").insert((*contender, *seed), values);
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
    let found = found.into_inner().expect("no worker panics");
    (0..CONTENDERS.len())
        .map(|contender| seeds.iter().map(|seed| found[&(contender, *seed)]).collect())
        .collect()
}

fn play(kind: &Kind, load: f64, contender: usize, seed: u64, cluster: &Cluster) -> Values {
    let (mixture, gpus) = (kind.mixture.clone(), cluster.gpu_count());
    let generator = Generator { mixture, jobs: kind.jobs, days: None, load, gpus, gpus_per_node: 8, seed };
    let trace = generator.generate();
    let (_, policy, prediction_error) = CONTENDERS[contender];
    let policy = ReplayPolicy::find(policy).expect("the name is right");
    let replay = Replay { seed, prediction_error, ..Replay::new(policy) };
    let outcome = simulate(&trace, cluster, &replay, &mut |_| {});
    values(&trace, &outcome)
}

fn values(trace: &Trace, outcome: &Outcome) -> Values {
    let summary = ReplaySummary::of(trace, outcome);
    let hours = |span: Span| span.as_seconds() / 3600.0;
    let times = trace.jobs.iter().zip(&outcome.records);
    let completion = |is_counted: &dyn Fn(&TraceJob) -> bool| {
        let counted = times.clone().filter(|(job, _)| is_counted(job));
        let spans: Vec<f64> =
            counted.filter_map(|(job, record)| Some(hours(record.ended?.since(job.submit)))).collect();
        mean(&spans)
    };
    let largest = trace.jobs.iter().map(TraceJob::gpus).fold(0.0, f64::max);
    let elastic = trace.jobs.iter().filter(|job| job.elastic.is_some()).count();
    [
        completion(&|_| true),
        completion(&|job| job.elastic.is_some()),
        completion(&|job| job.gpus() == largest),
        hours(summary.wait.mean),
        summary.bounded_slowdown,
        hours(summary.wait.longest),
        summary.utilisation * 100.0,
        summary.delivered * 100.0,
        summary.resizes as f64 / elastic.max(1) as f64,
    ]
}

fn cell(rows: &[Values], measure: usize) -> String {
    let values: Vec<f64> = rows.iter().map(|row| row[measure]).collect();
    let digits = DIGITS[measure];
    format!("{:.digits$} ± {:.digits$}", mean(&values), standard_error(&values))
}

/// By how much each way with goodput changes the mean completion time, seed by seed.
fn changes(kind: &Kind, load: f64, rows: &[Vec<Values>]) -> Vec<String> {
    let change = |of: usize, against: usize| {
        let ratio = |(own, other): (&Values, &Values)| (own[0] / other[0] - 1.0) * 100.0;
        let ratios: Vec<f64> = rows[of].iter().zip(&rows[against]).map(ratio).collect();
        format!("{:+.1} ± {:.1} %", mean(&ratios), standard_error(&ratios))
    };
    let of_goodput = (0..CONTENDERS.len()).filter(|contender| CONTENDERS[*contender].1 == "goodput");
    let line = |of: usize| {
        let elastic = if CONTENDERS[of].2 > 0.15 { 2 } else { 1 };
        format!(
            "| {} {load} | {} | {} | {} |",
            kind.name,
            CONTENDERS[of].0,
            change(of, 0),
            change(of, elastic)
        )
    };
    of_goodput.map(line).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn standard_error(values: &[f64]) -> f64 {
    let (mean, count) = (mean(values), values.len() as f64);
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    (variance / count).sqrt()
}
