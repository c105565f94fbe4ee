//! The table `measured` of an accelerator, with a table for each number format.

use bedplate_document::{DocumentError, Readable, Table};

use crate::{FormatRates, MeasuredRates};

pub(super) fn read(accelerator: &Table) -> Result<Option<MeasuredRates>, DocumentError> {
    let Some(table) = accelerator.table("measured")? else { return Ok(None) };
    let table = table.titled(format!("`measured` of {}", accelerator.title()));
    let rates = MeasuredRates {
        threads: positive(&table, "threads")?,
        fp32: format(&table, "fp32")?,
        bf16: format(&table, "bf16")?,
        copy: positive(&table, "copy")?,
        cache: table.required("cache")?,
        losses: positive(&table, "losses")?,
        optimizer: positive(&table, "optimizer")?,
        operator: table.required("operator")?,
    };
    if rates.fp32.is_none() && rates.bf16.is_none() {
        return Err(table.bad_value("threads", "no format has rates; add a table fp32 or bf16"));
    }
    table.finish().map(|()| Some(rates))
}

fn format(table: &Table, name: &str) -> Result<Option<FormatRates>, DocumentError> {
    let Some(rates) = table.table(name)? else { return Ok(None) };
    let rates = rates.titled(format!("`{name}` in {}", table.title()));
    let read = FormatRates {
        products: positive(&rates, "products")?,
        input_gradients: positive(&rates, "input_gradients")?,
        weight_gradients: positive(&rates, "weight_gradients")?,
        half_size: not_negative(&rates, "half_size")?,
        attention: positive(&rates, "attention")?,
        attention_backward: positive(&rates, "attention_backward")?,
        half_keys: not_negative(&rates, "half_keys")?,
        stream: positive(&rates, "stream")?,
        stream_in_cache: positive(&rates, "stream_in_cache")?,
    };
    rates.finish().map(|()| Some(read))
}

/// A rate of zero would make every step infinitely long.
fn positive<T: Readable + PartialEq + Default>(table: &Table, key: &str) -> Result<T, DocumentError> {
    let value: T = table.required(key)?;
    if value == T::default() { Err(table.bad_value(key, "it is zero")) } else { Ok(value) }
}

fn not_negative(table: &Table, key: &str) -> Result<f64, DocumentError> {
    let value: f64 = table.required(key)?;
    if (0.0..1e6).contains(&value) { Ok(value) } else { Err(table.bad_value(key, "it must be 0 or more")) }
}
