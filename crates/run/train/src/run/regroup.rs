//! How a run goes on when ranks are lost or come.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bedplate_checkpoint::{Checkpoint, Shards};
use bedplate_comm::{CommError, Numbering, World};
use bedplate_kernels::Device;
use bedplate_network::{Format, Network};

use super::{Past, Run, Wish};
use crate::trained::Trained;
use crate::trainer::Trainer;
use crate::{Precision, TrainError};

/// How long the ranks that are left, and those that come, have to meet.
const MEETING: Duration = Duration::from_secs(60);

impl<E: Trained> Run<'_, E> {
    /// What the ranks want before the next step: any may ask to stop, the first one knows who waits to join.
    pub(super) fn agree(&self) -> Result<Wish, TrainError> {
        let is_stopped = self.options.stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
        let ranks = self.trainer.ranks();
        let grows = ranks.is_first() && self.newcomers() > 0;
        let mut wishes = [f64::from(u8::from(is_stopped)), f64::from(u8::from(grows))];
        ranks.sum_over_all(&self.trainer.device, &mut wishes)?;
        Ok(match wishes {
            [stops, _] if stops > 0.0 => Wish::Stop,
            [_, grows] if grows > 0.0 => Wish::Grow,
            _ => Wish::GoOn,
        })
    }

    /// Ranks among those that wait which make whole replicas, up to the layout that was asked for.
    fn newcomers(&self) -> u32 {
        let (Some(roster), Some(asked)) = (&self.options.roster, self.wanted_ranks()) else { return 0 };
        let layout = self.trainer.ranks().layout();
        let replica = layout.tensor * layout.context * layout.pipeline;
        let missing = asked.saturating_sub(self.trainer.ranks().count() as u32);
        if missing == 0 { 0 } else { roster.waiting().min(missing) / replica * replica }
    }

    /// How many ranks the run was begun with.
    fn wanted_ranks(&self) -> Option<u32> {
        self.config.training.layout.map(|layout| layout.world() as u32).or(self.options.ranks)
    }

    /// Whether the run can go on with the ranks that are left.
    pub(super) fn survives(&self, error: &TrainError) -> bool {
        let TrainError::Ranks(CommError::Fault(_)) = error else { return false };
        let fault = self.trainer.ranks().world().and_then(World::fault);
        self.options.roster.is_some() && fault.is_some_and(|fault| fault.lost_rank().is_some())
    }

    /// Ends the work of the other ranks with the reason of this one.
    pub(super) fn tell_others(&self, error: &TrainError) {
        let is_own = !matches!(error, TrainError::Ranks(_) | TrainError::Elsewhere { .. });
        if let Some(world) = self.trainer.ranks().world().filter(|_| is_own) {
            world.revoke(&error.to_string());
        }
    }

    /// Makes the next world with the ranks that are left and those that wait.
    pub(super) fn regroup(self, past: &mut Past) -> Result<World, TrainError> {
        let newcomers = self.newcomers();
        let Self { trainer, options, newest, told, lock, .. } = self;
        (past.newest, past.told, past.lock) = (newest, told, lock);
        let ranks = Arc::clone(&trainer.ranks);
        past.carried = trainer.carry();
        let ranks = Arc::into_inner(ranks).expect("nobody else works with ranks that part");
        let world = ranks.into_world().expect("ranks of a world regroup");
        // A rank that stood still for too long finds that the others have gone on without it.
        if options.roster.as_ref().is_some_and(|roster| roster.has_passed(world.epoch())) {
            return Err(TrainError::Elsewhere { rank: world.rank() });
        }
        let gone = world.gone();
        let waiting = options.roster.as_ref().map_or(0, |roster| roster.waiting());
        let numbering = match gone.len() as u32 {
            0 => Numbering::Compact { newcomers },
            gone if waiting >= gone => Numbering::Kept,
            _ => Numbering::Compact { newcomers: 0 },
        };
        let lowest = (0..world.size()).find(|rank| !gone.contains(rank));
        if let Some(roster) = options.roster.as_ref().filter(|_| lowest == Some(world.rank())) {
            // Without the note nobody comes, and the others go on alone.
            let _ = roster.meet_at(world.next_meeting_point());
        }
        Ok(world.rebuild(numbering, MEETING)?)
    }

    /// Writes the finished weights from the newest checkpoint, where no rank has all of them.
    pub(super) fn export_checkpoint(&self, folder: &Path) -> Result<(), TrainError> {
        let Some(newest) = &self.newest else { return Ok(()) };
        let checkpoint = Checkpoint::open(&newest.path.to_string_lossy())?;
        if self.trainer.adapters.is_some() {
            return self.export_adapted(&checkpoint, folder);
        }
        let format = match self.config.training.precision {
            Precision::F32 => Format::F32,
            Precision::Bf16 => Format::Bf16,
        };
        let shards = Shards { format, ..Shards::default() };
        bedplate_checkpoint::to_hugging_face(&checkpoint, folder, shards)?;
        Ok(())
    }

    /// Adapters are merged into the weights that they were trained for, in this process alone.
    fn export_adapted(&self, checkpoint: &Checkpoint, folder: &Path) -> Result<(), TrainError> {
        let device = Device::cpu(self.trainer.device.threads());
        let architecture = self.trainer.network.architecture().clone();
        let network = Network::new(&device, architecture, self.config.data.sequence)?;
        let mut alone = Trainer::<E>::new(network, device, self.config.clone())?;
        alone.restore(checkpoint)?;
        bedplate_network::save(&alone.network, &alone.device, alone.weights(), folder)?;
        match &alone.adapters {
            Some(adapters) => adapters.save(&alone.device, &self.config.output.folder.join("adapter")),
            None => Ok(()),
        }
    }
}
