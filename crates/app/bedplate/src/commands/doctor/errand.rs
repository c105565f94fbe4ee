//! A small job on each node that reads the node and prints its facts, and what comes back of it.
//!
//! Nothing but the driver's trait is used, so it is the same on every kind of cluster. On a Slurm what jobs write lies in files of the
//! user's own, and jobs may see only the GPUs that they hold.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use bedplate_doctor::NodeFacts;
use bedplate_drivers::{Driver, JobId, JobOrder, JobSummary, LogQuery, NodeState, NodeSummary};
use bedplate_job::{Gang, Job, Role, Workload};
use bedplate_terminal::CliError;
use bedplate_terminal::present::printable_line;
use bedplate_units::{Bytes, Seconds};

use super::Arguments;
use crate::commands::submit::submit_here;

/// What a reading of a node needs; without it a Slurm gives a job all the memory of its node.
const MEMORY: Bytes = Bytes::gib(0.5);
/// Slurm counts limits in minutes.
const SHORTEST_LIMIT_S: u64 = 60;
/// How long the file of a job that has ended may take to appear on a shared file system.
const FILES_APPEAR_WITHIN: Duration = Duration::from_secs(10);
/// What a shell and our agents say of a program that is not there or may not be executed.
const NO_PROGRAM: [i32; 2] = [126, 127];

/// Why a node was not examined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotExamined {
    /// The program that should read the node is not on it.
    NoProgram,
    Because(String),
}

impl NotExamined {
    pub(super) fn text(&self, program: &str) -> String {
        match self {
            NotExamined::NoProgram => printable_line(&format!("the program {program} is not there")),
            NotExamined::Because(why) => printable_line(why),
        }
    }
}

impl<E: std::fmt::Display> From<E> for NotExamined {
    fn from(error: E) -> Self {
        NotExamined::Because(error.to_string())
    }
}

/// What the jobs have in common.
pub(super) struct Errand<'a> {
    arguments: &'a Arguments,
    driver: &'a dyn Driver,
    /// Where the nodes have this program.
    pub(super) program: String,
    /// Where jobs write, on clusters that do not keep what they write.
    folder: Option<Folder>,
}

/// A job that examines a node.
pub(super) struct Sent {
    pub(super) node: String,
    job: Result<JobId, NotExamined>,
    /// It holds all that the cluster knows of.
    sees_gpus: bool,
}

/// Gone with what jobs wrote there.
struct Folder(PathBuf);

impl Folder {
    const PARENT: &'static str = ".bedplate";

    /// In the folder of the user, which nodes see where anything is shared at all.
    fn make() -> std::io::Result<Self> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let name = format!("doctor-{}-{}", std::process::id(), now.as_millis());
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
    pub(super) fn new(
        arguments: &'a Arguments,
        driver: &'a dyn Driver,
        is_slurm: bool,
    ) -> Result<Self, CliError> {
        let own = || {
            std::env::current_exe().map_or_else(|_| "bedplate".to_owned(), |path| path.display().to_string())
        };
        let program = arguments.program.clone().unwrap_or_else(own);
        let folder = match is_slurm {
            true => Some(Folder::make().map_err(|source| super::DoctorError::Folder { source })?),
            false => None,
        };
        Ok(Self { arguments, driver, program, folder })
    }

    /// Only nodes that take work are asked; a job for another one would wait for ever.
    pub(super) fn send(&self, node: &NodeSummary) -> Sent {
        let name = node.name.to_string();
        let takes_work = matches!(node.state, NodeState::Idle | NodeState::Allocated | NodeState::Planned);
        let gpus = if self.holds_gpus(node) { node.gpus } else { 0 };
        let job = match takes_work {
            false => Err(NotExamined::Because(format!("it is {}", node.state.name()))),
            true => submit_here(self.job(&name, gpus), self.driver)
                .map(|submitted| submitted.id)
                .map_err(|error| NotExamined::Because(error.summary())),
        };
        Sent { node: name, job, sees_gpus: gpus == node.gpus }
    }

    /// A Slurm may hide the GPUs that a job does not hold; those of an idle node can be had for a moment.
    fn holds_gpus(&self, node: &NodeSummary) -> bool {
        self.folder.is_some() && node.state == NodeState::Idle
    }

