//! Starting a process and learning what it used: the one place of the agent that needs `unsafe`.
//!
//! A rank gets a session of its own, dies with its keeper, and joins its run's cgroup before its program begins.

#![allow(unsafe_code, reason = "`pre_exec` and `wait4` have no safe form; each use says why it is sound")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

use bedplate_control::wire::RankEnd;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{getpid, getppid, setsid, write};

use super::orders::Start;

/// Starts a process; its number is the answer. `joins` are the `cgroup.procs` files it enters.
pub(super) fn start(order: &Start, joins: &Arc<Vec<OwnedFd>>) -> io::Result<i32> {
    let Some((program, arguments)) = order.arguments.split_first() else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    let stdout = order.stdout.as_deref().map(open_to_append).transpose()?;
    let stderr = match order.stderr.as_deref() {
        Some(path) => Some(open_to_append(path)?),
        None => stdout.as_ref().map(File::try_clone).transpose()?,
    };
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(&order.environment).current_dir(&order.directory);
    command.stdin(match order.stdin.as_deref() {
        Some(path) => Stdio::from(File::open(path)?),
        None => Stdio::null(),
    });
    command.stdout(stdout.map_or_else(Stdio::null, Stdio::from));
    command.stderr(stderr.map_or_else(Stdio::null, Stdio::from));
    let (keeper, joins) = (getpid(), Arc::clone(joins));
    let before_program = move || {
        // The keeper blocks signals, and a mask passes on to children.
        SigSet::empty().thread_set_mask()?;
        setsid()?;
        set_pdeathsig(Signal::SIGKILL)?;
        // The keeper may have died before the line above took effect.
        if getppid() != keeper {
            return Err(io::Error::from_raw_os_error(libc::ECHILD));
        }
        for cgroup in joins.iter() {
            write(cgroup.as_fd(), b"0")?;
        }
        Ok(())
    };
    // SAFETY: the closure runs in the child of a single-threaded process between fork and exec and only makes
    // system calls; it allocates nothing and takes no lock. The files it writes to are opened by the keeper before.
    unsafe { command.pre_exec(before_program) };
    // Dropping the handle neither ends nor reaps the process: the keeper's `reap` does.
    Ok(command.spawn()?.id() as i32)
}

fn open_to_append(path: &str) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// A child that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reaped {
    pub(super) pid: i32,
    pub(super) end: RankEnd,
    /// Of the process and of those below it that it waited for.
    pub(super) cpu_us: u64,
    pub(super) peak_memory_kib: u64,
}

/// The next child that has ended, if any.
pub(super) fn reap() -> Option<Reaped> {
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both pointers are to live, writable memory of the right type. A `rusage` is plain numbers, for which
    // zeroes are a value, so it may be read whether or not the kernel has written it.
    let (pid, usage) = unsafe {
        let pid = libc::wait4(-1, &mut status, libc::WNOHANG, usage.as_mut_ptr());
        (pid, usage.assume_init())
    };
    if pid <= 0 {
        return None;
    }
    let end = match libc::WIFEXITED(status) {
        true => RankEnd::Exit(libc::WEXITSTATUS(status)),
        false => RankEnd::Signal(libc::WTERMSIG(status)),
    };
    let cpu_us = micros(usage.ru_utime) + micros(usage.ru_stime);
    Some(Reaped { pid, end, cpu_us, peak_memory_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0) })
}

fn micros(time: libc::timeval) -> u64 {
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_usec).unwrap_or(0)
}
