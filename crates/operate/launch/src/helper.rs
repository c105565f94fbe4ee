//! The helper of one node: it starts and stops ranks by order of the launcher, and shows that the node is alive.

use std::io::{self, BufReader};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::LaunchError;
use crate::signals;
use crate::starts::{self, Here, LocalRanks};
use crate::wire::{self, End, FromNode, ToNode};

/// Between two heartbeats.
pub(crate) const BEAT: Duration = Duration::from_millis(500);
/// Between looks at ranks and their reports.
const LOOK: Duration = Duration::from_millis(50);
/// How long the launcher may take to accept a connection, and to read what is written.
const PATIENCE: Duration = Duration::from_secs(10);
/// Of what a check prints, its last line up to this is the finding.
const LONGEST_FINDING: usize = 200;
/// By which variable the token comes, so that it is in no list of processes.
pub(crate) const TOKEN: &str = "BEDPLATE_LAUNCH_TOKEN";

/// What the helper of a node is told when it is started.
#[derive(Debug, Clone)]
pub struct HelperOptions {
    /// `HOST:PORT`, or `:PORT` on the host that Slurm names as the one that started the step.
    pub server: String,
    pub node: String,
    pub job: u64,
    /// A line for a shell that fails where the node is not well.
    pub check: Option<String>,
    pub check_timeout: Duration,
    /// Between the request to end and the kill.
    pub grace: Duration,
    /// A launcher that says nothing for this long is gone.
    pub silent_after: Duration,
}

enum Event {
    Order(ToNode),
    Closed,
    Signal(Signal),
}

/// Serves until the launcher ends it or is gone. No process of a rank is left then.
pub fn help(options: &HelperOptions) -> Result<(), LaunchError> {
    let (events, received) = mpsc::channel();
    let of_signals = events.clone();
    signals::watch(move |signal| drop(of_signals.send(Event::Signal(signal))));
    let _ = nix::sys::prctl::set_child_subreaper(true);
    let link = connect(options)?;
    let reader = link.try_clone().map_err(|source| unreachable(options, source))?;
    thread::spawn(move || read(reader, &events));
    let link = Link(Arc::new(Mutex::new(link)));
    let mut helper =
        Helper { options, link: link.clone(), here: here(options), ranks: LocalRanks::default() };
    link.send(&FromNode::Hello {
        token: std::env::var(TOKEN).unwrap_or_default(),
        node: options.node.clone(),
        gpus: helper.gpus(),
    });
    thread::spawn(move || {
        loop {
            link.send(&FromNode::Beat);
            thread::sleep(BEAT);
        }
    });
    helper.serve(&received);
    helper.ranks.stop(Duration::ZERO);
    helper.clean();
    Ok(())
}

fn unreachable(options: &HelperOptions, source: io::Error) -> LaunchError {
    LaunchError::Unreachable { server: options.server.clone(), source }
}

fn connect(options: &HelperOptions) -> Result<TcpStream, LaunchError> {
    let server = match options.server.strip_prefix(':') {
        None => options.server.clone(),
        Some(port) => {
            let host = std::env::var("SLURM_LAUNCH_NODE_IPADDR").map_err(|_| LaunchError::NoLauncher)?;
            format!("{host}:{port}")
        }
    };
    let error = |source| LaunchError::Unreachable { server: server.clone(), source };
    let mut last = io::ErrorKind::NotFound.into();
    for address in server.to_socket_addrs().map_err(error)? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                stream.set_write_timeout(Some(PATIENCE)).map_err(error)?;
                stream.set_nodelay(true).map_err(error)?;
                return Ok(stream);
            }
            Err(source) => last = source,
        }
    }
    Err(error(last))
}

fn read(stream: TcpStream, events: &Sender<Event>) {
    let mut reader = BufReader::new(stream);
    while let Ok(Some(order)) = wire::receive(&mut reader) {
        if events.send(Event::Order(order)).is_err() {
            return;
        }
    }
    let _ = events.send(Event::Closed);
}

#[derive(Clone)]
struct Link(Arc<Mutex<TcpStream>>);

