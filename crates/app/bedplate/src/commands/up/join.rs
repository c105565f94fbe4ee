//! `bedplate join`: this machine becomes a node of a cluster on another one.
//!
//! `bedplate up --remote COUNT` prints the command for each node, with a token that is good for that node alone. What
//! it says is remembered in `join.json` for the supervisor, which starts the agent again when it dies.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use bedplate_drivers::{Local, NodeId, NodeSummary, StateDirectory};
use bedplate_terminal::{CliError, Console, Context};
use serde_json::{Value, json};

use super::{Shape, UpError, launch};
use crate::connection::state_directory;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate up --listen 10.0.0.1:7431 --remote 1      on the first machine; prints the next line
  bedplate join 10.0.0.1:7431 --node n2 --token bp_… --fingerprint …
  bedplate down                                      takes this machine out again

The whole machine becomes the node: its cores, memory and GPUs.")]
pub(crate) struct Arguments {
    /// The control plane, as host:port
    #[arg(value_name = "ADDRESS")]
    server: String,
    /// Which of the cluster's nodes this machine becomes
    #[arg(long)]
    node: String,
    /// What proves that this machine may join
    #[arg(long, env = "BEDPLATE_AGENT_TOKEN", hide_env_values = true)]
    token: String,
    /// SHA-256 of the control plane's certificate
    #[arg(long, value_name = "HEX")]
    fingerprint: Option<String>,
    /// Where ranks of other nodes reach this machine [default: the address that reaches the control plane]
    #[arg(long, value_name = "ADDRESS")]
    address: Option<String>,
    /// A command that says by its exit code, every few seconds, whether the node is well
    #[arg(long, value_name = "COMMAND")]
    probe: Option<String>,
    /// Where logs and temporary files are kept [default: ~/.local/state/bedplate]
    #[arg(long, visible_alias = "state", value_name = "DIR", env = "BEDPLATE_STATE", hide_env_values = true)]
    state_dir: Option<PathBuf>,
}

const FILE: &str = "join.json";
const PAUSE: Duration = Duration::from_millis(20);
const CONNECT: Duration = Duration::from_secs(5);
const JOINING: Duration = Duration::from_secs(30);

/// The lines by which machines join as the nodes that have not.
pub(super) fn invite(driver: &Local, nodes: &[NodeSummary], shape: &Shape) -> Result<Vec<String>, CliError> {
    let is_absent = |node: &&NodeSummary| !node.is_linked && shape.share(node.name.as_str()).is_none();
    let line = |node: &NodeSummary| {
        let token = launch::invitation_token(driver, node.name.as_str())?;
        let place = driver.place();
        let fingerprint = place.fingerprint.as_ref().map(|hex| format!(" --fingerprint {hex}"));
        let (address, fingerprint) = (&place.address, fingerprint.unwrap_or_default());
        Ok(format!("bedplate join {address} --node {} --token {token}{fingerprint}", node.name))
    };
    nodes.iter().filter(is_absent).map(line).collect()
}

pub(crate) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let state = state_directory(arguments.state_dir.clone());
    let joined = Joined::new(arguments, &state)?;
    joined.keep(&state)?;
    let outcome = joined.bring_up(&state, context);
    if outcome.is_err() {
        // Whatever was started and is not let in must not try for ever.
        let _ = crate::commands::down::take_down(&state, false, console);
    }
    outcome?;
    if console.is_json() {
        return console
            .json(&json!({ "node": joined.node, "server": joined.server, "address": joined.address }));
    }
    console.say(&format!("this machine is {} of the cluster at {}", joined.node, joined.server));
    console.say("`bedplate down` takes it out again");
    Ok(())
}

/// How this machine is part of a cluster elsewhere.
pub(crate) struct Joined {
    pub(super) node: String,
    server: String,
    token: String,
    fingerprint: Option<String>,
    address: String,
    probe: Option<String>,
}

impl Joined {
    fn new(arguments: &Arguments, state: &StateDirectory) -> Result<Self, CliError> {
        let path = || state.path().to_owned();
        if Shape::find(state)?.is_some() {
            return Err(UpError::HasCluster { state: path() }.into());
        }
        let node = NodeId::from(arguments.node.as_str());
        if launch::find_agent(state, &node).is_some() {
            return Err(UpError::JoinedAlready { node: arguments.node.clone(), state: path() }.into());
        }
        let server = arguments.server.clone();
        let own =
            own_address(&server).map_err(|source| UpError::NoServer { server: server.clone(), source })?;
        Ok(Self {
            node: arguments.node.clone(),
            server,
            token: arguments.token.clone(),
            fingerprint: arguments.fingerprint.clone(),
            address: arguments.address.clone().unwrap_or(own),
            probe: arguments.probe.clone(),
        })
    }

    /// Nothing where no machine has joined, or what it joined cannot be read.
    pub(super) fn find(state: &StateDirectory) -> Option<Self> {
        let value: Value = serde_json::from_slice(&fs::read(state.path().join(FILE)).ok()?).ok()?;
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        Some(Self {
            node: text("node")?,
            server: text("server")?,
            token: text("token")?,
            fingerprint: text("fingerprint"),
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

    fn keep(&self, state: &StateDirectory) -> Result<(), CliError> {
        let failed = |source: io::Error| UpError::State { path: state.path().to_owned(), source };
        let mode = if nix::unistd::geteuid().is_root() { 0o711 } else { 0o700 };
        fs::DirBuilder::new().recursive(true).mode(mode).create(state.path()).map_err(failed)?;
        Self::forget(state);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(state.path().join(FILE));
        let text = self.json().to_string();
        Ok(file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(failed)?)
    }

    pub(super) fn start_agent(&self, state: &StateDirectory) -> Result<(), CliError> {
        let mut command = launch::own_program(state)?;
        command.args(["agent", "--server", &self.server, "--node", &self.node, "--address", &self.address]);
        command.arg("--state").arg(state.path().join("agents")).env("BEDPLATE_AGENT_TOKEN", &self.token);
        if let Some(fingerprint) = &self.fingerprint {
            command.args(["--fingerprint", fingerprint]);
        }
        if let Some(probe) = &self.probe {
            command.args(["--probe", probe, "--probe-every", "5"]);
        }
        launch::allow_root_jobs(&mut command);
        let log = launch::agent_log(state, &self.node);
        launch::spawn(command, &log, &format!("the agent of {}", self.node)).map(drop)
    }

    fn bring_up(&self, state: &StateDirectory, context: &Context) -> Result<(), CliError> {
        let told = state.path().join("agents").join(format!("joined-{}", self.node));
        let _ = fs::remove_file(&told);
        self.start_agent(state)?;
        let began = Instant::now();
        while !told.exists() {
            let is_gone = launch::find_agent(state, &NodeId::from(self.node.as_str())).is_none();
            // It appears in the list of processes a moment after its start.
            if began.elapsed() > JOINING || (is_gone && began.elapsed() > CONNECT) {
                let log = launch::agent_log(state, &self.node);
                let (node, seconds, said) =
                    (self.node.clone(), began.elapsed().as_secs(), launch::last_words(&log));
                return Err(UpError::NotAdmitted { node, seconds, said, log }.into());
            }
            thread::sleep(PAUSE);
        }
        launch::start_supervisor(state, context)
    }
}

/// This machine's address on the way to a server.
fn own_address(server: &str) -> io::Result<String> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in server.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => return Ok(stream.local_addr()?.ip().to_string()),
            Err(error) => last = error,
        }
    }
    Err(last)
}
