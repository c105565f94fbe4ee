//! A cluster under Slurm.
//!
//! There are two transports to it: its REST server, whose fields are read from the OpenAPI document that it serves, and its own
//! commands. Where both work REST is asked, and the commands do what REST cannot (requeue, topology; in older versions
//! drain and shares) or stand in while its server is gone. Both give the same records (`job`, `node`, `site`), and
//! everything above them is written once. Nothing needs root, and every call has a deadline.

mod complaint;
mod error;
mod explain;
mod fields;
mod files;
mod job;
mod logs;
mod node;
mod note;
mod openapi;
mod past;
mod place;
mod reason;
mod rest;
mod site;
mod submit;
mod table;
mod tools;
mod topology;
mod transport;
mod usage;
mod value;
mod watch;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use bedplate_host::clock;
use bedplate_job::{Job, RankBlocks};
use bedplate_report::Expectation;
use serde_json::{Map, Value, json};

use crate::{
    Capability, ClusterView, Driver, DriverError, Explained, JobDetail, JobId, JobOrder, JobQuery, JobState,
    JobSummary, LogQuery, NodeDetail, NodeId, NodeSummary, RankPlace, RunView, See, Submitted, TaskView,
    Watched,
};
use complaint::{no_such_job, no_such_node, refused};
pub use error::PAGES as SLURM_PAGES;
pub use error::SlurmError;
use job::JobRecord;
pub use place::{SlurmPlace, TransportFound};
use rest::Rest;
use tools::Tools;
pub use topology::{SlurmNode, SlurmSwitch, SlurmTopology};
use transport::{Ability, HistoryQuery, SlurmTransport};

/// Ended jobs are listed for this long.
const PAST_S: u64 = 7 * 86_400;
/// What a cluster is changes rarely.
const CLUSTER_AGE: Duration = Duration::from_secs(60);
/// Slurm is asked no more often than this by callers that look again and again.
const PAUSE: Duration = Duration::from_secs(2);
/// Tasks of an array that are told one by one.
const MOST_TASKS: usize = 10_000;

/// A Slurm and the transports to it. All calls block, none for longer than the patience of its place.
pub struct Slurm {
    rest: Option<Rest>,
    tools: Option<Tools>,
    /// Whose jobs we submit.
    user: String,
    capabilities: OnceLock<Vec<Capability>>,
    remarks: Mutex<Vec<String>>,
    cluster: Mutex<Option<(Instant, ClusterView)>>,
}

impl Slurm {
    /// Asks nothing yet.
    pub fn new(place: &SlurmPlace) -> Result<Self, DriverError> {
        let (rest, tools) = place.transports()?;
        Ok(Self {
            rest,
            tools,
            user: place.user(),
            capabilities: OnceLock::new(),
            remarks: Mutex::default(),
            cluster: Mutex::default(),
        })
    }

    /// Asks by REST where there is one, and by Slurm's commands where there is none or its server is gone.
    fn ask<T>(&self, ask: impl Fn(&dyn SlurmTransport) -> Result<T, DriverError>) -> Result<T, DriverError> {
        let gone = match &self.rest {
            None => None,
            Some(rest) => match ask(rest) {
                Err(error @ DriverError::Slurm(SlurmError::Rest { .. })) => Some(error),
                other => return other,
            },
        };
        match (&self.tools, gone) {
            (None, Some(gone)) => Err(gone),
            (None, None) => Err(tools::missing_error("squeue")),
            (Some(tools), gone) => {
                if let Some(gone) = gone {
                    self.remark(format!("{gone}; Slurm's commands were asked instead"));
                }
                ask(tools)
            }
        }
    }

    /// The first transport that can do it.
    fn able(&self, ability: Ability) -> Option<&dyn SlurmTransport> {
        let rest = self.rest.as_ref().map(|rest| rest as &dyn SlurmTransport);
        let tools = self.tools.as_ref().map(|tools| tools as &dyn SlurmTransport);
        [rest, tools].into_iter().flatten().find(|transport| transport.can(ability))
    }

    /// What should be said beside an answer, once.
    fn remark(&self, text: String) {
        let mut remarks = self.remarks.lock().expect("no panic while it is held");
        if !remarks.contains(&text) {
            remarks.push(text);
        }
    }

    /// What slurmctld remembers of a job; nothing where it knows none.
    fn records(&self, id: &JobId) -> Result<Vec<JobRecord>, DriverError> {
        match is_job_id(id) {
            true => self.ask(|transport| transport.job(id)),
            false => Err(no_such_job(id)),
        }
    }

