//! A small job on each node that runs this program there, and what comes back of it.
//!
//! Nothing but the driver's trait is used, so it is the same on every kind of cluster. On a Slurm what jobs write lies in files of the
//! user's own, and jobs may see only the GPUs that they hold.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use bedplate_host::clock;
use bedplate_job::{Gang, Job, Role, Workload};
use bedplate_units::{Bytes, Seconds};

use crate::{Driver, JobId, JobOrder, JobSummary, LogQuery, NodeState, NodeSummary, submit_here};

/// What such a job needs; without it a Slurm gives a job all the memory of its node.
const MEMORY: Bytes = Bytes::gib(0.5);
/// Slurm counts limits in minutes.
const SHORTEST_LIMIT_S: u64 = 60;
/// How long the file of a job that has ended may take to appear on a shared file system.
const FILES_APPEAR_WITHIN: Duration = Duration::from_secs(10);
/// What a shell and our agents say of a program that is not there or may not be executed.
const NO_PROGRAM: [i32; 2] = [126, 127];
/// Of the last line of a job that printed something else.
const LONGEST_LINE: usize = 200;

/// What the jobs have in common.
#[derive(Debug, Clone)]
pub struct ErrandOptions {
    /// The name of the jobs.
    pub name: &'static str,
    /// Where the nodes have this program.
    pub program: String,
    /// How long the jobs may take.
    pub patience: Duration,
    pub partition: Option<String>,
    pub account: Option<String>,
}

/// Why a node brought nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotBrought {
    #[error("the program {program} is not there")]
    NoProgram { program: String },
    #[error("{0}")]
    Because(String),
}

/// What a job printed, as it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Brought<T> {
    pub value: T,
    /// The job may not have seen the GPUs of its node.
    pub may_hide_gpus: bool,
}

pub struct Errand<'a> {
    driver: &'a dyn Driver,
    options: ErrandOptions,
    /// Where jobs write, on clusters that do not keep what they write.
    folder: Option<Folder>,
}

/// A job on its way to a node.
pub struct Sent {
    pub node: String,
    job: Result<JobId, NotBrought>,
    /// It holds all that the cluster knows of.
    sees_gpus: bool,
}

/// Gone with what jobs wrote there.
struct Folder(PathBuf);

impl Folder {
    const PARENT: &'static str = ".bedplate";

    /// In the folder of the user, which nodes see where anything is shared at all.
    fn make(name: &str) -> std::io::Result<Self> {
        let name = format!("{name}-{}-{}", std::process::id(), clock::unix_ms());
        let path = std::env::current_dir()?.join(Self::PARENT).join(name);
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        // The one above may hold reports of other jobs.
        let _ = self.0.parent().map(fs::remove_dir);
    }
}

impl<'a> Errand<'a> {
    /// On a Slurm a folder is made for what the jobs write, and removed with the errand.
    pub fn new(driver: &'a dyn Driver, is_slurm: bool, options: ErrandOptions) -> std::io::Result<Self> {
        let folder = is_slurm.then(|| Folder::make(options.name)).transpose()?;
        Ok(Self { driver, options, folder })
    }

    pub fn program(&self) -> &str {
        &self.options.program
    }

    /// Runs the program with these words on a node. Only nodes that take work are asked; a job for another one would wait
    /// for ever.
    pub fn send(&self, node: &NodeSummary, words: &[&str]) -> Sent {
        let name = node.name.to_string();
        let takes_work = matches!(node.state, NodeState::Idle | NodeState::Allocated | NodeState::Planned);
        let gpus = if self.holds_gpus(node) { node.gpus } else { 0 };
        let job = match takes_work {
            false => Err(NotBrought::Because(format!("it is {}", node.state.name()))),
            true => submit_here(self.job(&name, words, gpus), self.driver)
                .map(|submitted| submitted.id)
                .map_err(because),
        };
        Sent { node: name, job, sees_gpus: gpus == node.gpus }
    }

