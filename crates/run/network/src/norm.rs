//! The norms before attention, MLP and head: RMS norm or layer norm, as the model has it.

use bedplate_kernels::{Accumulate, Buffer, Device, Element, Matrix, MatrixMut, NormWeight, View, ViewMut};

use crate::Architecture;
use crate::layer::{BlockGradient, LayerRun};
use crate::table::NormParts;
use crate::workspace::StreamGradients;

/// Statistics per row: one for an RMS norm; a layer norm, which has a bias, needs two.
fn statistics_per_row(parts: &NormParts) -> usize {
    if parts.bias.is_some() { 2 } else { 1 }
}

/// `weights` are those of the block.
pub(crate) fn forward<E: Element>(
    device: &Device,
    architecture: &Architecture,
    parts: &NormParts,
    weights: View<'_, E>,
    input: Matrix<'_, E>,
    output: MatrixMut<'_, E>,
    statistics: &mut Buffer<f32>,
) {
    let epsilon = architecture.numerics.norm_epsilon;
    let statistics = statistics.range_mut(0..input.shape().0 * statistics_per_row(parts));
    let weight = weights.range(parts.weight.clone());
    let weight_less = NormWeight { kept: weight, offset: architecture.numerics.norm_offset };
    match &parts.bias {
        None => device.rms_norm(input, weight_less, epsilon, output, statistics),
        Some(bias) => {
            let bias = Some(weights.range(bias.clone()));
            device.layer_norm(input, weight, bias, epsilon, output, statistics);
        }
    }
}

/// Adds the gradient of the input to `d_input`, where that of the residual already is, or replaces it.
#[expect(clippy::too_many_arguments, reason = "what goes in, what comes out, and where")]
pub(crate) fn backward<E: Element>(
    device: &Device,
    architecture: &Architecture,
    parts: &NormParts,
    weights: View<'_, E>,
    d_output: Matrix<'_, E>,
    input: Matrix<'_, E>,
    statistics: &Buffer<f32>,
    mode: Accumulate,
    d_input: MatrixMut<'_, E>,
    gradient: BlockGradient<'_>,
) {
    let statistics = statistics.range(0..input.shape().0 * statistics_per_row(parts));
    let weight = weights.range(parts.weight.clone());
    let weight_less = NormWeight { kept: weight, offset: architecture.numerics.norm_offset };
    let (d_weight, d_bias) = gradient.map(|gradient| split(parts, gradient)).unzip();
    let d_bias = d_bias.flatten();
    match &parts.bias {
        None => device.rms_norm_backward(d_output, input, weight_less, statistics, mode, d_input, d_weight),
        Some(_) => {
            device.layer_norm_backward(d_output, input, weight, statistics, mode, d_input, d_weight, d_bias);
        }
    }
}

/// The gradients of a norm's weight and bias.
fn split<'a>(parts: &NormParts, gradient: ViewMut<'a, f32>) -> (ViewMut<'a, f32>, Option<ViewMut<'a, f32>>) {
    let end = parts.weight.end;
    let (front, back) = gradient.split_at(end);
    let bias = parts.bias.clone().map(|bias| back.range(bias.start - end..bias.end - end));
    (front.range(parts.weight.clone()), bias)
}

impl<E: Element> LayerRun<'_, E> {
    /// The input as it is where there is no norm.
    pub(crate) fn norm(
        &self,
        parts: Option<&NormParts>,
        input: &Buffer<E>,
        output: &mut Buffer<E>,
        statistics: &mut Buffer<f32>,
    ) {
        let Some(parts) = parts else {
            let numbers = 0..self.own_rows * self.hidden();
            return self.device.copy(input.range(numbers.clone()), output.range_mut(numbers));
        };
        let (input, output) = (self.own(input, self.hidden()), self.own_mut(output, self.hidden()));
        forward(self.device, self.network.architecture(), parts, self.weights, input, output, statistics);
    }

    /// From the gradient in `room.normed` to more of that in `room.stream`.
    pub(crate) fn norm_backward(
        &self,
        parts: Option<&NormParts>,
        input: &Buffer<E>,
        statistics: &Buffer<f32>,
        room: &mut StreamGradients<E>,
        gradient: BlockGradient<'_>,
    ) {
        let hidden = self.hidden();
        let Some(parts) = parts else {
            let numbers = 0..self.own_rows * hidden;
            return self.device.add(room.normed.range(numbers.clone()), room.stream.range_mut(numbers));
        };
        backward(
            self.device,
            self.network.architecture(),
            parts,
            self.weights,
            self.own(&room.normed, hidden),
            self.own(input, hidden),
            statistics,
            Accumulate::Add,
            self.own_mut(&mut room.stream, hidden),
            gradient,
        );
    }

    /// From the gradient of what goes on to the stream to that of what goes into the norm before it, which replaces `branch`.
    pub(crate) fn branch_backward(
        &self,
        parts: &NormParts,
        (input, statistics): (&Buffer<E>, &Buffer<f32>),
        stream: &Buffer<E>,
        branch: &mut Buffer<E>,
        gradient: BlockGradient<'_>,
    ) {
        let hidden = self.hidden();
        backward(
            self.device,
            self.network.architecture(),
            parts,
            self.weights,
            self.own(stream, hidden),
            self.own(input, hidden),
            statistics,
            Accumulate::Replace,
            self.own_mut(branch, hidden),
            gradient,
        );
    }
}
