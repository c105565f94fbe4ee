//! To and from other formats: Hugging Face's safetensors folders, and checkpoints of earlier releases.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::BufWriter;
use std::ops::Range;
use std::path::Path;

use bedplate_diag::Source;
use bedplate_host::{Replacement, read_regular, read_regular_text};
use bedplate_network::{
    Architecture, Block, CONFIG_FILE, INDEX_FILE, MOST_JSON_BYTES, Region, SafetensorsFile, Tensor,
    TensorFormat, TensorLayout, WEIGHTS_FILE, WeightFiles, config_with_dtype, tables,
};
use serde_json::{Map, Value, json};

use crate::{
    Checkpoint, CheckpointError, Checkpoints, HeldPart, Keep, Published, RunFacts, Saving, SavingOptions,
    Store,
};

/// How weights are written for other tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shards {
    pub format: TensorFormat,
    /// Bytes of a file at most, unless one tensor is larger.
    pub bytes: u64,
}

impl Default for Shards {
    fn default() -> Self {
        Self { format: TensorFormat::F32, bytes: 5_000_000_000 }
    }
}

const WEIGHTS: &str = "weights/";

/// Writes the weights of a checkpoint as a folder that other tools read. Gives its files.
pub fn to_hugging_face(
    checkpoint: &Checkpoint,
    folder: &Path,
    shards: Shards,
) -> Result<Vec<String>, CheckpointError> {
    let architecture = architecture_of(checkpoint)?;
    let tensors: Vec<Tensor> =
        tables(&architecture)?.into_iter().flat_map(|block: Block| block.tensors).collect();
    let groups = grouped(&tensors, shards);
    let cannot = |source| CheckpointError::Write { place: folder.display().to_string(), source };
    fs::create_dir_all(folder).map_err(cannot)?;
    let name = |index: usize| match groups.len() {
        1 => WEIGHTS_FILE.to_owned(),
        count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
    };
    let mut places = Map::new();
    for (index, group) in groups.iter().enumerate() {
        write_group(checkpoint, group, shards.format, &folder.join(name(index)))?;
        places.extend(group.iter().map(|tensor| (tensor.name.clone(), Value::from(name(index)))));
    }
    if groups.len() > 1 {
        let bytes: usize = tensors.iter().map(|tensor| bytes_of(tensor, shards.format)).sum();
        let index = json!({"metadata": {"total_size": bytes}, "weight_map": places});
        fs::write(folder.join(INDEX_FILE), format!("{index:#}\n")).map_err(cannot)?;
    }
    let config = config_with_dtype(architecture.config_json(), shards.format);
    fs::write(folder.join(CONFIG_FILE), config).map_err(cannot)?;
    Ok((0..groups.len()).map(name).collect())
}

fn architecture_of(checkpoint: &Checkpoint) -> Result<Architecture, CheckpointError> {
    let refused =
        |what: &str| CheckpointError::Unconvertible { place: checkpoint.place(), what: what.to_owned() };
    let model = checkpoint.facts().model.clone();
    let model = model.ok_or_else(|| refused("it has no configuration of a model"))?;
    let text = Value::Object(model).to_string();
    Ok(Architecture::from_config(Source::new(CONFIG_FILE, &text))?)
}

fn bytes_of(tensor: &Tensor, format: TensorFormat) -> usize {
    tensor.shape.iter().product::<usize>() * format.bytes()
}

/// Tensors in their order, cut into files.
fn grouped(tensors: &[Tensor], shards: Shards) -> Vec<Vec<&Tensor>> {
    let mut groups: Vec<Vec<&Tensor>> = vec![Vec::new()];
    let mut room = shards.bytes;
    for tensor in tensors {
        let bytes = bytes_of(tensor, shards.format) as u64;
        if bytes > room && groups.last().is_some_and(|group| !group.is_empty()) {
            groups.push(Vec::new());
            room = shards.bytes;
        }
        room = room.saturating_sub(bytes);
        groups.last_mut().expect("there is always one").push(tensor);
    }
    groups
}

