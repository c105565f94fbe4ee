//! The trained numbers and their moments, to and from a file, piece by piece.

use std::collections::BTreeMap;
use std::path::Path;

use bedplate_kernels::View;
use bedplate_network::{Format, SafetensorsFile, TensorLayout};

use super::manifest::Manifest;
use super::{FACTS_FILE, Facts, STATE_FILE, Settings};
use crate::TrainError;
use crate::parameters::Trained;
use crate::trainer::{Learner, Trainer};

impl<E: Trained> Trainer<E> {
    /// Writes a checkpoint into a folder; it is complete when this returns.
    pub(super) fn write_state(&self, folder: &Path, settings: &Settings) -> std::io::Result<()> {
        let state = self.state();
        let shapes = state.iter().map(|(name, view)| (name.clone(), vec![view.len()])).collect();
        let layout = TensorLayout::new(Format::F32, &BTreeMap::new(), shapes);
        let mut manifest = Manifest::default();
        manifest.write_file(folder, STATE_FILE, &mut |file| {
            layout.write(file, &mut |index, range, values| {
                self.device.read(state[index].1.range(range), values);
            })
        })?;
        let facts = Facts::new(self.step, self.samples, settings.clone());
        manifest.write_file(folder, FACTS_FILE, &mut |file| writeln!(file, "{:#}", facts.to_json()))?;
        manifest.finish(folder)
    }

    /// Every buffer of the state, by name.
    fn state(&self) -> Vec<(String, View<'_, f32>)> {
        match &self.learner {
            Learner::All { optimizer, .. } => {
                let master = self.parameters.master();
                let blocks = 0..self.network.blocks().len();
                let weights = blocks.map(|index| (format!("weights.{index}"), master.block(index)));
                let owned = || optimizer.owned.iter();
                let first = owned().map(|owned| (owned.name("first"), owned.first.view()));
                let second = owned().map(|owned| (owned.name("second"), owned.second.view()));
                weights.chain(first).chain(second).collect()
            }
            Learner::Adapters(adapters) => vec![
                ("adapters.weights".into(), adapters.values.view()),
                ("adapters.first".into(), adapters.first.view()),
                ("adapters.second".into(), adapters.second.view()),
            ],
        }
    }

    /// Goes back to the state in a checkpoint's folder.
    pub(crate) fn restore(&mut self, folder: &Path, facts: &Facts) -> Result<(), TrainError> {
        let path = folder.join(STATE_FILE);
        let file = SafetensorsFile::open(&path)?;
        self.check_sizes(&path, &file)?;
        let Self { device, network, parameters, learner, .. } = self;
        match learner {
            Learner::All { optimizer, .. } => {
                for index in 0..network.blocks().len() {
                    file.read_pieces(&format!("weights.{index}"), &mut |range, values| {
                        device.write(parameters.master_mut().block_mut(index).range(range), values);
                    })?;
                }
                for owned in &mut optimizer.owned {
                    let (first, second) = (owned.name("first"), owned.name("second"));
                    for (name, buffer) in [(first, &mut owned.first), (second, &mut owned.second)] {
                        file.read_pieces(&name, &mut |range, values| {
                            device.write(buffer.range_mut(range), values);
                        })?;
                    }
                }
                parameters.round(device);
            }
            Learner::Adapters(adapters) => {
                let adapters = &mut **adapters;
                for (name, buffer) in [
                    ("adapters.weights", &mut adapters.values),
                    ("adapters.first", &mut adapters.first),
                    ("adapters.second", &mut adapters.second),
                ] {
                    file.read_pieces(name, &mut |range, values| {
                        device.write(buffer.range_mut(range), values);
                    })?;
                }
                adapters.merge(device, parameters);
            }
        }
        (self.step, self.samples) = (facts.step, facts.samples);
        Ok(())
    }

    /// Refuses numbers of another model before any is taken over.
    fn check_sizes(&self, path: &Path, file: &SafetensorsFile) -> Result<(), TrainError> {
        for (name, view) in self.state() {
            let stored = file.tensors().get(&name).map(|tensor| tensor.shape.iter().product());
            if stored != Some(view.len()) {
                let what = format!("it has no `{name}` of the size that this run needs");
                return Err(TrainError::OtherCheckpoint { path: path.to_owned(), what });
            }
        }
        Ok(())
    }
}
