//! A child process that does not outlive its owner.

use std::io;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const LOOK: Duration = Duration::from_millis(10);

/// A process that is dropped has been killed.
#[derive(Debug)]
pub struct ChildProcess {
    child: Child,
    ended: Option<ExitStatus>,
}

impl ChildProcess {
    pub fn start(command: &mut Command) -> io::Result<Self> {
        Ok(Self { child: command.spawn()?, ended: None })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its pipes, where it was started with some; each can be had once.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    pub fn stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Its status, if it has ended since the last look.
    pub fn ends(&mut self) -> Option<ExitStatus> {
        if self.ended.is_some() {
            return None;
        }
        self.ended = self.child.try_wait().ok().flatten();
        self.ended
    }

    /// Its status, as of the last look.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.ended
    }

    pub fn has_ended(&mut self) -> bool {
        self.ends();
        self.ended.is_some()
    }

    /// Does nothing to one that has ended.
    pub fn send(&self, signal: Signal) {
        if self.ended.is_none() {
            let _ = kill(Pid::from_raw(self.child.id().cast_signed()), signal);
        }
    }

    /// Ends it without asking, and reaps it.
    pub fn kill(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
            self.ended = self.child.wait().ok();
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until all have ended; those that have not within the grace are killed.
pub fn end_all<'a>(processes: impl IntoIterator<Item = &'a mut ChildProcess>, grace: Duration) {
    let mut left: Vec<&mut ChildProcess> = processes.into_iter().collect();
    let deadline = Instant::now() + grace;
    loop {
        left.retain_mut(|process| !process.has_ended());
        if left.is_empty() || Instant::now() >= deadline {
            break;
        }
        thread::sleep(LOOK);
    }
    left.into_iter().for_each(ChildProcess::kill);
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn shell(script: &str) -> ChildProcess {
        ChildProcess::start(Command::new("/bin/sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn an_end_is_told_once_and_known_from_then_on() {
        let mut process = shell("exit 3");
        let deadline = Instant::now() + Duration::from_secs(60);
        let status = loop {
            if let Some(status) = process.ends() {
                break status;
            }
            assert!(Instant::now() < deadline);
            thread::sleep(LOOK);
        };
        assert_eq!((status.code(), process.ends()), (Some(3), None));
        assert_eq!(process.ended(), Some(status));
    }

    #[test]
    fn those_that_do_not_end_within_the_grace_are_killed() {
        let mut processes = [shell("exit 0"), shell("sleep 600")];
        end_all(&mut processes, Duration::from_millis(200));
        let signals = processes.map(|process| process.ended().and_then(|status| status.signal()));
        assert_eq!(signals, [None, Some(Signal::SIGKILL as i32)]);
    }
}
