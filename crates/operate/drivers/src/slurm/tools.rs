//! Slurm by its own commands.
//!
//! Every call has a deadline, and what a command prints has an end. Commands run without the caller's variables, because
//! `SQUEUE_STATES` and its relatives change what they print.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bedplate_supervise::{CommandEnd, CommandFailure, run};
use serde_json::Value;

use super::complaint::Complaint;
use super::error::SlurmError;
use super::job::JobRecord;
use super::node::{NodeRecord, pair};
use super::site::{self, Partition, Qos, Share};
use super::table;
use super::transport::{Ability, HistoryQuery, SlurmTransport, Submission};
use crate::{DriverError, JobId, JobOrder};

/// Variables by which Slurm's commands find a cluster. A token is not among them: they show who they are by munge, and
/// `srun` fails in a job that inherits one.
const KEPT: [&str; 8] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LD_LIBRARY_PATH",
    "SLURM_CONF",
    "SLURM_CONF_SERVER",
    "SLURM_CLUSTERS",
];
/// Without these Slurm cannot be driven.
const NEEDED: [&str; 4] = ["sbatch", "squeue", "scontrol", "scancel"];
/// Accounting looks through years of jobs.
const SLOW: u32 = 3;
/// Slurm takes no number of seconds below for a moment.
pub(super) const EARLIEST_S: u64 = 1_000_000;

pub(super) struct Tools {
    /// Instead of the usual `slurm.conf`.
    configuration: Option<PathBuf>,
    patience: Duration,
    /// `squeue` prints no JSON.
    is_plain: AtomicBool,
}

impl Tools {
    pub(super) fn new(configuration: Option<PathBuf>, patience: Duration) -> Self {
        Self { configuration, patience, is_plain: AtomicBool::new(false) }
    }

    /// Prints tables instead of JSON, as old versions do.
    pub(super) fn plain(self) -> Self {
        self.is_plain.store(true, Ordering::Relaxed);
        self
    }

    /// The first of its commands that is not on the path.
    pub(super) fn missing() -> Option<&'static str> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
        NEEDED.into_iter().find(|name| !folders.iter().any(|folder| folder.join(name).is_file()))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().envs(KEPT.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        if let Some(path) = &self.configuration {
            command.env("SLURM_CONF", path);
        }
        command.env("SLURM_TIME_FORMAT", "%s").env("LC_ALL", "C").current_dir("/");
        command
    }

    fn ended(
        &self,
        program: &str,
        command: &mut Command,
        input: &str,
        patience: Duration,
    ) -> Result<CommandEnd, DriverError> {
        run(command, input, patience).map_err(|error| match error {
            CommandFailure::Failed(source) => {
                SlurmError::Command { program: program.to_owned(), source }.into()
            }
            CommandFailure::TooSlow => {
                let what = format!("slurmctld, asked with `{program}`,");
                SlurmError::TooSlow { what, seconds: patience.as_secs() }.into()
            }
            CommandFailure::TooLong => {
                let reason = "it is longer than any of Slurm's can be".to_owned();
                SlurmError::NotUnderstood { what: format!("`{program}`"), reason }.into()
            }
        })
    }

    /// What a command prints; its complaint otherwise.
    fn ask(&self, program: &str, arguments: &[&str]) -> Result<Result<String, String>, DriverError> {
        let ended = self.ended(program, self.command(program).args(arguments), "", self.patience)?;
        Ok(answer(ended))
    }

    /// The same where every complaint is an error.
    fn must(&self, program: &str, arguments: &[&str]) -> Result<String, DriverError> {
        self.ask(program, arguments)?.map_err(|complaint| error_of(&complaint))
    }

    /// Accounting: `None` where there is none.
    fn account(&self, program: &str, arguments: &[&str]) -> Result<Option<String>, DriverError> {
        let patience = self.patience * SLOW;
        let ended = match self.ended(program, self.command(program).args(arguments), "", patience) {
            Err(DriverError::Slurm(SlurmError::TooSlow { seconds, .. })) => {
                let message = format!("`{program}` has not answered within {seconds} s");
                return Err(SlurmError::Accounting { message }.into());
            }
            other => other?,
        };
        match answer(ended) {
            Ok(text) => Ok(Some(text)),
            Err(complaint) => match Complaint::of(&complaint) {
                Complaint::NoAccounting => Ok(None),
                Complaint::Accounting | Complaint::Controller => {
                    Err(SlurmError::Accounting { message: last_line(&complaint) }.into())
                }
                other => Err(other.error(last_line(&complaint))),
            },
        }
    }

