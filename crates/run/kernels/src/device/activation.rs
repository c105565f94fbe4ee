//! The nonlinear functions between the matrices of a feed-forward layer.

use bedplate_breakdown::Part;

use super::Backend;
use crate::{Device, Element, Matrix, MatrixMut};

/// How the share of the normal distribution in `x * share(x)` is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gelu {
    /// By the approximation with a hyperbolic tangent: GPT-2's `gelu_new`.
    Tanh,
    Exact,
}

/// What a gate goes through before it weighs what stands beside it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Gate {
    Silu,
    /// On the processor only.
    Gelu(Gelu),
    /// On the processor only.
    Limited(LimitedGate),
}

/// `g * sigmoid(alpha * g)` of gates up to the limit; it weighs one more than what stands beside it, which is kept between the limit and less
/// than none of it (gpt-oss).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LimitedGate {
    pub alpha: f32,
    pub limit: f32,
}

pub(crate) struct ActivationBackward<'a, E> {
    pub(crate) x: Matrix<'a, E>,
    pub(crate) d_out: Matrix<'a, E>,
    pub(crate) d_x: MatrixMut<'a, E>,
}

impl Device {
    /// `out = silu(gate) * up`, where a row of `gate_up` holds the gates, then as many ups.
    pub fn swiglu<E: Element>(&self, gate_up: Matrix<'_, E>, out: MatrixMut<'_, E>) {
        assert_eq!(gate_up.shape(), (out.rows, 2 * out.columns), "the input of SwiGLU");
        on_backend!(self, Memory, swiglu(gate_up, out));
    }

    /// Replaces `d_gate_up`.
    pub fn swiglu_backward<E: Element>(
        &self,
        gate_up: Matrix<'_, E>,
        d_out: Matrix<'_, E>,
        d_gate_up: MatrixMut<'_, E>,
    ) {
        let input = (d_out.rows, 2 * d_out.columns);
        assert_eq!((gate_up.shape(), d_gate_up.shape()), (input, input), "the input of SwiGLU");
        let activation = ActivationBackward { x: gate_up, d_out, d_x: d_gate_up };
        on_backend!(self, Memory, swiglu_backward(activation));
    }

    /// `out = activation(gate) * up`, laid out as for [`swiglu`](Device::swiglu).
    pub fn gated<E: Element>(&self, gate: Gate, gate_up: Matrix<'_, E>, out: MatrixMut<'_, E>) {
        match (gate, &self.backend) {
            (Gate::Silu, _) => self.swiglu(gate_up, out),
            (_, Backend::Cpu(cpu)) => {
                assert_eq!(gate_up.shape(), (out.rows, 2 * out.columns), "the input of a gated activation");
                cpu.time(Part::Memory, || match gate {
                    Gate::Silu => cpu.swiglu(gate_up, out),
                    Gate::Gelu(kind) => cpu.geglu(kind, gate_up, out),
                    Gate::Limited(gate) => cpu.limited(gate, gate_up, out),
                });
            }
            (_, Backend::Cuda(_)) => unreachable!("a GPU has SiLU alone as gate"),
        }
    }

    /// Replaces `d_gate_up`.
    pub fn gated_backward<E: Element>(
        &self,
        gate: Gate,
        gate_up: Matrix<'_, E>,
        d_out: Matrix<'_, E>,
        d_gate_up: MatrixMut<'_, E>,
    ) {
        match (gate, &self.backend) {
            (Gate::Silu, _) => self.swiglu_backward(gate_up, d_out, d_gate_up),
            (_, Backend::Cpu(cpu)) => {
                let input = (d_out.rows, 2 * d_out.columns);
                let found = (gate_up.shape(), d_gate_up.shape());
                assert_eq!(found, (input, input), "the input of a gated activation");
                let activation = ActivationBackward { x: gate_up, d_out, d_x: d_gate_up };
                cpu.time(Part::Memory, || match gate {
                    Gate::Silu => cpu.swiglu_backward(activation),
                    Gate::Gelu(kind) => cpu.geglu_backward(kind, activation),
                    Gate::Limited(gate) => cpu.limited_backward(gate, activation),
                });
            }
            (_, Backend::Cuda(_)) => unreachable!("a GPU has SiLU alone as gate"),
        }
    }

    pub fn gelu<E: Element>(&self, kind: Gelu, x: Matrix<'_, E>, out: MatrixMut<'_, E>) {
        assert_eq!(x.shape(), out.shape(), "the output of GELU");
        on_backend!(self, Memory, gelu(kind, x, out));
    }

    /// Replaces `d_x`.
    pub fn gelu_backward<E: Element>(
        &self,
        kind: Gelu,
        x: Matrix<'_, E>,
        d_out: Matrix<'_, E>,
        d_x: MatrixMut<'_, E>,
    ) {
        assert_eq!((d_out.shape(), d_x.shape()), (x.shape(), x.shape()), "output and input of GELU");
        let activation = ActivationBackward { x, d_out, d_x };
        on_backend!(self, Memory, gelu_backward(kind, activation));
    }
}

#[cfg(test)]
mod tests;
