//! `bedplate bench deploy`: how long a whole `plan serve` takes, and with `--peer` how far its predictions are from measured
//! rows beside those of aiconfigurator.

mod peer;
mod question;
mod show;

use std::time::Instant;

use bedplate_calibrate::serving::{ServingCases, ServingErrors};
use bedplate_catalog::{Catalog, Purchase};
use bedplate_deploy::{DeployAnswer, DeployOptions, Need, OfferedLoad, Supply, search};
use bedplate_perf::serving::{ServedModel, ServingConstants};
use bedplate_replay::requests::{Objectives, picoseconds};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, files};
use bedplate_topology::Cluster;
use serde_json::json;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate bench deploy
  bedplate bench deploy --json
  bedplate bench deploy --peer aiconfigurator --peer-python venv/bin/python
  bedplate bench deploy --peer aiconfigurator --data mine.csv --json

The first question is the one that aiconfigurator 0.12.0 was timed with: Llama-3.1-70B on 16 H200,
4000 tokens in and 1000 out, first token within 600 ms and 25 ms per token, which took it 14.3
CPU-seconds in closed form. Here the answer is replayed as well.

With --peer both predict the same measured rows: ours with constants fitted
without the row's model on its GPU, because the peer's tables were not made
from these rows, and once more with constants fitted to all rows. Errors are
absolute: median and 90th percentile. The peer needs `pip install
aiconfigurator` and takes some minutes.")]
pub(super) struct Arguments {
    /// Compare predictions of measured rows with another program's, instead of timing searches
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// A Python that has the peer
    #[arg(long, value_name = "PATH", requires = "peer", default_value = "python3")]
    peer_python: String,
    /// Measured rows of your own instead of the built-in ones, with the columns of data/serving/README.md
    #[arg(long, value_name = "FILE", requires = "peer")]
    data: Option<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Peer {
    /// ai-dynamo/aiconfigurator, a performance model from tables of measured kernels (Python)
    Aiconfigurator,
}

/// CPU-seconds of `aiconfigurator cli default` 0.12.0 for the first question (measured, two shared cores).
const AICONFIGURATOR_SECONDS: f64 = 14.3;

/// Model, cluster, tokens in and out, requests per second, seconds of a first token and between tokens.
const QUESTIONS: [(&str, &str, u32, u32, f64, f64, f64); 3] = [
    ("llama-3.1-70b", "p5en.48xlarge:2", 4000, 1000, 5.0, 0.6, 0.025),
    ("llama-3.3-70b", "p5en.48xlarge:4", 4000, 500, 20.0, 0.6, 0.025),
    ("deepseek-v3", "p5en.48xlarge:4", 2000, 500, 10.0, 2.0, 0.06),
];

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    match arguments.peer {
        Some(Peer::Aiconfigurator) => beside(arguments, catalog, console),
        None => time_searches(catalog, console),
    }
}

/// Our errors on measured rows next to the peer's.
fn beside(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let cases = match &arguments.data {
        Some(path) => ServingCases::read(&files::read_text(path)?, catalog)?,
        None => ServingCases::builtin(catalog)?,
    };
    let compared = peer::compare(&cases, &arguments.peer_python, console)?;
    if console.is_json() { console.json(&show::json(&compared)) } else { show::text(&compared, console) }
}

fn time_searches(catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let constants = ServingConstants::builtin();
    let mut measured = Vec::new();
    for (name, cluster, input, output, per_second, ttft, itl) in QUESTIONS {
        let cluster = Cluster::from_spec(cluster, catalog)?;
        let supply = Supply::of_cluster(&cluster, catalog, Purchase::OnDemand, None)?;
        let need = Need {
            model: &ServedModel::named(name)?,
            load: OfferedLoad::new(input, output, per_second),
            traced: None,
            objectives: Objectives {
                ttft: Some(picoseconds(ttft)),
                itl: Some(picoseconds(itl)),
                end_to_end: None,
            },
            constants: &constants,
            site: None,
            errors: None,
            alternatives: &[],
            options: DeployOptions { near: ServingErrors::builtin().near(), ..DeployOptions::default() },
        };
        let began = Instant::now();
        let answer = search(&need, &[supply]);
        measured.push((name, cluster.name().to_owned(), began.elapsed().as_secs_f64(), answer?));
    }
    let ratio = AICONFIGURATOR_SECONDS / measured[0].2;
    if console.is_json() {
        let questions = measured.iter().map(|(model, cluster, seconds, answer)| {
            json!({
                "model": model,
                "cluster": cluster,
                "seconds": seconds,
                "choices": answer.tried.len(),
                "replays": answer.replays,
                "best": answer.best.plan.to_string(),
            })
        });
        return console.json(&json!({
            "questions": questions.collect::<Vec<_>>(),
            "peer": { "name": "aiconfigurator 0.12.0", "cpu_s": AICONFIGURATOR_SECONDS },
            "ratio_to_peer": ratio,
        }));
    }
    console.table(&table(&measured))?;
    console.line(&format!(
        "\nthe first question took aiconfigurator 0.12.0 {AICONFIGURATOR_SECONDS} CPU-seconds: {ratio:.0} times as long"
    ))
}

fn table(measured: &[(&str, String, f64, DeployAnswer)]) -> Table {
    let mut table = Table::new(vec![
        Column::left("MODEL", 0),
        Column::left("CLUSTER", 1),
        Column::right("SECONDS", 0),
        Column::right("CHOICES", 0),
        Column::right("REPLAYS", 0),
        Column::left("BEST", 0),
    ]);
    for (model, cluster, seconds, answer) in measured {
        table.row(vec![
            (*model).to_owned(),
            cluster.clone(),
            format!("{seconds:.3}"),
            answer.tried.len().to_string(),
            answer.replays.to_string(),
            answer.best.plan.to_string(),
        ]);
    }
    table
}
