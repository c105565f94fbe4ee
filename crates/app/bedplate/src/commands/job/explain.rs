//! `bedplate job explain JOB…`

use bedplate_drivers::{Explained, HolderExplained, JobDetail, NodesExplained};
use bedplate_terminal::present::{Facts, clock, moment, now_ms};
use bedplate_terminal::{CliError, Console};
use serde_json::{Value, json};

use super::Jobs;
use crate::job_text::{state_text, where_or_why};

pub(super) fn run(arguments: &Jobs, console: &mut Console) -> Result<(), CliError> {
    let driver = arguments.connection.driver()?;
    let mut told = Vec::new();
    for label in &arguments.jobs {
        let job = driver.job(label)?;
        let explained = driver.explain(label)?;
        if console.is_json() {
            told.push(json!({ "job": label, "state": job.summary.life.state, "explanation": explained }));
            continue;
        }
        console.line(&format!("job {label} ({}): {}", job.summary.name, state_text(&job.summary)))?;
        let facts = match &explained {
            Some(explained) => facts(explained, now_ms()),
            None => ended_or_running(&job, now_ms()),
        };
        console.text(&facts.render(console.width()))?;
    }
    match told.as_slice() {
        [] => Ok(()),
        [only] => console.json(only),
        all => console.json(&json!(all)),
    }
}

fn ended_or_running(job: &JobDetail, now_ms: u64) -> Facts {
    let mut facts = Facts::default();
    let label = if job.summary.nodes.is_empty() { "because" } else { "on" };
    let text = where_or_why(&job.summary, now_ms);
    facts.add(label, if text.is_empty() { "it does not wait".to_owned() } else { text });
    facts
}

fn facts(explained: &Explained, now_ms: u64) -> Facts {
    let mut facts = Facts::default();
    facts.add("waits", explained.wait.text.clone());
    if let Some(ahead) = explained.ahead {
        facts.add("ahead", ahead_text(ahead));
    }
    match explained.expected_start_ms {
        Some(start) => facts.add(
            "start",
            format!(
                "within {}, at {} UTC, if everybody uses all their time",
                clock(start.saturating_sub(now_ms)),
                moment(start)
            ),
        ),
        None => facts.add("start", "not known"),
    };
    if let Some(nodes) = &explained.nodes {
        add_nodes(&mut facts, nodes, now_ms);
    }
    facts.add_known("priority", priority_text(&explained.priority));
    for remedy in &explained.remedies {
        facts.add("earlier", remedy.text.clone());
    }
    facts
}

fn ahead_text(ahead: usize) -> String {
    match ahead {
        0 => "no job that waits has its turn before it".to_owned(),
        1 => "one job that waits has its turn before it".to_owned(),
        _ => format!("{ahead} jobs that wait have their turn before it"),
    }
}

/// Where the nodes are, who has them and until when, which are out of service and why, what the job itself leaves out.
fn add_nodes(facts: &mut Facts, nodes: &NodesExplained, now_ms: u64) {
    let parts = [
        (nodes.free, "free"),
        (nodes.held, "held by others"),
        (nodes.out_of_service, "out of service"),
        (nodes.left_out, "left out by its request"),
        (nodes.too_small, "too small"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    facts.add("nodes", format!("{} in all: {}", nodes.all, parts.collect::<Vec<_>>().join(", ")));
    for HolderExplained { job, nodes, until_ms } in nodes.holders.iter().take(MOST_NAMED) {
        let count = if *nodes == 1 { "one node".to_owned() } else { format!("{nodes} nodes") };
        let left = clock(until_ms.saturating_sub(now_ms));
        facts.add("held", format!("{count} by job {job}, for {left} at the longest"));
    }
    for node in nodes.out.iter().take(MOST_NAMED) {
        let why = node.reason.as_ref().map_or_else(String::new, |reason| format!(": {}", reason.text));
        facts.add("out", format!("{} is {}{why}", node.name, node.state));
    }
    for rule in nodes.left_out_by.iter().take(MOST_NAMED) {
        facts.add("left out", format!("{} by {}", rule.nodes, rule.by));
    }
}

/// As many of each kind are named.
const MOST_NAMED: usize = 4;

/// The parts of a priority that are not zero, largest first.
fn priority_text(priority: &Value) -> Option<String> {
    let object = match priority {
        Value::Object(object) => object,
        Value::Null => return None,
        other => return Some(other.to_string()),
    };
    let mut parts: Vec<(&str, f64)> = object
        .iter()
        .filter_map(|(name, value)| Some((name.as_str(), value.as_f64()?)))
        .filter(|(name, value)| *value != 0.0 && *name != "total")
        .collect();
    parts.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    let total =
        object.get("total").and_then(Value::as_f64).unwrap_or_else(|| parts.iter().map(|part| part.1).sum());
    let parts: Vec<String> =
        parts.iter().map(|(name, value)| format!("{} {value:.0}", name.replace('_', " "))).collect();
    Some(match parts.is_empty() {
        true => format!("{total:.0}"),
        false => format!("{total:.0}: {}", parts.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use bedplate_diag::Reason;
    use bedplate_drivers::{NodeOut, RuleExplained};
    use expect_test::expect;

    use super::*;

    #[test]
    fn an_explanation_says_why_when_and_what_would_help() {
        let explained = Explained {
            wait: Reason::new("resources", "not enough free nodes: 2 of 4"),
            priority: json!({ "age": 12.0, "fair_share": 500.0, "nice": 0.0 }),
            ahead: Some(3),
            expected_start_ms: Some(3_600_000),
            remedies: vec![Reason::new("fewer_nodes", "with 2 nodes it would start now")],
            nodes: Some(NodesExplained {
                all: 9,
                left_out: 2,
                left_out_by: vec![RuleExplained { by: "feature nvme".to_owned(), nodes: 2 }],
                too_small: 0,
                out_of_service: 1,
                out: vec![NodeOut {
                    name: "n3".to_owned(),
                    state: "drained".to_owned(),
                    reason: Some(Reason::new("drain", "the operator: a fan is loud")),
                }],
                free: 2,
                held: 4,
                holders: vec![HolderExplained { job: 12, nodes: 4, until_ms: 1_800_000 }],
            }),
        };
        expect![[r#"
            it
              waits     not enough free nodes: 2 of 4
              ahead     3 jobs that wait have their turn before it
              start     within 1:00:00, at 1970-01-01 01:00:00 UTC, if everybody uses all their time
              nodes     9 in all: 2 free, 4 held by others, 1 out of service, 2 left out by its request
              held      4 nodes by job 12, for 30:00 at the longest
              out       n3 is drained: the operator: a fan is loud
              left out  2 by feature nvme
              priority  512: fair share 500, age 12
              earlier   with 2 nodes it would start now
        "#]]
        .assert_eq(&format!("it\n{}", facts(&explained, 0).render(None)));
    }
}
