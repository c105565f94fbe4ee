//! `bedplate node start NODE…`: the agent of a node again, after it died.

use bedplate_drivers::{Driver, NodeId};
use bedplate_local::{Shape, find_agent, hold};
use bedplate_terminal::{CliError, Console, Context, ProgramError};
use serde_json::json;

use crate::connection::Connection;
use crate::launcher::launcher;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Names of nodes of the cluster that `bedplate up` started here
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<NodeId>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    if arguments.connection.is_by_address()? {
        let message = "agents are started on the machine where they run: use --state-dir there".to_owned();
        return Err(ProgramError::Usage { message }.into());
    }
    let state = arguments.connection.state()?;
    let driver = arguments.connection.local("agents to start")?;
    let shape = Shape::load(&state)?;
    let launcher = launcher(context, console)?;
    let held = hold(&state)?;
    for name in &arguments.nodes {
        let node = driver.node(name)?.summary;
        if node.is_linked {
            console.say(&format!("{name} has its agent"));
            continue;
        }
        if find_agent(&state, name).is_none() {
            launcher.start_agent(&state, &driver, &shape, name)?;
        }
    }
    drop(held);
    launcher.wait_for_nodes(&state, &driver, &arguments.nodes)?;
    if console.is_json() {
        return console.json(&json!({ "started": arguments.nodes }));
    }
    for name in &arguments.nodes {
        let node = driver.node(name)?.summary;
        let why = node.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        console.say(&format!("{name} is {}{why}", node.state.name()));
    }
    Ok(())
}
