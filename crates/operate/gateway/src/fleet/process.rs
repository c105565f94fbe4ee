//! One process of a fleet.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use bedplate_supervise::ChildProcess;
use nix::sys::signal::Signal;

use super::FleetOptions;
use crate::router::{Departure, Members, ReplicaHealth, ReplicaUrl};

/// A process that is dropped has been killed.
pub(super) struct ReplicaProcess {
    process: ChildProcess,
    /// It ends when this is closed, also where we are killed.
    _input: Option<ChildStdin>,
    printed: mpsc::Receiver<ReplicaUrl>,
    url: Option<ReplicaUrl>,
    began: Instant,
    pub(super) ready_since: Option<Instant>,
    out_since: Option<Instant>,
}

/// How a process ended.
pub(super) struct Ended {
    pub(super) why: String,
    /// By itself, with an exit code.
    pub(super) is_refusal: bool,
}

impl ReplicaProcess {
    pub(super) fn start(mut command: Command) -> std::io::Result<Self> {
        // In a group of its own, because Ctrl-C is for us: replicas end after the router.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut process = ChildProcess::start(&mut command)?;
        let (sender, printed) = mpsc::channel();
        if let Some(output) = process.stdout() {
            std::thread::Builder::new().name("replica".into()).spawn(move || listen(output, &sender))?;
        }
        let input = process.stdin();
        let began = Instant::now();
        Ok(Self { process, _input: input, printed, url: None, began, ready_since: None, out_since: None })
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Notes what it does; the reason where it has ended, or was killed for being of no use.
    pub(super) fn look(&mut self, members: &Members, options: &FleetOptions) -> Result<(), Ended> {
        if let Some(status) = self.process.ends() {
            return Err(Ended { why: format!("ended with {status}"), is_refusal: status.code().is_some() });
        }
        if self.url.is_none()
            && let Ok(url) = self.printed.try_recv()
        {
            members.add(&url);
            self.url = Some(url);
        }
        self.note(self.url.as_ref().and_then(|url| members.replica_health(url)));
        let has_passed = |since: Option<Instant>, limit| since.is_some_and(|since| since.elapsed() > limit);
        if has_passed(self.out_since, options.silence) {
            return Err(self.kill(format!("answered nothing for {} s", options.silence.as_secs())));
        }
        if self.ready_since.is_none() && has_passed(Some(self.began), options.start) {
            return Err(self.kill(format!("was not ready after {} s", options.start.as_secs())));
        }
        Ok(())
    }

    fn note(&mut self, replica_health: Option<ReplicaHealth>) {
        match replica_health {
            Some(ReplicaHealth::In) => {
                self.ready_since.get_or_insert_with(Instant::now);
                self.out_since = None;
            }
            Some(ReplicaHealth::Out) => {
                self.out_since.get_or_insert_with(Instant::now);
            }
            _ => {}
        }
    }

    fn kill(&mut self, why: String) -> Ended {
        self.process.kill();
        Ended { why: format!("{why} and was killed"), is_refusal: false }
    }

    /// Takes it out of the router.
    pub(super) fn depart(&self, members: &Members) -> Option<Departure> {
        members.remove(self.url.as_ref()?)
    }

    pub(super) fn terminate(&self) {
        self.process.send(Signal::SIGTERM);
    }

    pub(super) fn has_ended(&mut self) -> bool {
        self.process.has_ended()
    }
}

/// Finds the URL among the first lines, and reads the rest so that the process never waits for a reader.
fn listen(output: ChildStdout, sender: &mpsc::Sender<ReplicaUrl>) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while let Ok(1..) = output.read_until(b'\n', &mut line) {
        let text = String::from_utf8_lossy(&line);
        if let Some(Ok(url)) = text.trim().starts_with("http://").then(|| text.trim().parse()) {
            let _ = sender.send(url);
        }
        line.clear();
    }
}
