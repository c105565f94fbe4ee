//! The requirements on a deployment: a model, a load, objectives, and what may be varied.

use bedplate_calibrate::serving::ServingErrors;
use bedplate_perf::serving::{
    Engine, LoadedAdapters, ServedModel, ServingConstants, Site, Speculation, WeightFormat,
};
use bedplate_replay::requests::{Lengths, Objectives, SharedPrefix, TracedLoad};
use bedplate_transformer::{Image, Precision};

use crate::Supply;

/// Independent arrivals at a rate per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OfferedLoad {
    /// Mean tokens of a prompt and of an answer.
    pub input: u32,
    pub output: u32,
    pub per_second: f64,
    /// How replays draw prompts and answers; without it all are as long as the mean.
    pub drawn: Option<(Lengths, Lengths)>,
    /// What prompts have in common.
    pub shared: Option<SharedPrefix>,
    /// What a trace says instead, where the load was recorded.
    pub recorded: Option<Recorded>,
}

/// What is known of recorded requests beyond their means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recorded {
    pub longest_prompt: u32,
    /// Tokens of the longest request, its prompt and its answer.
    pub longest_request: u64,
    /// Share of all prompt tokens that earlier prompts began with too, and the tokens of these beginnings.
    pub shared_share: f64,
    pub shared_tokens: u64,
}

impl OfferedLoad {
    /// Prompts and answers of one length each, which share nothing.
    pub fn new(input: u32, output: u32, per_second: f64) -> Self {
        Self { input, output, per_second, drawn: None, shared: None, recorded: None }
    }

    /// Prompts and answers of these lengths, which share nothing.
    pub fn drawn(input: Lengths, output: Lengths, per_second: f64) -> Self {
        let drawn = Some((input, output));
        Self { drawn, ..Self::new(input.mean(), output.mean(), per_second) }
    }

    /// Requests of a trace, at a rate. Estimates and closed loops take their lengths as spread evenly with the same means; replays are
    /// drawn from the trace, which the [`Need`] has to name.
    pub fn recorded(traced: &TracedLoad, per_second: f64) -> Self {
        let (input, output) = (traced.prompt.spread_evenly(), traced.output.spread_evenly());
        Self {
            recorded: Some(Recorded {
                longest_prompt: traced.prompt.longest,
                longest_request: traced.longest_request,
                shared_share: traced.shared.map_or(0.0, |shared| shared.share),
                shared_tokens: traced.shared.map_or(0, |shared| shared.tokens),
            }),
            ..Self::drawn(input, output, per_second)
        }
    }

    /// Prompts of `text` that begin alike, with images on top of it, for a number of adapters.
    pub fn asked(
        text: Lengths,
        output: Lengths,
        per_second: f64,
        image_tokens: u64,
        shared: Option<SharedPrefix>,
        adapters: u32,
    ) -> Self {
        let more = u32::try_from(image_tokens).unwrap_or(u32::MAX);
        let input = match text {
            Lengths::Fixed(tokens) => Lengths::Fixed(tokens.saturating_add(more)),
            Lengths::Between(low, high) => {
                Lengths::Between(low.saturating_add(more), high.saturating_add(more))
            }
        };
        let shared = shared.map(|SharedPrefix { percent, groups }| SharedPrefix {
            // Images are never shared.
            percent: (u64::from(percent) * u64::from(text.mean()) / u64::from(input.mean().max(1))) as u32,
            // What is cached under one adapter is of no use to another.
            groups: groups.saturating_mul(adapters.max(1)),
        });
        Self { shared, ..Self::drawn(input, output, per_second) }
    }

    /// Requests that are all as long as the mean and share nothing.
    pub(crate) fn uniform(&self) -> Self {
        Self { drawn: None, shared: None, recorded: None, ..*self }
    }

    pub fn lengths(&self) -> (Lengths, Lengths) {
        self.drawn.unwrap_or((Lengths::Fixed(self.input), Lengths::Fixed(self.output)))
    }

    /// Tokens of the longest request.
    pub fn context(&self) -> u64 {
        let (input, output) = self.lengths();
        let drawn = u64::from(input.longest()) + u64::from(output.longest());
        self.recorded.map_or(drawn, |recorded| recorded.longest_request)
    }

    pub fn longest_prompt(&self) -> u32 {
        self.recorded.map_or(self.lengths().0.longest(), |recorded| recorded.longest_prompt)
    }

    /// Share of a prompt that it has in common with others.
    pub fn shared_share(&self) -> f64 {
        let recorded = self.recorded.map_or(0.0, |recorded| recorded.shared_share);
        self.shared.map_or(recorded, |shared| f64::from(shared.percent) / 100.0)
    }

    /// Tokens of all that prompts have in common, every prefix once.
    pub fn shared_tokens(&self) -> f64 {
        let recorded = self.recorded.map_or(0.0, |recorded| recorded.shared_tokens as f64);
        self.shared
            .map_or(recorded, |shared| f64::from(shared.groups) * f64::from(self.input) * self.shared_share())
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
    pub load: OfferedLoad,
    /// What replays are drawn from, where the load was recorded.
    pub traced: Option<&'a TracedLoad>,
    pub objectives: Objectives,
    pub constants: &'a ServingConstants,
    /// The site's measured adjustments.
    pub site: Option<&'a Site>,
    /// Errors of similar predictions, by which a plan is compared with others of the same price; without them plans are equally safe.
    pub errors: Option<&'a ServingErrors>,
    /// Machines to suggest where nothing fits on the given ones.
    pub alternatives: &'a [Supply],
    pub options: DeployOptions,
}

/// What may be varied, and how strictly a deployment is shown to hold.
#[derive(Debug, Clone, PartialEq)]
pub struct DeployOptions {
    pub engine: Engine,
    /// Formats of weights to choose from; those without arithmetic on a chip are refused there.
    pub weights: Vec<WeightFormat>,
    pub kv: Vec<Precision>,
    /// Most prompt tokens of a step, for each attention data rank.
    pub chunks: Vec<u32>,
    pub pooling: Pooling,
    pub speculation: Option<Speculation>,
    /// Adapters that requests choose from.
    pub adapters: Option<LoadedAdapters>,
    /// Images that come with every prompt.
    pub images: Option<Pictures>,
    /// Share of requests that must meet all objectives.
    pub share: f64,
    pub seed: u64,
    /// Replays after which the search stops improving.
    pub most_replays: u32,
    /// Plans whose costs differ by no more than this share are near ties, as are latencies.
    pub near: f64,
}

/// Images of a request, all of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pictures {
    pub per_request: u32,
    pub image: Image,
}

impl Pictures {
    /// Tokens of a prompt that are images.
    pub fn tokens(&self) -> u64 {
        u64::from(self.per_request).saturating_mul(self.image.tokens)
    }
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

impl Default for DeployOptions {
    fn default() -> Self {
        Self {
            engine: Engine::Vllm,
            weights: vec![WeightFormat::Bf16, WeightFormat::Fp8, WeightFormat::Fp4],
            kv: vec![Precision::Bf16, Precision::Fp8],
            chunks: vec![2048, 8192, 16_384],
            pooling: Pooling::Any,
            speculation: None,
            adapters: None,
            images: None,
            share: 0.95,
            seed: 0,
            most_replays: 60,
            near: 0.0,
        }
    }
}
