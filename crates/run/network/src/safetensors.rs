//! Weights in Hugging Face's safetensors files, to and from a network.
//!
//! A file is the length of its header (eight bytes), a JSON header that gives each tensor's format, shape and bytes, and
//! the bytes. Large models are several files with an index. A header is checked against its file before any tensor is read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bedplate_host::{Replacement, open_regular, read_regular_text};
use bedplate_kernels::{Bf16, Device, Element, View, ViewMut};
use half::f16;
use serde_json::{Map, Value, json};

use crate::names::TensorNames;
use crate::quantised::{self, BYTES, E4M3};
use crate::table::{Storage, Tensor};
use crate::{Network, NetworkError, Weights};

/// A header longer than this is refused, as the reference implementation does.
const LONGEST_HEADER: u64 = 100_000_000;

/// The largest index or configuration beside weights: of DeepSeek V3 with its 91,991 tensors the index has 9 MB.
pub const MOST_JSON_BYTES: u64 = 128 << 20;

pub const WEIGHTS_FILE: &str = "model.safetensors";
pub const INDEX_FILE: &str = "model.safetensors.index.json";
pub const CONFIG_FILE: &str = "config.json";

/// An open file whose header has been checked.
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    file: File,
    tensors: BTreeMap<String, StoredTensor>,
    metadata: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor {
    /// As the file names it. Only numbers in a [`TensorFormat`] can be read.
    pub dtype: String,
    pub shape: Vec<usize>,
    /// From the start of the file.
    start: u64,
    bytes: usize,
}

/// The number formats that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorFormat {
    F32,
    Bf16,
    F16,
}

impl TensorFormat {
    const ALL: [TensorFormat; 3] = [TensorFormat::F32, TensorFormat::Bf16, TensorFormat::F16];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            TensorFormat::F32 => "F32",
            TensorFormat::Bf16 => "BF16",
            TensorFormat::F16 => "F16",
        }
    }

    pub fn bytes(self) -> usize {
        if self == TensorFormat::F32 { 4 } else { 2 }
    }
}

