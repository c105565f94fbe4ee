//! `bedplate node show NODE`

use bedplate_drivers::{JobId, NodeDetail, NodeId, NodeSummary};
use bedplate_finding::OpenFinding;
use bedplate_terminal::present::{Facts, moment, printable_line};
use bedplate_terminal::{CliError, Console};
use serde_json::json;

use super::list::why;
use crate::connection::Connection;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The name of the node
    node: NodeId,
    #[command(flatten)]
    connection: Connection,
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let detail = arguments.connection.driver()?.node(&arguments.node)?;
    if console.is_json() {
        return console.json(&json!(detail));
    }
    console.text(&page(&detail, console.width()))
}

fn page(detail: &NodeDetail, width: Option<usize>) -> String {
    let node = &detail.summary;
    let mut facts = Facts::default();
    facts.add("state", node.state.name());
    facts.add_known("why", Some(why(node)).filter(|why| !why.is_empty()));
    facts
        .add(
            "kind",
            format!("{}: {} GPUs, {} vCPUs, {} GiB", node.kind, node.gpus, node.cpus, node.memory_mib / 1024),
        )
        .add("free", format!("{} GPUs", node.gpus_free))
        .add("host", host_text(node))
        .add("address", node.address.clone());
    let jobs: Vec<String> = node.jobs.iter().map(JobId::to_string).collect();
    facts.add_known("jobs", (!jobs.is_empty()).then(|| jobs.join(", ")));
    facts.add_known("last heard", node.heard_ms.map(|heard| format!("{} UTC", moment(heard))));
    if node.losses > 0 {
        facts.add("lost lately", format!("{} times", node.losses));
    }
    let mut text = format!("node {}\n{}", node.name, facts.render(width));
    text += &findings(&node.findings);
    if !detail.notes.is_empty() {
        text += "\nwhat happened\n";
        for note in &detail.notes {
            text += &format!("  {}  {}\n", moment(note.at_ms), printable_line(&note.text));
        }
    }
    text
}

/// What the node found about itself, with what it was read from.
fn findings(findings: &[OpenFinding]) -> String {
    if findings.is_empty() {
        return String::new();
    }
    let mut text = "\nfindings\n".to_owned();
    for OpenFinding { finding, since_ms, times, .. } in findings {
        let often = if *times > 1 { format!(", {times} times") } else { String::new() };
        let line = format!("{finding}; calls for: {}", finding.action);
        text += &format!("  {}{often}  {}\n", moment(*since_ms), printable_line(&line));
        for evidence in finding.evidence.iter().filter(|evidence| !evidence.reading.is_empty()) {
            let expected =
                evidence.expected.as_ref().map_or(String::new(), |text| format!(" (expected: {text})"));
            let line = format!("{}: {}{expected}", evidence.what, evidence.reading);
            text += &format!("      {}\n", printable_line(&line));
        }
    }
    text
}

/// The machine, with what it really has where the node pretends to be another.
fn host_text(node: &NodeSummary) -> String {
    let host = &node.host;
    if (host.cores, host.memory_mib, host.gpus) == (node.cpus, node.memory_mib, node.gpus) {
        return host.name.clone();
    }
    let pretended = if host.gpus < node.gpus { " (the others are simulated)" } else { "" };
    let memory = host.memory_mib / 1024;
    format!("{}: really {} cores, {memory} GiB, {} GPUs{pretended}", host.name, host.cores, host.gpus)
}
