//! Linear layers, dense and packed.

use super::sample::CheckInputs;
use super::{Check, checks};
use crate::{Accumulate, Element, WeightFormat};

pub(super) const CHECKS: &[Check] = checks![
    linear,
    linear_odd,
    linear_mixed,
    linear_fp8,
    add_sums,
    packed_dense,
    packed_fp8,
    packed_8_bits,
    packed_4_bits,
    packed_vector,
    rms_norm_linear,
    swiglu_linear
];

fn linear<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    linear_of::<E>(s, [130, 256, 192])
}

/// Sizes that no vector load fits.
fn linear_odd<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    linear_of::<E>(s, [67, 91, 53])
}

fn linear_of<E: Element>(s: &CheckInputs<'_>, [rows, inputs, outputs]: [usize; 3]) -> Vec<f32> {
    let (x, weight, bias) =
        (s.grid::<E>(rows, inputs), s.vector::<E>(outputs * inputs), s.vector::<E>(outputs));
    let (residual, mut out, mut plain) =
        (s.grid::<E>(rows, outputs), s.grid::<E>(rows, outputs), s.grid::<f32>(rows, outputs));
    s.device.linear(x.matrix(), weight.view(), Some(bias.view()), Some(residual.matrix()), out.matrix_mut());
    s.device.linear(x.matrix(), weight.view(), Some(bias.view()), None, plain.matrix_mut());
    let (d_out, mut d_x) = (s.grid::<E>(rows, outputs), s.grid::<E>(rows, inputs));
    s.device.linear_backward_input(d_out.matrix(), weight.view(), Accumulate::Add, d_x.matrix_mut());
    let (mut d_weight, mut d_bias) = (s.vector::<f32>(outputs * inputs), s.vector::<f32>(outputs));
    s.device.linear_backward_weight(d_out.matrix(), x.matrix(), d_weight.view_mut(), Some(d_bias.view_mut()));
    [out.read(), plain.read(), d_x.read(), s.read(&d_weight), s.read(&d_bias)].concat()
}

/// Numbers of which fp8 holds every line exactly, so that rounded sides give what others give.
fn linear_fp8<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let coarse = |len: usize| {
        let numbers: Vec<E> = (0..len).map(|_| E::narrow(s.coarse())).collect();
        s.given(&numbers)
    };
    let each = [(40, 96, 80), (7, 72, 81), (150, 208, 272)].map(|(rows, inputs, outputs)| {
        let (x, weight, d_out) = (coarse(rows * inputs), coarse(outputs * inputs), coarse(rows * outputs));
        let (bias, residual, mut out) =
            (s.vector::<E>(outputs), s.grid::<E>(rows, outputs), s.grid::<E>(rows, outputs));
        let (bias, under) = (Some(bias.view()), Some(residual.matrix()));
        s.device.linear_fp8(x.view().matrix(rows, inputs), weight.view(), bias, under, out.matrix_mut());
        let (d_out, mut d_x) = (d_out.view().matrix(rows, outputs), s.grid::<E>(rows, inputs));
        s.device.linear_fp8_backward_input(d_out, weight.view(), Accumulate::Add, d_x.matrix_mut());
        [out.read(), d_x.read()].concat()
    });
    each.concat()
}

/// An activation in f32 with a weight in the other format.
fn linear_mixed<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let [rows, inputs, outputs] = [40, 64, 48];
    let (x, weight) = (s.grid::<f32>(rows, inputs), s.vector::<E>(outputs * inputs));
    let (mut out, mut d_x) = (s.grid::<f32>(rows, outputs), s.grid::<E>(rows, inputs));
    s.device.linear::<f32, E, f32>(x.matrix(), weight.view(), None, None, out.matrix_mut());
    let d_out = s.grid::<f32>(rows, outputs);
    s.device.linear_backward_input(d_out.matrix(), weight.view(), Accumulate::Replace, d_x.matrix_mut());
    [out.read(), d_x.read()].concat()
}

fn add_sums<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let (sums, residual, mut out) = (s.grid::<f32>(9, 50), s.grid::<E>(9, 50), s.grid::<E>(9, 50));
    let bias = s.vector::<E>(50);
    s.device.add_sums(sums.matrix(), Some(bias.view()), residual.matrix(), out.matrix_mut());
    out.read()
}

fn packed_dense<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let formats = [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::F16];
    formats.map(|format| packed::<E>(s, format, &[1, 2, 5, 40], [72, 80])).concat()
}

