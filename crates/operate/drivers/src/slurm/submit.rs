//! Handing a job to Slurm, once.
//!
//! The key of a submission stands in the job's comment and is looked for before anything is submitted, among the jobs
//! that slurmctld remembers and, where comments are kept, in accounting. When an answer does not come in time, the key
//! tells whether the job was taken in.

use std::path::Path;

use bedplate_job::{Environment, Job, sbatch};

use super::error::SlurmError;
use super::job::JobRecord;
use super::note::{self, Note};
use super::transport::{HistoryQuery, Submission};
use super::{PAST_S, Slurm, files, newest_runs, now_s, number_of, refused};
use crate::{DriverError, JobId, Submitted};

/// Letters of a file name that differ between tasks.
const OF_TASKS: [char; 5] = ['t', 'n', 'N', 's', 'J'];

impl Slurm {
    pub(super) fn submit_with_key(&self, job: &Job, key: &str) -> Result<Submitted, DriverError> {
        let (submission, remarks) = self.prepare(job, key)?;
        let key = note::shortened_key(key);
        if let Some(old) = self.find_key(&key)? {
            return Ok(submitted(job, old, true, remarks));
        }
        let id = self.hand_over_once(&submission, &key)?;
        Ok(submitted(job, id, false, remarks))
    }

    /// Submits without looking for the key first: for callers that made it just now.
    pub fn submit_new(&self, job: &Job, key: &str) -> Result<Submitted, DriverError> {
        let (submission, remarks) = self.prepare(job, key)?;
        let id = self.hand_over_once(&submission, &note::shortened_key(key))?;
        Ok(submitted(job, id, false, remarks))
    }

    /// Hands a job over. Where the answer is lost it may have been taken in: the key tells.
    fn hand_over_once(&self, submission: &Submission, key: &str) -> Result<u64, DriverError> {
        match self.hand_over(submission) {
            Err(error @ DriverError::Slurm(SlurmError::TooSlow { .. } | SlurmError::Rest { .. })) => {
                self.find_key(key).ok().flatten().ok_or(error)
            }
            outcome => outcome,
        }
    }

    /// By REST where it has a field for everything the job asks for, else by `sbatch`.
    fn hand_over(&self, submission: &Submission) -> Result<u64, DriverError> {
        let outcome = self.ask(|transport| transport.submit(submission));
        match (&outcome, &self.tools, &self.rest) {
            (Err(DriverError::Slurm(SlurmError::NoField { option, .. })), Some(tools), Some(_)) => {
                self.remark(format!(
                    "slurmrestd has no field for `--{option}`, so `sbatch` submitted the job"
                ));
                super::transport::SlurmTransport::submit(tools, submission)
            }
            _ => outcome,
        }
    }

    fn prepare(&self, job: &Job, key: &str) -> Result<(Submission, Vec<serde_json::Value>), DriverError> {
        let mut bare = job.clone();
        // Variables go beside the script, the prediction into the comment.
        bare.environment = Environment::default();
        bare.expected = None;
        let rendered = sbatch::render(&bare)?;
        let own =
            rendered.options.iter().rfind(|(name, _)| name == "comment").and_then(|(_, value)| value.clone());
        let of_tasks = |pattern: &Option<String>, option: &str| {
            let is_moved = !rendered.options.iter().any(|(name, _)| name == option);
            pattern.clone().filter(|pattern| is_moved && differs(pattern))
        };
        let note = Note {
            key: Some(note::shortened_key(key)),
            expected: job.expected,
            stdout: of_tasks(&job.streams.stdout, "output"),
            stderr: of_tasks(&job.streams.stderr, "error"),
            rest: own.unwrap_or_default(),
        };
        let comment = note.write();
        if comment.len() > note::LONGEST {
            let text = format!(
                "the comment has {} bytes with what is added to it, and Slurm takes {}",
                comment.len(),
                note::LONGEST
            );
            return Err(refused("comment", text));
        }
        let directory = job
            .working_directory
            .clone()
            .or_else(|| std::env::current_dir().ok().and_then(|path| path.to_str().map(str::to_owned)));
        let directory = directory.unwrap_or_else(|| "/".to_owned());
        let mut environment = job.environment.set.clone();
        // A token is for the one who submits; `srun` fails in a job that inherits it.
        environment.remove("SLURM_JWT");
        environment.entry("PATH".to_owned()).or_insert_with(|| "/usr/local/bin:/usr/bin:/bin".to_owned());
        if job.policy.array.is_none()
            && let Some(report) = files::make_report_path(Path::new(&directory), &note::shortened_key(key))
        {
            environment.entry("BEDPLATE_REPORT".to_owned()).or_insert(report);
        }
        let remarks =
            rendered.remarks.iter().map(|remark| serde_json::Value::from(remark.to_string())).collect();
        Ok((
            Submission {
                script: rendered.script,
                options: rendered.options,
                comment,
                environment,
                directory,
            },
            remarks,
        ))
    }

    /// The job that was submitted under a key by the same user.
    fn find_key(&self, key: &str) -> Result<Option<u64>, DriverError> {
        let is_it =
            |record: &JobRecord| record.user == self.user && record.note().key.as_deref() == Some(key);
        let number = |record: &JobRecord| record.array.as_ref().map_or(record.id, |array| array.job);
        let known = self.ask(|transport| transport.jobs())?;
        if let Some(found) = known.iter().find(|record| is_it(record)) {
            return Ok(Some(number(found)));
        }
        // A job of this key that slurmctld has forgotten was submitted at most days ago. Where accounting does not answer,
        // only a repetition after the job has ended and been forgotten is not recognised.
        let query = HistoryQuery {
            since_s: now_s().saturating_sub(PAST_S),
            user: Some(self.user.clone()),
            ..HistoryQuery::default()
        };
        let past = self.ask(|transport| transport.history(&query)).ok().flatten().unwrap_or_default();
        Ok(newest_runs(past).iter().find(|record| is_it(record)).map(number))
    }
}

fn submitted(job: &Job, id: u64, is_old: bool, remarks: Vec<serde_json::Value>) -> Submitted {
    let jobs = match job.array_indices() {
        Some(indices) => indices.iter().map(|index| JobId(format!("{id}_{index}"))).collect(),
        None => vec![JobId(id.to_string())],
    };
    debug_assert!(jobs.iter().all(|job| number_of(job).0 == id));
    Submitted {
        id: JobId(id.to_string()),
        label: id.to_string(),
        count: jobs.len() as u32,
        is_old,
        remarks,
        jobs,
    }
}

/// Whether a file name differs between tasks, so that the script's `srun` has it and not the job.
pub(super) fn differs(pattern: &str) -> bool {
    let letters =
        pattern.split('%').skip(1).map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    letters.into_iter().any(|rest| rest.starts_with(OF_TASKS))
}
