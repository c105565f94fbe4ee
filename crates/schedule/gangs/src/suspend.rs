//! Gangs stopped in place: their GPUs and cores are free for others, their memory and their place are kept.

use crate::amount::summed_by_node;
use crate::jobs::EntryState;
use crate::scheduler::Scheduler;
use crate::{Amount, Decision, JobId, NodeShare, StopReason, Then, Time};

impl Scheduler {
    /// Stops a gang in place: its GPUs and cores are free, its memory stays.
    pub(crate) fn suspend(&mut self, job: JobId, for_job: JobId, now: Time) {
        let Some(run) = self.take_run(job, now) else {
            return;
        };
        self.decisions.push(Decision::Stop {
            job,
            grace: crate::Span::ZERO,
            why: StopReason::PreemptedBy(for_job),
            then: Then::Suspend,
        });
        for share in &run.shares {
            let whole = self.booking(job, usize::from(share.role), share.node.0, now, Time::NEVER);
            self.fleet.book_devices(share.node.0, whole.suspended());
        }
        self.jobs.suspend(job, run);
    }

    /// Continues suspended gangs whose very GPUs are free for as long as they still need.
    pub(crate) fn resume_suspended(&mut self, now: Time) {
        let mut suspended: Vec<JobId> = self.jobs.suspended().iter().copied().collect();
        suspended.sort_by_cached_key(|job| self.rank_at(*job, now));
        for job in suspended {
            if self.can_resume(job, now) {
                self.resume(job, now);
            }
        }
    }

    fn can_resume(&self, job: JobId, now: Time) -> bool {
        let EntryState::Suspended(run) = &self.jobs[job].state else {
            return false;
        };
        let left = run.time_left();
        let has_devices =
            |share: &NodeShare| self.fleet.free_devices(share.node.0) & share.devices == share.devices;
        let needs = run.shares.iter().filter_map(|share| {
            let class = &self.jobs[job].classes[usize::from(share.role)];
            let need = class.need_on(self.fleet.capacity(share.node.0))?;
            Some((share.node.0, Amount { memory_mib: 0, ..need }))
        });
        let is_free =
            |(node, need): (u32, Amount)| self.fleet.plan(node).window_at(now, need, left).is_some();
        run.shares.iter().all(has_devices)
            && summed_by_node(needs).into_iter().all(is_free)
            && self.limited_by(job, run.gpus()).is_none()
    }

    fn resume(&mut self, job: JobId, now: Time) {
        let Some(run) = self.jobs.end_suspension(job).map(|run| run.resumed(now)) else {
            return;
        };
        run.shares.iter().for_each(|share| self.fleet.release(share.node.0, job, now));
        for share in &run.shares {
            let booking = self.booking(job, usize::from(share.role), share.node.0, now, run.ends());
            self.fleet
                .book_devices(share.node.0, crate::fleet::Booking { devices: share.devices, ..booking });
        }
        self.count_running(job, run);
        self.decisions.push(Decision::Resume { job });
    }

    /// Frees the memory that a suspended gang holds.
    pub(crate) fn forget_suspended(&mut self, job: JobId, now: Time) {
        for share in self.jobs.end_suspension(job).into_iter().flat_map(|run| run.shares) {
            self.fleet.release(share.node.0, job, now);
            self.news.node_freed(share.node);
        }
    }
}
