//! Commands that say whether all is well: the node's own, and those of its runs.

use std::collections::BTreeSet;
use std::time::Duration;

use bedplate_control::agent::Happened;
use bedplate_control::wire::{Probe, RankEnd, RunId};
use bedplate_job::rank_environment::MARK;

use super::prepare::shown_output;
use super::{Node, Purpose};
use crate::event::AgentEvent;
use crate::fork_server::orders::{ProcessStart, ToRunShim, node_group};

/// A probe that takes longer than this, and than the time between two of them, has failed.
const LEAST_TIME: Duration = Duration::from_secs(10);
const OUTPUT: &str = "probe.out";
/// How long the node's check may take beside what runs there.
const CHECK_TIME: Duration = Duration::from_secs(120);

/// Which probes fail.
#[derive(Debug, Default)]
pub(super) struct Probes {
    /// The node's own is `None`.
    failing: BTreeSet<Option<RunId>>,
    /// The node's own is made to fail on purpose.
    is_forced: bool,
}

impl Probes {
    /// A new link: what fails now is told by the next probe, and what failed earlier is no news.
    pub(super) fn forget(&mut self) {
        self.failing.clear();
    }
}

impl Node {
    pub(super) fn begin_node_probe(&mut self) {
        if let Some(probe) = self.options.probe.clone() {
            self.probe_later(None, &probe);
        }
    }

    pub(super) fn begin_run_probe(&mut self, run: RunId) {
        if let Some(probe) = self.runs.get(&run).and_then(|local| local.launch.probe.clone()) {
            self.probe_later(Some(run), &probe);
        }
    }

    fn probe_later(&self, run: Option<RunId>, probe: &Probe) {
        let events = self.events.clone();
        let pause = Duration::from_millis(probe.every_ms.max(100));
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let _ = events.send(AgentEvent::ProbeDue { run });
        });
    }

    fn find_probe(&self, run: Option<RunId>) -> Option<Probe> {
        let Some(run) = run else { return self.options.probe.clone() };
        let local = self.runs.get(&run).filter(|local| local.cleaning.is_none())?;
        local.launch.probe.clone()
    }

    pub(super) fn start_probe(&mut self, run: Option<RunId>) {
        let Some(probe) = self.find_probe(run) else { return };
        let start = match run {
            Some(run) => self.shell_command(run, &probe.command, OUTPUT),
            None => Some(self.node_command(&probe.command, "probe")),
        };
        let Some(start) = start else { return };
        let id = self.start_process(Purpose::Probe(run), start);
        self.limit_time(id, LEAST_TIME.max(Duration::from_millis(probe.every_ms)));
    }

    /// Jobs failed here: the check says whether the node is to blame. Without one, nothing is found.
    pub(super) fn start_check(&mut self) {
        let Some(check) = self.options.check.clone() else {
            return self.happened(Happened::Checked { fault: None });
        };
        // What runs here comes first.
        let start = self.node_command(&format!("renice -n 19 -p $$ >/dev/null 2>&1; exec {check}"), "check");
        let id = self.start_process(Purpose::Check, start);
        self.limit_time(id, CHECK_TIME);
    }

    /// Only a check that ends by itself has found something: jobs can make it slow, and take its memory.
    pub(super) fn check_ended(&mut self, end: RankEnd) {
        self.finish_node_commands();
        let output = || shown_output(&self.node_output("check"));
        let fault = (end == RankEnd::Exit(1)).then(|| format!("the node's check failed: {}", output()));
        self.happened(Happened::Checked { fault });
    }

    /// The run shim of the node's own commands ends with the last of them.
    fn finish_node_commands(&mut self) {
        let is_own = |purpose: &Purpose| matches!(purpose, Purpose::Probe(None) | Purpose::Check);
        if !self.processes.values().any(is_own) {
            self.order(&node_group(&self.options.node), ToRunShim::Finish);
        }
    }

    fn node_command(&self, command: &str, name: &str) -> ProcessStart {
        let output = self.node_output(name);
        let _ = std::fs::remove_file(&output);
        let mut environment = self.options.environment.clone();
        environment.insert(MARK.to_owned(), node_group(&self.options.node));
        environment.insert("BEDPLATE_AGENT".to_owned(), self.places.socket.display().to_string());
        environment.insert("BEDPLATE_NODE".to_owned(), self.options.node.clone());
        ProcessStart {
            arguments: ["/bin/sh", "-c", command].map(str::to_owned).into(),
            environment,
            directory: "/".to_owned(),
            stdout: Some(output.display().to_string()),
            ..ProcessStart::default()
        }
    }

    fn node_output(&self, name: &str) -> std::path::PathBuf {
        self.places.programs.with_file_name(format!("{name}-{}.out", self.options.node))
    }

    pub(super) fn probe_ended(&mut self, run: Option<RunId>, end: RankEnd) {
        if run.is_none() {
            self.finish_node_commands();
        }
        let Some(probe) = self.find_probe(run) else { return };
        self.probe_later(run, &probe);
        if end.is_success() {
            return self.probe_succeeded(run);
        }
        let path = match run.and_then(|run| self.runs.get(&run)) {
            Some(local) => local.directory.join(OUTPUT),
            None => self.node_output("probe"),
        };
        let whose = run.map_or("the node's probe".to_owned(), |run| format!("the probe of {run}"));
        let output = shown_output(&path);
        let told = if output.is_empty() { String::new() } else { format!(": {output}") };
        self.probe_failed(run, format!("{whose} failed with {end}{told}"));
    }

    fn probe_failed(&mut self, run: Option<RunId>, reason: String) {
        if self.probes.failing.insert(run) {
            self.happened(Happened::ProbeFailed { run, reason });
        }
    }

    /// Only the node's own probe can report recovery; a job whose probe failed leaves the node.
    fn probe_succeeded(&mut self, run: Option<RunId>) {
        if run.is_none() && !self.probes.is_forced && self.probes.failing.remove(&None) {
            self.happened(Happened::ProbeRecovered);
        }
    }

    pub(super) fn force_probe(&mut self, fails: bool) {
        self.probes.is_forced = fails;
        match fails {
            true => self.probe_failed(None, "the node's probe was made to fail".to_owned()),
            false => self.probe_succeeded(None),
        }
    }
}
