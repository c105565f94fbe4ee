//! How a run begins in a world: the layout, the data, the network, and the state to start from.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate_checkpoint::{Checkpoint, CheckpointError, Checkpoints, Published};
use bedplate_comm::World;
use bedplate_host::{FolderLock, open_regular, replace_file};
use bedplate_kernels::Device;
use bedplate_serve::FreeMemory;
use bedplate_transformer::FlopsConvention;
use serde_json::{Value, json};

use super::shapes::Shapes;
use super::{Past, Resume, Run, RunOptions};
use crate::checkpoint::{self, CurveSettings, METRICS_FILE, MODEL_FOLDER};
use crate::config::SETTINGS_FILE;
use crate::memory;
use crate::output_lock;
use crate::ranks::RunRanks;
use crate::recovered_state::RecoveredState;
use crate::setup::{Data, read_architecture};
use crate::trained::Trained;
use crate::trainer::{First, Trainer};
use crate::{Membership, Precision, TrainConfig, TrainError};

const NO_FP8: &str = "this device has no products of fp8 (Hopper has, with cuBLASLt 12.9 or later): a processor imitates them and is \
                      slower than with bf16, another GPU multiplies in bf16";

/// What the first rank has found out about where to begin.
struct Beginning {
    checkpoint: Option<Checkpoint>,
    remarks: Vec<String>,
}

/// What became of the checkpoint that a run begins from.
#[derive(Default)]
struct Resumed {
    newest: Option<Published>,
    abandoned: Option<PathBuf>,
    is_taken_over: bool,
    remarks: Vec<String>,
}

/// The place of this rank in a world, by the layout that its ranks make. The first says where the next world would gather.
pub(super) fn meet(
    world: &World,
    config: &TrainConfig,
    options: &RunOptions<'_>,
    shapes: &Shapes<'_>,
) -> Result<RunRanks, TrainError> {
    let layout = match world.epoch() {
        0 => shapes.first(world.size())?,
        _ => shapes.on(world.size()).expect("ranks regroup as whole replicas"),
    };
    if let (Some(membership), 0) = (&options.membership, world.rank()) {
        let path = config.output.folder.clone();
        let point = world.next_meeting_point();
        membership.meet_at(point).map_err(|source| TrainError::WriteOutput { path, source })?;
    }
    let copying = options.membership.as_ref().filter(|_| config.training.copy_every > 0);
    RunRanks::among(world, layout, shapes.has_tied_ends(), copying.map(Membership::node))
}

