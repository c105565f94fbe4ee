//! `bedplate replay jobs`: the same jobs under several policies.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use bedplate_catalog::Catalog;
use bedplate_replay::jobs::{
    Comparison, Estimates, Outcome, Replay, ReplayPolicy, ReplayProgress, ReplaySummary, Run, Trace,
    simulate, with_limits, write_jsonl,
};
use bedplate_terminal::{CliError, Console, choice, files};
use bedplate_topology::Cluster;
use bedplate_units::grouped;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::comparison::Shown;
use super::jobs_page;
use super::load::Load;
use crate::site::read_site;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate replay jobs trace.jsonl --cluster cluster.toml
  bedplate replay jobs philly.csv --cluster p5.48xlarge:64 --policy easy --policy ours
  bedplate replay jobs --generate llm --jobs 5000 --cluster p5.48xlarge:64 --load 0.9 --seeds 10
  bedplate replay jobs trace.swf --cluster p5.48xlarge:16 --failures meta-h100 --report replay.html
  bedplate replay jobs --generate llm --cluster p5.48xlarge:64 --save load.jsonl
  bedplate replay jobs --from-slurm --since 90d --context site
  bedplate replay jobs trace.jsonl --cluster cluster.toml --site site.toml --policy ours

The replay runs in virtual time: no job really runs, and equal seeds give equal
results. Traces without time limits get assigned ones, the same for every
policy. See docs/replay.md for formats, policies and figures.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    load: Load,
    /// A policy to compare; may be repeated [default: easy, conservative, ours]
    #[arg(long, value_parser = policy())]
    policy: Vec<ReplayPolicy>,
    /// The rules of a site (docs/site.md), compared as policy `site`
    #[arg(long, value_name = "FILE")]
    site: Option<String>,
    /// Limits for traces without them: overestimated by a factor and rounded up, or exact
    #[arg(long, value_parser = choice(&Estimates::ALL), default_value = "factor")]
    estimates: Estimates,
    /// The error of the throughput by size that schedulers get: the standard deviation of its logarithm, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    prediction_error: f64,
    /// The seed of estimates, predictions, failures and generated jobs
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Repeat with this many seeds and compare the means
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Write an HTML page with plots: utilisation, queue, waits, the largest jobs
    #[arg(long, value_name = "FILE")]
    report: Option<String>,
    /// Write the jobs as JSON lines, with the limits assigned to those without
    #[arg(long, value_name = "FILE")]
    save: Option<String>,
}

fn share(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    number
        .filter(|number| (0.0..=1.0).contains(number))
        .ok_or_else(|| "it is not a number from 0 to 1".to_owned())
}

/// Parses names of policies; help describes each.
fn policy() -> impl TypedValueParser<Value = ReplayPolicy> {
    let values = ReplayPolicy::ALL.map(|policy| PossibleValue::new(policy.name).help(policy.about));
    PossibleValuesParser::new(values)
        .map(|name| ReplayPolicy::find(&name).expect("the parser takes only these names"))
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let cluster = arguments.load.cluster(catalog)?;
    let seeds: Vec<u64> = (0..arguments.seeds).map(|number| arguments.seed + number).collect();
    let traces = arguments.traces(&cluster, &seeds)?;
    if let Some(path) = &arguments.save {
        let limited = with_limits(&traces[0], &cluster, arguments.estimates, seeds[0]);
        files::write_text(path, &write_jsonl(&limited))?;
        console.say(&format!("wrote {path}: {} jobs", grouped(traces[0].jobs.len() as u64)));
    }
    for remark in &traces[0].remarks {
        console.say(&format!("note: {} {}", grouped(remark.count as u64), remark.what));
    }
    let plays = arguments.plays(&cluster, &seeds)?;
    let (summaries, first) = play_all(&plays, &traces, &cluster, console);
    let runs = plays.iter().zip(summaries).map(|((_, replay), summary)| Run {
        policy: replay.policy,
        seed: replay.seed,
        summary,
    });
    let comparison = Shown {
        load: &arguments.load,
        trace: &traces[0],
        cluster: &cluster,
        estimates: arguments.estimates,
        compared: Comparison::new(runs.collect()).expect("there is a policy and a seed"),
    };
    if let Some(path) = &arguments.report {
        files::write_text(path, &jobs_page::page(&comparison, &first).html())?;
        console.say(&format!("wrote {path}"));
    }
    match console.is_json() {
        true => console.json(&comparison.json()),
        false => comparison.show(console),
    }?;
    if comparison.compared.is_hopeless() {
        let why = first.iter().flat_map(|(_, outcome)| outcome.rejections.keys()).next();
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        console.say(&format!("none of the jobs can run on this cluster{why}"));
        return Err(CliError::Refused);
    }
    Ok(())
}

