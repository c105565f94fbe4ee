//! Whether this process trains alone or is one rank of several, and which of several ranks tells an error.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use bedplate_comm::{CommError, Fault, Rendezvous, World, WorldOptions};
use bedplate_terminal::CliError;
use bedplate_train::{Membership, TrainError};

use super::launch::{ANOTHER_FAILED, LAUNCHED, SPARE};

/// Set by a cluster for ranks that join others, and for ranks that go on when others are lost.
const NEWCOMER: &str = "BEDPLATE_NEWCOMER";
const SURVIVE: &str = "BEDPLATE_SURVIVE";

pub(in crate::commands) type Variables = BTreeMap<String, String>;

pub(in crate::commands) fn variables() -> Variables {
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
pub(super) fn join(variables: &Variables, output: &Path, stop: &AtomicBool) -> Result<Part, CliError> {
    let rendezvous = Rendezvous::from_environment(&without_batch_script(variables))?;
    let mut options = WorldOptions::from_environment(variables)?;
    options.flight.get_or_insert_with(|| output.join("flight"));
    let is_newcomer = variables.contains_key(NEWCOMER);
    if is_newcomer || variables.contains_key(SPARE) {
        // A cluster lets newcomers come once the others have met; a spare may find what an earlier run left.
        let since = if is_newcomer { SystemTime::UNIX_EPOCH } else { SystemTime::now() };
        let joined = Membership::of(output).join(&rendezvous, &options, stop, since)?;
        return Ok(joined.map_or(Part::NotNeeded, Part::Rank));
    }
    if rendezvous.world == 1 {
        return Ok(Part::Alone);
    }
    Ok(Part::Rank(World::join(&rendezvous, &options)?))
}

/// A batch script of Slurm has the variables of a task, but is one process.
pub(in crate::commands) fn without_batch_script(variables: &Variables) -> Variables {
    let is_step = variables.get("SLURM_STEP_NUM_TASKS").is_some_and(|tasks| tasks.trim() != "1");
    let is_slurms = |name: &str| name == "SLURM_PROCID" || name == "SLURM_NTASKS";
    let all = variables.iter().filter(|(name, _)| is_step || !is_slurms(name));
    all.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The node of this process: pretended ones have a name of their own.
pub(super) fn node() -> String {
    let name = std::env::var("BEDPLATE_NODE").ok();
    name.or_else(|| nix::unistd::gethostname().ok()?.into_string().ok()).unwrap_or_default()
}

/// Whether whoever started this process replaces ranks that are lost.
pub(super) fn survives(variables: &Variables) -> bool {
    is_launched(variables) || variables.contains_key(SURVIVE)
}

pub(super) fn is_launched(variables: &Variables) -> bool {
    variables.contains_key(LAUNCHED)
}

/// The end of a process that had no place in the run when it was over. Its launcher must not take it for a rank that has
/// reached the end.
pub(super) fn not_needed(variables: &Variables) -> Result<(), CliError> {
    if is_launched(variables) { Err(CliError::Job(ANOTHER_FAILED)) } else { Ok(()) }
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
pub(super) fn once(error: TrainError, rank: u32, is_launched: bool) -> CliError {
    let is_silent = match &error {
        TrainError::Elsewhere { .. } => true,
        // All ranks find these together.
        TrainError::NotFinite { .. } | TrainError::Layout { .. } => rank != 0,
        TrainError::Ranks(CommError::Fault(Fault::Revoked { rank: by, .. })) => *by != rank,
        // The launcher has seen it end.
        TrainError::Ranks(CommError::Fault(fault)) if is_launched => fault.lost_rank().is_some(),
        TrainError::Ranks(CommError::Fault(fault)) => {
            let lowest = u32::from(fault.rank() == 0);
            rank != lowest
        }
        _ => false,
    };
    if is_silent { CliError::Job(ANOTHER_FAILED) } else { error.into() }
}
