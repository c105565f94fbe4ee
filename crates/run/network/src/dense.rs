//! The dense MLP of a layer; also its shared expert.

use bedplate_kernels::{Accumulate, Buffer, Element, Matrix, MatrixMut};

use crate::layer::{BlockGradient, Given, LayerRun, reborrow};
use crate::numerics::Activation;
use crate::table::DenseParts;

impl<E: Element> LayerRun<'_, E> {
    /// Up to the activations; the last product is the caller's.
    pub(crate) fn dense_inner(
        &self,
        dense: &DenseParts,
        input: Matrix<'_, E>,
        gate_up: &mut Buffer<E>,
        activated: &mut Buffer<E>,
    ) {
        self.linear(&dense.gate_up, input, self.matrix_mut(gate_up, dense.outputs()));
        self.activate(dense, gate_up, activated);
    }

    pub(crate) fn activate(&self, dense: &DenseParts, gate_up: &Buffer<E>, activated: &mut Buffer<E>) {
        let gate_up = self.matrix(gate_up, dense.outputs());
        let activated = self.matrix_mut(activated, dense.width);
        match self.network.architecture().numerics.activation {
            Activation::Gated(gate) => self.device.gated(gate, gate_up, activated),
            Activation::Gelu(kind) => self.device.gelu(kind, gate_up, activated),
        }
    }

    /// From a gradient of the MLP's output to that of its input; also the way back through a shared expert.
    #[expect(clippy::too_many_arguments, reason = "what goes in, what comes out, and where")]
    pub(crate) fn dense_backward<T: Element>(
        &self,
        dense: &DenseParts,
        given: Given<'_, E>,
        d_output: Matrix<'_, E>,
        rooms: DenseRooms<'_, E>,
        mode: Accumulate,
        d_input: MatrixMut<'_, T>,
        mut gradient: BlockGradient<'_>,
    ) {
        let DenseRooms { activated, gate_up } = rooms;
        let forward = self.matrix(&given.cheap.activated, dense.width);
        self.linear_gradient(&dense.down, d_output, forward, reborrow(&mut gradient));
        let d_activated = self.matrix_mut(activated, dense.width);
        self.input_gradient(&dense.down, d_output, Accumulate::Replace, d_activated);
        let before = self.matrix(&given.kept.gate_up, dense.outputs());
        let d_activated = self.matrix(activated, dense.width);
        let d_gate_up = self.matrix_mut(gate_up, dense.outputs());
        match self.network.architecture().numerics.activation {
            Activation::Gated(gate) => self.device.gated_backward(gate, before, d_activated, d_gate_up),
            Activation::Gelu(kind) => self.device.gelu_backward(kind, before, d_activated, d_gate_up),
        }
        let d_gate_up = self.matrix(gate_up, dense.outputs());
        self.linear_gradient(&dense.gate_up, d_gate_up, given.normed, gradient);
        self.input_gradient(&dense.gate_up, d_gate_up, mode, d_input);
    }
}

/// Room for the inner gradients of a dense MLP.
pub(crate) struct DenseRooms<'a, E: Element> {
    pub(crate) activated: &'a mut Buffer<E>,
    pub(crate) gate_up: &'a mut Buffer<E>,
}
