//! Starting the processes of a cluster, and waiting until they are there.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bedplate_drivers::{Driver, Local, NodeId, StateDirectory, TokenView};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::machine::{self, MARK};
use crate::note::SupervisorNote;
use crate::progress::{self, Judgement, Silence};
use crate::{LocalError, Shape};

/// Every process of a cluster has its state directory in this variable.
pub(crate) const CLUSTER: &str = "BEDPLATE_CLUSTER";

const PAUSE: Duration = Duration::from_millis(10);
/// How long a daemon may take to open its journal.
const DAEMON: Duration = Duration::from_secs(60);
/// How long the question whether it is up may take; who listens there may be another program.
const ANSWER: Duration = Duration::from_secs(5);
const JOINING: Duration = Duration::from_secs(30);
/// Lines of a log that are shown when its process has died.
const LAST_LINES: usize = 3;

/// Takes remarks for the user.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// Starts the processes of clusters on this machine.
#[derive(Clone)]
pub struct Launcher {
    /// The program `bedplate`: daemon, agents and supervisor are processes of it.
    program: PathBuf,
    /// Catalog files that every process reads.
    overlays: Vec<String>,
    pub say: Say,
}

impl Launcher {
    pub fn new(program: PathBuf, overlays: Vec<String>, say: Say) -> Self {
        Self { program, overlays, say }
    }

    /// One that starts this program again.
    pub fn of_this_program(overlays: Vec<String>, say: Say) -> Result<Self, LocalError> {
        let program = std::env::current_exe()
            .map_err(|source| LocalError::Start { what: "this program again".to_owned(), source })?;
        Ok(Self::new(program, overlays, say))
    }

    /// Starts the process that starts the others again, unless it is there.
    pub fn start_supervisor(&self, state: &StateDirectory) -> Result<(), LocalError> {
        if has_supervisor(state) {
            return Ok(());
        }
        let mut command = self.process(state);
        command.arg("supervise").arg("--state-dir").arg(state.path());
        self.add_overlays(&mut command);
        spawn(command, &state.path().join("supervisor.log"), "the supervisor").map(drop)
    }

    /// Starts the daemon and returns once it answers. A journal may be of any size, so a daemon that works at it is waited for.
    pub fn start_daemon(&self, state: &StateDirectory, shape: &Shape) -> Result<Local, LocalError> {
        let slow = |silent: Duration| {
            (self.say)(&format!("the daemon works and does not answer yet, for {} s", silent.as_secs()));
            ControlFlow::Continue(())
        };
        let started = self.start_daemon_at(state, shape, None, slow)?;
        Ok(started.expect("the wait was not broken off"))
    }

    /// The same, where the daemon before it was at this address, whatever its files say. `slow` is told after every minute of work
    /// without an answer, and may break the wait off.
    pub(crate) fn start_daemon_at(
        &self,
        state: &StateDirectory,
        shape: &Shape,
        before: Option<SocketAddr>,
        mut slow: impl FnMut(Duration) -> ControlFlow<()>,
    ) -> Result<Option<Local>, LocalError> {
        let mut command = self.process(state);
        command.arg("daemon").arg("--state-dir").arg(state.path());
        // Agents look for a daemon that comes back where it was. What cannot be read must not keep it away.
        let by_beacon = || state.beacon().ok().flatten()?.socket().parse().ok();
        let by_supervisor = || SupervisorNote::read(state)?.address;
        let before = before.or_else(by_beacon).or_else(by_supervisor);
        if let Some(listen) = address_again(shape.listen.as_deref(), before) {
            command.args(["--listen", &listen]);
        }
        self.add_overlays(&mut command);
        let log = state.path().join("daemon.log");
        let mut child = spawn(command, &log, "the daemon")?;
        let began = Instant::now();
        let mut silence = Silence::since(began);
        loop {
            if let Some(beacon) = state.beacon().ok().flatten()
                && beacon.pid == child.id()
                && let Ok(place) = state.place()
            {
                let driver = Local::new(place);
                if driver.is_up() {
                    (self.say)(&format!("the daemon is up at {}", driver.place().url()));
                    return Ok(Some(driver));
                }
            }
            if has_ended(&mut child) {
                return Err(died("the daemon", &log));
            }
            match silence.look(progress::is_at_work(child.id()), Instant::now(), DAEMON) {
                Judgement::Early => {}
                Judgement::Slow(silent) if slow(silent).is_continue() => {}
                Judgement::Slow(_) => return Ok(None),
                Judgement::Dead => {
                    let seconds = began.elapsed().as_secs();
                    return Err(LocalError::Silent { seconds, said: last_words(&log), log });
                }
            }
            thread::sleep(PAUSE);
        }
    }

