//! The node's readings of itself: findings for the control plane, labels by job, energy of runs, metrics of ranks.

use std::collections::BTreeMap;

use bedplate_control::wire::{Launch, RunId};
use bedplate_exporter::{Exporter, JobOnGpu, ScrapeTarget};
use bedplate_record::MetricsServer;
use tracing::warn;

use super::Node;
use crate::event::AgentEvent;

/// More endpoints than one run has on a node.
const MOST_TARGETS: usize = 256;

pub(super) struct Observing {
    exporter: Exporter,
    /// Answers Prometheus while it lives.
    _server: Option<MetricsServer>,
    /// The energy counters of a run's GPUs when it started, in millijoules.
    began: BTreeMap<RunId, BTreeMap<u32, u64>>,
    targets: BTreeMap<(RunId, u32), ScrapeTarget>,
}

impl Node {
    /// A node that cannot read itself works all the same, and says so.
    pub(super) fn begin_observing(&mut self) {
        let Some(observe) = self.options.observe.clone() else { return };
        let events = self.events.clone();
        let mut options = observe.exporter;
        options.on_findings =
            Some(std::sync::Arc::new(move |findings| drop(events.send(AgentEvent::Found(findings)))));
        let events = self.events.clone();
        options.on_counters =
            Some(std::sync::Arc::new(move |counters| drop(events.send(AgentEvent::Counted(counters)))));
        let exporter = match Exporter::start(options) {
            Ok(exporter) => exporter,
            Err(error) => return warn!(node = self.options.node, "nothing watches this node: {error}"),
        };
        let server = observe
            .listen
            .map(|(address, exposure)| MetricsServer::start(address, exposure, exporter.reader()));
        let server = match server.transpose() {
            Ok(server) => server,
            Err(error) => {
                warn!(node = self.options.node, "its metrics are not offered: {error}");
                None
            }
        };
        self.observing =
            Some(Observing { exporter, _server: server, began: BTreeMap::new(), targets: BTreeMap::new() });
    }

    /// The ranks of a run have started.
    pub(super) fn observe_start(&mut self, run: RunId) {
        let Some(observing) = &mut self.observing else { return };
        if let Some(local) = self.runs.get(&run).filter(|local| !local.launch.shares_device) {
            let mut energy = observing.exporter.energy_mj();
            energy.retain(|gpu, _| local.launch.devices.contains(gpu));
            observing.began.insert(run, energy);
        }
        self.label_jobs();
    }

    /// Nothing of the run is left: the energy that its GPUs used, where all of them say.
    pub(super) fn observe_end(&mut self, run: RunId) -> Option<u64> {
        let observing = self.observing.as_mut()?;
        let began = observing.began.remove(&run);
        observing.targets.retain(|(of, _), _| *of != run);
        let targets = observing.targets.values().cloned().collect();
        observing.exporter.set_targets(targets);
        let now = observing.exporter.energy_mj();
        self.label_jobs();
        let began = began.filter(|began| !began.is_empty())?;
        let used = began.iter().map(|(gpu, before)| Some(now.get(gpu)?.saturating_sub(*before)));
        let used: Option<Vec<u64>> = used.collect();
        Some(used?.iter().sum::<u64>() / 1000)
    }

    /// A rank offers metrics of its own on this node.
    pub(super) fn observe_rank(&mut self, run: RunId, rank: u32, address: &str) {
        let Some(observing) = &mut self.observing else { return };
        if let Ok(mut target) = ScrapeTarget::parse(address)
            && observing.targets.len() < MOST_TARGETS
        {
            (target.job, target.rank) = (Some(run.job.to_string()), Some(rank.to_string()));
            observing.targets.insert((run, rank), target);
            observing.exporter.set_targets(observing.targets.values().cloned().collect());
        }
    }

    fn label_jobs(&self) {
        let Some(observing) = &self.observing else { return };
        let mut jobs: BTreeMap<u32, JobOnGpu> = BTreeMap::new();
        for local in self.runs.values().filter(|local| local.master_port.is_some()) {
            for (gpu, job) in labels(&local.launch) {
                let known = jobs.entry(gpu).or_default();
                // A GPU that is shared has several.
                known.job = if known.job.is_empty() { job.job } else { format!("{},{}", known.job, job.job) };
                known.rank = known.rank.take().or(job.rank);
            }
        }
        observing.exporter.set_jobs(jobs);
    }

    pub(super) fn acknowledge(&self, until_ms: u64) {
        if let Some(observing) = &self.observing {
            observing.exporter.acknowledge(until_ms);
        }
    }

    pub(super) fn pretend_xid(&self, gpu: u32, xid: u32) {
        match &self.observing {
            Some(observing) => observing.exporter.pretend_xid(gpu, xid),
            None => warn!(node = self.options.node, "nothing watches this node, so an XID changes nothing"),
        }
    }
}

/// Which rank has which GPU: one each, or all of them the same.
fn labels(launch: &Launch) -> Vec<(u32, JobOnGpu)> {
    let job = launch.run.job.to_string();
    let all: Vec<String> = launch.ranks.iter().map(u32::to_string).collect();
    let rank = |at: usize| match (launch.devices.len(), all.len()) {
        (_, 0) => None,
        (devices, ranks) if devices == ranks => Some(all[at].clone()),
        (devices, 1) if devices > 1 => Some(all[0].clone()),
        (1, _) => Some(all.join(",")),
        _ => None,
    };
    let gpus = launch.devices.iter().enumerate();
    gpus.map(|(at, gpu)| (*gpu, JobOnGpu { job: job.clone(), rank: rank(at) })).collect()
}
