//! Whether this process trains alone, is one rank of several, or starts the ranks of this machine.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use std::os::unix::process::ExitStatusExt;

use bedplate_comm::{CommError, Fault, Options, Rendezvous, World};
use bedplate_diag::{Diagnostic, pages};
use bedplate_layout::Layout;
use bedplate_train::{Roster, TrainError};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::console::Console;
use crate::stop::{ProgramError, Stop};

/// Set for processes that this program started as ranks of a run.
const LAUNCHED: &str = "BEDPLATE_TRAIN_LAUNCHED";
/// Set for a process that waits for a place.
const SPARE: &str = "BEDPLATE_TRAIN_SPARE";
/// The exit code of a rank that ended because another one failed.
const ANOTHER_FAILED: u8 = 75;
/// How long ranks have to end after one of them has failed.
const GRACE: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
pub(crate) enum RanksError {
    #[error("rank {rank} was killed by {signal}")]
    Killed { rank: u32, signal: String },
    #[error("cannot start the ranks")]
    Start { source: std::io::Error },
}

pages! { pub(crate) PAGES "ranks":
    KILLED "killed" Transient
        "A rank of the run was killed from outside: by a person, or by the system where memory ran out. Too few ranks were left to go on."
        "look at `dmesg` for the kernel's out-of-memory killer; then start the run again with `--resume`"
    START "cannot-start" Transient
        "The processes of the ranks could not be started, or no port was free for them to meet."
        "check the limits of processes and open files (`ulimit -a`), then try again"
}

impl Diagnostic for RanksError {
    fn page(&self) -> &'static bedplate_diag::Page {
        match self {
            RanksError::Killed { .. } => &KILLED,
            RanksError::Start { .. } => &START,
        }
    }
}

type Variables = BTreeMap<String, String>;

pub(super) fn variables() -> Variables {
    let all = std::env::vars_os();
    all.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect()
}

/// What this process is in its run.
pub(super) enum Part {
    Alone,
    Rank(World),
    /// It was told to end before there was a place for it.
    NotNeeded,
}

/// Joins the other ranks, if the environment says that there are any.
pub(super) fn join(variables: &Variables, output: &Path, stop: &AtomicBool) -> Result<Part, Stop> {
    let rendezvous = Rendezvous::from_environment(&without_batch_script(variables))?;
    let mut options = Options::from_environment(variables)?;
    options.flight.get_or_insert_with(|| output.join("flight"));
    if variables.contains_key(SPARE) {
        let joined = Roster::of(output).join(&rendezvous, &options, stop)?;
        return Ok(joined.map_or(Part::NotNeeded, Part::Rank));
    }
    if rendezvous.world == 1 {
        return Ok(Part::Alone);
    }
    Ok(Part::Rank(World::join(&rendezvous, &options)?))
}

/// A batch script of Slurm has the variables of a task, but is one process.
fn without_batch_script(variables: &Variables) -> Variables {
    let is_step = variables.get("SLURM_STEP_NUM_TASKS").is_some_and(|tasks| tasks.trim() != "1");
    let is_slurms = |name: &str| name == "SLURM_PROCID" || name == "SLURM_NTASKS";
    let all = variables.iter().filter(|(name, _)| is_step || !is_slurms(name));
    all.map(|(name, value)| (name.clone(), value.clone())).collect()
}

pub(super) fn is_launched(variables: &Variables) -> bool {
    variables.contains_key(LAUNCHED)
}

/// Ends this process when the one that started it is gone.
pub(super) fn end_with_launcher() {
    let watch = || {
        let mut byte = [0];
        while std::io::stdin().read(&mut byte).is_ok_and(|count| count > 0) {}
        std::process::exit(ANOTHER_FAILED.into());
    };
    let _ = std::thread::Builder::new().name("launcher".into()).spawn(watch);
}

/// An error as this rank reports it: of many ranks that end for the same reason one says why.
pub(super) fn once(error: TrainError, rank: u32, is_launched: bool) -> Stop {
    let is_silent = match &error {
        TrainError::Elsewhere { .. } => true,
        // All ranks find these together.
        TrainError::NotFinite { .. } | TrainError::StateLost { .. } | TrainError::Layout { .. } => rank != 0,
        TrainError::Ranks(CommError::Fault(Fault::Revoked { rank: by, .. })) => *by != rank,
        // The launcher has seen it end.
        TrainError::Ranks(CommError::Fault(fault)) if is_launched => fault.lost_rank().is_some(),
        TrainError::Ranks(CommError::Fault(fault)) => {
            let lowest = u32::from(fault.rank() == 0);
            rank != lowest
        }
        _ => false,
    };
    if is_silent { Stop::Job(ANOTHER_FAILED) } else { error.into() }
}

