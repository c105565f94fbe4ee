//! What a process is in a training run, and which of several ranks tells an error.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use bedplate_comm::{CommError, Fault, Rendezvous, World, WorldOptions};
use bedplate_train::{Membership, TrainError};

use super::{ANOTHER_FAILED, LAUNCHED, SPARE};

/// Set by a cluster for ranks that join others, and for ranks that go on when others are lost.
const NEWCOMER: &str = "BEDPLATE_NEWCOMER";
const SURVIVE: &str = "BEDPLATE_SURVIVE";

/// The environment of a process.
pub type Variables = BTreeMap<String, String>;

/// Those of this process that are text.
pub fn variables() -> Variables {
    let all = std::env::vars_os();
    all.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect()
}

/// What this process is in its run.
pub enum RankPart {
    Alone,
    Rank(World),
    /// It was told to end before there was a place for it.
    NotNeeded,
}

/// Joins the other ranks, if the environment says that there are any.
pub fn join(variables: &Variables, output: &Path, stop: &AtomicBool) -> Result<RankPart, TrainError> {
    let rendezvous = Rendezvous::from_environment(&without_batch_script(variables))?;
    let mut options = WorldOptions::from_environment(variables)?;
    options.flight.get_or_insert_with(|| output.join("flight"));
    let is_newcomer = variables.contains_key(NEWCOMER);
    if is_newcomer || variables.contains_key(SPARE) {
        // A cluster lets newcomers come once the others have met; a spare may find what an earlier run left.
        let since = if is_newcomer { SystemTime::UNIX_EPOCH } else { SystemTime::now() };
        let joined = Membership::of(output).join(&rendezvous, &options, stop, since)?;
        return Ok(joined.map_or(RankPart::NotNeeded, RankPart::Rank));
    }
    if rendezvous.world == 1 {
        return Ok(RankPart::Alone);
    }
    Ok(RankPart::Rank(World::join(&rendezvous, &options)?))
}

/// A batch script of Slurm has the variables of a task, but is one process.
pub fn without_batch_script(variables: &Variables) -> Variables {
    let is_step = variables.get("SLURM_STEP_NUM_TASKS").is_some_and(|tasks| tasks.trim() != "1");
    let is_slurms = |name: &str| name == "SLURM_PROCID" || name == "SLURM_NTASKS";
    let all = variables.iter().filter(|(name, _)| is_step || !is_slurms(name));
    all.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Whether ranks that are lost are replaced by the program or the cluster that started this process.
pub fn survives(variables: &Variables) -> bool {
    is_launched(variables) || variables.contains_key(SURVIVE)
}

/// Whether this process was started as a rank by another of this machine.
pub fn is_launched(variables: &Variables) -> bool {
    variables.contains_key(LAUNCHED)
}

/// Ends this process when the one that started it is gone.
pub fn end_with_launcher() {
    let watch = || {
        let mut byte = [0];
        while std::io::stdin().read(&mut byte).is_ok_and(|count| count > 0) {}
        std::process::exit(ANOTHER_FAILED.into());
    };
    let _ = std::thread::Builder::new().name("launcher".into()).spawn(watch);
}

/// Whether an error is told by another rank or by the launcher: of many ranks that end for the same reason one says why.
pub fn is_told_by_another(error: &TrainError, rank: u32, is_launched: bool) -> bool {
    match error {
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_script_is_one_process_and_a_step_of_several_tasks_is_not() {
        let task = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("HOME", "/root")];
        let variables = |tasks: &str| {
            let all = task.into_iter().chain([("SLURM_STEP_NUM_TASKS", tasks)]);
            all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<Variables>()
        };
        assert_eq!(without_batch_script(&variables("1")).len(), 2);
        assert_eq!(without_batch_script(&variables("4")).len(), 4);
        assert!(!survives(&variables("4")));
    }
}
