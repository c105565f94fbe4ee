//! What nodes find about themselves: parts break and are repaired, agents tell, operators acknowledge; and what must hold of it.

use bedplate_control::{Record, Restored};
use bedplate_finding::{Action, Finding, Layer, OpenFinding, Severity, Subject};

use super::*;

/// What can be wrong with a GPU. Conditions last until somebody repairs them, events happen once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flaw {
    rule: &'static str,
    gpu: u32,
    action: Action,
    lasts: bool,
}

const FLAWS: [(&str, Action, bool); 6] = [
    ("gpu/xid-79", Action::Reboot, false),
    ("gpu/xid-95", Action::ResetDevice, false),
    ("gpu/nvlink-errors", Action::Drain, true),
    ("gpu/row-remap-failure", Action::Replace, true),
    ("gpu/xid-31", Action::RestartJob, false),
    ("gpu/hot", Action::Alert, true),
];
/// The first ones take a node out of service.
const GRAVE: u64 = 4;
/// At most half of the cluster goes out on findings, and one of a small one.
const MOST_OUT: usize = if NODES / 2 > 1 { NODES / 2 } else { 1 };

/// What a node's agent knows of its hardware, and the hardware.
#[derive(Debug, Default)]
pub(super) struct Sensor {
    /// Conditions, whether or not anybody reads them.
    flaws: Vec<Flaw>,
    /// What this life of the agent has found.
    open: Vec<OpenFinding>,
    /// Conditions that an operator knows of.
    muted: Vec<Flaw>,
}

impl Sensor {
    /// Whether it finds something that takes a node out of service.
    pub(super) fn is_grave(&self) -> bool {
        is_grave(&self.open)
    }

    pub(super) fn count(&self) -> usize {
        self.open.len()
    }

    fn find(&mut self, flaw: Flaw, node: &str, now_ms: u64) {
        if self.muted.contains(&flaw) {
            return;
        }
        let subject = Subject::Gpu { node: node.to_owned(), index: flaw.gpu };
        let is_it =
            |open: &&mut OpenFinding| open.finding.rule == flaw.rule && open.finding.subject == subject;
        if let Some(known) = self.open.iter_mut().find(is_it) {
            known.times += u64::from(!flaw.lasts);
            known.seen_ms = now_ms;
            return;
        }
        let finding = Finding::new(flaw.rule, Severity::Critical, Layer::Hardware, subject, flaw.action);
        self.open.push(OpenFinding { finding, since_ms: now_ms, seen_ms: now_ms, times: 1 });
    }

    fn acknowledge(&mut self, until_ms: u64) {
        let known = |open: &OpenFinding| open.since_ms <= until_ms;
        let muted = self
            .flaws
            .iter()
            .filter(|flaw| self.open.iter().any(|open| known(open) && open.finding.rule == flaw.rule));
        self.muted.extend(muted.copied().collect::<Vec<_>>());
        self.open.retain(|open| !known(open));
    }
}

/// What is watched of findings and of what follows from them.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// What an operator knew of each node when he put it back, by the node's clock, once that was on disk.
    trusted: BTreeMap<usize, u64>,
    /// Runs that nodes were asked to prepare.
    asked: BTreeSet<(RunId, usize)>,
    /// Where gangs stand since they last waited: one that heals keeps the nodes that it has.
    held: BTreeSet<(JobId, usize)>,
    /// Nodes that take no work, for whatever reason, as last recorded.
    closed: BTreeSet<usize>,
    /// Nodes that are out of service for a finding, as last recorded.
    out: BTreeSet<usize>,
    /// Most of the cluster complains, and an operator was told.
    is_alarmed: bool,
    broken: Option<String>,
}

impl Findings {
    pub(super) fn trust(&mut self, node: usize, until_ms: u64) {
        let known = self.trusted.entry(node).or_default();
        *known = (*known).max(until_ms);
    }

    pub(super) fn broken_law(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    pub(super) fn breaks_law(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }
}

impl World {
    /// Something happens to the hardware, or to what is told of it.
    pub(super) fn wear(&mut self) {
        if !self.is_stormy {
            return;
        }
        let pause = self.random.between(500, 10_000);
        self.after(pause, Coming::Wear);
        let node = self.random.between(0, NODES as u64) as usize;
        match self.random.between(0, 100) {
            0..38 => {
                let flaw = self.some_flaw(FLAWS.len() as u64);
                self.breaks(node, flaw);
            }
            38..48 => self.break_most(node),
            48..56 => {
                // The control plane dies between the finding and the drain, or just after it.
                let flaw = self.some_flaw(GRAVE);
                self.breaks(node, flaw);
                self.control_dies_soon();
            }
            56..62 => {
                self.tell_findings(node);
                self.tell_findings(node);
            }
            62..70 => self.resume_accused(),
            _ => self.repair(node),
        }
    }

    fn control_dies_soon(&mut self) {
        let delay = self.random.between(1, 25);
        self.after(delay, Coming::ControlDies);
    }

