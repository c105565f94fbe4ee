//! Metrics that ranks offer themselves: vLLM, SGLang, `bedplate train`, or any program with a Prometheus endpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_http::blocking::fetch;
use bedplate_record::Exposition;

use crate::error::ExportError;
use crate::foreign::Families;

/// How long one endpoint may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest answer that is read.
const LONGEST: u64 = 8 << 20;
/// How long one that failed is left alone: what it sent may have been megabytes.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// The longest address that is taken for one.
const LONGEST_ADDRESS: usize = 1000;
/// Series of all endpoints together; one that would bring more is left out.
const MOST_SERIES: usize = 100_000;

/// An endpoint, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScrapeTarget {
    /// `host:port`.
    pub address: String,
    pub path: String,
    pub job: Option<String>,
    pub rank: Option<String>,
}

impl ScrapeTarget {
    /// Reads `http://host:port/path`, `host:port/path` or `host:port`, with `,job=…` and `,rank=…` behind it.
    pub fn parse(text: &str) -> Result<Self, ExportError> {
        let refuse = |why: &'static str| ExportError::Target { text: text.to_owned(), why };
        let mut parts = text.split(',');
        let url = parts.next().unwrap_or("");
        if url.starts_with("https://") {
            return Err(refuse("only http is supported: ranks are on this host"));
        }
        let url = url.strip_prefix("http://").unwrap_or(url);
        let (address, path) = url.split_once('/').unwrap_or((url, "metrics"));
        let has_port = address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0));
        let is_odd = |each: char| each == ' ' || each.is_control();
        if !has_port || url.contains(is_odd) || url.len() > LONGEST_ADDRESS {
            return Err(refuse("it is not of the form http://host:port/metrics"));
        }
        let mut target =
            Self { address: address.to_owned(), path: format!("/{path}"), job: None, rank: None };
        for part in parts {
            match part.split_once('=') {
                Some(("job", job)) => target.job = Some(job.to_owned()),
                Some(("rank", rank)) => target.rank = Some(rank.to_owned()),
                _ => return Err(refuse("only `job=` and `rank=` may follow the address")),
            }
        }
        Ok(target)
    }

    /// The labels that its series get.
    pub(crate) fn labels(&self) -> String {
        let pairs = [("hpc_job", &self.job), ("rank", &self.rank)];
        let known = pairs.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
        let labels: Vec<String> =
            known.map(|(key, value)| format!("{key}=\"{}\"", Exposition::escape(value))).collect();
        labels.join(",")
    }

    pub(crate) fn fetch(&self, host_label: &str) -> Option<Families> {
        let text = fetch(&self.address, &self.path, PATIENCE, LONGEST).ok()?;
        // In whole lines: a number of which the end is missing would be another number.
        let text = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
        let labels = self.labels();
        let labels = if labels.is_empty() { host_label.to_owned() } else { format!("{labels},{host_label}") };
        Some(Families::read(text, &labels))
    }
}

/// The endpoints of ranks, each asked by a thread of its own: one that hangs, be it in the resolver, holds up none of the others.
#[derive(Default)]
pub(crate) struct RankEndpoints {
    asked: BTreeMap<ScrapeTarget, Receiver<Option<Families>>>,
    failed: BTreeMap<ScrapeTarget, Instant>,
}

impl RankEndpoints {
    /// Asks all of them once; returns what they offer, and who answered in time.
    pub(crate) fn fetch(
        &mut self,
        targets: &BTreeSet<ScrapeTarget>,
        host_label: &str,
    ) -> (Families, BTreeSet<ScrapeTarget>) {
        self.asked.retain(|target, _| targets.contains(target));
        self.failed.retain(|target, at| targets.contains(target) && at.elapsed() < AFTER_FAILURE);
        for target in targets {
            if !self.asked.contains_key(target)
                && !self.failed.contains_key(target)
                && let Some(answer) = ask(target, host_label)
            {
                self.asked.insert(target.clone(), answer);
            }
        }
        let deadline = Instant::now() + PATIENCE;
        let (mut families, mut answered) = (Families::default(), BTreeSet::new());
        for target in targets {
            let fetched = self.answer_of(target, deadline);
            if let Some(fetched) = fetched.filter(|fetched| families.len() + fetched.len() <= MOST_SERIES) {
                families.merge(fetched);
                answered.insert(target.clone());
            }
        }
        (families, answered)
    }

    /// One that has not answered by then is not asked again until its thread is back.
    fn answer_of(&mut self, target: &ScrapeTarget, deadline: Instant) -> Option<Families> {
        let answer = self.asked.get(target)?;
        match answer.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => None,
            outcome => {
                self.asked.remove(target);
                let fetched = outcome.ok().flatten();
                if fetched.is_none() {
                    self.failed.insert(target.clone(), Instant::now());
                }
                fetched
            }
        }
    }
}

fn ask(target: &ScrapeTarget, host_label: &str) -> Option<Receiver<Option<Families>>> {
    let (answer, receiver) = sync_channel(1);
    let (target, host_label) = (target.clone(), host_label.to_owned());
    let asking = thread::Builder::new().name("export-rank".into()).stack_size(256 << 10);
    asking.spawn(move || drop(answer.try_send(target.fetch(&host_label)))).ok()?;
    Some(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_with_job_and_rank() {
        let target = ScrapeTarget::parse("http://127.0.0.1:8000/metrics,job=7,rank=3").unwrap();
        assert_eq!((target.address.as_str(), target.path.as_str()), ("127.0.0.1:8000", "/metrics"));
        assert_eq!(target.labels(), "hpc_job=\"7\",rank=\"3\"");
        assert_eq!(ScrapeTarget::parse("localhost:9100").unwrap().path, "/metrics");
        for wrong in ["", "localhost", "https://x:1", "x:0", "x:1,colour=red", ":80", "a b:1"] {
            assert!(ScrapeTarget::parse(wrong).is_err(), "{wrong}");
        }
        assert!(ScrapeTarget::parse(&format!("x:1/{}", "y".repeat(2000))).is_err());
        assert!(ScrapeTarget::parse("x:1/\u{1b}[31m").is_err());
    }
}