fn packed_8_bits<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    packed::<E>(s, WeightFormat::Int8, &[1, 2, 3, 8, 40], [72, 80])
}

/// Numbers that fp8 holds exactly, so that rounded rows give what others give.
fn packed_fp8<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let coarse = |len: usize| {
        let numbers: Vec<E> = (0..len).map(|_| E::narrow(s.coarse())).collect();
        s.given(&numbers)
    };
    let each = [(1, 72, 80), (7, 96, 80), (40, 96, 80), (40, 72, 81)].map(|(rows, inputs, outputs)| {
        let (weight, x) = (coarse(outputs * inputs), coarse(rows * inputs));
        let packed = s.device.pack(weight.view(), outputs, WeightFormat::Fp8);
        let (bias, residual, mut out) =
            (s.vector::<E>(outputs), s.grid::<E>(rows, outputs), s.grid::<E>(rows, outputs));
        let (x, residual) = (x.view().matrix(rows, inputs), Some(residual.matrix()));
        s.device.linear_packed(x, &packed, Some(bias.view()), residual, out.matrix_mut());
        out.read()
    });
    // Rounding itself: the processor keeps the same numbers.
    [packed::<E>(s, WeightFormat::Fp8, &[1, 3, 8], [72, 80]), each.concat()].concat()
}

fn packed_4_bits<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    packed::<E>(s, WeightFormat::Int4, &[1, 2, 3, 8, 40], [72, 96])
}

/// Sizes for the kernel of one or two rows.
fn packed_vector<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    [[512, 131], [1280, 64]].map(|sizes| packed::<E>(s, WeightFormat::Bf16, &[1, 2], sizes)).concat()
}

fn rms_norm_linear<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let (inputs, outputs) = (768, 131);
    let (weight, bias) = (s.vector::<E>(outputs * inputs), s.vector::<E>(outputs));
    let (packed, norm) = (s.device.pack(weight.view(), outputs, WeightFormat::Bf16), s.vector::<E>(inputs));
    let each = [1, 2, 5].map(|rows| {
        let (x, mut normed) = (s.grid::<E>(rows, inputs), s.grid::<E>(rows, inputs));
        let (mut inverses, mut out) = (s.device.zeros(rows), s.grid::<E>(rows, outputs));
        let room = (normed.matrix_mut(), inverses.view_mut());
        let (norm, bias) = (norm.view(), Some(bias.view()));
        s.device.rms_norm_linear(x.matrix(), norm, 1e-5, &packed, bias, room, out.matrix_mut());
        out.read()
    });
    each.concat()
}

fn swiglu_linear<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let (inputs, outputs) = (512, 75);
    let weight = s.vector::<E>(outputs * inputs);
    let packed = s.device.pack(weight.view(), outputs, WeightFormat::Bf16);
    let each = [1, 2, 5].map(|rows| {
        let (gate_up, mut room) = (s.grid::<E>(rows, 2 * inputs), s.grid::<E>(rows, inputs));
        let (residual, mut out) = (s.grid::<E>(rows, outputs), s.grid::<E>(rows, outputs));
        let (residual, to) = (Some(residual.matrix()), out.matrix_mut());
        s.device.swiglu_linear(gate_up.matrix(), &packed, None, residual, room.matrix_mut(), to);
        out.read()
    });
    each.concat()
}

fn packed<E: Element>(
    s: &CheckInputs<'_>,
    format: WeightFormat,
    rows: &[usize],
    [inputs, outputs]: [usize; 2],
) -> Vec<f32> {
    let (weight, bias) = (s.vector::<E>(outputs * inputs), s.vector::<E>(outputs));
    let packed = s.device.pack(weight.view(), outputs, format);
    let (tokens, mut found) = (s.tokens(9, outputs), s.grid::<E>(9, inputs));
    s.device.unpack_rows(tokens.view(), &packed, found.matrix_mut());
    let mut all = found.read();
    for rows in rows {
        let (x, residual, mut out) =
            (s.grid::<E>(*rows, inputs), s.grid::<E>(*rows, outputs), s.grid::<E>(*rows, outputs));
        let (bias, residual) = (Some(bias.view()), Some(residual.matrix()));
        s.device.linear_packed(x.matrix(), &packed, bias, residual, out.matrix_mut());
        let mut wide = s.grid::<f32>(*rows, outputs);
        s.device.linear_packed(x.matrix(), &packed, None, None, wide.matrix_mut());
        all.extend([out.read(), wide.read()].concat());
    }
    all
}
