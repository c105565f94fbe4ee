//! A column of texts, or whole conversations, from a Parquet file.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_host::open_regular;
use parquet::column::reader::ColumnReader;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use serde_json::{Map, Value};

use super::Portion;
use crate::chat::RECORD_KEYS;
use crate::disk;
use crate::error::DataError;

/// Texts taken at a time.
const PORTION_ROWS: usize = 512;

pub(super) fn read(
    path: &Path,
    column: &str,
    bytes_read: &AtomicU64,
    each: &mut dyn FnMut(Portion) -> bool,
) -> Result<(), DataError> {
    let bad = |reason: String| DataError::BadInput { path: path.to_owned(), format: "Parquet", reason };
    let file = open_regular(path).map_err(disk::reading(path))?;
    let reader = SerializedFileReader::new(file).map_err(|error| bad(error.to_string()))?;
    let number = find_column(&reader, column).map_err(bad)?;
    for group in 0..reader.num_row_groups() {
        let rows = reader.get_row_group(group).map_err(|error| bad(error.to_string()))?;
        if !read_group(rows.as_ref(), number, each).map_err(|error| bad(error.to_string()))? {
            return Ok(());
        }
        bytes_read.fetch_add(rows.metadata().compressed_size().max(0) as u64, Ordering::Relaxed);
    }
    Ok(())
}

fn find_column(reader: &SerializedFileReader<File>, name: &str) -> Result<usize, String> {
    let schema = reader.metadata().file_metadata().schema_descr();
    let columns = schema.columns();
    let found = columns.iter().position(|column| column.path().string() == name).ok_or_else(|| {
        let names: Vec<String> = columns.iter().map(|column| column.path().string()).collect();
        format!("it has no column `{name}`, but {}", names.join(", "))
    })?;
    match columns[found].max_rep_level() {
        0 => Ok(found),
        _ => Err(format!("column `{name}` holds lists, not texts")),
    }
}

fn read_group(
    rows: &dyn RowGroupReader,
    column: usize,
    each: &mut dyn FnMut(Portion) -> bool,
) -> Result<bool, ParquetError> {
    let ColumnReader::ByteArrayColumnReader(mut reader) = rows.get_column_reader(column)? else {
        return Err(ParquetError::General("the column does not hold texts".to_owned()));
    };
    loop {
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        // Rows without a value have a level and no entry.
        let (records, _, _) = reader.read_records(PORTION_ROWS, Some(&mut levels), None, &mut values)?;
        if records == 0 {
            return Ok(true);
        }
        let texts = values.iter().map(|value| value.as_utf8().map(str::to_owned));
        if !each(Portion::Texts(texts.collect::<Result<_, _>>()?)) {
            return Ok(false);
        }
    }
}

/// Conversations taken at a time.
const PORTION_CONVERSATIONS: usize = 64;

/// Rows as records of JSON, with the columns that conversations are made of. A cell without a value is a key that is not there: libraries
/// write every key that any of the rows has.
pub(super) fn read_conversations(
    path: &Path,
    bytes_read: &AtomicU64,
    each: &mut dyn FnMut(Portion) -> bool,
) -> Result<(), DataError> {
    let bad = |reason: String| DataError::BadInput { path: path.to_owned(), format: "Parquet", reason };
    let file = open_regular(path).map_err(disk::reading(path))?;
    let reader = SerializedFileReader::new(file).map_err(|error| bad(error.to_string()))?;
    let columns = conversation_columns(&reader).map_err(bad)?;
    let shown: Arc<str> = path.display().to_string().into();
    let mut number = 0;
    for group in 0..reader.num_row_groups() {
        let rows = reader.get_row_group(group).map_err(|error| bad(error.to_string()))?;
        let mut records = Vec::new();
        let mut told = |records: &mut Vec<(usize, String)>| {
            records.is_empty()
                || each(Portion::Records { file: shown.clone(), records: std::mem::take(records) })
        };
        let all = RowIter::from_row_group(Some(columns.clone()), rows.as_ref());
        for row in all.map_err(|error| bad(error.to_string()))? {
            number += 1;
            let record = row.map_err(|error| error.to_string()).and_then(|row| object_of(&row));
            records
                .push((number, record.map_err(|reason| bad(format!("row {number}: {reason}")))?.to_string()));
            if records.len() == PORTION_CONVERSATIONS && !told(&mut records) {
                return Ok(());
            }
        }
        if !told(&mut records) {
            return Ok(());
        }
        bytes_read.fetch_add(rows.metadata().compressed_size().max(0) as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// The schema with only what conversations are made of.
fn conversation_columns(reader: &SerializedFileReader<File>) -> Result<Type, String> {
    let root = reader.metadata().file_metadata().schema_descr().root_schema_ptr();
    let fields = root.get_fields();
    let wanted: Vec<_> = fields.iter().filter(|field| RECORD_KEYS.contains(&field.name())).cloned().collect();
    if wanted.is_empty() {
        let names: Vec<&str> = fields.iter().map(|field| field.name()).take(12).collect();
        return Err(format!(
            "it has no column of conversations (`messages`, `conversations`, `prompt` with `response`, or `instruction` with `output`), but {}",
            names.join(", ")
        ));
    }
    let built = Type::group_type_builder(root.name()).with_fields(wanted).build();
    built.map_err(|error| error.to_string())
}

fn object_of(row: &Row) -> Result<Value, String> {
    let mut object = Map::new();
    for (name, field) in row.get_column_iter() {
        if *field != Field::Null {
            object.insert(name.clone(), value_of(field)?);
        }
    }
    Ok(Value::Object(object))
}

fn value_of(field: &Field) -> Result<Value, String> {
    Ok(match field {
        Field::Null => Value::Null,
        Field::Bool(value) => (*value).into(),
        Field::Byte(number) => (*number).into(),
        Field::Short(number) => (*number).into(),
        Field::Int(number) => (*number).into(),
        Field::Long(number) => (*number).into(),
        Field::UByte(number) => (*number).into(),
        Field::UShort(number) => (*number).into(),
        Field::UInt(number) => (*number).into(),
        Field::ULong(number) => (*number).into(),
        Field::Float(number) => f64::from(*number).into(),
        Field::Double(number) => (*number).into(),
        Field::Str(text) => text.as_str().into(),
        Field::Bytes(bytes) => bytes.as_utf8().map_err(|_| "a cell of bytes is no text".to_owned())?.into(),
        Field::Group(row) => object_of(row)?,
        Field::ListInternal(list) => {
            Value::Array(list.elements().iter().map(value_of).collect::<Result<_, _>>()?)
        }
        Field::MapInternal(map) => {
            let entry = |(key, value): &(Field, Field)| match value_of(key)? {
                Value::String(key) => Ok((key, value_of(value)?)),
                other => Err(format!("the key {other} of a map is no text")),
            };
            Value::Object(map.entries().iter().map(entry).collect::<Result<_, String>>()?)
        }
        other => other.to_string().into(),
    })
}
