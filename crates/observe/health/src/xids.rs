//! XIDs of a node: each counted once, judged by the catalog, and seen together.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use bedplate_finding::{Action, Layer};

use crate::Profile;
use crate::catalog::{Decode, XidCatalog, XidEntry};
use crate::rule::Condition;

/// How soon after another XID of its GPU one counts as its consequence.
const CONSEQUENCE_MS: u64 = 10_000;
/// Processes of one job die within this time; a second job takes longer to come.
const SAME_FAILURE_MS: u64 = 60_000;
const MOST_REMEMBERED: usize = 1024;
/// More codes than there are, so that a damaged log does not fill memory.
const MOST_COUNTED: usize = 4096;

/// An XID that was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XidSeen<'a> {
    /// The GPU by its index, where it is known.
    pub gpu: Option<u32>,
    pub xid: u32,
    pub process: Option<u32>,
    /// What the message says after the code.
    pub text: &'a str,
    pub source: XidSource,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum XidSource {
    KernelLog,
    /// NVML's events.
    Driver,
    /// A fault of an NVSwitch in the kernel log; its codes are others.
    Switch,
}

impl fmt::Display for XidSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            XidSource::KernelLog => "kernel log",
            XidSource::Driver => "NVML",
            XidSource::Switch => "NVSwitch",
        })
    }
}

/// What one XID calls for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Judged {
    pub(crate) rule: String,
    pub(crate) action: Action,
    pub(crate) layer: Layer,
    pub(crate) summary: String,
    pub(crate) confidence: f64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Xids {
    seen: VecDeque<Event>,
    /// How often each source reported a code of a GPU.
    counts: BTreeMap<(Option<u32>, u32), [u64; 2]>,
}

#[derive(Debug, Clone, Copy)]
struct Event {
    at_ms: u64,
    gpu: Option<u32>,
    xid: u32,
    process: Option<u32>,
}

impl Xids {
    /// Notes an XID; false when the other source has reported the same one already.
    pub(crate) fn take(&mut self, seen: &XidSeen<'_>, now_ms: u64) -> bool {
        if seen.source == XidSource::Switch {
            return true;
        }
        if self.counts.len() >= MOST_COUNTED && !self.counts.contains_key(&(seen.gpu, seen.xid)) {
            return false;
        }
        let counts = self.counts.entry((seen.gpu, seen.xid)).or_default();
        let own = usize::from(seen.source == XidSource::Driver);
        counts[own] += 1;
        if counts[own] <= counts[1 - own] {
            return false;
        }
        if self.seen.len() == MOST_REMEMBERED {
            self.seen.pop_front();
        }
        self.seen.push_back(Event { at_ms: now_ms, gpu: seen.gpu, xid: seen.xid, process: seen.process });
        true
    }

    pub(crate) fn counts(&self) -> impl Iterator<Item = (Option<u32>, u32, u64)> {
        self.counts.iter().map(|((gpu, xid), counts)| (*gpu, *xid, counts[0].max(counts[1])))
    }

    /// What is known counts no more against the GPUs. It stays counted.
    pub(crate) fn forget_before(&mut self, until_ms: u64) {
        self.seen.retain(|event| event.at_ms > until_ms);
    }

    pub(crate) fn judge(
        &self,
        catalog: &XidCatalog,
        profile: Profile,
        seen: &XidSeen<'_>,
        now_ms: u64,
    ) -> Judged {
        if seen.source == XidSource::Switch {
            return judge_switch(seen);
        }
        let rule = format!("gpu/xid-{}", seen.xid);
        let Some(entry) = catalog.entry(seen.xid) else {
            let summary = format!("XID {}, which the catalog does not know", seen.xid);
            return Judged { rule, action: Action::Alert, layer: Layer::Hardware, summary, confidence: 0.5 };
        };
        let summary = format!("XID {}: {}", seen.xid, entry.meaning);
        let mut judged = Judged {
            rule,
            action: decoded(entry, profile, seen.text),
            layer: entry.layer,
            summary,
            confidence: 1.0,
        };
        if let Some(cause) = self.cause_of(entry, seen, now_ms) {
            judged.summary += &format!(", after XID {cause}");
            judged.action = judged.action.min(Action::Record);
        }
        judged
    }

