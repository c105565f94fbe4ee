//! The nonlinear functions between the matrices of a feed-forward layer.

use super::kernel::{address, flag, word};
use super::source::KernelSource::Pointwise;
use super::{Cuda, format_of};
use crate::device::ActivationBackward;
use crate::{Element, Gelu, Matrix, MatrixMut};

impl Cuda {
    pub(crate) fn swiglu<E: Element>(&self, gate_up: Matrix<'_, E>, out: MatrixMut<'_, E>) {
        let (x, to, (rows, columns)) = (self.rows(&gate_up), self.rows_mut(&out), out.shape());
        let wide = x.is_aligned() && to.is_aligned() && columns.is_multiple_of(8);
        self.kernel(Pointwise, [format_of::<E>(); 3], "swiglu").over(
            rows * columns.div_ceil(8),
            &[
                address(x.address),
                word(x.stride),
                address(to.address),
                word(to.stride),
                word(rows),
                word(columns),
                flag(wide),
            ],
        );
    }

    pub(crate) fn swiglu_backward<E: Element>(&self, activation: ActivationBackward<'_, E>) {
        let ActivationBackward { x: gate_up, d_out, d_x: d_gate_up } = activation;
        let (x, d, to) = (self.rows(&gate_up), self.rows(&d_out), self.rows_mut(&d_gate_up));
        let (rows, columns) = d_out.shape();
        let wide = [x, d, to].iter().all(super::memory::MatrixLines::is_aligned) && columns.is_multiple_of(8);
        self.kernel(Pointwise, [format_of::<E>(); 3], "swiglu_backward").over(
            rows * columns.div_ceil(8),
            &[
                address(x.address),
                word(x.stride),
                address(d.address),
                word(d.stride),
                address(to.address),
                word(to.stride),
                word(rows),
                word(columns),
                flag(wide),
            ],
        );
    }

    pub(crate) fn gelu<E: Element>(&self, kind: Gelu, x: Matrix<'_, E>, out: MatrixMut<'_, E>) {
        let (from, to, (rows, columns)) = (self.rows(&x), self.rows_mut(&out), x.shape());
        self.kernel(Pointwise, [format_of::<E>(); 3], "gelu").over(
            rows * columns.div_ceil(8),
            &[
                flag(kind == Gelu::Exact),
                address(from.address),
                word(from.stride),
                address(to.address),
                word(to.stride),
                word(rows),
                word(columns),
            ],
        );
    }

    pub(crate) fn gelu_backward<E: Element>(&self, kind: Gelu, activation: ActivationBackward<'_, E>) {
        let ActivationBackward { x, d_out, d_x } = activation;
        let (from, d, to) = (self.rows(&x), self.rows(&d_out), self.rows_mut(&d_x));
        let (rows, columns) = x.shape();
        self.kernel(Pointwise, [format_of::<E>(); 3], "gelu_backward").over(
            rows * columns.div_ceil(8),
            &[
                flag(kind == Gelu::Exact),
                address(from.address),
                word(from.stride),
                address(d.address),
                word(d.stride),
                address(to.address),
                word(to.stride),
                word(rows),
                word(columns),
            ],
        );
    }
}