impl Arguments {
    /// The jobs of every seed; a recorded trace has the same for all.
    fn traces(&self, cluster: &Cluster, seeds: &[u64]) -> Result<Vec<Trace>, CliError> {
        let text = self.load.text()?;
        let distinct = if self.load.is_generated() { seeds } else { &seeds[..1] };
        distinct.iter().map(|seed| self.load.trace(&text, cluster, *seed)).collect()
    }

    /// Every policy under every seed, with the index of its trace.
    fn plays(&self, cluster: &Cluster, seeds: &[u64]) -> Result<Vec<(usize, Replay)>, CliError> {
        let usual = || ReplayPolicy::USUAL.iter().filter_map(|name| ReplayPolicy::find(name)).collect();
        let mut policies: Vec<ReplayPolicy> = if self.policy.is_empty() { usual() } else { Vec::new() };
        // A policy named twice is compared once.
        for policy in &self.policy {
            if !policies.contains(policy) {
                policies.push(*policy);
            }
        }
        let site = self.site.as_ref().map(|path| read_site(path, cluster)).transpose()?;
        let of_site = site.map(|site| Replay::of_site(site.settings));
        let replays: Vec<Replay> = policies.into_iter().map(Replay::new).chain(of_site).collect();
        let failures = self.load.failures()?;
        let mut plays = Vec::new();
        for (place, seed) in seeds.iter().enumerate() {
            for replay in &replays {
                let (estimates, prediction_error) = (self.estimates, self.prediction_error);
                let mut replay =
                    Replay { estimates, prediction_error, failures, seed: *seed, ..replay.clone() };
                if let Some(restart) = self.load.restart() {
                    replay.restart = restart;
                }
                plays.push((if self.load.is_generated() { place } else { 0 }, replay));
            }
        }
        Ok(plays)
    }
}

/// Simulates everything on all cores; full outcomes are kept for the first seed.
fn play_all(
    plays: &[(usize, Replay)],
    traces: &[Trace],
    cluster: &Cluster,
    console: &Console,
) -> (Vec<ReplaySummary>, Vec<(ReplayPolicy, Outcome)>) {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, ReplaySummary, Option<Outcome>)>> = Mutex::new(Vec::new());
    let shows_progress = std::io::stderr().is_terminal() && !console.is_json();
    let work = || {
        while let Some((index, (place, replay))) =
            plays.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed))
        {
            let mut tell = |progress: ReplayProgress| {
                if shows_progress {
                    console.say_raw(&progress_line(replay, progress));
                }
            };
            let outcome = simulate(&traces[*place], cluster, replay, &mut tell);
            let summary = ReplaySummary::of(&traces[*place], &outcome);
            let kept = (replay.seed == plays[0].1.seed).then_some(outcome);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((index, summary, kept));
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(plays.len());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            // A panic in a worker is reported like one of the main thread.
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    if shows_progress {
        console.say_raw("\r\x1b[K");
    }
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(index, ..)| *index);
    let mut first = Vec::new();
    let mut summaries = Vec::new();
    for (index, summary, outcome) in results {
        summaries.push(summary);
        first.extend(outcome.map(|outcome| (plays[index].1.policy, outcome)));
    }
    (summaries, first)
}

fn progress_line(replay: &Replay, progress: ReplayProgress) -> String {
    let percent = progress.ended * 100 / progress.jobs.max(1);
    let at = progress.now.since(bedplate_gangs::Time::ZERO);
    format!(
        "\r\x1b[K{} (seed {}): {percent}% of the jobs, {at} of virtual time",
        replay.policy.name, replay.seed
    )
}
