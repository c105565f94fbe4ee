//! The model families whose configurations can be read.

use std::fmt;

macro_rules! families {
    ($($(#[$doc:meta])* $family:ident = $canonical:literal $(| $other:literal)*,)*) => {
        /// The family whose keys a configuration uses, and whose names its weights have.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Family {
            $($(#[$doc])* $family,)*
        }

        impl Family {
            pub const ALL: &[Family] = &[$(Family::$family),*];

            /// The `model_type` under which a configuration of this family is written.
            pub const fn model_type(self) -> &'static str {
                match self {
                    $(Family::$family => $canonical,)*
                }
            }

            /// Every `model_type` that can be read.
            pub fn model_types() -> impl Iterator<Item = &'static str> {
                [$($canonical, $($other,)*)*].into_iter()
            }

            pub(crate) fn of_model_type(model_type: &str) -> Option<Family> {
                match model_type {
                    $($canonical $(| $other)* => Some(Family::$family),)*
                    _ => None,
                }
            }
        }
    };
}

families! {
    Gpt2 = "gpt2",
    Bloom = "bloom",
    Mpt = "mpt",
    Llama = "llama",
    Llama4 = "llama4_text" | "llama4",
    Mistral = "mistral",
    Mixtral = "mixtral",
    Qwen2 = "qwen2" | "qwen2_vl" | "qwen2_vl_text" | "qwen2_5_vl" | "qwen2_5_vl_text",
    Qwen2Moe = "qwen2_moe",
    Qwen3 = "qwen3",
    Qwen3Moe = "qwen3_moe",
    DeepseekV2 = "deepseek_v2",
    DeepseekV3 = "deepseek_v3" | "kimi_k2",
    DeepseekV32 = "deepseek_v32",
    GptOss = "gpt_oss",
    Gemma = "gemma",
    Gemma2 = "gemma2",
    Gemma3 = "gemma3_text" | "gemma3",
    Phi3 = "phi3",
    Olmo2 = "olmo2",
    Olmo3 = "olmo3",
    Olmoe = "olmoe",
    Glm = "glm",
    Glm4 = "glm4",
    Glm4Moe = "glm4_moe",
    SmolLm3 = "smollm3",
    Granite = "granite",
    Ministral = "ministral",
    Nemotron = "nemotron",
    NemotronH = "nemotron_h",
    Qwen3Next = "qwen3_next",
    Grok1 = "grok-1",
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.model_type())
    }
}
