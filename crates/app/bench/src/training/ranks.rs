//! `bedplate bench training --ranks 2,4`: layouts against one process with all threads, and against PyTorch.
//!
//! Every rank set takes turns with the one process, so that what else runs here slows both. The fastest step of each counts.

use std::path::{Path, PathBuf};
use std::process::Command;

use bedplate_comm::LocalRendezvous;
use bedplate_layout::Layout;
use bedplate_local::host::host_entry;
use bedplate_local::host_run;
use bedplate_local::{Machine, machine};
use bedplate_perf::{PredictedStep, predict_on_host};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, Context, ProgramError};
use bedplate_train::{Precision, TrainConfig};
use serde_json::{Value, json};

use super::Arguments;
use crate::comm::peers::torch;
use crate::comm::rank_set::{Folder, RankSet, RankSetError};
use crate::kernels::models::architecture;

/// What every rank set trains.
pub(super) struct Question;

impl Question {
    pub(super) const SEQUENCE: usize = 256;
    pub(super) const BATCH: usize = 8;
    pub(super) const MICRO_BATCH: usize = 2;
    pub(super) const VOCAB: usize = 12_000;
}

/// A Llama with 25 million parameters.
pub(super) const MODEL: &str = r#""model_type": "llama", "hidden_size": 512, "intermediate_size": 1408,
    "num_hidden_layers": 6, "num_attention_heads": 8, "vocab_size": 12000, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": true"#;

const LAYOUTS: [&str; 6] = ["dp{}", "dp{}.zero1", "dp{}.zero2", "dp{}.zero3", "tp{}", "pp{}"];
const PEERS: [&str; 2] = ["ddp", "fsdp"];
const RATE: &str = "0.0003";
const LOSSES: usize = 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Peer {
    /// DDP and FSDP2 over Gloo
    Torch,
}

/// What is computed with; weights and moments are kept in f32.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Numbers {
    F32,
    Bf16,
    /// bf16 with linear layers that multiply in fp8
    Fp8,
}

impl Numbers {
    fn name(self) -> &'static str {
        self.of_training().name()
    }

    pub(super) fn of_training(self) -> Precision {
        match self {
            Numbers::F32 => Precision::F32,
            Numbers::Bf16 => Precision::Bf16,
            Numbers::Fp8 => Precision::Fp8,
        }
    }
}

pub(super) fn config(numbers: Numbers) -> TrainConfig {
    let mut config = TrainConfig::new("config.json", "corpus");
    config.training.precision = numbers.of_training();
    config.data.sequence = Question::SEQUENCE;
    config.training.micro_batch = Question::MICRO_BATCH as u64;
    config.training.batch = Question::BATCH as u64;
    config
}

/// One rank set beside the one process.
struct Row {
    ranks: u32,
    name: String,
    is_ours: bool,
    /// Its fastest step over that of the one process.
    relative: f64,
    /// Its fastest step over the prediction, where this host was measured.
    predicted: Option<f64>,
    /// The same of the one process in the same turns: how far the host has drifted since it was measured.
    drift: Option<f64>,
}

impl Row {
    /// Positive when the prediction is too long.
    fn error(&self) -> Option<f64> {
        self.predicted.map(|over| 1.0 / over - 1.0)
    }

    /// The same where the host is as fast as the one process finds it.
    fn error_beside_one(&self) -> Option<f64> {
        self.predicted.zip(self.drift).map(|(over, drift)| drift / over - 1.0)
    }
}

pub(super) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    if arguments.precision() == Numbers::Fp8 {
        let message =
            "ranks share a processor, which has no fp8: `--precision fp8` is for --model".to_owned();
        return Err(ProgramError::Usage { message }.into());
    }
    let python = match arguments.peer {
        Some(Peer::Torch) => Some(torch(arguments.peer_python.as_deref(), console)?),
        None => None,
    };
    if arguments.parity {
        return parity(arguments, python.as_deref(), console);
    }
    let load = machine::load();
    let numbers = arguments.precision();
    let mut alone = ours(&Layout::ONE, numbers, None)?;
    let mut rows = Vec::new();
    for ranks in &arguments.ranks {
        for layout in layouts(arguments, *ranks)? {
            console.say(&format!("{layout} on {ranks} ranks"));
            let (own, one) = turns(&mut ours(&layout, numbers, None)?, &mut alone, arguments.rounds)?;
            let over = |layout: &Layout, seconds: f64| {
                predict(layout, numbers, context).map(|step| seconds / step.seconds().get())
            };
            let (predicted, drift) = (over(&layout, own), over(&Layout::ONE, one));
            rows.push(Row {
                ranks: *ranks,
                name: layout.to_string(),
                is_ours: true,
                relative: own / one,
                predicted,
                drift,
            });
        }
        for kind in PEERS {
            let Some(python) = &python else { continue };
            console.say(&format!("{kind} on {ranks} ranks"));
            let (own, one) =
                turns(&mut theirs(python, kind, *ranks, numbers, None)?, &mut alone, arguments.rounds)?;
            let name = format!("torch {kind}");
            rows.push(Row {
                ranks: *ranks,
                name,
                is_ours: false,
                relative: own / one,
                predicted: None,
                drift: None,
            });
        }
    }
    if console.is_json() {
        return console.json(&as_json(&rows, load));
    }
    show(&rows, load, console)
}

