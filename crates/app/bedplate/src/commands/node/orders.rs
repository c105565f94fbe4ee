//! `bedplate node drain|resume NODE…`

use bedplate_drivers::{DriverError, NodeId};
use bedplate_terminal::{CliError, Console};
use serde_json::json;

use crate::connection::Connection;

#[derive(clap::Args)]
pub(crate) struct DrainArguments {
    /// Names of nodes
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<NodeId>,
    /// Why, for the next person who looks at it
    #[arg(short, long)]
    reason: String,
    #[command(flatten)]
    connection: Connection,
}

#[derive(clap::Args)]
pub(crate) struct ResumeArguments {
    /// Names of nodes
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<NodeId>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) fn drain(arguments: &DrainArguments, console: &mut Console) -> Result<(), CliError> {
    let driver = arguments.connection.driver()?;
    let order = |node: &NodeId| driver.drain(node, &arguments.reason);
    for_all(&arguments.nodes, "takes no new work", console, order)
}

pub(super) fn resume(arguments: &ResumeArguments, console: &mut Console) -> Result<(), CliError> {
    let driver = arguments.connection.driver()?;
    for_all(&arguments.nodes, "works again", console, |node| driver.resume(node))
}

fn for_all(
    nodes: &[NodeId],
    outcome: &str,
    console: &mut Console,
    order: impl Fn(&NodeId) -> Result<(), DriverError>,
) -> Result<(), CliError> {
    for node in nodes {
        order(node)?;
        console.say(&format!("{node} {outcome}"));
    }
    if console.is_json() { console.json(&json!({ "done": nodes })) } else { Ok(()) }
}