/// The ranks of this machine, started and watched.
pub(super) struct Launch<'a> {
    pub(super) ranks: u32,
    pub(super) spares: u32,
    /// How often ranks that were killed are started again.
    pub(super) restarts: u32,
    /// What `--layout auto` came to.
    pub(super) layout: Option<Layout>,
    /// Where those who wait leave a sign.
    pub(super) output: PathBuf,
    pub(super) stop: &'a AtomicBool,
}

struct Started {
    rank: u32,
    child: Child,
    is_spare: bool,
    ended: Option<ExitStatus>,
    /// What a rank other than the first says on standard error, which only matters if it fails first.
    said: Option<JoinHandle<Vec<u8>>>,
}

/// More than any error has.
const LONGEST_ERROR: u64 = 1 << 16;

fn listen(child: &mut Child) -> Option<JoinHandle<Vec<u8>>> {
    let mut pipe = child.stderr.take()?;
    let listen = move || {
        let mut said = Vec::new();
        let _ = pipe.by_ref().take(LONGEST_ERROR).read_to_end(&mut said);
        // The rest is read and forgotten, so that the rank does not wait.
        let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        said
    };
    std::thread::Builder::new().name("stderr".into()).spawn(listen).ok()
}

impl Launch<'_> {
    /// Runs to the end of all ranks.
    pub(super) fn run(&self, console: &mut Console) -> Result<(), Stop> {
        let port = free_port().map_err(|source| RanksError::Start { source })?;
        let secret = random_secret().map_err(|source| RanksError::Start { source })?;
        let start = |rank: u32, is_spare: bool| self.start(rank, port, &secret, is_spare);
        let (mut all, began) = (Vec::new(), SystemTime::now());
        for rank in 0..self.ranks + self.spares {
            all.push(start(rank, rank >= self.ranks)?);
        }
        let (mut restarts, mut is_told) = (self.restarts, false);
        let mut failed: Option<(Instant, Stop)> = None;
        let (mut first_failed, mut lost) = (None, None);
        let (mut done, mut last_work) = (None, Instant::now());
        loop {
            if self.stop.load(Ordering::Relaxed) && !is_told {
                all.iter().for_each(|started| send(started, Signal::SIGTERM));
                is_told = true;
            }
            let mut killed = Vec::new();
            for started in all.iter_mut().filter(|started| started.ended.is_none()) {
                let Ok(Some(status)) = started.child.try_wait() else { continue };
                started.ended = Some(status);
                match (status.code(), status.signal()) {
                    (Some(0), _) => {}
                    (Some(code), _) if code == i32::from(ANOTHER_FAILED) => {}
                    (Some(code), _) => {
                        first_failed.get_or_insert(started.rank);
                        failed.get_or_insert((Instant::now(), Stop::Job(code.clamp(1, 255) as u8)));
                    }
                    (None, signal) => killed.push((started.rank, signal.unwrap_or(0))),
                }
            }
            for (rank, signal) in killed.into_iter().filter(|_| done.is_none()) {
                let signal = Signal::try_from(signal).map_or(format!("signal {signal}"), |is| is.to_string());
                lost.get_or_insert((rank, signal.clone()));
                if failed.is_none() && !is_told && restarts > 0 {
                    restarts -= 1;
                    console.say(&format!("rank {rank} was killed by {signal}; it is started again"));
                    // Before the ranks have met it is itself that they wait for.
                    all.push(start(rank, self.has_begun(began))?);
                } else if !is_told {
                    failed.get_or_insert((Instant::now(), RanksError::Killed { rank, signal }.into()));
                }
            }
            let is_at_work = |started: &&Started| started.ended.is_none() && !started.is_spare;
            let working = all.iter().filter(is_at_work).count();
            let has_ended_well = |started: &Started| started.ended.is_some_and(|status| status.success());
            if done.is_none() && all.iter().any(has_ended_well) {
                done = Some(Instant::now());
            }
            // Ranks end together; one that does not stands still.
            let since = failed.as_ref().map(|(since, _)| *since).or(done);
            if since.is_some_and(|since| since.elapsed() > GRACE) {
                all.iter().for_each(|started| send(started, Signal::SIGKILL));
            }
            if working > 0 || !self.only_wait(&all) {
                last_work = Instant::now();
            } else if failed.is_none() && done.is_none() && last_work.elapsed() > GRACE {
                let (rank, signal) = lost.clone().unwrap_or((0, "a signal".to_owned()));
                failed = Some((Instant::now(), RanksError::Killed { rank, signal }.into()));
            }
            if working == 0 && self.is_over(&all, failed.is_some()) {
                break;
            }
            std::thread::sleep(LOOK);
        }
        all.iter().for_each(|started| send(started, Signal::SIGTERM));
        let spoke = all.iter().any(|started| started.said.is_none() && has_failed(started));
        for started in &mut all {
            let _ = started.child.wait();
            let said = started.said.take().and_then(|said| said.join().ok()).unwrap_or_default();
            if first_failed == Some(started.rank) && !spoke {
                console.say(String::from_utf8_lossy(&said).trim_end());
            }
        }
        failed.map_or(Ok(()), |(_, stop)| Err(stop))
    }

    /// Whether the ranks have met since the start.
    fn has_begun(&self, began: SystemTime) -> bool {
        let note = std::fs::metadata(self.output.join("ranks/meeting.json"));
        note.and_then(|note| note.modified()).is_ok_and(|written| written >= began)
    }

    /// Whether all processes that are left wait for a place, so that no rank trains.
    fn only_wait(&self, all: &[Started]) -> bool {
        let waits = |started: &Started| {
            let sign = self.output.join("ranks").join(format!("waiting-{}", started.child.id()));
            started.ended.is_some() || sign.exists()
        };
        all.iter().all(waits)
    }

    /// Ranks that were spares may be all that is left of a run; they end with it.
    fn is_over(&self, all: &[Started], has_failed: bool) -> bool {
        let has_ended_well = |started: &Started| started.ended.is_some_and(|status| status.success());
        has_failed || all.iter().any(has_ended_well) || all.iter().all(|started| started.ended.is_some())
    }

    fn start(&self, rank: u32, port: u16, secret: &str, is_spare: bool) -> Result<Started, Stop> {
        let program = std::env::current_exe().map_err(|source| RanksError::Start { source })?;
        let mut command = Command::new(program);
        command
            .args(own_arguments(self.layout))
            .env(LAUNCHED, "1")
            .env("RANK", rank.min(self.ranks - 1).to_string())
            .env("WORLD_SIZE", self.ranks.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .env("BEDPLATE_SECRET", secret)
            .stdin(Stdio::piped());
        match is_spare {
            true => command.env(SPARE, "1"),
            false => command.env_remove(SPARE),
        };
        if rank > 0 && !is_spare {
            command.stderr(Stdio::piped());
        }
        let mut child = command.spawn().map_err(|source| RanksError::Start { source })?;
        let said = listen(&mut child);
        Ok(Started { rank, child, is_spare, ended: None, said })
    }
}

