//! What is served on what: the input of every prediction in this module.

use bedplate_transformer::Precision;

use super::{
    Adjustment, Engine, EngineSettings, Images, LoadedAdapters, ServedModel, WeightFormat, WeightFormats,
};
use crate::{Generation, Hardware, PerfError};

/// One replica of a model: everything that decides the time of its steps and the room for its cache.
#[derive(Debug, Clone, PartialEq)]
pub struct Deployment {
    pub model: ServedModel,
    pub weights: WeightFormats,
    pub kv: Precision,
    pub hardware: Hardware,
    pub parallel: Parallel,
    pub engine: Engine,
    pub settings: EngineSettings,
    pub speculation: Option<Speculation>,
    pub adapters: Option<LoadedAdapters>,
    /// What comes with prompts, where the model has a vision encoder.
    pub images: Option<Images>,
    pub host: HostWork,
    /// When the engine was built, as a year with its fraction. See [`Deployment::NEWEST`].
    pub built: f64,
    /// What a site measured of this deployment.
    pub adjustment: Adjustment,
}

/// How a replica is split over GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parallel {
    /// Ranks that share every attention and dense matrix.
    pub tensor: u32,
    pub pipeline: u32,
    /// Ranks over which routed experts are spread; the rest of a stage's ranks split each expert.
    pub expert: u32,
    /// Ranks, of `tensor` GPUs each, that attend to different sequences (DP attention).
    pub attention_data: u32,
}

impl Parallel {
    pub const ONE: Parallel = Parallel { tensor: 1, pipeline: 1, expert: 1, attention_data: 1 };

    pub fn tensor(ranks: u32) -> Self {
        Self { tensor: ranks, ..Self::ONE }
    }

    /// GPUs that hold the same layers.
    pub fn stage_gpus(&self) -> u32 {
        self.tensor.saturating_mul(self.attention_data)
    }

    pub fn gpus(&self) -> u32 {
        self.stage_gpus().saturating_mul(self.pipeline)
    }

    /// Places for experts on all ranks together: as many on each, so that some experts have a copy where the ranks do not divide them.
    pub fn expert_places(&self, experts: u64) -> u64 {
        experts.next_multiple_of(u64::from(self.expert.max(1)))
    }

    /// Why no replica can be split this way, if so.
    fn flaw(&self) -> Option<String> {
        let Parallel { tensor, pipeline, expert, attention_data } = *self;
        if [tensor, pipeline, expert, attention_data].contains(&0) {
            return Some("a degree of 0".to_owned());
        }
        if self.gpus() > 1_000_000 {
            return Some(format!("{} GPUs for one replica", self.gpus()));
        }
        let stage = self.stage_gpus();
        (!stage.is_multiple_of(expert))
            .then(|| format!("{expert} expert ranks do not divide the {stage} GPUs of a stage"))
    }
}

/// Drafts that a cheaper predictor makes and the model checks in one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speculation {
    pub drafts: u32,
    /// Tokens that a step yields for each sequence, including the certain one: from 1 to `drafts + 1`.
    pub tokens_per_step: f64,
}

/// Whether the engine schedules the next step while the GPU works on this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostWork {
    #[default]
    Overlapped,
    Serial,
}

impl Deployment {
    /// Engines of spring 2026, the newest in the rows; later ones count as these.
    pub const NEWEST: f64 = 2026.3;

    /// A deployment with the engine's defaults, published quantisation and bf16 cache (fp8 where weights are
    /// quantised and the engine defaults to it).
    pub fn new(
        model: ServedModel,
        format: WeightFormat,
        hardware: Hardware,
        parallel: Parallel,
        engine: Engine,
    ) -> Self {
        let weights = WeightFormats::published(&model.transformer, format);
        let settings = engine.settings(&hardware);
        Self {
            weights,
            kv: Precision::Bf16,
            hardware,
            parallel,
            engine,
            settings,
            speculation: None,
            adapters: None,
            images: None,
            host: HostWork::Overlapped,
            built: Self::NEWEST,
            adjustment: Adjustment::default(),
            model,
        }
    }

    /// Tokens that one step yields for each decoding sequence.
    pub fn tokens_per_step(&self) -> f64 {
        self.speculation.map_or(1.0, |speculation| speculation.tokens_per_step.max(1.0))
    }

    /// Years by which the engine is newer than the start of 2026, clamped to the measured range.
    pub(crate) fn maturity_years(&self) -> f64 {
        self.built.clamp(2025.5, Self::NEWEST) - 2026.0
    }

    pub(crate) fn check(&self) -> Result<(), PerfError> {
        if self.hardware.generation == Generation::Host {
            return Err(PerfError::ImpossibleReplica {
                reason: "serving on a host is not priced".to_owned(),
            });
        }
        match self.parallel.flaw() {
            Some(reason) => Err(PerfError::ImpossibleReplica { reason }),
            None => Ok(()),
        }
    }
}
