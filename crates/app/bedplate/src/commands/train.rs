//! `bedplate train config.toml`: trains a model in this process; also what a native training job runs.

mod announce;
mod prediction;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_diag::Source;
use bedplate_document::Table;
use bedplate_train::{Published, RunOptions, Summary, Telemetry, TrainConfig};
use nix::sys::signal::{SigSet, Signal};
use serde_json::{Value, json};

use crate::commands::submit::expected;
use crate::console::Console;
use crate::context::Context;
use crate::files;
use crate::stop::{ProgramError, Stop};

pub(crate) use prediction::host_run;
use prediction::predict;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate train --defaults > config.toml        every key with its default and meaning
  bedplate train config.toml
  bedplate train config.toml --set training.steps=2000 --set training.precision=bf16
  bedplate train config.toml --resume            from the newest good checkpoint
  bedplate train config.toml --resume step-40    back to step 40; later checkpoints are set aside
  bedplate submit --nodes 1 --follow -- bedplate train config.toml

In a job the run goes on from its newest checkpoint by itself, and says how far it is.")]
pub(crate) struct Arguments {
    /// The configuration; `docs/train.md` describes its keys
    #[arg(value_name = "CONFIG", required_unless_present = "defaults")]
    config: Option<String>,

    /// Go on from the newest good checkpoint, or from this one (a folder or a step), setting aside what came after it
    #[arg(long, value_name = "CHECKPOINT", num_args = 0..=1)]
    resume: Option<Option<PathBuf>>,

    /// Resume although settings have changed that shape the loss curve
    #[arg(long)]
    accept_changes: bool,

    /// Replace a key of the configuration: `training.steps=20`
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Print a configuration with every key, its default and its meaning
    #[arg(long, conflicts_with_all = ["config", "resume", "accept_changes", "set", "expected"])]
    defaults: bool,

    /// Hold steps against the prediction that `bedplate plan train --json` printed
    #[arg(long, value_name = "FILE")]
    expected: Option<String>,

    /// No progress on standard error
    #[arg(long, short)]
    quiet: bool,
}

pub(crate) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), Stop> {
    if arguments.defaults {
        return console.text(&TrainConfig::new("config.json", "corpus").to_toml());
    }
    announce::refuse_many_ranks(&announce::variable)?;
    let path = arguments.config.as_deref().unwrap_or_default();
    let text = files::read_text(path)?;
    let changes = arguments.set.iter().map(|change| toml_line(change)).collect::<Result<Vec<_>, _>>()?;
    let config = TrainConfig::from_toml_with(Source::new(path, &text), &changes)?;
    let host = predict(&config, context)?;
    let expected = arguments.expected.as_deref().map(expected::read).transpose()?;
    let stop = stop_on_signals()?;
    let options = RunOptions {
        resume: announce::resume(arguments.resume.as_ref(), &config.output.folder, &announce::variable),
        predicted: expected.or(host.as_ref().map(|host| host.breakdown)),
        peak: host.as_ref().and_then(|host| host.peak),
        stop: Some(&stop),
        accepts_changes: arguments.accept_changes,
        free_memory: None,
    };
    if let Some(host) = host.as_ref().filter(|_| !arguments.quiet) {
        let step = host.breakdown.total();
        console.say(&format!("predicted: {step} a step, {} of memory", host.memory));
    }
    let mut telemetry = Telemetry::open(&config, arguments.quiet)?.announcing(announce::from_environment());
    let summary = bedplate_train::run(&config, &options, &mut telemetry)?;
    telemetry.finish();
    if arguments.quiet {
        summary.remarks.iter().for_each(|remark| console.say(remark));
    }
    show(&summary, console)
}

/// `key=value` as a line of TOML; what is no TOML value is taken as a text, unless it begins like a list or a quoted text.
fn toml_line(change: &str) -> Result<String, Stop> {
    let Some((key, value)) = change.split_once('=') else {
        let message = format!("--set takes KEY=VALUE, not `{change}`");
        return Err(ProgramError::Usage { message }.into());
    };
    let (key, value) = (key.trim(), value.trim());
    let is_meant_as_toml = value.starts_with(['"', '\'', '[', '{']) || value.is_empty();
    let is_toml = is_meant_as_toml || Table::parse(Source::new("--set", &format!("key = {value}"))).is_ok();
    Ok(if is_toml { format!("{key} = {value}") } else { format!("{key} = {}", json!(value)) })
}

/// Set by SIGTERM and SIGINT, so that a run that is told to end leaves a checkpoint.
fn stop_on_signals() -> Result<Arc<AtomicBool>, Stop> {
    let signals = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect::<SigSet>();
    let failed = |what: String| Stop::from(ProgramError::Bug { what });
    signals.thread_block().map_err(|error| failed(format!("cannot block signals: {error}")))?;
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let wait = move || {
        let _ = signals.wait();
        flag.store(true, Ordering::Relaxed);
        // The second one ends the program at once.
        let _ = signals.thread_unblock();
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(wait)
        .map_err(|error| failed(format!("cannot start a thread: {error}")))?;
    Ok(stop)
}

fn show(summary: &Summary, console: &mut Console) -> Result<(), Stop> {
    if console.is_json() {
        return console.json(&as_json(summary));
    }
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.4}"));
    console.line(&format!("steps        {}", summary.steps))?;
    console.line(&format!("loss         {}", number(summary.loss)))?;
    if summary.evaluation_loss.is_some() {
        console.line(&format!("held-out     {}", number(summary.evaluation_loss)))?;
    }
    if let Some(Published { path, .. }) = &summary.checkpoint {
        console.line(&format!("checkpoint   {}", path.display()))?;
    }
    match &summary.weights {
        Some(path) => console.line(&format!("weights      {}", path.display())),
        None => {
            console.say("stopped before the last step; go on with --resume");
            Ok(())
        }
    }
}

fn as_json(summary: &Summary) -> Value {
    json!({
        "steps": summary.steps,
        "was_stopped": summary.was_stopped,
        "loss": summary.loss,
        "evaluation_loss": summary.evaluation_loss,
        "checkpoint": summary.checkpoint.as_ref().map(|checkpoint| &checkpoint.path),
        "weights": summary.weights,
        "remarks": summary.remarks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_need_no_quotes() {
        for (given, line) in [
            ("training.steps=20", "training.steps = 20"),
            ("training.precision=bf16", "training.precision = \"bf16\""),
            ("training.precision=\"bf16\"", "training.precision = \"bf16\""),
            ("data.document_mask=false", "data.document_mask = false"),
            ("output.metrics_address=0.0.0.0:9999", "output.metrics_address = \"0.0.0.0:9999\""),
            ("output.folder=2026-runs/a", "output.folder = \"2026-runs/a\""),
            ("optimizer.learning_rate=1e-3", "optimizer.learning_rate = 1e-3"),
            ("output.folder=\"open", "output.folder = \"open"),
            ("output.folder=/tmp/x y", "output.folder = \"/tmp/x y\""),
            ("data.corpora=[\"a\"]", "data.corpora = [\"a\"]"),
        ] {
            assert_eq!(toml_line(given).unwrap(), line);
        }
        assert!(toml_line("steps").is_err());
    }
}
