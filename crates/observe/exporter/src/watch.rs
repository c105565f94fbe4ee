//! The rules over what collectors read: findings, told as soon as they change.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bedplate_finding::{Action, OpenFinding, Subject};
use bedplate_health::counters::{EVERY_S, of_readings};
use bedplate_health::{Health, Reading, Rules, XidSeen};
use bedplate_host::clock;

/// Hears of findings whenever they change.
pub type OnFindings = Arc<dyn Fn(Vec<OpenFinding>) + Send + Sync>;
/// Hears of the counters that are worth comparing, now and then.
pub type OnCounters = Arc<dyn Fn(Vec<(&'static str, f64)>) + Send + Sync>;

/// How often one XID was seen on one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct XidCount {
    pub(crate) gpu: Option<u32>,
    pub(crate) xid: u32,
    pub(crate) count: u64,
    pub(crate) last_ms: u64,
}

pub(crate) struct FindingWatch {
    state: Mutex<State>,
    on_findings: Option<OnFindings>,
    on_counters: Option<OnCounters>,
    /// What was read of counters since they were told.
    counters: Mutex<Counters>,
    clock: Clock,
}

#[derive(Default)]
struct Counters {
    latest: BTreeMap<&'static str, f64>,
    told_ms: u64,
}

struct State {
    health: Health,
    /// What was told last: which findings, how often seen, what they call for.
    told: Vec<(String, Subject, Action, u64)>,
    counted: BTreeMap<String, u64>,
    last_xid: BTreeMap<(Option<u32>, u32), u64>,
}

/// Milliseconds since 1970 that never go back, whatever is done to the host's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    began_ms: u64,
    began: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { began_ms: clock::unix_ms(), began: Instant::now() }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.began_ms + self.began.elapsed().as_millis() as u64
    }
}

impl FindingWatch {
    pub(crate) fn new(
        node: &str,
        rules: Rules,
        on_findings: Option<OnFindings>,
        on_counters: Option<OnCounters>,
    ) -> Self {
        let state = State {
            health: Health::new(node, rules),
            told: Vec::new(),
            counted: BTreeMap::new(),
            last_xid: BTreeMap::new(),
        };
        let (counters, clock) = (Mutex::default(), Clock::start());
        Self { state: Mutex::new(state), on_findings, on_counters, counters, clock }
    }

    pub(crate) fn take<'a>(&self, readings: impl Iterator<Item = Reading<'a>> + Clone) {
        self.count(readings.clone());
        self.change(|state, now_ms| state.health.take(readings, now_ms));
    }

    /// Keeps what is worth comparing, and tells it every few seconds.
    fn count<'a>(&self, readings: impl Iterator<Item = Reading<'a>>) {
        let Some(on_counters) = &self.on_counters else { return };
        let now_ms = self.clock.now_ms();
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters.latest.extend(of_readings(readings));
        if counters.latest.is_empty() || now_ms < counters.told_ms + (1000.0 * EVERY_S) as u64 {
            return;
        }
        counters.told_ms = now_ms;
        let told = std::mem::take(&mut counters.latest);
        drop(counters);
        on_counters(told.into_iter().collect());
    }

    pub(crate) fn saw_xid(&self, seen: XidSeen<'_>) {
        self.change(|state, now_ms| {
            state.last_xid.insert((seen.gpu, seen.xid), now_ms);
            state.health.saw_xid(seen, now_ms);
        });
    }

    pub(crate) fn saw_line(&self, text: &str) {
        self.change(|state, now_ms| state.health.saw_line(text, now_ms));
    }

    pub(crate) fn acknowledge(&self, until_ms: u64) {
        self.change(|state, _| state.health.acknowledge(until_ms));
    }

    fn change(&self, change: impl FnOnce(&mut State, u64)) {
        let mut state = self.state();
        change(&mut state, self.clock.now_ms());
        let findings = state.health.findings();
        let shape = |open: &OpenFinding| {
            let finding = &open.finding;
            (finding.rule.clone(), finding.subject.clone(), finding.action, open.times)
        };
        if state.told.is_empty() && findings.is_empty() {
            return;
        }
        let now: Vec<_> = findings.iter().map(shape).collect();
        if now == state.told {
            return;
        }
        for (rule, subject, _, times) in &now {
            let before = state.told.iter().find(|told| told.0 == *rule && told.1 == *subject);
            let more = times.saturating_sub(before.map_or(0, |told| told.3));
            *state.counted.entry(rule.clone()).or_default() += more;
        }
        state.told = now;
        drop(state);
        if let Some(on_findings) = &self.on_findings {
            on_findings(findings);
        }
    }

    pub(crate) fn findings(&self) -> Vec<OpenFinding> {
        self.state().health.findings()
    }

    /// Findings since the start, by rule.
    pub(crate) fn counted(&self) -> Vec<(String, u64)> {
        self.state().counted.iter().map(|(rule, count)| (rule.clone(), *count)).collect()
    }

    pub(crate) fn xids(&self) -> Vec<XidCount> {
        let state = self.state();
        let last = |gpu, xid| state.last_xid.get(&(gpu, xid)).copied().unwrap_or(0);
        let counts = state.health.xid_counts();
        counts.map(|(gpu, xid, count)| XidCount { gpu, xid, count, last_ms: last(gpu, xid) }).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
