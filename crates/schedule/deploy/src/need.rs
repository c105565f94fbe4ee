//! The requirements on a deployment: a model, a load, objectives, and what may be varied.

use bedplate_perf::serving::{Engine, ServedModel, ServingConstants, Site, Speculation, WeightFormat};
use bedplate_replay::requests::{Lengths, Objectives, SharedPrefix};
use bedplate_transformer::Precision;

use crate::Supply;

/// Independent arrivals at a rate per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Mean tokens of a prompt and of an answer.
    pub input: u32,
    pub output: u32,
    pub per_second: f64,
    /// How replays draw prompts and answers; without it all are as long as the mean.
    pub drawn: Option<(Lengths, Lengths)>,
    /// What prompts have in common.
    pub shared: Option<SharedPrefix>,
}

impl Load {
    /// Prompts and answers of one length each, which share nothing.
    pub fn new(input: u32, output: u32, per_second: f64) -> Self {
        Self { input, output, per_second, drawn: None, shared: None }
    }

    /// Prompts and answers of these lengths, which share nothing.
    pub fn drawn(input: Lengths, output: Lengths, per_second: f64) -> Self {
        let drawn = Some((input, output));
        Self { drawn, ..Self::new(input.mean(), output.mean(), per_second) }
    }

    pub fn lengths(&self) -> (Lengths, Lengths) {
        self.drawn.unwrap_or((Lengths::Fixed(self.input), Lengths::Fixed(self.output)))
    }

    /// Tokens of the longest request.
    pub fn context(&self) -> u64 {
        let (input, output) = self.lengths();
        u64::from(input.longest()) + u64::from(output.longest())
    }

    /// Share of a prompt that it has in common with others.
    pub fn shared_share(&self) -> f64 {
        self.shared.map_or(0.0, |shared| f64::from(shared.percent) / 100.0)
    }

    /// Tokens of all that prompts have in common, every prefix once.
    pub fn shared_tokens(&self) -> f64 {
        let prefixes = self.shared.map_or(0, |shared| shared.groups);
        f64::from(prefixes) * f64::from(self.input) * self.shared_share()
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
