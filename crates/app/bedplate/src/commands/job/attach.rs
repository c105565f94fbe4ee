//! `bedplate job attach JOB`: a shell beside a running rank, with its variables and in its folder.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use bedplate_diag::{Class, Diagnostic, Page};
use bedplate_drivers::JobId;
use bedplate_local::machine::{self, MARK, Process};
use bedplate_local::variable;
use bedplate_terminal::{CliError, Console};

use crate::connection::Connection;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate job attach 12
  bedplate job attach 12 --rank 3
  bedplate job attach 12 -- nvidia-smi

The shell sees the rank's variables (CUDA_VISIBLE_DEVICES, RANK, …) and
folder. It is not part of the job: it has none of its limits, and ends when you
end it.")]
pub(crate) struct Arguments {
    /// The number of the job
    job: JobId,
    /// Beside which rank
    #[arg(short, long, default_value_t = 0)]
    rank: u32,
    /// Run this instead of a shell
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, thiserror::Error)]
enum AttachError {
    #[error("no process of rank {rank} of job {job} was found on this machine")]
    NotHere { job: JobId, rank: u32, address: Option<String> },
    #[error("cannot start `{program}`")]
    Start { program: String, source: std::io::Error },
}

pub(crate) const PAGES: &[&Page] = &[&NOT_HERE, &START];

static NOT_HERE: Page = Page {
    code: "attach/not-here",
    class: Class::User,
    meaning: "A shell can only be opened beside a process on this machine. The rank runs elsewhere, has ended, or belongs to another user.",
    remedy: "look with `bedplate job show` whether the job runs, and log in to its node first",
};
static START: Page = Page {
    code: "attach/start",
    class: Class::User,
    meaning: "The rank was found, but the shell or command could not be started in its folder with its variables.",
    remedy: "name a program that exists on this machine: `bedplate job attach JOB -- /bin/sh`",
};

impl Diagnostic for AttachError {
    fn page(&self) -> &'static Page {
        match self {
            AttachError::NotHere { .. } => &NOT_HERE,
            AttachError::Start { .. } => &START,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            AttachError::NotHere { job, rank, address: Some(address) } => Some(format!(
                "the rank runs at {address}: log in there and run `bedplate job attach {job} --rank {rank}`"
            )),
            _ => None,
        }
    }
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let driver = arguments.connection.driver()?;
    let job = driver.job(&arguments.job)?.summary;
    let places = driver.ranks(&arguments.job)?;
    let place = places.iter().find(|place| place.rank == arguments.rank);
    let is_here = place.is_some_and(|place| place.address.starts_with("127."));
    let Some(process) = wait_for(&job.id, arguments.rank, if is_here { STARTING } else { Duration::ZERO })
    else {
        let address = place.map(|place| format!("{} ({})", place.node, place.address));
        return Err(AttachError::NotHere { job: arguments.job.clone(), rank: arguments.rank, address }.into());
    };
    let node = place.map_or(String::new(), |place| format!(" on {}", place.node));
    console
        .say(&format!("beside rank {} of job {}{node}, process {}", arguments.rank, job.label, process.pid));
    Err(replace_by(&process, &arguments.command).into())
}

/// How long a rank of this machine may take to be there once its job is said to run.
const STARTING: Duration = Duration::from_secs(5);

fn wait_for(job: &JobId, rank: u32, patience: Duration) -> Option<Process> {
    let began = Instant::now();
    loop {
        let found = find(job, rank);
        if found.is_some() || began.elapsed() >= patience {
            return found;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The first process that the rank started.
fn find(job: &JobId, rank: u32) -> Option<Process> {
    machine::processes_with(MARK).into_iter().find(|process| {
        let is_of_job = process.variable(MARK).is_some_and(|mark| is_of(mark, job));
        is_of_job && process.variable("RANK") == Some(rank.to_string().as_str())
    })
}

/// Whether a marker (`JOB.RUN` and more) names this job.
fn is_of(mark: &str, job: &JobId) -> bool {
    mark.split('.').next() == Some(job.as_str())
}

/// Becomes the shell; returns only when that failed.
fn replace_by(process: &Process, command: &[String]) -> AttachError {
    let shell = vec![variable("SHELL").unwrap_or_else(|| "/bin/sh".to_owned())];
    let words = if command.is_empty() { &shell } else { command };
    let mut replacement = Command::new(&words[0]);
    replacement.args(&words[1..]).env_clear().envs(&process.environment);
    // A shell that carried the mark would be ended with the job.
    replacement.env_remove(MARK);
    for name in ["TERM", "HOME", "SHELL", "LANG"] {
        if let Some(value) = variable(name) {
            replacement.env(name, value);
        }
    }
    if let Some(directory) = &process.directory {
        replacement.current_dir(directory);
    }
    // With the job's variables goes the job's user: a library to preload there must not be loaded as root.
    if let Some((uid, gid)) = process.user().filter(|(uid, _)| *uid != nix::unistd::geteuid().as_raw()) {
        replacement.uid(uid).gid(gid);
    }
    let source = replacement.exec();
    AttachError::Start { program: words[0].clone(), source }
}

#[cfg(test)]
mod tests {
    use super::is_of;

    #[test]
    fn a_mark_names_its_job() {
        assert!(is_of("12.1@n1", &"12".into()) && is_of("12", &"12".into()));
        assert!(!is_of("121.1@n1", &"12".into()) && !is_of("x", &"12".into()));
    }
}
