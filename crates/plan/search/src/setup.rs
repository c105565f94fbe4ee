//! What is trained, on what, and how: the input of every question to this crate.

use bedplate_layout::{Batch, ComputePrecision, Layout};
use bedplate_perf::{Constants, Hardware, PerfError, PredictedStep, Problem, Workload};
use bedplate_transformer::{FlopsConvention, Transformer};
use bedplate_units::{FlopRate, Seconds};

use crate::preference::{DoubtQuestion, handicap};
use crate::{Axes, LayoutCandidate, SearchError};

/// A model, a machine with a number of GPUs, a workload, and the constants to predict with.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    pub model: &'a Transformer,
    /// `hardware.gpus` is the number of GPUs that every layout uses.
    pub hardware: Hardware,
    pub workload: Workload,
    pub constants: &'a Constants,
}

impl<'a> Setup<'a> {
    pub fn gpus(&self) -> u32 {
        self.hardware.gpus
    }

    pub fn batch(&self) -> Batch {
        Batch { sequence: self.workload.sequence, global_batch: self.workload.global_batch }
    }

    /// The same on another number of GPUs.
    pub fn with_gpus(self, gpus: u32) -> Self {
        Self { hardware: Hardware { gpus, ..self.hardware }, ..self }
    }

    pub fn problem(&self) -> Result<Problem, PerfError> {
        Problem::new(self.model, &self.hardware, &self.workload, self.constants)
    }

    /// What doubts about a layout depend on.
    pub fn question(&self) -> DoubtQuestion<'_> {
        DoubtQuestion {
            workload: &self.workload,
            domain: self.hardware.domain,
            is_mixture: self.model.is_mixture(),
        }
    }

    /// One priced layout as a candidate of a search.
    pub fn candidate(&self, layout: &Layout, step: &PredictedStep) -> LayoutCandidate {
        LayoutCandidate {
            layout: *layout,
            seconds: step.seconds(),
            memory: step.memory.total(),
            fit: step.fit,
            handicap: handicap(layout, step.fit, &self.question()),
        }
    }

    /// Prices one layout without any table.
    pub fn predict(&self, layout: &Layout) -> Result<PredictedStep, PerfError> {
        bedplate_perf::predict(self.model, &self.hardware, layout, &self.workload, self.constants)
    }

    /// Model FLOPs per second that each GPU delivers in a step of this length; recomputation does not count.
    pub fn delivered(&self, step: Seconds) -> FlopRate {
        let per_token = self.model.flops_per_token(self.workload.sequence, FlopsConvention::default());
        let tokens = self.workload.tokens() / f64::from(self.gpus().max(1));
        per_token.training() * tokens / step
    }

    /// Model FLOPs utilisation of GPUs that process so many tokens a second each: with causal attention and without
    /// recomputation, over the peak that papers refer to for the number format.
    pub fn mfu(&self, tokens_per_second: f64, precision: ComputePrecision) -> f64 {
        let per_token = self.model.flops_per_token(self.workload.sequence, FlopsConvention::default());
        tokens_per_second * per_token.training().get() / self.hardware.peak(precision)
    }

    /// The same over the peak of the number format itself, with its name, where that is higher.
    pub fn format_mfu(
        &self,
        tokens_per_second: f64,
        precision: ComputePrecision,
    ) -> Option<(&'static str, f64)> {
        let (name, peak) = match precision {
            ComputePrecision::Fp8 => ("fp8", self.hardware.peak_fp8),
            ComputePrecision::Fp4 => ("fp4", self.hardware.peak_fp4),
            _ => return None,
        };
        let usual = self.hardware.peak(precision);
        (peak > usual).then(|| (name, self.mfu(tokens_per_second, precision) * usual / peak))
    }

    /// The layout, if it is legal here.
    pub fn checked(&self, layout: Layout) -> Result<Layout, SearchError> {
        let refusals = layout.refusals(self.model, Some(self.gpus().into()), Some(self.batch()));
        match refusals.is_empty() {
            true => Ok(layout),
            false => Err(SearchError::RefusedLayout { layout: Box::new(layout), refusals }),
        }
    }

    /// Everything that may vary, in one number format; mixtures of experts without corners that never win.
    pub fn usual_axes(&self, precision: ComputePrecision) -> Axes {
        let axes = match self.model.is_mixture() {
            true => Axes::practical(self.hardware.domain),
            false => Axes::default(),
        };
        Axes { precision: vec![precision], ..axes }
    }

    /// A smaller space that almost always includes the best layout, for questions that search many times.
    pub fn small_axes(&self, precision: ComputePrecision) -> Axes {
        let axes = match self.model.is_mixture() {
            true => Axes::coarse(self.hardware.domain),
            false => Axes::practical(self.hardware.domain),
        };
        Axes { precision: vec![precision], ..axes }
    }
}
