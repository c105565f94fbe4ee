//! `bedplate bench training`: predicted and measured steps of six models on this host; with `--ranks`, of layouts.

mod device;
pub(super) mod rank;
mod ranks;

use std::path::PathBuf;

use bedplate_breakdown::{Breakdown, Measured, Part, Predicted};
use bedplate_catalog::Accelerator;
use bedplate_diag::{Diagnostic, Page};
use bedplate_kernels::{Bf16, Device, DeviceChoice};
use bedplate_layout::Layout;
use bedplate_local::host::host_entry;
use bedplate_local::host_run;
use bedplate_network::{Network, Recompute};
use bedplate_perf::{PredictedStep, predict_on_host};
use bedplate_terminal::benchmarks::NOT_MEASURED;
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, Context, ProgramError};
use bedplate_train::{Precision, TrainConfig, Trained, Trainer};
use bedplate_units::Bytes;
use serde_json::{Value, json};

use super::kernels::models::{architecture, batch};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate bench machine && bedplate bench training
  bedplate bench training --rounds 10 --json
  bedplate bench machine && bedplate bench comm --save && bedplate bench training --ranks 2,4
  bedplate bench training --ranks 2 --layout dp2,dp2.zero3 --peer torch
  bedplate bench training --ranks 4 --precision bf16 --peer torch
  bedplate bench training --ranks 2 --peer torch --parity
  bedplate bench training --device cuda:0 --model llama-3.2-1b --sequences 8 --precision bf16

The prediction is `plan train`'s, from the rates that `bench machine` measured;
a step is forward, backward, clipping and AdamW. Memory is what the run
allocates for state and activations.

With --ranks, layouts train a model of 25 million parameters in turns with one
process that has all threads, at the same global batch; COST is how much longer
their step takes. BESIDE ONE PROCESS is the prediction's error without the
error of the one process in the same turns, because shared hosts drift after
`bench machine`. Peers train the same shapes with as many threads.

With --model, it trains one shape on any device with fresh weights and predicts
nothing. TAKEN is the GPU memory that the process took.")]
pub(super) struct Arguments {
    /// Steps per model, of which the fastest counts
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Compare layouts on this many ranks with one process; several numbers in turn
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: Vec<u32>,
    /// Layouts instead of dp, zero1, zero2, zero3, tp and pp
    #[arg(long, value_name = "LAYOUTS", value_delimiter = ',', requires = "ranks")]
    layout: Vec<Layout>,
    /// What the ranks or the model compute with [default: f32]; the peer then computes with it too, by autocast or FSDP's mixed precision
    #[arg(long, value_enum)]
    precision: Option<ranks::Numbers>,
    /// Also measure another program
    #[arg(long, value_enum, requires = "ranks")]
    peer: Option<ranks::Peer>,
    /// A Python with torch
    #[arg(long, value_name = "PATH", requires = "peer")]
    peer_python: Option<PathBuf>,
    /// Train a built-in shape, or that of a config.json, instead of the six models
    #[arg(long, value_name = "MODEL", conflicts_with = "ranks")]
    model: Option<String>,
    /// What trains the model: `cpu`, a GPU such as `cuda:0`, or `auto`: the first GPU, or the processor if there is none
    #[arg(long, value_name = "DEVICE", default_value_t, requires = "model")]
    device: DeviceChoice,
    /// Tokens of a sequence of the model
    #[arg(long, value_name = "TOKENS", default_value_t = 2048, requires = "model")]
    sequence: usize,
    /// Sequences of a step of the model
    #[arg(long, value_name = "N", default_value_t = 8, requires = "model")]
    sequences: usize,
    /// Keep only the inputs of the model's layers, and compute them again
    #[arg(long, requires = "model")]
    recompute: bool,
    /// Instead of times, compare twenty losses from the same weights and data
    #[arg(long, requires = "peer")]
    parity: bool,
}

impl Arguments {
    fn precision(&self) -> ranks::Numbers {
        self.precision.unwrap_or(ranks::Numbers::F32)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("this host has not been measured, so nothing can be predicted for it")]
struct NotMeasured;

impl Diagnostic for NotMeasured {
    fn page(&self) -> &'static Page {
        &NOT_MEASURED
    }
}

/// A model, how it is computed, and how many tokens at once.
struct Shape {
    name: &'static str,
    model: &'static str,
    sequence: usize,
    sequences: usize,
    precision: Precision,
    recompute: Recompute,
}

const LLAMA: Shape = Shape {
    name: "llama 25M",
    model: r#""model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 6,
        "num_attention_heads": 8, "vocab_size": 12000, "tie_word_embeddings": true"#,
    sequence: 512,
    sequences: 4,
    precision: Precision::F32,
    recompute: Recompute::None,
};

const SHAPES: [Shape; 6] = [
    LLAMA,
    Shape { precision: Precision::Bf16, recompute: Recompute::Full, ..LLAMA },
    Shape {
        name: "qwen3 12M",
        model: r#""model_type": "qwen3", "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8,
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "vocab_size": 16000,
            "tie_word_embeddings": true"#,
        sequence: 256,
        sequences: 8,
        precision: Precision::F32,
        recompute: Recompute::Cheap,
    },
    Shape {
        name: "mixtral 30M",
        model: r#""model_type": "mixtral", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6,
            "num_attention_heads": 8, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
            "vocab_size": 8000, "tie_word_embeddings": false"#,
        ..LLAMA
    },
    Shape {
        name: "gpt2 40M",
        model: r#""model_type": "gpt2", "n_embd": 512, "n_layer": 8, "n_head": 8, "n_positions": 1024,
            "vocab_size": 30000"#,
        sequence: 1024,
        sequences: 1,
        ..LLAMA
    },
    Shape {
        name: "llama 100M",
        model: r#""model_type": "llama", "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
            "num_attention_heads": 12, "vocab_size": 20000, "tie_word_embeddings": true"#,
        sequences: 2,
        ..LLAMA
    },
];

