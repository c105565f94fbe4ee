//! Bytes of weights, of training state and of the KV cache, for the whole model on one device.

use bedplate_units::Bytes;

use crate::{ParameterPart, Precision, Transformer};

/// What an optimizer keeps per parameter, besides master weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Optimizer {
    /// Two moments in fp32.
    AdamW,
    /// Two moments in 8 bits with an fp32 scale per 256 values, as bitsandbytes keeps them.
    AdamW8bit,
    /// One momentum in fp32.
    SgdMomentum,
    Sgd,
}

impl Optimizer {
    pub const fn bytes_per_parameter(self) -> f64 {
        match self {
            Optimizer::AdamW => 8.0,
            Optimizer::AdamW8bit => 2.0 * (1.0 + 4.0 / 256.0),
            Optimizer::SgdMomentum => 4.0,
            Optimizer::Sgd => 0.0,
        }
    }
}

/// How training keeps a parameter. The default is the usual mixed precision: 18 bytes in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainingState {
    pub weights: Precision,
    pub gradients: Precision,
    pub optimizer: Optimizer,
    /// A copy of the weights in fp32 that the optimizer updates.
    pub has_master_weights: bool,
}

impl Default for TrainingState {
    fn default() -> Self {
        Self {
            weights: Precision::Bf16,
            gradients: Precision::Fp32,
            optimizer: Optimizer::AdamW,
            has_master_weights: true,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateBytes {
    pub weights: Bytes,
    pub gradients: Bytes,
    /// Optimizer moments and master weights.
    pub optimizer: Bytes,
}

impl TrainingState {
    /// Bytes that `parameters` parameters take: of the model, or of the shard of one rank.
    pub fn bytes(&self, parameters: u64) -> StateBytes {
        let each = |bytes: f64| Bytes::new(parameters as f64 * bytes);
        let master = if self.has_master_weights { Precision::Fp32.bytes_per_value() } else { 0.0 };
        StateBytes {
            weights: each(self.weights.bytes_per_value()),
            gradients: each(self.gradients.bytes_per_value()),
            optimizer: each(self.optimizer.bytes_per_parameter() + master),
        }
    }
}

impl StateBytes {
    pub fn total(&self) -> Bytes {
        self.weights + self.gradients + self.optimizer
    }
}

impl Transformer {
    /// Bytes of all weights in one precision.
    pub fn weights_bytes(&self, precision: Precision) -> Bytes {
        self.weights_bytes_by(|_| precision)
    }

    /// Bytes of all weights where parts differ: GPT-OSS keeps its experts in MXFP4 and the rest in bf16.
    pub fn weights_bytes_by(&self, precision_of: impl Fn(ParameterPart) -> Precision) -> Bytes {
        let bytes = |(part, count)| Bytes::new(count as f64 * precision_of(part).bytes_per_value());
        self.parameters().parts().map(bytes).sum()
    }

    /// Bytes of weights, gradients and optimizer state.
    pub fn training_bytes(&self, state: TrainingState) -> StateBytes {
        state.bytes(self.parameters().total)
    }

    /// Bytes that one more token adds to the KV cache while no window is full.
    pub fn kv_bytes_per_token(&self, precision: Precision) -> Bytes {
        self.kv_bytes(1, precision)
    }

    /// Bytes of the KV cache of one sequence of `context` tokens; windows and chunks bound their layers.
    pub fn kv_bytes(&self, context: u64, precision: Precision) -> Bytes {
        let values = self.runs.iter().map(|run| {
            let tokens = run.layer.reach.kept_tokens(context) as f64;
            run.count as f64 * tokens * run.layer.attention.kv_values_per_token() as f64
        });
        Bytes::new(values.sum::<f64>() * precision.bytes_per_value())
    }
}
