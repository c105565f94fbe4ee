//! The launcher: helpers on every node, one loop over what they say, and the orders of [`LaunchedGang`] carried out.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Read};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_agent::processes;
use bedplate_gangs::{Span, Time};
use bedplate_host::clock;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tracing::info;

use crate::allocation::OuterScheduler;
use crate::gang::{Absence, LaunchRules, LaunchedGang, LauncherOrder, Loss};
use crate::helper::{BEAT, TOKEN};
use crate::record::RecordFile;
use crate::wire::{self, FromNode, ToNode};
use crate::{Allocation, LaunchError, signals, slurm};

/// Between looks at the clock.
const TICK: Duration = Duration::from_millis(100);
/// A connection says who it is within this.
const HELLO: Duration = Duration::from_secs(10);
/// A helper that was told to end has this beyond the grace of its ranks.
const FAREWELL: Duration = Duration::from_secs(3);

/// What a launch needs to know.
#[derive(Clone)]
pub struct LaunchOptions {
    pub allocation: Allocation,
    /// Nodes of the allocation that wait until another is lost.
    pub spares: usize,
    /// One for each GPU where it is not given.
    pub ranks_per_node: Option<u32>,
    pub command: Vec<String>,
    pub check: Option<String>,
    pub check_timeout: Duration,
    pub retries: u32,
    pub stuck_after: Option<Duration>,
    pub silent_after: Duration,
    pub grace: Duration,
    /// Whether the job goes back to the queue when too few nodes are left.
    pub requeue: bool,
    /// Where the record is kept; all nodes that can run the launcher must see it.
    pub state: PathBuf,
    pub output: Option<String>,
    pub error: Option<String>,
    pub input: Option<String>,
    /// The program that is a helper when it is started with these first words.
    pub helper: Vec<String>,
}

enum Event {
    Linked { node: usize, stream: TcpStream },
    Said { node: usize, message: FromNode },
    Closed { node: usize },
    StepEnded { node: usize, how: String },
    Signal(Signal),
    Drained { node: String, outcome: Result<(), String> },
}

/// Runs a gang to its end and returns its exit code.
pub fn launch(options: LaunchOptions) -> Result<u8, LaunchError> {
    let file = RecordFile::new(&options.state, options.allocation.job);
    let mut record = file.read(options.allocation.starts_before == 0)?;
    // A job that came back with fewer nodes than it had is short of nodes; it is not a smaller job.
    record.nodes = record.nodes.max(options.allocation.nodes.len());
    let (nodes, spares) = (record.nodes, options.spares);
    let size = nodes.checked_sub(spares).filter(|size| *size > 0);
    let size = size.ok_or(LaunchError::TooManySpares { nodes, spares })?;
    let gpus = options.allocation.gpus_per_node;
    let ranks_per_node = options.ranks_per_node.or((gpus > 0).then_some(gpus)).ok_or(LaunchError::NoRanks)?;
    file.write(&record)?;
    let listener = TcpListener::bind(("0.0.0.0", 0)).map_err(|source| LaunchError::Listen { source })?;
    let port = listener.local_addr().map_err(|source| LaunchError::Listen { source })?.port();
    let (events, received) = mpsc::channel();
    let of_signals = events.clone();
    signals::watch(move |signal| drop(of_signals.send(Event::Signal(signal))));
    if options.allocation.scheduler == OuterScheduler::Here {
        let _ = nix::sys::prctl::set_child_subreaper(true);
    }
    let rules = rules(&options, size, ranks_per_node);
    let began = Instant::now();
    let gang = LaunchedGang::new(rules, &options.allocation.nodes, record, Time::ZERO);
    let token = token();
    let names = options.allocation.nodes.clone();
    let of_links = events.clone();
    let expected = token.clone();
    thread::spawn(move || accept(&listener, &names, &expected, &of_links));
    let links = BTreeMap::new();
    let steps = BTreeMap::new();
    let lost = BTreeSet::new();
    let mut launcher =
        Launcher { options, gang, file, links, steps, lost, events, began, port, token, end: None };
    launcher.start_helpers();
    let code = launcher.serve(&received);
    launcher.finish(&received);
    Ok(code)
}

