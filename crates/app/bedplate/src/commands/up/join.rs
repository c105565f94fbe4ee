//! `bedplate join`: this machine becomes a node of a cluster on another one.
//!
//! `bedplate up --remote COUNT` prints the command for each node, with a token that is good for that node alone.

use std::path::PathBuf;

use bedplate_local::{Joined, state_directory};
use bedplate_terminal::{CliError, Console, Context};
use serde_json::json;

use crate::launcher::launcher;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate up --listen 10.0.0.1:7431 --remote 1      on the first machine; prints the next line
  bedplate join 10.0.0.1:7431 --node n2 --token bp_… --fingerprint …
  bedplate down                                      takes this machine out again

The whole machine becomes the node: its cores, memory and GPUs.")]
pub(crate) struct Arguments {
    /// The control plane, as host:port; several with commas where it may move
    #[arg(value_name = "ADDRESS")]
    server: String,
    /// Which of the cluster's nodes this machine becomes
    #[arg(long)]
    node: String,
    /// The token that lets this machine join
    #[arg(long, env = "BEDPLATE_AGENT_TOKEN", hide_env_values = true)]
    token: String,
    /// SHA-256 of the control plane's certificate
    #[arg(long, value_name = "HEX")]
    fingerprint: String,
    /// Where ranks of other nodes reach this machine [default: the address that reaches the control plane]
    #[arg(long, value_name = "ADDRESS")]
    address: Option<String>,
    /// A command, run every few seconds, that fails when the node is unhealthy
    #[arg(long, value_name = "COMMAND")]
    probe: Option<String>,
    /// Where logs and temporary files are kept [default: ~/.local/state/bedplate]
    #[arg(long, visible_alias = "state", value_name = "DIR", env = "BEDPLATE_STATE", hide_env_values = true)]
    state_dir: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let state = state_directory(arguments.state_dir.clone());
    let joining = Joined {
        node: arguments.node.clone(),
        server: arguments.server.clone(),
        token: arguments.token.clone(),
        fingerprint: arguments.fingerprint.clone(),
        address: arguments.address.clone().unwrap_or_default(),
        probe: arguments.probe.clone(),
    };
    let joined = joining.join(&state, &launcher(context, console)?)?;
    if console.is_json() {
        return console
            .json(&json!({ "node": joined.node, "server": joined.server, "address": joined.address }));
    }
    console.say(&format!("this machine is {} of the cluster at {}", joined.node, joined.server));
    console.say("`bedplate down` takes it out again");
    Ok(())
}