struct Row {
    shape: &'static Shape,
    predicted: f64,
    measured: f64,
    parts: (Breakdown<Predicted>, Breakdown<Measured>),
    planned: Bytes,
    held: Bytes,
}

impl Row {
    /// The error of the prediction relative to the measured step.
    fn error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }
}

pub(super) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    if !arguments.ranks.is_empty() {
        return ranks::run(arguments, context, console);
    }
    if let Some(model) = &arguments.model {
        return device::run(arguments, model, console);
    }
    if arguments.precision.is_some() {
        let message = "--precision is for --ranks or --model: the six models have theirs".to_owned();
        return Err(ProgramError::Usage { message }.into());
    }
    let host = host_entry(context.load_catalog().ok().as_ref()).ok_or(NotMeasured)?;
    let mut rows = Vec::new();
    for shape in &SHAPES {
        console.say(&format!("{} in {}", shape.name, shape.precision.name()));
        rows.push(match shape.precision {
            Precision::F32 => measure::<f32>(shape, &host, arguments.rounds)?,
            Precision::Bf16 | Precision::Fp8 => measure::<Bf16>(shape, &host, arguments.rounds)?,
        });
    }
    if console.is_json() {
        return console.json(&Value::Array(rows.iter().map(as_json).collect()));
    }
    show(&rows, console)
}

fn measure<E: Trained>(shape: &'static Shape, host: &Accelerator, rounds: usize) -> Result<Row, CliError> {
    let config = config(shape);
    let architecture = architecture(shape.model, shape.sequence);
    let PredictedStep { time, memory, .. } =
        predict_on_host(&architecture.transformer, host, &host_run(&config, 1, false))?;
    let vocab = architecture.transformer.vocab as usize;
    let batches = vec![batch(vocab, shape.sequences, shape.sequence)];
    let threads = host.measured.as_ref().map_or(1, |measured| measured.threads as usize);
    let device = Device::cpu(threads);
    let network = Network::new(&device, architecture, shape.sequence)?;
    let mut trainer = Trainer::<E>::new(network, device, config)?;
    let mut fastest = trainer.step(&batches)?;
    for round in 0..rounds.max(1) {
        let outcome = trainer.step(&batches)?;
        if round == 0 || outcome.seconds < fastest.seconds {
            fastest = outcome;
        }
    }
    let predicted = time.total().get();
    Ok(Row {
        shape,
        predicted,
        measured: fastest.seconds.get(),
        parts: (time, fastest.breakdown),
        planned: memory.total(),
        held: trainer.memory(),
    })
}

fn config(shape: &Shape) -> TrainConfig {
    let mut config = TrainConfig::new("config.json", "corpus");
    config.data.sequence = shape.sequence;
    config.training.micro_batch = shape.sequences as u64;
    config.training.batch = shape.sequences as u64;
    config.training.precision = shape.precision;
    config.training.recompute = shape.recompute;
    config
}

fn show(rows: &[Row], console: &mut Console) -> Result<(), CliError> {
    let mut table = Table::new(vec![
        Column::left("MODEL", 0),
        Column::left("IN", 0),
        Column::left("RECOMPUTE", 1),
        Column::right("TOKENS", 1),
        Column::right("PREDICTED", 0),
        Column::right("MEASURED", 0),
        Column::right("OFF BY", 0),
        Column::right("PLANNED", 1),
        Column::right("HELD", 1),
    ]);
    for row in rows {
        table.row(vec![
            row.shape.name.into(),
            row.shape.precision.name().into(),
            format!("{:?}", row.shape.recompute).to_lowercase(),
            (row.shape.sequence * row.shape.sequences).to_string(),
            format!("{:.0} ms", 1e3 * row.predicted),
            format!("{:.0} ms", 1e3 * row.measured),
            format!("{:+.0} %", 100.0 * row.error()),
            row.planned.to_string(),
            row.held.to_string(),
        ]);
    }
    console.table(&table)?;
    let worst = rows.iter().map(|row| row.error().abs()).fold(0.0, f64::max);
    console.line(&format!("\nthe worst prediction is off by {:.0} %; the aim is 20 %", 100.0 * worst))
}

fn as_json(row: &Row) -> Value {
    json!({
        "model": row.shape.name,
        "precision": row.shape.precision.name(),
        "recompute": format!("{:?}", row.shape.recompute).to_lowercase(),
        "tokens": row.shape.sequence * row.shape.sequences,
        "predicted_ms": 1e3 * row.predicted,
        "measured_ms": 1e3 * row.measured,
        "error": row.error(),
        "parts_ms": Part::ALL
            .into_iter()
            .map(|part| {
                let (predicted, measured) = (row.parts.0[part].exposed, row.parts.1[part].exposed);
                (part.name().to_owned(), json!([1e3 * predicted.get(), 1e3 * measured.get()]))
            })
            .filter(|(_, pair)| pair != &json!([0.0, 0.0]))
            .collect::<serde_json::Map<_, _>>(),
        "planned_bytes": row.planned.get(),
        "held_bytes": row.held.get(),
    })
}
