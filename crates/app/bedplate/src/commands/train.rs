//! `bedplate train config.toml`: trains a model in this process, as a rank of several, or on ranks that it starts; also what a native
//! training job runs.

mod announce;
mod choice;
mod launch;
mod layout;
mod prediction;
mod quick;
mod show;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_breakdown::{Breakdown, Predicted};
use bedplate_comm::World;
use bedplate_diag::Source;
use bedplate_document::Table;
use bedplate_host::host_name;
use bedplate_kernels::{CudaError, DeviceChoice};
use bedplate_launch::local::{
    self, ANOTHER_FAILED, RankPart, Variables, end_with_launcher, is_launched, is_told_by_another, join,
    variables,
};
use bedplate_local::host::remember_run;
use bedplate_terminal::{CliError, Console, Context, ProgramError, files, rank_span};
use bedplate_train::{
    LIST_KEYS, Membership, Published, Resume, RunOptions, RunSummary, SETTINGS_FILE, StepPlan, Telemetry,
    TrainConfig, TrainError, announce_fault,
};
use nix::sys::signal::{SigSet, Signal};
use serde_json::{Value, json};

use crate::job_file::read_expected;

use prediction::{RankPrediction, predict};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate train --quick                         a small model and corpus, trained in a minute or two
  bedplate train show quick/run --plot           loss, throughput and learning rate of a run
  bedplate train --resume quick/run              go on where a run stopped, by its own settings
  bedplate train --defaults > config.toml        every key with its default and meaning
  bedplate train config.toml
  bedplate train config.toml --set training.steps=2000 --set training.precision=bf16
  bedplate train config.toml --resume            from the newest good checkpoint
  bedplate train config.toml --resume step-40    back to step 40; later checkpoints are set aside
  bedplate train config.toml --ranks 4 --layout dp4.zero3
  bedplate train config.toml --ranks 4 --spares 1 --layout auto
  srun --ntasks 16 bedplate train config.toml --layout dp8.tp2.sp
  bedplate submit --nodes 1 --follow -- bedplate train config.toml

In a job the run goes on from its newest checkpoint by itself, and says how far it is.
Ranks are found in the variables of the cluster, srun or torchrun, or started here with
--ranks; ranks that are killed are replaced, from the memory of the others.")]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<TrainCommand>,

    /// The configuration; `docs/train.md` describes its keys
    #[arg(value_name = "CONFIG", required_unless_present_any = ["defaults", "quick", "resume"])]
    config: Option<String>,

    /// Make a small corpus and train a model of three million parameters on it, all in this folder
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, default_missing_value = "quick", conflicts_with_all = ["config", "resume"])]
    quick: Option<PathBuf>,

    /// Resume from the newest good checkpoint, or from this one (a folder or a step); later ones are set aside. Without CONFIG: go on
    /// with the run in this folder
    #[arg(long, value_name = "CHECKPOINT", num_args = 0..=1)]
    resume: Option<Option<PathBuf>>,

    /// Resume even if settings that shape the loss curve have changed
    #[arg(long)]
    accept_changes: bool,

    /// Replace a key of the configuration: `training.steps=20`
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Start this many ranks on this machine
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=256))]
    ranks: Option<u32>,

    /// Start processes that wait to replace lost ranks
    #[arg(long, value_name = "COUNT", default_value_t = 0, requires = "ranks", value_parser = clap::value_parser!(u32).range(0..=64))]
    spares: u32,

    /// How often killed ranks are started again
    #[arg(long, value_name = "COUNT", default_value_t = 3, requires = "ranks")]
    restarts: u32,

    /// How ranks share the work, such as dp4.zero3 or dp2.tp2.sp; `auto` asks the plan
    #[arg(long, value_name = "LAYOUT")]
    layout: Option<String>,

    /// What computes: `cpu`, a GPU such as `cuda:0`, or `auto`; replaces `training.device`
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceChoice>,

    /// Go on when ranks are lost, and take in new ones; ranks started here always do
    #[arg(long)]
    survive: bool,

    /// Print a configuration with every key, its default and its meaning
    #[arg(long, conflicts_with_all = ["config", "resume", "accept_changes", "set", "expected"])]
    defaults: bool,

    /// Compare steps with the prediction that `bedplate plan train --json` printed
    #[arg(long, value_name = "FILE")]
    expected: Option<String>,

    /// No progress on standard error
    #[arg(long, short)]
    quiet: bool,
}

#[derive(clap::Subcommand)]
enum TrainCommand {
    /// Show a run: how far it is, its loss, throughput and learning rate
    Show(show::Arguments),
}

pub(crate) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    if let Some(TrainCommand::Show(arguments)) = &arguments.command {
        return show::run(arguments, console);
    }
    if arguments.defaults {
        return console.text(&TrainConfig::new("config.json", "corpus").to_toml());
    }
    // Only the process that starts ranks makes what they train on.
    if let Some(folder) = arguments.quick.as_deref().filter(|_| !is_launched(&variables())) {
        quick::prepare(folder, context, console)?;
    }
    run_trainer(arguments, context, console)?;
    if let Some(folder) = &arguments.quick {
        quick::say_what_next(folder, console);
    }
    Ok(())
}