/// Writes a file; it appears whole or not at all. One tensor at a time is in memory.
fn write_group(
    checkpoint: &Checkpoint,
    group: &[&Tensor],
    format: TensorFormat,
    path: &Path,
) -> Result<(), CheckpointError> {
    let declared = group.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect();
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let layout = TensorLayout::new(format, &metadata, declared);
    let (mut whole, mut trouble) = (Vec::new(), None);
    let mut read = |index: usize, range: Range<usize>, values: &mut [f32]| {
        if range.start == 0 {
            match read_stored(checkpoint, group[index]) {
                Ok(values) => whole = values,
                Err(error) => drop(trouble.get_or_insert(error)),
            }
        }
        if let Some(given) = whole.get(range) {
            values.copy_from_slice(given);
        }
    };
    let mut write = || {
        let mut file = BufWriter::with_capacity(1 << 20, Replacement::create(path)?);
        layout.write(&mut file, &mut read)?;
        file.into_inner().map_err(|error| error.into_error())
    };
    let written = write();
    match trouble {
        Some(error) => Err(error),
        None => written
            .and_then(Replacement::commit)
            .map_err(|source| CheckpointError::Write { place: path.display().to_string(), source }),
    }
}

/// A tensor as files have it.
fn read_stored(checkpoint: &Checkpoint, tensor: &Tensor) -> Result<Vec<f32>, CheckpointError> {
    let name = format!("{WEIGHTS}{}", tensor.name);
    let [rows, columns] = tensor.matrix_shape();
    if checkpoint.manifest().tensors().get(&name) != Some(&[rows, columns]) {
        let what = format!("it has no `{name}` of the size that its model has");
        return Err(CheckpointError::Unconvertible { place: checkpoint.place(), what });
    }
    let values = checkpoint.read(&name)?;
    Ok((0..values.len()).map(|place| values[tensor.place_in_matrix(place)]).collect())
}

/// Makes a checkpoint of a folder's weights: step 0, without moments.
pub fn from_hugging_face(folder: &Path, checkpoint: &Path) -> Result<Published, CheckpointError> {
    let path = folder.join(CONFIG_FILE);
    let text = read_regular_text(&path, MOST_JSON_BYTES)
        .map_err(|source| CheckpointError::Read { place: path.display().to_string(), source })?;
    let architecture = Architecture::from_config(Source::new(&path.to_string_lossy(), &text))?;
    let files = WeightFiles::open(folder, architecture.transformer.family)?;
    let tensors: Vec<Tensor> = tables(&architecture)?.into_iter().flat_map(|block| block.tensors).collect();
    let regions: Vec<Region> = tensors
        .iter()
        .map(|tensor| Region::whole(format!("{WEIGHTS}{}", tensor.name), tensor.matrix_shape()))
        .collect();
    // What is stored is plain, whatever format the files have.
    let model = serde_json::from_str(architecture.config_json()).ok();
    let facts = RunFacts { layout: "converted".into(), model, ..RunFacts::default() };
    let read = |index: usize| files.read(&tensors[index]).map_err(CheckpointError::from);
    write_alone(checkpoint, regions, facts, &read)
}

