//! This machine becomes a node of a cluster on another one.
//!
//! `bedplate up --remote COUNT` prints the command for each node, with a token that is good for that node alone. What
//! it says is remembered in `join.json` for the supervisor, which starts the agent again when it dies.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::thread;
use std::time::{Duration, Instant};

use bedplate_drivers::{Local, NodeId, NodeSummary, StateDirectory};
use bedplate_host::read_beginning;
use serde_json::{Value, json};

use crate::shape::make_private;
use crate::{Launcher, LocalError, Shape, launch, take_down};

const FILE: &str = "join.json";
const PAUSE: Duration = Duration::from_millis(20);
const CONNECT: Duration = Duration::from_secs(5);
const JOINING: Duration = Duration::from_secs(30);
/// How long a node that is turned away is tried: an agent that has just died may still count as the node.
const TURNED_AWAY: Duration = Duration::from_secs(5);
/// More than the control plane has to say.
const LONGEST_REASON: u64 = 4096;

/// The lines by which machines join as the nodes that have not.
pub fn invite(driver: &Local, nodes: &[NodeSummary], shape: &Shape) -> Result<Vec<String>, LocalError> {
    let is_absent = |node: &&NodeSummary| !node.is_linked && shape.share(node.name.as_str()).is_none();
    let line = |node: &NodeSummary| {
        let token = launch::invitation_token(driver, node.name.as_str())?;
        let place = driver.place();
        let (address, fingerprint) = (&place.address, place.fingerprint.as_deref().unwrap_or_default());
        Ok(format!(
            "bedplate join {address} --node {} --token {token} --fingerprint {fingerprint}",
            node.name
        ))
    };
    nodes.iter().filter(is_absent).map(line).collect()
}

/// How this machine is part of a cluster elsewhere.
pub struct Joined {
    pub node: String,
    /// `host:port` of the control plane, or several with commas.
    pub server: String,
    pub token: String,
    pub fingerprint: String,
    /// Where ranks of other nodes reach this machine; empty for the address that reaches the control plane.
    pub address: String,
    pub probe: Option<String>,
}

impl Joined {
    /// Starts the agent of this machine and returns once the control plane has let it in.
    pub fn join(mut self, state: &StateDirectory, launcher: &Launcher) -> Result<Self, LocalError> {
        let path = || state.path().to_owned();
        if Shape::find(state)?.is_some() {
            return Err(LocalError::HasCluster { state: path() });
        }
        if launch::find_agent(state, &NodeId::from(self.node.as_str())).is_some() {
            return Err(LocalError::JoinedAlready { node: self.node, state: path() });
        }
        let own = own_address(&self.server);
        let own = own.map_err(|source| LocalError::NoServer { server: self.server.clone(), source })?;
        if self.address.is_empty() {
            self.address = own;
        }
        self.keep(state)?;
        if let Err(error) = self.bring_up(state, launcher) {
            // What was started and is not let in must not try for ever.
            let _ = take_down(state, false, &*launcher.say);
            return Err(error);
        }
        Ok(self)
    }

    /// Nothing where no machine has joined, or what it joined cannot be read.
    pub fn find(state: &StateDirectory) -> Option<Self> {
        let value: Value = serde_json::from_slice(&fs::read(state.path().join(FILE)).ok()?).ok()?;
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        Some(Self {
            node: text("node")?,
            server: text("server")?,
            token: text("token")?,
            fingerprint: text("fingerprint")?,
            address: text("address")?,
            probe: text("probe"),
        })
    }

    fn json(&self) -> Value {
        json!({
            "node": self.node,
            "server": self.server,
            "token": self.token,
            "fingerprint": self.fingerprint,
            "address": self.address,
            "probe": self.probe,
        })
    }

    /// The token in it is for a node that this machine no longer is.
    pub(crate) fn forget(state: &StateDirectory) {
        let _ = fs::remove_file(state.path().join(FILE));
    }

    fn keep(&self, state: &StateDirectory) -> Result<(), LocalError> {
        let failed = |source: io::Error| LocalError::State { path: state.path().to_owned(), source };
        make_private(state.path()).map_err(failed)?;
        Self::forget(state);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(state.path().join(FILE));
        let text = self.json().to_string();
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(failed)
    }

    pub(crate) fn start_agent(&self, state: &StateDirectory, launcher: &Launcher) -> Result<(), LocalError> {
        let mut command = launcher.process(state);
        command.args(["agent", "--server", &self.server, "--fingerprint", &self.fingerprint]);
        command.args(["--node", &self.node, "--address", &self.address]);
        command.arg("--state").arg(state.path().join("agents")).env("BEDPLATE_AGENT_TOKEN", &self.token);
        if let Some(probe) = &self.probe {
            command.args(["--probe", probe, "--probe-every", "5"]);
        }
        launch::allow_root_jobs(&mut command);
        let log = launch::agent_log(state, &self.node);
        launch::spawn(command, &log, &format!("the agent of {}", self.node)).map(drop)
    }

    fn bring_up(&self, state: &StateDirectory, launcher: &Launcher) -> Result<(), LocalError> {
        let said = |what: &str| state.path().join("agents").join(format!("{what}-{}", self.node));
        let (told, refused) = (said("joined"), said("turned-away"));
        let _ = fs::remove_file(&told);
        let _ = fs::remove_file(&refused);
        self.start_agent(state, launcher)?;
        let began = Instant::now();
        while !told.exists() {
            let is_gone = launch::find_agent(state, &NodeId::from(self.node.as_str())).is_none();
            let turned_away = read_beginning(&refused, LONGEST_REASON).unwrap_or_default();
            if !turned_away.is_empty() && (is_gone || began.elapsed() > TURNED_AWAY) {
                let (node, server) = (self.node.clone(), self.server.clone());
                let why = String::from_utf8_lossy(&turned_away).into_owned();
                return Err(LocalError::TurnedAway { node, server, why });
            }
            // It appears in the list of processes a moment after its start.
            if began.elapsed() > JOINING || (is_gone && began.elapsed() > CONNECT) {
                let log = launch::agent_log(state, &self.node);
                let (node, seconds, said) =
                    (self.node.clone(), began.elapsed().as_secs(), launch::last_words(&log));
                return Err(LocalError::NotAdmitted { node, seconds, said, log });
            }
            thread::sleep(PAUSE);
        }
        launcher.start_supervisor(state)
    }
}

/// This machine's address on the way to a server.
fn own_address(servers: &str) -> io::Result<String> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for server in servers.split(',') {
        match bedplate_http::blocking::connected(server, CONNECT) {
            Ok(stream) => return Ok(stream.local_addr()?.ip().to_string()),
            Err(error) => last = error,
        }
    }
    Err(last)
}