impl Link {
    /// What cannot be sent shows in the reading half.
    fn send(&self, message: &FromNode) {
        let stream = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if wire::send(message, &*stream).is_err() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn here(options: &HelperOptions) -> Here {
    let inherited = std::env::vars().filter(|(name, _)| name != TOKEN).collect();
    let reports = match std::env::var_os("BEDPLATE_REPORT") {
        Some(path) => PathBuf::from(path),
        None => own_folder(options).join("report"),
    };
    if let Some(folder) = reports.parent() {
        let _ = std::fs::create_dir_all(folder);
    }
    Here { node: options.node.clone(), job: options.job, inherited, reports }
}

/// For reports that no one else reads.
fn own_folder(options: &HelperOptions) -> PathBuf {
    std::env::temp_dir().join(format!("bedplate-launch-{}-{}", options.job, std::process::id()))
}

struct Helper<'a> {
    options: &'a HelperOptions,
    link: Link,
    here: Here,
    ranks: LocalRanks,
}

impl Helper<'_> {
    fn gpus(&self) -> u32 {
        let devices = self.here.inherited.get("CUDA_VISIBLE_DEVICES").filter(|devices| !devices.is_empty());
        devices.map_or(0, |devices| devices.split(',').count() as u32)
    }

    fn serve(&mut self, events: &Receiver<Event>) {
        let mut heard = Instant::now();
        loop {
            match events.recv_timeout(LOOK) {
                Ok(Event::Order(ToNode::Quit)) => return self.ranks.stop(self.options.grace),
                Ok(Event::Order(order)) => {
                    heard = Instant::now();
                    self.obey(order);
                }
                Ok(Event::Signal(signal)) if signals::ENDING.contains(&signal) => {
                    return self.ranks.stop(self.options.grace);
                }
                Ok(Event::Signal(signal)) => self.ranks.signal(signal),
                Ok(Event::Closed) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) if heard.elapsed() > self.options.silent_after => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.look();
        }
    }

    fn obey(&mut self, order: ToNode) {
        match order {
            ToNode::Prepare => {
                self.ranks.stop(self.options.grace);
                let finding = self.options.check.as_deref().and_then(|check| self.check(check));
                self.link.send(&FromNode::Ready { port: free_port(), finding });
            }
            ToNode::Start(start) => {
                self.ranks.stop(Duration::ZERO);
                let (ranks, ended) = LocalRanks::start(&start, &self.here);
                self.ranks = ranks;
                ended.into_iter().for_each(|(rank, end)| self.tell_end(rank, end));
            }
            ToNode::Signal { number } => {
                if let Ok(signal) = Signal::try_from(number) {
                    self.ranks.signal(signal);
                }
            }
            ToNode::Beat | ToNode::Quit => {}
        }
    }

    fn tell_end(&self, rank: u32, end: End) {
        self.link.send(&FromNode::Ended { run: self.ranks.run, rank, end });
    }

    /// Reports first: what a rank said before it ended counts.
    fn look(&mut self) {
        let run = self.ranks.run;
        let ended = self.ranks.reap();
        for (rank, file) in &mut self.ranks.reports {
            for report in file.read() {
                self.link.send(&FromNode::Report { run, rank: *rank, report });
            }
        }
        ended.into_iter().for_each(|(rank, end)| self.tell_end(rank, end));
    }

    /// Why the node is not well, by the word of the check.
    fn check(&self, line: &str) -> Option<String> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = match command.env("BEDPLATE_NODE", &self.options.node).spawn() {
            Ok(child) => child,
            Err(error) => return Some(format!("the check cannot be started: {error}")),
        };
        let pid = child.id() as i32;
        let said = [child.stdout.take().map(last_line), child.stderr.take().map(last_line)];
        let deadline = Instant::now() + self.options.check_timeout;
        let end = loop {
            if let Some((_, end)) = starts::reap_all().into_iter().find(|(ended, _)| *ended == pid) {
                break Some(end);
            }
            if Instant::now() > deadline {
                break None;
            }
            thread::sleep(Duration::from_millis(10));
        };
        starts::kill_all();
        let end = match end {
            Some(End::Code(0)) => return None,
            Some(end) => end,
            None => {
                return Some(format!(
                    "the check has not ended after {} s",
                    self.options.check_timeout.as_secs()
                ));
            }
        };
        let words =
            said.into_iter().flatten().filter_map(|said| said.recv_timeout(Duration::from_secs(1)).ok());
        let words = words.filter(|words| !words.is_empty()).last();
        Some(words.unwrap_or_else(|| format!("the check {end}")))
    }

    fn clean(&self) {
        if !self.here.inherited.contains_key("BEDPLATE_REPORT") {
            let _ = std::fs::remove_dir_all(own_folder(self.options));
        }
    }
}

/// The last line of a stream that says something, once the stream has ended.
fn last_line(stream: impl io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.take(1 << 20).read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("");
        let plain = line.chars().filter(|c| !c.is_control()).take(LONGEST_FINDING).collect();
        let _ = sender.send(plain);
    });
    receiver
}

/// A port at which the ranks can meet.
fn free_port() -> u16 {
    let listener = TcpListener::bind(("0.0.0.0", 0));
    listener.and_then(|listener| listener.local_addr()).map_or(0, |address| address.port())
}

use std::io::Read as _;
