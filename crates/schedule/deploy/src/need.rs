//! The requirements on a deployment: a model, a load, objectives, and what may be varied.

use bedplate_perf::serving::{Engine, ServedModel, ServingConstants, Site, Speculation, WeightFormat};
use bedplate_replay::requests::Objectives;
use bedplate_transformer::Precision;

use crate::Supply;

/// Independent arrivals at a rate per second, with these lengths in tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    pub input: u32,
    pub output: u32,
    pub per_second: f64,
}

impl Load {
    /// Tokens of a whole request.
    pub fn context(&self) -> u64 {
        u64::from(self.input) + u64::from(self.output)
    }

    /// Tokens in the KV of a decoding sequence, on average.
    pub fn usual_context(&self) -> u64 {
        u64::from(self.input) + u64::from(self.output / 2)
    }
}

/// A load to be served.
#[derive(Debug, Clone)]
pub struct Need<'a> {
    pub model: &'a ServedModel,
    pub load: Load,
    pub objectives: Objectives,
    pub constants: &'a ServingConstants,
    /// The site's measured adjustments.
    pub site: Option<&'a Site>,
    /// Machines to suggest where nothing fits on the given ones.
    pub alternatives: &'a [Supply],
    pub options: Options,
}

/// What may be varied, and how strictly a deployment is shown to hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    pub engine: Engine,
    /// Formats of weights to choose from; those without arithmetic on a chip are refused there.
    pub weights: Vec<WeightFormat>,
    pub kv: Vec<Precision>,
    /// Most prompt tokens of a step, for each attention data rank.
    pub chunks: Vec<u32>,
    pub pooling: Pooling,
    pub speculation: Option<Speculation>,
    /// Share of requests that must meet all objectives.
    pub share: f64,
    pub seed: u64,
    /// Replays after which the search stops improving.
    pub most_replays: u32,
    /// Plans whose costs differ by no more than this share are near ties, as are latencies.
    pub near: f64,
}

/// Which arrangements of pools are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pooling {
    #[default]
    Any,
    Aggregated,
    Disaggregated,
}

impl Pooling {
    pub const ALL: [(&'static str, Pooling); 3] = [
        ("any", Pooling::Any),
        ("aggregated", Pooling::Aggregated),
        ("disaggregated", Pooling::Disaggregated),
    ];
}

impl Default for Options {
    fn default() -> Self {
        Self {
            engine: Engine::Vllm,
            weights: vec![WeightFormat::Bf16, WeightFormat::Fp8, WeightFormat::Fp4],
            kv: vec![Precision::Bf16, Precision::Fp8],
            chunks: vec![2048, 8192, 16_384],
            pooling: Pooling::Any,
            speculation: None,
            share: 0.95,
            seed: 0,
            most_replays: 60,
            near: 0.0,
        }
    }
}