    fn queue(&self, arguments: &[&str]) -> Result<Result<Vec<JobRecord>, String>, DriverError> {
        let format = table::queue_format();
        let mut all = vec!["--noheader", "--all", "--states=all", "--Format", &format];
        all.extend(arguments);
        let text = match self.ask("squeue", &all)? {
            Ok(text) => text,
            Err(complaint) => return Ok(Err(complaint)),
        };
        table::read_queue(&text).map(Ok).map_err(|reason| not_understood("squeue", reason))
    }

    fn queue_json(&self) -> Result<Option<Vec<JobRecord>>, DriverError> {
        let text = match self.ask("squeue", &["--json", "--all", "--states=all"])? {
            Ok(text) => text,
            // Old versions know no `--json`, and some builds have no plugin that writes it.
            Err(complaint)
                if ["option", "json", "serializer", "plugin"].iter().any(|word| complaint.contains(word)) =>
            {
                return Ok(None);
            }
            Err(complaint) => return Err(error_of(&complaint)),
        };
        let value: Value = serde_json::from_str(&text)
            .map_err(|error| not_understood("squeue --json", error.to_string()))?;
        let jobs = value["jobs"]
            .as_array()
            .ok_or_else(|| not_understood("squeue --json", "it lists no jobs".into()))?;
        Ok(Some(jobs.iter().filter_map(JobRecord::from_json).collect()))
    }

    fn lines<T>(&self, arguments: &[&str], read: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, DriverError> {
        let text = self.must("scontrol", arguments)?;
        Ok(text.lines().filter_map(read).collect())
    }
}

/// Several of Slurm's commands end with 0 and an error, or print to one stream what belongs to the other.
fn answer(ended: CommandEnd) -> Result<String, String> {
    let CommandEnd { status, output, complaint } = ended;
    let complains = complaint.lines().any(|line| line.contains("error:") || line.contains("Problem talking"));
    match status.success() && !complains {
        true => Ok(output),
        false if complaint.is_empty() && output.trim().is_empty() => Err(format!("it ended with {status}")),
        false if complaint.is_empty() => Err(output.trim().to_owned()),
        false => Err(complaint),
    }
}

/// Of several lines the last that complains, without the name of the command before it.
fn last_line(text: &str) -> String {
    let complains = |line: &&str| line.contains("error:") || line.contains("fatal:");
    let line = text.lines().rev().find(complains).or(text.lines().last()).unwrap_or_default();
    let after =
        ["error: ", "fatal: "].iter().filter_map(|word| line.split_once(word)).map(|(_, rest)| rest).next();
    after.unwrap_or(line).to_owned()
}

fn error_of(complaint: &str) -> DriverError {
    Complaint::of(complaint).error(last_line(complaint))
}

fn not_understood(what: &str, reason: String) -> DriverError {
    SlurmError::NotUnderstood { what: format!("`{what}`"), reason }.into()
}

impl SlurmTransport for Tools {
    fn name(&self) -> String {
        "Slurm's commands".to_owned()
    }

    fn can(&self, _ability: Ability) -> bool {
        true
    }

    fn version(&self) -> Result<String, DriverError> {
        // `sinfo --version` would not ask the controller.
        let text = self.must("scontrol", &["show", "config"])?;
        let version = pair_of_config(&text, "SLURM_VERSION");
        version.ok_or_else(|| not_understood("scontrol show config", "it names no version".into()))
    }

    fn cluster_name(&self) -> Result<String, DriverError> {
        let text = self.must("scontrol", &["show", "config"])?;
        Ok(pair_of_config(&text, "ClusterName").unwrap_or_default())
    }

    fn jobs(&self) -> Result<Vec<JobRecord>, DriverError> {
        if !self.is_plain.load(Ordering::Relaxed) {
            if let Some(jobs) = self.queue_json()? {
                return Ok(jobs);
            }
            self.is_plain.store(true, Ordering::Relaxed);
        }
        self.queue(&[])?.map_err(|complaint| error_of(&complaint))
    }

