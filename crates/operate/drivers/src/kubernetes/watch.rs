//! Changes of jobs, told when the server tells of a change of their objects.

use std::collections::BTreeMap;
use std::time::Duration;

use bedplate_host::clock;
use bedplate_job::kubernetes::ManifestKind;
use bedplate_kubernetes::KubernetesError;
use bedplate_kubernetes::kube::api::WatchParams;
use futures_util::AsyncBufReadExt;
use futures_util::io::AsyncBufRead;
use tokio::time::timeout;

use super::Kubernetes;
use super::server::{Kind, Server};
use crate::{ClusterEvent, Driver, DriverError, JobId, JobQuery, JobState, See, Watched};

/// Pods go after their job's object has changed for the last time, so it is looked at again after this.
const LOOK: Duration = Duration::from_secs(2);

impl Kubernetes {
    /// Hands over every change of state, and a beat after each look. The last state always is handed over.
    pub(super) fn watch_objects(&self, watched: &Watched, see: See<'_>) -> Result<(), DriverError> {
        let mut known = self.states(watched)?;
        let mut changes = None;
        loop {
            if see(ClusterEvent::Beat).is_break() {
                return Ok(());
            }
            let now = self.states(watched)?;
            for (job, state) in &now {
                let seen = ClusterEvent::Job { job: job.clone(), state: *state, at_ms: clock::unix_ms() };
                if known.get(job) != Some(state) && see(seen).is_break() {
                    return Ok(());
                }
            }
            known = now;
            let mut stream = match changes.take() {
                Some(stream) => stream,
                None => self.changes(watched)?,
            };
            if self.server.connection.wait(changed(&mut stream)) {
                changes = Some(stream);
            }
        }
    }

    /// A line for each change of an object from now on.
    fn changes(&self, watched: &Watched) -> Result<impl AsyncBufRead + Unpin + use<>, DriverError> {
        let namespace = match &watched.job {
            Some(id) => self.split(id)?.0,
            None => self.namespace(),
        };
        let kind = if self.manifest_kind()? == ManifestKind::JobSet { Kind::JobSets } else { Kind::Jobs };
        let request = Server::requests(kind, namespace).watch(&WatchParams::default(), "");
        let request = self.server.checked(request)?;
        let client = self.server.connection.client();
        let stream = self.server.connection.ask(async move { client.request_stream(request).await });
        stream.map(Box::pin).map_err(|error: KubernetesError| error.into())
    }

    fn states(&self, watched: &Watched) -> Result<BTreeMap<JobId, JobState>, DriverError> {
        if let Some(id) = &watched.job {
            let record = self.record(id)?;
            return Ok(BTreeMap::from([(record.id(), record.state())]));
        }
        let on_node = |nodes: &[crate::NodeId]| watched.node.as_ref().is_none_or(|node| nodes.contains(node));
        let jobs = self.jobs(&JobQuery { with_ended: true, ..JobQuery::default() })?.into_iter();
        Ok(jobs.filter(|job| on_node(&job.nodes)).map(|job| (job.id, job.life.state)).collect())
    }
}

/// Waits for a change, or for as long as nobody looks. `false`: the stream has ended.
async fn changed(stream: &mut (impl AsyncBufRead + Unpin)) -> bool {
    let mut line = Vec::new();
    match timeout(LOOK, stream.read_until(b'\n', &mut line)).await {
        Ok(Ok(bytes)) => bytes > 0,
        Ok(Err(_)) => false,
        Err(_) => line.is_empty(),
    }
}
