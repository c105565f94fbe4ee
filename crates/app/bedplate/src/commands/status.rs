//! `bedplate status`: how the cluster of this machine does, also while no daemon answers.

use bedplate_drivers::{Driver, Local, NodeId, StateDirectory};
use bedplate_local::{Joined, LocalError, SupervisorNote, find_agent, is_running};
use bedplate_terminal::{CliError, Console};
use serde_json::json;

use crate::connection::Connection;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate status
  bedplate --json status --state-dir /var/lib/bedplate

While the daemon is away, its supervisor says why and how often it has tried to
start it again. Fails while something is wrong.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    connection: Connection,
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let state = arguments.connection.state()?;
    if let Some(joined) = Joined::find(&state) {
        return report_joined(&joined, &state, console);
    }
    let note = SupervisorNote::read(&state);
    let is_up = is_running(&state).unwrap_or(false);
    let supervised = note.as_ref().is_some_and(|note| bedplate_local::machine::is_alive(note.pid));
    let troubles = note.filter(|_| supervised).map(|note| note.troubles).unwrap_or_default();
    let nodes = match is_up {
        true => Local::new(state.place()?).nodes()?,
        false => Vec::new(),
    };
    let linked = nodes.iter().filter(|node| node.is_linked).count();
    if console.is_json() {
        let (nodes, state) = (nodes.len(), state.path());
        console
            .json(&json!({ "is_up": is_up, "is_supervised": supervised, "nodes": nodes, "linked": linked,
            "troubles": troubles, "state_dir": state }))?;
    } else {
        let daemon = if is_up { "answers" } else { "does not answer" };
        console.line(&format!("daemon: {daemon}"))?;
        console.line(&format!("supervisor: {}", if supervised { "watches" } else { "does not run" }))?;
        if is_up {
            console.line(&format!("nodes: {linked} of {} are linked", nodes.len()))?;
        }
        for trouble in &troubles {
            console.line(&trouble.to_string())?;
        }
    }
    match is_up {
        true => Ok(()),
        false => Err(bedplate_drivers::DriverError::NotRunning { beacon: state.beacon_path() }.into()),
    }
}

/// Of a machine that is a node of a cluster on another one: only that cluster knows more.
fn report_joined(joined: &Joined, state: &StateDirectory, console: &mut Console) -> Result<(), CliError> {
    let agent = find_agent(state, &NodeId::from(joined.node.as_str()));
    let troubles = SupervisorNote::read(state).map(|note| note.troubles).unwrap_or_default();
    if console.is_json() {
        console
            .json(&json!({ "node": joined.node, "server": joined.server, "agent_runs": agent.is_some(),
            "troubles": troubles, "state_dir": state.path() }))?;
    } else {
        let runs = if agent.is_some() { "runs" } else { "does not run" };
        console
            .line(&format!("node {} of the cluster at {}: its agent {runs}", joined.node, joined.server))?;
        for trouble in &troubles {
            console.line(&trouble.to_string())?;
        }
    }
    match agent {
        Some(_) => Ok(()),
        None => Err(LocalError::NoAgent { node: joined.node.clone() }.into()),
    }
}
