//! A run's checkpoints: what of a trainer goes into one, when the copy advances, and what a run's settings have to do with it.
//!
//! The crate `checkpoint` has everything about files. Here is which regions of which tensors a trainer holds and where their numbers lie.

mod settings;
mod state;

use std::time::{Duration, Instant};

use bedplate_checkpoint::{
    Attempt, CheckpointError, Checkpoints, Facts, Keep, PartEntry, Saving, SavingOptions, Store,
};

use bedplate_units::Seconds;

pub use settings::Change;
pub(crate) use settings::{Settings, changes};
pub(crate) use state::{Lying, State};

use crate::parameters::Trained;
use crate::trainer::Trainer;
use crate::{TrainConfig, TrainError};

/// The finished weights, in the output folder.
pub(crate) const MODEL_FOLDER: &str = "model";
/// The records of steps, in the output folder.
pub(crate) const METRICS_FILE: &str = "metrics.jsonl";
/// How a run of one process is spread over ranks.
const ALONE: &str = "dp1";

/// Where a configuration's checkpoints lie.
pub(crate) fn checkpoints(config: &TrainConfig) -> Result<Checkpoints, TrainError> {
    let age = Duration::from_secs_f64(3600.0 * config.checkpoint.keep_hours);
    let keep = Keep { count: config.checkpoint.keep, age };
    let output = &config.output.folder;
    Ok(match &config.checkpoint.store {
        Some(address) => Checkpoints::new(output, Store::open(address)?, keep),
        None => Checkpoints::in_output(output, keep),
    })
}

/// A checkpoint that is being made while the run goes on.
pub(crate) struct Snapshot {
    attempt: Attempt,
    facts: Facts,
    saving: Saving,
    /// Where the numbers of each region lie.
    lying: Vec<Lying>,
    /// How long copying has taken so far.
    copying: Duration,
    /// This rank's part, once it is durable or has failed.
    part: Option<Result<PartEntry, CheckpointError>>,
}

impl Snapshot {
    /// Copies what there is room for.
    pub(crate) fn advance(&mut self, state: &State<'_>) {
        let began = Instant::now();
        self.saving.advance(&state.held(&self.lying));
        self.copying += began.elapsed();
    }

    /// Copies the rest; afterwards the state may change.
    pub(crate) fn complete(&mut self, state: &State<'_>) {
        let began = Instant::now();
        self.saving.complete(&state.held(&self.lying));
        self.copying += began.elapsed();
    }

    /// Waits for this rank's part to be durable, and makes it a checkpoint with what `publish` does.
    pub(crate) fn publish<T>(
        self,
        checkpoints: &Checkpoints,
        publish: impl FnOnce(&Attempt, Vec<PartEntry>, Facts) -> Result<T, CheckpointError>,
    ) -> Result<T, TrainError> {
        let Self { attempt, facts, saving, part, .. } = self;
        match part.unwrap_or_else(|| saving.wait()) {
            Ok(part) => Ok(publish(&attempt, vec![part], facts)?),
            Err(error) => {
                checkpoints.discard(&attempt);
                Err(error.into())
            }
        }
    }
}

impl<E: Trained> Trainer<E> {
    /// Begins a checkpoint of the state as it is now. Steps go on copying it, and it is complete before the next change.
    pub(crate) fn begin_snapshot(
        &mut self,
        checkpoints: &Checkpoints,
        settings: &Settings,
    ) -> Result<(), TrainError> {
        let attempt = checkpoints.begin(self.step)?;
        let (regions, lying) = self.regions().into_iter().unzip();
        let saving = Saving::start(checkpoints.store(), &attempt, 0, regions, SavingOptions::default());
        let saving = match saving {
            Ok(saving) => saving,
            Err(error) => {
                checkpoints.discard(&attempt);
                return Err(error.into());
            }
        };
        let facts = self.facts(settings);
        let mut snapshot = Snapshot { attempt, facts, saving, lying, copying: Duration::ZERO, part: None };
        snapshot.advance(&self.state());
        self.snapshot = Some(snapshot);
        Ok(())
    }

    fn facts(&self, settings: &Settings) -> Facts {
        let model = serde_json::from_str(self.network.architecture().config_json()).ok();
        Facts {
            step: self.step,
            samples: self.samples,
            layout: ALONE.to_owned(),
            settings: settings.0.clone(),
            model: model.filter(|_| self.config.adapter.is_none()),
        }
    }

    /// Copies the rest of the state, if a checkpoint is being made; gives how long copying has taken since this was asked last.
    pub(crate) fn complete_snapshot(&mut self) -> Seconds {
        let Some(mut snapshot) = self.snapshot.take() else { return Seconds::ZERO };
        snapshot.complete(&self.state());
        let copying = std::mem::take(&mut snapshot.copying);
        self.snapshot = Some(snapshot);
        Seconds::new(copying.as_secs_f64())
    }

    /// The checkpoint that is being made, if it only needs to be published or this `waits` for that.
    pub(crate) fn take_snapshot(&mut self, waits: bool) -> Option<Snapshot> {
        if waits {
            self.complete_snapshot();
            return self.snapshot.take();
        }
        self.snapshot.take_if(|snapshot| {
            snapshot.part = snapshot.saving.finished();
            snapshot.part.is_some()
        })
    }
}