impl SafetensorsFile {
    pub fn open(path: &Path) -> Result<Self, NetworkError> {
        let cannot = |source| NetworkError::ReadWeights { path: path.to_owned(), source };
        let mut file = open_regular(path).map_err(cannot)?;
        let size = file.metadata().map_err(cannot)?.len();
        let broken = |what: String| NetworkError::BrokenWeights { path: path.to_owned(), what };
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(|_| broken("it is shorter than eight bytes".into()))?;
        let length = u64::from_le_bytes(length);
        if length > LONGEST_HEADER || length + 8 > size {
            return Err(broken(format!("its header is said to have {length} bytes, the file has {size}")));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(cannot)?;
        let (tensors, metadata) = read_header(&header, 8 + length, size).map_err(broken)?;
        Ok(Self { path: path.to_owned(), file, tensors, metadata })
    }

    /// Reads a header alone, as that of a file whose tensors have `bytes` bytes.
    pub fn check_header(header: &[u8], bytes: u64) -> Result<BTreeMap<String, StoredTensor>, NetworkError> {
        let broken = |what| NetworkError::BrokenWeights { path: "the header".into(), what };
        Ok(read_header(header, 0, bytes).map_err(broken)?.0)
    }

    pub fn tensors(&self) -> &BTreeMap<String, StoredTensor> {
        &self.tensors
    }

    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The numbers of a tensor; `None` when there is none of that name.
    pub fn read(&self, name: &str) -> Result<Option<Vec<f32>>, NetworkError> {
        let Some(tensor) = self.tensors.get(name) else { return Ok(None) };
        let mut values = vec![0.0; tensor.bytes / self.format(name, tensor)?.bytes()];
        self.read_pieces(name, &mut |range, piece| values[range].copy_from_slice(piece))?;
        Ok(Some(values))
    }

    /// Hands over the numbers of a tensor piece by piece, so that it need not be in memory as a whole. Gives how many there are;
    /// `None` when there is no tensor of that name.
    pub fn read_pieces(
        &self,
        name: &str,
        take: &mut dyn FnMut(Range<usize>, &[f32]),
    ) -> Result<Option<usize>, NetworkError> {
        let Some(tensor) = self.tensors.get(name) else { return Ok(None) };
        let format = self.format(name, tensor)?;
        let size = format.bytes();
        let len = tensor.bytes / size;
        let (mut bytes, mut values) = (vec![0; len.min(PIECE) * size], vec![0.0; len.min(PIECE)]);
        for range in pieces(len) {
            let bytes = &mut bytes[..range.len() * size];
            let cannot = |source| NetworkError::ReadWeights { path: self.path.clone(), source };
            self.file.read_exact_at(bytes, tensor.start + (range.start * size) as u64).map_err(cannot)?;
            let values = &mut values[..range.len()];
            decode(format, bytes, values);
            take(range, values);
        }
        Ok(Some(len))
    }

    /// The bytes of a tensor.
    fn read_bytes(&self, tensor: &StoredTensor) -> Result<Vec<u8>, NetworkError> {
        let mut bytes = vec![0; tensor.bytes];
        let cannot = |source| NetworkError::ReadWeights { path: self.path.clone(), source };
        self.file.read_exact_at(&mut bytes, tensor.start).map_err(cannot)?;
        Ok(bytes)
    }

    /// An odd format matters only where the tensor is read.
    fn format(&self, name: &str, tensor: &StoredTensor) -> Result<TensorFormat, NetworkError> {
        TensorFormat::named(&tensor.dtype).ok_or_else(|| NetworkError::BrokenWeights {
            path: self.path.clone(),
            what: format!("tensor `{name}`: its format {} is none of F32, BF16, F16", tensor.dtype),
        })
    }
}

/// Numbers that are on their way between a file and a device at once.
const PIECE: usize = 1 << 18;

fn pieces(len: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(PIECE).map(move |start| start..len.min(start + PIECE))
}

fn decode(format: TensorFormat, bytes: &[u8], values: &mut [f32]) {
    let halves = bytes.as_chunks::<2>().0.iter().map(|half| u16::from_le_bytes(*half));
    match format {
        TensorFormat::F32 => {
            let words = bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word));
            values.iter_mut().zip(words).for_each(|(value, word)| *value = word);
        }
        TensorFormat::Bf16 => {
            values.iter_mut().zip(halves).for_each(|(value, half)| *value = Bf16::from_bits(half).to_f32());
        }
        TensorFormat::F16 => {
            values.iter_mut().zip(halves).for_each(|(value, half)| *value = f16::from_bits(half).to_f32());
        }
    }
}

fn encode(format: TensorFormat, values: &[f32], bytes: &mut Vec<u8>) {
    bytes.clear();
    match format {
        TensorFormat::F32 => bytes.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        TensorFormat::Bf16 => {
            bytes.extend(values.iter().flat_map(|value| Bf16::from_f32(*value).to_bits().to_le_bytes()));
        }
        TensorFormat::F16 => {
            bytes.extend(values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()))
        }
    }
}

type Header = (BTreeMap<String, StoredTensor>, BTreeMap<String, String>);

/// Reads a header; `data` is where the bytes of tensors begin, `size` that of the file.
fn read_header(header: &[u8], data: u64, size: u64) -> Result<Header, String> {
    let value: Value =
        serde_json::from_slice(header).map_err(|error| format!("its header is not JSON: {error}"))?;
    let Value::Object(entries) = value else { return Err("its header is not a JSON object".into()) };
    let mut tensors = BTreeMap::new();
    let mut metadata = BTreeMap::new();
    for (name, entry) in entries {
        if name == "__metadata__" {
            let texts = entry.as_object().into_iter().flatten();
            metadata.extend(texts.filter_map(|(key, text)| Some((key.clone(), text.as_str()?.to_owned()))));
        } else {
            let tensor = read_entry(&entry, data, size).map_err(|what| format!("tensor `{name}`: {what}"))?;
            tensors.insert(name, tensor);
        }
    }
    Ok((tensors, metadata))
}

