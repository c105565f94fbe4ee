//! `bedplate job render --for slurm FILE`: a job file as a script for another scheduler.

use bedplate_job::Remark;
use bedplate_job::sbatch::{Setting, render};
use serde_json::{Value, json};

use crate::commands::submit::read_file;
use crate::console::Console;
use crate::stop::Stop;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate job render --for slurm job.toml
  bedplate job render --for slurm job.toml | sbatch

The script goes to standard output. Notes on standard error name each key that
Slurm has no word for. What cannot be left out without changing the job is an
error. A batch script is printed as it is.")]
pub(super) struct Arguments {
    /// A job file (TOML or JSON) or a batch script; `-` reads standard input
    file: String,
    /// For which scheduler
    #[arg(long = "for", value_name = "SCHEDULER")]
    scheduler: Scheduler,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Scheduler {
    /// A script for sbatch
    Slurm,
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), Stop> {
    let Scheduler::Slurm = arguments.scheduler;
    let (job, _) = read_file(&arguments.file)?;
    let rendered = render(&job)?;
    if console.is_json() {
        let remarks: Vec<Value> = rendered.remarks.iter().map(remark).collect();
        let options: Vec<Value> = rendered.options.iter().map(option).collect();
        return console.json(&json!({ "script": rendered.script, "options": options, "remarks": remarks }));
    }
    for remark in &rendered.remarks {
        console.say(&format!("note: {remark}"));
    }
    console.text(&rendered.script)
}

fn remark(remark: &Remark) -> Value {
    json!({ "key": remark.option, "text": remark.text })
}

fn option((name, value): &Setting) -> Value {
    json!({ "option": name, "value": value })
}
