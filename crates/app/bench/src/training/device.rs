//! `bedplate bench training --model`: steps of one shape on any device, with fresh weights.

use std::path::Path;

use bedplate_breakdown::Part;
use bedplate_diag::Source;
use bedplate_kernels::{Bf16, Device};
use bedplate_network::{Architecture, Network, Recompute};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, ProgramError, files};
use bedplate_train::{StepOutcome, TrainConfig, Trained, Trainer};
use bedplate_transformer::FlopsConvention;
use bedplate_units::Bytes;
use serde_json::{Value, json};

use super::super::kernels::models::batch;
use super::Arguments;
use super::ranks::Numbers;

/// What a step of a shape took.
struct Row {
    model: String,
    tokens: usize,
    fastest: StepOutcome,
    /// Of the trainer's buffers.
    held: Bytes,
    /// Of a GPU: all that the process took of its memory, scratch included.
    taken: Option<Bytes>,
    flops: f64,
}

pub(super) fn run(arguments: &Arguments, model: &str, console: &mut Console) -> Result<(), CliError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let device = arguments.device.open(threads)?;
    if arguments.precision() == Numbers::Fp8 && !device.has_fp8() && !device.is_cpu() {
        let message = "this GPU has no products of fp8 (Hopper has, with cuBLASLt 12.9 or later)".to_owned();
        return Err(ProgramError::Usage { message }.into());
    }
    let instructions = device.instructions();
    let row = match arguments.precision() {
        Numbers::F32 => measure::<f32>(arguments, model, device)?,
        Numbers::Bf16 | Numbers::Fp8 => measure::<Bf16>(arguments, model, device)?,
    };
    if console.is_json() {
        return console.json(&as_json(&row, &instructions));
    }
    console.line(&instructions)?;
    show(&row, console)
}

fn architecture(model: &str) -> Result<Architecture, CliError> {
    if Path::new(model).extension().is_none_or(|extension| extension != "json") {
        return Ok(Architecture::from_shape(bedplate_transformer::builtin(model)?)?);
    }
    let text = files::read_text(model)?;
    Ok(Architecture::from_config(Source::new(model, &text))?)
}

fn measure<E: Trained>(arguments: &Arguments, model: &str, device: Device) -> Result<Row, CliError> {
    let (sequence, sequences) = (arguments.sequence, arguments.sequences);
    let architecture = architecture(model)?;
    let shape = architecture.transformer.clone();
    let per_token = shape.flops_per_token(sequence as u64, FlopsConvention::default());
    let mut config = TrainConfig::new("config.json", "corpus");
    config.data.sequence = sequence;
    config.training.micro_batch = sequences as u64;
    config.training.batch = sequences as u64;
    config.training.precision = arguments.precision().of_training();
    config.training.recompute = if arguments.recompute { Recompute::Full } else { Recompute::None };
    let batches = vec![batch(shape.vocab as usize, sequences, sequence)];
    let free = device.free_memory();
    let network = Network::new(&device, architecture, sequence)?;
    let mut trainer = Trainer::<E>::new(network, device, config)?;
    let mut fastest = trainer.step(&batches)?;
    for round in 0..arguments.rounds.max(1) {
        let outcome = trainer.step(&batches)?;
        if round == 0 || outcome.seconds < fastest.seconds {
            fastest = outcome;
        }
    }
    let left = trainer.device().free_memory();
    Ok(Row {
        model: model.to_owned(),
        tokens: sequences * sequence,
        held: trainer.memory(),
        taken: free.zip(left).map(|(free, left)| Bytes::new(free.saturating_sub(left) as f64)),
        flops: per_token.training().get() * (sequences * sequence) as f64,
        fastest,
    })
}

fn show(row: &Row, console: &mut Console) -> Result<(), CliError> {
    let columns = ["MODEL", "TOKENS", "STEP", "TOKENS/S", "TFLOP/S", "HELD", "TAKEN"];
    let mut table = Table::new(columns.into_iter().map(|name| Column::left(name, 0)).collect());
    let seconds = row.fastest.seconds.get();
    table.row(vec![
        row.model.clone(),
        row.tokens.to_string(),
        format!("{:.1} ms", 1e3 * seconds),
        format!("{:.0}", row.tokens as f64 / seconds),
        format!("{:.1}", row.flops / seconds / 1e12),
        row.held.to_string(),
        row.taken.map_or_else(|| "-".to_owned(), |taken| taken.to_string()),
    ]);
    console.table(&table)?;
    let parts: Vec<String> = parts(row).map(|(part, ms)| format!("{part} {ms:.1} ms")).collect();
    console.line(&parts.join(", "))
}

/// Parts that took any time, in milliseconds.
fn parts(row: &Row) -> impl Iterator<Item = (&'static str, f64)> {
    let of = |part: Part| (part.name(), 1e3 * row.fastest.breakdown[part].exposed.get());
    Part::ALL.into_iter().map(of).filter(|(_, ms)| *ms > 0.0)
}

fn as_json(row: &Row, instructions: &str) -> Value {
    let seconds = row.fastest.seconds.get();
    json!({
        "device": instructions,
        "model": row.model,
        "tokens": row.tokens,
        "loss": row.fastest.loss,
        "step_s": seconds,
        "tokens_per_s": row.tokens as f64 / seconds,
        "flops": row.flops / seconds,
        "held_bytes": row.held.get(),
        "taken_bytes": row.taken.map(Bytes::get),
        "parts_ms": parts(row).map(|(part, ms)| (part.to_owned(), json!(ms))).collect::<serde_json::Map<_, _>>(),
    })
}