/// Rewrites a checkpoint of an earlier release: one file with a flat buffer for each block.
pub fn from_old(folder: &Path, checkpoint: &Path) -> Result<Published, CheckpointError> {
    let place = folder.display().to_string();
    let refused = |what: &str| CheckpointError::Unconvertible { place: place.clone(), what: what.to_owned() };
    let path = folder.join("state.json");
    let text = read_regular(&path, MOST_JSON_BYTES)
        .map_err(|source| CheckpointError::reading(&place, "state.json", source))?;
    let facts: Value = serde_json::from_slice(&text).map_err(|_| refused("state.json is not JSON"))?;
    let settings = facts["settings"].as_object().ok_or_else(|| refused("its settings are not recorded"))?;
    if settings.contains_key("adapter.rank") {
        return Err(refused("it holds adapters, which earlier releases stored without names"));
    }
    let key = |(key, value): (&String, &Value)| {
        Some((key.strip_prefix("model.config: ")?.to_owned(), value.clone()))
    };
    let model: Map<String, Value> = settings.iter().filter_map(key).collect();
    let config = Value::Object(model.clone()).to_string();
    let architecture = Architecture::from_config(Source::new(CONFIG_FILE, &config))?;
    let file = SafetensorsFile::open(&folder.join("state.safetensors"))?;
    let (mut regions, mut places) = (Vec::new(), Vec::new());
    for part in ["weights", "first", "second"] {
        for (index, block) in tables(&architecture)?.iter().enumerate() {
            for (region, range) in block.regions(0..block.len) {
                let tensor = format!("{part}/{}", region.tensor);
                regions.push(Region { tensor, ..region });
                places.push((format!("{part}.{index}"), range));
            }
        }
    }
    let number = |key: &str| facts[key].as_u64().ok_or_else(|| refused("state.json has no step or samples"));
    let facts = RunFacts {
        step: number("step")?,
        samples: number("samples")?,
        layout: "dp1".into(),
        settings: settings.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
        model: Some(model),
    };
    let read = |index: usize| {
        let (name, range) = &places[index];
        let values = file.read(name)?.filter(|values| values.len() >= range.end);
        Ok(values.ok_or_else(|| refused(&format!("it has no `{name}` of the right size")))?[range.clone()]
            .to_vec())
    };
    write_alone(checkpoint, regions, facts, &read)
}

type Read<'a> = dyn Fn(usize) -> Result<Vec<f32>, CheckpointError> + 'a;

/// Writes regions that are read one at a time as a checkpoint of a given path.
fn write_alone(
    path: &Path,
    regions: Vec<Region>,
    facts: RunFacts,
    read: &Read<'_>,
) -> Result<Published, CheckpointError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let cannot = |kind: std::io::ErrorKind| CheckpointError::Write {
        place: path.display().to_string(),
        source: kind.into(),
    };
    if path.exists() || name.is_empty() {
        return Err(cannot(std::io::ErrorKind::AlreadyExists));
    }
    let keep = Keep { count: usize::MAX, age: std::time::Duration::ZERO };
    let checkpoints = Checkpoints::new(parent, Store::folder(parent), keep);
    let attempt = checkpoints.begin_beside(facts.step)?;
    let one = One { read, now: RefCell::new((usize::MAX, Ok(Vec::new()))) };
    let mut saving = Saving::start(checkpoints.store(), &attempt, 0, regions, SavingOptions::default())?;
    saving.complete(&one);
    let part = saving.wait();
    match (one.now.into_inner().1, part) {
        (Ok(_), Ok(part)) => checkpoints.publish_as(&name, &attempt, vec![part], facts),
        (Err(error), _) | (_, Err(error)) => {
            checkpoints.discard(&attempt);
            Err(error)
        }
    }
}

/// A state of which one region at a time is in memory. The first error stays.
struct One<'a> {
    read: &'a Read<'a>,
    now: RefCell<(usize, Result<Vec<f32>, CheckpointError>)>,
}

impl HeldPart for One<'_> {
    fn read(&self, region: usize, range: Range<usize>, values: &mut [f32]) {
        let mut now = self.now.borrow_mut();
        if now.1.is_ok() && now.0 != region {
            *now = (region, (self.read)(region));
        }
        if let Some(given) = now.1.as_ref().ok().and_then(|whole| whole.get(range)) {
            values.copy_from_slice(given);
        }
    }
}

/// What a folder holds, by its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderKind {
    Checkpoint,
    Old,
    HuggingFace,
}

impl FolderKind {
    pub fn of(folder: &Path) -> Option<Self> {
        let has = |file: &str| folder.join(file).exists();
        if has("state.safetensors") && has("state.json") {
            return Some(FolderKind::Old);
        }
        if has("manifest.json") {
            return Some(FolderKind::Checkpoint);
        }
        ((has(WEIGHTS_FILE) || has(INDEX_FILE)) && has(CONFIG_FILE)).then_some(FolderKind::HuggingFace)
    }
}
