//! Collectives of engine steps: small messages, so latency first.
//!
//! Tensor ranks reduce twice per layer. Attention data ranks reduce only inside a rank and exchange tokens
//! around routed experts: gathered (one byte per value where weights are narrow) and reduce-scattered (two),
//! or sent to the experts they visit where that is less. What leaves a scale-up domain goes by the rings of
//! training, whose bandwidths and latencies are measured there.

use std::sync::LazyLock;

use bedplate_transformer::Precision;

use super::{Deployment, ServingConstants};
use crate::Constants;
use crate::collective::{Group, Links};

/// The rings of training, read once.
static TRAINING: LazyLock<Constants> = LazyLock::new(Constants::builtin);

/// Seconds of all collectives of a pass: fixed, and per token of the pass.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Wires {
    up_fixed: f64,
    up_per_token: f64,
    out_fixed: f64,
    out_per_token: f64,
}

impl Wires {
    pub(crate) fn new(deployment: &Deployment, constants: &ServingConstants) -> Self {
        let Deployment { model, hardware, parallel, weights, .. } = deployment;
        let mut wires = Self::default();
        let fabric = Fabric {
            links: Links::new(hardware, &TRAINING),
            domain: f64::from(hardware.domain.max(1)),
            latency: constants.reduce_latency,
            up: hardware.scale_up * constants.reduce_reach,
        };
        let hidden = model.transformer.hidden as f64;
        let (tensor, ranks) = (f64::from(parallel.tensor), f64::from(parallel.attention_data));
        let stage = tensor * ranks;
        let narrow = if weights.experts == Precision::Bf16 { 2.0 } else { 1.0 };
        for run in &model.transformer.runs {
            let count = run.count as f64;
            let reduced = 2.0 * 2.0 * hidden / ranks;
            wires.add(count, fabric.collective(tensor, reduced));
            match run.layer.mlp.mixture() {
                Some(mixture) if ranks > 1.0 => {
                    let visits = (mixture.per_token as f64 / stage).min(1.0);
                    let bytes = (narrow + 2.0) * hidden * visits;
                    let exchange = fabric.collective(stage, bytes);
                    wires.add(count, exchange);
                }
                _ => wires.add(count, fabric.collective(tensor, reduced)),
            }
        }
        wires.add_pipeline(&fabric, stage, f64::from(parallel.pipeline), 2.0 * hidden / stage);
        wires
    }

    pub(crate) fn seconds(&self, tokens: f64) -> (f64, f64) {
        (self.up_fixed + self.up_per_token * tokens, self.out_fixed + self.out_per_token * tokens)
    }

    fn add(&mut self, times: f64, other: Wires) {
        self.up_fixed += times * other.up_fixed;
        self.up_per_token += times * other.up_per_token;
        self.out_fixed += times * other.out_fixed;
        self.out_per_token += times * other.out_per_token;
    }

    /// A pass hands its hidden states to the next stage, and tokens back to the first.
    fn add_pipeline(&mut self, fabric: &Fabric, stage: f64, stages: f64, bytes: f64) {
        if stages <= 1.0 {
            return;
        }
        let is_inside = stage * stages <= fabric.domain;
        let at = |bytes: f64| fabric.links.send(bytes, is_inside);
        let (none, million) = (at(0.0), at(1e6));
        self.up_fixed += stages * none.up;
        self.out_fixed += stages * none.out;
        self.up_per_token += stages * (million.up - none.up) / 1e6 * bytes;
        self.out_per_token += stages * (million.out - none.out) / 1e6 * bytes;
    }
}

struct Fabric {
    links: Links,
    domain: f64,
    latency: f64,
    up: f64,
}

impl Fabric {
    /// A reduction or exchange in which `bytes` per token pass each of `ranks` ranks.
    fn collective(&self, ranks: f64, bytes: f64) -> Wires {
        if ranks <= 1.0 {
            return Wires::default();
        }
        let inside = ranks.min(self.domain);
        let up_per_token = (inside - 1.0) / inside * bytes / self.up;
        let mut wires = Wires { up_fixed: self.latency, up_per_token, ..Wires::default() };
        if ranks > self.domain {
            let group = Group::new((ranks / self.domain).ceil(), self.domain);
            let at = |bytes: f64| self.links.gather(group, bytes).busy();
            wires.out_fixed = 2.0 * at(0.0);
            // Each member of a domain carries its share of what crosses.
            wires.out_per_token = (at(1e6) - at(0.0)) / 1e6 * bytes / inside;
        }
        wires
    }
}