impl<'a, E: Trained> Run<'a, E> {
    pub(super) fn prepare(
        ranks: Arc<RunRanks>,
        config: &'a TrainConfig,
        options: &'a RunOptions<'a>,
        shapes: &'a Shapes<'a>,
        past: &mut Past,
    ) -> Result<Self, TrainError> {
        let architecture = read_architecture(&config.model.config)?;
        let model = architecture.transformer.clone();
        let device = past.open_device(config, ranks.world(), threads(config.training.threads, &ranks))?;
        ranks.meet(&device)?;
        let free = options.free_memory.map(FreeMemory::of_host).or_else(|| FreeMemory::on(&device));
        // The ranks of a machine share its memory; every GPU has its own.
        let sharing = if device.is_cpu() { ranks.on_this_host() } else { 1 };
        let free = free.map(|memory| FreeMemory { free: memory.free / sharing as f64, ..memory });
        let logits = bedplate_network::logits_on(&device);
        // Ranks that go on have most of what they need already.
        let is_new = past.recovered.holdings.is_empty();
        if is_new {
            memory::check_shape(&model, config, &ranks, free, logits)?;
        }
        let data = Data::open(config, model.vocab)?;
        let flops = model.flops_per_token(config.data.sequence as u64, FlopsConvention::default());
        let whole = bedplate_network::tables(&architecture)?;
        let parameters = whole.iter().flat_map(|block| &block.tensors).map(|tensor| tensor.range.len()).sum();
        let network = ranks.network(&device, architecture, config.data.sequence)?;
        let mut remarks = network.remarks();
        if config.training.precision == Precision::Fp8 && !device.has_fp8() {
            remarks.push(NO_FP8.to_owned());
        }
        if is_new {
            memory::check(&network, config, &ranks, free, logits)?;
        }
        let mut fresh = [f64::from(u8::from(past.is_fresh))];
        ranks.sum_over_all(&device, &mut fresh)?;
        let is_anew = fresh == [0.0];
        if ranks.is_first() && past.lock.is_none() {
            past.lock = take_lock(config, ranks.world().is_some_and(|world| world.epoch() > 0))?;
        }
        let checkpoints = checkpoint::checkpoints(config)?;
        let first = if is_anew { First::Nothing } else { First::Weights };
        let mut trainer = Trainer::with(Arc::clone(&ranks), network, device, config.clone(), first)?;
        let weights = match &config.model.weights {
            Some(path) if ranks.is_first() => Some(fingerprint(path)?),
            _ => None,
        };
        let settings = CurveSettings::of(config, trainer.network.architecture(), &data, weights);
        let mut resumed = Resumed { newest: past.newest.take(), ..Resumed::default() };
        let begun = match is_anew {
            true => trainer.take_over(&mut past.recovered),
            false => {
                past.recovered = RecoveredState::default();
                resume(&mut trainer, &checkpoints, config, options, &settings).map(|found| resumed = found)
            }
        };
        let copied = begun.and_then(|()| match &options.membership {
            Some(_) => Ok(trainer.keep_copies_after(&mut past.recovered, config.training.copy_every)?),
            None => Ok(()),
        });
        if let Err(error) = copied {
            trainer.give_back(&mut past.recovered);
            return Err(error);
        }
        trainer.begin_first_copy();
        if ranks.is_first() && !is_anew {
            keep_settings(config)?;
        }
        if is_anew && ranks.is_first() && resumed.newest.is_none() {
            resumed.newest = newest_here(&checkpoints)?;
        }
        remarks.extend(resumed.remarks);
        if let Some(first) = trainer.unused.first() {
            let count = trainer.unused.len();
            remarks.push(format!(
                "the model does not use {count} tensors of the given weights, first `{first}`"
            ));
        }
        let aside = resumed.abandoned.iter();
        remarks.extend(aside.map(|to| format!("what came after it is now in {}", to.display())));
        past.is_fresh = false;
        Ok(Self {
            config,
            options,
            shapes,
            data,
            trainer,
            older: is_anew.then(|| std::mem::take(&mut past.recovered)),
            is_anew,
            checkpoints,
            settings,
            parameters,
            flops_per_token: flops.training().get(),
            newest: resumed.newest,
            remarks,
            abandoned: resumed.abandoned,
            is_taken_over: resumed.is_taken_over,
            loss: None,
            evaluation_loss: None,
            told: past.told,
            last: past.last.take(),
            lock: past.lock.take(),
        })
    }
}

/// Leaves the configuration where the run writes: `bedplate train --resume FOLDER` needs nothing else.
fn keep_settings(config: &TrainConfig) -> Result<(), TrainError> {
    let path = config.output.folder.join(SETTINGS_FILE);
    replace_file(&path, config.rooted().to_toml().as_bytes())
        .map_err(|source| TrainError::WriteOutput { path, source })
}

/// The newest checkpoint of this run, for a rank that has become the first.
fn newest_here(checkpoints: &Checkpoints) -> Result<Option<Published>, TrainError> {
    let newest = checkpoints.list()?.into_iter().rev().find_map(|listed| listed.opened.ok());
    Ok(newest.map(|checkpoint| checkpoint.published()))
}

fn take_lock(config: &TrainConfig, is_anew: bool) -> Result<Option<FolderLock>, TrainError> {
    match output_lock::take(&config.output.folder) {
        // Its holder was first before and stands still; it cannot publish anything without the others.
        Err(TrainError::FolderLocked { .. }) if is_anew => Ok(None),
        taken => taken.map(Some),
    }
}

impl Past {
    /// Every rank has a GPU of its own or all compute on the processor. What a rank has begun on it stays on, also as the last one that is left.
    pub(super) fn open_device(
        &mut self,
        config: &TrainConfig,
        world: Option<&World>,
        threads: usize,
    ) -> Result<Device, TrainError> {
        let choice = config.training.device;
        let chosen = match world {
            Some(world) => world.choose_device(choice, self.device)?,
            None => choice,
        };
        self.device = Some(chosen);
        Ok(chosen.open(threads)?)
    }
}

fn threads(asked: usize, ranks: &RunRanks) -> usize {
    if asked > 0 {
        return asked;
    }
    let all = std::thread::available_parallelism().map_or(1, |count| count.get());
    (all / ranks.on_this_host()).max(1)
}

