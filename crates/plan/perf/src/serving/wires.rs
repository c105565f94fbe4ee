//! Collectives of engine steps: small messages, so latency dominates.
//!
//! Tensor ranks reduce twice per layer. Attention data ranks reduce only inside a rank and exchange tokens
//! around routed experts: gathered (one byte per value where weights are narrow) and reduce-scattered (two),
//! or sent to the experts they visit where that is less. Traffic that leaves a scale-up domain uses the rings of
//! training, with the bandwidths and latencies measured there. Where tokens leave it for their experts, engines compute prompts in two batches,
//! one of which is exchanged while the other is computed.

use std::sync::LazyLock;

use bedplate_transformer::{LayerRun, Precision};

use super::{Deployment, Engine, ServingConstants};
use crate::Constants;
use crate::collective::{MachineLinks, RankGroup};

/// The rings of training, read once.
pub(super) static TRAINING: LazyLock<Constants> = LazyLock::new(Constants::builtin);

/// The collectives of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Wires {
    /// Reductions over tensor ranks.
    reduce: Collective,
    /// Tokens sent to experts and back.
    exchange: Collective,
    /// Hidden states handed from stage to stage.
    hand_over: Line,
    hand_over_out: Line,
}

/// Seconds that grow with the tokens of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Line {
    fixed: f64,
    per_token: f64,
}

impl Line {
    fn at(self, tokens: f64) -> f64 {
        self.fixed + self.per_token * tokens
    }

    fn times(self, count: f64) -> Self {
        Self { fixed: count * self.fixed, per_token: count * self.per_token }
    }
}

/// Identical collectives of a pass: inside a domain the faster of one shot, in which every rank sends
/// everything to every other, and two shots, in which each first reduces its share; and what leaves the domain.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Collective {
    one_shot: Line,
    two_shots: Line,
    out: Line,
}

impl Collective {
    fn inside(&self, tokens: f64) -> f64 {
        self.one_shot.at(tokens).min(self.two_shots.at(tokens))
    }
}

impl Wires {
    pub(crate) fn new(deployment: &Deployment, constants: &ServingConstants) -> Self {
        let Deployment { model, hardware, parallel, weights, .. } = deployment;
        let fabric = Fabric {
            links: MachineLinks::new(hardware, &TRAINING),
            domain: f64::from(hardware.domain.max(1)),
            latency: match deployment.engine {
                Engine::TensorRtLlm => constants.reduce_latency_trtllm,
                _ => constants.reduce_latency,
            },
            up: hardware.scale_up * constants.reduce_reach,
        };
        let hidden = model.transformer.hidden as f64;
        let (tensor, ranks) = (f64::from(parallel.tensor), f64::from(parallel.attention_data));
        let stage = tensor * ranks;
        let exchanges = |layers: &LayerRun| ranks > 1.0 && layers.layer.mlp.mixture().is_some();
        let layers: f64 = model.transformer.runs.iter().map(|run| run.count as f64).sum();
        let exchanging: f64 =
            model.transformer.runs.iter().filter(|run| exchanges(run)).map(|run| run.count as f64).sum();
        let mixture = model.transformer.runs.iter().find_map(|run| run.layer.mlp.mixture());
        let visits = mixture.map_or(1.0, |mixture| (mixture.per_token as f64 / stage).min(1.0));
        let narrow = if weights.experts == Precision::Bf16 { 2.0 } else { 1.0 };
        let sent = (narrow + 2.0) / 2.0 * hidden * visits;
        let pipeline = fabric.hand_over(stage, f64::from(parallel.pipeline), 2.0 * hidden / stage);
        Self {
            reduce: fabric.collective(tensor, 2.0 * hidden / ranks, 2.0 * layers - exchanging),
            exchange: fabric.collective(stage, sent, exchanging),
            hand_over: pipeline.0,
            hand_over_out: pipeline.1,
        }
    }

    /// Seconds inside scale-up domains and between them.
    pub(crate) fn seconds(&self, tokens: f64) -> (f64, f64) {
        let up = self.reduce.inside(tokens) + self.exchange.inside(tokens) + self.hand_over.at(tokens);
        let out = self.reduce.out.at(tokens) + self.exchange.out.at(tokens) + self.hand_over_out.at(tokens);
        (up, out)
    }

    /// Of those, seconds of exchanges that go on while another batch of prompts is computed.
    pub(crate) fn beside_prompts(&self, tokens: f64) -> (f64, f64) {
        if self.exchange.out == Line::default() {
            return (0.0, 0.0);
        }
        (self.exchange.inside(tokens), self.exchange.out.at(tokens))
    }
}

struct Fabric {
    links: MachineLinks,
    domain: f64,
    latency: f64,
    up: f64,
}

impl Fabric {
    /// `count` reductions of `bytes` per token over `ranks` ranks.
    fn collective(&self, ranks: f64, bytes: f64, count: f64) -> Collective {
        if ranks <= 1.0 || count <= 0.0 {
            return Collective::default();
        }
        let inside = ranks.min(self.domain);
        let line =
            |shots: f64, share: f64| Line { fixed: shots * self.latency, per_token: share * bytes / self.up };
        let mut out = Line::default();
        if ranks > self.domain {
            // Each member of a domain carries its share of the crossing traffic, both ways.
            let group = RankGroup::new((ranks / self.domain).ceil(), self.domain);
            let at = |bytes: f64| self.links.gather(group, bytes).busy();
            out = Line { fixed: 2.0 * at(0.0), per_token: 2.0 * (at(1e6) - at(0.0)) / 1e6 * bytes / inside };
        }
        Collective {
            one_shot: line(1.0, inside - 1.0).times(count),
            two_shots: line(2.0, 2.0 * (inside - 1.0) / inside).times(count),
            out: out.times(count),
        }
    }

    /// A pass hands its hidden states to the next stage, and tokens back to the first; inside and outside.
    fn hand_over(&self, stage: f64, stages: f64, bytes: f64) -> (Line, Line) {
        if stages <= 1.0 {
            return Default::default();
        }
        let is_inside = stage * stages <= self.domain;
        let (none, million) = (self.links.send(0.0, is_inside), self.links.send(1e6, is_inside));
        let line = |at: f64, far: f64| Line { fixed: at, per_token: (far - at) / 1e6 * bytes }.times(stages);
        (line(none.up, million.up), line(none.out, million.out))
    }
}