fn read_entry(entry: &Value, data: u64, size: u64) -> Result<StoredTensor, String> {
    let dtype = entry.get("dtype").and_then(Value::as_str).ok_or("it has no `dtype`")?;
    let numbers =
        |key: &str| -> Option<Vec<u64>> { entry.get(key)?.as_array()?.iter().map(Value::as_u64).collect() };
    let shape = numbers("shape").ok_or("its `shape` is not a list of sizes")?;
    let Some([begin, end]) = numbers("data_offsets").and_then(|offsets| <[u64; 2]>::try_from(offsets).ok())
    else {
        return Err("its `data_offsets` are not two numbers".into());
    };
    let count = shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size));
    let count = count.ok_or("its shape is absurd")?;
    // Of a format that is not read the size of a number is not known.
    let bytes = match TensorFormat::named(dtype) {
        Some(format) => Some(format.bytes()),
        None => [E4M3, BYTES].contains(&dtype).then_some(1),
    };
    let expected = match bytes {
        Some(bytes) => Some(count.checked_mul(bytes as u64).ok_or("its shape is absurd")?),
        None => None,
    };
    if begin > end || expected.is_some_and(|bytes| end - begin != bytes) || end > size - data {
        return Err(format!("its bytes {begin}..{end} do not fit its shape {shape:?} or the file"));
    }
    let shape = shape.into_iter().map(|size| size as usize).collect();
    Ok(StoredTensor { dtype: dtype.to_owned(), shape, start: data + begin, bytes: (end - begin) as usize })
}

/// What was read, beside the weights themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadedWeights {
    /// Tensors of the files that the network does not use.
    pub unused: Vec<String>,
}

/// The files of a network's weights, whose tensors are all there.
pub(crate) struct Loader {
    path: PathBuf,
    files: Vec<SafetensorsFile>,
    prefix: &'static str,
}

impl Loader {
    /// Opens a file, or a folder with `model.safetensors` or an index of several files.
    pub(crate) fn open(network: &Network, path: &Path) -> Result<Self, NetworkError> {
        Self::with_blocks(network, path, |_| true)
    }

    /// As [`Loader::open`], for some of the blocks.
    fn with_blocks(
        network: &Network,
        path: &Path,
        is_wanted: impl Fn(usize) -> bool,
    ) -> Result<Self, NetworkError> {
        let files =
            files_of(path)?.iter().map(|file| SafetensorsFile::open(file)).collect::<Result<Vec<_>, _>>()?;
        let prefix = TensorNames::of(network.architecture().transformer.family).optional_prefix();
        let loader = Self { path: path.to_owned(), files, prefix };
        let blocks = network.blocks().iter().enumerate();
        let wanted = blocks.filter(|(index, _)| is_wanted(*index)).flat_map(|(_, block)| &block.tensors);
        let mut missing: Vec<&Tensor> = Vec::new();
        for tensor in wanted {
            match loader.find(&tensor.name) {
                Some((file, name)) => check_shape(file, name, tensor)?,
                None if packed_parts(&loader.files, &tensor.name).is_some() => {}
                None => missing.push(tensor),
            }
        }
        match missing.first() {
            None => Ok(loader),
            Some(first) => Err(NetworkError::MissingTensors {
                path: loader.path,
                first: first.name.clone(),
                count: missing.len(),
            }),
        }
    }

