//! What an agent is told when it starts.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use bedplate_control::wire::Probe;

use crate::identity::JobUsers;

/// The settings of an agent.
#[derive(Clone)]
pub struct AgentOptions {
    /// `host:port` of the control plane, or several with commas: it may move from one to another.
    pub server: String,
    pub token: String,
    /// SHA-256 of the control plane's certificate in hexadecimal, by which it proves itself before it is sent the token. Absent in tests
    /// alone, whose control plane understands no TLS.
    pub fingerprint: Option<String>,
    /// The node's name in the cluster.
    pub node: String,
    /// Where ranks of other nodes reach this one.
    pub address: String,
    /// The node's share of the host's cores; all of them when empty.
    pub cores: Vec<u32>,
    /// The host's memory when zero.
    pub memory_mib: u64,
    /// Where runs have their directories.
    pub state: PathBuf,
    /// The program that is fork server and `srun`; this one when absent.
    pub program: Option<PathBuf>,
    /// The node's own check.
    pub probe: Option<Probe>,
    /// A command that checks the node for a few seconds, when jobs failed there; it ends with 1 only for what no job can bring
    /// about.
    pub check: Option<String>,
    /// What the node's own commands inherit, and jobs a little of.
    pub environment: BTreeMap<String, String>,
    pub users: JobUsers,
    pub logs: LogRules,
    /// What the node reads about itself; nothing when absent.
    pub observe: Option<Observe>,
}

/// How much of what ranks write is kept, where the job names no files of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRules {
    /// Logs are shortened by this much at a time.
    pub portion_bytes: u64,
    /// How many portions are kept for each stream.
    pub portions: u64,
}

impl Default for LogRules {
    fn default() -> Self {
        Self { portion_bytes: 64 << 20, portions: 4 }
    }
}

/// What a node reads about itself, and who may read it.
#[derive(Clone)]
pub struct Observe {
    pub exporter: bedplate_exporter::ExporterOptions,
    /// Where Prometheus finds it; nowhere when absent.
    pub listen: Option<(SocketAddr, bedplate_record::Exposure)>,
}

impl AgentOptions {
    /// Settings for a node that has the whole host and says nothing.
    pub fn new(server: &str, token: &str, node: &str, state: PathBuf) -> Self {
        Self {
            server: server.to_owned(),
            token: token.to_owned(),
            fingerprint: None,
            node: node.to_owned(),
            address: "127.0.0.1".to_owned(),
            cores: Vec::new(),
            memory_mib: 0,
            state,
            program: None,
            probe: None,
            check: None,
            environment: std::env::vars().collect(),
            users: JobUsers::here(false),
            logs: LogRules::default(),
            observe: None,
        }
    }
}

impl fmt::Debug for AgentOptions {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("server", &self.server)
            .field("node", &self.node)
            .field("address", &self.address)
            .field("cores", &self.cores)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
