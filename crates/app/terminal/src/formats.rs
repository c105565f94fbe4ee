//! Formats of weights and of keys and values, as flags name them.

use bedplate_kernels::{KvFormat, WeightFormat};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Reads the name of a format of weights.
pub fn weight_format() -> impl TypedValueParser<Value = WeightFormat> {
    let values = PossibleValuesParser::new(WeightFormat::ALL.map(described));
    values.try_map(|name| WeightFormat::ALL.into_iter().find(|format| format.name() == name).ok_or("unknown"))
}

fn described(format: WeightFormat) -> PossibleValue {
    let value = PossibleValue::new(format.name());
    match format {
        WeightFormat::F32 | WeightFormat::Bf16 | WeightFormat::F16 => value,
        WeightFormat::Fp8 => value.help("8 bits with an exponent (e4m3), and a scale for each output"),
        WeightFormat::Int8 => value.help("8 bits with a scale for every 32 numbers"),
        WeightFormat::Int4 => value.help("4 bits with a scale for every 32 numbers"),
    }
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
