//! Number formats and what a value costs in each.

use std::fmt;

/// The format in which a tensor is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precision {
    Fp32,
    Bf16,
    Fp16,
    Fp8,
    Int8,
    /// Four bits and a 16-bit scale per 128 values, as GPTQ and AWQ store them.
    Int4,
    /// Four bits and an 8-bit scale per 16 values.
    Nvfp4,
    /// Four bits and an 8-bit scale per 32 values.
    Mxfp4,
}

impl Precision {
    pub const ALL: [Precision; 8] = [
        Precision::Fp32,
        Precision::Bf16,
        Precision::Fp16,
        Precision::Fp8,
        Precision::Int8,
        Precision::Int4,
        Precision::Nvfp4,
        Precision::Mxfp4,
    ];

    /// Bytes per value with its share of the block scales. Scales per tensor or per 128 x 128 block
    /// (fp8, int8) are too few to count.
    pub const fn bytes_per_value(self) -> f64 {
        match self {
            Precision::Fp32 => 4.0,
            Precision::Bf16 | Precision::Fp16 => 2.0,
            Precision::Fp8 | Precision::Int8 => 1.0,
            Precision::Int4 => 0.5 + 2.0 / 128.0,
            Precision::Nvfp4 => 0.5 + 1.0 / 16.0,
            Precision::Mxfp4 => 0.5 + 1.0 / 32.0,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Precision::Fp32 => "fp32",
            Precision::Bf16 => "bf16",
            Precision::Fp16 => "fp16",
            Precision::Fp8 => "fp8",
            Precision::Int8 => "int8",
            Precision::Int4 => "int4",
            Precision::Nvfp4 => "nvfp4",
            Precision::Mxfp4 => "mxfp4",
        }
    }

    /// The format of that name, ignoring case; `None` when there is none.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|precision| precision.name().eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
