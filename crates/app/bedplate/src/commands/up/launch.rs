//! Starting the processes of a cluster, and waiting until they are there.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_drivers::{Driver, Local, NodeId, StateDirectory, TokenView};
use bedplate_terminal::{CliError, Console, Context};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Shape, UpError};
use crate::machine::{self, MARK};

/// Every process of a cluster has its state directory in this variable.
pub(crate) const CLUSTER: &str = "BEDPLATE_CLUSTER";

const PAUSE: Duration = Duration::from_millis(10);
/// How long a daemon may take to open its journal.
const DAEMON: Duration = Duration::from_secs(60);
const JOINING: Duration = Duration::from_secs(30);
/// Lines of a log that are shown when its process has died.
const LAST_LINES: usize = 3;

/// Held by whoever starts processes of a cluster, so that no two start the same one.
pub(crate) fn hold(state: &StateDirectory) -> Result<Flock<File>, CliError> {
    let path = state.path().join("start.lock");
    let failed = |source: io::Error| UpError::State { path: path.clone(), source };
    let file = private_file().open(&path).map_err(failed)?;
    Ok(Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| failed(error.into()))?)
}

/// Starts the process that starts the others again, unless it is there.
pub(crate) fn start_supervisor(state: &StateDirectory, context: &Context) -> Result<(), CliError> {
    if !find_processes(state, " supervise ").is_empty() {
        return Ok(());
    }
    let mut command = own_program(state)?;
    command.arg("supervise").arg("--state-dir").arg(state.path());
    add_overlays(&mut command, context);
    spawn(command, &state.path().join("supervisor.log"), "the supervisor").map(drop)
}

/// From now on nothing is started again.
pub(crate) fn stop_supervisor(state: &StateDirectory) {
    for pid in find_processes(state, " supervise ") {
        // It keeps nothing that an abrupt end could harm.
        let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        while machine::is_alive(pid) {
            thread::sleep(PAUSE);
        }
    }
}

/// Whether the daemon of a directory is there and answers.
pub(crate) fn is_running(state: &StateDirectory) -> Result<bool, CliError> {
    let Some(beacon) = state.beacon()? else { return Ok(false) };
    Ok(machine::is_alive(beacon.pid) && Local::new(state.place()?).is_up())
}

