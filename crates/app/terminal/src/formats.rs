//! Formats of weights and of keys and values, as flags name them.

use bedplate_kernels::{KvFormat, WeightFormat};

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum FormatName {
    F32,
    Bf16,
    F16,
    /// 8 bits with an exponent (e4m3), and a scale for each output
    Fp8,
    /// 8 bits with a scale for every 32 numbers
    Int8,
    /// 4 bits with a scale for every 32 numbers
    Int4,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum KvName {
    /// 8 bits with an exponent (e4m3), and a scale for each key and value: half the memory, on GPUs that have it
    Fp8,
}

impl KvName {
    pub fn format(name: Option<Self>) -> KvFormat {
        name.map_or(KvFormat::Stored, |KvName::Fp8| KvFormat::Fp8)
    }
}

impl FormatName {
    pub fn format(self) -> WeightFormat {
        match self {
            FormatName::F32 => WeightFormat::F32,
            FormatName::Bf16 => WeightFormat::Bf16,
            FormatName::F16 => WeightFormat::F16,
            FormatName::Fp8 => WeightFormat::Fp8,
            FormatName::Int8 => WeightFormat::Int8,
            FormatName::Int4 => WeightFormat::Int4,
        }
    }
}
