//! Changes, found by asking again and again: Slurm tells of none by itself.

use std::collections::BTreeMap;
use std::thread;

use super::{PAUSE, Slurm, now_s};
use crate::{ClusterEvent, Driver, DriverError, JobId, JobQuery, JobState, See, Watched};

impl Slurm {
    /// Hands over every change of state between two looks, and a beat after each look. States that pass between two looks
    /// are not seen; the last one always is.
    pub(super) fn watch_by_asking(&self, watched: &Watched, see: See<'_>) -> Result<(), DriverError> {
        let mut known = self.states(watched)?;
        loop {
            if see(ClusterEvent::Beat).is_break() {
                return Ok(());
            }
            let now = self.states(watched)?;
            for (job, state) in &now {
                let seen = ClusterEvent::Job { job: job.clone(), state: *state, at_ms: now_s() * 1000 };
                if known.get(job) != Some(state) && see(seen).is_break() {
                    return Ok(());
                }
            }
            known = now;
            thread::sleep(PAUSE);
        }
    }

    fn states(&self, watched: &Watched) -> Result<BTreeMap<JobId, JobState>, DriverError> {
        if let Some(id) = &watched.job {
            return Ok(BTreeMap::from([(id.clone(), self.job(id)?.summary.life.state)]));
        }
        let query = JobQuery { with_ended: false, ..JobQuery::default() };
        let on_node = |nodes: &[crate::NodeId]| watched.node.as_ref().is_none_or(|node| nodes.contains(node));
        let jobs = self.jobs(&query)?.into_iter().filter(|job| on_node(&job.nodes));
        Ok(jobs.map(|job| (job.id, job.life.state)).collect())
    }
}
