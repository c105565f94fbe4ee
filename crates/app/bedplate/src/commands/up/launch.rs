//! Starting the processes of a cluster, and waiting until they are there.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_drivers::{Driver, Local, NodeId, StateDirectory};

use super::{Shape, UpError};
use crate::console::Console;
use crate::context::Context;
use crate::machine::{self, MARK};
use crate::stop::Stop;

/// Every process of a cluster has its state directory in this variable.
pub(crate) const CLUSTER: &str = "BEDPLATE_CLUSTER";

const PAUSE: Duration = Duration::from_millis(10);
/// How long a daemon may take to open its journal.
const DAEMON: Duration = Duration::from_secs(60);
const JOINING: Duration = Duration::from_secs(30);
/// Lines of a log that are shown when its process has died.
const LAST_LINES: usize = 3;

/// Whether the daemon of a directory is there and answers.
pub(crate) fn is_running(state: &StateDirectory) -> Result<bool, Stop> {
    let Some(beacon) = state.beacon()? else { return Ok(false) };
    Ok(machine::is_alive(beacon.pid) && Local::new(state.place()?).is_up())
}

/// Starts the daemon and returns once it answers.
pub(crate) fn start_daemon(
    state: &StateDirectory,
    shape: &Shape,
    context: &Context,
    console: &Console,
) -> Result<Local, Stop> {
    let mut command = own_program(state)?;
    command.arg("daemon").arg("--state-dir").arg(state.path());
    // Agents look for a daemon that comes back where it was.
    let before = state.beacon()?.map(|beacon| beacon.socket());
    if let Some(listen) = shape.listen.clone().or(before) {
        command.args(["--listen", &listen]);
    }
    for overlay in &context.overlays {
        let path = fs::canonicalize(overlay).unwrap_or_else(|_| PathBuf::from(overlay));
        command.arg("--catalog").arg(path);
    }
    let log = state.path().join("daemon.log");
    let mut child = spawn(command, &log, "the daemon")?;
    let began = Instant::now();
    loop {
        if let Some(beacon) = state.beacon().ok().flatten()
            && beacon.pid == child.id()
            && let Ok(place) = state.place()
        {
            let driver = Local::new(place);
            if driver.is_up() {
                console.say(&format!("the daemon is up at {}", driver.place().url()));
                return Ok(driver);
            }
        }
        if has_ended(&mut child) || began.elapsed() > DAEMON {
            return Err(died("the daemon", &log).into());
        }
        thread::sleep(PAUSE);
    }
}

/// Starts the agent of a node, with a token of its own. It joins by and by.
pub(crate) fn start_agent(
    state: &StateDirectory,
    driver: &Local,
    shape: &Shape,
    node: &NodeId,
) -> Result<(), Stop> {
    let node = node.as_str();
    let token = driver.make_token(node, "agent", None)?.token;
    let mut command = own_program(state)?;
    command.args(["agent", "--server", &driver.place().address, "--node", node]);
    command.arg("--state").arg(state.path().join("agents")).env("BEDPLATE_AGENT_TOKEN", token);
    if let Some(fingerprint) = &driver.place().fingerprint {
        command.args(["--fingerprint", fingerprint]);
    }
    if let Some(share) = shape.share(node) {
        let cores: Vec<String> = share.cores.iter().map(u32::to_string).collect();
        command.args(["--cores", &cores.join(",")]).args(["--memory", &share.memory_mib.to_string()]);
    }
    if let Some(address) = loopback_address(driver, node) {
        command.args(["--address", &address]);
    }
    if let Some(probe) = &shape.probe {
        command.args(["--probe", probe, "--probe-every", "5"]);
    }
    spawn(command, &agent_log(state, node), &format!("the agent of {node}")).map(drop)
}

