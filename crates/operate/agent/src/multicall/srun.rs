//! `srun` inside a job: asks the agent for tasks on the job's nodes, shows their output, passes signals on to them.
//!
//! The agents of the nodes connect to this process, prove by a secret that they were asked, and send what their tasks
//! write. When this process ends, so do its tasks.

use std::collections::BTreeMap;
use std::env;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use bedplate_control::wire::{ReplyTo, RunId, StepRequest};
use bedplate_job::FileNames;
use bedplate_job::rank_environment::MARK;
use bedplate_topology::expand_hostlist;
use nix::sys::signal::{SigSet, Signal};

use super::addresses::Addresses;
use super::srun_options::{self, SrunOptions};
use crate::event::StepAnswer;
use crate::frames::{self, FrameKind, Greeting, Head};
use crate::random;

/// How long the first node may take to call back.
const CALL_BACK: Duration = Duration::from_secs(60);
/// How long to wait for a control plane that cannot be reached.
const PATIENCE: Duration = Duration::from_secs(600);

pub(super) fn run(arguments: &[String]) -> Result<u8, String> {
    let options = srun_options::parse(arguments)?;
    let here = Here::of_environment()?;
    let listener = TcpListener::bind((here.address.as_str(), 0))
        .map_err(|error| format!("cannot listen on {}: {error}", here.address))?;
    let port = listener.local_addr().map_err(|error| error.to_string())?.port();
    let reply = ReplyTo { address: format!("{}:{port}", here.address), secret: random::secret() };
    let (happenings, heard) = channel();
    catch_signals(happenings.clone())?;
    accept(listener, reply.secret.clone(), happenings);
    ask(&here.agent, &request(&options, &here, reply)?)?;
    Attendance::new(&options).attend(&heard)
}

/// What the environment says about where this is.
struct Here {
    run: RunId,
    agent: String,
    address: String,
}

impl Here {
    fn of_environment() -> Result<Self, String> {
        let missing = |name: &str| format!("{name} is not set: srun works inside jobs of Bedplate only");
        let get = |name: &str| env::var(name).map_err(|_| missing(name));
        let mark = get(MARK)?;
        Ok(Self {
            run: parse_run(&mark).ok_or_else(|| missing(MARK))?,
            agent: get("BEDPLATE_AGENT")?,
            address: get("BEDPLATE_ADDRESS")?,
        })
    }
}

/// `17.2@n1`
fn parse_run(mark: &str) -> Option<RunId> {
    let (job, number) = mark.split_once('@')?.0.split_once('.')?;
    Some(RunId { job: job.parse().ok()?, number: number.parse().ok()? })
}

fn request(options: &SrunOptions, here: &Here, reply: ReplyTo) -> Result<StepRequest, String> {
    let addresses = Addresses::of_environment();
    let list = options.node_list.as_deref().unwrap_or_default();
    let nodes = expand_hostlist(list).map_err(|error| error.to_string())?;
    let directory = match &options.directory {
        Some(directory) => directory.clone(),
        None => env::current_dir().map_err(|error| error.to_string())?.display().to_string(),
    };
    Ok(StepRequest {
        run: here.run,
        nodes: nodes.iter().map(|node| addresses.name(node).to_owned()).collect(),
        node_count: options.nodes,
        tasks: options.tasks,
        tasks_per_node: options.tasks_per_node,
        arguments: options.command.clone(),
        environment: exported(options.export.as_deref(), env::vars()),
        directory,
        reply,
    })
}

/// What tasks inherit of the environment, as `--export` says; the variables that identify a task are made for each.
fn exported(export: Option<&str>, own: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let is_ours = |name: &str| name.starts_with("SLURM_") || name.starts_with("BEDPLATE_");
    let own: BTreeMap<String, String> = own.filter(|(name, _)| !is_ours(name)).collect();
    let mut exported = BTreeMap::new();
    for entry in export.unwrap_or("ALL").split(',') {
        match entry.split_once('=') {
            Some((name, value)) => drop(exported.insert(name.to_owned(), value.to_owned())),
            None if entry == "ALL" => exported.extend(own.clone()),
            None if entry == "NONE" || entry == "NIL" => {}
            None => {
                exported.extend(own.get_key_value(entry).map(|(name, value)| (name.clone(), value.clone())))
            }
        }
    }
    exported
}

/// Hands the request to the agent, repeatedly while the control plane cannot be reached.
fn ask(agent: &str, request: &StepRequest) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        match ask_once(agent, request)
            .map_err(|error| format!("the agent at {agent} does not answer: {error}"))?
        {
            StepAnswer::Accepted => return Ok(()),
            StepAnswer::Refused(why) => return Err(why),
            StepAnswer::Later if begun.elapsed() > PATIENCE => {
                return Err("the control plane cannot be reached".to_owned());
            }
            StepAnswer::Later => std::thread::sleep(Duration::from_millis(500)),
        }
    }
}

