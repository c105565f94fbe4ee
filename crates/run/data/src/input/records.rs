//! Records of a `.json` file: the items of one list, or objects one after the other.
//!
//! The file is cut where items end, without reading it as a whole; whether an item is JSON is found when it is parsed.

use std::io::{BufRead, Read};
use std::path::Path;
use std::sync::Arc;

use super::Portion;
use super::lines::{PORTION_BYTES, text_of};
use crate::disk;
use crate::error::DataError;

pub(super) fn read_records(
    path: &Path,
    reader: Box<dyn BufRead + '_>,
    each: &mut dyn FnMut(Portion) -> bool,
) -> Result<(), DataError> {
    let file: Arc<str> = path.display().to_string().into();
    let bad = |reason: String| DataError::BadInput { path: path.to_owned(), format: "JSON", reason };
    let mut cutter = Cutter::default();
    let (mut records, mut bytes) = (Vec::new(), 0);
    for byte in reader.bytes() {
        let Some((line, item)) = cutter.push(byte.map_err(disk::reading(path))?).map_err(bad)? else {
            continue;
        };
        bytes += item.len();
        records.push((line, text_of(path, item)?));
        if bytes >= PORTION_BYTES {
            let portion = Portion::Records { file: Arc::clone(&file), records: std::mem::take(&mut records) };
            bytes = 0;
            if !each(portion) {
                return Ok(());
            }
        }
    }
    if let Some((line, item)) = cutter.finish().map_err(bad)? {
        records.push((line, text_of(path, item)?));
    }
    if !records.is_empty() {
        each(Portion::Records { file, records });
    }
    Ok(())
}

/// Finds where items begin and end.
#[derive(Default)]
struct Cutter {
    /// Whether the items are those of a list, once known.
    is_list: Option<bool>,
    is_closed: bool,
    item: Vec<u8>,
    first_line: usize,
    lines: usize,
    depth: usize,
    in_text: bool,
    after_backslash: bool,
}

type Item = Option<(usize, Vec<u8>)>;

impl Cutter {
    /// The item that this byte ends, with the number of its first line.
    fn push(&mut self, byte: u8) -> Result<Item, String> {
        let line = self.lines + 1;
        self.lines += usize::from(byte == b'\n');
        if self.in_text {
            self.item.push(byte);
            self.in_text = byte != b'"' || self.after_backslash;
            self.after_backslash = byte == b'\\' && !self.after_backslash;
            return Ok(None);
        }
        if self.item.is_empty() && byte.is_ascii_whitespace() {
            return Ok(None);
        }
        if self.is_closed {
            return Err(format!("something follows the list, in line {line}"));
        }
        if self.is_list.is_none() {
            self.is_list = Some(byte == b'[');
            if byte == b'[' {
                return Ok(None);
            }
        }
        if self.depth == 0 && self.is_list == Some(true) && matches!(byte, b',' | b']') {
            self.is_closed = byte == b']';
            return Ok(self.take());
        }
        if self.item.is_empty() {
            self.first_line = line;
        }
        self.item.push(byte);
        match byte {
            b'"' => self.in_text = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth =
                    self.depth.checked_sub(1).ok_or_else(|| format!("a bracket too many in line {line}"))?;
                if self.depth == 0 && self.is_list == Some(false) {
                    return Ok(self.take());
                }
            }
            _ => {}
        }
        Ok(None)
    }

    fn finish(&mut self) -> Result<Item, String> {
        match self.is_list {
            Some(true) if !self.is_closed => Err("it ends inside its list".to_owned()),
            _ if self.depth > 0 || self.in_text => Err("it ends inside an object".to_owned()),
            _ => Ok(self.take()),
        }
    }

    /// The item so far, unless there is none.
    fn take(&mut self) -> Item {
        let item = std::mem::take(&mut self.item);
        (!item.is_empty()).then_some((self.first_line, item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(text: &str) -> Result<Vec<(usize, String)>, String> {
        let mut found = Vec::new();
        let mut each = |portion: Portion| {
            if let Portion::Records { records, .. } = portion {
                found.extend(records);
            }
            true
        };
        read_records(Path::new("x.json"), Box::new(text.as_bytes()), &mut each)
            .map_err(|error| error.to_string())?;
        Ok(found.into_iter().map(|(line, item)| (line, item.trim().to_owned())).collect())
    }

    #[test]
    fn lists_and_objects_in_a_row_are_cut_into_items() {
        let texts = |text: &str| items(text).unwrap().into_iter().map(|(_, item)| item).collect::<Vec<_>>();
        assert_eq!(
            texts(r#" [ {"a": "]},{\"["}, {"b": [1, {}]} ,3 ] "#),
            [r#"{"a": "]},{\"["}"#, r#"{"b": [1, {}]}"#, "3"]
        );
        assert_eq!(texts("{\"a\": 1}\n{\"b\": \"\\\\\"}{}"), ["{\"a\": 1}", "{\"b\": \"\\\\\"}", "{}"]);
        assert_eq!(texts("[]").len() + texts(" \n").len(), 0);
        assert_eq!(
            items("[\n{\n\"a\": 1},\n\n{}]").unwrap().iter().map(|item| item.0).collect::<Vec<_>>(),
            [2, 5]
        );
    }

    #[test]
    fn a_file_that_ends_early_or_late_is_refused() {
        for (text, reason) in [
            ("[{}, {}", "it ends inside its list"),
            ("{\"a\": [1}", "it ends inside an object"),
            ("[1]\n2", "something follows the list, in line 2"),
            ("[1}]", "a bracket too many in line 1"),
        ] {
            let found = items(text).unwrap_err();
            assert!(found.contains(reason), "{text}: {found}");
        }
    }
}