/// Starts the daemon and returns once it answers.
pub(crate) fn start_daemon(
    state: &StateDirectory,
    shape: &Shape,
    context: &Context,
    console: &Console,
) -> Result<Local, CliError> {
    let mut command = own_program(state)?;
    command.arg("daemon").arg("--state-dir").arg(state.path());
    // Agents look for a daemon that comes back where it was.
    let before = state.beacon()?.map(|beacon| beacon.socket());
    if let Some(listen) = shape.listen.clone().or(before) {
        command.args(["--listen", &listen]);
    }
    add_overlays(&mut command, context);
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

fn add_overlays(command: &mut Command, context: &Context) {
    for overlay in &context.overlays {
        let path = fs::canonicalize(overlay).unwrap_or_else(|_| PathBuf::from(overlay));
        command.arg("--catalog").arg(path);
    }
}

/// Starts the agent of a node, with a token of its own. It joins by and by.
pub(crate) fn start_agent(
    state: &StateDirectory,
    driver: &Local,
    shape: &Shape,
    node: &NodeId,
) -> Result<(), CliError> {
    let node = node.as_str();
    let token = new_token(driver, node)?;
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
    if let Some(address) = shape.address().or_else(|| loopback_address(driver, node)) {
        command.args(["--address", &address]);
    }
    let number = shape.nodes.iter().position(|share| share.node == node).unwrap_or(0);
    command.args(shape.watch.arguments(node, number));
    allow_root_jobs(&mut command);
    if let Some(probe) = &shape.probe {
        command.args(["--probe", probe, "--probe-every", "5"]);
    }
    spawn(command, &agent_log(state, node), &format!("the agent of {node}")).map(drop)
}

/// Who starts an agent as root can do anything on this machine already.
pub(super) fn allow_root_jobs(command: &mut Command) {
    if nix::unistd::geteuid().is_root() {
        command.arg("--allow-root-jobs");
    }
}

/// A token for a node's agent; those of earlier ones are worthless from now on.
fn new_token(driver: &Local, node: &str) -> Result<String, CliError> {
    replace_tokens(driver, node, |_| true)
}

/// A token by which another machine joins as a node; one that was not used is worthless from now on.
pub(super) fn invitation_token(driver: &Local, node: &str) -> Result<String, CliError> {
    replace_tokens(driver, node, |token| {
        token.rest.get("is_one_time").is_some_and(|is| *is == true)
            && token.rest.get("used_ms").is_none_or(serde_json::Value::is_null)
    })
}

fn replace_tokens(
    driver: &Local,
    node: &str,
    is_old: impl Fn(&TokenView) -> bool,
) -> Result<String, CliError> {
    let is_its = |token: &&TokenView| token.role == "agent" && token.user == node;
    for token in driver.tokens()?.iter().filter(is_its).filter(|token| is_old(token)) {
        let id = token.id.as_str().map_or_else(|| token.id.to_string(), str::to_owned);
        driver.revoke_token(&id)?;
    }
    Ok(driver.make_token(node, "agent", None)?.token)
}

/// An address of its own for each node of this machine: programs inside jobs then meet at addresses that resolve,
/// and `srun -w` can tell nodes apart by them.
fn loopback_address(driver: &Local, node: &str) -> Option<String> {
    let nodes = driver.nodes().ok()?;
    let place = nodes.iter().position(|known| known.name.as_str() == node)?;
    let number = u32::try_from(place).ok()?.checked_add(1).filter(|number| *number < 1 << 24)?;
    Some(std::net::Ipv4Addr::from((127 << 24) + number).to_string())
}

pub(super) fn agent_log(state: &StateDirectory, node: &str) -> PathBuf {
    state.path().join("agents").join(format!("{node}.log"))
}

/// The process of this directory that is the agent of that node.
pub(crate) fn find_agent(state: &StateDirectory, node: &NodeId) -> Option<u32> {
    let agents = find_processes(state, " agent ");
    let is_its = |pid: &u32| format!("{} ", machine::command_line(*pid)).contains(&format!("--node {node} "));
    agents.into_iter().find(is_its)
}

/// The processes of this directory whose command line contains some words.
fn find_processes(state: &StateDirectory, words: &str) -> Vec<u32> {
    let whole = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let own = whole(state.path());
    let is_of_cluster = |process: &machine::Process| {
        process.variable(CLUSTER).is_some_and(|path| whole(path.as_ref()) == own)
    };
    let all = machine::processes_with(CLUSTER);
    let pids = all.iter().filter(|process| is_of_cluster(process)).map(|process| process.pid);
    pids.filter(|pid| machine::is_alive(*pid) && machine::command_line(*pid).contains(words)).collect()
}

/// Returns once all these nodes have joined.
pub(crate) fn wait_for_nodes(
    state: &StateDirectory,
    driver: &Local,
    names: &[NodeId],
    console: &Console,
) -> Result<(), CliError> {
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
pub(super) fn own_program(state: &StateDirectory) -> Result<Command, CliError> {
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

pub(super) fn spawn(mut command: Command, log: &Path, what: &str) -> Result<Child, CliError> {
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
    private_file().open(path)
}

/// For its owner alone: logs and locks of a cluster are nobody else's affair.
fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600);
    options
}

fn has_ended(child: &mut Child) -> bool {
    !matches!(child.try_wait(), Ok(None))
}

fn died(what: &str, log: &Path) -> UpError {
    UpError::Died { what: what.to_owned(), said: last_words(log), log: log.to_owned() }
}

/// The end of a log.
pub(super) fn last_words(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    match lines.is_empty() {
        true => "it said nothing".to_owned(),
        false => lines[lines.len().saturating_sub(LAST_LINES)..].join(" / "),
    }
}