    /// A Slurm may hide the GPUs that a job does not hold; those of an idle node can be had for a moment.
    fn holds_gpus(&self, node: &NodeSummary) -> bool {
        self.folder.is_some() && node.state == NodeState::Idle
    }

    fn job(&self, node: &str, words: &[&str], gpus_per_node: u32) -> Job {
        let command = std::iter::once(self.program()).chain(words.iter().copied());
        let memory_per_node = self.folder.as_ref().map(|_| MEMORY);
        let role = Role { nodes: 1, gpus_per_node, memory_per_node, ..Role::named(Role::ONLY) };
        let mut job = Job::new(self.options.name, Workload::command(command), Gang::of(role));
        job.placement.only_nodes = vec![node.to_owned()];
        job.policy.partition.clone_from(&self.options.partition);
        job.policy.account.clone_from(&self.options.account);
        if let Some(Folder(folder)) = &self.folder {
            let limit = self.options.patience.as_secs().max(SHORTEST_LIMIT_S);
            job.policy.time_limit = Some(Seconds::new(limit as f64));
            job.working_directory = folder.to_str().map(str::to_owned);
        }
        job
    }

    /// What the job printed, by `read`, which finds nothing where it is not all there; or why there is nothing.
    pub fn collect<T>(
        &self,
        sent: Sent,
        deadline: Instant,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Brought<T>, NotBrought> {
        let id = sent.job?;
        let job = self.wait(&id, deadline)?;
        if job.life.exit_status.is_some_and(|status| NO_PROGRAM.contains(&status)) {
            return Err(NotBrought::NoProgram { program: self.options.program.clone() });
        }
        let value = self.read(&id, &job, read)?;
        Ok(Brought { value, may_hide_gpus: self.folder.is_some() && !sent.sees_gpus })
    }

    fn wait(&self, id: &JobId, deadline: Instant) -> Result<JobSummary, NotBrought> {
        loop {
            let job = self.driver.job(id).map_err(because)?.summary;
            if job.life.state.is_final() {
                return Ok(job);
            }
            if Instant::now() >= deadline {
                let _ = self.driver.order(id, JobOrder::Cancel);
                let why = job.waits_because.as_ref().map_or(String::new(), |why| format!(" ({why})"));
                let state = job.life.state.name();
                return Err(because(format!("its job {} did not end in time: {state}{why}", job.label)));
            }
            thread::sleep(self.driver.pause().min(Duration::from_millis(200)));
        }
    }

    /// A file on a shared file system may be seen a moment after its job has ended.
    fn read<T>(
        &self,
        id: &JobId,
        job: &JobSummary,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<T, NotBrought> {
        let until = Instant::now() + FILES_APPEAR_WITHIN;
        loop {
            let mut text = Vec::new();
            let copied = self.driver.logs(id, &LogQuery::default(), &mut text).map_err(because);
            let outcome = copied.and_then(|_| read(&text).ok_or_else(|| printed_nothing(&text, job)));
            let may_appear = self.folder.is_some() && job.life.exit_status.is_none_or(|status| status == 0);
            match outcome {
                Err(_) if may_appear && Instant::now() < until => thread::sleep(Duration::from_millis(200)),
                outcome => return outcome,
            }
        }
    }
}

fn because(why: impl std::fmt::Display) -> NotBrought {
    NotBrought::Because(why.to_string())
}

fn printed_nothing(text: &[u8], job: &JobSummary) -> NotBrought {
    let text = String::from_utf8_lossy(text);
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
    let last: String = last.chars().take(LONGEST_LINE).collect();
    let ended = job.life.exit_status.filter(|status| *status != 0);
    let ended =
        ended.map_or_else(|| job.life.state.name().to_owned(), |status| format!("ended with {status}"));
    because(format!("its job {} printed no facts ({ended}); last it printed: {last}", job.label))
}
