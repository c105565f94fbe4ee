//! What is trained, on what, and how: the input of every question to this crate.

use bedplate_layout::{Batch, Layout};
use bedplate_perf::{Constants, Hardware, PerfError, Problem, Step, Workload};
use bedplate_transformer::{FlopsConvention, Transformer};
use bedplate_units::{FlopRate, Seconds};

use crate::Candidate;
use crate::preference::{Question, handicap};

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
    pub fn question(&self) -> Question<'_> {
        Question {
            workload: &self.workload,
            domain: self.hardware.domain,
            is_mixture: self.model.is_mixture(),
        }
    }

    /// One priced layout as a candidate of a search.
    pub fn candidate(&self, layout: &Layout, step: &Step) -> Candidate {
        Candidate {
            layout: *layout,
            seconds: step.seconds(),
            memory: step.memory.total(),
            fit: step.fit,
            handicap: handicap(layout, step.fit, &self.question()),
        }
    }

    /// Prices one layout without any table.
    pub fn predict(&self, layout: &Layout) -> Result<Step, PerfError> {
        bedplate_perf::predict(self.model, &self.hardware, layout, &self.workload, self.constants)
    }

    /// Model FLOPs per second that each GPU delivers in a step of this length; recomputation does not count.
    pub fn delivered(&self, step: Seconds) -> FlopRate {
        let per_token = self.model.flops_per_token(self.workload.sequence, FlopsConvention::default());
        let tokens = self.workload.tokens() / f64::from(self.gpus().max(1));
        per_token.training() * tokens / step
    }

    /// Model FLOPs utilisation: the same as a share of the bf16 peak.
    pub fn utilisation(&self, step: Seconds) -> f64 {
        self.delivered(step).get() / self.hardware.peak_bf16
    }
}