    fn some_flaw(&mut self, kinds: u64) -> Flaw {
        let (rule, action, lasts) = FLAWS[self.random.between(0, kinds) as usize];
        Flaw { rule, gpu: self.random.between(0, u64::from(GPUS)) as u32, action, lasts }
    }

    /// The same breaks on more than half of the cluster, within a second.
    fn break_most(&mut self, first: usize) {
        let flaw = self.some_flaw(GRAVE);
        for number in 0..self.random.between(NODES as u64 / 2 + 1, NODES as u64 + 1) as usize {
            let delay = self.random.between(1, 1_000);
            self.after(delay, Coming::Breaks { node: (first + number) % NODES, flaw });
        }
    }

    /// A node that is down does not notice; a condition is found when its agent is back.
    pub(super) fn breaks(&mut self, node: usize, flaw: Flaw) {
        if !self.is_stormy {
            return;
        }
        let now_ms = self.agent_time(node).0;
        let Node { sensor, name, agent, .. } = &mut self.nodes[node];
        if flaw.lasts && !sensor.flaws.contains(&flaw) {
            sensor.flaws.push(flaw);
        }
        if agent.is_some() {
            sensor.find(flaw, name, now_ms);
            self.tell_findings(node);
        }
    }

    fn repair(&mut self, node: usize) {
        self.nodes[node].sensor = Sensor::default();
        self.tell_findings(node);
    }

    /// What it finds by then, where it stands still.
    pub(super) fn tell_findings(&mut self, node: usize) {
        if self.is_frozen(node) {
            return self.when_thawed(node, Coming::Tells { node });
        }
        let (incarnation, open) = (self.nodes[node].incarnation, self.nodes[node].sensor.open.clone());
        self.hear(node, incarnation, Happened::Found(open));
    }

    /// A new agent begins with what it can still see.
    pub(super) fn starts_reading(&mut self, node: usize) {
        let Node { sensor, incarnation, .. } = &mut self.nodes[node];
        (sensor.open, sensor.muted) = (Vec::new(), Vec::new());
        let (has_flaws, incarnation) = (!sensor.flaws.is_empty(), *incarnation);
        if has_flaws {
            self.after(300, Coming::Reads { node, incarnation });
        }
    }

    pub(super) fn reads(&mut self, node: usize, incarnation: u64) {
        if self.nodes[node].incarnation != incarnation || self.nodes[node].agent.is_none() {
            return;
        }
        let now_ms = self.agent_time(node).0;
        let Node { sensor, name, .. } = &mut self.nodes[node];
        sensor.flaws.clone().into_iter().for_each(|flaw| sensor.find(flaw, name, now_ms));
        self.tell_findings(node);
    }

    /// What an operator said has reached the node.
    pub(super) fn is_acknowledged(&mut self, node: usize, until_ms: u64) {
        self.nodes[node].sensor.acknowledge(until_ms);
        self.tell_findings(node);
    }

    /// An operator puts a node back although it has findings; it does not hear of that before the control plane dies.
    fn resume_accused(&mut self) {
        let Some(accused) = self.nodes.iter().position(|node| node.sensor.is_grave()) else { return };
        let name = self.nodes[accused].name.clone();
        self.cut(accused, Way::Both, 30);
        let delay = self.random.between(8, 30);
        self.after(delay, Coming::ControlDies);
        let known_until = self.known_until(&name);
        let now = self.clock.now();
        let Some(control) = &mut self.control else { return };
        let is_done = control.order(ClientOrder::Resume { node: name }, "ada", now).is_ok();
        let trusted = known_until.filter(|_| is_done).into_iter().collect();
        self.carry_out(Promised { trusted, ..Promised::default() });
    }

    /// What an operator can know of a node's findings now.
    pub(super) fn known_until(&self, name: &str) -> Option<(usize, u64)> {
        let at = self.nodes.iter().position(|node| node.name == name)?;
        let views = self.control.as_ref()?.nodes(self.clock.now());
        let until_ms = views[at].findings.iter().map(|open| open.since_ms).max()?;
        Some((at, until_ms))
    }

    /// In the calm, all but one of the broken nodes are repaired.
    pub(super) fn repair_most(&mut self) {
        let kept = self.nodes.iter().position(|node| node.sensor.is_grave());
        for node in (0..NODES).filter(|node| Some(*node) != kept) {
            let Sensor { flaws, open, muted } = &self.nodes[node].sensor;
            if !(flaws.is_empty() && open.is_empty() && muted.is_empty()) {
                self.repair(node);
            }
        }
    }

    /// The last one too; by then it is out of service.
    pub(super) fn repair_last(&mut self) -> Result<(), String> {
        let Some(broken) = self.nodes.iter().position(|node| node.sensor.is_grave()) else {
            return Ok(());
        };
        if let Some(view) = self.views().get(broken) {
            laws::check_broken(view)?;
            self.repair(broken);
        }
        Ok(())
    }

