//! `bedplate node list`

use bedplate_drivers::{JobId, NodeSummary};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console};
use serde_json::json;

use crate::connection::Connection;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    connection: Connection,
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let nodes = arguments.connection.driver()?.nodes()?;
    if console.is_json() {
        return console.json(&json!({ "nodes": nodes }));
    }
    console.table(&table(&nodes))
}

fn table(nodes: &[NodeSummary]) -> Table {
    let mut table = Table::new(vec![
        Column::left("NODE", 0),
        Column::left("STATE", 0),
        Column::right("GPUS FREE", 0),
        Column::left("KIND", 2),
        Column::right("CPUS", 3),
        Column::right("MEMORY", 3),
        Column::left("JOBS", 1),
        Column::left("WHY", 0),
    ]);
    for node in nodes {
        let jobs: Vec<String> = node.jobs.iter().map(JobId::to_string).collect();
        table.row(vec![
            node.name.to_string(),
            node.state.name().to_owned(),
            format!("{}/{}", node.gpus_free, node.gpus),
            node.kind.clone(),
            node.cpus.to_string(),
            format!("{} GiB", node.memory_mib / 1024),
            jobs.join(","),
            why(node),
        ]);
    }
    table
}

/// Why it takes no work.
pub(super) fn why(node: &NodeSummary) -> String {
    match (&node.reason, node.is_linked) {
        (Some(reason), _) => reason.text.clone(),
        (None, false) => "its agent is not there".to_owned(),
        (None, true) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use bedplate_diag::Reason;
    use bedplate_drivers::{HostView, NodeState};
    use expect_test::expect;

    use super::*;

    fn node(name: &str, state: NodeState, reason: Option<&str>, is_linked: bool) -> NodeSummary {
        NodeSummary {
            name: name.into(),
            state,
            reason: reason.map(|why| Reason::new("out_of_service", why)),
            address: "127.0.0.1".into(),
            host: HostView::default(),
            kind: "p5.48xlarge".into(),
            gpus: 8,
            gpus_free: if state == NodeState::Allocated { 0 } else { 8 },
            cpus: 192,
            memory_mib: 2_097_152,
            jobs: if state == NodeState::Allocated { vec!["7".into(), "9".into()] } else { Vec::new() },
            is_linked,
            heard_ms: None,
            losses: 0,
            findings: Vec::new(),
        }
    }

    #[test]
    fn a_list_says_what_is_free_and_why_a_node_takes_no_work() {
        let nodes = [
            node("n1", NodeState::Idle, None, true),
            node("n2", NodeState::Allocated, None, true),
            node("n3", NodeState::Drained, Some("ECC errors"), true),
            node("n4", NodeState::Down, None, false),
        ];
        expect![[r#"
            NODE  STATE      GPUS FREE  KIND         CPUS    MEMORY  JOBS  WHY
            n1    idle             8/8  p5.48xlarge   192  2048 GiB  -     -
            n2    allocated        0/8  p5.48xlarge   192  2048 GiB  7,9   -
            n3    drained          8/8  p5.48xlarge   192  2048 GiB  -     ECC errors
            n4    down             8/8  p5.48xlarge   192  2048 GiB  -     its agent is not there
        "#]]
        .assert_eq(&table(&nodes).fit(None).text);
    }
}
