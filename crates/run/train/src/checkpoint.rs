//! The whole state of a run on disk, written aside and renamed, so that a checkpoint exists completely or not at all.
//!
//! A checkpoint is a folder `checkpoints/step-00000120` with the trained numbers and their moments (`state.safetensors`)
//! and what else a run needs to continue with the same bits (`state.json`). The order of data follows from the number of
//! samples seen, so only that number is stored.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use bedplate_kernels::{Buffer, Device, View};
use bedplate_network::{Format, SafetensorsFile, write_tensors};
use serde_json::{Value, json};

use crate::TrainError;
use crate::parameters::Trained;
use crate::trainer::{Learner, Trainer};

const STATE_FILE: &str = "state.safetensors";
const FACTS_FILE: &str = "state.json";
const VERSION: u64 = 1;

/// The checkpoints of a run.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    folder: PathBuf,
    keep: usize,
}

/// A complete checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Published {
    pub step: u64,
    pub path: PathBuf,
}

impl Checkpoints {
    pub fn new(output: &Path, keep: usize) -> Self {
        Self { folder: output.join("checkpoints"), keep }
    }

    /// All checkpoints, oldest first.
    pub fn all(&self) -> Result<Vec<Published>, TrainError> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(TrainError::ReadCheckpoint { path: self.folder.clone(), source }),
        };
        let mut found: Vec<Published> =
            entries.flatten().filter_map(|entry| published(&entry.path())).collect();
        found.sort();
        Ok(found)
    }

    pub fn newest(&self) -> Result<Option<Published>, TrainError> {
        Ok(self.all()?.pop())
    }

    /// Writes the current state and removes all checkpoints but the newest few.
    pub(crate) fn publish<E: Trained>(&self, trainer: &Trainer<E>) -> Result<Published, TrainError> {
        let step = trainer.step;
        let path = self.folder.join(format!("step-{step:08}"));
        let aside = self.folder.join(format!("unfinished-{step:08}"));
        let cannot = |source| TrainError::WriteOutput { path: path.clone(), source };
        let _ = fs::remove_dir_all(&aside);
        fs::create_dir_all(&aside).map_err(cannot)?;
        trainer.write_state(&aside)?;
        sync_folder(&aside).map_err(cannot)?;
        if path.exists() {
            fs::remove_dir_all(&path).map_err(cannot)?;
        }
        fs::rename(&aside, &path).map_err(cannot)?;
        sync_folder(&self.folder).map_err(cannot)?;
        self.prune()?;
        Ok(Published { step, path })
    }

    fn prune(&self) -> Result<(), TrainError> {
        let all = self.all()?;
        for old in &all[..all.len().saturating_sub(self.keep)] {
            fs::remove_dir_all(&old.path)
                .map_err(|source| TrainError::WriteOutput { path: old.path.clone(), source })?;
        }
        Ok(())
    }
}

/// The checkpoint in a folder named after its step.
pub(crate) fn published(path: &Path) -> Option<Published> {
    let step = path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()?;
    path.join(FACTS_FILE).exists().then(|| Published { step, path: path.to_owned() })
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

type Named = (String, Vec<usize>, Vec<f32>);

impl<E: Trained> Trainer<E> {
    fn write_state(&self, folder: &Path) -> Result<(), TrainError> {
        let mut tensors: Vec<Named> = Vec::new();
        for (name, view) in self.state() {
            let mut values = vec![0.0; view.len()];
            self.device.read(view, &mut values);
            tensors.push((name, vec![values.len()], values));
        }
        write_tensors(&folder.join(STATE_FILE), Format::F32, &BTreeMap::new(), &tensors)?;
        let facts = json!({
            "version": VERSION,
            "step": self.step,
            "samples": self.step * self.config.training.batch,
            "trained": self.trained(),
            "data_seed": self.config.data.seed,
            "sequence": self.config.data.sequence,
            "batch": self.config.training.batch,
        });
        let path = folder.join(FACTS_FILE);
        let write = || -> io::Result<()> {
            fs::write(&path, format!("{facts:#}\n"))?;
            File::open(&path)?.sync_all()
        };
        write().map_err(|source| TrainError::WriteOutput { path: path.clone(), source })
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

    /// Goes back to the state of a checkpoint of the same run.
    pub fn restore(&mut self, checkpoint: &Published) -> Result<(), TrainError> {
        let facts = read_facts(&checkpoint.path)?;
        self.check_facts(&checkpoint.path, &facts)?;
        let path = checkpoint.path.join(STATE_FILE);
        let file = SafetensorsFile::open(&path)?;
        let broken = |tensor: &str| TrainError::OtherCheckpoint {
            path: path.clone(),
            what: format!("it has no `{tensor}` of the size that this run needs"),
        };
        let read = |name: &str, len: usize| -> Result<Vec<f32>, TrainError> {
            file.read(name)?.filter(|values| values.len() == len).ok_or_else(|| broken(name))
        };
        let Self { device, network, parameters, learner, .. } = self;
        match learner {
            Learner::All { optimizer, .. } => {
                for (index, block) in network.blocks().iter().enumerate() {
                    let values = read(&format!("weights.{index}"), block.len)?;
                    device.write(parameters.master_mut().block_mut(index), &values);
                }
                for owned in &mut optimizer.owned {
                    restore_buffer(device, &owned.name("first"), &mut owned.first, &read)?;
                    restore_buffer(device, &owned.name("second"), &mut owned.second, &read)?;
                }
                parameters.round(device);
            }
            Learner::Adapters(adapters) => {
                restore_buffer(device, "adapters.weights", &mut adapters.values, &read)?;
                restore_buffer(device, "adapters.first", &mut adapters.first, &read)?;
                restore_buffer(device, "adapters.second", &mut adapters.second, &read)?;
                adapters.merge(device, parameters);
            }
        }
        self.step = checkpoint.step;
        Ok(())
    }

    /// Refuses a checkpoint of another run, which would continue with another loss curve and no error.
    fn check_facts(&self, path: &Path, facts: &Value) -> Result<(), TrainError> {
        let own = [
            ("version", VERSION),
            ("trained", self.trained() as u64),
            ("data_seed", self.config.data.seed),
            ("sequence", self.config.data.sequence as u64),
            ("batch", self.config.training.batch),
        ];
        for (key, expected) in own {
            if facts[key].as_u64() != Some(expected) {
                return Err(TrainError::OtherCheckpoint {
                    path: path.to_owned(),
                    what: format!("its `{key}` is {}, but this run's is {expected}", facts[key]),
                });
            }
        }
        Ok(())
    }
}

type Reader<'a> = dyn Fn(&str, usize) -> Result<Vec<f32>, TrainError> + 'a;

fn restore_buffer(
    device: &Device,
    name: &str,
    buffer: &mut Buffer<f32>,
    read: &Reader<'_>,
) -> Result<(), TrainError> {
    let values = read(name, buffer.len())?;
    device.write(buffer.view_mut(), &values);
    Ok(())
}

fn read_facts(path: &Path) -> Result<Value, TrainError> {
    let file = path.join(FACTS_FILE);
    let text = fs::read_to_string(&file)
        .map_err(|source| TrainError::ReadCheckpoint { path: file.clone(), source })?;
    serde_json::from_str(&text)
        .map_err(|_| TrainError::OtherCheckpoint { path: file, what: "it is not JSON".into() })
}