/// An address of its own for each node of this machine: programs inside jobs then meet at addresses that resolve,
/// and `srun -w` can tell nodes apart by them.
fn loopback_address(driver: &Local, node: &str) -> Option<String> {
    let nodes = driver.nodes().ok()?;
    let place = nodes.iter().position(|known| known.name.as_str() == node)?;
    let number = u32::try_from(place).ok()?.checked_add(1).filter(|number| *number < 1 << 24)?;
    Some(std::net::Ipv4Addr::from((127 << 24) + number).to_string())
}

fn agent_log(state: &StateDirectory, node: &str) -> PathBuf {
    state.path().join("agents").join(format!("{node}.log"))
}

/// Whether a process of this directory is the agent of that node.
pub(super) fn has_agent(state: &StateDirectory, node: &NodeId) -> bool {
    let is_its_agent = |line: &str| line.contains(" agent ") && line.contains(&format!("--node {node} "));
    machine::processes_with(CLUSTER)
        .iter()
        .filter(|process| process.variable(CLUSTER).map(Path::new) == Some(state.path()))
        .any(|process| is_its_agent(&format!("{} ", machine::command_line(process.pid))))
}

/// Returns once all these nodes have joined.
pub(crate) fn wait_for_nodes(
    state: &StateDirectory,
    driver: &Local,
    names: &[NodeId],
    console: &Console,
) -> Result<(), Stop> {
    let began = Instant::now();
    let mut told = 0;
    loop {
        let nodes = driver.nodes()?;
        let is_missing = |name: &&NodeId| !nodes.iter().any(|node| node.name == **name && node.is_linked);
        let missing: Vec<NodeId> = names.iter().filter(is_missing).cloned().collect();
        let joined = names.len() - missing.len();
        // A line now and then: a cluster of hundreds need not scroll.
        if joined > told && (missing.is_empty() || joined >= told + names.len().div_ceil(4)) {
            console.say(&format!("{joined} of {} nodes have joined", names.len()));
            told = joined;
        }
        if missing.is_empty() {
            return Ok(());
        }
        if began.elapsed() > JOINING {
            let log = agent_log(state, missing[0].as_str());
            let (total, seconds) = (names.len(), JOINING.as_secs());
            return Err(UpError::NotJoined { missing, total, seconds, log }.into());
        }
        thread::sleep(PAUSE);
    }
}

/// This program again, as a process of the cluster.
fn own_program(state: &StateDirectory) -> Result<Command, Stop> {
    let program = std::env::current_exe()
        .map_err(|source| UpError::Start { what: "this program again".to_owned(), source })?;
    let mut command = Command::new(program);
    command.env(CLUSTER, state.path());
    // A cluster started inside a job is no part of it, and none of the caller's cluster either.
    for name in [
        MARK,
        "BEDPLATE_AGENT_TOKEN",
        "BEDPLATE_SERVER",
        "BEDPLATE_TOKEN",
        "BEDPLATE_FINGERPRINT",
        "BEDPLATE_STATE",
    ] {
        command.env_remove(name);
    }
    Ok(command)
}

fn spawn(mut command: Command, log: &Path, what: &str) -> Result<Child, Stop> {
    let file = open_log(log).map_err(|source| UpError::State { path: log.to_owned(), source })?;
    let again = file.try_clone().map_err(|source| UpError::State { path: log.to_owned(), source })?;
    command.current_dir("/").stdin(Stdio::null()).stdout(file).stderr(again);
    let child = command.spawn();
    Ok(child.map_err(|source| UpError::Start { what: what.to_owned(), source })?)
}

fn open_log(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

fn has_ended(child: &mut Child) -> bool {
    !matches!(child.try_wait(), Ok(None))
}

fn died(what: &str, log: &Path) -> UpError {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let said = match lines.is_empty() {
        true => "it said nothing".to_owned(),
        false => lines[lines.len().saturating_sub(LAST_LINES)..].join(" / "),
    };
    UpError::Died { what: what.to_owned(), said, log: log.to_owned() }
}
