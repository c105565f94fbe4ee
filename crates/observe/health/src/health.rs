//! The rules of one node at work: what was seen, which findings are open.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bedplate_finding::{Evidence, Finding, OpenFinding, Subject};
use bedplate_units::Seconds;

use crate::history::History;
use crate::reading::OwnedPlace;
use crate::rule::{Condition, Rule, Threshold, Trend};
use crate::xids::{Judged, Xids};
use crate::{Reading, Rules, XidCatalog, XidSeen};

/// A value that has not been read for this long says nothing any more.
const STALE_MS: u64 = 60_000;
/// How long a single XID stays open.
const XID_HOLD_MS: u64 = 86_400_000;
/// More findings than a person reads; a node that has more keeps the first ones.
const MOST_OPEN: usize = 200;
const LONGEST_TEXT: usize = 300;

/// What is known about one node.
#[derive(Debug, Clone)]
pub struct Health {
    node: String,
    rules: Rules,
    catalog: XidCatalog,
    /// Rules that watch a metric, by its name.
    watchers: BTreeMap<String, Vec<usize>>,
    /// The newest values of metrics that others are compared with.
    companions: BTreeMap<String, BTreeMap<OwnedPlace, f64>>,
    levels: BTreeMap<(usize, OwnedPlace), Level>,
    histories: BTreeMap<(usize, OwnedPlace), (History, u64)>,
    lines: BTreeMap<usize, VecDeque<u64>>,
    xids: Xids,
    open: BTreeMap<Key, Open>,
    /// Findings that an operator knows of; they stay silent until they have been settled once.
    muted: BTreeSet<Key>,
}

type Key = (String, Subject);

#[derive(Debug, Clone)]
struct Open {
    finding: OpenFinding,
    /// When it ends by itself: events do, conditions end when they are settled.
    until_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Level {
    bad_since_ms: Option<u64>,
    seen_ms: u64,
    /// Between the last two readings.
    pause_ms: u64,
}

impl Health {
    pub fn new(node: &str, rules: Rules) -> Self {
        let mut watchers: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        let mut companions = BTreeMap::new();
        for (at, rule) in rules.rules.iter().enumerate() {
            let mut metrics = rule.metrics().into_iter();
            if let Some(metric) = metrics.next() {
                watchers.entry(metric.to_owned()).or_default().push(at);
            }
            companions.extend(metrics.map(|metric| (metric.to_owned(), BTreeMap::new())));
        }
        Self {
            node: node.to_owned(),
            rules,
            catalog: XidCatalog::default(),
            watchers,
            companions,
            levels: BTreeMap::new(),
            histories: BTreeMap::new(),
            lines: BTreeMap::new(),
            xids: Xids::default(),
            open: BTreeMap::new(),
            muted: BTreeSet::new(),
        }
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// What is wrong now, by rule.
    pub fn findings(&self) -> Vec<OpenFinding> {
        self.open.values().map(|open| open.finding.clone()).collect()
    }

    /// How often each XID was seen on each GPU.
    pub fn xid_counts(&self) -> impl Iterator<Item = (Option<u32>, u32, u64)> {
        self.xids.counts()
    }

    /// Readings of one moment.
    pub fn take<'a>(&mut self, readings: impl Iterator<Item = Reading<'a>> + Clone, now_ms: u64) {
        for reading in readings.clone() {
            if let Some(values) = self.companions.get_mut(reading.metric) {
                values.insert(OwnedPlace::of(reading.place), reading.value);
            }
        }
        for reading in readings {
            let Some(watchers) = self.watchers.get(reading.metric) else { continue };
            for at in watchers.clone() {
                self.judge(at, reading, now_ms);
            }
        }
        self.tick(now_ms);
    }

    fn judge(&mut self, at: usize, reading: Reading<'_>, now_ms: u64) {
        let part = OwnedPlace::of(reading.place);
        let evidence = match &self.rules.rules[at].condition {
            Condition::Level { limit, lasts_ms, during, metric } => {
                let (limit, lasts_ms, metric) = (limit.clone(), *lasts_ms, metric.clone());
                let other = match &limit {
                    Threshold::BelowMetric(other) => self.companion(other, &part),
                    _ => None,
                };
                let is_meant = during.as_ref().is_none_or(|(metric, limit)| {
                    let value = self.companion(metric, &part);
                    value.and_then(|value| limit.is_hurt_by(value, None)) == Some(true)
                });
                let Some(is_bad) = limit.is_hurt_by(reading.value, other) else { return };
                let lasted = self.level(at, &part, is_bad && is_meant, now_ms);
                lasted.is_some_and(|lasted| lasted >= lasts_ms).then(|| Evidence {
                    what: metric,
                    reading: number(reading.value),
                    expected: Some(limit.expected(other)),
                })
            }
            Condition::Increase { metric, at_least, within_ms, trend } => {
                let (metric, at_least, within_ms, trend) = (metric.clone(), *at_least, *within_ms, *trend);
                let grown = self.grown(at, &part, reading.value, within_ms, trend, now_ms);
                (grown >= at_least).then(|| Evidence {
                    what: metric,
                    reading: format!("+{} within {}", number(grown), span(within_ms)),
                    expected: Some(format!("less than +{}", number(at_least))),
                })
            }
            Condition::Log { .. } | Condition::Xid { .. } => return,
        };
        match evidence {
            Some(evidence) => self.fire(at, &part, evidence, None, now_ms),
            None => self.settle(at, &part),
        }
    }

