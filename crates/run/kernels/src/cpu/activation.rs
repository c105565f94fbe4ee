//! The nonlinear functions between the matrices of a feed-forward layer.

use super::Cpu;
use super::elementary::{normal, sigmoid};
use crate::device::ActivationBackward;
use crate::{Element, Gelu, LimitedGate, Matrix, MatrixMut};

impl Cpu {
    pub(crate) fn swiglu<E: Element>(&self, gate_up: Matrix<'_, E>, out: MatrixMut<'_, E>) {
        let (gate_up, shape) = (self.rows(gate_up), out.shape());
        inlined!(self.in_rows(shape, self.rows_mut(out), |row, out| {
            let (gates, ups) = gate_up.row(row).split_at(out.len());
            for ((out, gate), up) in out.iter_mut().zip(gates).zip(ups) {
                let gate = gate.widen();
                *out = E::narrow(gate * sigmoid(gate) * up.widen());
            }
        }));
    }

    pub(crate) fn swiglu_backward<E: Element>(&self, activation: ActivationBackward<'_, E>) {
        let ActivationBackward { x: gate_up, d_out, d_x: d_gate_up } = activation;
        let (gate_up, d_out) = (self.rows(gate_up), self.rows(d_out));
        inlined!(self.in_rows(d_out.shape(), self.rows_mut(d_gate_up), |row, d_gate_up| {
            let (gates, ups) = gate_up.row(row).split_at(d_out.columns);
            let (d_gates, d_ups) = d_gate_up.split_at_mut(d_out.columns);
            let outputs = d_gates.iter_mut().zip(d_ups).zip(d_out.row(row));
            for (((d_gate, d_up), d), (gate, up)) in outputs.zip(gates.iter().zip(ups)) {
                let (gate, d) = (gate.widen(), d.widen());
                let share = sigmoid(gate);
                *d_gate = E::narrow(d * up.widen() * (share + gate * (share * (1.0 - share))));
                *d_up = E::narrow(d * gate * share);
            }
        }));
    }

    pub(crate) fn gelu<E: Element>(&self, kind: Gelu, x: Matrix<'_, E>, out: MatrixMut<'_, E>) {
        let x = self.rows(x);
        inlined!(self.in_rows(x.shape(), self.rows_mut(out), |row, out| {
            let elements = out.iter_mut().zip(x.row(row));
            match kind {
                Gelu::Tanh => {
                    for (out, x) in elements {
                        *out = E::narrow(x.widen() * tanh_share(x.widen()).0);
                    }
                }
                Gelu::Exact => {
                    for (out, x) in elements {
                        *out = E::narrow(x.widen() * normal(x.widen()).share);
                    }
                }
            }
        }));
    }

    pub(crate) fn gelu_backward<E: Element>(&self, kind: Gelu, activation: ActivationBackward<'_, E>) {
        let ActivationBackward { x, d_out, d_x } = activation;
        let (x, d_out) = (self.rows(x), self.rows(d_out));
        inlined!(self.in_rows(x.shape(), self.rows_mut(d_x), |row, d_x| {
            let elements = d_x.iter_mut().zip(x.row(row)).zip(d_out.row(row));
            match kind {
                Gelu::Tanh => {
                    for ((d_x, x), d) in elements {
                        let (share, slope) = tanh_share(x.widen());
                        *d_x = E::narrow(d.widen() * (share + x.widen() * slope));
                    }
                }
                Gelu::Exact => {
                    for ((d_x, x), d) in elements {
                        let normal = normal(x.widen());
                        *d_x = E::narrow(d.widen() * (normal.share + x.widen() * normal.density));
                    }
                }
            }
        }));
    }
}

impl Cpu {
    pub(crate) fn geglu<E: Element>(&self, kind: Gelu, gate_up: Matrix<'_, E>, out: MatrixMut<'_, E>) {
        let (gate_up, shape) = (self.rows(gate_up), out.shape());
        inlined!(self.in_rows(shape, self.rows_mut(out), |row, out| {
            let (gates, ups) = gate_up.row(row).split_at(out.len());
            for ((out, gate), up) in out.iter_mut().zip(gates).zip(ups) {
                let gate = gate.widen();
                *out = E::narrow(gate * share(kind, gate).0 * up.widen());
            }
        }));
    }

