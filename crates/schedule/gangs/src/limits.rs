//! What runs now, counted the way limits count it.

use std::collections::BTreeMap;

use crate::{GangRequest, JobId, QosId, Settings, UserId, Wait};

/// Counts of running gangs. Taken when a gang starts, given back when its nodes are free.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    gpus_of_qos: BTreeMap<QosId, u64>,
    of_user: BTreeMap<(QosId, UserId), Holding>,
    of_array: BTreeMap<JobId, u32>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Holding {
    gpus: u64,
    jobs: u32,
}

impl Ledger {
    pub(crate) fn start(&mut self, request: &GangRequest, gpus: u64) {
        *self.gpus_of_qos.entry(request.qos).or_default() += gpus;
        let holding = self.of_user.entry((request.qos, request.user)).or_default();
        holding.gpus += gpus;
        holding.jobs += 1;
        if let Some(task) = request.array {
            *self.of_array.entry(task.array).or_default() += 1;
        }
    }

    pub(crate) fn end(&mut self, request: &GangRequest, gpus: u64) {
        self.resize(request, gpus, 0);
        let holding =
            self.of_user.get_mut(&(request.qos, request.user)).expect("it was counted at its start");
        holding.jobs -= 1;
        if *holding == Holding::default() {
            self.of_user.remove(&(request.qos, request.user));
        }
        if let Some(task) = request.array {
            let running = self.of_array.get_mut(&task.array).expect("it was counted at its start");
            *running -= 1;
        }
    }

    /// A running gang has another number of GPUs than before.
    pub(crate) fn resize(&mut self, request: &GangRequest, before: u64, after: u64) {
        let all = self.gpus_of_qos.get_mut(&request.qos).expect("it was counted at its start");
        *all = *all + after - before;
        let holding =
            self.of_user.get_mut(&(request.qos, request.user)).expect("it was counted at its start");
        holding.gpus = holding.gpus + after - before;
    }

    /// Without the zeros that gangs leave behind.
    #[cfg(test)]
    pub(crate) fn without_zeros(mut self) -> Self {
        self.gpus_of_qos.retain(|_, gpus| *gpus > 0);
        self.of_array.retain(|_, jobs| *jobs > 0);
        self
    }

    /// The limit that a gang of `gpus` GPUs would break if it started now.
    pub(crate) fn broken_by(&self, request: &GangRequest, gpus: u64, settings: &Settings) -> Option<Wait> {
        self.array_limit(request).or_else(|| self.qos_limit(request, gpus, settings))
    }

    /// Whether `more` GPUs are within what the gang's QOS allows.
    pub(crate) fn allows_more(&self, request: &GangRequest, more: u64, settings: &Settings) -> bool {
        let qos = settings.qos(request);
        let all = self.gpus_of_qos.get(&request.qos).copied().unwrap_or(0);
        let own = self.of_user.get(&(request.qos, request.user)).copied().unwrap_or_default();
        qos.most_gpus.is_none_or(|most| all + more <= most)
            && qos.most_gpus_per_user.is_none_or(|most| own.gpus + more <= most)
    }

    fn array_limit(&self, request: &GangRequest) -> Option<Wait> {
        let task = request.array?;
        let (running, at_once) = (self.of_array.get(&task.array).copied().unwrap_or(0), task.at_once?);
        (running >= at_once).then_some(Wait::ArrayLimit { running, at_once })
    }

    fn qos_limit(&self, request: &GangRequest, gpus: u64, settings: &Settings) -> Option<Wait> {
        let qos = settings.qos(request);
        let all = self.gpus_of_qos.get(&request.qos).copied().unwrap_or(0);
        let own = self.of_user.get(&(request.qos, request.user)).copied().unwrap_or_default();
        let broken = |what, used: u64, asked: u64, allowed: Option<u64>| {
            let allowed = allowed.filter(|allowed| used + asked > *allowed)?;
            Some(Wait::Limit { what, by: format!("QOS `{}`", qos.name), used, asked, allowed })
        };
        broken("GPUs", all, gpus, qos.most_gpus)
            .or_else(|| broken("GPUs per user", own.gpus, gpus, qos.most_gpus_per_user))
            .or_else(|| broken("jobs per user", own.jobs.into(), 1, qos.most_jobs_per_user.map(u64::from)))
    }
}
