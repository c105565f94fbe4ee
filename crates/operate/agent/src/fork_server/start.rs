//! Starting run shims and ranks, and learning what they used: the one place of the agent that needs `unsafe`.
//!
//! A rank gets a session of its own, dies with its run shim, and joins its run's cgroup before its program begins. The
//! run shim does not wait for that: on a busy machine it would wait for a turn of the child at every start. Whether the
//! program began is known when the child has ended, by what it left in a pipe that a successful `exec` closes.
//!
//! Every path of a job may be a FIFO, a dead mount or gone, so only the child touches them: a child that waits for a file
//! can be killed, a run shim that waits for one would leave its run alone.

#![allow(unsafe_code, reason = "`fork` and `wait4` have no safe form; each use says why it is sound")]

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use bedplate_control::wire::RankEnd;
use bedplate_gangs::Time;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl::{set_name, set_no_new_privs, set_pdeathsig};
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::unistd::{
    ForkResult, Gid, Pid, Uid, chdir, dup2_stderr, dup2_stdin, dup2_stdout, execve, fork, getpid, getppid,
    pipe2, setgroups, setresgid, setresuid, setsid, write,
};

use super::orders::ProcessStart;
use crate::clock::now;
use crate::identity::Identity;

/// A child, and where it says why its program did not begin.
pub(super) struct Started {
    pub(super) pid: i32,
    failure: File,
}

/// Why a child ended without becoming its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotBegun {
    /// Its time was up when it was born.
    TooLate,
    /// The error number.
    Failed(i32),
}

/// In the place of an error number, which is greater than zero.
const TOO_LATE: i32 = -1;

impl Started {
    /// Of a child that has ended.
    pub(super) fn failure(mut self) -> Option<NotBegun> {
        let mut number = [0; 4];
        self.failure.read_exact(&mut number).ok()?;
        Some(match i32::from_ne_bytes(number) {
            TOO_LATE => NotBegun::TooLate,
            error => NotBegun::Failed(error),
        })
    }
}

/// Forks a run shim whose standard input is `socket` and that ends with what `body` returns. In a namespace of its own
/// it is the first process there, and the kernel ends all others with it.
pub(super) fn fork_run_shim(
    socket: OwnedFd,
    is_isolated: bool,
    body: impl FnOnce() -> io::Result<()>,
) -> io::Result<i32> {
    let own = is_isolated.then(|| File::open("/proc/self/ns/pid")).transpose()?;
    if is_isolated {
        unshare(CloneFlags::CLONE_NEWPID)?;
    }
    // SAFETY: the fork server has one thread, so the child's memory is consistent, whatever it does.
    let forked = unsafe { fork() };
    if let (Some(own), false) = (own, matches!(forked, Ok(ForkResult::Child))) {
        // Later children are in the fork server's own namespace again.
        setns(own, CloneFlags::CLONE_NEWPID)?;
    }
    match forked? {
        ForkResult::Parent { child } => Ok(child.as_raw()),
        ForkResult::Child => {
            let outcome = become_run_shim(&socket, is_isolated).and_then(|()| body());
            // SAFETY: ends the child at once; nothing of the fork server's, which it is a copy of, may be run or flushed.
            unsafe { libc::_exit(i32::from(outcome.is_err())) }
        }
    }
}

/// In the child: gives up what it has of the fork server.
fn become_run_shim(socket: &OwnedFd, is_isolated: bool) -> io::Result<()> {
    dup2_stdin(socket)?;
    // SAFETY: everything but the standard streams belongs to the fork server that this is a copy of, whose values are never
    // used or dropped here. An open copy of its socket would hide its death from the agent.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    setsid()?;
    let _ = set_name(c"guardian");
    if is_isolated {
        unshare(CloneFlags::CLONE_NEWNS)?;
        // What the host mounts later is seen here too, and what is mounted here is not seen there.
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?;
        let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("proc"), "/proc", Some("proc"), plain, None::<&str>)?;
    }
    Ok(())
}