    /// The XID that this one follows from.
    fn cause_of(&self, entry: &XidEntry, seen: &XidSeen<'_>, now_ms: u64) -> Option<u32> {
        let is_before = |event: &&Event| {
            event.gpu == seen.gpu
                && event.xid != seen.xid
                && now_ms.saturating_sub(event.at_ms) <= CONSEQUENCE_MS
        };
        self.seen.iter().rev().filter(|_| entry.follows_another).find(is_before).map(|event| event.xid)
    }

    /// Whether a rule about several XIDs holds with this one, and what was seen.
    pub(crate) fn matches(&self, condition: &Condition, seen: &XidSeen<'_>, now_ms: u64) -> Option<String> {
        let Condition::Xid { codes, times, within_ms, near, by_processes } = condition else { return None };
        if seen.source == XidSource::Switch || !(codes.contains(&seen.xid) || near.contains(&seen.xid)) {
            return None;
        }
        let oldest = now_ms.saturating_sub(*within_ms);
        let on_gpu = |event: &&Event| event.gpu == seen.gpu && event.at_ms >= oldest;
        let own: Vec<&Event> =
            self.seen.iter().filter(on_gpu).filter(|event| codes.contains(&event.xid)).collect();
        let count = if *by_processes { self.failures(&own) } else { own.len() as u64 };
        let companion = self.seen.iter().filter(on_gpu).find(|event| near.contains(&event.xid));
        if count < *times || (!near.is_empty() && companion.is_none()) {
            return None;
        }
        let codes: BTreeSet<u32> = own.iter().copied().chain(companion).map(|event| event.xid).collect();
        let codes: Vec<String> = codes.iter().map(u32::to_string).collect();
        Some(format!("{count} times, codes {}", codes.join(", ")))
    }

    /// Failures of different processes that this GPU alone had: what several GPUs have at once is the application's doing.
    fn failures(&self, events: &[&Event]) -> u64 {
        let mut failures: Vec<&Event> = Vec::new();
        for event in events {
            let is_shared = self.seen.iter().any(|other| {
                other.gpu != event.gpu
                    && other.xid == event.xid
                    && other.at_ms.abs_diff(event.at_ms) <= SAME_FAILURE_MS
            });
            let is_same = failures.last().is_some_and(|last| {
                event.at_ms.saturating_sub(last.at_ms) <= SAME_FAILURE_MS
                    || (event.process.is_some() && event.process == last.process)
            });
            if !is_shared && !is_same {
                failures.push(event);
            }
        }
        failures.len() as u64
    }
}

/// The action of an entry, where the text of the message has a say.
fn decoded(entry: &XidEntry, profile: Profile, text: &str) -> Action {
    let action = entry.action(profile);
    match entry.decode {
        Decode::Nothing => action,
        Decode::Severity if text.contains("Nonfatal") => Action::Watch,
        Decode::Severity => action,
        Decode::Recovery => recovery(text).unwrap_or(action),
    }
}

/// XID 154: `GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`.
fn recovery(text: &str) -> Option<Action> {
    let wanted = text.rsplit_once(" to ").map_or(text, |(_, wanted)| wanted).to_ascii_lowercase();
    let says = |words: &str| wanted.contains(words);
    if says("reboot") {
        Some(Action::Reboot)
    } else if says("drain") {
        Some(Action::Drain)
    } else if says("reset") {
        Some(Action::ResetDevice)
    } else if says("none") {
        Some(Action::Record)
    } else {
        None
    }
}

fn judge_switch(seen: &XidSeen<'_>) -> Judged {
    let is_fatal = seen.text.contains("Fatal") && !seen.text.contains("Non-fatal");
    let action = if is_fatal { Action::Drain } else { Action::Watch };
    let summary = format!("NVSwitch error {}", seen.xid);
    let rule = format!("nvswitch/sxid-{}", seen.xid);
    Judged { rule, action, layer: Layer::Hardware, summary, confidence: 1.0 }
}
