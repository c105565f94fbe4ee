//! Whether any load collapses the queue: small jobs in every measure and unkind worlds, each policy next to EASY.
#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_catalog::Catalog;
use bedplate_gangs::Span;
use bedplate_replay::jobs::{Replay, ReplayPolicy, ReplaySummary, Trace, World, simulate};
use bedplate_topology::{Cluster, ImportOptions, import_detected};

const NODES: u32 = 32;
const MEASURES: [&str; 9] = [
    "utilisation, %",
    "mean wait, h",
    "slowdown",
    "p99, h",
    "longest, h",
    "large mean, h",
    "large longest, h",
    "small mean, min",
    "fairness",
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|each| !each.starts_with("--")).collect();
    let value = |key: &str| arguments.iter().find_map(|each| each.strip_prefix(key)?.strip_prefix('='));
    let number = |key: &str, default: usize| value(key).and_then(|text| text.parse().ok()).unwrap_or(default);
    let list = |key: &str, default: &str| -> Vec<String> {
        value(key).unwrap_or(default).split(',').map(str::to_owned).collect()
    };
    let (jobs, seeds, first) = (number("jobs", 1500), number("seeds", 3), number("first", 0) as u64);
    let loads: Vec<f64> = list("loads", "0.7,0.85,1.0").iter().filter_map(|load| load.parse().ok()).collect();
    let policies: Vec<ReplayPolicy> =
        list("policies", "easy,ours").iter().filter_map(|name| ReplayPolicy::find(name)).collect();
    let mut worlds: Vec<(String, World)> = Vec::new();
    for name in list("worlds", "trickles") {
        match name.as_str() {
            "trickles" => {
                let percents = list("percents", "0,5,15,30");
                for run in list("minutes", "10,60,240").iter().filter_map(|text| text.parse().ok()) {
                    for percent in percents.iter().filter_map(|text| text.parse().ok()) {
                        let world = World::Trickle { percent, run: Span::minutes(run) };
                        worlds.push((format!("{percent} % of {run} min"), world));
                    }
                }
            }
            "all" => worlds.extend(World::ALL.map(|(name, world)| (name.to_owned(), world))),
            name => worlds.extend(
                World::ALL.into_iter().filter(|each| each.0 == name).map(|each| (each.0.to_owned(), each.1)),
            ),
        }
    }
    println!("| world | load | policy | {} |", MEASURES.join(" | "));
    println!("|---|---|---|{}", "---|".repeat(MEASURES.len()));
    for (name, world) in &worlds {
        for load in &loads {
            let seeds: Vec<u64> = (first..first + seeds as u64).collect();
            let found = measure(*world, jobs, *load, &seeds, &policies);
            for (policy, values) in policies.iter().zip(found) {
                let cells: Vec<String> = values.iter().map(|value| format!("{value:.3}")).collect();
                println!("| {name} | {load} | `{}` | {} |", policy.name, cells.join(" | "));
            }
        }
    }
}

/// Of each policy the means over seeds.
fn measure(world: World, jobs: usize, load: f64, seeds: &[u64], policies: &[ReplayPolicy]) -> Vec<[f64; 9]> {
    let cluster = tree();
    let plays: Vec<(usize, u64)> =
        seeds.iter().flat_map(|seed| (0..policies.len()).map(move |policy| (policy, *seed))).collect();
    let next = AtomicUsize::new(0);
    let found: Mutex<BTreeMap<(usize, u64), [f64; 9]>> = Mutex::new(BTreeMap::new());
    let work = || {
        while let Some((policy, seed)) = plays.get(next.fetch_add(1, Ordering::Relaxed)) {
            let trace = world.generate(jobs, cluster.gpu_count(), load, *seed);
            let replay = Replay { seed: *seed, ..Replay::new(policies[*policy]) };
            let outcome = simulate(&trace, &cluster, &replay, &mut |_| {});
            let values = values(&trace, &ReplaySummary::of(&trace, &outcome));
            found.lock().expect("no worker panics").insert((*policy, *seed), values);
        }
    };
    let threads = std::env::var("BEDPLATE_THREADS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    std::thread::scope(|scope| (0..threads).for_each(|_: usize| drop(scope.spawn(work))));
    let found = found.into_inner().expect("no worker panics");
    let mean = |policy: usize, measure: usize| {
        seeds.iter().map(|seed| found[&(policy, *seed)][measure]).sum::<f64>() / seeds.len() as f64
    };
    (0..policies.len()).map(|policy| std::array::from_fn(|measure| mean(policy, measure))).collect()
}

fn values(_trace: &Trace, summary: &ReplaySummary) -> [f64; 9] {
    let hours = |span: Span| span.as_seconds() / 3600.0;
    let large: Vec<_> = summary.by_size.iter().filter(|class| class.class.most_gpus > 64).collect();
    let count: usize = large.iter().map(|class| class.jobs).sum();
    let large_sum: f64 = large.iter().map(|class| hours(class.wait.mean) * class.jobs as f64).sum();
    let large_longest = large.iter().map(|class| hours(class.wait.longest)).fold(0.0, f64::max);
    let small = summary.by_size.iter().find(|class| class.class.name == "1");
    [
        summary.utilisation * 100.0,
        hours(summary.wait.mean),
        summary.bounded_slowdown,
        hours(summary.wait.p99),
        hours(summary.wait.longest),
        large_sum / count.max(1) as f64,
        large_longest,
        small.map_or(0.0, |class| hours(class.wait.mean) * 60.0),
        summary.fairness.unwrap_or(1.0),
    ]
}

/// Nodes of eight below leaves of eight.
fn tree() -> Cluster {
    let text =
        format!("[[group]]\ninstance = \"p5.48xlarge\"\ncount = {NODES}\n\n[fabric]\nnodes_per_leaf = 8\n");
    let source = bedplate_diag::Source::new("cluster.toml", &text);
    import_detected(&[source], &ImportOptions::default(), &Catalog::builtin()).expect("the cluster is valid")
}
