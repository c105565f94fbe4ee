//! A prepared deployment: step time by part, a fast step timer, and memory.

use bedplate_breakdown::{Breakdown, Part, Predicted, Span};
use bedplate_units::Seconds;

use super::pass::{DecodeLine, StepPass};
use super::{Arrival, Deployment, ServingConstants, ServingMemory, StepShape};
use crate::PerfError;

/// One replica whose steps can be timed.
#[derive(Debug, Clone, PartialEq)]
pub struct Replica {
    deployment: Deployment,
    memory: ServingMemory,
    timer: StepTimer,
    arrival: Arrival,
}

impl Replica {
    /// Fails only for an invalid layout; that a model does not fit is an answer of
    /// [`Replica::memory`].
    pub fn new(deployment: Deployment, constants: &ServingConstants) -> Result<Self, PerfError> {
        deployment.check()?;
        let memory = ServingMemory::new(&deployment, constants);
        let timer = StepTimer { pass: StepPass::new(&deployment, constants) };
        let arrival = Arrival::new(&deployment, constants);
        Ok(Self { deployment, memory, timer, arrival })
    }

    pub fn deployment(&self) -> &Deployment {
        &self.deployment
    }

    pub fn memory(&self) -> &ServingMemory {
        &self.memory
    }

    pub fn timer(&self) -> &StepTimer {
        &self.timer
    }

    pub fn arrival(&self) -> &Arrival {
        &self.arrival
    }

    /// The time of a step by part. Weight reads count as memory or compute, whichever takes longer; the shorter
    /// is hidden behind it. The latency of kernels that wait for each other is `other`.
    pub fn step(&self, shape: &StepShape) -> Breakdown<Predicted> {
        if shape.is_empty() {
            return Breakdown::default();
        }
        let seconds = self.timer.pass.seconds(shape);
        let mut step = Breakdown::default();
        let mut add = |part: Part, span: Span| step[part] = step[part] + span;
        for (read, arithmetic, together) in [
            (seconds.read, seconds.arithmetic, seconds.products),
            (seconds.expert_read, seconds.expert_arithmetic, seconds.expert_products),
        ] {
            let (longer, shorter, beside) = if read >= arithmetic {
                (Part::Memory, Part::Compute, arithmetic)
            } else {
                (Part::Compute, Part::Memory, read)
            };
            add(longer, exposed(together));
            add(shorter, hidden(beside));
        }
        add(Part::Compute, exposed(seconds.prefill_attention));
        add(Part::Memory, exposed(seconds.decode_attention));
        add(Part::Other, exposed(seconds.latency));
        add(Part::ScaleUp, exposed(seconds.scale_up) + hidden(seconds.scale_up_hidden));
        add(Part::ScaleOut, exposed(seconds.scale_out) + hidden(seconds.scale_out_hidden));
        add(Part::Host, exposed(seconds.host) + hidden(seconds.host_hidden));
        step
    }
}

fn exposed(seconds: f64) -> Span {
    Span::exposed(Seconds::new(seconds))
}

fn hidden(seconds: f64) -> Span {
    Span::hidden(Seconds::new(seconds))
}

/// Seconds of steps only: folded constants, no allocation, tens of nanoseconds per call.
#[derive(Debug, Clone, PartialEq)]
pub struct StepTimer {
    pass: StepPass,
}

impl StepTimer {
    /// Seconds of a step; zero for an empty one.
    pub fn seconds(&self, shape: &StepShape) -> f64 {
        if shape.is_empty() { 0.0 } else { self.pass.seconds(shape).total() }
    }

    /// Seconds of a step whose prompts pass pipeline stages one after the other; [`Self::seconds`] lets stages share them, as many
    /// prompts in a row do.
    pub fn seconds_in_sequence(&self, shape: &StepShape) -> f64 {
        if shape.is_empty() { 0.0 } else { self.pass.in_sequence(shape).total() }
    }

    /// The linear time of decode-only steps of `decodes` sequences, from `context` cached tokens on.
    pub fn decode_line(&self, decodes: u32, context: u64) -> DecodeLine {
        self.pass.decode_line(decodes, context)
    }

    /// Seconds of `steps` decode-only steps from `context` on, each of which adds `growth` tokens to the
    /// cache: the exact sum in constant time.
    pub fn decode_seconds(&self, decodes: u32, context: u64, growth: u64, steps: u64) -> f64 {
        let (mut context, mut left, mut seconds) = (context, steps, 0.0);
        while left > 0 {
            let line = self.pass.decode_line(decodes, context);
            let room = line.until.saturating_sub(context).saturating_sub(1);
            let fit = room.checked_div(growth).map_or(left, |whole| whole.saturating_add(1).min(left));
            let count = fit as f64;
            let sum = count * context as f64 + growth as f64 * count * (count - 1.0) / 2.0;
            seconds += count * line.base + line.slope * sum;
            context = context.saturating_add(growth.saturating_mul(fit));
            left -= fit;
        }
        seconds
    }
}
