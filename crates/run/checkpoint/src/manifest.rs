//! The manifest of a checkpoint: what it says of its run, its tensors, and which file holds which regions. Written last.
//!
//! The text is JSON and carries a CRC32C of itself. Reading one checks everything that can be checked without the files: regions lie in their tensors,
//! cover each of them once, and add up to the sizes of the files.

use std::collections::BTreeMap;

use bedplate_network::Region;
use serde_json::{Map, Value, json};

use crate::facts::RunFacts;
use crate::part::PartEntry;

const FORMAT: &str = "bedplate-checkpoint";
const VERSION: u64 = 3;
const CHECKSUM: &str = "crc32c";

/// What a checkpoint holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    pub facts: RunFacts,
    /// When it was published, in seconds since 1970.
    pub written: u64,
    pub(crate) parts: Vec<PartEntry>,
    tensors: BTreeMap<String, [usize; 2]>,
}

impl Manifest {
    /// Puts parts together; in words why they make up no state.
    pub(crate) fn new(facts: RunFacts, written: u64, parts: Vec<PartEntry>) -> Result<Self, String> {
        let mut tensors = BTreeMap::new();
        for region in parts.iter().flat_map(|part| &part.regions) {
            let shape = tensors.entry(region.tensor.clone()).or_insert(region.shape);
            if *shape != region.shape {
                return Err(format!("`{}` has two sizes", region.tensor));
            }
        }
        let parts: Vec<PartEntry> = parts.into_iter().filter(|part| part.bytes > 0).collect();
        check_cover(&tensors, &parts)?;
        Ok(Self { facts, written, parts, tensors })
    }

    /// Rows and columns of every tensor of the state.
    pub fn tensors(&self) -> &BTreeMap<String, [usize; 2]> {
        &self.tensors
    }

    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Its files and their bytes.
    pub fn files(&self) -> impl Iterator<Item = (&str, u64)> {
        self.parts.iter().map(|part| (part.file.as_str(), part.bytes))
    }

    /// Chunks with a checksum.
    pub fn chunks(&self) -> usize {
        self.parts.iter().map(|part| part.checksums.len()).sum()
    }

    /// A manifest's text with the checksum that belongs to it; nothing where it is no JSON object. For tests.
    pub fn with_checksum(text: &[u8]) -> Option<Vec<u8>> {
        let Ok(Value::Object(mut body)) = serde_json::from_slice(text) else { return None };
        body.shift_remove(CHECKSUM);
        Some(sealed(body).into_bytes())
    }

    pub fn to_text(&self) -> String {
        let numbers: BTreeMap<&str, usize> =
            self.tensors.keys().enumerate().map(|(number, name)| (name.as_str(), number)).collect();
        let region = |region: &Region| {
            let Region { tensor, rows, columns, .. } = region;
            json!([numbers[tensor.as_str()], rows.start, rows.end, columns.start, columns.end])
        };
        let file = |part: &PartEntry| {
            let mut file = part.to_json();
            file["regions"] = part.regions.iter().map(region).collect();
            file
        };
        let tensors: Vec<Value> =
            self.tensors.iter().map(|(name, [rows, columns])| json!([name, rows, columns])).collect();
        let mut body = Map::new();
        body.insert("format".into(), FORMAT.into());
        body.insert("version".into(), VERSION.into());
        body.insert("written".into(), self.written.into());
        body.insert("facts".into(), self.facts.to_json());
        body.insert("tensors".into(), tensors.into());
        body.insert("files".into(), self.parts.iter().map(file).collect());
        sealed(body)
    }

    /// Reads a manifest; in words what is wrong with it.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let not_json = |_| "manifest.json is damaged: it is not JSON".to_owned();
        let Value::Object(mut body) = serde_json::from_slice(text).map_err(not_json)? else {
            return Err("manifest.json is damaged: it is not an object".into());
        };
        if body.get("format").and_then(Value::as_str) != Some(FORMAT) {
            return Err("manifest.json is not that of a checkpoint".into());
        }
        match body.get("version").and_then(Value::as_u64) {
            Some(VERSION) => {}
            Some(version) => {
                return Err(format!("it is of version {version}, which this program does not know"));
            }
            None => return Err("manifest.json has no `version`".into()),
        }
        let checksum = body.shift_remove(CHECKSUM).and_then(|value| value.as_u64());
        let body = Value::Object(body);
        if checksum != Some(crc32c::crc32c(body.to_string().as_bytes()).into()) {
            return Err("manifest.json is damaged: its checksum is wrong".into());
        }
        Self::parse_body(&body)
    }

    fn parse_body(body: &Value) -> Result<Self, String> {
        let facts = RunFacts::parse(&body["facts"])?;
        let written = body["written"].as_u64().ok_or("manifest.json has no `written`")?;
        let bad = |what: &str| format!("manifest.json has {what}");
        let tensor = |value: &Value| {
            let [name, rows, columns] = value.as_array()?.as_slice() else { return None };
            let shape = [usize::try_from(rows.as_u64()?).ok()?, usize::try_from(columns.as_u64()?).ok()?];
            shape[0].checked_mul(shape[1]).map(|_| (name.as_str().unwrap_or_default().to_owned(), shape))
        };
        let tensors = body["tensors"].as_array().ok_or_else(|| bad("no `tensors`"))?;
        let tensors: Vec<(String, [usize; 2])> = tensors
            .iter()
            .map(tensor)
            .collect::<Option<_>>()
            .ok_or_else(|| bad("a tensor without a size"))?;
        let files = body["files"].as_array().ok_or_else(|| bad("no `files`"))?;
        let part = |file: &Value| {
            let regions = file["regions"].as_array()?.iter().map(|value| region(value, &tensors));
            PartEntry::parse(file, regions.collect::<Option<_>>()?)
        };
        let parts: Vec<PartEntry> = files
            .iter()
            .map(part)
            .collect::<Option<_>>()
            .ok_or_else(|| bad("a file that does not add up"))?;
        let tensors = tensors.into_iter().collect();
        check_cover(&tensors, &parts).map_err(|what| bad(&format!("gaps: {what}")))?;
        Ok(Self { facts, written, parts, tensors })
    }
}