    /// Starts the agent of a node, with a token of its own. It joins by and by.
    pub fn start_agent(
        &self,
        state: &StateDirectory,
        driver: &Local,
        shape: &Shape,
        node: &NodeId,
    ) -> Result<(), LocalError> {
        let node = node.as_str();
        let token = new_token(driver, node)?;
        let mut command = self.process(state);
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

    /// Returns once all these nodes have joined.
    pub fn wait_for_nodes(
        &self,
        state: &StateDirectory,
        driver: &Local,
        names: &[NodeId],
    ) -> Result<(), LocalError> {
        let began = Instant::now();
        let mut told = 0;
        loop {
            let nodes = driver.nodes()?;
            let is_missing = |name: &&NodeId| !nodes.iter().any(|node| node.name == **name && node.is_linked);
            let missing: Vec<NodeId> = names.iter().filter(is_missing).cloned().collect();
            let joined = names.len() - missing.len();
            // A line now and then: a cluster of hundreds need not scroll.
            if joined > told && (missing.is_empty() || joined >= told + names.len().div_ceil(4)) {
                (self.say)(&format!("{joined} of {} nodes have joined", names.len()));
                told = joined;
            }
            if missing.is_empty() {
                return Ok(());
            }
            if began.elapsed() > JOINING {
                let log = agent_log(state, missing[0].as_str());
                let (total, seconds) = (names.len(), JOINING.as_secs());
                return Err(LocalError::NotJoined { missing, total, seconds, log });
            }
            thread::sleep(PAUSE);
        }
    }

    /// A process of the cluster, whose arguments are not yet set.
    pub(crate) fn process(&self, state: &StateDirectory) -> Command {
        let mut command = Command::new(&self.program);
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
        command
    }

    fn add_overlays(&self, command: &mut Command) {
        for overlay in &self.overlays {
            let path = fs::canonicalize(overlay).unwrap_or_else(|_| PathBuf::from(overlay));
            command.arg("--catalog").arg(path);
        }
    }
}

/// Held by whoever starts processes of a cluster, so that no two start the same one.
pub fn hold(state: &StateDirectory) -> Result<Flock<File>, LocalError> {
    let path = state.path().join("start.lock");
    let failed = |source: io::Error| LocalError::State { path: path.clone(), source };
    let file = private_file().open(&path).map_err(failed)?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| failed(error.into()))
}

pub(crate) fn has_supervisor(state: &StateDirectory) -> bool {
    !find_processes(state, " supervise ").is_empty()
}

/// From now on nothing is started again.
pub fn stop_supervisor(state: &StateDirectory) {
    for pid in find_processes(state, " supervise ") {
        // It keeps nothing that an abrupt end could harm.
        let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        while machine::is_alive(pid) {
            thread::sleep(PAUSE);
        }
    }
}

/// Whether the daemon of a directory is there and answers.
pub fn is_running(state: &StateDirectory) -> Result<bool, LocalError> {
    let Some(beacon) = state.beacon()? else { return Ok(false) };
    // Left by a daemon of an earlier release that was killed.
    if beacon.fingerprint.is_none() && !machine::is_alive(beacon.pid) {
        return Ok(false);
    }
    Ok(Local::new(state.place()?).with_answer_within(ANSWER).is_up())
}

/// Who starts an agent as root can do anything on this machine already.
pub(crate) fn allow_root_jobs(command: &mut Command) {
    if nix::unistd::geteuid().is_root() {
        command.arg("--allow-root-jobs");
    }
}

/// A token for a node's agent; those of earlier ones are worthless from now on.
fn new_token(driver: &Local, node: &str) -> Result<String, LocalError> {
    replace_tokens(driver, node, |_| true)
}

/// A token by which another machine joins as a node; one that was not used is worthless from now on.
pub(crate) fn invitation_token(driver: &Local, node: &str) -> Result<String, LocalError> {
    replace_tokens(driver, node, |token| {
        token.rest.get("is_one_time").is_some_and(|is| *is == true)
            && token.rest.get("used_ms").is_none_or(serde_json::Value::is_null)
    })
}

