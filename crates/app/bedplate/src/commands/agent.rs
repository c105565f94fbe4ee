//! `bedplate agent`: the process of a node that runs ranks. People start it through `bedplate up`.

use std::net::SocketAddr;
use std::path::PathBuf;

use bedplate_agent::{AgentOptions, JobUsers, Observe};
use bedplate_control::wire::Probe;
use bedplate_terminal::{CliError, ProgramError};
use bedplate_topology::expand_hostlist;

use crate::watching::Watching;

/// By which variable the token comes, so that it is in no list of processes.
const TOKEN: &str = "BEDPLATE_AGENT_TOKEN";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The control plane, as host:port; several with commas where it may move
    #[arg(long, value_name = "HOST:PORT")]
    server: String,
    /// What proves that this agent may join
    #[arg(long, env = TOKEN, hide_env_values = true)]
    token: String,
    /// SHA-256 of the control plane's certificate, by which it proves itself
    #[arg(long, value_name = "HEX")]
    fingerprint: String,
    /// The node's name in the cluster
    #[arg(long)]
    node: String,
    /// Where ranks of other nodes reach this one
    #[arg(long, default_value = "127.0.0.1")]
    address: String,
    /// The node's share of the host's cores, such as 0-3,8
    #[arg(long, value_name = "LIST")]
    cores: Option<String>,
    /// The node's share of the host's memory
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    memory: u64,
    /// Where runs have their directories
    #[arg(long, value_name = "DIRECTORY")]
    state: PathBuf,
    /// Run jobs of root too; refused otherwise
    #[arg(long)]
    allow_root_jobs: bool,
    /// A command that fails when the node is not well
    #[arg(long, value_name = "COMMAND")]
    probe: Option<String>,
    /// Seconds between two probes
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    probe_every: u64,
    /// Read nothing about this node
    #[arg(long)]
    unwatched: bool,
    /// Offer the node's metrics to Prometheus here; without encryption or passwords
    #[arg(long, value_name = "ADDRESS")]
    export: Option<SocketAddr>,
    /// Let other machines read them
    #[arg(long, requires = "export")]
    export_public: bool,
    #[command(flatten)]
    watching: Watching,
}

pub(crate) fn run(arguments: Arguments) -> Result<(), CliError> {
    // The agent outlives whoever started it; failing means that it leads a session already.
    let _ = nix::unistd::setsid();
    bedplate_supervise::take_precedence();
    let mut options =
        AgentOptions::new(&arguments.server, &arguments.token, &arguments.node, arguments.state);
    options.fingerprint = Some(arguments.fingerprint);
    options.address = arguments.address;
    options.cores = arguments.cores.as_deref().map_or(Ok(Vec::new()), read_cores)?;
    options.memory_mib = arguments.memory;
    options.probe =
        arguments.probe.map(|command| Probe { command, every_ms: arguments.probe_every.max(1) * 1000 });
    if let Ok(program) = std::env::current_exe() {
        let program = bedplate_document::quote::shell(&program.display().to_string());
        options.check = Some(format!("{program} health check --quick --for 1s"));
    }
    if !arguments.unwatched {
        let exporter = arguments.watching.options(&arguments.node)?;
        let exposure = match arguments.export_public {
            true => bedplate_record::Exposure::Anybody,
            false => bedplate_record::Exposure::Loopback,
        };
        let listen = arguments.export.map(|address| (address, exposure));
        options.observe = Some(Observe { exporter, listen });
    }
    options.users = JobUsers::here(arguments.allow_root_jobs);
    options.environment.retain(|name, _| !name.starts_with("BEDPLATE_"));
    Ok(bedplate_agent::run(options)?)
}

/// Numbers and ranges, as Slurm writes them in brackets.
fn read_cores(text: &str) -> Result<Vec<u32>, CliError> {
    let usage = || ProgramError::Usage { message: format!("`{text}` is not a list of cores such as 0-3,8") };
    let numbers = expand_hostlist(&format!("[{text}]")).map_err(|_| usage())?;
    let cores: Option<Vec<u32>> = numbers.iter().map(|number| number.parse().ok()).collect();
    Ok(cores.ok_or_else(usage)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_numbers_and_ranges() {
        assert_eq!(read_cores("0-3,8").unwrap(), [0, 1, 2, 3, 8]);
        for wrong in ["", "a", "3-1", "1-]"] {
            assert!(read_cores(wrong).is_err(), "{wrong}");
        }
    }
}
