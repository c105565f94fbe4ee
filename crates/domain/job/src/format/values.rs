//! Values of job files that have a notation of their own.

use std::fmt::Display;
use std::str::FromStr;

use bedplate_document::{DocumentError, Misfit, Readable, Table, Value};
use bedplate_topology::expand_hostlist;
use bedplate_units::Seconds;

use crate::{CheckpointSignal, Inherited};

/// A text that is parsed further; its error becomes the reason.
pub(crate) fn parsed<T: FromStr>(table: &Table, key: &str) -> Result<Option<T>, DocumentError>
where
    T::Err: Display,
{
    let Some(text) = table.optional::<String>(key)? else { return Ok(None) };
    text.parse().map(Some).map_err(|error: T::Err| table.bad_value(key, error.to_string()))
}

/// `"all"`, `"none"` or a list of names.
impl Readable for Inherited {
    const EXPECTED: &'static str = "\"all\", \"none\" or a list of variables";

    fn read(value: &Value) -> Result<Self, Misfit> {
        match value {
            Value::Text(text) if text == "all" => Ok(Inherited::All),
            Value::Text(text) if text == "none" => Ok(Inherited::Nothing),
            Value::Text(text) => Err(Misfit::Value(format!("`{text}` is neither `all` nor `none`"))),
            _ => Vec::read(value).map(Inherited::Only),
        }
    }
}

/// A variable or label: a text, or a whole number, which is easily written without quotes.
pub(crate) struct Plain(pub(crate) String);

impl Readable for Plain {
    const EXPECTED: &'static str = "a text in quotes";

    fn read(value: &Value) -> Result<Self, Misfit> {
        match value {
            Value::Integer(number) => Ok(Self(number.to_string())),
            _ => String::read(value).map(Self),
        }
    }
}

/// Names of nodes: a list, or a text in Slurm's notation.
pub(crate) struct NodeNames(pub(crate) Vec<String>);

impl Readable for NodeNames {
    const EXPECTED: &'static str = "a list of nodes or a text such as \"n[1-4]\"";

    fn read(value: &Value) -> Result<Self, Misfit> {
        match value {
            Value::Text(text) => {
                expand_hostlist(text).map(Self).map_err(|error| Misfit::Value(error.to_string()))
            }
            _ => Vec::read(value).map(Self),
        }
    }
}

/// Time of a part of a step: a duration, or a number of seconds as programs write it.
pub(crate) struct StepSeconds(pub(crate) Seconds);

impl Readable for StepSeconds {
    const EXPECTED: &'static str = "a duration such as \"120ms\" or a number of seconds";

    fn read(value: &Value) -> Result<Self, Misfit> {
        match value {
            Value::Text(_) => Seconds::read(value).map(Self),
            _ => match f64::read(value)? {
                seconds if seconds < 0.0 => Err(Misfit::Value(format!("{seconds} is negative"))),
                seconds => Ok(Self(Seconds::new(seconds))),
            },
        }
    }
}

/// A share of a GPU, kept in thousandths.
pub(crate) struct GpuShare(pub(crate) u16);

impl Readable for GpuShare {
    const EXPECTED: &'static str = "a number such as 0.25";

    fn read(value: &Value) -> Result<Self, Misfit> {
        let share = f64::read(value)?;
        let thousandths = (share * 1000.0).round();
        if !(1.0..=1000.0).contains(&thousandths) || (thousandths / 1000.0 - share).abs() > 1e-9 {
            return Err(Misfit::Value(format!("{share} is not a share from 0.001 to 1 in thousandths")));
        }
        Ok(Self(thousandths as u16))
    }
}

/// A signal by name or number.
pub(crate) struct SignalNumber(pub(crate) i32);

impl Readable for SignalNumber {
    const EXPECTED: &'static str = "a signal such as \"USR1\"";

    fn read(value: &Value) -> Result<Self, Misfit> {
        match value {
            Value::Text(text) => CheckpointSignal::number_of(text)
                .map(Self)
                .ok_or_else(|| Misfit::Value(format!("there is no signal `{text}`"))),
            _ => i32::read(value).map(Self),
        }
    }
}
