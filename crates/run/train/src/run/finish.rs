//! The end of a run: the last checkpoint, and the weights as other tools read them.

use std::path::{Path, PathBuf};

use bedplate_checkpoint::{Checkpoint, Shards};
use bedplate_kernels::Device;
use bedplate_network::{Network, TensorFormat};

use super::{Observer, Run, RunSummary};
use crate::checkpoint::MODEL_FOLDER;
use crate::trained::Trained;
use crate::trainer::Trainer;
use crate::{Precision, TrainError, export};

impl<E: Trained> Run<'_, E> {
    pub(super) fn finish(&mut self, observer: &mut dyn Observer) -> Result<RunSummary, TrainError> {
        let was_stopped = self.trainer.step < self.config.training.steps;
        let is_first = self.trainer.ranks().is_first();
        self.settle(observer, true)?;
        if !self.is_published()? {
            self.publish(observer)?;
            self.settle(observer, true)?;
        }
        let weights = if was_stopped || !is_first { None } else { Some(self.export()?) };
        self.trainer.ranks.part(&self.trainer.device)?;
        if let Some(membership) = self.options.membership.as_ref().filter(|_| is_first) {
            membership.end();
        }
        Ok(RunSummary {
            steps: self.trainer.step,
            was_stopped,
            loss: self.loss,
            evaluation_loss: self.evaluation_loss,
            checkpoint: self.newest.clone(),
            weights,
            remarks: self.remarks.clone(),
            is_first,
            had_place: true,
        })
    }

    /// Whether the newest checkpoint is of the state as it is; the first rank knows.
    pub(super) fn is_published(&self) -> Result<bool, TrainError> {
        let is_it = self.newest.as_ref().is_some_and(|newest| newest.step == self.trainer.step);
        let told = self.trainer.ranks.broadcast(&self.trainer.device, vec![u8::from(is_it)])?;
        Ok(told == [1])
    }

    /// Weights, configuration and tokenizer as other tools read them; adapters also on their own.
    fn export(&self) -> Result<PathBuf, TrainError> {
        let folder = self.config.output.folder.join(MODEL_FOLDER);
        let Trainer { device, network, .. } = &self.trainer;
        if self.trainer.has_whole_network() {
            bedplate_network::save(network, device, self.trainer.weights(), &folder)?;
            if let Some(adapters) = &self.trainer.adapters {
                adapters.save(device, &self.config.output.folder.join("adapter"))?;
            }
            device.check()?;
        } else {
            self.export_checkpoint(&folder)?;
        }
        let longest = network.architecture().transformer.max_context;
        export::save_tokenizer(&self.data.tokenizer, self.data.is_chat(), longest, &folder)?;
        Ok(folder)
    }

    /// Writes the finished weights from the newest checkpoint, where no rank has all of them.
    fn export_checkpoint(&self, folder: &Path) -> Result<(), TrainError> {
        let Some(newest) = &self.newest else { return Ok(()) };
        let checkpoint = Checkpoint::open(&newest.path.to_string_lossy())?;
        if self.trainer.adapters.is_some() {
            return self.export_adapted(&checkpoint, folder);
        }
        let format = match self.config.training.precision {
            Precision::F32 => TensorFormat::F32,
            Precision::Bf16 | Precision::Fp8 => TensorFormat::Bf16,
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
