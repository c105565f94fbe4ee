//! What an exporter beside a scheduler does about findings: it drains its node through the scheduler's own driver.
//!
//! Whether it may is judged by `blame`, as in a cluster of ours: when much of the cluster is out already, a person must look.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use bedplate_blame::{Blame, BlamePolicy, Circumstances, NodeVerdict};
use bedplate_diag::{Class, Diagnostic, Page};
use bedplate_drivers::{Capability, Driver, NodeId, NodeState, NodeSummary};
use bedplate_finding::OpenFinding;
use bedplate_terminal::present::printable_line;
use bedplate_terminal::{CliError, Console};

/// How long to wait before a cluster that did not answer is asked again.
const TRY_AGAIN: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
#[error("{cluster} has no node `{node}`")]
struct UnknownNode {
    cluster: String,
    node: String,
}

pub(super) const PAGES: &[&Page] = &[&UNKNOWN_NODE];

static UNKNOWN_NODE: Page = Page {
    code: "export/unknown-node",
    class: Class::User,
    meaning: "With --drain the exporter takes its own node out of service, so it must know what the cluster calls this machine. The cluster has no node of the name given, or of the host's name.",
    remedy: "give the node's name with `--node-name`; `bedplate node list` shows the names",
};

impl Diagnostic for UnknownNode {
    fn page(&self) -> &'static Page {
        &UNKNOWN_NODE
    }
}

/// Hears findings and acts on a thread of its own, so that nothing that is read waits for a scheduler.
pub(super) struct Actor(Sender<Vec<OpenFinding>>);

impl Actor {
    pub(super) fn new(driver: Box<dyn Driver>, node: &str, console: Console) -> Result<Self, CliError> {
        if !driver.can(Capability::Drain) {
            return Err(driver.cannot(Capability::Drain).into());
        }
        let nodes = driver.nodes()?;
        let name = find(&nodes, node)
            .ok_or_else(|| UnknownNode { cluster: driver.name(), node: node.to_owned() })?;
        let (hear, heard) = channel();
        thread::spawn(move || attend(driver.as_ref(), &name, &heard, &console));
        Ok(Self(hear))
    }

    pub(super) fn hear(&self, findings: Vec<OpenFinding>) {
        let _ = self.0.send(findings);
    }
}

/// The node of this name, also where the cluster leaves the domain out.
fn find(nodes: &[NodeSummary], wanted: &str) -> Option<NodeId> {
    let short = wanted.split('.').next().unwrap_or(wanted);
    let is_it = |name: &&NodeSummary| [wanted, short].contains(&name.name.as_str());
    nodes.iter().find(is_it).map(|node| node.name.clone())
}

fn attend(driver: &dyn Driver, node: &NodeId, heard: &Receiver<Vec<OpenFinding>>, console: &Console) {
    let mut done: BTreeSet<String> = BTreeSet::new();
    while let Ok(findings) = heard.recv() {
        let grave = findings.iter().filter(|open| open.finding.action.takes_node_out_of_service());
        let Some(worst) = grave.max_by_key(|open| open.finding.action) else {
            // It is well again; what comes next is news.
            done.clear();
            continue;
        };
        let reason = format!("bedplate: {} [{}]", worst.finding.summary, worst.finding.rule);
        if done.contains(&reason) {
            continue;
        }
        while let Err(error) = drain(driver, node, &reason, console) {
            console.say(&printable_line(&format!("cannot drain {node} yet: {error}")));
            thread::sleep(TRY_AGAIN);
        }
        done.insert(reason);
    }
}

fn drain(
    driver: &dyn Driver,
    node: &NodeId,
    reason: &str,
    console: &Console,
) -> Result<(), bedplate_drivers::DriverError> {
    let nodes = driver.nodes()?;
    let is_out = |summary: &&NodeSummary| {
        matches!(summary.state, NodeState::Down | NodeState::Drained | NodeState::Draining)
    };
    if nodes.iter().filter(is_out).any(|summary| summary.name == *node) {
        return Ok(());
    }
    let others_out = nodes.iter().filter(is_out).count();
    let around = Circumstances { nodes: nodes.len(), nodes_out: others_out, nodes_proven: others_out };
    match Blame::new(BlamePolicy::default()).found(others_out + 1, around) {
        NodeVerdict::Common { nodes } => {
            console.say(&format!("{nodes} nodes are out: {node} stays in service, and a person must look"));
        }
        NodeVerdict::TooManyOut { out } => {
            console.say(&format!(
                "{out} nodes are out already: {node} stays in service, and a person must look"
            ));
        }
        _ => {
            driver.drain(node, reason)?;
            console.say(&printable_line(&format!("drained {node}: {reason}")));
        }
    }
    Ok(())
}
