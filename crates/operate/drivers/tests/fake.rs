//! Clusters in memory behind the same trait: one that can do everything, and one that can do only what every cluster must.

mod suite;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Mutex;

use bedplate_diag::Reason;
use bedplate_drivers::{
    Capability, ClusterEvent, ClusterView, Driver, DriverError, Explained, HostView, JobDetail, JobId,
    JobOrder, JobQuery, JobState, JobSummary, Life, LogQuery, NodeDetail, NodeId, NodeState, NodeSummary,
    RankPlace, See, Submitted, Watched,
};
use bedplate_job::Job;

/// A cluster of one node on which every job starts at once and none ends by itself.
struct Fake {
    capabilities: &'static [Capability],
    jobs: Mutex<BTreeMap<JobId, JobSummary>>,
    keys: Mutex<BTreeMap<String, JobId>>,
    drained: Mutex<Option<String>>,
}

impl Fake {
    fn new(capabilities: &'static [Capability]) -> Self {
        Self { capabilities, jobs: Mutex::default(), keys: Mutex::default(), drained: Mutex::default() }
    }

    fn needs(&self, capability: Capability) -> Result<(), DriverError> {
        if self.can(capability) { Ok(()) } else { Err(self.cannot(capability)) }
    }

    fn summary(&self, id: &JobId) -> Result<JobSummary, DriverError> {
        self.jobs
            .lock()
            .expect("no panic")
            .get(id)
            .cloned()
            .ok_or_else(|| no("no_such_job", format!("there is no job {id}")))
    }
}

fn no(code: &str, message: String) -> DriverError {
    let reason = Some(Reason::new(code, message.clone()));
    DriverError::Refused { code: code.to_owned(), message, help: None, reason }
}

fn start(job: &mut JobSummary) {
    job.life.state = JobState::Running;
    job.life.runs += 1;
    job.life.started_ms = Some(1);
    job.nodes = vec![NodeId::from("n1")];
}

impl Driver for Fake {
    fn name(&self) -> String {
        "the cluster in memory".to_owned()
    }

    fn capabilities(&self) -> &[Capability] {
        self.capabilities
    }

    fn submit(&self, job: &Job, key: &str) -> Result<Submitted, DriverError> {
        let mut keys = self.keys.lock().expect("no panic");
        let is_old = keys.contains_key(key);
        let number = keys.len() + 1;
        let id = keys.entry(key.to_owned()).or_insert_with(|| JobId(format!("queue/{number}"))).clone();
        let mut summary = JobSummary {
            id: id.clone(),
            label: id.to_string(),
            name: job.name.clone(),
            user: "ada".into(),
            submitted_ms: number as u64,
            life: Life { is_held: job.policy.is_held, ..Life::default() },
            nodes_asked: job.gang.nodes(),
            gpus_asked: job.gang.gpus(),
            ..JobSummary::default()
        };
        if !summary.life.is_held {
            start(&mut summary);
        }
        self.jobs.lock().expect("no panic").entry(id.clone()).or_insert(summary);
        let (label, jobs) = (id.to_string(), vec![id.clone()]);
        Ok(Submitted { id, label, count: 1, is_old, remarks: Vec::new(), jobs })
    }

    fn jobs(&self, query: &JobQuery) -> Result<Vec<JobSummary>, DriverError> {
        let jobs = self.jobs.lock().expect("no panic");
        let is_wanted = |job: &&JobSummary| {
            query.name.as_ref().is_none_or(|name| *name == job.name)
                && query.user.as_ref().is_none_or(|user| *user == job.user)
                && (query.states.is_empty() || query.states.contains(&job.life.state))
                && (query.with_ended || !job.life.state.is_final())
        };
        let mut found: Vec<JobSummary> = jobs.values().filter(is_wanted).cloned().collect();
        found.sort_by_key(|job| job.submitted_ms);
        if query.with_ended {
            found.reverse();
        }
        found.truncate(query.limit.unwrap_or(usize::MAX));
        Ok(found)
    }

    fn job(&self, id: &JobId) -> Result<JobDetail, DriverError> {
        let summary = self.summary(id)?;
        Ok(JobDetail {
            tasks: Vec::new(),
            diagnosis: Vec::new(),
            summary,
            runs: Vec::new(),
            notes: Vec::new(),
            text: None,
            expected: None,
            steps: None,
        })
    }

