//! Who is measured, and how its ranks are started. Peers are installed by package name when they are asked for and missing.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_comm::Algorithm;
use bedplate_comm::LocalRendezvous;
use bedplate_diag::{Diagnostic, Page};
use bedplate_kernels::{Device, DeviceChoice};
use bedplate_local::Machine;
use bedplate_terminal::benchmarks::NOT_INSTALLED;
use bedplate_terminal::{CliError, Console};

use super::rank_set::{Folder, RankSet, RankSetError};

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Peer {
    /// torch.distributed with Gloo, over loopback
    Gloo,
    /// Open MPI, through its shared memory
    Openmpi,
}

impl Peer {
    pub(super) fn name(self) -> &'static str {
        match self {
            Peer::Gloo => "gloo",
            Peer::Openmpi => "openmpi",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Transport {
    /// Shared memory on a host, TCP between hosts
    Auto,
    /// TCP, even between ranks of one host
    Tcp,
}

impl Transport {
    pub(super) fn name(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::Tcp => "tcp",
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(in super::super) enum InstallError {
    #[error("{peer} is not installed, and installing it failed at `{step}`: {why}")]
    Step { peer: &'static str, step: String, why: String },
    #[error("{peer} is not installed, and only root can install {packages} here")]
    NotRoot { peer: &'static str, packages: &'static str },
}

impl Diagnostic for InstallError {
    fn page(&self) -> &'static Page {
        &NOT_INSTALLED
    }
}

/// How our own ranks are started.
#[derive(Clone, Copy)]
pub(super) struct Ours {
    pub(super) transport: Transport,
    pub(super) algorithm: Option<Algorithm>,
    pub(super) is_private: bool,
    pub(super) device: DeviceChoice,
}

impl Ours {
    pub(super) fn start(&self, ranks: u32) -> Result<RankSet, RankSetError> {
        let name = format!("bedplate over {}", self.transport.name());
        let meeting =
            LocalRendezvous::here().map_err(|source| RankSetError::Start { what: name.clone(), source })?;
        RankSet::start(&name, ranks, |socket| {
            (0..ranks).map(|rank| self.command(socket, rank, ranks, &meeting)).collect()
        })
    }

    pub(super) fn command(
        &self,
        socket: &Path,
        rank: u32,
        ranks: u32,
        meeting: &LocalRendezvous,
    ) -> Result<Command, RankSetError> {
        let start = |source| RankSetError::Start { what: "a rank".to_owned(), source };
        let mut command = Command::new(std::env::current_exe().map_err(start)?);
        command.args(["comm-rank", "--socket"]).arg(socket);
        if let Some(algorithm) = self.algorithm {
            command.args(["--algorithm", algorithm.name()]);
        }
        if self.is_private {
            command.arg("--private");
        }
        if self.device != DeviceChoice::Cpu {
            command.args(["--device", &self.device.to_string()]);
            if Device::gpus().is_ok_and(|gpus| gpus.len() < ranks as usize) {
                command.env("NCCL_HOSTID", format!("rank-{rank}"));
            }
        }
        meeting.tell(&mut command, rank, ranks);
        command.env("BEDPLATE_COMM_TRANSPORT", self.transport.name()).env("BEDPLATE_COMM_JOIN", "120");
        Ok(command)
    }
}

/// A peer that can be started.
pub(super) enum Installed {
    Gloo { python: PathBuf },
    Openmpi { program: PathBuf, _folder: Folder },
}

impl Installed {
    pub(super) fn peer(&self) -> Peer {
        match self {
            Installed::Gloo { .. } => Peer::Gloo,
            Installed::Openmpi { .. } => Peer::Openmpi,
        }
    }

    pub(super) fn start(&self, ranks: u32) -> Result<RankSet, RankSetError> {
        match self {
            Installed::Gloo { python } => {
                let start = |source| RankSetError::Start { what: "gloo".to_owned(), source };
                let meeting = LocalRendezvous::here().map_err(start)?;
                RankSet::start("gloo", ranks, |socket| {
                    Ok((0..ranks).map(|rank| gloo(python, socket, rank, ranks, &meeting)).collect())
                })
            }
            Installed::Openmpi { program, .. } => {
                RankSet::start("openmpi", ranks, |socket| Ok(vec![mpirun(program, socket, ranks)]))
            }
        }
    }
}

fn gloo(python: &Path, socket: &Path, rank: u32, ranks: u32, meeting: &LocalRendezvous) -> Command {
    let mut command = Command::new(python);
    command.args(["-c", include_str!("gloo.py")]).arg(socket);
    meeting.tell(&mut command, rank, ranks);
    command.env("GLOO_SOCKET_IFNAME", "lo").env("OMP_NUM_THREADS", "1");
    command
}

/// With more ranks than cores its ranks must yield while they wait, which is the setting that its manual recommends.
fn mpirun(program: &Path, socket: &Path, ranks: u32) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "--allow-run-as-root"]);
    if ranks > Machine::this().cores {
        command.args(["--mca", "mpi_yield_when_idle", "1"]);
    }
    command.args(["-np", &ranks.to_string()]).arg(program).arg(socket);
    command
}

/// Finds a peer, and installs what is missing.
pub(super) fn install(peer: Peer, python: Option<&Path>, console: &Console) -> Result<Installed, CliError> {
    match peer {
        Peer::Gloo => Ok(Installed::Gloo { python: torch(python, console)? }),
        Peer::Openmpi => openmpi(console),
    }
}

const MINUTE: Duration = Duration::from_secs(60);

pub(in super::super) fn torch(named: Option<&Path>, console: &Console) -> Result<PathBuf, InstallError> {
    let folder = cache().join("torch");
    let own = folder.join("bin/python");
    let named: Vec<PathBuf> = named.map_or(vec!["python3".into(), own.clone()], |path| vec![path.to_owned()]);
    let check = "import torch.distributed as d, sys; sys.exit(not d.is_gloo_available())";
    let has_gloo = |python: &PathBuf| step(Peer::Gloo, python, &["-c", check], 3 * MINUTE).is_ok();
    if let Some(python) = named.iter().find(|python| has_gloo(python)) {
        return Ok(python.clone());
    }
    if !named.contains(&own) {
        let step = format!("{} -c 'import torch'", named[0].display());
        return Err(InstallError::Step {
            peer: "gloo",
            step,
            why: "this Python has no torch with Gloo".into(),
        });
    }
    console.say(&format!("installing torch into {}", folder.display()));
    let place = folder.display().to_string();
    step(Peer::Gloo, Path::new("python3"), &["-m", "venv", &place], 3 * MINUTE)?;
    let pip = ["-m", "pip", "install", "--quiet", "torch"];
    let small = [&pip[..], &["--index-url", "https://download.pytorch.org/whl/cpu"]].concat();
    if step(Peer::Gloo, &own, &small, 30 * MINUTE).is_err() {
        step(Peer::Gloo, &own, &pip, 60 * MINUTE)?;
    }
    Ok(own)
}

fn openmpi(console: &Console) -> Result<Installed, CliError> {
    const PACKAGES: &str = "openmpi-bin and libopenmpi-dev";
    let is_there = |program: &str| step(Peer::Openmpi, Path::new(program), &["--version"], MINUTE).is_ok();
    if !(is_there("mpirun") && is_there("mpicc")) {
        if !nix::unistd::geteuid().is_root() {
            return Err(InstallError::NotRoot { peer: "openmpi", packages: PACKAGES }.into());
        }
        console.say(&format!("installing {PACKAGES}"));
        let packages =
            ["install", "-y", "--no-install-recommends", "openmpi-bin", "libopenmpi-dev", "gcc", "libc6-dev"];
        step(Peer::Openmpi, Path::new("apt-get"), &packages, 30 * MINUTE)?;
    }
    let folder = Folder::make()?;
    let (source, program) = (folder.path().join("rank.c"), folder.path().join("rank"));
    bedplate_terminal::files::write_own(&source, include_str!("openmpi.c"))?;
    let [from, to] = [&source, &program].map(|path| path.display().to_string());
    step(Peer::Openmpi, Path::new("mpicc"), &["-O3", "-march=native", "-o", &to, &from], 5 * MINUTE)?;
    Ok(Installed::Openmpi { program, _folder: folder })
}

/// Where what is installed for the user goes.
pub(in super::super) fn cache() -> PathBuf {
    let home = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = home("XDG_CACHE_HOME").or_else(|| Some(home("HOME")?.join(".cache")));
    cache.unwrap_or_else(std::env::temp_dir).join("bedplate/peers")
}

fn step(peer: Peer, program: &Path, arguments: &[&str], at_most: Duration) -> Result<String, InstallError> {
    step_of(peer.name(), Command::new(program).args(arguments), at_most)
}

/// A command of an installation.
pub(in super::super) fn step_of(
    peer: &'static str,
    command: &mut Command,
    at_most: Duration,
) -> Result<String, InstallError> {
    run_within(command, at_most).map_err(|why| InstallError::Step { peer, step: told(command), why })
}

/// The first line of a command, for people.
fn told(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ").lines().next().unwrap_or_default().to_owned()
}

/// What a command printed, if it succeeds in time; otherwise its last line.
pub(super) fn run_within(command: &mut Command, at_most: Duration) -> Result<String, String> {
    let text = |error: io::Error| error.to_string();
    let folder = Folder::make().map_err(|error| error.to_string())?;
    let path = folder.path().join("output");
    let output = std::fs::File::create(&path).map_err(text)?;
    let errors = output.try_clone().map_err(text)?;
    let mut child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn().map_err(text)?;
    let began = Instant::now();
    let status = loop {
        match child.try_wait().map_err(text)? {
            Some(status) => break status,
            None if began.elapsed() > at_most => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it did not end within {} s", at_most.as_secs()));
            }
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    let said = String::from_utf8_lossy(&std::fs::read(&path).map_err(text)?).into_owned();
    let last = || said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing was said").to_owned();
    if status.success() { Ok(said) } else { Err(last()) }
}