    /// A job that slurmctld has forgotten, from accounting, every run of it.
    fn forgotten(&self, id: &JobId) -> Result<Vec<JobRecord>, DriverError> {
        let query = HistoryQuery { job: Some(id.clone()), ..HistoryQuery::default() };
        match self.ask(|transport| transport.history(&query)) {
            Ok(Some(runs)) if runs.is_empty() => Err(no_such_job(id)),
            Ok(Some(runs)) => Ok(runs),
            Ok(None) => {
                let text = format!(
                    "slurmctld knows no job {id}: it forgets jobs that have ended, and this Slurm keeps no accounting"
                );
                Err(refused("no_such_job", text))
            }
            Err(DriverError::Slurm(SlurmError::Accounting { message })) => {
                let message = format!("{message}; slurmctld knows no job {id}, so it never was or has ended");
                Err(SlurmError::Accounting { message }.into())
            }
            Err(error) => Err(error),
        }
    }

    /// The one record of a job: of an array asked for as a whole, the first.
    fn record(&self, id: &JobId) -> Result<JobRecord, DriverError> {
        let mut records = self.records(id)?;
        if records.is_empty() {
            records = newest_runs(self.forgotten(id)?);
        }
        records.into_iter().next().ok_or_else(|| no_such_job(id))
    }

