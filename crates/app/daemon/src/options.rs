//! What the daemon is told when it starts.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bedplate_control::ControlRules;
use bedplate_gangs::Settings;
use bedplate_topology::Cluster;

use bedplate_diagnose::Policy;

use crate::retention::Retention;

/// Where it listens when nothing else is said.
pub const DEFAULT_PORT: u16 = 7431;

/// Something to be done in between.
pub type Hook = Arc<dyn Fn() + Send + Sync>;

/// The settings of a daemon.
#[derive(Clone)]
pub struct DaemonOptions {
    /// Where the journal, the tokens and the certificate are kept.
    pub state_directory: PathBuf,
    /// Port 0 lets the system choose; `daemon.json` says which it was.
    pub listen: SocketAddr,
    /// Proves itself by its certificate and encrypts, which is off only in tests, and then on loopback alone.
    pub tls: bool,
    /// Names and addresses that the certificate is made out for, besides `localhost` and where it listens.
    pub names: Vec<String>,
    pub cluster: Cluster,
    pub settings: Settings,
    pub rules: ControlRules,
    /// Who the first administrator is: jobs submitted with `admin.token` are theirs.
    pub administrator: String,
    /// Below these, logs of nodes that are away are looked for, as `runs/JOB.RUN/NODE/rank-N.out`.
    pub log_directories: Vec<PathBuf>,
    pub limits: ApiLimits,
    pub retention: Retention,
    /// What follows from a diagnosis of a job.
    pub policy: Policy,
    pub backups: bedplate_journal::BackupRules,
    /// Room on the disk that is kept for the journal.
    pub reserve_bytes: u64,
    /// The journal's own settings, for tests of failing disks.
    pub journal: bedplate_journal::JournalOptions,
    /// Called on the deciding thread before each turn, for tests of slow decisions.
    pub on_turn: Hook,
}

impl DaemonOptions {
    pub fn new(state_directory: PathBuf, cluster: Cluster) -> Self {
        Self {
            log_directories: vec![state_directory.clone(), state_directory.join("agents")],
            state_directory,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)),
            tls: true,
            names: Vec::new(),
            cluster,
            settings: Settings::default(),
            rules: ControlRules::default(),
            administrator: "admin".into(),
            limits: ApiLimits::default(),
            retention: Retention::default(),
            policy: Policy::default(),
            backups: bedplate_journal::BackupRules::default(),
            reserve_bytes: 0,
            journal: bedplate_journal::JournalOptions::default(),
            on_turn: Arc::new(|| {}),
        }
    }
}

/// How much one client, or all of them, may ask for.
#[derive(Debug, Clone)]
pub struct ApiLimits {
    pub body_bytes: usize,
    pub head_bytes: usize,
    /// Connections, idle or not.
    pub connections: usize,
    pub requests_at_once: usize,
    /// For each user, or each address where no token was shown.
    pub requests_at_once_per_client: u32,
    pub requests_per_second_per_client: f64,
    /// Jobs that the requests of a user may touch; what goes beyond waits.
    pub jobs_per_second_per_user: f64,
    /// Wrong tokens from one address.
    pub refusals_per_second: f64,
    /// How long a connection without a request stays open.
    pub idle: Duration,
    /// How long the head of a request may take from its first byte on.
    pub head: Duration,
    pub body: Duration,
    /// How long a client may leave an answer unread.
    pub stall: Duration,
    /// How long a change may wait for the disk.
    pub durable: Duration,
    /// Tasks of an array.
    pub array_tasks: u64,
    /// Events that a watcher may fall behind.
    pub events_behind: usize,
}

impl ApiLimits {
    /// Those that concern connections.
    pub(crate) fn of_connections(&self) -> bedplate_http::Limits {
        bedplate_http::Limits {
            connections: self.connections,
            head_bytes: self.head_bytes,
            body_bytes: self.body_bytes,
            idle: self.idle,
            head: self.head,
            body: self.body,
            stall: self.stall,
            ..bedplate_http::Limits::default()
        }
    }
}

impl Default for ApiLimits {
    fn default() -> Self {
        Self {
            body_bytes: 1 << 20,
            head_bytes: 16 << 10,
            connections: 16_384 + 1_024,
            requests_at_once: 1_024,
            requests_at_once_per_client: 64,
            requests_per_second_per_client: 10_000.0,
            jobs_per_second_per_user: 20_000.0,
            refusals_per_second: 20.0,
            idle: Duration::from_secs(75),
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            stall: Duration::from_secs(30),
            durable: Duration::from_secs(10),
            array_tasks: 10_000,
            events_behind: 8_192,
        }
    }
}
