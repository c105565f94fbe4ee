//! What the scheduler counts, for Prometheus.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bedplate_pods::{BindOutcome, Judged, PodAction};
use bedplate_record::{Counter, Exposition, Histogram};

/// Seconds that a decision takes.
const DECISIONS: [f64; 8] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0];

#[derive(Debug)]
pub(crate) struct Figures {
    decisions: Histogram,
    waiting_gangs: AtomicU64,
    waiting_pods: AtomicU64,
    bound: Counter,
    not_bound: Counter,
    evicted: Counter,
    taken_out: Counter,
    asked_for_nodes: Counter,
    allowed: Counter,
    refused: Counter,
}

impl Default for Figures {
    fn default() -> Self {
        let (waiting_gangs, waiting_pods) = (AtomicU64::new(0), AtomicU64::new(0));
        let [bound, not_bound, evicted, taken_out, asked_for_nodes, allowed, refused] =
            [(); 7].map(|()| Counter::default());
        let decisions = Histogram::of(&DECISIONS);
        Self {
            decisions,
            waiting_gangs,
            waiting_pods,
            bound,
            not_bound,
            evicted,
            taken_out,
            asked_for_nodes,
            allowed,
            refused,
        }
    }
}

impl Figures {
    pub(crate) fn decided(&self, took: Duration, (gangs, pods): (usize, usize), actions: &[PodAction]) {
        self.decisions.observe(took);
        self.waiting_gangs.store(gangs as u64, Ordering::Relaxed);
        self.waiting_pods.store(pods as u64, Ordering::Relaxed);
        for action in actions {
            match action {
                PodAction::Evict { .. } => self.evicted.add(1),
                PodAction::TakeOut { .. } => self.taken_out.add(1),
                PodAction::AskForNodes { .. } => self.asked_for_nodes.add(1),
                PodAction::Bind { .. } | PodAction::Tell { .. } | PodAction::AskNoMore { .. } => {}
            }
        }
    }

    pub(crate) fn bound(&self, outcome: BindOutcome) {
        match outcome {
            BindOutcome::Done => self.bound.add(1),
            BindOutcome::Refused | BindOutcome::Unknown => self.not_bound.add(1),
        }
    }

    pub(crate) fn judged(&self, judged: &Judged) {
        match judged {
            Judged::Fits | Judged::Unknown => self.allowed.add(1),
            Judged::Refused(_) => self.refused.add(1),
        }
    }

    pub(crate) fn exposition(&self, leads: bool) -> String {
        let mut text = Exposition::default();
        let number = |gauge: &AtomicU64| gauge.load(Ordering::Relaxed) as f64;
        text.gauge("bedplate_scheduler_leads", "Whether it holds the Lease.", f64::from(u8::from(leads)));
        let (gangs, pods) = (number(&self.waiting_gangs), number(&self.waiting_pods));
        text.gauge("bedplate_scheduler_waiting_gangs", "Gangs with pods that are not bound.", gangs);
        text.gauge("bedplate_scheduler_waiting_pods", "Pods that are not bound.", pods);
        let counters = [
            ("bound_pods_total", "Pods bound.", &self.bound),
            ("failed_bindings_total", "Bindings that were refused or not answered.", &self.not_bound),
            ("evicted_pods_total", "Pods deleted.", &self.evicted),
            ("nodes_taken_out_total", "Nodes asked to be taken out of service.", &self.taken_out),
            (
                "lacking_gangs_total",
                "Gangs that asked for nodes, each again after ten minutes.",
                &self.asked_for_nodes,
            ),
            ("allowed_bindings_total", "Bindings of others that were let through.", &self.allowed),
            ("refused_bindings_total", "Bindings of others for which there was no room.", &self.refused),
        ];
        for (name, help, counter) in counters {
            text.counter(&format!("bedplate_scheduler_{name}"), help, counter.get());
        }
        let name = "bedplate_scheduler_decision_seconds";
        text.head(name, "histogram", "How long decisions take.");
        text.histogram(name, "", &self.decisions.cumulative(), self.decisions.sum());
        text.into_string()
    }
}