/// Finds where to begin and puts the state in place. The first rank decides.
fn resume<E: Trained>(
    trainer: &mut Trainer<E>,
    checkpoints: &Checkpoints,
    config: &TrainConfig,
    options: &RunOptions<'_>,
    settings: &CurveSettings,
) -> Result<Resumed, TrainError> {
    let is_first = trainer.ranks.is_first();
    let found = is_first.then(|| starting_point(checkpoints, config, options, settings)).transpose();
    let told = match &found {
        Ok(Some(Beginning { checkpoint, .. })) => {
            let taken_over = checkpoint.as_ref().map(|checkpoint| !checkpoints.holds(checkpoint));
            json!({"place": checkpoint.as_ref().map(Checkpoint::place), "is_taken_over": taken_over})
        }
        _ => Value::Null,
    };
    let told = trainer.ranks.broadcast(&trainer.device, told.to_string().into_bytes())?;
    let told: Value = serde_json::from_slice(&told).unwrap_or_default();
    let found = found?;
    if told.is_null() {
        return Err(TrainError::Elsewhere { rank: 0 });
    }
    let mut resumed = Resumed::default();
    let checkpoint = match found {
        Some(Beginning { checkpoint, remarks }) => {
            resumed.remarks = remarks;
            checkpoint
        }
        None => told["place"].as_str().map(Checkpoint::open).transpose()?,
    };
    let Some(checkpoint) = checkpoint else { return Ok(resumed) };
    trainer.restore(&checkpoint)?;
    resumed.is_taken_over = told["is_taken_over"] == true;
    let output = &config.output.folder;
    let (model, metrics) = (output.join(MODEL_FOLDER), output.join(METRICS_FILE));
    // Records move with the telemetry that writes them; here they only count as something that is left.
    let along = [model.as_path(), metrics.as_path()];
    if resumed.is_taken_over {
        trainer.begin_snapshot(checkpoints, settings)?;
        let published = trainer.publish_snapshot(checkpoints, true, |attempt, parts, facts| {
            checkpoints.publish_taken_over(attempt, parts, facts, &along)
        })?;
        (resumed.newest, resumed.abandoned) =
            published.map_or((None, None), |(newest, aside)| (Some(newest), aside));
    } else if is_first {
        let own = checkpoint.published();
        resumed.abandoned = checkpoints.branch_off(&own, false, &along)?;
        resumed.newest = Some(own);
    }
    Ok(resumed)
}

/// The checkpoint to start from, and what is to be said about newer ones and changed settings; an error when the folder holds a
/// run that is not to be resumed.
fn starting_point(
    checkpoints: &Checkpoints,
    config: &TrainConfig,
    options: &RunOptions<'_>,
    settings: &CurveSettings,
) -> Result<Beginning, TrainError> {
    let folder = || config.output.folder.clone();
    let (checkpoint, mut remarks) = match &options.resume {
        Resume::No => match checkpoints.newest_step()? {
            Some(step) => return Err(TrainError::FolderInUse { folder: folder(), step }),
            None => (None, Vec::new()),
        },
        Resume::From(named) => match checkpoints.named(named) {
            Err(CheckpointError::Nothing { .. }) => {
                return Err(TrainError::NothingToResume { folder: named.clone() });
            }
            named => (Some(named?), Vec::new()),
        },
        resume @ (Resume::IfPossible | Resume::Newest) => match checkpoints.newest_good()? {
            Some((newest, flaws)) => (Some(newest), flaws),
            None if *resume == Resume::Newest => {
                return Err(TrainError::NothingToResume { folder: folder() });
            }
            None => (None, Vec::new()),
        },
    };
    if let Some(checkpoint) = &checkpoint {
        remarks.extend(changes(checkpoint, settings, options.accepts_changes)?);
    }
    Ok(Beginning { checkpoint, remarks })
}

/// Remarks on settings that have changed since a checkpoint; an error unless they are accepted.
fn changes(
    checkpoint: &Checkpoint,
    settings: &CurveSettings,
    is_accepted: bool,
) -> Result<Vec<String>, TrainError> {
    let changes = checkpoint::changes(checkpoint.facts(), settings);
    if changes.is_empty() || is_accepted {
        return Ok(changes.iter().map(|change| format!("changed and accepted: {change}")).collect());
    }
    Err(TrainError::ChangedSettings { path: checkpoint.published().path, changes })
}

/// A checksum of the files of given weights, whatever their names.
fn fingerprint(path: &Path) -> Result<u32, TrainError> {
    let cannot = |source| TrainError::ReadModel { path: path.to_owned(), source };
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        let entries = fs::read_dir(path).map_err(cannot)?.flatten().map(|entry| entry.path());
        files = entries.filter(|file| file.extension().is_some_and(|end| end == "safetensors")).collect();
        files.sort();
    }
    let (mut sum, mut buffer) = (crc32fast::Hasher::new(), vec![0; 1 << 20]);
    for file in files {
        let mut file = open_regular(&file).map_err(cannot)?;
        loop {
            match file.read(&mut buffer).map_err(cannot)? {
                0 => break,
                count => sum.update(&buffer[..count]),
            }
        }
    }
    Ok(sum.finalize())
}