    /// The file of a tensor, and its name there.
    fn find<'a>(&'a self, name: &'a str) -> Option<(&'a SafetensorsFile, &'a str)> {
        let named = |wanted: &'a str| {
            self.files.iter().find(|file| file.tensors.contains_key(wanted)).map(|file| (file, wanted))
        };
        named(name).or_else(|| named(name.strip_prefix(self.prefix)?))
    }

    /// Reads the tensors of a block into its numbers.
    pub(crate) fn read_block<E: Element>(
        &self,
        network: &Network,
        device: &Device,
        index: usize,
        mut numbers: ViewMut<'_, E>,
    ) -> Result<(), NetworkError> {
        for tensor in &network.blocks()[index].tensors {
            let whole = match (self.find(&tensor.name), packed_parts(&self.files, &tensor.name)) {
                (Some((file, name)), _) => read_tensor(&self.files, file, name, tensor)?,
                (None, Some(parts)) => read_packed(parts, tensor)?,
                (None, None) => continue,
            };
            // Runs of neighbours convert many times faster than numbers one by one.
            let mut values: Vec<E> = Vec::with_capacity(tensor.range.len());
            tensor.runs().for_each(|run| values.extend(whole[run].iter().map(|number| E::narrow(*number))));
            device.write(numbers.reborrow().range(tensor.range.clone()), &values);
        }
        Ok(())
    }

    /// The names in the files that the network has no use for.
    pub(crate) fn unused(&self, network: &Network) -> Result<Vec<String>, NetworkError> {
        let mut used = BTreeSet::new();
        if network.architecture().transformer.has_tied_embeddings {
            used.extend(self.repeated_head(network)?);
        }
        for block in network.blocks() {
            used.extend(block.tensors.iter().flat_map(|tensor| quantised::packed_names(&tensor.name)));
            let names = block.tensors.iter().map(|tensor| &tensor.name).chain(&block.elsewhere);
            for (file, name) in names.filter_map(|name| self.find(name)) {
                used.insert(name.to_owned());
                if file.tensors[name].dtype == E4M3 {
                    let beside = quantised::SCALES.iter().chain(&quantised::ACTIVATION_SCALES);
                    used.extend(beside.filter_map(|part| quantised::beside(name, part)));
                }
            }
        }
        let model = &network.architecture().transformer;
        let predicting = TensorNames::of(model.family).layers_behind(model);
        let is_skipped = |name: &str| predicting.iter().any(|layer| name.starts_with(layer));
        let all = self.files.iter().flat_map(|file| file.tensors.keys());
        Ok(all.filter(|name| !used.contains(*name) && !is_skipped(name)).cloned().collect())
    }

    /// The head's name where the files hold it beside the embedding that serves as it. An error where the two differ: which of them is
    /// meant, the files do not say.
    fn repeated_head(&self, network: &Network) -> Result<Option<String>, NetworkError> {
        let names = TensorNames::of(network.architecture().transformer.family);
        let (head, embedding) = (names.head(), names.embedding());
        let (Some((file, head)), Some((other, embedding))) = (self.find(&head), self.find(&embedding)) else {
            return Ok(None);
        };
        let is_same = file.tensors[head].shape == other.tensors[embedding].shape
            && file.read(head)? == other.read(embedding)?;
        let head = head.to_owned();
        if is_same {
            Ok(Some(head))
        } else {
            Err(NetworkError::DistinctHead { path: self.path.clone(), head })
        }
    }
}

/// Reads weights from a file, or from a folder with `model.safetensors` or an index of several files. Of a network that is cut
/// over ranks or stages, only what is here is kept.
pub fn load<E: Element>(
    network: &Network,
    device: &Device,
    path: &Path,
    weights: &mut Weights<E>,
) -> Result<LoadedWeights, NetworkError> {
    let loader = Loader::with_blocks(network, path, |index| weights.has_block(index))?;
    let unused = loader.unused(network)?;
    for index in 0..network.blocks().len() {
        if weights.has_block(index) {
            loader.read_block(network, device, index, weights.block_mut(index))?;
        }
    }
    Ok(LoadedWeights { unused })
}