fn layouts(arguments: &Arguments, ranks: u32) -> Result<Vec<Layout>, CliError> {
    if !arguments.layout.is_empty() {
        return Ok(arguments
            .layout
            .iter()
            .copied()
            .filter(|layout| layout.world() == u64::from(ranks))
            .collect());
    }
    let parse = |text: &str| text.replace("{}", &ranks.to_string()).parse::<Layout>();
    Ok(LAYOUTS.into_iter().map(parse).collect::<Result<Vec<_>, _>>()?)
}

fn predict(layout: &Layout, numbers: Numbers, context: &Context) -> Option<PredictedStep> {
    let host = host_entry(context.load_catalog().ok().as_ref())?;
    let model = architecture(MODEL, Question::SEQUENCE).transformer;
    let mut config = config(numbers);
    config.training.layout = Some(*layout);
    predict_on_host(&model, &host, &host_run(&config, layout.world() as u32, false)).ok()
}

/// The fastest step of a rank set and of the one process, in seconds.
fn turns(rank_set: &mut RankSet, alone: &mut RankSet, rounds: usize) -> Result<(f64, f64), RankSetError> {
    const STEPS: usize = 2;
    let (mut own, mut one) = (f64::INFINITY, f64::INFINITY);
    for round in 0..rounds.max(1) + 1 {
        for (rank_set, fastest) in [(&mut *rank_set, &mut own), (&mut *alone, &mut one)] {
            let answers = rank_set.ask(&format!("step {STEPS}"))?;
            let times = slowest(rank_set, &answers)?;
            // Buffers are made in the first round.
            if round > 0 {
                *fastest = times.into_iter().fold(*fastest, f64::min);
            }
        }
    }
    Ok((1e-9 * own, 1e-9 * one))
}

/// The numbers of the ranks' answers, each the largest of all ranks.
fn slowest(rank_set: &RankSet, answers: &[String]) -> Result<Vec<f64>, RankSetError> {
    let mut found: Vec<f64> = Vec::new();
    for answer in answers {
        let failed = || rank_set.failed(format!("answered `{answer}`"));
        let words = answer.strip_prefix("ok ").ok_or_else(failed)?;
        let numbers: Result<Vec<f64>, _> = words.split_whitespace().map(str::parse).collect();
        let numbers = numbers.map_err(|_| failed())?;
        found.resize(numbers.len(), f64::NEG_INFINITY);
        found.iter_mut().zip(numbers).for_each(|(most, number)| *most = most.max(number));
    }
    Ok(found)
}

fn threads(ranks: u32) -> u32 {
    (Machine::this().cores / ranks).max(1)
}

fn ours(layout: &Layout, numbers: Numbers, weights: Option<&Path>) -> Result<RankSet, RankSetError> {
    let start = |source| RankSetError::Start { what: "a rank".to_owned(), source };
    let (meeting, ranks) = (LocalRendezvous::here().map_err(start)?, layout.world() as u32);
    RankSet::start(&format!("bedplate, {layout}"), ranks, |socket| {
        let program = std::env::current_exe().map_err(start)?;
        let command = |rank| {
            let mut command = Command::new(&program);
            command.args(["training-rank", "--socket"]).arg(socket);
            command.args(["--layout", &layout.to_string(), "--threads", &threads(ranks).to_string()]);
            command.args(["--precision", numbers.name()]);
            if let Some(weights) = weights {
                command.arg("--weights").arg(weights);
            }
            meeting.tell(&mut command, rank, ranks);
            command.env("BEDPLATE_COMM_JOIN", "120");
            command
        };
        Ok((0..ranks).map(command).collect())
    })
}

fn theirs(
    python: &Path,
    kind: &str,
    ranks: u32,
    numbers: Numbers,
    weights: Option<&Path>,
) -> Result<RankSet, RankSetError> {
    let start = |source| RankSetError::Start { what: kind.to_owned(), source };
    let meeting = LocalRendezvous::here().map_err(start)?;
    let asked = json!({
        "kind": kind, "hidden": 512, "inner": 1408, "heads": 8, "layers": 6, "vocab": Question::VOCAB,
        "sequence": Question::SEQUENCE, "batch": Question::BATCH,
        // A rank's share may be less than what one process computes at once.
        "micro_batch": Question::MICRO_BATCH.min(Question::BATCH / ranks as usize),
        "threads": threads(ranks), "weights": weights, "precision": numbers.name(),
    });
    RankSet::start(&format!("torch {kind}"), ranks, |socket| {
        let command = |rank| {
            let mut command = Command::new(python);
            command.args(["-c", include_str!("torch_ranks.py")]).arg(socket).arg(asked.to_string());
            meeting.tell(&mut command, rank, ranks);
            command.env("GLOO_SOCKET_IFNAME", "lo").env("OMP_NUM_THREADS", threads(ranks).to_string());
            command
        };
        Ok((0..ranks).map(command).collect())
    })
}

