//! A folder that goes away with the test, and a state whose every number follows from its name, its place and the step.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_checkpoint::{
    Attempt, Checkpoint, CheckpointError, Checkpoints, HeldPart, Keep, PartEntry, Published, Region,
    RunFacts, Saving, SavingOptions, Store, WantedPart,
};

pub(crate) struct Place(pub(crate) PathBuf);

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bedplate-checkpoint-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn checkpoints(&self, keep: usize) -> Checkpoints {
        Checkpoints::in_output(&self.0, Keep { count: keep, age: Duration::ZERO })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The number at a place of a tensor after some steps.
pub(crate) fn number(tensor: &str, row: usize, column: usize, step: u64) -> f32 {
    let seed = tensor.bytes().fold(step, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let mixed = (seed ^ (row as u64) << 32 ^ column as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    f32::from_bits((mixed >> 32) as u32 & 0x7fff_ffff)
}

/// A rank's regions of the state after some steps.
pub(crate) struct Shard {
    pub(crate) regions: Vec<Region>,
    pub(crate) step: u64,
}

impl HeldPart for Shard {
    fn read(&self, region: usize, range: Range<usize>, values: &mut [f32]) {
        let Region { tensor, rows, columns, .. } = &self.regions[region];
        let width = columns.len();
        for (place, value) in range.zip(values) {
            *value = number(tensor, rows.start + place / width, columns.start + place % width, self.step);
        }
    }
}

/// What a rank got back.
pub(crate) struct Got(pub(crate) Vec<Vec<f32>>);

impl WantedPart for Got {
    fn write(&mut self, region: usize, range: Range<usize>, values: &[f32]) {
        self.0[region][range].copy_from_slice(values);
    }
}

pub(crate) fn facts(step: u64, layout: &str) -> RunFacts {
    RunFacts { step, samples: 4 * step, layout: layout.to_owned(), ..RunFacts::default() }
}

/// Saves what one rank holds, with a pool that is much smaller than the state.
pub(crate) fn save_part(
    store: &Store,
    attempt: &Attempt,
    rank: usize,
    shard: &Shard,
) -> Result<PartEntry, CheckpointError> {
    let options = SavingOptions { pool: Some(256 << 10) };
    let mut saving = Saving::start(store, attempt, rank, shard.regions.clone(), options)?;
    saving.advance(shard);
    saving.advance(shard);
    saving.complete(shard);
    saving.wait()
}

/// Saves the state after some steps with a layout: the regions of each rank.
pub(crate) fn save(
    checkpoints: &Checkpoints,
    layout: &[Vec<Region>],
    step: u64,
) -> Result<Published, CheckpointError> {
    let attempt = checkpoints.begin(step)?;
    let others = Attempt::from_text(&attempt.to_text()).unwrap();
    let mut parts = Vec::new();
    for (rank, regions) in layout.iter().enumerate() {
        let shard = Shard { regions: regions.clone(), step };
        match save_part(checkpoints.store(), &others, rank, &shard) {
            Ok(part) => parts.push(PartEntry::from_text(&part.to_text()).unwrap()),
            Err(error) => {
                checkpoints.discard(&attempt);
                return Err(error);
            }
        }
    }
    checkpoints.publish(&attempt, parts, facts(step, &format!("{} ranks", layout.len())))
}

/// Loads with a layout and compares every bit with the state after the checkpoint's step.
pub(crate) fn check(checkpoint: &Checkpoint, layout: &[Vec<Region>]) {
    let step = checkpoint.facts().step;
    for regions in layout {
        let mut got = Got(regions.iter().map(|region| vec![f32::NAN; region.len()]).collect());
        checkpoint.load(regions, &mut got).unwrap();
        let shard = Shard { regions: regions.clone(), step };
        for (index, values) in got.0.iter().enumerate() {
            let mut expected = vec![0.0; values.len()];
            shard.read(index, 0..values.len(), &mut expected);
            let is_same = values.iter().zip(&expected).all(|(one, other)| one.to_bits() == other.to_bits());
            assert!(is_same, "{:?} of step {step}", regions[index]);
        }
    }
}

/// A state of one large and some small tensors, held by one rank.
pub(crate) fn simple(rows: usize) -> Vec<Vec<Region>> {
    let whole = |name: &str, shape| Region::whole(format!("weights/{name}"), shape);
    vec![vec![whole("table", [rows, 64]), whole("norm", [64, 1]), whole("gate", [1, 64])]]
}

pub(crate) fn newest(checkpoints: &Checkpoints) -> Checkpoint {
    checkpoints.newest_good().unwrap().expect("there is one").0
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