    fn ended(&self, query: &JobQuery, now_s: u64) -> Result<Vec<JobRecord>, DriverError> {
        let asked = HistoryQuery {
            job: None,
            since_s: now_s.saturating_sub(PAST_S),
            user: query.user.clone(),
            account: query.account.clone(),
            name: query.name.clone(),
        };
        match self.ask(|transport| transport.history(&asked)) {
            Ok(records) => Ok(newest_runs(records.unwrap_or_default())),
            Err(error @ DriverError::Slurm(SlurmError::Accounting { .. })) => {
                self.remark(format!(
                    "{error}; of the jobs that have ended only those are shown that slurmctld remembers"
                ));
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    /// The runs of a job that came back, as accounting has them; none where it cannot say.
    fn runs(&self, id: &JobId, record: &JobRecord) -> Vec<RunView> {
        if record.restarts == 0 {
            return Vec::new();
        }
        let query = HistoryQuery { job: Some(id.clone()), ..HistoryQuery::default() };
        let rows = self.ask(|transport| transport.history(&query)).ok().flatten().unwrap_or_default();
        run_views(&rows)
    }

    fn nodes_of(&self, records: &[JobRecord]) -> BTreeMap<String, Vec<JobId>> {
        let mut by_node: BTreeMap<String, Vec<JobId>> = BTreeMap::new();
        for record in records {
            for node in record.summary().nodes {
                by_node.entry(node.0).or_default().push(record.job_id());
            }
        }
        by_node
    }

    fn describe(&self) -> Result<ClusterView, DriverError> {
        let name = self.ask(|transport| transport.cluster_name())?;
        let version = self.ask(|transport| transport.version())?;
        let nodes = self.ask(|transport| transport.nodes())?;
        let partitions = self.ask(|transport| transport.partitions())?;
        let mut rest = Map::new();
        rest.insert("kind".into(), json!("slurm"));
        rest.insert("version".into(), json!(version));
        rest.insert("ways".into(), json!(self.transport_names()));
        rest.insert("nodes".into(), json!(nodes.len()));
        rest.insert("gpus".into(), json!(nodes.iter().map(node::NodeRecord::gpus).sum::<u64>()));
        rest.insert("partitions".into(), json!(partitions));
        // A site without accounting has none of these; one whose accounting is down says so.
        match self.ask(|transport| transport.qos()) {
            Ok(qos) => drop(rest.insert("qos".into(), json!(qos))),
            Err(error) => self.remark(error.to_string()),
        }
        match self.able(Ability::Shares).map(SlurmTransport::shares) {
            Some(Ok(shares)) => drop(rest.insert("shares".into(), json!(shares))),
            Some(Err(error)) => self.remark(error.to_string()),
            None => {}
        }
        Ok(ClusterView { name: if name.is_empty() { "slurm".to_owned() } else { name }, rest })
    }

    fn transport_names(&self) -> Vec<String> {
        let rest = self.rest.as_ref().map(SlurmTransport::name);
        rest.into_iter().chain(self.tools.as_ref().map(SlurmTransport::name)).collect()
    }
}

impl Driver for Slurm {
    fn name(&self) -> String {
        match &self.rest {
            Some(rest) => format!("Slurm by {}", rest.name()),
            None => "Slurm by its commands".to_owned(),
        }
    }

    fn capabilities(&self) -> &[Capability] {
        self.capabilities.get_or_init(|| {
            let can = |capability: &Capability| match capability {
                Capability::Requeue => self.able(Ability::Requeue).is_some(),
                Capability::Drain => self.able(Ability::Drain).is_some(),
                _ => true,
            };
            Capability::ALL.into_iter().filter(can).collect()
        })
    }

    fn remarks(&self) -> Vec<String> {
        std::mem::take(&mut *self.remarks.lock().expect("no panic while it is held"))
    }

    fn pause(&self) -> Duration {
        PAUSE
    }

    fn submit(&self, job: &Job, key: &str) -> Result<Submitted, DriverError> {
        self.submit_with_key(job, key)
    }

    fn jobs(&self, query: &JobQuery) -> Result<Vec<JobSummary>, DriverError> {
        let mut records = self.ask(|transport| transport.jobs())?;
        if query.with_ended {
            let known: std::collections::BTreeSet<JobId> = records.iter().map(JobRecord::job_id).collect();
            let ended = self.ended(query, now_s())?;
            records.extend(ended.into_iter().filter(|record| !known.contains(&record.job_id())));
        }
        let mut jobs: Vec<JobSummary> =
            records.iter().map(JobRecord::summary).filter(|job| query.takes(job)).collect();
        jobs.sort_by_key(|job| (job.submitted_ms, number_of(&job.id)));
        if query.with_ended {
            jobs.reverse();
        }
        jobs.truncate(query.limit.unwrap_or(usize::MAX));
        Ok(jobs)
    }

    fn job(&self, id: &JobId) -> Result<JobDetail, DriverError> {
        let mut records = self.records(id)?;
        let mut past = Vec::new();
        if records.is_empty() {
            let rows = self.forgotten(id)?;
            past = run_views(&rows);
            records = newest_runs(rows);
        }
        let record = records.first().ok_or_else(|| no_such_job(id))?;
        let mut told = files::reports(record);
        told.steps = told.steps.or_else(|| files::steps_in_output(record));
        let note = record.note();
        let mut summary = record.summary();
        summary.life.checkpoint = told.checkpoint;
        if let Some(last) = past.last().filter(|_| records.len() == 1) {
            summary.life.runs = last.number;
            summary.life.restarts = last.number.saturating_sub(1);
        }
        let runs = if past.is_empty() { self.runs(id, record) } else { past };
        Ok(JobDetail {
            summary,
            runs: if runs.len() > 1 { runs } else { Vec::new() },
            notes: Vec::new(),
            text: None,
            expected: Expectation::of(note.expected.as_ref(), told.steps.as_ref()),
            steps: told.steps,
            diagnosis: Vec::new(),
            tasks: if is_array(id, &records) { tasks(&records) } else { Vec::new() },
        })
    }

    fn order(&self, id: &JobId, order: JobOrder) -> Result<(), DriverError> {
        if let Some(needed) = order.needs().filter(|needed| !self.can(*needed)) {
            return Err(self.cannot(needed));
        }
        let records = self.records(id)?;
        if records.is_empty() {
            self.forgotten(id)?;
            return Err(refused("ended", format!("job {id} has ended")));
        }
        if records.iter().all(|record| record.state().is_final()) {
            return Err(refused("ended", format!("job {id} has ended")));
        }
        let waits = |record: &JobRecord| record.state() == JobState::Waiting;
        match order {
            JobOrder::Requeue => {
                if records.iter().all(waits) {
                    return Err(refused("not_running", format!("job {id} does not run")));
                }
                self.able(Ability::Requeue).ok_or_else(|| self.cannot(Capability::Requeue))?.order(id, order)
            }
            JobOrder::Hold if !records.iter().any(waits) => {
                Err(refused("not_waiting", format!("job {id} does not wait any more")))
            }
            JobOrder::Release if !records.iter().any(JobRecord::is_held) => {
                Err(refused("not_held", format!("job {id} is not held")))
            }
            _ => self.ask(|transport| transport.order(id, order)),
        }
    }

    fn nodes(&self) -> Result<Vec<NodeSummary>, DriverError> {
        let nodes = self.ask(|transport| transport.nodes())?;
        let mut jobs = self.nodes_of(&self.ask(|transport| transport.jobs())?);
        Ok(nodes.iter().map(|node| node.summary(jobs.remove(&node.name).unwrap_or_default())).collect())
    }

    fn node(&self, id: &NodeId) -> Result<NodeDetail, DriverError> {
        if !is_node_name(id.as_str()) {
            return Err(no_such_node(id));
        }
        let node = self.ask(|transport| transport.node(id.as_str()))?.ok_or_else(|| no_such_node(id))?;
        let mut jobs = self.nodes_of(&self.ask(|transport| transport.jobs())?);
        Ok(NodeDetail {
            summary: node.summary(jobs.remove(&node.name).unwrap_or_default()),
            notes: Vec::new(),
        })
    }

    fn cluster(&self) -> Result<ClusterView, DriverError> {
        let mut kept = self.cluster.lock().expect("no panic while it is held");
        if let Some((_, view)) = kept.as_ref().filter(|(at, _)| at.elapsed() < CLUSTER_AGE) {
            return Ok(view.clone());
        }
        let view = self.describe()?;
        *kept = Some((Instant::now(), view.clone()));
        Ok(view)
    }

    fn explain(&self, id: &JobId) -> Result<Option<Explained>, DriverError> {
        self.explained(id)
    }

    fn watch(&self, watched: &Watched, see: See<'_>) -> Result<(), DriverError> {
        self.watch_by_asking(watched, see)
    }

    fn logs(&self, id: &JobId, query: &LogQuery, to: &mut dyn Write) -> Result<u64, DriverError> {
        self.copy_log(id, query, to)
    }

    fn ranks(&self, id: &JobId) -> Result<Vec<RankPlace>, DriverError> {
        let record = self.record(id)?;
        if record.nodes.is_empty() {
            return Ok(Vec::new());
        }
        let nodes = self.ask(|transport| transport.nodes())?;
        let addresses: BTreeMap<&str, &str> =
            nodes.iter().map(|node| (node.name.as_str(), node.address.as_str())).collect();
        Ok(rank_places(&record, &addresses))
    }

    fn drain(&self, node: &NodeId, reason: &str) -> Result<(), DriverError> {
        let transport = self.able(Ability::Drain).ok_or_else(|| self.cannot(Capability::Drain))?;
        self.node(node)?;
        let reason: String = reason.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let reason = if reason.trim().is_empty() { "no reason given" } else { reason.trim() };
        transport.set_node(node.as_str(), Some(reason))
    }

    fn resume(&self, node: &NodeId) -> Result<(), DriverError> {
        let transport = self.able(Ability::Drain).ok_or_else(|| self.cannot(Capability::Drain))?;
        let summary = self.node(node)?.summary;
        if summary.reason.is_none() {
            return Ok(());
        }
        transport.set_node(node.as_str(), None)
    }
}

fn rank_places(record: &JobRecord, addresses: &BTreeMap<&str, &str>) -> Vec<RankPlace> {
    let blocks = RankBlocks::spread(record.tasks, record.nodes.len() as u32);
    let mut places = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        let name = record.nodes[at].as_str();
        let devices = record.devices.get(at).map(|gres| value::device_indices(gres)).unwrap_or_default();
        let bits = devices.iter().filter(|device| **device < 64).fold(0, |bits, device| bits | 1 << device);
        let tasks = block.end - block.start;
        for rank in block.clone() {
            places.push(RankPlace {
                rank,
                run: None,
                node: NodeId(name.to_owned()),
                address: (*addresses.get(name).unwrap_or(&name)).to_owned(),
                devices: bedplate_job::devices_of(rank - block.start, tasks, bits),
            });
        }
    }
    places
}

/// `12_3` as a pair of numbers.
fn number_of(id: &JobId) -> (u64, u64) {
    let (job, task) = id.as_str().split_once('_').unwrap_or((id.as_str(), "0"));
    (job.parse().unwrap_or(0), task.parse().unwrap_or(0))
}

/// `12` or `12_3`; anything else would be an option or a list to Slurm's commands.
fn is_job_id(id: &JobId) -> bool {
    let is_number =
        |text: &str| !text.is_empty() && text.len() <= 12 && text.bytes().all(|byte| byte.is_ascii_digit());
    match id.as_str().split_once('_') {
        Some((job, task)) => is_number(job) && is_number(task),
        None => is_number(id.as_str()),
    }
}

fn is_node_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.len() <= 255 && name.chars().all(is_plain)
}

fn is_array(id: &JobId, records: &[JobRecord]) -> bool {
    !id.as_str().contains('_') && records.iter().any(|record| record.array.is_some())
}

/// Every task; those that wait together are told one by one too.
fn tasks(records: &[JobRecord]) -> Vec<TaskView> {
    let mut tasks = Vec::new();
    for record in records {
        let Some(array) = &record.array else { continue };
        let indices = match array.task {
            Some(task) => vec![task],
            None => {
                array.waiting.parse::<bedplate_job::Array>().map(|array| array.indices()).unwrap_or_default()
            }
        };
        for task in indices.into_iter().take(MOST_TASKS - tasks.len()) {
            let label = JobId(format!("{}_{task}", array.job));
            tasks.push(TaskView { id: label.clone(), label, state: record.state() });
        }
    }
    tasks.sort_by_key(|task| number_of(&task.id));
    tasks
}

/// Of each job the last of its rows in accounting.
fn newest_runs(rows: Vec<JobRecord>) -> Vec<JobRecord> {
    let mut newest: BTreeMap<(u64, u64), JobRecord> = BTreeMap::new();
    for row in rows {
        let place = newest.entry(number_of(&row.job_id())).or_insert_with(|| row.clone());
        if row.submitted_s >= place.submitted_s {
            *place = row;
        }
    }
    newest.into_values().collect()
}

fn run_views(rows: &[JobRecord]) -> Vec<RunView> {
    let ms = |seconds: Option<u64>| seconds.map(|seconds| seconds * 1000);
    let started = rows.iter().filter(|row| row.started_s.is_some() && !row.nodes.is_empty());
    let views = started.enumerate().map(|(at, row)| RunView {
        number: at as u32 + 1,
        started_ms: ms(row.started_s),
        ended_ms: ms(row.ended_s),
        reason: match row.states.iter().any(|state| state == "REQUEUED") {
            true => Some(bedplate_diag::Reason::new("requeued", "it was put back into the queue")),
            false => reason::ending(row),
        },
        steps: None,
        rest: Map::from_iter([("nodes".to_owned(), Value::from(row.nodes.clone()))]),
    });
    views.collect()
}

fn now_s() -> u64 {
    clock::unix_time().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_of_jobs_and_plain_names_reach_slurm() {
        for id in ["12", "12_3"] {
            assert!(is_job_id(&id.into()), "{id}");
        }
        for id in ["", "-1", "--all", "12;ls", "12_", "12_[0-3]", "a", "1,2", "1234567890123"] {
            assert!(!is_job_id(&id.into()), "{id}");
        }
        assert!(
            is_node_name("gpu-001.site")
                && !is_node_name("-x")
                && !is_node_name("n1 n2")
                && !is_node_name("ALL=")
        );
    }

    #[test]
    fn tasks_that_wait_together_are_told_apart() {
        let array = |task, waiting: &str| Some(job::Array { job: 9, task, waiting: waiting.into() });
        let waiting = JobRecord {
            id: 9,
            array: array(None, "2-4%2"),
            states: vec!["PENDING".into()],
            ..JobRecord::default()
        };
        let running = JobRecord {
            id: 10,
            array: array(Some(1), ""),
            states: vec!["RUNNING".into()],
            ..JobRecord::default()
        };
        let labels: Vec<String> = tasks(&[waiting, running])
            .iter()
            .map(|task| format!("{} {}", task.label, task.state.name()))
            .collect();
        assert_eq!(labels, ["9_1 running", "9_2 waiting", "9_3 waiting", "9_4 waiting"]);
    }

    #[test]
    fn ranks_stand_in_blocks_with_their_devices() {
        let record = JobRecord {
            tasks: 4,
            nodes: vec!["n1".into(), "n2".into()],
            devices: vec!["gpu:h100:2(IDX:0-1)".into(), "gpu:h100:2(IDX:4,6)".into()],
            ..JobRecord::default()
        };
        let places = rank_places(&record, &BTreeMap::from([("n2", "10.0.0.2")]));
        let told: Vec<String> = places
            .iter()
            .map(|place| format!("{} {} {} {:?}", place.rank, place.node, place.address, place.devices))
            .collect();
        assert_eq!(told, ["0 n1 n1 [0]", "1 n1 n1 [1]", "2 n2 10.0.0.2 [4]", "3 n2 10.0.0.2 [6]"]);
    }
}