fn ask_once(agent: &str, request: &StepRequest) -> io::Result<StepAnswer> {
    let mut stream = UnixStream::connect(agent)?;
    let mut line = serde_json::to_vec(request).map_err(io::Error::from)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    serde_json::from_str(&answer).map_err(io::Error::from)
}

/// What comes to the one loop of this process.
enum Happening {
    Joined { greeting: Greeting, stream: TcpStream },
    Frame { head: Head, bytes: Vec<u8> },
    Left { tasks: Vec<u32>, node: String },
    Signal(i32),
}

/// Blocks the signals that are passed on, in all threads that come, and hears them in one of its own.
fn catch_signals(happenings: Sender<Happening>) -> Result<(), String> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2] {
        signals.add(signal);
    }
    signals.thread_block().map_err(|error| error.to_string())?;
    std::thread::spawn(move || {
        while let Ok(signal) = signals.wait() {
            let _ = happenings.send(Happening::Signal(signal as i32));
        }
    });
    Ok(())
}

fn accept(listener: TcpListener, secret: String, happenings: Sender<Happening>) {
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (secret, happenings) = (secret.clone(), happenings.clone());
            std::thread::spawn(move || {
                // A caller without the secret, or with another protocol, gets no answer.
                let _ = hear(stream, &secret, &happenings);
            });
        }
    });
}

fn hear(stream: TcpStream, secret: &str, happenings: &Sender<Happening>) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut reading = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reading.by_ref().take(1 << 20).read_line(&mut line)?;
    let greeting: Greeting = serde_json::from_str(&line).map_err(io::Error::from)?;
    if greeting.secret != secret {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_read_timeout(None)?;
    let (tasks, node) = (greeting.tasks.clone(), greeting.node.clone());
    let _ = happenings.send(Happening::Joined { greeting, stream });
    let mut head = [0; frames::HEAD];
    while reading.read_exact(&mut head).is_ok() {
        let Some(head) = frames::decode_head(&head) else { break };
        let mut bytes = vec![0; head.length];
        if reading.read_exact(&mut bytes).is_err() {
            break;
        }
        let _ = happenings.send(Happening::Frame { head, bytes });
    }
    let _ = happenings.send(Happening::Left { tasks, node });
    Ok(())
}

/// A step seen from its `srun`.
struct Attendance {
    labels: bool,
    kill_on_bad_exit: bool,
    output: Option<String>,
    error: Option<String>,
    /// Known once the first node has called back.
    task_count: Option<u32>,
    nodes: Vec<TcpStream>,
    statuses: BTreeMap<u32, i32>,
    /// Lines whose end has not come, by task and stream.
    partial: BTreeMap<(u32, bool), Vec<u8>>,
    files: BTreeMap<String, File>,
    interrupts: u32,
    /// Signals that nodes were told.
    passed: Vec<i32>,
}

impl Attendance {
    fn new(options: &SrunOptions) -> Self {
        Self {
            labels: options.labels,
            kill_on_bad_exit: options.kill_on_bad_exit,
            output: options.output.clone(),
            error: options.error.clone(),
            task_count: None,
            nodes: Vec::new(),
            statuses: BTreeMap::new(),
            partial: BTreeMap::new(),
            files: BTreeMap::new(),
            interrupts: 0,
            passed: Vec::new(),
        }
    }

