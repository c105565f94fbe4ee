//! A layer's operators, in the order in which the runtime calls them.

use bedplate_transformer::workspace::{Ranks, Widths};

use super::operators::{Linear, OperatorBytes, Operators, Work};

/// Seconds of a layer for one micro-batch.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LayerWork {
    pub(super) forward: Work,
    pub(super) backward: Work,
    /// Norms and activations, which may be done again in the backward pass.
    pub(super) cheap: Work,
}

/// Where a micro-batch is computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostPlace<'a> {
    pub(super) operators: &'a Operators,
    /// Tokens that a rank computes layers of.
    pub(super) rows: f64,
    /// Those whose residual stream it has.
    pub(super) own_rows: f64,
    pub(super) hidden: usize,
    pub(super) is_rotary: bool,
    pub(super) ranks: Ranks,
    /// Bytes of all activations, among which those of a layer lie until its backward pass.
    pub(super) held: f64,
}

impl HostPlace<'_> {
    pub(super) fn layer(&self, widths: &Widths, keys: f64) -> LayerWork {
        LayerWork {
            forward: self.attention_forward(widths, keys) + self.mlp_forward(widths) + self.sums(2.0),
            backward: self.attention_backward(widths, keys) + self.mlp_backward(widths) + self.sums(1.0),
            cheap: self.norm() * 2.0 + self.recompute_mlp(widths),
        }
    }

    /// What tensor ranks have added up, twice: read in fp32, with `streams` streams read or written.
    fn sums(&self, streams: f64) -> Work {
        if self.ranks.tensor == 1 {
            return Work::default();
        }
        let bytes = self.own_rows * self.hidden as f64 * (super::WIDE + streams * self.operators.element);
        self.operators.stream(OperatorBytes { fresh: bytes, kept: 0.0 }, self.held) * 2.0
    }

    /// Attention over the keys of each context rank in turn, added up in fp32.
    fn ring(&self, widths: &Widths) -> Work {
        if self.ranks.context == 1 {
            return Work::default();
        }
        let bytes = self.rows * widths.attended as f64 * (self.operators.element + 2.0 * super::WIDE);
        self.operators.stream(OperatorBytes { fresh: bytes, kept: 0.0 }, self.held)
            * self.ranks.context as f64
    }

    fn attention_forward(&self, widths: &Widths, keys: f64) -> Work {
        let output = self.linear(self.hidden, widths.attended);
        let mut work = self.norm() + self.operators.product(output);
        if widths.unnormed > 0 {
            // Queries and keys go to a buffer of their own, values to their place.
            work += self.operators.product(self.linear(widths.unnormed, self.hidden))
                + self.operators.product(self.linear(widths.qkv - widths.unnormed, self.hidden))
                + self.halves(2 * widths.unnormed, 0);
        } else {
            work += self.operators.product(self.linear(widths.qkv, self.hidden));
        }
        work + self.rotation(widths)
            + self.operators.attention(self.rows * widths.attended as f64, keys)
            + self.ring(widths)
    }

    fn attention_backward(&self, widths: &Widths, keys: f64) -> Work {
        let mut work = self.both_gradients(self.linear(self.hidden, widths.attended))
            + self.operators.attention_backward(self.rows * widths.attended as f64, keys)
            + self.rotation(widths)
            + self.both_gradients(self.linear(widths.qkv, self.hidden))
            + self.norm_backward();
        if widths.unnormed > 0 {
            work += self.halves(2 * widths.unnormed, widths.unnormed);
        }
        work
    }

    fn mlp_forward(&self, widths: &Widths) -> Work {
        if widths.experts == 0 {
            return self.norm() + self.dense_forward(widths);
        }
        let (choices, hidden) = (widths.choices, self.hidden);
        let [up, down] = expert_linears(widths, self.rows, self.ranks.experts);
        let mut work = self.norm()
            + self.stream(2 * hidden, 0)
            + self.operators.product(self.linear(widths.experts, hidden))
            + self.wide_stream(2 * widths.experts)
            + self.wide_stream(3 * choices)
            + self.recompute_experts(widths)
            + self.operators.product(up)
            + self.operators.product(down)
            + self.stream((choices + 2) * hidden, 0);
        if widths.shared > 0 {
            work += self.dense_forward(widths) + self.stream(3 * hidden, 0);
        }
        if widths.shared_gate > 0 {
            work += self.operators.product(self.linear(1, hidden));
        }
        work
    }

    fn dense_forward(&self, widths: &Widths) -> Work {
        self.operators.product(self.linear(widths.gate_up, self.hidden))
            + self.activation(widths)
            + self.operators.product(self.linear(self.hidden, widths.activated))
    }

    fn mlp_backward(&self, widths: &Widths) -> Work {
        if widths.experts == 0 {
            return self.norm_backward() + self.dense_backward(widths);
        }
        let (choices, hidden) = (widths.choices, self.hidden);
        let [up, down] = expert_linears(widths, self.rows, self.ranks.experts);
        let mut work = self.norm_backward()
            + self.stream((choices + 1) * hidden, choices * hidden)
            + self.both_gradients(down)
            + self.stream(3 * widths.expert_activated(), widths.expert_gate_up())
            + self.both_gradients(up)
            + self.stream((choices + 1) * hidden, 0)
            + self.wide_stream(2 * widths.experts)
            + self.both_gradients(self.linear(widths.experts, hidden));
        if widths.shared > 0 {
            work += self.dense_backward(widths);
        }
        if widths.shared_gate > 0 {
            work += self.stream(2 * hidden, hidden) + self.both_gradients(self.linear(1, hidden));
        }
        work
    }

    fn dense_backward(&self, widths: &Widths) -> Work {
        self.both_gradients(self.linear(self.hidden, widths.activated))
            + self.stream(widths.activated + widths.gate_up, widths.gate_up)
            + self.both_gradients(self.linear(widths.gate_up, self.hidden))
    }

    fn recompute_mlp(&self, widths: &Widths) -> Work {
        let routed = if widths.experts > 0 { self.recompute_experts(widths) } else { Work::default() };
        let dense = if widths.gate_up > 0 { self.activation(widths) } else { Work::default() };
        routed + dense
    }

    /// Tokens in the order of their experts, and the experts' activations.
    fn recompute_experts(&self, widths: &Widths) -> Work {
        self.stream(2 * widths.choices * self.hidden, 0)
            + self.stream(widths.expert_gate_up() + widths.expert_activated(), 0)
    }

    pub(super) fn linear(&self, outputs: usize, inputs: usize) -> Linear {
        Linear::new(self.rows, outputs as f64, inputs as f64)
    }

    pub(super) fn both_gradients(&self, linear: Linear) -> Work {
        self.operators.input_gradient(linear) + self.operators.weight_gradient(linear)
    }

    pub(super) fn norm(&self) -> Work {
        self.of_own_rows().stream(2 * self.hidden, 0)
    }

    fn of_own_rows(&self) -> Self {
        Self { rows: self.own_rows, ..*self }
    }

    /// Reads the gradient and what was normed, and adds to the gradient of the stream.
    fn norm_backward(&self) -> Work {
        self.of_own_rows().stream(3 * self.hidden, self.hidden)
    }

    fn activation(&self, widths: &Widths) -> Work {
        self.stream(widths.gate_up + widths.activated, 0)
    }

    fn rotation(&self, widths: &Widths) -> Work {
        if self.is_rotary { self.stream(2 * widths.queries_and_keys(), 0) } else { Work::default() }
    }

    /// An operator that is called for queries and for keys.
    fn halves(&self, fresh: usize, kept: usize) -> Work {
        self.elements(0.5 * fresh as f64, 0.5 * kept as f64) * 2.0
    }

    /// A pass over `fresh` elements per row that were just made and `kept` ones from the forward pass.
    pub(super) fn stream(&self, fresh: usize, kept: usize) -> Work {
        self.elements(fresh as f64, kept as f64)
    }

    fn elements(&self, fresh: f64, kept: f64) -> Work {
        let bytes = self.rows * self.operators.element;
        self.operators.stream(OperatorBytes { fresh: fresh * bytes, kept: kept * bytes }, self.held)
    }

    /// The same over numbers of fp32, or over indices.
    fn wide_stream(&self, numbers: usize) -> Work {
        let bytes = self.rows * super::WIDE;
        self.operators.stream(OperatorBytes { fresh: numbers as f64 * bytes, kept: 0.0 }, self.held)
    }
}

/// The products of all experts over the rows of a micro-batch: gate and up, and down.
pub(super) fn expert_linears(widths: &Widths, rows: f64, ranks: usize) -> [Linear; 2] {
    let (expert, hidden) = (widths.expert as f64, widths.hidden as f64);
    let slots = rows * widths.choices as f64;
    // Ranks that share the experts send each other as many slots as they have.
    let rows = (slots * ranks as f64 / widths.experts as f64).max(1.0);
    let groups = slots / rows;
    [
        Linear { rows, outputs: 2.0 * expert, inputs: hidden, groups },
        Linear { rows, outputs: hidden, inputs: expert, groups },
    ]
}
