//! `bedplate submit FILE`, or `bedplate submit --nodes 2 -- COMMAND`: gives the cluster a job.

mod options;
mod wait;

use bedplate_diag::{Diagnostic, Page, pages};
use bedplate_drivers::{Submitted, new_submission_key, surround};
use bedplate_job::sbatch::Draft;
use bedplate_job::{Imported, Job, Remark};
use bedplate_terminal::{CliError, Console, ProgramError, files};
use serde_json::{Value, json};

use crate::connection::Connection;
use crate::job_file::{expected_in, read_expected, refuse_flaws};
use options::SbatchOptions;

pub(crate) use wait::{follow, wait_for};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate submit job.toml
  bedplate submit train.sbatch --time 2:00:00 --follow
  bedplate submit --nodes 2 --gpus-per-node 8 -- torchrun train.py
  bedplate submit --array 0-9 --wait -- python evaluate.py
  bedplate submit job.toml --dry-run
  bedplate submit jobset.yaml --dry-run      a manifest as a job file

The number of the job goes to standard output; with --follow the output of rank
0 does, and the number goes to standard error. The job gets the variables and
the folder of the user who submits it, as with sbatch. With --wait and --follow
the exit code is that of the job.")]
pub(crate) struct Arguments {
    /// A job file (TOML or JSON), a batch script with #SBATCH lines or a manifest of Kubernetes; `-` reads standard input
    file: Option<String>,
    /// Return when the job has ended, with its exit code
    #[arg(short = 'W', long)]
    wait: bool,
    /// Show what rank 0 writes until the job has ended, then return its exit code
    #[arg(short, long)]
    follow: bool,
    /// Print the job as a job file, and submit nothing
    #[arg(long)]
    dry_run: bool,
    /// Attach the prediction that `bedplate plan train --json` printed; a script with the line of `plan train --launch` has it
    #[arg(long, value_name = "FILE")]
    expected: Option<String>,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    options: SbatchOptions,
    /// The command, started once for each task
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
#[error("nothing to run: neither a file nor a command was given")]
struct NothingToRun;

pages! { pub(crate) PAGES "submit":
    NOTHING "nothing" Usage
        "A submission needs a job file, a batch script, or a command behind `--`."
        "see the examples in `bedplate submit --help`"
}

impl Diagnostic for NothingToRun {
    fn page(&self) -> &'static Page {
        &NOTHING
    }
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let (mut job, remarks) = read(arguments)?;
    if let Some(path) = &arguments.expected {
        job.expected = Some(read_expected(path)?);
    }
    refuse_flaws(&job)?;
    if arguments.dry_run {
        return show(&job, &remarks, console);
    }
    let driver = arguments.connection.driver()?;
    surround(&mut job, &*driver);
    for remark in &remarks {
        console.say(&format!("note: {remark}"));
    }
    let submitted = driver.submit(&job, &new_submission_key())?;
    console.say_notes(driver.remarks());
    report(&submitted, arguments, console)?;
    match (arguments.follow, arguments.wait) {
        (true, _) => follow(&*driver, &submitted, console),
        (_, true) => wait_for(&*driver, &submitted, console),
        _ => Ok(()),
    }
}

fn report(submitted: &Submitted, arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    for remark in &submitted.remarks {
        console.say(&format!("note: {}", remark.as_str().map_or_else(|| remark.to_string(), str::to_owned)));
    }
    if console.is_json() {
        // One document: with --wait the end of the job is it.
        return if arguments.wait || arguments.follow { Ok(()) } else { console.json(&json!(submitted)) };
    }
    if arguments.follow {
        console.say(&format!("job {}", submitted.label));
        return Ok(());
    }
    if submitted.count > 1 {
        console.say(&format!("an array of {} jobs", submitted.count));
    }
    console.line(&submitted.label)
}

/// The job that the command line describes, without what surrounds it.
fn read(arguments: &Arguments) -> Result<(Job, Vec<Remark>), CliError> {
    let options = &arguments.options;
    let Some(path) = &arguments.file else {
        if arguments.command.is_empty() && !options.has("wrap") {
            return Err(NothingToRun.into());
        }
        let imported = Job::from_options(&options.given, arguments.command.clone())?;
        return Ok((imported.job, imported.remarks));
    };
    if !arguments.command.is_empty() {
        let message = "give either a file or a command behind `--`, not both".to_owned();
        return Err(ProgramError::Usage { message }.into());
    }
    let text = files::read_text(path)?;
    let expected = expected_in(&text);
    if text.starts_with("#!") {
        let mut draft = Draft::from_script(&text, path)?;
        for (option, value) in &options.given {
            draft.apply(option, value.as_deref())?;
        }
        let Imported { mut job, remarks } = draft.finish()?;
        job.expected = job.expected.or(expected);
        return Ok((job, remarks));
    }
    let Imported { mut job, remarks } = Job::from_file(&text, path)?;
    job.expected = job.expected.or(expected);
    options.apply_to_file(&mut job)?;
    Ok((job, remarks))
}

fn show(job: &Job, remarks: &[Remark], console: &mut Console) -> Result<(), CliError> {
    if console.is_json() {
        let remarks: Vec<Value> = remarks
            .iter()
            .map(|remark| json!({ "option": remark.option, "line": remark.line, "text": remark.text }))
            .collect();
        return console.json(&json!({ "job": job.to_json(), "remarks": remarks }));
    }
    for remark in remarks {
        console.say(&format!("note: {remark}"));
    }
    console.text(&job.to_toml())
}
