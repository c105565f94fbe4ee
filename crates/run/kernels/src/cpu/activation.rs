//! The nonlinear functions between the matrices of a feed-forward layer.

use bedplate_breakdown::Part;

use crate::cpu::elementary::{normal, sigmoid};
use crate::{Device, Element, Matrix, MatrixMut};

/// How the share of the normal distribution in `x * share(x)` is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gelu {
    /// By the approximation with a hyperbolic tangent: GPT-2's `gelu_new`.
    Tanh,
    Exact,
}

impl Device {
    /// `out = silu(gate) * up`, where a row of `gate_up` holds the gates, then as many ups.
    pub fn swiglu<E: Element>(&self, gate_up: Matrix<'_, E>, out: MatrixMut<'_, E>) {
        let (rows, columns) = (out.rows, out.columns);
        assert_eq!((gate_up.rows, gate_up.columns), (rows, 2 * columns), "the input of SwiGLU");
        let out = out.into_shared();
        self.time(Part::Memory, || {
            self.in_rows(
                rows,
                columns,
                #[inline(always)]
                |rows| {
                    for row in rows {
                        let (gates, ups) = gate_up.row(row).split_at(columns);
                        for ((out, gate), up) in out.row(row).iter_mut().zip(gates).zip(ups) {
                            let gate = gate.widen();
                            *out = E::narrow(gate * sigmoid(gate) * up.widen());
                        }
                    }
                },
            );
        });
    }

    /// Replaces `d_gate_up`.
    pub fn swiglu_backward<E: Element>(
        &self,
        gate_up: Matrix<'_, E>,
        d_out: Matrix<'_, E>,
        d_gate_up: MatrixMut<'_, E>,
    ) {
        let Matrix { rows, columns, .. } = d_out;
        assert_eq!((gate_up.rows, gate_up.columns), (rows, 2 * columns), "the input of SwiGLU");
        assert_eq!((d_gate_up.rows, d_gate_up.columns), (rows, 2 * columns), "the input of SwiGLU");
        let d_gate_up = d_gate_up.into_shared();
        self.time(Part::Memory, || {
            self.in_rows(
                rows,
                columns,
                #[inline(always)]
                |rows| {
                    for row in rows {
                        let (gates, ups) = gate_up.row(row).split_at(columns);
                        let (d_gates, d_ups) = d_gate_up.row(row).split_at_mut(columns);
                        let outputs = d_gates.iter_mut().zip(d_ups).zip(d_out.row(row));
                        for (((d_gate, d_up), d), (gate, up)) in outputs.zip(gates.iter().zip(ups)) {
                            let (gate, d) = (gate.widen(), d.widen());
                            let share = sigmoid(gate);
                            *d_gate = E::narrow(d * up.widen() * (share + gate * (share * (1.0 - share))));
                            *d_up = E::narrow(d * gate * share);
                        }
                    }
                },
            );
        });
    }

    pub fn gelu<E: Element>(&self, kind: Gelu, x: Matrix<'_, E>, out: MatrixMut<'_, E>) {
        assert_eq!((x.rows, x.columns), (out.rows, out.columns), "the output of GELU");
        let out = out.into_shared();
        self.time(Part::Memory, || {
            self.in_rows(
                x.rows,
                x.columns,
                #[inline(always)]
                |rows| {
                    for row in rows {
                        let numbers = out.row(row).iter_mut().zip(x.row(row));
                        match kind {
                            Gelu::Tanh => numbers.for_each(
                                #[inline(always)]
                                |(out, x)| *out = E::narrow(x.widen() * tanh_share(x.widen()).0),
                            ),
                            Gelu::Exact => numbers.for_each(
                                #[inline(always)]
                                |(out, x)| *out = E::narrow(x.widen() * normal(x.widen()).share),
                            ),
                        }
                    }
                },
            );
        });
    }

    /// Replaces `d_x`.
    pub fn gelu_backward<E: Element>(
        &self,
        kind: Gelu,
        x: Matrix<'_, E>,
        d_out: Matrix<'_, E>,
        d_x: MatrixMut<'_, E>,
    ) {
        assert_eq!((x.rows, x.columns), (d_out.rows, d_out.columns), "the output of GELU");
        assert_eq!((x.rows, x.columns), (d_x.rows, d_x.columns), "the input of GELU");
        let d_x = d_x.into_shared();
        self.time(Part::Memory, || {
            self.in_rows(
                x.rows,
                x.columns,
                #[inline(always)]
                |rows| {
                    for row in rows {
                        let numbers = d_x.row(row).iter_mut().zip(x.row(row)).zip(d_out.row(row));
                        match kind {
                            Gelu::Tanh => numbers.for_each(
                                #[inline(always)]
                                |((d_x, x), d)| {
                                    let (share, slope) = tanh_share(x.widen());
                                    *d_x = E::narrow(d.widen() * (share + x.widen() * slope));
                                },
                            ),
                            Gelu::Exact => numbers.for_each(
                                #[inline(always)]
                                |((d_x, x), d)| {
                                    let normal = normal(x.widen());
                                    *d_x = E::narrow(d.widen() * (normal.share + x.widen() * normal.density));
                                },
                            ),
                        }
                    }
                },
            );
        });
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

#[cfg(test)]
mod tests;