    fn companion(&self, metric: &str, part: &OwnedPlace) -> Option<f64> {
        self.companions.get(metric)?.get(part).copied()
    }

    /// How long a value has been bad; nothing when it is not.
    fn level(&mut self, at: usize, part: &OwnedPlace, is_bad: bool, now_ms: u64) -> Option<u64> {
        let level = self.levels.entry((at, part.clone())).or_insert(Level {
            bad_since_ms: None,
            seen_ms: now_ms,
            pause_ms: 0,
        });
        // What was in a pause that is longer than usual is not known: the reader may have been stopped.
        let pause_ms = now_ms.saturating_sub(level.seen_ms);
        let before = level.bad_since_ms.filter(|_| pause_ms <= STALE_MS.max(2 * level.pause_ms));
        (level.seen_ms, level.pause_ms) = (now_ms, pause_ms);
        level.bad_since_ms = is_bad.then(|| before.unwrap_or(now_ms));
        level.bad_since_ms.map(|since| now_ms.saturating_sub(since))
    }

    /// How much a counter grew within the window; nothing when it grows no faster than it used to.
    fn grown(
        &mut self,
        at: usize,
        part: &OwnedPlace,
        value: f64,
        within_ms: u64,
        trend: Option<Trend>,
        now_ms: u64,
    ) -> f64 {
        let window = trend.map_or(within_ms, |trend| trend.baseline_ms);
        let entry = self.histories.entry((at, part.clone()));
        let (history, seen) = entry.or_insert_with(|| (History::new(window, value, now_ms), now_ms));
        *seen = now_ms;
        history.take(value, now_ms);
        let grown = history.increase(within_ms, now_ms);
        let Some(trend) = trend else { return grown };
        let followed = history.length_ms(now_ms);
        if followed < within_ms.saturating_mul(2) {
            return 0.0;
        }
        let usual = history.increase(followed, now_ms) / followed as f64;
        if grown / within_ms as f64 > trend.faster_than * usual { grown } else { 0.0 }
    }

    /// A line of the kernel log, without its head. XIDs come by [`Health::saw_xid`].
    pub fn saw_line(&mut self, text: &str, now_ms: u64) {
        for at in 0..self.rules.rules.len() {
            let Condition::Log { words, times, within_ms } = &self.rules.rules[at].condition else {
                continue;
            };
            if !words.iter().all(|word| text.contains(word.as_str())) {
                continue;
            }
            let (times, within_ms) = (*times, *within_ms);
            let seen = self.lines.entry(at).or_default();
            seen.push_back(now_ms);
            while seen.len() > times as usize {
                seen.pop_front();
            }
            let is_enough = seen.len() == times as usize
                && seen.front().is_some_and(|first| now_ms.saturating_sub(*first) <= within_ms);
            if is_enough {
                let evidence =
                    Evidence { what: "kernel log".into(), reading: shortened(text), expected: None };
                self.fire(at, &OwnedPlace::Node, evidence, Some(now_ms + within_ms), now_ms);
            }
        }
    }

    /// An XID, by the kernel log or by the driver. One that both report counts once.
    pub fn saw_xid(&mut self, seen: XidSeen<'_>, now_ms: u64) {
        if !self.xids.take(&seen, now_ms) {
            return;
        }
        let judged = self.xids.judge(&self.catalog, self.rules.profile, &seen, now_ms);
        let part = seen.gpu.map_or(OwnedPlace::Node, OwnedPlace::Gpu);
        let subject = part.subject(&self.node);
        let Judged { rule, action, layer, summary, confidence } = judged;
        let evidence = Evidence {
            what: format!("XID {} ({})", seen.xid, seen.source),
            reading: shortened(seen.text),
            expected: None,
        };
        let finding = Finding::new(&rule, crate::catalog::severity_of(action), layer, subject, action)
            .because(summary)
            .with_evidence(evidence)
            .with_confidence(confidence);
        self.open_or_renew(finding, Some(now_ms + XID_HOLD_MS), now_ms);
        self.correlate(&seen, &part, now_ms);
    }

