//! A rank's part of a checkpoint: one file with the regions that the rank gave, row by row, one after the other.

use bedplate_network::Region;
use serde_json::{Value, json};

/// Bytes of a number.
pub(crate) const NUMBER: u64 = 4;

/// What a rank tells of the file that it has written. Small; it travels as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartEntry {
    /// Relative to the folder of the checkpoint.
    pub(crate) file: String,
    pub(crate) bytes: u64,
    /// Bytes of every chunk but the last.
    pub(crate) chunk: u64,
    /// CRC32C of each chunk.
    pub(crate) checksums: Vec<u32>,
    /// In the order of the file.
    pub(crate) regions: Vec<Region>,
}

impl PartEntry {
    pub fn to_text(&self) -> String {
        let mut value = self.to_json();
        let region = |region: &Region| {
            let Region { tensor, shape, rows, columns } = region;
            json!([tensor, shape[0], shape[1], rows.start, rows.end, columns.start, columns.end])
        };
        value["regions"] = self.regions.iter().map(region).collect();
        value.to_string()
    }

    pub fn from_text(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let region = |value: &Value| {
            let [tensor, numbers @ ..] = value.as_array()?.as_slice() else { return None };
            let numbers: Vec<usize> =
                numbers.iter().map(|number| Some(number.as_u64()? as usize)).collect::<Option<_>>()?;
            let [outputs, inputs, top, bottom, left, right] = numbers[..] else { return None };
            let tensor = tensor.as_str()?.to_owned();
            Some(Region { tensor, shape: [outputs, inputs], rows: top..bottom, columns: left..right })
        };
        let regions = value["regions"].as_array()?.iter().map(region).collect::<Option<_>>()?;
        Self::parse(&value, regions)
    }

    /// Without its regions.
    pub(crate) fn to_json(&self) -> Value {
        json!({"file": self.file, "bytes": self.bytes, "chunk": self.chunk, "crc32c": self.checksums})
    }

    /// The checks that a manifest's file needs on its own.
    pub(crate) fn parse(value: &Value, regions: Vec<Region>) -> Option<Self> {
        let file = value["file"].as_str().filter(|file| is_inside(file))?.to_owned();
        let (bytes, chunk) = (value["bytes"].as_u64()?, value["chunk"].as_u64()?);
        let checksum = |value: &Value| u32::try_from(value.as_u64()?).ok();
        let checksums: Vec<u32> = value["crc32c"].as_array()?.iter().map(checksum).collect::<Option<_>>()?;
        let numbers = regions.iter().try_fold(0_u64, |sum, region| {
            sum.checked_add((region.rows.len() as u64).checked_mul(region.columns.len() as u64)?)
        })?;
        let is_whole = numbers.checked_mul(NUMBER)? == bytes;
        let is_cut = chunk > 0 && chunk.is_multiple_of(NUMBER) && chunk <= LARGEST_CHUNK;
        let is_summed = is_cut && bytes.div_ceil(chunk) == checksums.len() as u64;
        (is_whole && is_summed).then_some(Self { file, bytes, chunk, checksums, regions })
    }

    /// Where chunk `index` lies in the file.
    pub(crate) fn chunk_range(&self, index: usize) -> std::ops::Range<u64> {
        let start = index as u64 * self.chunk;
        start..self.bytes.min(start + self.chunk)
    }
}

/// A chunk is held in memory as a whole.
pub(crate) const LARGEST_CHUNK: u64 = 1 << 30;

/// Whether a path leads to a file below its folder: plain names, at most one folder deep.
fn is_inside(path: &str) -> bool {
    let is_plain =
        |name: &str| !name.is_empty() && name != "." && name != ".." && !name.contains(['\\', '\0']);
    path.split('/').count() <= 2 && path.split('/').all(is_plain)
}
