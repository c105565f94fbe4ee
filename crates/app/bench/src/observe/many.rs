//! Many pretended nodes, linked to a real daemon, of which some see an XID at the same moment.
//!
//! Each speaks the protocol of agents over a connection of its own. Those that fail read a line of a kernel log by the real
//! parser and the real rules and tell the finding; the clock stops for each when the daemon's event says that it was taken
//! out of service, which the journal has on disk by then.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_control::wire::{FromAgent, Hello, HostMachine};
use bedplate_daemon::{DaemonOptions, RunningDaemon, start};
use bedplate_drivers::{ClusterEvent, ClusterPlace, Driver, Local, Watched};
use bedplate_finding::OpenFinding;
use bedplate_health::kernel_log::{KernelLine, XidLine};
use bedplate_health::{Health, Profile, Rules, XidSeen, XidSource};
use bedplate_terminal::{CliError, Console, Context, ProgramError, files};
use bedplate_topology::Cluster;

use super::Figure;

const PATIENCE: Duration = Duration::from_secs(120);
const HEARTBEAT: Duration = Duration::from_millis(500);
const LINE: &str = "4,1,1,-;NVRM: Xid (PCI:0000:10:00): 79, pid=1, name=x, GPU has fallen off the bus.";

/// When the XID is seen, and by whom.
#[derive(Default)]
struct Moment {
    at: Mutex<Option<Instant>>,
    come: Condvar,
    linked: AtomicUsize,
    is_over: AtomicBool,
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn measure(
    nodes: u32,
    failing: u32,
    context: &Context,
    console: &Console,
) -> Result<Vec<Figure>, CliError> {
    let bug = |what: String| ProgramError::Bug { what };
    let (nodes, failing) = (nodes.clamp(4, 5000), failing.clamp(1, nodes / 4));
    let folder = Folder(std::env::temp_dir().join(format!("bedplate-many-{}", std::process::id())));
    let cluster = Cluster::from_spec(&format!("p5.48xlarge:{nodes}"), &context.load_catalog()?)?;
    let mut options = DaemonOptions::new(folder.0.clone(), cluster);
    options.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    options.limits.requests_per_second_per_client = 1e6;
    options.limits.connections = options.limits.connections.max(2 * nodes as usize + 64);
    // All who speak with it are in this process, and the pretended nodes speak no TLS.
    options.tls = false;
    let daemon = start(options)?;
    let token = files::read_text(&folder.0.join("admin.token").display().to_string())?;
    let address = daemon.address().to_string();
    let driver = Local::new(ClusterPlace { address, fingerprint: None, token: token.trim().to_owned() });
    let moment = Arc::new(Moment::default());
    let names: Vec<String> = driver.nodes()?.into_iter().map(|node| node.name.to_string()).collect();
    console.say(&format!("{nodes} nodes join"));
    join(&daemon, &driver, &names, failing as usize, &moment)?;
    let seconds = fail(&driver, &names[..failing as usize], &moment).map_err(bug)?;
    moment.is_over.store(true, Ordering::Release);
    drop(daemon);
    let at = |part: f64| seconds[((seconds.len() as f64 * part) as usize).min(seconds.len() - 1)];
    Ok(vec![
        Figure::new("nodes", f64::from(nodes), "", None),
        Figure::new("nodes_failing_at_once", f64::from(failing), "", None),
        Figure::new("xid_to_drained_p50_s", at(0.5), "s", None),
        Figure::new("xid_to_drained_p90_s", at(0.9), "s", Some(5.0)),
        Figure::new("xid_to_drained_last_s", at(1.0), "s", None),
    ])
}

fn join(
    daemon: &RunningDaemon,
    driver: &Local,
    names: &[String],
    failing: usize,
    moment: &Arc<Moment>,
) -> Result<(), CliError> {
    let address = daemon.address();
    for (at, name) in names.iter().enumerate() {
        let secret = driver.make_token(name, "agent", None)?.token;
        let (name, moment) = (name.clone(), Arc::clone(moment));
        let agent = thread::Builder::new().stack_size(128 << 10);
        let started = agent.spawn(move || {
            // It ends with the daemon.
            let _ = play(address, &secret, &name, at < failing, &moment);
        });
        started.map_err(|error| ProgramError::Bug { what: format!("no thread for a node: {error}") })?;
    }
    let began = Instant::now();
    while moment.linked.load(Ordering::Acquire) < names.len() {
        if began.elapsed() > PATIENCE {
            return Err(ProgramError::Bug { what: "not all nodes have joined".to_owned() }.into());
        }
        thread::sleep(Duration::from_millis(20));
    }
    // The daemon has heard all of them for a while.
    thread::sleep(2 * HEARTBEAT);
    Ok(())
}

/// Lets the XIDs be seen and waits until every one of the nodes was taken out; seconds in order.
fn fail(driver: &Local, names: &[String], moment: &Moment) -> Result<Vec<f64>, String> {
    let mut out: BTreeMap<String, f64> = BTreeMap::new();
    let mut began = None;
    let mut see = |seen: ClusterEvent| {
        let began = *began.get_or_insert_with(|| moment.let_come());
        if let ClusterEvent::Note(note) = seen
            && note.text.starts_with("taken out of service")
            && let Some(node) = note.node
        {
            out.entry(node.to_string()).or_insert_with(|| began.elapsed().as_secs_f64());
        }
        let is_late = began.elapsed() > PATIENCE;
        if out.len() >= names.len() || is_late { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    driver.watch(&Watched::default(), &mut see).map_err(|error| error.to_string())?;
    if out.len() < names.len() {
        return Err(format!("{} of {} nodes were taken out of service", out.len(), names.len()));
    }
    let mut seconds: Vec<f64> = out.into_values().collect();
    seconds.sort_by(f64::total_cmp);
    Ok(seconds)
}

impl Moment {
    fn let_come(&self) -> Instant {
        let now = Instant::now();
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        self.come.notify_all();
        now
    }

    /// Waits until it has come, at most this long.
    fn has_come(&self, within: Duration) -> bool {
        let at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.come.wait_timeout_while(at, within, |at| at.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.is_some()
    }
}

/// An agent that only lives, and one day finds something.
fn play(address: SocketAddr, secret: &str, node: &str, fails: bool, moment: &Moment) -> std::io::Result<()> {
    let mut stream = connect(address, secret)?;
    let host =
        HostMachine { name: node.into(), cores: 192, memory_mib: 2 << 20, gpus: 8, ..HostMachine::default() };
    let hello =
        Hello { node: node.into(), address: "127.0.0.1".into(), incarnation: 1, held: Vec::new(), host };
    say(&mut stream, &FromAgent::Hello(hello))?;
    // What the daemon says is read and dropped, so that it can go on speaking.
    let mut reading = stream.try_clone()?;
    thread::Builder::new().stack_size(64 << 10).spawn(move || {
        let _ = std::io::copy(&mut reading, &mut std::io::sink());
    })?;
    moment.linked.fetch_add(1, Ordering::AcqRel);
    let mut findings: Vec<OpenFinding> = Vec::new();
    let mut sequence = 0;
    while !moment.is_over.load(Ordering::Acquire) {
        sequence += 1;
        say(&mut stream, &FromAgent::Heartbeat { sequence, held: Vec::new(), findings: findings.clone() })?;
        if !fails || !findings.is_empty() {
            thread::sleep(HEARTBEAT);
        } else if moment.has_come(HEARTBEAT) {
            findings = find(node);
            say(&mut stream, &FromAgent::Findings { findings: findings.clone() })?;
        }
    }
    Ok(())
}

/// What the rules make of the line.
fn find(node: &str) -> Vec<OpenFinding> {
    let mut health = Health::new(node, Rules::built_in(Profile::Nvidia));
    let xid = KernelLine::parse(LINE).and_then(|line| XidLine::parse(line.text));
    if let Some(xid) = xid {
        let (process, text, source) = (xid.process, xid.text, XidSource::KernelLog);
        health.saw_xid(XidSeen { gpu: Some(0), xid: xid.xid, process, text, source }, 1_000);
    }
    health.findings()
}

fn connect(address: SocketAddr, secret: &str) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let request = format!(
        "POST /v1/agents/link HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {secret}\r\nConnection: Upgrade\r\n\
         Upgrade: bedplate-link\r\nContent-Length: 0\r\n\r\n"
    );
    (&stream).write_all(request.as_bytes())?;
    // One byte at a time would be slow for more than a head.
    let mut head = BufReader::with_capacity(1, &stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        if head.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(stream)
}

fn say(stream: &mut TcpStream, message: &FromAgent) -> std::io::Result<()> {
    let line = serde_json::to_string(message)? + "\n";
    stream.write_all(line.as_bytes())
}