    /// What this XID means together with earlier ones.
    fn correlate(&mut self, seen: &XidSeen<'_>, part: &OwnedPlace, now_ms: u64) {
        for at in 0..self.rules.rules.len() {
            let Condition::Xid { within_ms, .. } = &self.rules.rules[at].condition else { continue };
            let within_ms = *within_ms;
            if let Some(reading) = self.xids.matches(&self.rules.rules[at].condition, seen, now_ms) {
                let evidence = Evidence { what: "XIDs".into(), reading, expected: None };
                self.fire(at, part, evidence, Some(now_ms + within_ms.max(XID_HOLD_MS)), now_ms);
            }
        }
    }

    /// Ends what has ended by itself, or of which nothing was heard.
    pub fn tick(&mut self, now_ms: u64) {
        self.open.retain(|_, open| open.until_ms.is_none_or(|until| now_ms < until));
        let is_stale = |seen: u64| now_ms.saturating_sub(seen) > STALE_MS;
        let levels = self.levels.iter().filter(|(_, level)| is_stale(level.seen_ms)).map(|(key, _)| key);
        let histories = self.histories.iter().filter(|(_, (_, seen))| is_stale(*seen)).map(|(key, _)| key);
        let stale: Vec<(usize, OwnedPlace)> = levels.chain(histories).cloned().collect();
        for (at, part) in stale {
            self.levels.remove(&(at, part.clone()));
            self.settle(at, &part);
        }
        // A counter that comes back within its window goes on; others are forgotten with the part that they were of.
        self.histories
            .retain(|_, (history, seen)| now_ms.saturating_sub(*seen) <= STALE_MS + history.window_ms());
    }

    /// An operator knows of everything that was found until then and trusts the node again.
    pub fn acknowledge(&mut self, until_ms: u64) {
        let known: Vec<Key> = self
            .open
            .iter()
            .filter(|(_, open)| open.finding.since_ms <= until_ms)
            .map(|(key, _)| key.clone())
            .collect();
        for key in known {
            let is_condition = self.open.remove(&key).is_some_and(|open| open.until_ms.is_none());
            if is_condition {
                self.muted.insert(key);
            }
        }
        self.xids.forget_before(until_ms);
        self.lines.clear();
    }

    fn fire(&mut self, at: usize, part: &OwnedPlace, evidence: Evidence, until_ms: Option<u64>, now_ms: u64) {
        let rule: &Rule = &self.rules.rules[at];
        let action = rule.action(self.rules.profile);
        let finding = Finding::new(&rule.name, rule.severity, rule.layer, part.subject(&self.node), action)
            .because(rule.summary.clone())
            .with_evidence(evidence)
            .with_confidence(rule.confidence);
        self.open_or_renew(finding, until_ms, now_ms);
    }

    fn open_or_renew(&mut self, finding: Finding, until_ms: Option<u64>, now_ms: u64) {
        let key = (finding.rule.clone(), finding.subject.clone());
        if self.muted.contains(&key) {
            return;
        }
        let has_room = self.open.len() < MOST_OPEN;
        match self.open.get_mut(&key) {
            Some(open) => {
                open.until_ms = until_ms;
                // A condition that holds is one finding however often it is read.
                open.finding.times += u64::from(until_ms.is_some());
                open.finding.seen_ms = now_ms;
                open.finding.finding = finding;
            }
            None if has_room => {
                let finding = OpenFinding { finding, since_ms: now_ms, seen_ms: now_ms, times: 1 };
                self.open.insert(key, Open { finding, until_ms });
            }
            None => {}
        }
    }

    /// The condition of a rule does not hold.
    fn settle(&mut self, at: usize, part: &OwnedPlace) {
        let name = &self.rules.rules[at].name;
        let is_it = |key: &&Key| key.0 == *name && key.1 == part.subject(&self.node);
        let of_rule = (name.clone(), Subject::Cluster)..;
        let known = self.open.range(of_rule.clone()).map(|(key, _)| key).find(is_it).cloned();
        if let Some(key) = known {
            self.open.remove(&key);
        }
        if !self.muted.is_empty() {
            let known = self.muted.range(of_rule).find(is_it).cloned();
            if let Some(key) = known {
                self.muted.remove(&key);
            }
        }
    }
}

fn shortened(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(LONGEST_TEXT).collect()
}

fn number(value: f64) -> String {
    let rounded = (value * 1000.0).round() / 1000.0;
    rounded.to_string()
}

/// A window for people.
fn span(ms: u64) -> String {
    let (number, unit) = Seconds::new(ms as f64 / 1000.0).exactly();
    format!("{number} {unit}")
}

#[cfg(test)]
mod tests;