pub(crate) fn files_of(path: &Path) -> Result<Vec<PathBuf>, NetworkError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let index = path.join(INDEX_FILE);
    if !index.exists() {
        return Ok(vec![path.join(WEIGHTS_FILE)]);
    }
    let text = read_regular_text(&index, MOST_JSON_BYTES)
        .map_err(|source| NetworkError::ReadWeights { path: index.clone(), source })?;
    let broken = |what: &str| NetworkError::BrokenWeights { path: index.clone(), what: what.to_owned() };
    let value: Value = serde_json::from_str(&text).map_err(|_| broken("it is not JSON"))?;
    let map =
        value.get("weight_map").and_then(Value::as_object).ok_or_else(|| broken("it has no `weight_map`"))?;
    let mut names: Vec<&str> = map.values().filter_map(Value::as_str).collect();
    names.sort_unstable();
    names.dedup();
    if let Some(stray) = names.iter().find(|name| name.contains('/') || name.contains("..")) {
        return Err(broken(&format!("it names `{stray}`, which is outside its folder")));
    }
    Ok(names.into_iter().map(|name| path.join(name)).collect())
}

/// A tensor of another shape is not read: a file with holes can claim any number of bytes.
fn check_shape(file: &SafetensorsFile, name: &str, tensor: &Tensor) -> Result<(), NetworkError> {
    let stored = &file.tensors[name];
    if stored.shape == tensor.shape {
        return Ok(());
    }
    Err(NetworkError::WrongShape {
        path: file.path.clone(),
        tensor: name.to_owned(),
        expected: tensor.shape.clone(),
        found: stored.shape.clone(),
    })
}

/// The numbers of a tensor of one of some files; those of 8 bits times their scales.
pub(crate) fn read_tensor(
    files: &[SafetensorsFile],
    file: &SafetensorsFile,
    name: &str,
    tensor: &Tensor,
) -> Result<Vec<f32>, NetworkError> {
    check_shape(file, name, tensor)?;
    let is_quantised = file.tensors[name].dtype == E4M3;
    let values = if is_quantised { read_quantised(files, file, name)? } else { file.read(name)? };
    let values = values.expect("the tensor is in this file");
    check_finite(file, name, &values)?;
    Ok(tensor.matrix_of(values))
}

fn check_finite(file: &SafetensorsFile, name: &str, values: &[f32]) -> Result<(), NetworkError> {
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(place) => Err(NetworkError::NotFinite {
            path: file.path.clone(),
            tensor: name.to_owned(),
            place,
            value: values[place],
        }),
    }
}

/// A tensor of a file, by its name there.
type Named<'a> = (&'a SafetensorsFile, String);

/// The blocks of 4 bits and the scales that stand for a tensor.
pub(crate) fn packed_parts<'a>(files: &'a [SafetensorsFile], name: &str) -> Option<[Named<'a>; 2]> {
    let find = |name: String| {
        let file = files.iter().find(|file| file.tensors.contains_key(&name))?;
        Some((file, name))
    };
    let [blocks, scales] = quantised::packed_names(name);
    Some([find(blocks)?, find(scales)?])
}