    fn job(&self, id: &JobId) -> Result<Vec<JobRecord>, DriverError> {
        let mut jobs = match self.queue(&["--jobs", id.as_str()])? {
            Ok(jobs) => jobs,
            Err(complaint) => match Complaint::of(&complaint) {
                Complaint::NoSuchJob => return Ok(Vec::new()),
                other => return Err(other.error(last_line(&complaint))),
            },
        };
        // Only `scontrol` tells which devices a job has, and on what it depends.
        if let [job] = jobs.as_mut_slice()
            && let Ok(text) = self.ask("scontrol", &["--details", "show", "job", id.as_str()])?
        {
            job.devices = devices_by_node(&text, &job.nodes);
            job.dependency = pair(&text, "Dependency").filter(|text| text != "(null)").unwrap_or_default();
        }
        Ok(jobs)
    }

    fn history(&self, query: &HistoryQuery) -> Result<Option<Vec<JobRecord>>, DriverError> {
        let format = format!("--format={}", table::HISTORY.join(","));
        let delimiter = format!("--delimiter={}", table::SEPARATOR);
        let since = format!("--starttime=uts{}", query.since_s.max(EARLIEST_S));
        let mut arguments =
            vec!["--parsable2", "--noheader", "--allocations", "--duplicates", &format, &delimiter];
        let named =
            |option: &str, value: &Option<String>| value.as_ref().map(|value| format!("--{option}={value}"));
        let job = query.job.as_ref().map(|job| format!("--jobs={job}"));
        let filters =
            [named("user", &query.user), named("accounts", &query.account), named("name", &query.name)];
        match &job {
            Some(job) => arguments.push(job),
            None => arguments.push(&since),
        }
        if query.user.is_none() {
            arguments.push("--allusers");
        }
        arguments.extend(filters.iter().flatten().map(String::as_str));
        let Some(text) = self.account("sacct", &arguments)? else { return Ok(None) };
        table::read_history(&text).map(Some).map_err(|reason| not_understood("sacct", reason))
    }

    fn submit(&self, submission: &Submission) -> Result<u64, DriverError> {
        let mut command = self.command("sbatch");
        let own: Vec<_> = command
            .get_envs()
            .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
            .collect();
        // The job's variables, and what sbatch needs itself; the times that we ask for are no business of the job.
        command.env_clear().envs(&submission.environment);
        command.envs(own.into_iter().filter(|(name, _)| {
            name.to_str().is_some_and(|name| name.starts_with("SLURM_") && name != "SLURM_TIME_FORMAT")
        }));
        if !submission.environment.contains_key("PATH")
            && let Some(path) = std::env::var_os("PATH")
        {
            command.env("PATH", path);
        }
        command.args(["--parsable", "--export=ALL"]).arg(format!("--comment={}", submission.comment));
        if Path::new(&submission.directory).is_dir() {
            command.current_dir(&submission.directory);
        }
        let ended = self.ended("sbatch", &mut command, &submission.script, self.patience)?;
        let text = match answer(ended) {
            Ok(text) => text,
            Err(complaint) => return Err(submission_refused(&complaint)),
        };
        // `12`, or `12;cluster`.
        let number = text.trim().split(';').next().and_then(|number| number.parse().ok());
        number.ok_or_else(|| not_understood("sbatch --parsable", bedplate_diag::shown(&text)))
    }

    fn order(&self, id: &JobId, order: JobOrder) -> Result<(), DriverError> {
        let (program, arguments) = match order {
            JobOrder::Cancel => ("scancel", vec![id.as_str()]),
            // The owner may release what an administrator holds in this way.
            JobOrder::Hold => ("scontrol", vec!["uhold", id.as_str()]),
            JobOrder::Release => ("scontrol", vec!["release", id.as_str()]),
            JobOrder::Requeue => ("scontrol", vec!["requeue", id.as_str()]),
        };
        self.must(program, &arguments).map(drop)
    }

    fn nodes(&self) -> Result<Vec<NodeRecord>, DriverError> {
        self.lines(&["--oneliner", "--details", "show", "nodes"], NodeRecord::from_line)
    }

    fn node(&self, name: &str) -> Result<Option<NodeRecord>, DriverError> {
        match self.ask("scontrol", &["--oneliner", "--details", "show", "node", name])? {
            Ok(text) => Ok(text.lines().find_map(NodeRecord::from_line)),
            Err(complaint) => match Complaint::of(&complaint) {
                Complaint::NoSuchNode => Ok(None),
                other => Err(other.error(last_line(&complaint))),
            },
        }
    }

