//! `bedplate bench diagnose`: how often a diagnosis is right, how soon it comes, and what it costs.

mod cost;
mod faults;
mod gang;
mod labelled;
mod real;
mod score;
mod steps;

use std::path::PathBuf;

use bedplate_diag::{Diagnostic, Page};
use bedplate_logs::Recognizer;
use bedplate_terminal::benchmarks::NOT_LABELLED;
use bedplate_terminal::{CliError, Console, Context};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate bench diagnose
  bedplate bench diagnose --seeds 1000 --first-seed 5000
  bedplate bench diagnose --logs threads/ --labels threads/labels.csv
  bedplate bench diagnose --series steps.jsonl
  bedplate bench diagnose --real
  bedplate bench diagnose --real --only frozen --only disk-full

Without options gangs are simulated: 2 to 64 ranks that report their steps, healthy or with a fault of a
known kind that begins at a random step, evaluations and checkpoints in between, figures that nodes report
now and then missing. The table says for each fault how many causes and culprits were right, unknown and
wrong and how long it took; below stand precision and F1 over causes, false alarms of the healthy gangs,
and what watching costs. --logs scores a folder of real logs by a table with the columns file, label
(hardware, network, storage, application, out-of-memory, unknown, healthy) and in_log (yes, partly, no: whether the
text can tell). --real brings faults upon jobs of PyTorch: four ranks by DDP or FSDP over Gloo on a
temporary cluster, seen by their reports or by their logs alone. --series looks for slowdowns in step times of real runs, as they are and made slower by a factor.")]
pub(super) struct Arguments {
    /// Gangs with a fault or without one
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000), default_value_if("real", "true", "1"), default_value = "400")]
    seeds: u64,
    /// The first of the seeds
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    first_seed: u64,
    /// Score these logs
    #[arg(long, value_name = "FOLDER", requires = "labels")]
    logs: Option<PathBuf>,
    /// What is known of them
    #[arg(long, value_name = "FILE", requires = "logs")]
    labels: Option<PathBuf>,
    /// Find slowdowns in these step times, one JSON object with `seconds` a line
    #[arg(long, value_name = "FILE", conflicts_with = "logs")]
    series: Option<PathBuf>,
    /// Bring faults upon real ranks of PyTorch, each of them `--seeds` times (1)
    #[arg(long, conflicts_with_all = ["logs", "series"])]
    real: bool,
    /// With --real: only faults of this name
    #[arg(long, value_name = "FAULT", requires = "real")]
    only: Vec<String>,
    /// With --real: a Python that has torch
    #[arg(long, value_name = "FILE", requires = "real")]
    python: Option<PathBuf>,
    /// With --real: the folder with our Python package
    #[arg(long, value_name = "FOLDER", requires = "real", default_value = "python/src")]
    package: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum DiagnoseError {
    #[error("{path}: {why}")]
    Input { path: String, why: String },
}

impl Diagnostic for DiagnoseError {
    fn page(&self) -> &'static Page {
        &NOT_LABELLED
    }
}

pub(super) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    if arguments.real {
        let asked = real::Asked {
            seeds: arguments.seeds,
            first_seed: arguments.first_seed,
            only: &arguments.only,
            python: arguments.python.as_deref(),
            package: &arguments.package,
        };
        return real::run(&asked, context, console);
    }
    let recognizer = Recognizer::built_in();
    if let (Some(folder), Some(labels)) = (&arguments.logs, &arguments.labels) {
        return labelled::run(folder, labels, &recognizer, console);
    }
    if let Some(path) = &arguments.series {
        return steps::run(path, arguments.first_seed, console);
    }
    let seeds = arguments.first_seed..arguments.first_seed.saturating_add(arguments.seeds);
    gang::run(seeds, &recognizer, console)
}