fn run_trainer(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let variables = variables();
    let stop = stop_on_signals()?;
    if let Some(count) = arguments.ranks.filter(|count| *count > 1 && !is_launched(&variables)) {
        launch::refuse_nested(count, &variables)?;
        // What is wrong with the configuration is said once, before there are ranks.
        let told = Some(&*console).filter(|_| !arguments.quiet);
        let config = read_config(arguments, context, Some(count), told)?;
        let layout = config.training.layout.filter(|_| arguments.layout.as_deref() == Some("auto"));
        return launch::run(arguments, count, layout, &config.output.folder, &stop, console);
    }
    if is_launched(&variables) {
        end_with_launcher();
    }
    let world = variables.get("WORLD_SIZE").and_then(|world| world.trim().parse().ok());
    let is_first = variables.get("RANK").is_none_or(|rank| rank.trim() == "0");
    let told = Some(&*console).filter(|_| is_first && !arguments.quiet);
    let config = read_config(arguments, context, world, told)?;
    let expected = arguments.expected.as_deref().map(read_expected).transpose()?;
    let part = join(&variables, &config.output.folder, &stop)?;
    let (world, rank) = match part {
        RankPart::NotNeeded => return not_needed(&variables),
        RankPart::Alone => (None, 0),
        RankPart::Rank(world) => {
            let rank = world.rank();
            (Some(world), rank)
        }
    };
    train(arguments, context, console, &config, expected, world, &stop)
        .map_err(|error| match is_told_by_another(&error, rank, is_launched(&variables)) {
            true => CliError::Job(ANOTHER_FAILED),
            false => error.into(),
        })
        .and_then(|summary| match summary.had_place {
            true if summary.is_first => show_summary(&summary, console),
            true => Ok(()),
            false => not_needed(&variables),
        })
}

impl Arguments {
    /// The file with the configuration: the named one, that of the quick start, or the one that the run to be resumed has left.
    fn configuration(&self) -> Result<String, CliError> {
        if let Some(path) = &self.config {
            return Ok(path.clone());
        }
        if let Some(folder) = &self.quick {
            return Ok(quick::configuration(folder).display().to_string());
        }
        let Some(folder) = self.resumed_folder() else {
            let message =
                "--resume without a configuration takes the folder of a run: `bedplate train --resume run`";
            return Err(ProgramError::Usage { message: message.to_owned() }.into());
        };
        let settings = folder.join(SETTINGS_FILE);
        if !settings.is_file() {
            let message = format!(
                "`{}` has no {SETTINGS_FILE}, which a run leaves in its folder; name the configuration: `bedplate train CONFIG --resume`",
                folder.display()
            );
            return Err(ProgramError::Usage { message }.into());
        }
        Ok(settings.display().to_string())
    }

    /// What `--resume` names where there is no configuration.
    fn resumed_folder(&self) -> Option<&Path> {
        self.resume.as_ref().filter(|_| self.config.is_none())?.as_deref()
    }

    /// The folder of a run that goes on by its own settings.
    fn own_folder(&self) -> Option<PathBuf> {
        std::path::absolute(self.resumed_folder()?).ok()
    }

    fn resume(&self, output: &Path) -> Resume {
        let newest = self.resumed_folder().map(|_| None);
        announce::resume(newest.as_ref().or(self.resume.as_ref()), output, &announce::variable)
    }
}

/// Tells which layout was chosen, and why, where one is to be.
fn read_config(
    arguments: &Arguments,
    context: &Context,
    ranks: Option<u32>,
    told: Option<&Console>,
) -> Result<TrainConfig, CliError> {
    let path = &arguments.configuration()?;
    let text = files::read_text(path)?;
    let mut changes = arguments.set.iter().map(|change| toml_line(change)).collect::<Result<Vec<_>, _>>()?;
    // A run that was moved goes on where it is.
    let moved = arguments
        .own_folder()
        .map(|folder| format!("output.folder = {}", json!(folder.display().to_string())));
    changes.extend(moved);
    changes.extend(arguments.device.map(|device| format!("training.device = \"{device}\"")));
    let read = |changes: &[String]| TrainConfig::from_toml_with(Source::new(path, &text), changes);
    if let Some(layout) = &arguments.layout {
        let asked = match layout.as_str() {
            "auto" => {
                let choice =
                    choice::choose(&read(&changes)?, context, ranks.unwrap_or(1), survives(arguments))?;
                if let Some(console) = told {
                    console.say(&format!("layout {}", choice.why));
                }
                choice.layout.to_string()
            }
            given => given.to_owned(),
        };
        changes.extend(layout::as_settings(&asked)?);
    }
    Ok(read(&changes)?)
}

/// The end of a process that had no place in the run when it was over. Its launcher must not take it for a rank that has
/// reached the end.
fn not_needed(variables: &Variables) -> Result<(), CliError> {
    if is_launched(variables) { Err(CliError::Job(ANOTHER_FAILED)) } else { Ok(()) }
}

