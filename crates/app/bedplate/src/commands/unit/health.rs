//! `bedplate unit slurm-health`: a script by which Slurm takes nodes that are not well out of service.

use std::io::{self, Read};

use bedplate_finding::{Action, Finding, Layer, Severity, Subject, strongest_action};
use serde_json::Value;

/// What a check may print; Slurm keeps reasons short.
const MOST_BYTES: u64 = 1 << 20;
const LONGEST_REASON: usize = 180;

/// The script. Slurm starts it as `HealthCheckProgram`, or a `Prolog` calls it before a job.
pub(super) fn script(program: &str, check: &str) -> String {
    let quoted = bedplate_document::quote::shell(check);
    format!(
        r#"#!/bin/sh
# Takes a node that is not well out of service, with the reason; written by `bedplate unit slurm-health`.
# In slurm.conf:
#   HealthCheckProgram=/etc/slurm/bedplate-health
#   HealthCheckInterval=60
#   HealthCheckNodeState=ANY
# or, to look before each job, call it from the Prolog: a node that fails gets no job.
node=${{SLURMD_NODENAME:-$(hostname -s)}}
said=$(timeout 50 sh -c {quoted} 2>&1)
status=$?
reason=$(printf '%s\n' "$said" | {program} unit drain-reason --node "$node" --status "$status") || exit 0
[ -n "$reason" ] || exit 0
scontrol update nodename="$node" state=drain reason="$reason"
[ -z "$SLURM_JOB_ID" ] || exit 1
"#
    )
}

/// Why a node should be drained, by what its check printed on standard input; empty where it should not.
pub(super) fn reason_from_input(node: &str, status: i32) -> io::Result<String> {
    let mut bytes = Vec::new();
    io::stdin().lock().take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(reason(&String::from_utf8_lossy(&bytes), node, status).unwrap_or_default())
}

/// Findings decide where the check prints some; otherwise its exit status does, and its last line is the reason.
fn reason(text: &str, node: &str, status: i32) -> Option<String> {
    let findings: Vec<Finding> = text.lines().filter_map(|line| finding(line, node)).collect();
    let plain = match findings.is_empty() {
        true if status == 0 => None,
        true if status == 124 => Some("its check does not end".to_owned()),
        true => {
            let last = text.lines().rev().find(|line| !line.trim().is_empty());
            Some(last.map_or_else(|| format!("its check ended with {status}"), str::to_owned))
        }
        false => reason_of(&findings, node),
    };
    let kept = |c: &char| !c.is_control() && *c != '"';
    plain.map(|text| format!("bedplate: {text}").chars().filter(kept).take(LONGEST_REASON).collect())
}

/// The strongest finding speaks for the node.
fn reason_of(findings: &[Finding], node: &str) -> Option<String> {
    let subject = Subject::Node { node: node.to_owned() };
    let action = strongest_action(findings, &subject).filter(|action| action.takes_node_out_of_service())?;
    let finding = findings.iter().find(|finding| finding.action == action)?;
    Some(format!("{} ({}, {action})", finding.summary, finding.rule))
}

/// One finding a line: `{"rule": "gpu/xid-79", "action": "replace", "summary": "GPU 4 has fallen off the bus"}`. One that
/// names another node is not about this one.
fn finding(line: &str, node: &str) -> Option<Finding> {
    let value: Value = serde_json::from_str(line.trim()).ok().filter(Value::is_object)?;
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let action =
        text("action").and_then(|name| Action::ALL.into_iter().find(|action| action.name() == name))?;
    let about = Subject::Node { node: text("node").unwrap_or(node).to_owned() };
    let severity = if action.takes_node_out_of_service() { Severity::Critical } else { Severity::Warning };
    let finding = Finding::new(text("rule")?, severity, Layer::Hardware, about, action);
    Some(finding.because(text("summary").unwrap_or("its check found something")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strongest_finding_about_the_node_is_the_reason() {
        let said = "checking…\n{\"rule\":\"efa/retransmits\",\"action\":\"watch\",\"summary\":\"few\"}\n\
                    {\"rule\":\"gpu/xid-79\",\"action\":\"replace\",\"summary\":\"GPU 4 has \\\"fallen\\\" off the bus\"}\n\
                    {\"rule\":\"gpu/xid-48\",\"action\":\"reboot\",\"node\":\"n9\",\"summary\":\"elsewhere\"}\n";
        let expected = "bedplate: GPU 4 has fallen off the bus (gpu/xid-79, replace)";
        assert_eq!(reason(said, "n1", 0).as_deref(), Some(expected));
        let harmless = "{\"rule\":\"efa/retransmits\",\"action\":\"watch\"}";
        assert_eq!(reason(harmless, "n1", 1), None, "findings count, not the exit status beside them");
    }

    #[test]
    fn a_plain_check_speaks_by_its_exit_status_and_last_line() {
        assert_eq!(reason("all is well\n", "n1", 0), None);
        assert_eq!(reason("GPU 0: ok\nGPU 1: gone\n\n", "n1", 1).as_deref(), Some("bedplate: GPU 1: gone"));
        assert_eq!(reason("", "n1", 7).as_deref(), Some("bedplate: its check ended with 7"));
        assert_eq!(reason("…", "n1", 124).as_deref(), Some("bedplate: its check does not end"));
    }
}