/// A file that came over a socket.
pub(super) fn own_file(number: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for the message it came with, which hands out each once.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Starts a process, unless it is born at `until` or later. `joins` are the `cgroup.procs` files it enters.
pub(super) fn start(
    order: &ProcessStart,
    until: Option<Time>,
    joins: &Arc<Vec<OwnedFd>>,
) -> io::Result<Started> {
    let birth = Birth::prepare(order)?;
    let run_shim = getpid();
    let (failure, told) = pipe2(OFlag::O_CLOEXEC)?;
    // SAFETY: the run shim has one thread, so the child's memory is consistent, whatever it does before its program.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(Started { pid: child.as_raw(), failure: failure.into() }),
        ForkResult::Child => {
            // Asked here, because the run shim may have been stopped before it forked. From here on nobody stops this process alone.
            let failure = match until.is_some_and(|until| now() >= until) {
                true => TOO_LATE,
                false => {
                    let Err(error) = birth.become_program(run_shim, joins);
                    error as i32
                }
            };
            let _ = write(&told, &failure.to_ne_bytes());
            // SAFETY: ends the child at once; nothing of the run shim's, which it is a copy of, may be run or flushed.
            unsafe { libc::_exit(127) }
        }
    }
}

/// All that a child needs, made before it exists.
struct Birth<'a> {
    order: &'a ProcessStart,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    directory: CString,
}

impl<'a> Birth<'a> {
    fn prepare(order: &'a ProcessStart) -> io::Result<Self> {
        order.arguments.first().ok_or(Errno::EINVAL)?;
        let variables = order.environment.iter().map(|(name, value)| CString::new(format!("{name}={value}")));
        let arguments = order.arguments.iter().map(|word| CString::new(word.as_str()));
        Ok(Self {
            order,
            arguments: arguments.collect::<Result<_, _>>()?,
            environment: variables.collect::<Result<_, _>>()?,
            directory: CString::new(order.directory.as_str())?,
        })
    }

    /// In the child: gives up being a copy of the run shim. Returns only when it cannot.
    fn become_program(&self, run_shim: Pid, joins: &[OwnedFd]) -> Result<std::convert::Infallible, Errno> {
        // The run shim blocks signals, and a mask passes on to children.
        SigSet::empty().thread_set_mask()?;
        // SAFETY: sets no handler, only back to the default what the start of every Rust program ignores.
        unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }?;
        setsid()?;
        // A run shim must have its turn among thousands of busy ranks, or its run counts as standing still; the ranks have no such right.
        bedplate_supervise::give_up_precedence();
        for cgroup in joins {
            write(cgroup.as_fd(), b"0")?;
        }
        if let Some(identity) = &self.order.identity {
            become_user(identity)?;
        }
        // After becoming the user, which would undo it.
        set_pdeathsig(Signal::SIGKILL)?;
        // The run shim may have died before the line above took effect.
        if getppid() != run_shim {
            return Err(Errno::ECHILD);
        }
        self.open_streams().map_err(errno)?;
        chdir(self.directory.as_c_str())?;
        let path = self.order.environment.get("PATH").map_or("", String::as_str);
        let program = find_program(&self.order.arguments[0], path, &self.order.directory)?;
        let program = CString::new(program).map_err(|_| Errno::EINVAL)?;
        execve(&program, &self.arguments, &self.environment)
    }

    fn open_streams(&self) -> io::Result<()> {
        let ProcessStart { stdin, stdout, stderr, .. } = self.order;
        dup2_stdin(File::open(stdin.as_deref().unwrap_or("/dev/null"))?)?;
        let stdout = open_to_append(stdout.as_deref().unwrap_or("/dev/null"))?;
        match stderr.as_deref() {
            Some(path) => dup2_stderr(open_to_append(path)?)?,
            None => dup2_stderr(&stdout)?,
        }
        Ok(dup2_stdout(stdout)?)
    }
}

/// For good: what the user may not do, no set-uid program gives them.
fn become_user(identity: &Identity) -> Result<(), Errno> {
    let groups: Vec<Gid> = identity.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    setgroups(&groups)?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    set_no_new_privs()
}

fn errno(error: io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

/// The file of a program, looked for in `path` unless its name has a slash.
fn find_program(name: &str, path: &str, directory: &str) -> Result<String, Errno> {
    if name.contains('/') {
        return Ok(name.to_owned());
    }
    let mut error = Errno::ENOENT;
    for place in path.split(':') {
        let place = if place.is_empty() { "." } else { place };
        let file = Path::new(place).join(name);
        match fs::metadata(Path::new(directory).join(&file)) {
            Ok(metadata) if metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 => {
                return Ok(file.display().to_string());
            }
            Ok(metadata) if metadata.is_file() => error = Errno::EACCES,
            _ => {}
        }
    }
    Err(error)
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
