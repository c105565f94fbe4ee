//! What nodes find about themselves, and what follows: `blame` judges, this carries the verdict out.

use bedplate_blame::{FaultKind, NodeVerdict};
use bedplate_finding::{Action, Finding, OpenFinding, Subject};
use bedplate_gangs::{Event, JobId, NodeOrder, Span, Time};
use bedplate_topology::NodeId;

use crate::control::Control;
use crate::faults::surroundings;
use crate::node::Presence;
use crate::reason;
use crate::run::LaunchPhase;
use crate::wire::ToAgent;

/// Nodes that were taken out within this time before half of the cluster complained were taken out for nothing.
const SAME_CAUSE: Span = Span::minutes(1);
/// More findings of one node than it can have; the rest is not believed.
const MOST_FINDINGS: usize = 256;

impl Control {
    /// All that a node finds about itself now.
    pub(crate) fn found(&mut self, node: NodeId, mut findings: Vec<OpenFinding>, now: Time) {
        findings.truncate(MOST_FINDINGS);
        let known = &mut self.nodes[node.0 as usize];
        if known.findings.is_empty() && findings.is_empty() {
            return;
        }
        let told = findings.len();
        let until_ms = known.acknowledged_ms;
        findings.retain(|open| open.since_ms > until_ms);
        let is_unheard = findings.len() < told;
        let before = std::mem::replace(&mut known.findings, findings);
        if is_unheard {
            // What an operator said was lost with a link, or is still on its way.
            self.send(node, ToAgent::Acknowledge { until_ms });
        }
        self.tell_changes(node, &before, now);
        self.restart_jobs(node, &before, now);
        self.judge(node, &before, now);
    }

    /// Notes what is new and what is over, where it matters to people.
    fn tell_changes(&mut self, node: NodeId, before: &[OpenFinding], now: Time) {
        let after = &self.nodes[node.0 as usize].findings;
        let matters = |open: &&OpenFinding| open.finding.action >= Action::Alert;
        let new = after.iter().filter(matters).filter(|open| !has(before, &open.finding));
        let new = new.map(|open| found_text(&open.finding));
        let over = before.iter().filter(matters).filter(|open| !has(after, &open.finding));
        let over =
            over.map(|open| format!("no longer found: {} of {}", open.finding.rule, open.finding.subject));
        for text in new.chain(over).collect::<Vec<String>>() {
            self.note_node(node, text, now);
        }
    }

    /// Starts jobs again whose devices reported that their application is lost.
    fn restart_jobs(&mut self, node: NodeId, before: &[OpenFinding], now: Time) {
        let after = self.nodes[node.0 as usize].findings.clone();
        let calls = |open: &&OpenFinding| open.finding.action == Action::RestartJob;
        for open in after.iter().filter(calls).filter(|open| !has_as_often(before, open)) {
            for job in self.jobs_on(node, &open.finding.subject) {
                let why = format!("{} on {}", open.finding.summary, self.nodes[node.0 as usize].name);
                self.fault(job, &[node], FaultKind::Device, &why, now);
            }
        }
    }

    /// Running jobs that hold the subject of a finding.
    fn jobs_on(&mut self, node: NodeId, subject: &Subject) -> Vec<JobId> {
        let devices = match subject {
            Subject::Gpu { index, .. } => 1_u64.checked_shl(*index).unwrap_or(0),
            _ => u64::MAX,
        };
        let holds = |job: &&crate::run::ManagedRun| {
            let mut shares = job.shares.iter();
            job.phase == LaunchPhase::Running
                && shares.any(|share| share.node == node && share.devices & devices != 0)
        };
        self.runs_on(node)
            .into_iter()
            .filter(|job| self.runs.get(job).is_some_and(|run| holds(&run)))
            .collect()
    }