    fn order(&self, id: &JobId, order: JobOrder) -> Result<(), DriverError> {
        order.needs().map_or(Ok(()), |capability| self.needs(capability))?;
        if self.summary(id)?.life.state.is_final() {
            return Err(no("has_ended", format!("job {id} has ended")));
        }
        let mut jobs = self.jobs.lock().expect("no panic");
        let job = jobs.get_mut(id).expect("it was just found");
        match order {
            JobOrder::Cancel => {
                (job.life.state, job.life.ended_ms) = (JobState::Cancelled, Some(2));
                job.life.reason = Some(Reason::new("cancelled", "cancelled"));
                job.nodes.clear();
            }
            JobOrder::Hold => job.life.is_held = true,
            JobOrder::Release | JobOrder::Requeue => {
                job.life.is_held = false;
                start(job);
            }
        }
        Ok(())
    }

    fn nodes(&self) -> Result<Vec<NodeSummary>, DriverError> {
        let drained = self.drained.lock().expect("no panic").clone();
        Ok(vec![NodeSummary {
            name: NodeId::from("n1"),
            state: if drained.is_some() { NodeState::Drained } else { NodeState::Idle },
            reason: drained.map(|why| Reason::new("out_of_service", why)),
            address: String::new(),
            host: HostView::default(),
            kind: "p5.48xlarge".into(),
            gpus: 8,
            gpus_free: 8,
            cpus: 192,
            memory_mib: 0,
            jobs: Vec::new(),
            is_linked: true,
            heard_ms: None,
            losses: 0,
            findings: Vec::new(),
        }])
    }

    fn node(&self, id: &NodeId) -> Result<NodeDetail, DriverError> {
        let found = self.nodes()?.into_iter().find(|node| node.name == *id);
        let summary = found.ok_or_else(|| no("no_such_node", format!("there is no node {id}")))?;
        Ok(NodeDetail { summary, notes: Vec::new() })
    }

    fn cluster(&self) -> Result<ClusterView, DriverError> {
        Ok(ClusterView { name: "memory".into(), rest: serde_json::Map::new() })
    }

    fn explain(&self, id: &JobId) -> Result<Option<Explained>, DriverError> {
        self.needs(Capability::Explain)?;
        let wait = Reason::new("held", "it is held");
        let priority = serde_json::Value::Null;
        let explained = Explained {
            wait,
            priority,
            ahead: None,
            expected_start_ms: None,
            remedies: Vec::new(),
            nodes: None,
        };
        Ok((self.summary(id)?.life.state == JobState::Waiting).then_some(explained))
    }

    fn watch(&self, watched: &Watched, see: See<'_>) -> Result<(), DriverError> {
        self.needs(Capability::Watch)?;
        let mut seen = ClusterEvent::Beat;
        while see(seen).is_continue() {
            let job = watched.job.clone().unwrap_or_default();
            let state = self.summary(&job)?.life.state;
            seen = ClusterEvent::Job { job, state, at_ms: 0 };
        }
        Ok(())
    }

    fn logs(&self, id: &JobId, query: &LogQuery, to: &mut dyn Write) -> Result<u64, DriverError> {
        self.needs(Capability::Logs)?;
        self.summary(id)?;
        to.write_all(b"hello\n").expect("the test reads it");
        Ok(query.offset + 6)
    }

    fn ranks(&self, id: &JobId) -> Result<Vec<RankPlace>, DriverError> {
        self.needs(Capability::Ranks)?;
        self.summary(id)?;
        Ok(vec![RankPlace {
            run: None,
            rank: 0,
            node: NodeId::from("n1"),
            address: String::new(),
            devices: Vec::new(),
        }])
    }

    fn drain(&self, node: &NodeId, reason: &str) -> Result<(), DriverError> {
        self.needs(Capability::Drain)?;
        self.node(node)?;
        *self.drained.lock().expect("no panic") = Some(reason.to_owned());
        Ok(())
    }

    fn resume(&self, node: &NodeId) -> Result<(), DriverError> {
        self.needs(Capability::Drain)?;
        self.node(node)?;
        *self.drained.lock().expect("no panic") = None;
        Ok(())
    }
}

#[test]
fn a_cluster_that_can_do_everything_conforms() {
    suite::conforms(&Fake::new(&Capability::ALL));
}

#[test]
fn a_cluster_that_can_do_little_conforms_and_refuses_the_rest() {
    suite::conforms(&Fake::new(&[]));
    suite::conforms(&Fake::new(&[Capability::Hold, Capability::Logs]));
}
