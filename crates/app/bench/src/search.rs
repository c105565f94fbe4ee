//! `bedplate bench search`: layouts priced per second, checked against the uncached model.

use std::time::Instant;

use bedplate_catalog::Catalog;
use bedplate_perf::{Constants, Hardware, Workload};
use bedplate_search::{Axes, LayoutCandidate, Setup, Space};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console};
use bedplate_topology::Cluster;
use bedplate_transformer::builtin;
use bedplate_units::{Count, grouped};
use serde_json::{Value, json};

use super::peer::{PeerFailed, Script};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate bench search
  bedplate bench search --peer calculon --peer-path ~/calculon

Each space is priced in full on one core: every layout is checked for memory and timed if it
fits. 1,000 layouts drawn from each space are priced again without any table and must be equal.
The peer is run on this machine, on the same question, from a checkout of its repository.")]
pub(super) struct Arguments {
    /// Also measure another program
    #[arg(long, value_enum, requires = "peer_path")]
    peer: Option<Peer>,
    /// The path of the peer's repository
    #[arg(long, value_name = "DIR")]
    peer_path: Option<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Peer {
    /// calculon-ai/calculon, a training performance model with an exhaustive search (Python)
    Calculon,
}

/// Model, cluster and sequences per step of the spaces that are priced.
const SPACES: [(&str, &str, u64); 4] = [
    ("gpt3-175b", "dgx-a100:64", 512),
    ("llama-3.1-70b", "p5.48xlarge:64", 512),
    ("llama-3.1-405b", "p5.48xlarge:2048", 2048),
    ("deepseek-v3", "p5.48xlarge:256", 2048),
];
/// The most layouts of each space that are priced again, uncached.
const SAMPLES: usize = 1000;

struct Measured {
    model: &'static str,
    cluster: &'static str,
    layouts: u64,
    seconds: f64,
    unequal: usize,
}

impl Measured {
    fn per_second(&self) -> f64 {
        self.layouts as f64 / self.seconds
    }
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let constants = Constants::builtin();
    let mut results = Vec::new();
    for (model, cluster, global_batch) in SPACES {
        results.push(measure(model, cluster, global_batch, &constants, catalog)?);
    }
    let peer = match (arguments.peer, &arguments.peer_path) {
        (Some(Peer::Calculon), Some(path)) => Some(("calculon", measure_calculon(path)?)),
        _ => None,
    };
    if console.is_json() {
        return console.json(&report(&results, peer));
    }
    let mut table = Table::new(vec![
        Column::left("MODEL", 0),
        Column::left("CLUSTER", 0),
        Column::right("LAYOUTS", 0),
        Column::right("SECONDS", 0),
        Column::right("PER S AND CORE", 0),
        Column::right("UNEQUAL", 1),
    ]);
    for result in &results {
        table.row(vec![
            result.model.into(),
            result.cluster.into(),
            grouped(result.layouts),
            format!("{:.3}", result.seconds),
            Count(result.per_second() as u64).to_string(),
            format!("{} of {SAMPLES}", result.unequal),
        ]);
    }
    console.table(&table)?;
    match peer {
        Some((name, rate)) => console.line(&format!(
            "\n{name} on this machine: {rate:.0} layouts per CPU second (gpt3-175B on 512 GPUs); ours is {} times that",
            grouped((results[0].per_second() / rate) as u64)
        )),
        None => console.line(&format!(
            "\nagainst the target of 1,000,000 per second and core: {:.1}x at the slowest space",
            slowest(&results) / 1e6
        )),
    }
}

fn slowest(results: &[Measured]) -> f64 {
    results.iter().map(Measured::per_second).fold(f64::INFINITY, f64::min)
}

fn measure(
    model: &'static str,
    cluster: &'static str,
    global_batch: u64,
    constants: &Constants,
    catalog: &Catalog,
) -> Result<Measured, CliError> {
    let shape = builtin(model)?;
    let hardware = Hardware::from_cluster(&Cluster::from_spec(cluster, catalog)?, catalog)?;
    let workload = Workload { sequence: shape.max_context.min(8192), global_batch, ..Workload::default() };
    let setup = Setup { model: &shape, hardware, workload, constants };
    let begin = Instant::now();
    let space = Space::new(&setup, &Axes::default())?;
    let priced = space.price(space.whole(), 10);
    let seconds = begin.elapsed().as_secs_f64();
    Ok(Measured { model, cluster, layouts: priced.counts.priced, seconds, unequal: unequal(&setup, &space) })
}

/// How many of the sampled layouts come out differently when priced without tables.
///
/// The samples are the five best of each of 200 slices, so they are spread over the space.
fn unequal(setup: &Setup<'_>, space: &Space) -> usize {
    let slices = space.slices(SAMPLES / 5).into_iter();
    let candidates = slices.flat_map(|slice| space.price(slice, 5).best());
    let differs = |candidate: &LayoutCandidate| {
        let uncached = setup.predict(&candidate.layout).ok();
        uncached.map(|step| (step.seconds(), step.memory.total()))
            != Some((candidate.seconds, candidate.memory))
    };
    candidates.filter(differs).count()
}

/// Layouts per CPU second of calculon on random layouts of its own gpt3-175B on 512 A100s.
fn measure_calculon(path: &str) -> Result<f64, PeerFailed> {
    let script = Script {
        python: "python3",
        text: include_str!("calculon.py"),
        arguments: Vec::new(),
        directory: path,
    };
    script
        .run(|text| text.lines().rev().find_map(|line| line.strip_prefix("layouts_per_cpu_s ")?.parse().ok()))
}

fn report(results: &[Measured], peer: Option<(&str, f64)>) -> Value {
    let spaces = results.iter().map(|result| {
        json!({
            "model": result.model,
            "cluster": result.cluster,
            "layouts": result.layouts,
            "seconds": result.seconds,
            "layouts_per_s_per_core": result.per_second(),
            "sampled": SAMPLES,
            "unequal_to_uncached": result.unequal,
        })
    });
    json!({
        "layouts_per_s_per_core": slowest(results),
        "spaces": spaces.collect::<Vec<_>>(),
        "peer": peer.map(|(name, rate)| json!({ "name": name, "layouts_per_cpu_s": rate })),
        "ratio_to_peer": peer.map(|(_, rate)| results[0].per_second() / rate),
    })
}