    fn set_node(&self, name: &str, reason: Option<&str>) -> Result<(), DriverError> {
        let node = format!("nodename={name}");
        match reason {
            Some(reason) => {
                let reason = format!("reason={reason}");
                self.must("scontrol", &["update", &node, "state=drain", &reason])
            }
            None => self.must("scontrol", &["update", &node, "state=resume"]),
        }
        .map(drop)
    }

    fn partitions(&self) -> Result<Vec<Partition>, DriverError> {
        self.lines(&["--oneliner", "show", "partitions"], Partition::from_line)
    }

    fn topology(&self) -> Result<Option<String>, DriverError> {
        // Slurm without switches complains, or prints nothing.
        let text = self.ask("scontrol", &["show", "topology"])?.unwrap_or_default();
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| line.contains("Name=")).collect();
        Ok((!lines.is_empty()).then(|| lines.join("\n") + "\n"))
    }

    fn qos(&self) -> Result<Option<Vec<Qos>>, DriverError> {
        let format = format!("format={}", site::QOS.join(","));
        let text = self.account("sacctmgr", &["--noheader", "--parsable2", "show", "qos", &format])?;
        Ok(text.map(|text| text.lines().filter_map(Qos::from_row).collect()))
    }

    fn shares(&self) -> Result<Option<Vec<Share>>, DriverError> {
        let format = format!("--format={}", site::SHARE.join(","));
        let text = self.account("sshare", &["--noheader", "--parsable2", "--all", &format])?;
        Ok(text.map(|text| text.lines().filter_map(Share::from_row).collect()))
    }
}

/// `KEY   = value` in the output of `scontrol show config`.
fn pair_of_config(text: &str, key: &str) -> Option<String> {
    let mut pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned())
}

/// The refusals of sbatch are Slurm's decision about the job, not our trouble.
fn submission_refused(complaint: &str) -> DriverError {
    let sentence = last_line(complaint);
    match Complaint::of(complaint) {
        Complaint::Other | Complaint::NoSuchJob | Complaint::NoSuchNode | Complaint::HasEnded => {
            super::complaint::refused(
                "refused",
                sentence.trim_start_matches("Batch job submission failed: ").to_owned(),
            )
        }
        other => other.error(sentence.to_owned()),
    }
}

/// From lines such as `Nodes=n[1-2] CPU_IDs=0-1 Mem=0 GRES=gpu:h100:8(IDX:0-7)`, one entry for each node.
fn devices_by_node(text: &str, nodes: &[String]) -> Vec<String> {
    let mut devices = vec![String::new(); nodes.len()];
    for line in text.lines().map(str::trim).filter(|line| line.starts_with("Nodes=")) {
        let gres = pair(line, "GRES").unwrap_or_default();
        for name in super::job::node_names(&pair(line, "Nodes").unwrap_or_default()) {
            if let Some(at) = nodes.iter().position(|node| *node == name) {
                devices[at].clone_from(&gres);
            }
        }
    }
    devices
}

/// Why Slurm's commands do not work here.
pub(super) fn missing_error(program: &str) -> DriverError {
    let source = io::Error::from(io::ErrorKind::NotFound);
    SlurmError::Command { program: program.to_owned(), source }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_told_by_node() {
        let text = "   JOB_GRES=gpu:h100:16\n     Nodes=n1 CPU_IDs=0-1 Mem=0 GRES=gpu:h100:4(IDX:0-3)\n     Nodes=n[2-3] CPU_IDs=0 Mem=0 GRES=gpu:h100:8(IDX:0-7)\n";
        let nodes = ["n1", "n2", "n3"].map(str::to_owned);
        assert_eq!(
            devices_by_node(text, &nodes),
            ["gpu:h100:4(IDX:0-3)", "gpu:h100:8(IDX:0-7)", "gpu:h100:8(IDX:0-7)"]
        );
    }

    #[test]
    fn what_sbatch_refuses_is_a_refusal_and_a_silent_controller_is_not() {
        let refused = submission_refused(
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
        );
        assert!(refused.is_refusal());
        assert_eq!(refused.to_string(), "Invalid account or account/partition combination specified");
        let silent = submission_refused(
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
        );
        assert!(matches!(silent, DriverError::Slurm(SlurmError::Controller { .. })), "{silent:?}");
    }
}
