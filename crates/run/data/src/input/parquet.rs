//! A column of texts from a Parquet file.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_host::open_regular;
use parquet::column::reader::ColumnReader;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};

use super::Portion;
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