    /// Until all tasks have ended; the highest status is the answer.
    fn attend(mut self, heard: &Receiver<Happening>) -> Result<u8, String> {
        while self.task_count.is_none_or(|count| (self.statuses.len() as u32) < count) {
            let happening = match self.task_count {
                None => heard.recv_timeout(CALL_BACK),
                Some(_) => heard.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match happening
                .map_err(|_| "no node has answered; the request may not fit the job's nodes".to_owned())?
            {
                Happening::Joined { greeting, stream } => self.join(&greeting, stream),
                Happening::Frame { head, bytes } => self.take(head, &bytes)?,
                Happening::Left { tasks, node } => self.leave(&tasks, &node),
                Happening::Signal(signal) => self.pass_on(signal)?,
            }
        }
        self.write_partial()?;
        let highest = self.statuses.values().copied().max().unwrap_or(0);
        Ok(u8::try_from(highest).unwrap_or(1))
    }

    /// A node that comes late hears the signals that it missed.
    fn join(&mut self, greeting: &Greeting, mut stream: TcpStream) {
        self.task_count = Some(greeting.task_count);
        for signal in &self.passed {
            let _ = writeln!(stream, "{signal}");
        }
        self.nodes.push(stream);
    }

    fn take(&mut self, head: Head, bytes: &[u8]) -> Result<(), String> {
        match head.kind {
            FrameKind::Stdout => self.show(head.task, false, bytes).map_err(|error| error.to_string()),
            FrameKind::Stderr => self.show(head.task, true, bytes).map_err(|error| error.to_string()),
            FrameKind::Ended => {
                let status = bytes.try_into().map_or(1, i32::from_le_bytes);
                self.end(head.task, status);
                Ok(())
            }
        }
    }

    fn end(&mut self, task: u32, status: i32) {
        self.statuses.entry(task).or_insert(status);
        if status != 0 && self.kill_on_bad_exit {
            self.tell_nodes(libc::SIGKILL);
        }
    }

    /// A node that left while tasks of it ran was lost, and they with it.
    fn leave(&mut self, tasks: &[u32], node: &str) {
        let lost: Vec<u32> = tasks.iter().filter(|task| !self.statuses.contains_key(task)).copied().collect();
        if !lost.is_empty() {
            let _ = writeln!(io::stderr(), "srun: error: node {node} was lost with {} tasks", lost.len());
        }
        for task in lost {
            self.end(task, 128 + libc::SIGKILL);
        }
    }

    /// The third interrupt ends everything.
    fn pass_on(&mut self, signal: i32) -> Result<(), String> {
        self.interrupts += u32::from(signal == libc::SIGINT);
        if self.task_count.is_none() {
            return Err("stopped before any task began".to_owned());
        }
        self.tell_nodes(if self.interrupts > 2 { libc::SIGKILL } else { signal });
        Ok(())
    }

    fn tell_nodes(&mut self, signal: i32) {
        self.passed.push(signal);
        for node in &mut self.nodes {
            // A node that is gone has no tasks to tell.
            let _ = writeln!(node, "{signal}");
        }
    }

    /// Whole lines only, where several tasks write to one place.
    fn show(&mut self, task: u32, is_error: bool, bytes: &[u8]) -> io::Result<()> {
        let mut text = self.partial.remove(&(task, is_error)).unwrap_or_default();
        text.extend_from_slice(bytes);
        let shares = self.labels || self.task_count != Some(1);
        if shares {
            let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            self.partial.insert((task, is_error), text.split_off(whole));
        }
        self.write(task, is_error, &text)
    }

    fn write_partial(&mut self) -> Result<(), String> {
        for ((task, is_error), mut text) in std::mem::take(&mut self.partial) {
            if !text.is_empty() {
                text.push(b'\n');
                self.write(task, is_error, &text).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    fn write(&mut self, task: u32, is_error: bool, text: &[u8]) -> io::Result<()> {
        let text = if self.labels { self.labelled(task, text) } else { text.to_vec() };
        let pattern =
            if is_error { self.error.as_ref().or(self.output.as_ref()) } else { self.output.as_ref() };
        match pattern {
            Some(pattern) => {
                let path = step_file(pattern, task)?;
                if !self.files.contains_key(&path) {
                    let file = OpenOptions::new().create(true).append(true).open(&path)?;
                    self.files.insert(path.clone(), file);
                }
                self.files.get_mut(&path).map_or(Ok(()), |file| file.write_all(&text))
            }
            None if is_error => io::stderr().write_all(&text),
            None => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(&text)?;
                stdout.flush()
            }
        }
    }

    /// As wide as the largest number of a task.
    fn labelled(&self, task: u32, text: &[u8]) -> Vec<u8> {
        let largest = self.task_count.unwrap_or(1).saturating_sub(1);
        let width = largest.to_string().len();
        let label = format!("{task:>width$}: ");
        text.split_inclusive(|byte| *byte == b'\n')
            .flat_map(|line| [label.as_bytes(), line].concat())
            .collect()
    }
}

/// The file that `--output` or `--error` of a step stands for, for one of its tasks.
fn step_file(pattern: &str, task: u32) -> io::Result<String> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let job = variable("SLURM_JOB_ID").parse().unwrap_or_default();
    let (name, user) = (variable("SLURM_JOB_NAME"), variable("SLURM_JOB_USER"));
    let names = FileNames { job, array: None, name: &name, user: &user, host: "", node: 0, task, step: "0" };
    names.expand(pattern).map_err(|error| io::Error::other(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn export_says_what_tasks_get() {
        let own = [("A", "1"), ("B", "2"), ("SLURM_PROCID", "0"), ("BEDPLATE_RUN", "1.1@n")];
        let own = || own.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        for (export, expected) in [
            (None, "A=1 B=2"),
            (Some("ALL"), "A=1 B=2"),
            (Some("NONE"), ""),
            (Some("ALL,A=9"), "A=9 B=2"),
            (Some("B,C=3"), "B=2 C=3"),
        ] {
            let found = exported(export, own());
            let found: Vec<String> = found.iter().map(|(name, value)| format!("{name}={value}")).collect();
            assert_eq!(found.join(" "), expected, "{export:?}");
        }
    }

    #[test]
    fn the_run_is_read_from_its_mark() {
        assert_eq!(parse_run("17.2@n1.rack"), Some(RunId { job: 17, number: 2 }));
        assert_eq!(parse_run("n1"), None);
    }

    #[test]
    fn lines_are_labelled_by_task_as_wide_as_the_largest() {
        let mut attendance = Attendance::new(&SrunOptions::default());
        attendance.task_count = Some(12);
        assert_eq!(attendance.labelled(3, b"a\nb\n"), b" 3: a\n 3: b\n");
    }
}