    /// What the disk gives back, less what a planted bug forgets.
    pub(super) fn remembered(&self) -> Restored {
        let mut restored = self.disk.restored();
        for row in &mut restored.nodes {
            match self.bug {
                Some(Bug::ForgetsDrains) => row.drained = None,
                Some(Bug::ForgetsTrust) => row.acknowledged_ms = 0,
                _ => {}
            }
        }
        if self.bug == Some(Bug::ForgetsHolds) {
            restored.jobs.iter_mut().for_each(|row| row.life.is_held = false);
        }
        restored
    }

    /// A new control plane knows who is out of service, and why.
    pub(super) fn check_restored(&mut self, control: &Control, now: Time) {
        self.findings.is_alarmed = false;
        self.findings.out.clear();
        self.findings.closed.clear();
        let views = control.nodes(now);
        for row in self.disk.restored().nodes {
            let at = self.nodes.iter().position(|node| node.name == row.name).expect("rows are of nodes");
            if views[at].reason != row.drained {
                let (name, was) = (&row.name, &row.drained);
                self.findings.breaks_law(format!("{name} was out for {was:?} and is not after a restart"));
            }
            if is_for_finding(row.drained.as_ref()) {
                self.findings.out.insert(at);
            }
        }
    }

    /// What the control plane decides is checked before it is carried out.
    pub(super) fn check_output(&mut self, output: &Output) {
        self.check_new_gangs(output);
        let matters = |record: &Record| match record {
            Record::Node(_) => true,
            Record::Note(note) => note.node.is_some(),
            _ => false,
        };
        if output.records.iter().any(matters) {
            self.keep_held();
            self.check_drains();
            self.check_alarm(output);
        }
    }

    /// A gang that was given a node before it went out of service may still start there.
    fn keep_held(&mut self) {
        let views = self.views();
        let closed: BTreeSet<usize> = (0..NODES).filter(|at| views[*at].reason.is_some()).collect();
        for at in closed.difference(&self.findings.closed) {
            self.findings.held.extend(views[*at].jobs.iter().map(|job| (JobId(*job), *at)));
        }
        self.findings.closed = closed;
    }

    /// A node that is out of service is given no new gang.
    fn check_new_gangs(&mut self, output: &Output) {
        for record in &output.records {
            if let Record::Job { job, life } = record
                && (life.state == JobState::Waiting || life.state.is_final())
            {
                self.findings.held.retain(|(held, _)| held != job);
            }
        }
        for command in output.urgent.iter().chain(&output.commands) {
            let Command::Send { link, message: ToAgent::Prepare(launch) } = command else { continue };
            let Some(node) = self.links.get(link).map(|link| link.node) else { continue };
            let is_asked = !self.findings.asked.insert((launch.run, node));
            let is_held = !self.findings.held.insert((JobId(launch.run.job), node));
            if is_asked || is_held {
                continue;
            }
            if let Some(reason) = self.views()[node].reason.as_ref() {
                let name = &self.nodes[node].name;
                let broken = format!("{} is given to {name}, which is out of service: {reason}", launch.run);
                self.findings.breaks_law(broken);
            }
        }
    }

    /// Findings take out as many nodes as they may, and none that an operator trusts in spite of them.
    fn check_drains(&mut self) {
        let views = self.views();
        let out: BTreeSet<usize> =
            (0..NODES).filter(|at| is_for_finding(views[*at].reason.as_ref())).collect();
        if out.len() > MOST_OUT {
            self.findings.breaks_law(format!("findings have taken out {} of {NODES} nodes", out.len()));
        }
        for at in out.difference(&self.findings.out.clone()) {
            let trusted = self.findings.trusted.get(at).copied().unwrap_or(0);
            let is_new = |open: &OpenFinding| {
                open.since_ms > trusted && open.finding.action.takes_node_out_of_service()
            };
            if !views[*at].findings.iter().any(is_new) {
                let name = &views[*at].name;
                let broken = format!("{name} is taken out for what an operator knew when he put it back");
                self.findings.breaks_law(broken);
            }
        }
        self.findings.out = out;
    }

    /// When most of the cluster begins to complain, an operator is told.
    fn check_alarm(&mut self, output: &Output) {
        let now = self.clock.now();
        let control = self.control.as_ref().expect("it has just decided");
        let is_common = control.counts(now).common_cause_nodes > 0;
        let is_told = |record: &Record| matches!(record, Record::Note(note) if note.text.contains("the cause is not in them"));
        if is_common && !self.findings.is_alarmed && !output.records.iter().any(is_told) {
            self.findings.breaks_law("most nodes have grave findings, and no operator is told".into());
        }
        self.findings.is_alarmed = is_common;
    }

    fn views(&self) -> Vec<bedplate_control::NodeView> {
        let now = self.clock.now();
        self.control.as_ref().map_or(Vec::new(), |control| control.nodes(now))
    }
}

pub(super) fn is_grave(findings: &[OpenFinding]) -> bool {
    findings.iter().any(|open| open.finding.action.takes_node_out_of_service())
}

fn is_for_finding(reason: Option<&bedplate_diag::Reason>) -> bool {
    reason.is_some_and(|reason| reason.code == "finding")
}
