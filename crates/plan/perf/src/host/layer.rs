//! A layer's operators, in the order in which the runtime calls them.

use super::operators::{Linear, Operators, Stream, Work};
use super::widths::Widths;

/// Seconds of a layer for one micro-batch.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LayerWork {
    pub(super) forward: Work,
    pub(super) backward: Work,
    /// Norms and activations, which selective recomputation repeats.
    pub(super) cheap: Work,
}

/// Where a micro-batch is computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) operators: &'a Operators,
    pub(super) rows: f64,
    pub(super) hidden: f64,
    /// Bytes of all activations, which hold a layer's until its backward pass.
    pub(super) held: f64,
}

impl Place<'_> {
    pub(super) fn layer(&self, widths: &Widths, keys: f64) -> LayerWork {
        LayerWork {
            forward: self.attention_forward(widths, keys) + self.mlp_forward(widths),
            backward: self.attention_backward(widths, keys) + self.mlp_backward(widths),
            cheap: self.norm() * 2.0 + self.recompute_mlp(widths),
        }
    }

    fn attention_forward(&self, widths: &Widths, keys: f64) -> Work {
        let output = self.linear(self.hidden, widths.attended);
        let mut work = self.norm() + self.operators.product(output);
        if widths.unnormed > 0.0 {
            // Queries and keys go to their own buffer, values straight to their place.
            work += self.operators.product(self.linear(widths.unnormed, self.hidden))
                + self.operators.product(self.linear(widths.qkv - widths.unnormed, self.hidden))
                + self.halves(2.0 * widths.unnormed, 0.0);
        } else {
            work += self.operators.product(self.linear(widths.qkv, self.hidden));
        }
        work + self.rotation(widths) + self.operators.attention(self.rows * widths.attended, keys)
    }

    fn attention_backward(&self, widths: &Widths, keys: f64) -> Work {
        let mut work = self.both_gradients(self.linear(self.hidden, widths.attended))
            + self.operators.attention_backward(self.rows * widths.attended, keys)
            + self.rotation(widths)
            + self.both_gradients(self.linear(widths.qkv, self.hidden))
            + self.norm_backward();
        if widths.unnormed > 0.0 {
            work += self.halves(2.0 * widths.unnormed, widths.unnormed);
        }
        work
    }

    fn mlp_forward(&self, widths: &Widths) -> Work {
        if widths.experts == 0.0 {
            return self.norm() + self.dense_forward(widths);
        }
        let (choices, hidden) = (widths.choices, self.hidden);
        let [up, down] = widths.expert_linears(self.rows, self.hidden);
        let mut work = self.norm()
            + self.stream(2.0 * hidden, 0.0)
            + self.operators.product(self.linear(widths.experts, hidden))
            + self.wide_stream(2.0 * widths.experts)
            + self.wide_stream(3.0 * choices)
            + self.recompute_experts(widths)
            + self.operators.product(up)
            + self.operators.product(down)
            + self.stream((choices + 2.0) * hidden, 0.0);
        if widths.has_shared {
            work += self.dense_forward(widths) + self.stream(3.0 * hidden, 0.0);
        }
        if widths.has_shared_gate {
            work += self.operators.product(self.linear(1.0, hidden));
        }
        work
    }

    fn dense_forward(&self, widths: &Widths) -> Work {
        self.operators.product(self.linear(widths.gate_up, self.hidden))
            + self.activation(widths)
            + self.operators.product(self.linear(self.hidden, widths.activated))
    }

    fn mlp_backward(&self, widths: &Widths) -> Work {
        if widths.experts == 0.0 {
            return self.norm_backward() + self.dense_backward(widths);
        }
        let (choices, hidden) = (widths.choices, self.hidden);
        let [up, down] = widths.expert_linears(self.rows, self.hidden);
        let mut work = self.norm_backward()
            + self.stream((choices + 1.0) * hidden, choices * hidden)
            + self.both_gradients(down)
            + self.stream(3.0 * widths.expert_activated(), widths.expert_gate_up())
            + self.both_gradients(up)
            + self.stream((choices + 1.0) * hidden, 0.0)
            + self.wide_stream(2.0 * widths.experts)
            + self.both_gradients(self.linear(widths.experts, hidden));
        if widths.has_shared {
            work += self.dense_backward(widths);
        }
        if widths.has_shared_gate {
            work += self.stream(2.0 * hidden, hidden) + self.both_gradients(self.linear(1.0, hidden));
        }
        work
    }

    fn dense_backward(&self, widths: &Widths) -> Work {
        self.both_gradients(self.linear(self.hidden, widths.activated))
            + self.stream(widths.activated + widths.gate_up, widths.gate_up)
            + self.both_gradients(self.linear(widths.gate_up, self.hidden))
    }

    fn recompute_mlp(&self, widths: &Widths) -> Work {
        let routed = if widths.experts > 0.0 { self.recompute_experts(widths) } else { Work::default() };
        let dense = if widths.gate_up > 0.0 { self.activation(widths) } else { Work::default() };
        routed + dense
    }

    /// Tokens in the order of their experts, and the experts' activations.
    fn recompute_experts(&self, widths: &Widths) -> Work {
        self.stream(2.0 * widths.choices * self.hidden, 0.0)
            + self.stream(widths.expert_gate_up() + widths.expert_activated(), 0.0)
    }

    pub(super) fn linear(&self, outputs: f64, inputs: f64) -> Linear {
        Linear::new(self.rows, outputs, inputs)
    }

    pub(super) fn both_gradients(&self, linear: Linear) -> Work {
        self.operators.input_gradient(linear) + self.operators.weight_gradient(linear)
    }

    pub(super) fn norm(&self) -> Work {
        self.stream(2.0 * self.hidden, 0.0)
    }

    /// Reads the gradient and what was normed, and adds to the gradient of the stream.
    fn norm_backward(&self) -> Work {
        self.stream(3.0 * self.hidden, self.hidden)
    }

    fn activation(&self, widths: &Widths) -> Work {
        self.stream(widths.gate_up + widths.activated, 0.0)
    }

    fn rotation(&self, widths: &Widths) -> Work {
        if widths.rotated > 0.0 { self.stream(2.0 * widths.rotated, 0.0) } else { Work::default() }
    }

    /// An operator that is called for queries and for keys.
    fn halves(&self, fresh: f64, kept: f64) -> Work {
        self.stream(0.5 * fresh, 0.5 * kept) * 2.0
    }

    /// A pass over some elements per row, part of them kept since the forward pass.
    pub(super) fn stream(&self, fresh: f64, kept: f64) -> Work {
        let bytes = self.rows * self.operators.element;
        self.operators.stream(Stream { fresh: fresh * bytes, kept: kept * bytes }, self.held)
    }

    /// The same over fp32 numbers or indices.
    fn wide_stream(&self, numbers: f64) -> Work {
        self.operators.stream(Stream { fresh: numbers * self.rows * super::WIDE, kept: 0.0 }, self.held)
    }
}