/// Experts of 4 bits as what they stand for, as a matrix of outputs by inputs.
pub(crate) fn read_packed(parts: [Named<'_>; 2], tensor: &Tensor) -> Result<Vec<f32>, NetworkError> {
    let [(file, name), (of, scales)] = parts;
    let (blocks, stored) = (&file.tensors[&name], &of.tensors[&scales]);
    let broken = |what: String| NetworkError::BrokenWeights {
        path: file.path.clone(),
        what: format!("tensor `{name}`: {what}"),
    };
    let Storage::Experts { inputs, outputs, .. } = tensor.storage else {
        return Err(broken("it has 4 bits, and only experts that are in one tensor are read so".to_owned()));
    };
    let groups = vec![tensor.shape[0], outputs, inputs.div_ceil(quantised::GROUP)];
    let bytes = [groups.clone(), vec![quantised::GROUP / 2]].concat();
    let are_bytes = [blocks, stored].iter().all(|tensor| tensor.dtype == BYTES);
    if !are_bytes || blocks.shape != bytes || stored.shape != groups || inputs % quantised::GROUP > 0 {
        return Err(broken(format!(
            "blocks {:?} of {} and scales {:?} of {} are not {bytes:?} and {groups:?} of {BYTES}",
            blocks.shape, blocks.dtype, stored.shape, stored.dtype
        )));
    }
    let values = quantised::widen_packed(&file.read_bytes(blocks)?, &of.read_bytes(stored)?);
    check_finite(file, &name, &values)?;
    let mut matrix = vec![0.0; values.len()];
    for (at, row) in values.chunks_exact(inputs).enumerate() {
        let row_here = at / outputs * outputs + tensor.storage.row_of(at % outputs);
        matrix[row_here * inputs..][..inputs].copy_from_slice(row);
    }
    Ok(matrix)
}

fn read_quantised(
    files: &[SafetensorsFile],
    file: &SafetensorsFile,
    name: &str,
) -> Result<Option<Vec<f32>>, NetworkError> {
    let broken = |what: String| NetworkError::BrokenWeights {
        path: file.path.clone(),
        what: format!("tensor `{name}`: {what}"),
    };
    let find = |name: &str| files.iter().find(|file| file.tensors.contains_key(name));
    let (holder, of) = quantised::scales_of(name, find)
        .ok_or_else(|| broken("it has 8 bits, and no tensor of scales is beside it".to_owned()))?;
    let stored = &file.tensors[name];
    let shape = &holder.tensors[&of].shape;
    let count = shape.iter().product::<usize>();
    if count > stored.bytes {
        return Err(broken(format!("it has {count} scales for {} numbers", stored.bytes)));
    }
    let scales = holder.read(&of)?.unwrap_or_default();
    let mut values: Vec<f32> = file.read_bytes(stored)?.into_iter().map(quantised::widen).collect();
    quantised::scale(&mut values, &stored.shape, (&scales, shape)).map_err(broken)?;
    Ok(Some(values))
}

/// Writes a folder that other tools read: `model.safetensors` and `config.json`.
pub fn save<E: Element>(
    network: &Network,
    device: &Device,
    weights: &Weights<E>,
    folder: &Path,
) -> Result<(), NetworkError> {
    if !network.part().has_all_numbers() {
        return Err(NetworkError::Unsupported {
            feature: "writing one rank's part of a network as a model".into(),
        });
    }
    let cannot = |source| NetworkError::WriteWeights { path: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(cannot)?;
    let tensors: Vec<(usize, &Tensor)> = network
        .blocks()
        .iter()
        .enumerate()
        .flat_map(|(block, table)| table.tensors.iter().map(move |tensor| (block, tensor)))
        .collect();
    let format = if E::NAME == "bf16" { TensorFormat::Bf16 } else { TensorFormat::F32 };
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let declared = tensors.iter().map(|(_, tensor)| (tensor.name.clone(), tensor.shape.clone())).collect();
    let layout = TensorLayout::new(format, &metadata, declared);
    let (mut stored, mut whole) = (vec![E::default(); PIECE], Vec::new());
    let mut read = |index: usize, range: Range<usize>, values: &mut [f32]| {
        let (block, tensor) = tensors[index];
        let from = weights.block(block).range(tensor.range.clone());
        if tensor.storage != Storage::AsIs {
            if range.start == 0 {
                whole = read_whole(device, from);
            }
            let places = range.map(|place| tensor.place_in_matrix(place));
            return values.iter_mut().zip(places).for_each(|(value, place)| *value = whole[place]);
        }
        let stored = &mut stored[..range.len()];
        device.read(from.range(range), stored);
        values.iter_mut().zip(stored).for_each(|(value, stored)| *value = stored.widen());
    };
    write_file(&folder.join(WEIGHTS_FILE), &mut |file| {
        layout.write(file, &mut read)?;
        // What was read of a device that has failed is nothing, and the file does not come into place.
        device.check().map_err(std::io::Error::other)
    })?;
    let config = config_with_dtype(network.architecture().config_json(), format);
    fs::write(folder.join(CONFIG_FILE), config).map_err(cannot)
}

fn read_whole<E: Element>(device: &Device, from: View<'_, E>) -> Vec<f32> {
    let mut values = vec![E::default(); from.len()];
    device.read(from, &mut values);
    values.into_iter().map(Element::widen).collect()
}

/// The configuration, saying the format of the weights beside it under the key that it uses; without either key under the one
/// that every version of transformers reads.
pub fn config_with_dtype(config: &str, format: TensorFormat) -> String {
    let Ok(Value::Object(mut keys)) = serde_json::from_str::<Value>(config) else { return config.to_owned() };
    let dtype = match format {
        TensorFormat::F32 => "float32",
        TensorFormat::Bf16 => "bfloat16",
        TensorFormat::F16 => "float16",
    };
    let named = ["torch_dtype", "dtype"].map(|key| keys.contains_key(key).then_some(key));
    for key in named.into_iter().flatten() {
        keys.insert(key.to_owned(), dtype.into());
    }
    if named == [None, None] {
        keys.insert("torch_dtype".to_owned(), dtype.into());
    }
    format!("{:#}\n", Value::Object(keys))
}

/// Writes tensors to one file, all in one format. The file appears whole or not at all.
pub fn write_tensors(
    path: &Path,
    format: TensorFormat,
    metadata: &BTreeMap<String, String>,
    tensors: &[(String, Vec<usize>, Vec<f32>)],
) -> Result<(), NetworkError> {
    let declared = tensors.iter().map(|(name, shape, _)| (name.clone(), shape.clone())).collect();
    let layout = TensorLayout::new(format, metadata, declared);
    let mut read = |index: usize, range: Range<usize>, values: &mut [f32]| {
        values.copy_from_slice(&tensors[index].2[range])
    };
    write_file(path, &mut |file| layout.write(file, &mut read))
}

fn write_file(
    path: &Path,
    write: &mut dyn FnMut(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), NetworkError> {
    let mut whole = || -> std::io::Result<()> {
        let mut file = BufWriter::with_capacity(1 << 20, Replacement::create(path)?);
        write(&mut file)?;
        file.into_inner().map_err(|error| error.into_error())?.commit()
    };
    whole().map_err(|source| NetworkError::WriteWeights { path: path.to_owned(), source })
}

/// Gives a range of the numbers of a tensor, named by its place in a list.
type ReadPiece<'a> = dyn FnMut(usize, Range<usize>, &mut [f32]) + 'a;

/// The tensors of a file that is written piece by piece, all in one format.
pub struct TensorLayout {
    format: TensorFormat,
    header: Vec<u8>,
    lengths: Vec<usize>,
}

impl TensorLayout {
    /// Tensors by name and shape, in the order of their bytes.
    pub fn new(
        format: TensorFormat,
        metadata: &BTreeMap<String, String>,
        tensors: Vec<(String, Vec<usize>)>,
    ) -> Self {
        let mut header = Map::new();
        if !metadata.is_empty() {
            header.insert("__metadata__".into(), json!(metadata));
        }
        let lengths: Vec<usize> = tensors.iter().map(|(_, shape)| shape.iter().product()).collect();
        let mut offset = 0;
        for ((name, shape), len) in tensors.into_iter().zip(&lengths) {
            let end = offset + len * format.bytes();
            header
                .insert(name, json!({"dtype": format.name(), "shape": shape, "data_offsets": [offset, end]}));
            offset = end;
        }
        let mut header = Value::Object(header).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        Self { format, header, lengths }
    }

    /// Writes header and tensors.
    pub fn write(&self, to: &mut dyn Write, read: &mut ReadPiece<'_>) -> std::io::Result<()> {
        to.write_all(&(self.header.len() as u64).to_le_bytes())?;
        to.write_all(&self.header)?;
        let longest = self.lengths.iter().copied().max().unwrap_or(0).min(PIECE);
        let (mut values, mut bytes) = (vec![0.0; longest], Vec::new());
        for (index, len) in self.lengths.iter().enumerate() {
            for range in pieces(*len) {
                let values = &mut values[..range.len()];
                read(index, range, values);
                encode(self.format, values, &mut bytes);
                to.write_all(&bytes)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exported_configuration_says_the_format_of_its_weights() {
        for (config, key) in [
            (r#"{"model_type": "llama", "torch_dtype": "float32"}"#, "torch_dtype"),
            (r#"{"model_type": "llama", "dtype": "float16"}"#, "dtype"),
            (r#"{"model_type": "llama"}"#, "torch_dtype"),
        ] {
            let written: Value =
                serde_json::from_str(&config_with_dtype(config, TensorFormat::Bf16)).unwrap();
            assert_eq!(written, json!({"model_type": "llama", key: "bfloat16"}));
        }
    }

    #[test]
    fn tensors_longer_than_a_piece_are_written_and_read_back() {
        let folder = std::env::temp_dir().join(format!("bedplate-network-pieces-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.safetensors");
        let long: Vec<f32> = (0..2 * PIECE + 3).map(|value| value as f32).collect();
        let tensors =
            [("b".to_owned(), vec![long.len()], long.clone()), ("a".to_owned(), vec![0], Vec::new())];
        write_tensors(&path, TensorFormat::F32, &BTreeMap::new(), &tensors).unwrap();
        let file = SafetensorsFile::open(&path).unwrap();
        assert!(file.read("b").unwrap().unwrap() == long && file.read("a").unwrap().unwrap().is_empty());
        let mut longest = 0;
        let taken = file.read_pieces("b", &mut |range, piece| {
            longest = longest.max(piece.len());
            assert_eq!(piece[0], range.start as f32);
        });
        assert_eq!((taken.unwrap(), longest), (Some(long.len()), PIECE));
        fs::remove_dir_all(&folder).unwrap();
    }

    /// Every number with every scale.
    #[test]
    fn numbers_of_four_bits_are_those_of_transformers_bit_by_bit() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/mxfp4.safetensors");
        let file = SafetensorsFile::open(&path).unwrap();
        let bytes = |name: &str| file.read_bytes(&file.tensors[name]).unwrap();
        let found = quantised::widen_packed(&bytes("x_blocks"), &bytes("x_scales"));
        let expected = file.read("x").unwrap().unwrap();
        assert_eq!(found.len(), 256 * 32);
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
            assert!(same, "scale {}, number {}: {found}, {expected}", at / 32, at % 32);
        }
    }

    #[test]
    fn broken_headers_are_told_apart() {
        let said = |header: &str| read_header(header.as_bytes(), 8, 108).unwrap_err();
        assert!(said("[1]").contains("not a JSON object"));
        assert!(said(r#"{"a": {"shape": [1]}}"#).contains("no `dtype`"));
        assert!(said(r#"{"a": {"dtype": "I64", "shape": [1]}}"#).contains("`data_offsets`"));
        assert!(
            said(r#"{"a": {"dtype": "I64", "shape": [1], "data_offsets": [0, 101]}}"#).contains("do not fit")
        );
        let entry = |shape: &str, offsets: &str| {
            said(&format!(r#"{{"a": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}}}"#))
        };
        assert!(entry("[2]", "[0, 4]").contains("do not fit"));
        assert!(entry("[26]", "[0, 104]").contains("do not fit"));
        assert!(entry("[4294967296, 4294967296]", "[0, 0]").contains("absurd"));
        assert!(entry("[1]", "[4, 0]").contains("do not fit"));
    }
}