/// The node of this process: pretended ones have a name of their own.
fn node() -> String {
    std::env::var("BEDPLATE_NODE").unwrap_or_else(|_| host_name())
}

/// Whether ranks go on without those that are lost.
fn survives(arguments: &Arguments) -> bool {
    arguments.survive || arguments.ranks.is_some() || local::survives(&variables())
}

fn train(
    arguments: &Arguments,
    context: &Context,
    console: &mut Console,
    config: &TrainConfig,
    expected: Option<Breakdown<Predicted>>,
    world: Option<World>,
    stop: &AtomicBool,
) -> Result<RunSummary, TrainError> {
    let survives = world.is_some() && survives(arguments);
    let host = predict(config, context, world.as_ref(), survives)?;
    let options = RunOptions {
        resume: arguments.resume(&config.output.folder),
        predicted: match expected {
            Some(breakdown) => {
                Some(StepPlan { breakdown, source: Some("the plan given with --expected".into()) })
            }
            None => host.as_ref().map(RankPrediction::plan),
        },
        peak: host.as_ref().and_then(|host| host.peak),
        stop: Some(stop),
        accepts_changes: arguments.accept_changes,
        free_memory: None,
        membership: survives.then(|| Membership::of(&config.output.folder).on(node())),
        ranks: world.as_ref().map(World::size),
    };
    let is_first = world.as_ref().is_none_or(|world| world.rank() == 0);
    if let Some(host) = host.as_ref().filter(|_| !arguments.quiet && is_first) {
        let step = host.breakdown.total();
        console.say(&format!("predicted: {step} a step, {} of memory", host.memory));
    }
    let report = announce::from_environment();
    if let Some(report) = report.as_ref().filter(|_| is_first) {
        announce::arguments(report, config, options.ranks.unwrap_or(1));
    }
    let mut own = config.clone();
    own.output.metrics_address = own.output.metrics_address.filter(|_| is_first);
    let mut telemetry = Telemetry::open(&own, arguments.quiet)?.announcing(report);
    let summary = rank_span().in_scope(|| bedplate_train::run_on(world, config, &options, &mut telemetry));
    if let (Err(TrainError::Device(CudaError::Fault(fault))), Some(report)) =
        (&summary, announce::from_environment())
    {
        announce_fault(&report, fault);
    }
    let summary = summary?;
    telemetry.finish();
    let is_host = host.is_some_and(|host| host.is_host);
    if summary.is_first && is_host && summary.steps >= STEPS_WORTH_REMEMBERING {
        remember_run(&config.output.folder);
    }
    if arguments.quiet && summary.is_first {
        summary.remarks.iter().for_each(|remark| console.say(remark));
    }
    Ok(summary)
}

/// A shorter run says little about the usual step.
const STEPS_WORTH_REMEMBERING: u64 = 20;

/// `key=value` as a line of TOML; what is no TOML value is taken as a text, unless it begins like a list or a quoted text. Keys that take
/// lists take `a,b` too.
fn toml_line(change: &str) -> Result<String, CliError> {
    let Some((key, value)) = change.split_once('=') else {
        let message = format!("--set takes KEY=VALUE, not `{change}`");
        return Err(ProgramError::Usage { message }.into());
    };
    let (key, value) = (key.trim(), value.trim());
    if LIST_KEYS.contains(&key) && !value.starts_with('[') {
        let quoted = |item: &str| match item.parse::<f64>() {
            Ok(_) => item.to_owned(),
            Err(_) => json!(item.trim_matches(['"', '\''])).to_string(),
        };
        let items: Vec<String> = value.split(',').map(|item| quoted(item.trim())).collect();
        return Ok(format!("{key} = [{}]", items.join(", ")));
    }
    let is_meant_as_toml = value.starts_with(['"', '\'', '[', '{']) || value.is_empty();
    let is_toml = is_meant_as_toml || Table::parse(Source::new("--set", &format!("key = {value}"))).is_ok();
    Ok(if is_toml { format!("{key} = {value}") } else { format!("{key} = {}", json!(value)) })
}

/// Set by SIGTERM and SIGINT, so that a run that is told to end leaves a checkpoint.
fn stop_on_signals() -> Result<Arc<AtomicBool>, CliError> {
    let signals = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect::<SigSet>();
    let failed = |what: String| CliError::from(ProgramError::Bug { what });
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

fn show_summary(summary: &RunSummary, console: &mut Console) -> Result<(), CliError> {
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

fn as_json(summary: &RunSummary) -> Value {
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
            ("data.corpora=chat2", "data.corpora = [\"chat2\"]"),
            ("data.corpora=\"a b\", c", "data.corpora = [\"a b\", \"c\"]"),
            ("data.weights=1,0.5", "data.weights = [1, 0.5]"),
        ] {
            assert_eq!(toml_line(given).unwrap(), line);
        }
        assert!(toml_line("steps").is_err());
    }
}