    pub(crate) fn geglu_backward<E: Element>(&self, kind: Gelu, activation: ActivationBackward<'_, E>) {
        let ActivationBackward { x: gate_up, d_out, d_x: d_gate_up } = activation;
        let (gate_up, d_out) = (self.rows(gate_up), self.rows(d_out));
        inlined!(self.in_rows(d_out.shape(), self.rows_mut(d_gate_up), |row, d_gate_up| {
            let (gates, ups) = gate_up.row(row).split_at(d_out.columns);
            let (d_gates, d_ups) = d_gate_up.split_at_mut(d_out.columns);
            let outputs = d_gates.iter_mut().zip(d_ups).zip(d_out.row(row));
            for (((d_gate, d_up), d), (gate, up)) in outputs.zip(gates.iter().zip(ups)) {
                let (gate, d) = (gate.widen(), d.widen());
                let (share, slope) = share(kind, gate);
                *d_gate = E::narrow(d * up.widen() * (share + gate * slope));
                *d_up = E::narrow(d * gate * share);
            }
        }));
    }
}

impl Cpu {
    pub(crate) fn limited<E: Element>(
        &self,
        gate: LimitedGate,
        gate_up: Matrix<'_, E>,
        out: MatrixMut<'_, E>,
    ) {
        let (gate_up, shape, LimitedGate { alpha, limit }) = (self.rows(gate_up), out.shape(), gate);
        inlined!(self.in_rows(shape, self.rows_mut(out), |row, out| {
            let (gates, ups) = gate_up.row(row).split_at(out.len());
            for ((out, gate), up) in out.iter_mut().zip(gates).zip(ups) {
                let (gate, up) = (gate.widen().min(limit), up.widen().clamp(-limit, limit));
                *out = E::narrow(gate * sigmoid(alpha * gate) * (up + 1.0));
            }
        }));
    }

    pub(crate) fn limited_backward<E: Element>(
        &self,
        gate: LimitedGate,
        activation: ActivationBackward<'_, E>,
    ) {
        let ActivationBackward { x: gate_up, d_out, d_x: d_gate_up } = activation;
        let (gate_up, d_out, LimitedGate { alpha, limit }) = (self.rows(gate_up), self.rows(d_out), gate);
        inlined!(self.in_rows(d_out.shape(), self.rows_mut(d_gate_up), |row, d_gate_up| {
            let (gates, ups) = gate_up.row(row).split_at(d_out.columns);
            let (d_gates, d_ups) = d_gate_up.split_at_mut(d_out.columns);
            let outputs = d_gates.iter_mut().zip(d_ups).zip(d_out.row(row));
            for (((d_gate, d_up), d), (gate, up)) in outputs.zip(gates.iter().zip(ups)) {
                let (gate, up, d) = (gate.widen(), up.widen(), d.widen());
                // Beyond the limits nothing changes; at them it does, as in PyTorch.
                let passes =
                    [gate <= limit, (-limit..=limit).contains(&up)].map(|is| if is { 1.0 } else { 0.0 });
                let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
                let share = sigmoid(alpha * gate);
                let slope = share + alpha * gate * (share * (1.0 - share));
                *d_gate = E::narrow(passes[0] * d * (up + 1.0) * slope);
                *d_up = E::narrow(passes[1] * d * gate * share);
            }
        }));
    }
}

/// The share that GELU lets through, and its slope.
#[inline(always)]
fn share(kind: Gelu, x: f32) -> (f32, f32) {
    match kind {
        Gelu::Tanh => tanh_share(x),
        Gelu::Exact => {
            let normal = normal(x);
            (normal.share, normal.density)
        }
    }
}

/// `(1 + tanh(u)) / 2` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`, which is the sigmoid of `2 u`, and its slope.
#[inline(always)]
fn tanh_share(x: f32) -> (f32, f32) {
    const TWICE_ROOT: f32 = 1.595_769_2;
    const CUBE: f32 = 0.044_715;
    // Beyond this the share is 0 or 1 to the last bit, and powers of larger numbers overflow.
    let x = x.clamp(-20.0, 20.0);
    let share = sigmoid(TWICE_ROOT * (x + CUBE * x * x * x));
    (share, share * (1.0 - share) * TWICE_ROOT * (1.0 + 3.0 * CUBE * x * x))
}
