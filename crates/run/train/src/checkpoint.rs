//! A run's checkpoints: what of a trainer goes into one, when the copy advances, and what a run's settings have to do with it.
//!
//! A checkpoint is published only where the device had no error when all of the state had been copied from it.
//!
//! The crate `checkpoint` has everything about files. Here is which regions of which tensors a rank holds and where their numbers lie, and
//! how ranks make one checkpoint together: the first begins it and tells the others, each writes its part, and when all parts are
//! durable the first publishes them.

mod settings;
mod state;

use std::time::{Duration, Instant};

use bedplate_checkpoint::{
    Attempt, CheckpointError, Checkpoints, Keep, PartEntry, RunFacts, Saving, SavingOptions, Store,
};

use bedplate_units::Seconds;

pub use settings::Change;
pub(crate) use settings::{CurveSettings, changes};
pub(crate) use state::Lying;

use crate::trained::Trained;
use crate::trainer::Trainer;
use crate::upkeep::TrainedState;
use crate::{TrainConfig, TrainError};

/// The finished weights, in the output folder.
pub(crate) const MODEL_FOLDER: &str = "model";
/// The records of steps, in the output folder.
pub(crate) const METRICS_FILE: &str = "metrics.jsonl";

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
    facts: RunFacts,
    saving: Saving,
    /// Where the numbers of each region lie.
    lying: Vec<Lying>,
    /// How long copying has taken so far.
    copying: Duration,
    /// Whether the device was well when all was copied.
    is_sound: bool,
    /// This rank's part, once it is durable or has failed.
    part: Option<Result<PartEntry, CheckpointError>>,
}

impl Snapshot {
    /// Copies what there is room for.
    pub(crate) fn advance<E: Trained>(&mut self, state: &TrainedState<'_, E>) {
        let began = Instant::now();
        self.saving.advance(&state.held(&self.lying));
        self.copying += began.elapsed();
    }

    /// Copies the rest; afterwards the state may change.
    pub(crate) fn complete<E: Trained>(&mut self, state: &TrainedState<'_, E>) {
        let began = Instant::now();
        self.saving.complete(&state.held(&self.lying));
        self.copying += began.elapsed();
    }

    /// Whether this rank's part is durable or has failed.
    fn is_over(&mut self) -> bool {
        if self.part.is_none() {
            self.part = self.saving.finished();
        }
        self.part.is_some()
    }
}

impl<E: Trained> Trainer<E> {
    /// Begins a checkpoint of the state as it is now. Steps go on copying it, and it is complete before the next change. All ranks
    /// call it.
    pub(crate) fn begin_snapshot(
        &mut self,
        checkpoints: &Checkpoints,
        settings: &CurveSettings,
    ) -> Result<(), TrainError> {
        let begun = self.ranks.is_first().then(|| checkpoints.begin(self.step)).transpose();
        let text = match &begun {
            Ok(attempt) => attempt.as_ref().map(Attempt::to_text).unwrap_or_default(),
            Err(_) => String::new(),
        };
        let text = self.ranks.broadcast(&self.device, text.into_bytes())?;
        begun?;
        let attempt = String::from_utf8(text).ok().and_then(|text| Attempt::from_text(&text));
        let attempt = attempt.ok_or(TrainError::Elsewhere { rank: 0 })?;
        let (regions, lying) = self.regions(true).into_iter().unzip();
        let rank = self.ranks.rank() as usize;
        let saving = Saving::start(checkpoints.store(), &attempt, rank, regions, SavingOptions::default());
        let saving = match saving {
            Ok(saving) => saving,
            Err(error) => {
                checkpoints.discard(&attempt);
                return Err(error.into());
            }
        };
        let facts = self.facts(settings);
        let mut snapshot =
            Snapshot { attempt, facts, saving, lying, copying: Duration::ZERO, is_sound: false, part: None };
        snapshot.advance(&self.state());
        self.snapshot = Some(snapshot);
        Ok(())
    }

    fn facts(&self, settings: &CurveSettings) -> RunFacts {
        let model = serde_json::from_str(self.network.architecture().config_json()).ok();
        RunFacts {
            step: self.step,
            samples: self.samples,
            layout: self.ranks.layout().to_string(),
            settings: settings.0.clone(),
            model: model.filter(|_| self.config.adapter.is_none()),
        }
    }

    /// Copies the rest of the state, if a checkpoint is being made; gives how long copying has taken since this was asked last.
    pub(crate) fn complete_snapshot(&mut self) -> Seconds {
        let Some(mut snapshot) = self.snapshot.take() else { return Seconds::ZERO };
        snapshot.complete(&self.state());
        snapshot.is_sound |= self.device.check().is_ok();
        let copying = std::mem::take(&mut snapshot.copying);
        self.snapshot = Some(snapshot);
        Seconds::new(copying.as_secs_f64())
    }

    /// Publishes the checkpoint that is being made, if all ranks have written their parts or this `waits` for that. All ranks call
    /// it; the first does `publish` and gives what that gave.
    pub(crate) fn publish_snapshot<T>(
        &mut self,
        checkpoints: &Checkpoints,
        waits: bool,
        publish: impl FnOnce(&Attempt, Vec<PartEntry>, RunFacts) -> Result<T, CheckpointError>,
    ) -> Result<Option<T>, TrainError> {
        if waits {
            self.complete_snapshot();
        }
        let Some(snapshot) = &mut self.snapshot else { return Ok(None) };
        if !waits {
            let is_over = f64::from(u8::from(snapshot.is_over()));
            let all = self.ranks.gather(&self.device, &[is_over])?;
            if all.contains(&0.0) {
                return Ok(None);
            }
        }
        let Some(Snapshot { attempt, facts, saving, part, is_sound, .. }) = self.snapshot.take() else {
            return Ok(None);
        };
        if let (false, Err(error)) = (is_sound, self.device.check()) {
            // What was read of it may be nothing.
            drop(saving);
            checkpoints.discard(&attempt);
            return Err(error.into());
        }
        let part = part.unwrap_or_else(|| saving.wait());
        let text = part.as_ref().map(PartEntry::to_text).unwrap_or_default();
        let all = self.ranks.gather_bytes(&self.device, text.as_bytes())?;
        let failed = all.iter().position(Vec::is_empty);
        if self.ranks.is_first() && failed.is_some() {
            checkpoints.discard(&attempt);
        }
        part?;
        if let Some(rank) = failed {
            return Err(TrainError::Elsewhere { rank: rank as u32 });
        }
        let read = |bytes: &Vec<u8>| PartEntry::from_text(str::from_utf8(bytes).ok()?);
        let parts: Option<Vec<PartEntry>> = all.iter().map(read).collect();
        let published = match parts {
            _ if !self.ranks.is_first() => Ok(None),
            Some(parts) => publish(&attempt, parts, facts).map(Some),
            None => return Err(TrainError::Elsewhere { rank: self.ranks.rank() }),
        };
        let is_published = [u8::from(published.is_ok())];
        let told = self.ranks.broadcast(&self.device, is_published.to_vec())?;
        match published {
            Ok(None) if told != [1] => Err(TrainError::Elsewhere { rank: 0 }),
            published => Ok(published?),
        }
    }
}