/// The same weights and data on both sides: the largest difference of twenty losses.
fn parity(arguments: &Arguments, python: Option<&Path>, console: &mut Console) -> Result<(), CliError> {
    let Some(python) = python else {
        let message = "--parity needs --peer torch".to_owned();
        return Err(ProgramError::Usage { message }.into());
    };
    let folder = Folder::make()?;
    let weights: PathBuf = folder.path().join("first.safetensors");
    let order = format!("losses{}", format!(" {RATE}").repeat(LOSSES));
    let mut found = Vec::new();
    for ranks in &arguments.ranks {
        for (kind, layout) in [("ddp", format!("dp{ranks}")), ("fsdp", format!("dp{ranks}.zero3"))] {
            console.say(&format!("{kind} and {layout}"));
            let mut rank_set = theirs(python, kind, *ranks, arguments.precision(), Some(&weights))?;
            let answers = rank_set.ask(&order)?;
            let expected = slowest(&rank_set, &answers)?;
            drop(rank_set);
            let mut rank_set = ours(&layout.parse::<Layout>()?, arguments.precision(), Some(&weights))?;
            let answers = rank_set.ask(&order)?;
            let losses = slowest(&rank_set, &answers)?;
            let off = |(a, b): (&f64, &f64)| (a - b).abs();
            let largest = losses.iter().zip(&expected).map(off).fold(0.0, f64::max);
            found.push((*ranks, kind, layout, largest, losses));
        }
    }
    if console.is_json() {
        let each = |(ranks, kind, layout, largest, losses): &(u32, &str, String, f64, Vec<f64>)| json!({"ranks": ranks, "peer": kind, "layout": layout, "largest_difference": largest, "losses": losses});
        return console.json(&Value::Array(found.iter().map(each).collect()));
    }
    let columns = ["RANKS", "PEER", "LAYOUT", "FIRST LOSS", "LAST LOSS", "LARGEST DIFFERENCE"];
    let mut table = Table::new(columns.into_iter().map(|name| Column::left(name, 0)).collect());
    for (ranks, kind, layout, largest, losses) in &found {
        let loss = |loss: Option<&f64>| format!("{:.5}", loss.copied().unwrap_or(f64::NAN));
        table.row(vec![
            ranks.to_string(),
            (*kind).to_owned(),
            layout.clone(),
            loss(losses.first()),
            loss(losses.last()),
            format!("{largest:.1e}"),
        ]);
    }
    console.table(&table)
}

fn best_peer(rows: &[Row], ranks: u32) -> Option<f64> {
    let peers = rows.iter().filter(|row| !row.is_ours && row.ranks == ranks);
    peers.map(|row| row.relative).min_by(f64::total_cmp)
}

fn show(rows: &[Row], load: Option<f64>, console: &mut Console) -> Result<(), CliError> {
    let mut table = Table::new(vec![
        Column::right("RANKS", 0),
        Column::left("LAYOUT", 0),
        Column::right("TOKENS/S TO ONE PROCESS", 0),
        Column::right("COST", 0),
        Column::right("PREDICTED OFF BY", 0),
        Column::right("BESIDE ONE PROCESS", 0),
        Column::right("TO THE FASTER OF TORCH", 1),
    ]);
    let none = || "-".to_owned();
    for row in rows {
        let peer = best_peer(rows, row.ranks).filter(|_| row.is_ours);
        table.row(vec![
            row.ranks.to_string(),
            row.name.clone(),
            format!("{:.2}x", 1.0 / row.relative),
            format!("{:+.0} %", 100.0 * (row.relative - 1.0)),
            row.error().map_or_else(none, |error| format!("{:+.0} %", 100.0 * error)),
            row.error_beside_one().map_or_else(none, |error| format!("{:+.0} %", 100.0 * error)),
            peer.map_or_else(none, |peer| format!("{:.2}x", peer / row.relative)),
        ]);
    }
    console.table(&table)?;
    let cores = Machine::this().cores;
    let load = load.map_or_else(String::new, |load| format!(" Load before the run: {load:.1} processes."));
    console.line(&format!(
        "\nOne process computes on {cores} threads, ranks share them; a step has {} tokens on all of them.{load}",
        Question::BATCH * Question::SEQUENCE
    ))
}

fn as_json(rows: &[Row], load: Option<f64>) -> Value {
    let row = |row: &Row| {
        json!({
            "ranks": row.ranks,
            "layout": row.name,
            "is_ours": row.is_ours,
            "cost": row.relative - 1.0,
            "prediction_error": row.error(),
            "prediction_error_beside_one_process": row.error_beside_one(),
            "to_torch": best_peer(rows, row.ranks).filter(|_| row.is_ours).map(|peer| peer / row.relative),
        })
    };
    json!({ "rows": rows.iter().map(row).collect::<Vec<_>>(), "cores": Machine::this().cores, "load": load })
}
