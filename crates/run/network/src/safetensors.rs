//! Weights in Hugging Face's safetensors files, to and from a network.
//!
//! A file is the length of its header (eight bytes), a JSON header that gives each tensor's format, shape and bytes, and
//! the bytes. Large models are several files with an index. A header is checked against its file before any tensor is read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bedplate_kernels::{Bf16, Device, Element};
use half::f16;
use serde_json::{Map, Value, json};

use crate::names::Names;
use crate::table::Tensor;
use crate::{Network, NetworkError, Weights};

/// A header longer than this is refused, as the reference implementation does.
const LONGEST_HEADER: u64 = 100_000_000;

pub const WEIGHTS_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";
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
    /// As the file names it. Only numbers in a [`Format`] can be read.
    pub dtype: String,
    pub shape: Vec<usize>,
    /// From the start of the file.
    start: u64,
    bytes: usize,
}

/// The number formats that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    F32,
    Bf16,
    F16,
}

impl Format {
    const ALL: [Format; 3] = [Format::F32, Format::Bf16, Format::F16];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Format::F32 => "F32",
            Format::Bf16 => "BF16",
            Format::F16 => "F16",
        }
    }

    fn bytes(self) -> usize {
        if self == Format::F32 { 4 } else { 2 }
    }
}

impl SafetensorsFile {
    pub fn open(path: &Path) -> Result<Self, NetworkError> {
        let cannot = |source| NetworkError::ReadWeights { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(cannot)?;
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
        let format = Format::named(&tensor.dtype).ok_or_else(|| NetworkError::BrokenWeights {
            path: self.path.clone(),
            what: format!("tensor `{name}`: its format {} is none of F32, BF16, F16", tensor.dtype),
        })?;
        let mut bytes = vec![0; tensor.bytes];
        let cannot = |source| NetworkError::ReadWeights { path: self.path.clone(), source };
        self.file.read_exact_at(&mut bytes, tensor.start).map_err(cannot)?;
        let halves = || bytes.as_chunks::<2>().0.iter().map(|half| u16::from_le_bytes(*half));
        Ok(Some(match format {
            Format::F32 => bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect(),
            Format::Bf16 => halves().map(|bits| Bf16::from_bits(bits).to_f32()).collect(),
            Format::F16 => halves().map(|bits| f16::from_bits(bits).to_f32()).collect(),
        }))
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
    let shape = numbers("shape").ok_or("its `shape` is no list of sizes")?;
    let Some([begin, end]) = numbers("data_offsets").and_then(|offsets| <[u64; 2]>::try_from(offsets).ok())
    else {
        return Err("its `data_offsets` are not two numbers".into());
    };
    let count = shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size));
    let count = count.ok_or("its shape is absurd")?;
    // Of a format that is not read the size of a number is not known.
    let expected = match Format::named(dtype) {
        Some(format) => Some(count.checked_mul(format.bytes() as u64).ok_or("its shape is absurd")?),
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
pub struct Loaded {
    /// Tensors of the files that the network does not use.
    pub unused: Vec<String>,
}

/// Reads weights from a file, or from a folder with `model.safetensors` or an index of several files. Of a network that is cut
/// over ranks or stages, only what is here is kept.
pub fn load<E: Element>(
    network: &Network,
    device: &Device,
    path: &Path,
    weights: &mut Weights<E>,
) -> Result<Loaded, NetworkError> {
    let files =
        files_of(path)?.iter().map(|file| SafetensorsFile::open(file)).collect::<Result<Vec<_>, _>>()?;
    let prefix = Names::of(network.architecture().transformer.family).optional_prefix();
    let find = |name: &str| {
        let short = name.strip_prefix(prefix);
        let named = |wanted: &str| files.iter().find(|file| file.tensors.contains_key(wanted));
        let full = named(name).map(|file| (file, name.to_owned()));
        full.or_else(|| short.and_then(|short| named(short).map(|file| (file, short.to_owned()))))
    };
    let blocks = || network.blocks().iter().enumerate();
    let wanted =
        blocks().filter(|(index, _)| weights.has_block(*index)).flat_map(|(_, block)| &block.tensors);
    let missing: Vec<String> =
        wanted.map(|tensor| tensor.name.clone()).filter(|name| find(name).is_none()).collect();
    if let Some(first) = missing.first() {
        return Err(NetworkError::MissingTensors {
            path: path.to_owned(),
            first: first.clone(),
            count: missing.len(),
        });
    }
    let mut used = BTreeSet::new();
    if network.architecture().transformer.has_tied_embeddings {
        used.extend(repeated_head(network, path, &find)?);
    }
    for (index, block) in blocks() {
        for tensor in &block.tensors {
            let Some((file, name)) = find(&tensor.name) else { continue };
            if weights.has_block(index) {
                let whole = read_tensor(file, &name, tensor)?;
                let values: Vec<E> = tensor.places().map(|place| E::narrow(whole[place])).collect();
                device.write(weights.block_mut(index).range(tensor.range.clone()), &values);
            }
            used.insert(name);
        }
    }
    let all = files.iter().flat_map(|file| file.tensors.keys());
    Ok(Loaded { unused: all.filter(|name| !used.contains(*name)).cloned().collect() })
}

/// The head's name where the files hold it beside the embedding that serves as it. An error where the two differ: which of them is
/// meant, the files do not say.
fn repeated_head<'a>(
    network: &Network,
    path: &Path,
    find: &dyn Fn(&str) -> Option<(&'a SafetensorsFile, String)>,
) -> Result<Option<String>, NetworkError> {
    let names = Names::of(network.architecture().transformer.family);
    let (Some((file, head)), Some((other, embedding))) = (find(&names.head()), find(&names.embedding()))
    else {
        return Ok(None);
    };
    let is_same = file.tensors[&head].shape == other.tensors[&embedding].shape
        && file.read(&head)? == other.read(&embedding)?;
    if is_same { Ok(Some(head)) } else { Err(NetworkError::DistinctHead { path: path.to_owned(), head }) }
}

fn files_of(path: &Path) -> Result<Vec<PathBuf>, NetworkError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let index = path.join(INDEX_FILE);
    if !index.exists() {
        return Ok(vec![path.join(WEIGHTS_FILE)]);
    }
    let text = fs::read_to_string(&index)
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

fn read_tensor(file: &SafetensorsFile, name: &str, tensor: &Tensor) -> Result<Vec<f32>, NetworkError> {
    let stored = &file.tensors[name];
    if stored.shape != tensor.shape {
        return Err(NetworkError::WrongShape {
            path: file.path.clone(),
            tensor: name.to_owned(),
            expected: tensor.shape.clone(),
            found: stored.shape.clone(),
        });
    }
    let values = file.read(name)?.expect("the tensor is in this file");
    Ok(if tensor.is_transposed { transpose(&values, tensor.shape[0], tensor.shape[1]) } else { values })
}

fn transpose(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..values.len()).map(|place| values[place % rows * columns + place / rows]).collect()
}

/// Writes a folder that other tools read: `model.safetensors` and `config.json`.
pub fn save<E: Element>(
    network: &Network,
    device: &Device,
    weights: &Weights<E>,
    folder: &Path,
) -> Result<(), NetworkError> {
    if network.slice().degree > 1 {
        return Err(NetworkError::Unsupported { feature: "writing one rank's slice as a model".into() });
    }
    let cannot = |source| NetworkError::WriteWeights { path: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(cannot)?;
    let mut named = Vec::new();
    for (index, block) in network.blocks().iter().enumerate() {
        for tensor in &block.tensors {
            let mut values = vec![E::default(); tensor.range.len()];
            device.read(weights.block(index).range(tensor.range.clone()), &mut values);
            let mut values: Vec<f32> = values.into_iter().map(Element::widen).collect();
            if tensor.is_transposed {
                values = transpose(&values, tensor.shape[1], tensor.shape[0]);
            }
            named.push((tensor.name.clone(), tensor.shape.clone(), values));
        }
    }
    let format = if E::NAME == "bf16" { Format::Bf16 } else { Format::F32 };
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    write_tensors(&folder.join(WEIGHTS_FILE), format, &metadata, &named)?;
    fs::write(folder.join(CONFIG_FILE), network.architecture().config_json()).map_err(cannot)
}

/// Writes tensors to one file, all in one format. The file appears whole or not at all.
pub fn write_tensors(
    path: &Path,
    format: Format,
    metadata: &BTreeMap<String, String>,
    tensors: &[(String, Vec<usize>, Vec<f32>)],
) -> Result<(), NetworkError> {
    let mut header = Map::new();
    if !metadata.is_empty() {
        header.insert("__metadata__".into(), json!(metadata));
    }
    let mut offset = 0;
    for (name, shape, values) in tensors {
        let end = offset + values.len() * format.bytes();
        header.insert(
            name.clone(),
            json!({"dtype": format.name(), "shape": shape, "data_offsets": [offset, end]}),
        );
        offset = end;
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let write = || -> std::io::Result<()> {
        let unfinished = path.with_extension("unfinished");
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&unfinished)?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        for value in tensors.iter().flat_map(|(_, _, values)| values) {
            match format {
                Format::F32 => file.write_all(&value.to_le_bytes())?,
                Format::Bf16 => file.write_all(&Bf16::from_f32(*value).to_bits().to_le_bytes())?,
                Format::F16 => unreachable!("nothing is written in f16"),
            }
        }
        file.into_inner().map_err(|error| error.into_error())?.sync_all()?;
        fs::rename(&unfinished, path)
    };
    write().map_err(|source| NetworkError::WriteWeights { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposing_twice_changes_nothing() {
        let values: Vec<f32> = (0..6).map(|value| value as f32).collect();
        assert_eq!(transpose(&values, 2, 3), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(transpose(&transpose(&values, 2, 3), 3, 2), values);
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
