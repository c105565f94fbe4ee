//! `bedplate diagnose`: what slowed or stopped a job, from its logs and records.

use std::path::PathBuf;

use bedplate_diagnose::{Diagnosis, diagnose};
use bedplate_evidence::{Gathered, RAS_ADDRESS, ask_ras, gather, stack_of};
use bedplate_logs::Recognizer;
use bedplate_report::Expectation;
use bedplate_terminal::present::now_ms;
use bedplate_terminal::{CliError, Console, Context, files, verdicts};
use bedplate_units::Seconds;

use crate::connection::Connection;
use crate::diagnosing;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate diagnose 12
  bedplate diagnose slurm-4711.out
  bedplate diagnose logs/ dumps/ dmesg.txt
  bedplate diagnose --running --expected 2.1s train.log
  kubectl logs trainer-0 | bedplate diagnose -
  bedplate diagnose --ras
  bedplate diagnose --process 4711 --process 4712
  bedplate diagnose logs/ --html report.html
  bedplate diagnose logs/ --json | jq '.verdicts[0]'

It reads logs of some thirty trainers and servers (`bedplate watch --formats`),
kernel logs, NCCL's messages, dumps of PyTorch's flight recorder, packed by gzip
or zstd or not. See docs/diagnose.md. Exits with 1 when something firm is
found, with 0 when the job is healthy as far as can be seen.")]
pub(crate) struct Arguments {
    /// The number of a job, or logs, flight records, folders of them; `-` reads standard input
    #[arg(value_name = "JOB|PATH", required_unless_present_any = ["from_logs", "ras", "process"])]
    inputs: Vec<PathBuf>,
    /// A folder of logs and records, the same as naming it
    #[arg(long, value_name = "FOLDER")]
    from_logs: Vec<PathBuf>,
    /// Ask NCCL's RAS which ranks hold up a job that runs on this node
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = RAS_ADDRESS)]
    ras: Option<String>,
    /// Look where a rank's process on this host stands; once for each rank
    #[arg(long = "process", value_name = "PID")]
    process: Vec<u32>,
    /// The job should be running now: silence is a stall
    #[arg(long)]
    running: bool,
    /// How long a step should take, from a plan
    #[arg(long, value_name = "TIME")]
    expected: Option<Seconds>,
    /// How many ranks the job has, if its logs do not tell
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    ranks: Option<u32>,
    /// Also recognise formats and signatures of your own
    #[arg(long, value_name = "FILE")]
    own: Vec<String>,
    /// Write a report with pictures
    #[arg(long, value_name = "FILE")]
    html: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let recognizer = diagnosing::recognizer(&arguments.own)?;
    let (diagnosis, gathered) = match diagnosing::named_job(&arguments.inputs) {
        Some(id) if arguments.from_logs.is_empty() => {
            let driver = arguments.connection.driver()?;
            diagnosing::job::judge(&id, &*driver, &recognizer, context)?
        }
        _ => of_files(arguments, &recognizer)?,
    };
    if let Some(path) = &arguments.html {
        files::write_text(path, &verdicts::html(&diagnosis, &gathered, &recognizer))?;
        console.say(&format!("wrote {path}"));
    }
    diagnosing::show(&diagnosis, &gathered, console)?;
    match diagnosis.verdicts.iter().any(|verdict| verdict.is_firm) {
        true => Err(CliError::Refused),
        false => Ok(()),
    }
}

fn of_files(arguments: &Arguments, recognizer: &Recognizer) -> Result<(Diagnosis, Gathered), CliError> {
    let inputs: Vec<PathBuf> = arguments.inputs.iter().chain(&arguments.from_logs).cloned().collect();
    let mut gathered = gather(&inputs, recognizer, &mut |_| {})?;
    gathered.case.ranks = arguments.ranks;
    gathered.case.expected = arguments.expected.map(|step| Expectation::said(step.get(), "--expected"));
    if arguments.running {
        gathered.case.now = Some(now_ms() as f64 / 1000.0);
    }
    let mut notes = Vec::new();
    if let Some(address) = &arguments.ras {
        match ask_ras(address)? {
            (_, true) => {
                notes.push(format!("the ranks that RAS at {address} knows go on: their counts grow"))
            }
            (ras, false) => gathered.case.records.extend(ras.records()),
        }
    }
    for process in &arguments.process {
        gathered.case.stacks.push(stack_of(*process)?);
    }
    let mut diagnosis = diagnose(&gathered.case, recognizer);
    diagnosis.notes.extend(notes);
    Ok((diagnosis, gathered))
}
