//! Types that can be read from one value.

use std::str::FromStr;

use bedplate_units::{
    Bandwidth, Bytes, DollarRate, Dollars, FlopRate, Flops, Seconds, Tokens, UnitError, Watts,
};

use crate::Value;

/// Why a value does not fit the requested type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Misfit {
    /// The type is wrong.
    Type,
    /// The type is right, the value is not.
    Value(String),
}

pub trait Readable: Sized {
    /// What a value must be, as a phrase that completes "is not …".
    const EXPECTED: &'static str;

    fn read(value: &Value) -> Result<Self, Misfit>;
}

impl Readable for String {
    const EXPECTED: &'static str = "a text in quotes";

    fn read(value: &Value) -> Result<Self, Misfit> {
        match value {
            Value::Text(text) => Ok(text.clone()),
            _ => Err(Misfit::Type),
        }
    }
}

impl Readable for bool {
    const EXPECTED: &'static str = "true or false";

    fn read(value: &Value) -> Result<Self, Misfit> {
        match value {
            Value::Flag(flag) => Ok(*flag),
            _ => Err(Misfit::Type),
        }
    }
}

impl Readable for u64 {
    const EXPECTED: &'static str = "a whole number";

    fn read(value: &Value) -> Result<Self, Misfit> {
        let Value::Integer(number) = value else { return Err(Misfit::Type) };
        u64::try_from(*number)
            .map_err(|_| Misfit::Value(format!("{number} is not a whole number of zero or more")))
    }
}

impl Readable for u32 {
    const EXPECTED: &'static str = "a whole number";

    fn read(value: &Value) -> Result<Self, Misfit> {
        let wide = u64::read(value)?;
        u32::try_from(wide).map_err(|_| Misfit::Value(format!("{wide} is larger than {}", u32::MAX)))
    }
}

impl Readable for i64 {
    const EXPECTED: &'static str = "a whole number";

    fn read(value: &Value) -> Result<Self, Misfit> {
        let Value::Integer(number) = value else { return Err(Misfit::Type) };
        i64::try_from(*number)
            .map_err(|_| Misfit::Value(format!("{number} is not between {} and {}", i64::MIN, i64::MAX)))
    }
}

impl Readable for i32 {
    const EXPECTED: &'static str = "a whole number";

    fn read(value: &Value) -> Result<Self, Misfit> {
        let wide = i64::read(value)?;
        i32::try_from(wide)
            .map_err(|_| Misfit::Value(format!("{wide} is not between {} and {}", i32::MIN, i32::MAX)))
    }
}

impl Readable for f64 {
    const EXPECTED: &'static str = "a number";

    fn read(value: &Value) -> Result<Self, Misfit> {
        let number = match value {
            Value::Integer(number) => *number as f64,
            Value::Float(number) => *number,
            _ => return Err(Misfit::Type),
        };
        if number.is_finite() { Ok(number) } else { Err(Misfit::Value("it is not a finite number".into())) }
    }
}

impl<T: Readable> Readable for Vec<T> {
    const EXPECTED: &'static str = "a list in brackets";

    fn read(value: &Value) -> Result<Self, Misfit> {
        let Value::List(items) = value else { return Err(Misfit::Type) };
        items
            .iter()
            .map(|item| {
                T::read(&item.value).map_err(|misfit| match misfit {
                    Misfit::Type => Misfit::Value(format!("each item must be {}", T::EXPECTED)),
                    other => other,
                })
            })
            .collect()
    }
}

fn read_quantity<T: FromStr<Err = UnitError>>(value: &Value) -> Result<T, Misfit> {
    let Value::Text(text) = value else { return Err(Misfit::Type) };
    text.parse().map_err(|error: UnitError| Misfit::Value(error.to_string()))
}

macro_rules! readable_quantities {
    ($($quantity:ty: $expected:literal),* $(,)?) => {$(
        impl Readable for $quantity {
            const EXPECTED: &'static str = $expected;

            fn read(value: &Value) -> Result<Self, Misfit> {
                read_quantity(value)
            }
        }
    )*};
}

readable_quantities! {
    Bytes: "a size such as \"80 GB\"",
    Bandwidth: "a bandwidth such as \"400 GB/s\"",
    FlopRate: "a rate such as \"989.5 TFLOP/s\"",
    Flops: "a number of operations such as \"3.8e25 FLOP\"",
    Seconds: "a duration such as \"600ms\"",
    Tokens: "a number of tokens such as \"15T\"",
    Dollars: "an amount such as \"$98.32\"",
    DollarRate: "a price such as \"$98.32/h\"",
    Watts: "a power such as \"700 W\"",
}