fn rules(options: &LaunchOptions, size: usize, ranks_per_node: u32) -> LaunchRules {
    let span = |duration: Duration| Span(duration.as_millis() as u64);
    let stop_patience = options.grace + options.check_timeout + Duration::from_secs(30);
    LaunchRules {
        job: options.allocation.job,
        size,
        ranks_per_node,
        gpus_per_node: options.allocation.gpus_per_node,
        command: options.command.clone(),
        retries: options.retries,
        stuck_after: options.stuck_after.map(span),
        silent_after: span(options.silent_after),
        stop_patience: span(stop_patience),
        gather_all: Span::seconds(10),
        gather_enough: Span::seconds(120),
        output: options.output.clone(),
        error: options.error.clone(),
        input: options.input.clone(),
    }
}

/// What tells the helpers of this launch from strangers.
fn token() -> String {
    let mut bytes = [0_u8; 16];
    let random = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    if random.is_err() {
        bytes = clock::unix_time().as_nanos().to_le_bytes();
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn accept(listener: &TcpListener, names: &[String], token: &str, events: &Sender<Event>) {
    for stream in listener.incoming().flatten() {
        let (names, token, events) = (names.to_vec(), token.to_owned(), events.clone());
        thread::spawn(move || read(stream, &names, &token, &events));
    }
}

/// Reads what a helper says until it is gone; strangers are turned away.
fn read(stream: TcpStream, names: &[String], token: &str, events: &Sender<Event>) -> Option<()> {
    stream.set_read_timeout(Some(HELLO)).ok()?;
    stream.set_write_timeout(Some(HELLO)).ok()?;
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let hello = wire::receive::<FromNode>(&mut reader).ok()??;
    let FromNode::Hello { token: given, node, .. } = hello else { return None };
    let node = names.iter().position(|name| *name == node).filter(|_| given == token)?;
    stream.set_read_timeout(None).ok()?;
    events.send(Event::Linked { node, stream }).ok()?;
    while let Ok(Some(message)) = wire::receive(&mut reader) {
        events.send(Event::Said { node, message }).ok()?;
    }
    events.send(Event::Closed { node }).ok()
}

struct Launcher {
    options: LaunchOptions,
    gang: LaunchedGang,
    file: RecordFile,
    links: BTreeMap<usize, TcpStream>,
    /// The process that stands for a node's step, by node.
    steps: BTreeMap<usize, u32>,
    /// Nodes that do not answer.
    lost: BTreeSet<usize>,
    events: Sender<Event>,
    began: Instant,
    port: u16,
    token: String,
    end: Option<u8>,
}

impl Launcher {
    fn now(&self) -> Time {
        Time(self.began.elapsed().as_millis() as u64)
    }

    fn name(&self, node: usize) -> &str {
        &self.options.allocation.nodes[node]
    }

    fn start_helpers(&mut self) {
        for node in 0..self.options.allocation.nodes.len() {
            if self.gang.is_used(node) {
                self.start_helper(node);
            }
        }
    }

    fn start_helper(&mut self, node: usize) {
        let name = self.name(node).to_owned();
        let spawned = self.helper_command(&name).spawn();
        let events = self.events.clone();
        match spawned {
            Ok(mut child) => {
                self.steps.insert(node, child.id());
                thread::spawn(move || {
                    let how =
                        child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
                    let _ =
                        events.send(Event::StepEnded { node, how: format!("its helper ended with {how}") });
                });
            }
            Err(error) => {
                let how = format!("its helper cannot be started: {error}");
                let _ = events.send(Event::StepEnded { node, how });
            }
        }
    }

    fn helper_command(&self, node: &str) -> Command {
        let (program, words) =
            self.options.helper.split_first().map_or(("bedplate", &[][..]), |(first, rest)| (first, rest));
        let (mut command, host) = match self.options.allocation.scheduler {
            OuterScheduler::Slurm => {
                let mut step = slurm::step(node, self.options.allocation.gpus_per_node);
                step.arg(program);
                (step, "")
            }
            OuterScheduler::Here => (Command::new(program), "127.0.0.1"),
        };
        let ms = |duration: Duration| duration.as_millis().to_string();
        command.args(words).args(["--server", &format!("{host}:{}", self.port), "--node", node]);
        command.args(["--job", &self.options.allocation.job.to_string()]);
        command.args([
            "--grace-ms",
            &ms(self.options.grace),
            "--check-timeout-ms",
            &ms(self.options.check_timeout),
        ]);
        command.args(["--silent-after-ms", &ms(self.options.silent_after * 3)]);
        if let Some(check) = &self.options.check {
            command.args(["--check", check]);
        }
        command.env(TOKEN, &self.token).stdin(Stdio::null());
        command
    }

    fn serve(&mut self, events: &Receiver<Event>) -> u8 {
        let mut beaten = Instant::now();
        loop {
            match events.recv_timeout(TICK) {
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            let now = self.now();
            self.gang.tick(now);
            if beaten.elapsed() >= BEAT {
                beaten = Instant::now();
                let nodes: Vec<usize> = self.links.keys().copied().collect();
                nodes.into_iter().for_each(|node| self.send(node, &ToNode::Beat));
            }
            for order in self.gang.take_orders() {
                self.carry_out(order);
            }
            if let Some(code) = self.end {
                return code;
            }
        }
    }

    fn take(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Linked { node, stream } => {
                let address =
                    stream.peer_addr().map_or_else(|_| String::new(), |address| address.ip().to_string());
                self.links.insert(node, stream);
                self.gang.linked(node, address, now);
            }
            Event::Said { node, message } => self.hear(node, message, now),
            Event::Closed { node } => {
                self.links.remove(&node);
                self.gang.lost(node, &Loss::Closed("its connection closed".into()), now);
            }
            Event::StepEnded { node, how } => {
                self.steps.remove(&node);
                self.end_orphans();
                self.gang.lost(node, &Loss::Closed(how), now);
            }
            Event::Signal(signal) if signals::ENDING.contains(&signal) => {
                self.say(&format!("{signal}: the gang is stopped"));
                self.end = Some(128_u8.saturating_add(signal as i32 as u8));
            }
            Event::Signal(signal) => {
                let nodes: Vec<usize> = self.links.keys().copied().collect();
                nodes.into_iter().for_each(|node| self.send(node, &ToNode::Signal { number: signal as i32 }));
            }
            Event::Drained { node, outcome } => self.tell_of_drain(&node, outcome),
        }
    }

    /// Where processes stand in for nodes, the ranks of one that died come to the launcher, and die with it.
    fn end_orphans(&self) {
        if self.options.allocation.scheduler == OuterScheduler::Here {
            let is_helper = |pid: &i32| self.steps.values().any(|step| *step as i32 == *pid);
            processes::kill_below(std::process::id() as i32, is_helper);
        }
    }

    fn hear(&mut self, node: usize, message: FromNode, now: Time) {
        match message {
            FromNode::Hello { .. } | FromNode::Beat => self.gang.heard(node, now),
            FromNode::Ready { port, finding } => self.gang.ready(node, port, finding, now),
            FromNode::Report { run, report, .. } => self.gang.reported(node, run, &report, now),
            FromNode::Ended { run, rank, end } => self.gang.rank_ended(node, run, rank, end, now),
        }
    }

    fn carry_out(&mut self, order: LauncherOrder) {
        match order {
            LauncherOrder::Send { node, message } => self.send(node, &message),
            LauncherOrder::LeaveOut { node, reason, absence } => self.leave_out(node, &reason, absence),
            LauncherOrder::Say { text, node, rank } => {
                self.say_about(node.map(|node| self.name(node)), rank, &text);
            }
            LauncherOrder::Save => {
                if let Err(error) = self.file.write(self.gang.record()) {
                    self.say(&error.to_string());
                }
            }
            LauncherOrder::Requeue { why } => self.end = Some(self.go_back(&why)),
            LauncherOrder::End { code } => {
                self.file.remove();
                self.end = Some(code);
            }
        }
    }

    fn send(&mut self, node: usize, message: &ToNode) {
        let Some(stream) = self.links.get(&node) else { return };
        if wire::send(message, stream).is_err() {
            // The reading half says that it is closed.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// A node that still answers ends by itself. The step of one that does not is left without its `srun`, which would
    /// go on to end steps of this number, even in the job's next life.
    fn leave_out(&mut self, node: usize, reason: &str, absence: Absence) {
        self.say_about(Some(self.name(node)), None, reason);
        self.send(node, &ToNode::Quit);
        if let Some(stream) = self.links.remove(&node) {
            let _ = stream.shutdown(Shutdown::Write);
        }
        if matches!(absence, Absence::Lost | Absence::OneOfMany) {
            self.lost.insert(node);
            self.kill_step(node);
        }
        if matches!(absence, Absence::Lost | Absence::Unwell)
            && self.options.allocation.scheduler == OuterScheduler::Slurm
        {
            let (node, reason, events) = (self.name(node).to_owned(), reason.to_owned(), self.events.clone());
            thread::spawn(move || {
                let outcome = slurm::drain(&node, &format!("bedplate: {reason}"));
                let _ = events.send(Event::Drained { node, outcome });
            });
        }
    }

    fn kill_step(&self, node: usize) {
        if let Some(step) = self.steps.get(&node) {
            let _ = kill(Pid::from_raw(*step as i32), Signal::SIGKILL);
        }
    }

    fn tell_of_drain(&self, node: &str, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => {
                let text = format!("node {node} is drained: it finishes what it runs and takes nothing new");
                self.say_about(Some(node), None, &text);
            }
            Err(why) => {
                let text = format!(
                    "node {node} cannot be drained ({why}): tell an administrator of the cluster to run \
                     `scontrol update nodename={node} state=drain reason=…`"
                );
                self.say_about(Some(node), None, &text);
            }
        }
    }

    /// Back to the queue, or the end where that is not wanted.
    fn go_back(&self, why: &str) -> u8 {
        let is_slurm = self.options.allocation.scheduler == OuterScheduler::Slurm;
        if !self.options.requeue || !is_slurm {
            self.say(why);
            self.file.remove();
            return 1;
        }
        let record = self.gang.record();
        let job = self.options.allocation.job;
        let exclude: Vec<&str> = record.out.keys().map(String::as_str).collect();
        self.say(&format!("{why}: job {job} goes back to the queue without {}", exclude.join(",")));
        let nodes: Vec<&str> = self.options.allocation.nodes.iter().map(String::as_str).collect();
        // Slurm does not take the node of the batch script, the first one, out of its job.
        let answers = |node: &usize| *node == 0 || !self.lost.contains(node);
        let answering: Vec<&str> = (0..nodes.len()).filter(answers).map(|node| nodes[node]).collect();
        let answering = Some(answering).filter(|answering| answering.len() < nodes.len());
        (0..nodes.len()).for_each(|node| self.kill_step(node));
        match slurm::requeue(&slurm::Return { job, nodes: record.nodes, answering, exclude }) {
            Ok(slurm::RequeuePace::AtOnce) => 0,
            Ok(slurm::RequeuePace::AfterPause(why)) => {
                self.say(&format!(
                    "it starts when Slurm's pause is over ({why}); `scontrol update jobid={job} starttime=now` ends the pause"
                ));
                0
            }
            Err(why) => {
                self.say(&format!("the job cannot be put back in the queue: {why}"));
                1
            }
        }
    }

    /// Ends all helpers, and what stands for them.
    fn finish(&mut self, events: &Receiver<Event>) {
        let nodes: Vec<usize> = self.links.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.send(node, &ToNode::Quit));
        let deadline = Instant::now() + self.options.grace + FAREWELL;
        while !self.steps.is_empty() && Instant::now() < deadline {
            match events.recv_timeout(TICK) {
                Ok(Event::StepEnded { node, .. }) => drop(self.steps.remove(&node)),
                Ok(Event::Drained { node, outcome }) => self.tell_of_drain(&node, outcome),
                _ => {}
            }
        }
        self.steps.keys().for_each(|node| self.kill_step(*node));
        self.steps.clear();
        self.end_orphans();
    }

    fn say(&self, text: &str) {
        self.say_about(None, None, text);
    }

    fn say_about(&self, node: Option<&str>, rank: Option<u32>, text: &str) {
        let run = Some(self.gang.record().runs).filter(|run| *run > 0);
        info!(job = self.options.allocation.job, run, node, rank, "launch: {text}");
    }
}
