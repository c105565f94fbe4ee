//! `bedplate agent`: the agent of one node, as `bedplate up` starts it here and you may start it elsewhere.

use std::path::PathBuf;
use std::sync::Arc;

use bedplate_agent::Options;
use bedplate_control::wire::Probe;
use bedplate_drivers::{DriverError, Place};

use crate::connection::{state_directory, variable};
use crate::console::Console;
use crate::stop::Stop;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The node's name in the cluster
    #[arg(long)]
    node: String,
    /// Where the daemon is; the one of the state directory when left out
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Where runs have their directories, and where the daemon of this machine is found
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Where ranks of other nodes reach this one
    #[arg(long, default_value = "127.0.0.1")]
    address: String,
    /// The node's share of the cores; all when left out
    #[arg(long, value_delimiter = ',')]
    cores: Vec<u32>,
    /// The node's share of the memory; all when left out
    #[arg(long, default_value_t = 0)]
    memory_mib: u64,
    /// A command that says by its exit code whether the node is well
    #[arg(long)]
    probe: Option<String>,
    /// How often it is asked, in milliseconds
    #[arg(long, default_value_t = 5000)]
    probe_every_ms: u64,
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), Stop> {
    // The agent outlives whoever started it; failing means that it leads a session already.
    let _ = nix::unistd::setsid();
    let state = state_directory(arguments.state_dir.clone());
    let token = variable("BEDPLATE_TOKEN");
    let place = match &arguments.server {
        Some(server) => Place::from_url(server, token, variable("BEDPLATE_FINGERPRINT"))?,
        None => {
            let beacon = state.beacon()?.ok_or(DriverError::NotRunning { beacon: state.beacon_path() })?;
            let token = token.ok_or_else(|| DriverError::NoToken { server: beacon.socket() })?;
            Place { address: beacon.socket(), fingerprint: beacon.fingerprint, token }
        }
    };
    let mut options = Options::new(&place.address, &place.token, &arguments.node, state.path().join("agents"));
    options.fingerprint = place.fingerprint;
    options.address = arguments.address.clone();
    options.cores = arguments.cores.clone();
    options.memory_mib = arguments.memory_mib;
    let probe = |command: &String| Probe { command: command.clone(), every_ms: arguments.probe_every_ms };
    options.probe = arguments.probe.as_ref().map(probe);
    options.environment.retain(|name, _| !name.starts_with("BEDPLATE_"));
    let remarks = console.remarks();
    options.remark = Arc::new(move |text| remarks(text));
    Ok(bedplate_agent::run(options)?)
}

/// The keeper, which ends with its own exit code.
pub(crate) fn keep() -> Result<(), Stop> {
    match bedplate_agent::keeper::main() == std::process::ExitCode::SUCCESS {
        true => Ok(()),
        false => Err(Stop::Job(1)),
    }
}