/// Whether a rank has ended with an error of its own.
fn has_failed(started: &Started) -> bool {
    let code = started.ended.and_then(|status| status.code());
    code.is_some_and(|code| code != 0 && code != i32::from(ANOTHER_FAILED))
}

fn send(started: &Started, signal: Signal) {
    if started.ended.is_none() {
        let _ = kill(Pid::from_raw(started.child.id() as i32), signal);
    }
}

/// The command line without what is the launcher's. A layout that was chosen replaces the wish to have one chosen, so that all
/// ranks have the same.
fn own_arguments(layout: Option<Layout>) -> Vec<String> {
    let mut left_out = vec!["--ranks", "--spares", "--restarts"];
    left_out.extend(layout.map(|_| "--layout"));
    let mut kept = Vec::new();
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        let name = argument.split('=').next().unwrap_or_default();
        if left_out.contains(&name) {
            if !argument.contains('=') {
                given.next();
            }
        } else {
            kept.push(argument);
        }
    }
    kept.extend(layout.map(|layout| format!("--layout={layout}")));
    kept
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn random_secret() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Refuses what only a process that starts ranks can do.
pub(super) fn refuse_nested(ranks: u32, variables: &Variables) -> Result<(), Stop> {
    match variables.get("WORLD_SIZE").filter(|world| world.as_str() != "1") {
        Some(world) if ranks > 1 => {
            let message = format!(
                "--ranks starts ranks on this machine, but this process is one of {world} already (WORLD_SIZE); leave --ranks out"
            );
            Err(ProgramError::Usage { message }.into())
        }
        _ => Ok(()),
    }
}
