//! A command run with a deadline and an end to what it may print.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Output beyond this is not read: no command that is run here has that much to say.
const MOST_OUTPUT: u64 = 256 << 20;
const MOST_COMPLAINTS: u64 = 64 << 10;

/// What a command did.
#[derive(Debug)]
pub struct CommandEnd {
    pub status: ExitStatus,
    pub output: String,
    /// Its standard error, trimmed.
    pub complaint: String,
}

/// Why a command came to no end of its own.
#[derive(Debug)]
pub enum CommandFailure {
    /// It could not be started.
    Failed(io::Error),
    /// It was killed at the deadline.
    TooSlow,
    TooLong,
}

/// Runs a command to its end, or kills it with all it has started at the deadline.
pub fn run(command: &mut Command, input: &str, patience: Duration) -> Result<CommandEnd, CommandFailure> {
    let deadline = Instant::now() + patience;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(CommandFailure::Failed)?;
    feed(&mut child, input.to_owned());
    let output = child.stdout.take().map(|pipe| read_all(pipe, MOST_OUTPUT));
    let complaint = child.stderr.take().map(|pipe| read_all(pipe, MOST_COMPLAINTS));
    let outcome = collect(&mut child, output, complaint, deadline);
    if outcome.is_err() {
        let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
        let _ = child.wait();
    }
    outcome
}

/// Writes what the command reads, beside everything else: it may read late or not at all.
fn feed(child: &mut Child, input: String) {
    if let Some(mut pipe) = child.stdin.take() {
        thread::spawn(move || pipe.write_all(input.as_bytes()));
    }
}

fn read_all(pipe: impl Read + Send + 'static, most: u64) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.take(most + 1).read_to_end(&mut bytes);
        send.send(bytes)
    });
    receive
}

fn collect(
    child: &mut Child,
    output: Option<Receiver<Vec<u8>>>,
    complaint: Option<Receiver<Vec<u8>>>,
    deadline: Instant,
) -> Result<CommandEnd, CommandFailure> {
    let receive = |pipe: Option<Receiver<Vec<u8>>>| match pipe {
        None => Ok(Vec::new()),
        Some(pipe) => match pipe.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(bytes) => Ok(bytes),
            Err(RecvTimeoutError::Timeout) => Err(CommandFailure::TooSlow),
            Err(RecvTimeoutError::Disconnected) => Ok(Vec::new()),
        },
    };
    let output = receive(output)?;
    if output.len() as u64 > MOST_OUTPUT {
        return Err(CommandFailure::TooLong);
    }
    let complaint = receive(complaint)?;
    let status = loop {
        match child.try_wait().map_err(CommandFailure::Failed)? {
            Some(status) => break status,
            None if Instant::now() > deadline => return Err(CommandFailure::TooSlow),
            None => thread::sleep(Duration::from_millis(1)),
        }
    };
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(CommandEnd { status, output: text(output), complaint: text(complaint).trim().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_command_is_fed_and_its_output_kept() {
        let Ok(ended) = run(&mut shell("cat; echo no >&2; exit 3"), "hello", Duration::from_secs(30)) else {
            panic!("it ends");
        };
        assert_eq!((ended.output.as_str(), ended.complaint.as_str()), ("hello", "no"));
        assert_eq!(ended.status.code(), Some(3));
    }

    #[test]
    fn a_silent_command_is_killed_with_its_children() {
        let began = Instant::now();
        let outcome = run(&mut shell("sleep 600 & sleep 600"), "", Duration::from_millis(50));
        assert!(matches!(outcome, Err(CommandFailure::TooSlow)));
        assert!(began.elapsed() < Duration::from_secs(300));
        assert!(matches!(
            run(&mut Command::new("/no/such/program"), "", Duration::from_secs(1)),
            Err(CommandFailure::Failed(_))
        ));
    }
}