    /// Takes the node out of service if what it found calls for that.
    fn judge(&mut self, node: NodeId, before: &[OpenFinding], now: Time) {
        let known = &mut self.nodes[node.0 as usize];
        let Some(worst) = known.worst().filter(|_| known.is_accused()).cloned() else {
            known.is_alarmed = false;
            return;
        };
        let is_news = !has(before, &worst.finding);
        let is_in_service = known.drained.is_none();
        let accused = self.nodes.iter().filter(|node| node.is_accused()).count();
        match self.blame.found(accused, surroundings(&self.nodes, node)) {
            NodeVerdict::Common { nodes } => self.alert_common_cause(node, nodes, is_news, now),
            verdict if verdict.takes_out() => {
                if is_in_service {
                    self.nodes[node.0 as usize].found_out = Some(now);
                    self.mark_drained(node, reason::found(&worst.finding), now);
                }
                if is_in_service || is_news {
                    self.order_out(node, &worst.finding);
                }
            }
            verdict if is_news && is_in_service => self.note_if_too_many(node, verdict, now),
            _ => {}
        }
    }

    /// What runs there finishes, or moves at once where the finding says so.
    fn order_out(&mut self, node: NodeId, finding: &Finding) {
        if self.nodes[node.0 as usize].presence == Presence::Away {
            return;
        }
        if finding.action.interrupts_jobs() {
            self.news.push_back(Event::Node { node, order: NodeOrder::Fail });
        }
        self.news.push_back(Event::Node { node, order: NodeOrder::Drain });
    }

    /// More than half of the cluster complains: nobody goes out for it, and those that just did come back.
    fn alert_common_cause(&mut self, node: NodeId, accused: usize, is_news: bool, now: Time) {
        if !is_news {
            return;
        }
        let total = self.nodes.len();
        let text = format!(
            "stays in service: {accused} of {total} nodes have findings at once, so the cause is not in them: an operator must look"
        );
        self.note_node(node, text, now);
        for at in 0..self.nodes.len() {
            let known = &mut self.nodes[at];
            let went_for_it = known.found_out.is_some_and(|out| now.since(out) <= SAME_CAUSE);
            if went_for_it && known.drained.is_some() {
                (known.drained, known.found_out) = (None, None);
                let node = NodeId(at as u32);
                self.record_node(node);
                self.note_node(node, "put back into service: most of the cluster has findings".into(), now);
                self.resume_if_clean(node);
            }
        }
    }

    /// How many nodes have findings that call for taking them out, if that is more than half of the cluster.
    pub(crate) fn common_cause(&self) -> Option<usize> {
        let accused = self.nodes.iter().filter(|node| node.is_accused()).count();
        let most = self.nodes.len() as f64 * self.blame.policy().most_accused;
        (accused > 1 && accused as f64 > most).then_some(accused)
    }

    /// An operator trusts the node again, whatever it found until now.
    pub(crate) fn acknowledge_findings(&mut self, node: NodeId) {
        let known = &mut self.nodes[node.0 as usize];
        known.found_out = None;
        let Some(until_ms) = known.findings.iter().map(|open| open.since_ms).max() else {
            return;
        };
        known.acknowledged_ms = known.acknowledged_ms.max(until_ms);
        known.findings.clear();
        self.send(node, ToAgent::Acknowledge { until_ms });
    }
}

fn has(findings: &[OpenFinding], wanted: &Finding) -> bool {
    findings.iter().any(|open| {
        let finding = &open.finding;
        finding.rule == wanted.rule && finding.subject == wanted.subject && finding.action >= wanted.action
    })
}

fn has_as_often(findings: &[OpenFinding], wanted: &OpenFinding) -> bool {
    let is_it = |open: &&OpenFinding| {
        open.finding.rule == wanted.finding.rule && open.finding.subject == wanted.finding.subject
    };
    findings.iter().find(is_it).is_some_and(|open| open.times >= wanted.times)
}

fn found_text(finding: &Finding) -> String {
    let evidence = finding.evidence.first().filter(|evidence| !evidence.reading.is_empty());
    let evidence =
        evidence.map_or(String::new(), |evidence| format!(" ({}: {})", evidence.what, evidence.reading));
    format!("{finding}; calls for: {}{evidence}", finding.action)
}
