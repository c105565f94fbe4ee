//! The number formats of a served model's weights and cache, and the peak it computes at.

use bedplate_transformer::{Family, ParameterPart, Precision, Transformer};

use crate::Hardware;

/// How a checkpoint is quantised, as its name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WeightFormat {
    Bf16,
    Fp8,
    /// NVFP4 or MXFP4.
    Fp4,
    /// Four-bit integers with bf16 arithmetic (AWQ, GPTQ, Kimi's own).
    Int4,
}

impl WeightFormat {
    pub const ALL: [WeightFormat; 4] =
        [WeightFormat::Bf16, WeightFormat::Fp8, WeightFormat::Fp4, WeightFormat::Int4];

    pub const fn name(self) -> &'static str {
        match self {
            WeightFormat::Bf16 => "bf16",
            WeightFormat::Fp8 => "fp8",
            WeightFormat::Fp4 => "fp4",
            WeightFormat::Int4 => "int4",
        }
    }

    /// The format of that name, ignoring case, by its common spellings.
    pub fn find(name: &str) -> Option<Self> {
        match name.trim().to_ascii_lowercase().as_str() {
            "bf16" | "bfloat16" | "fp16" | "float16" => Some(WeightFormat::Bf16),
            "fp8" | "fp8_block" | "mxfp8" | "w8a8" => Some(WeightFormat::Fp8),
            "fp4" | "nvfp4" | "mxfp4" => Some(WeightFormat::Fp4),
            "int4" | "w4a16" | "awq" | "gptq" => Some(WeightFormat::Int4),
            _ => None,
        }
    }
}

/// The format of each kind of weight matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightFormats {
    pub attention: Precision,
    /// Dense MLPs and shared experts.
    pub dense: Precision,
    pub experts: Precision,
    /// Embedding, head and router.
    pub head: Precision,
}

impl WeightFormats {
    /// What checkpoints of a format usually quantise.
    ///
    /// fp8 covers every projection. fp4 and int4 cover the routed experts of a mixture and leave the rest in
    /// bf16, except for Llama and Qwen3, whose NVFP4 checkpoints cover all projections. Dense models are
    /// fully covered. Embedding, head and router stay in bf16.
    pub fn published(model: &Transformer, format: WeightFormat) -> Self {
        let narrow = match (format, model.family) {
            (WeightFormat::Bf16, _) => Precision::Bf16,
            // Published in MXFP4 only; fp8 means its activations.
            (WeightFormat::Fp8 | WeightFormat::Fp4, Family::GptOss) => Precision::Mxfp4,
            (WeightFormat::Fp8, _) => Precision::Fp8,
            (WeightFormat::Fp4, _) => Precision::Nvfp4,
            (WeightFormat::Int4, _) => Precision::Int4,
        };
        let covers_all = matches!(narrow, Precision::Bf16 | Precision::Fp8)
            || !model.is_mixture()
            || matches!(model.family, Family::Llama4 | Family::Qwen3Moe);
        let rest = if covers_all { narrow } else { Precision::Bf16 };
        Self { attention: rest, dense: rest, experts: narrow, head: Precision::Bf16 }
    }

    pub(crate) fn of(&self, part: ParameterPart) -> Precision {
        match part {
            ParameterPart::Attention => self.attention,
            ParameterPart::DenseMlp | ParameterPart::SharedExperts => self.dense,
            ParameterPart::Experts => self.experts,
            ParameterPart::Embedding | ParameterPart::Router | ParameterPart::Norms | ParameterPart::Head => {
                self.head
            }
        }
    }

    /// Whether activations are cast to fp8 with a scale per block, as in all published fp8 checkpoints but
    /// those of Llama and Mistral, which have a scale per tensor.
    pub(crate) fn casts_blocks(&self, model: &Transformer) -> bool {
        let is_per_tensor = matches!(model.family, Family::Llama | Family::Llama4 | Family::Mistral);
        self.attention == Precision::Fp8 && !is_per_tensor
    }
}

/// The arithmetic of a product whose weights are kept in some format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    Bf16,
    Fp8,
    Fp4,
}

impl Arithmetic {
    /// The narrowest arithmetic that kernels use on a chip; weights wider than it are converted on the fly.
    pub(crate) fn of(weights: Precision, hardware: &Hardware) -> Self {
        match weights {
            Precision::Fp8 | Precision::Int8 if hardware.has_fp8 => Arithmetic::Fp8,
            Precision::Nvfp4 if hardware.has_fp4 => Arithmetic::Fp4,
            // Activations of mxfp4 weights are kept in mxfp8.
            Precision::Mxfp4 if hardware.has_fp4 => Arithmetic::Fp8,
            _ => Arithmetic::Bf16,
        }
    }
}