fn replace_tokens(
    driver: &Local,
    node: &str,
    is_old: impl Fn(&TokenView) -> bool,
) -> Result<String, LocalError> {
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

pub(crate) fn agent_log(state: &StateDirectory, node: &str) -> PathBuf {
    state.path().join("agents").join(format!("{node}.log"))
}

/// The process of this directory that is the agent of that node.
pub fn find_agent(state: &StateDirectory, node: &NodeId) -> Option<u32> {
    let agents = find_processes(state, " agent ");
    let is_its = |pid: &u32| format!("{} ", machine::command_line(*pid)).contains(&format!("--node {node} "));
    agents.into_iter().find(is_its)
}

/// The process of this directory that is its daemon, whether or not it has said where it listens.
pub(crate) fn find_daemon(state: &StateDirectory) -> Option<u32> {
    find_processes(state, " daemon ").first().copied()
}

/// Whether this process is there and belongs to the cluster: numbers of processes are given again.
pub(crate) fn is_of_cluster(state: &StateDirectory, pid: u32) -> bool {
    machine::is_alive(pid) && machine::process(pid).is_some_and(|process| belongs(state.path(), &process))
}

fn belongs(state: &Path, process: &machine::Process) -> bool {
    let whole = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    process.variable(CLUSTER).is_some_and(|path| whole(path.as_ref()) == whole(state))
}

/// The processes of this directory whose command line contains some words.
fn find_processes(state: &StateDirectory, words: &str) -> Vec<u32> {
    let all = machine::processes_with(CLUSTER);
    let pids = all.iter().filter(|process| belongs(state.path(), process)).map(|process| process.pid);
    pids.filter(|pid| machine::is_alive(*pid) && machine::command_line(*pid).contains(words)).collect()
}

pub(crate) fn spawn(mut command: Command, log: &Path, what: &str) -> Result<Child, LocalError> {
    let file = open_log(log).map_err(|source| LocalError::State { path: log.to_owned(), source })?;
    let again = file.try_clone().map_err(|source| LocalError::State { path: log.to_owned(), source })?;
    command.current_dir("/").stdin(Stdio::null()).stdout(file).stderr(again);
    let child = command.spawn();
    child.map_err(|source| LocalError::Start { what: what.to_owned(), source })
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

/// Where a daemon that was at `before` listens when it is started again.
fn address_again(wanted: Option<&str>, before: Option<SocketAddr>) -> Option<String> {
    let has_port = |wanted: &&str| wanted.parse::<SocketAddr>().is_ok_and(|address| address.port() != 0);
    let is_there = |before: &SocketAddr| {
        let ip = wanted.and_then(|wanted| wanted.parse().ok());
        let ip = ip.or_else(|| Some(wanted?.parse::<SocketAddr>().ok()?.ip()));
        wanted.is_none() || ip == Some(before.ip())
    };
    let again = || before.filter(is_there).map(|before| before.to_string());
    wanted.filter(has_port).map(str::to_owned).or_else(again).or(wanted.map(str::to_owned))
}

fn has_ended(child: &mut Child) -> bool {
    !matches!(child.try_wait(), Ok(None))
}

fn died(what: &str, log: &Path) -> LocalError {
    LocalError::Died { what: what.to_owned(), said: last_words(log), log: log.to_owned() }
}

/// The end of a log.
pub(crate) fn last_words(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    match lines.is_empty() {
        true => "it said nothing".to_owned(),
        false => lines[lines.len().saturating_sub(LAST_LINES)..].join(" / "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_comes_back_where_it_was_unless_another_address_is_wanted() {
        let before: Option<SocketAddr> = "10.0.0.1:7000".parse().ok();
        for (wanted, address) in [
            (None, "10.0.0.1:7000"),
            (Some("10.0.0.1"), "10.0.0.1:7000"),
            (Some("10.0.0.1:0"), "10.0.0.1:7000"),
            (Some("10.0.0.1:7431"), "10.0.0.1:7431"),
            (Some("10.0.0.2"), "10.0.0.2"),
        ] {
            assert_eq!(address_again(wanted, before).as_deref(), Some(address), "{wanted:?}");
        }
        assert_eq!((address_again(None, None), address_again(Some("::1"), None)), (None, Some("::1".into())));
    }
}
