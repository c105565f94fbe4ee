//! A command with a deadline: its output, or why there is none.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

const LARGEST: u64 = 4 << 20;

/// What a program wrote to standard output. A program that is not there, fails or takes too long gives a sentence instead.
pub(super) fn output(program: &Path, arguments: &[&str], patience: Duration) -> Result<String, String> {
    let name = program.file_name().unwrap_or(OsStr::new("it")).to_string_lossy().into_owned();
    let mut child =
        start(program, arguments).map_err(|error| format!("{name} cannot be started: {error}"))?;
    let deadline = Instant::now() + patience;
    let text = read_until(&mut child, patience);
    let ended = wait_until(&mut child, deadline);
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
    if !ended {
        // A process in an uninterruptible wait for a lost GPU cannot even be killed: it is left behind.
        wait_until(&mut child, Instant::now() + Duration::from_millis(200));
        return Err(format!("{name} did not answer within {} s", patience.as_secs()));
    }
    match child.try_wait() {
        Ok(Some(status)) if status.success() => text.ok_or_else(|| format!("{name} closed no output")),
        Ok(Some(status)) => Err(format!("{name} failed: {status}")),
        _ => Err(format!("{name} did not end")),
    }
}

/// In a group of its own: what the program starts dies with it. A program that is just being replaced is tried again.
fn start(program: &Path, arguments: &[&str]) -> io::Result<Child> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0);
    for _ in 0..50 {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                thread::sleep(Duration::from_millis(20))
            }
            started => return started,
        }
    }
    command.spawn()
}

fn read_until(child: &mut Child, patience: Duration) -> Option<String> {
    let stdout = child.stdout.take()?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stdout.take(LARGEST).read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver.recv_timeout(patience).ok()
}

fn wait_until(child: &mut Child, deadline: Instant) -> bool {
    loop {
        match child.try_wait() {
            Ok(Some(_)) => return true,
            Err(_) => return false,
            Ok(None) if Instant::now() >= deadline => return false,
            Ok(None) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, patience_ms: u64) -> Result<String, String> {
        output(Path::new("/bin/sh"), &["-c", script], Duration::from_millis(patience_ms))
    }

    #[test]
    fn a_program_gives_its_output_or_a_reason() {
        assert_eq!(run("echo hello", 60_000), Ok("hello\n".to_owned()));
        assert!(run("exit 9", 60_000).is_err_and(|told| told.contains("failed")));
        let missing = output(Path::new("/no/such/program"), &[], Duration::from_secs(60));
        assert!(missing.is_err_and(|told| told.contains("cannot be started")));
    }

    #[test]
    fn a_program_that_hangs_is_given_up_with_its_children() {
        let told = run("sleep 600 & sleep 600", 300);
        assert!(told.is_err_and(|told| told.contains("did not answer")));
    }
}
