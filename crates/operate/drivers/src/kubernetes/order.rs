//! Cancelling, holding, releasing and putting back: all by suspending.

use std::thread;
use std::time::{Duration, Instant};

use bedplate_host::clock;
use bedplate_kubernetes::kube::api::ListParams;
use bedplate_kubernetes::names;
use serde_json::{Value, json};

use super::record::{Record, annotation, text};
use super::server::Kind;
use super::{Kubernetes, refused};
use crate::{DriverError, JobId, JobOrder, JobState};

/// How long pods may take to go beyond their own grace.
const GOING: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(200);

impl Kubernetes {
    pub(super) fn carry_out(&self, id: &JobId, order: JobOrder) -> Result<(), DriverError> {
        let record = self.record(id)?;
        let state = record.state();
        if state.is_final() || state == JobState::Stopping {
            return Err(refused("ended", format!("job {id} has ended")));
        }
        match order {
            JobOrder::Cancel => self.cancel(&record),
            JobOrder::Hold if state != JobState::Waiting => {
                Err(refused("not_waiting", format!("job {id} does not wait any more")))
            }
            JobOrder::Hold => self.hold(&record),
            JobOrder::Release if !record.is_held() => {
                Err(refused("not_held", format!("job {id} is not held")))
            }
            JobOrder::Release => self.release(&record),
            JobOrder::Requeue if state == JobState::Waiting => {
                Err(refused("not_running", format!("job {id} does not run")))
            }
            JobOrder::Requeue => self.requeue(&record),
        }
    }

    fn cancel(&self, record: &Record) -> Result<(), DriverError> {
        self.mark(record, &json!({ names::CANCELLED: clock::unix_ms().to_string() }), true)?;
        self.activate(record, false)
    }

    fn hold(&self, record: &Record) -> Result<(), DriverError> {
        self.mark(record, &json!({ names::HELD: "true" }), true)?;
        self.activate(record, false)
    }

    /// What stands in a queue of Kueue is started by Kueue.
    fn release(&self, record: &Record) -> Result<(), DriverError> {
        let is_queued = !record.queue().is_empty() && self.has_group("kueue.x-k8s.io")?;
        self.mark(record, &json!({ names::HELD: null }), is_queued)?;
        self.activate(record, true)
    }

    /// Held until its pods are gone, then released: whoever finds it held in between can release it.
    fn requeue(&self, record: &Record) -> Result<(), DriverError> {
        let before: u64 =
            annotation(&record.object, names::REQUEUES).and_then(|text| text.parse().ok()).unwrap_or(0);
        self.mark(record, &json!({ names::HELD: "true", names::REQUEUES: (before + 1).to_string() }), true)?;
        self.activate(record, false)?;
        let grace = record.template()["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap_or(30);
        let until = Instant::now() + Duration::from_secs(grace) + GOING;
        let id = record.id();
        loop {
            let now = self.record(&id)?;
            if now.pods.is_empty() && now.going == 0 {
                return self.release(&now);
            }
            if Instant::now() > until {
                let text = format!(
                    "the pods of job {id} do not end; it is held, and `bedplate job release {id}` lets it start again"
                );
                return Err(refused("not_stopping", text));
            }
            thread::sleep(LOOK);
        }
    }

    fn mark(&self, record: &Record, annotations: &Value, suspend: bool) -> Result<(), DriverError> {
        let kind = if record.is_job_set() { Kind::JobSets } else { Kind::Jobs };
        let patch = json!({ "metadata": { "annotations": annotations }, "spec": { "suspend": suspend } });
        self.server.patch(kind, record.namespace(), record.name(), &patch).map(drop)
    }

    /// Kueue suspends and starts what stands in its queues. It is told by the Workload whether it may.
    fn activate(&self, record: &Record, is_active: bool) -> Result<(), DriverError> {
        if record.queue().is_empty() {
            return Ok(());
        }
        let Some((path, workload)) = self.workload(record)? else { return Ok(()) };
        let name = text(&workload["metadata"]["name"]);
        self.server.patch_at(&path, name, &json!({ "spec": { "active": is_active } })).map(drop)
    }

    /// Kueue's Workload of a job, and where Workloads are.
    pub(super) fn workload(&self, record: &Record) -> Result<Option<(String, Value)>, DriverError> {
        let Some(group) = self.server.find("/apis/kueue.x-k8s.io")? else { return Ok(None) };
        let version = text(&group["preferredVersion"]["groupVersion"]);
        let path = format!("/apis/{version}/namespaces/{}/workloads", record.namespace());
        let uid = text(&record.object["metadata"]["uid"]);
        let query = ListParams::default().labels(&format!("kueue.x-k8s.io/job-uid={uid}"));
        let found = self.server.list_at(&path, &query)?.into_iter().next();
        Ok(found.map(|workload| (path, workload)))
    }
}
