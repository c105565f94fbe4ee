//! `bedplate checkpoint show PATH`

use bedplate_checkpoint::{Checkpoint, Listed, Look};
use bedplate_terminal::present::{Column, Facts, Table};
use bedplate_terminal::{CliError, Console};
use bedplate_units::{Bytes, Count, Seconds};
use serde_json::{Value, json};

use super::{age, told};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate checkpoint show run
  bedplate checkpoint show run/checkpoints/step-00000100 --tensors
  bedplate checkpoint show s3://bucket/run --json

Only manifests are read; `bedplate checkpoint verify` reads every byte.")]
pub(crate) struct Arguments {
    /// A checkpoint, a folder or prefix with checkpoints, or the output folder of a run
    place: String,
    /// List every tensor of a checkpoint
    #[arg(long)]
    tensors: bool,
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    match Look::at(&arguments.place)? {
        Look::One(checkpoint) if console.is_json() => console.json(&one_json(&checkpoint, true)),
        Look::One(checkpoint) => show_one(&checkpoint, arguments.tensors, console),
        Look::Many(listed) if console.is_json() => {
            console.json(&Value::Array(listed.iter().map(listed_json).collect()))
        }
        Look::Many(listed) => show_many(&listed, console),
    }
}

fn show_one(checkpoint: &Checkpoint, has_tensors: bool, console: &mut Console) -> Result<(), CliError> {
    let (facts, manifest) = (checkpoint.facts(), checkpoint.manifest());
    let mut shown = Facts::default();
    shown.add("step", facts.step.to_string());
    shown.add("samples", facts.samples.to_string());
    shown.add("written by", facts.layout.clone());
    shown.add("age", Seconds::new(age(checkpoint)).to_string());
    shown.add("size", Bytes::new(manifest.bytes() as f64).to_string());
    let (files, chunks) = (manifest.files().count(), manifest.chunks());
    shown.add("files", format!("{files}, with {chunks} checksums"));
    for (part, (tensors, numbers)) in parts(checkpoint) {
        shown.add(&part, format!("{tensors} tensors, {} numbers", Count(numbers)));
    }
    shown.add_known("model", facts.model.as_ref().and_then(|model| model.get("model_type")?.as_str()));
    console.text(&format!("{}\n{}", checkpoint.place(), shown.render(console.width())))?;
    if !has_tensors {
        return Ok(());
    }
    console.line("")?;
    let mut table =
        Table::new(vec![Column::left("TENSOR", 0), Column::right("ROWS", 0), Column::right("COLUMNS", 0)]);
    for (name, [rows, columns]) in manifest.tensors() {
        table.row(vec![name.clone(), rows.to_string(), columns.to_string()]);
    }
    console.table(&table)
}

/// Tensors and numbers of each part of the state.
fn parts(checkpoint: &Checkpoint) -> std::collections::BTreeMap<String, (usize, u64)> {
    let mut parts = std::collections::BTreeMap::new();
    for (name, [rows, columns]) in checkpoint.manifest().tensors() {
        let part = name.split_once('/').map_or("others", |(part, _)| part);
        let (tensors, numbers) = parts.entry(part.to_owned()).or_insert((0, 0));
        *tensors += 1;
        *numbers += (rows * columns) as u64;
    }
    parts
}

fn show_many(listed: &[Listed], console: &mut Console) -> Result<(), CliError> {
    let mut table = Table::new(vec![
        Column::right("STEP", 0),
        Column::right("SIZE", 0),
        Column::right("FILES", 1),
        Column::left("LAYOUT", 1),
        Column::right("AGE", 0),
        Column::left("PLACE", 0),
    ]);
    for Listed { place, opened } in listed {
        table.row(match opened {
            Ok(checkpoint) => vec![
                checkpoint.facts().step.to_string(),
                Bytes::new(checkpoint.manifest().bytes() as f64).to_string(),
                checkpoint.manifest().files().count().to_string(),
                checkpoint.facts().layout.clone(),
                Seconds::new(age(checkpoint)).to_string(),
                place.clone(),
            ],
            Err(_) => {
                let blank = || "-".to_owned();
                vec![blank(), blank(), blank(), blank(), blank(), place.clone()]
            }
        });
    }
    console.table(&table)?;
    for Listed { opened, .. } in listed {
        if let Err(error) = opened {
            console.say(&format!("note: {}", told(error)));
        }
    }
    Ok(())
}

fn listed_json(listed: &Listed) -> Value {
    match &listed.opened {
        Ok(checkpoint) => one_json(checkpoint, false),
        Err(error) => json!({"place": listed.place, "flaw": told(error)}),
    }
}

fn one_json(checkpoint: &Checkpoint, has_tensors: bool) -> Value {
    let (facts, manifest) = (checkpoint.facts(), checkpoint.manifest());
    let files: Vec<Value> =
        manifest.files().map(|(file, bytes)| json!({"file": file, "bytes": bytes})).collect();
    let mut shown = json!({
        "place": checkpoint.place(),
        "step": facts.step,
        "samples": facts.samples,
        "layout": facts.layout,
        "written_s": manifest.written,
        "age_s": age(checkpoint),
        "bytes": manifest.bytes(),
        "checksums": manifest.chunks(),
        "files": files,
        "settings": facts.settings,
    });
    if has_tensors {
        shown["tensors"] = json!(manifest.tensors());
    }
    shown
}
