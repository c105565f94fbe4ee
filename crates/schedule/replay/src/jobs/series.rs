//! The state of the cluster over time, at even steps.

use bedplate_gangs::{Scheduler, Span, Time};
use bedplate_topology::NodeId;

/// One moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeriesSample {
    pub at: Time,
    /// Share of the GPUs held, on average since the last sample.
    pub utilisation: f64,
    /// Gangs that waited for resources.
    pub waiting: usize,
    /// Share of the free GPUs that are on partly used nodes; none where nothing is free.
    pub fragmentation: Option<f64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct JobSeries {
    pub step: Span,
    pub samples: Vec<SeriesSample>,
}

/// Steps in the window of submissions.
const STEPS: u64 = 400;
/// A queue that takes very long to drain is not sampled to its end.
const MOST: usize = 4_000;

impl JobSeries {
    pub(crate) fn over(window: Span) -> Self {
        Self { step: Span((window.0 / STEPS).max(1000)), samples: Vec::new() }
    }

    /// When the next sample is due.
    pub(crate) fn next(&self) -> Time {
        match self.samples.len() {
            MOST.. => Time::NEVER,
            taken => Time((taken as u64 + 1) * self.step.0),
        }
    }

    pub(crate) fn take(&mut self, scheduler: &Scheduler, held_gpu_ms: f64) {
        let at = self.next();
        let capacity = f64::from(scheduler.cluster().gpu_count().max(1)) * self.step.0 as f64;
        self.samples.push(SeriesSample {
            at,
            utilisation: held_gpu_ms / capacity,
            waiting: scheduler.queue_length(),
            fragmentation: fragmentation(scheduler),
        });
    }

    /// The mean over the window of submissions.
    pub(crate) fn mean_fragmentation(&self) -> f64 {
        let known: Vec<f64> =
            self.samples.iter().take(STEPS as usize).filter_map(|sample| sample.fragmentation).collect();
        known.iter().sum::<f64>() / known.len().max(1) as f64
    }
}

fn fragmentation(scheduler: &Scheduler) -> Option<f64> {
    let cluster = scheduler.cluster();
    let (mut free, mut stranded) = (0u64, 0u64);
    for node in 0..cluster.node_count() {
        let gpus = cluster.node(NodeId(node)).kind().accelerators;
        let idle = scheduler.free_devices(NodeId(node)).count_ones();
        free += u64::from(idle);
        if idle < gpus {
            stranded += u64::from(idle);
        }
    }
    (free > 0).then(|| stranded as f64 / free as f64)
}