/// The text of a manifest, with its checksum at the end.
fn sealed(body: Map<String, Value>) -> String {
    let mut body = Value::Object(body);
    body[CHECKSUM] = crc32c::crc32c(body.to_string().as_bytes()).into();
    format!("{body}\n")
}

fn region(value: &Value, tensors: &[(String, [usize; 2])]) -> Option<Region> {
    let numbers: Vec<usize> = value
        .as_array()?
        .iter()
        .map(|number| usize::try_from(number.as_u64()?).ok())
        .collect::<Option<_>>()?;
    let [tensor, top, bottom, left, right] = numbers[..] else { return None };
    let (name, shape) = tensors.get(tensor)?;
    let is_inside = top <= bottom && bottom <= shape[0] && left <= right && right <= shape[1];
    is_inside.then(|| Region { tensor: name.clone(), shape: *shape, rows: top..bottom, columns: left..right })
}

/// Every number of every tensor lies in one region.
fn check_cover(tensors: &BTreeMap<String, [usize; 2]>, parts: &[PartEntry]) -> Result<(), String> {
    let mut regions: BTreeMap<&str, Vec<&Region>> = BTreeMap::new();
    for region in parts.iter().flat_map(|part| &part.regions).filter(|region| !region.is_empty()) {
        regions.entry(&region.tensor).or_default().push(region);
    }
    for (name, [rows, columns]) in tensors {
        let mut own = regions.remove(name.as_str()).unwrap_or_default();
        if let Some((row, column)) = overlap(&mut own) {
            return Err(format!("row {row}, column {column} of `{name}` is there twice"));
        }
        let there: usize = own.iter().map(|region| region.len()).sum();
        if there != rows * columns {
            return Err(format!("{there} of the {} numbers of `{name}` are there", rows * columns));
        }
    }
    Ok(())
}

/// A place that two rectangles share. Goes down the rows with the columns that are taken, so its cost does not grow with the square.
fn overlap(regions: &mut [&Region]) -> Option<(usize, usize)> {
    // Of a row, ends come before beginnings.
    let mut events: Vec<(usize, bool, &Region)> = Vec::with_capacity(2 * regions.len());
    for region in regions.iter() {
        events.push((region.rows.start, true, region));
        events.push((region.rows.end, false, region));
    }
    events.sort_by_key(|(row, begins, region)| (*row, *begins, region.columns.start));
    let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
    for (row, begins, region) in events {
        let columns = &region.columns;
        if !begins {
            taken.remove(&columns.start);
            continue;
        }
        let before = taken.range(..columns.end).next_back();
        if before.is_some_and(|(_, end)| *end > columns.start) {
            return Some((row, columns.start));
        }
        taken.insert(columns.start, columns.end);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(regions: Vec<Region>) -> PartEntry {
        let bytes: usize = regions.iter().map(|region| 4 * region.len()).sum();
        PartEntry { file: "part".into(), bytes: bytes as u64, chunk: 1 << 20, checksums: vec![0], regions }
    }

    fn piece(rows: std::ops::Range<usize>, columns: std::ops::Range<usize>) -> Region {
        Region { tensor: "weights/a".into(), shape: [4, 6], rows, columns }
    }

    fn said(regions: Vec<Region>) -> String {
        Manifest::new(RunFacts::default(), 0, vec![part(regions)]).err().unwrap_or_default()
    }

    #[test]
    fn parts_must_cover_every_number_once() {
        assert_eq!(said(vec![piece(0..4, 0..3), piece(0..1, 3..6), piece(1..4, 3..6)]), "");
        assert_eq!(
            said(vec![piece(0..4, 0..3), piece(0..1, 3..6)]),
            "15 of the 24 numbers of `weights/a` are there"
        );
        assert_eq!(
            said(vec![piece(0..4, 0..3), piece(2..4, 2..6), piece(0..2, 3..6)]),
            "row 2, column 2 of `weights/a` is there twice"
        );
        assert!(said(vec![piece(0..2, 0..6), piece(0..2, 0..6)]).contains("twice"));
    }

    #[test]
    fn a_manifest_reads_back_and_any_changed_byte_is_noticed() {
        let mut facts = RunFacts { step: 7, samples: 28, layout: "dp2".into(), ..RunFacts::default() };
        facts.settings.insert("data.seed".into(), json!(1));
        let manifest = Manifest::new(facts, 99, vec![part(vec![piece(0..4, 0..6)])]).unwrap();
        let text = manifest.to_text();
        assert_eq!(Manifest::parse(text.as_bytes()).unwrap(), manifest);
        for place in 0..text.len() - 1 {
            let mut bytes = text.clone().into_bytes();
            bytes[place] ^= 1;
            assert!(Manifest::parse(&bytes).is_err(), "byte {place}");
            assert!(Manifest::parse(&bytes[..place]).is_err(), "cut at {place}");
        }
        let entry = &manifest.parts[0];
        assert_eq!(PartEntry::from_text(&entry.to_text()).as_ref(), Some(entry));
    }
}
