//! What ranks exchange: formats of elements, and how elements of several ranks become one.

use std::fmt;

use bedplate_kernels::{Bf16, BufferValue};
use half::f16;
use serde::{Deserialize, Serialize};

/// A format of elements. All ranks of a call use the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum ElementFormat {
    F32,
    F64,
    Bf16,
    F16,
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
}

impl ElementFormat {
    pub const ALL: [ElementFormat; 10] = [
        ElementFormat::F32,
        ElementFormat::F64,
        ElementFormat::Bf16,
        ElementFormat::F16,
        ElementFormat::I8,
        ElementFormat::U8,
        ElementFormat::I32,
        ElementFormat::U32,
        ElementFormat::I64,
        ElementFormat::U64,
    ];

    pub fn name(self) -> &'static str {
        match self {
            ElementFormat::F32 => "f32",
            ElementFormat::F64 => "f64",
            ElementFormat::Bf16 => "bf16",
            ElementFormat::F16 => "f16",
            ElementFormat::I8 => "i8",
            ElementFormat::U8 => "u8",
            ElementFormat::I32 => "i32",
            ElementFormat::U32 => "u32",
            ElementFormat::I64 => "i64",
            ElementFormat::U64 => "u64",
        }
    }

    /// Bytes of a number.
    pub fn size(self) -> usize {
        match self {
            ElementFormat::I8 | ElementFormat::U8 => 1,
            ElementFormat::Bf16 | ElementFormat::F16 => 2,
            ElementFormat::F32 | ElementFormat::I32 | ElementFormat::U32 => 4,
            ElementFormat::F64 | ElementFormat::I64 | ElementFormat::U64 => 8,
        }
    }
}

impl fmt::Display for ElementFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A type of elements that ranks can exchange.
pub trait Number: BufferValue {
    const FORMAT: ElementFormat;
}

macro_rules! elements {
    ($($value:ty => $format:ident),*) => {
        $(impl Number for $value { const FORMAT: ElementFormat = ElementFormat::$format; })*
    };
}

elements!(f32 => F32, f64 => F64, Bf16 => Bf16, f16 => F16, i8 => I8, u8 => U8, i32 => I32, u32 => U32, i64 => I64, u64 => U64);

/// How the elements of several ranks become one. Floating-point numbers of 16 bits are accumulated in `f32` and rounded once
/// per message; whole numbers wrap around.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Reduction {
    Sum,
    /// A NaN of any rank stays one.
    Max,
    /// A NaN of any rank stays one.
    Min,
    /// The sum divided by the number of ranks; of whole numbers, rounded towards zero.
    Average,
}

impl Reduction {
    pub const ALL: [Reduction; 4] = [Reduction::Sum, Reduction::Max, Reduction::Min, Reduction::Average];

    pub fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Max => "max",
            Reduction::Min => "min",
            Reduction::Average => "average",
        }
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