    fn job(&self, node: &str, gpus_per_node: u32) -> Job {
        let root = &self.arguments.root;
        let words = [self.program.as_str(), "doctor", "--facts", "--node", node, "--root", root];
        let memory_per_node = self.folder.as_ref().map(|_| MEMORY);
        let role = Role { nodes: 1, gpus_per_node, memory_per_node, ..Role::named(Role::ONLY) };
        let mut job = Job::new("doctor", Workload::command(words), Gang::of(role));
        job.placement.only_nodes = vec![node.to_owned()];
        job.policy.partition.clone_from(&self.arguments.partition);
        job.policy.account.clone_from(&self.arguments.account);
        if let Some(Folder(folder)) = &self.folder {
            let limit = self.arguments.patience.max(SHORTEST_LIMIT_S);
            job.policy.time_limit = Some(Seconds::new(limit as f64));
            job.working_directory = folder.to_str().map(str::to_owned);
        }
        job
    }

    /// The facts that the job printed, or why there are none.
    pub(super) fn collect(&self, sent: Sent, deadline: Instant) -> Result<NodeFacts, NotExamined> {
        let id = sent.job?;
        let job = self.wait(&id, deadline)?;
        if job.exit_status.is_some_and(|status| NO_PROGRAM.contains(&status)) {
            return Err(NotExamined::NoProgram);
        }
        let mut facts = self.read(&id, &job)?;
        facts.hides_gpus = self.folder.is_some() && !sent.sees_gpus && facts.gpus.is_empty();
        if facts.hides_gpus {
            // It fails where it may see none.
            facts.remarks.retain(|remark| remark.source != "nvidia-smi");
        }
        Ok(facts)
    }

    fn wait(&self, id: &JobId, deadline: Instant) -> Result<JobSummary, NotExamined> {
        loop {
            let job = self.driver.job(id)?.summary;
            if job.state.is_final() {
                return Ok(job);
            }
            if Instant::now() >= deadline {
                let _ = self.driver.order(id, JobOrder::Cancel);
                let why = job.waits_because.as_ref().map_or(String::new(), |why| format!(" ({why})"));
                let state = job.state.name();
                return Err(format!("its job {} did not end in time: {state}{why}", job.label).into());
            }
            thread::sleep(self.driver.pause().min(Duration::from_millis(200)));
        }
    }

    /// A file on a shared file system may be seen a moment after its job has ended.
    fn read(&self, id: &JobId, job: &JobSummary) -> Result<NodeFacts, NotExamined> {
        let until = Instant::now() + FILES_APPEAR_WITHIN;
        loop {
            let mut text = Vec::new();
            let copied = self.driver.logs(id, &LogQuery::default(), &mut text);
            let outcome = copied.map_err(NotExamined::from).and_then(|_| facts_in(&text, job));
            let may_appear = self.folder.is_some() && job.exit_status.is_none_or(|status| status == 0);
            match outcome {
                Err(_) if may_appear && Instant::now() < until => thread::sleep(Duration::from_millis(200)),
                outcome => return outcome,
            }
        }
    }
}

/// The document in what a job wrote; a site's profiles and prologs may write around it.
fn facts_in(text: &[u8], job: &JobSummary) -> Result<NodeFacts, NotExamined> {
    let begin = text.split_inclusive(|byte| *byte == b'\n').scan(0, |at, line| {
        let here = *at;
        *at += line.len();
        Some((here, line))
    });
    for (at, _) in begin.filter(|(_, line)| line.starts_with(b"{")) {
        if let Some(Ok(facts)) =
            serde_json::Deserializer::from_slice(&text[at..]).into_iter::<NodeFacts>().next()
        {
            return Ok(facts);
        }
    }
    let text = String::from_utf8_lossy(text);
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
    let last: String = last.chars().take(200).collect();
    let ended = job.exit_status.filter(|status| *status != 0);
    let ended = ended.map_or_else(|| job.state.name().to_owned(), |status| format!("ended with {status}"));
    Err(format!("its job {} printed no facts ({ended}); last it printed: {last}", job.label).into())
}
