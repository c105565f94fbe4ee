//! Jobs replayed per second on one core, next to the stated targets.
//!
//! `BEDPLATE_TRACES` names the folder that holds `philly/philly_jobs_sia.csv`; without it that part is skipped
//! with a message. `cargo bench -p bedplate-replay -- philly` or `-- million` runs one of the two, optionally
//! followed by names of policies.
#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

use std::time::Instant;

use bedplate_catalog::Catalog;
use bedplate_diag::Source;
use bedplate_replay::jobs::{
    Generator, LoadMixture, Replay, ReplayPolicy, ReplaySummary, Trace, read, simulate,
};
use bedplate_topology::{Cluster, ImportOptions, import_detected};

/// Philly's 82,247 jobs and a generated million, with the seconds they may take.
const PHILLY_TARGET: f64 = 30.0;
const MILLION_TARGET: f64 = 600.0;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|each| !each.starts_with("--")).collect();
    let wants = |part: &str| {
        let parts: Vec<&String> =
            arguments.iter().filter(|each| ReplayPolicy::find(each).is_none()).collect();
        parts.is_empty() || parts.iter().any(|each| *each == part)
    };
    let named: Vec<ReplayPolicy> = arguments.iter().filter_map(|name| ReplayPolicy::find(name)).collect();
    let policies = |usual: &[&str]| match named.is_empty() {
        true => usual.iter().filter_map(|name| ReplayPolicy::find(name)).collect(),
        false => named.clone(),
    };
    println!(
        "{:<9} {:<20} {:>9} {:>9} {:>9} {:>9} {:>8}",
        "load", "policy", "jobs", "seconds", "jobs/s", "target", "ratio"
    );
    if wants("philly") {
        philly(&policies(&ReplayPolicy::USUAL));
    }
    if wants("million") {
        million(&policies(&["ours"]));
    }
}

fn philly(policies: &[ReplayPolicy]) {
    let folder = std::env::var("BEDPLATE_TRACES").unwrap_or_default();
    let path = format!("{folder}/philly/philly_jobs_sia.csv");
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("SKIPPED: Philly: BEDPLATE_TRACES names no folder with philly/philly_jobs_sia.csv");
        return;
    };
    for nodes in [310, 56] {
        for policy in policies {
            let begin = Instant::now();
            let trace = read(Source::new(&path, &text), None).expect("the Philly trace is valid");
            measure(&format!("philly/{nodes}"), &trace, &tree(nodes), *policy, begin, PHILLY_TARGET);
        }
    }
}

fn million(policies: &[ReplayPolicy]) {
    let jobs = std::env::var("BEDPLATE_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1_000_000);
    let cluster = tree(10_000);
    for policy in policies {
        let begin = Instant::now();
        let generator = Generator {
            mixture: LoadMixture::SEREN,
            jobs,
            days: None,
            load: 0.85,
            gpus: cluster.gpu_count(),
            gpus_per_node: 8,
            seed: 1,
        };
        measure("million", &generator.generate(), &cluster, *policy, begin, MILLION_TARGET);
    }
}

fn measure(load: &str, trace: &Trace, cluster: &Cluster, policy: ReplayPolicy, begin: Instant, target: f64) {
    let verbose = std::env::var_os("BEDPLATE_PROGRESS").is_some();
    let outcome = simulate(trace, cluster, &Replay::new(policy), &mut |progress| {
        if verbose {
            println!("{:>8.1} s {progress:?}", begin.elapsed().as_secs_f64());
        }
    });
    let seconds = begin.elapsed().as_secs_f64();
    let jobs = trace.jobs.len();
    println!(
        "{load:<9} {:<20} {jobs:>9} {seconds:>9.2} {:>9.0} {target:>9.0} {:>8.2}",
        policy.name,
        jobs as f64 / seconds,
        target / seconds
    );
    let summary = ReplaySummary::of(trace, &outcome);
    println!(
        "{:<9} load {:.2}, utilisation {:.3}, bounded slowdown {:.2}, goodput {:.3}, mean wait {}, open {}, rejected {}",
        "",
        trace.load(cluster.gpu_count()),
        summary.utilisation,
        summary.bounded_slowdown,
        summary.goodput,
        summary.wait.mean,
        summary.open,
        summary.rejected
    );
}

/// Nodes of eight H100 below leaves of 16 and spines of 8 leaves, uplinks oversubscribed twice.
fn tree(nodes: u32) -> Cluster {
    let text = format!(
        "[[group]]\ninstance = \"p5.48xlarge\"\ncount = {nodes}\n\n[fabric]\nnodes_per_leaf = 16\n\
         leaves_per_spine = 8\noversubscription = [2.0, 2.0]\n"
    );
    let source = Source::new("cluster.toml", &text);
    import_detected(&[source], &ImportOptions::default(), &Catalog::builtin()).expect("the cluster is valid")
}
