//! Norms, activations, positions, embeddings and the loss.

use super::sample::CheckInputs;
use super::{Check, checks};
use crate::{Accumulate, Element, Gelu, HeadGradients, Heads, IGNORED, Rotary, Turn};

pub(super) const CHECKS: &[Check] = checks![
    rms_norm,
    rms_norm_wide,
    head_norm,
    layer_norm,
    swiglu,
    gelu,
    rotate,
    embedding,
    cross_entropy in f32,
    linear_cross_entropy
];

fn rms_norm<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    rms_norm_of::<E>(s, 37, 136)
}

fn rms_norm_wide<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    rms_norm_of::<E>(s, 300, 2048)
}

fn rms_norm_of<E: Element>(s: &CheckInputs<'_>, rows: usize, columns: usize) -> Vec<f32> {
    let (x, weight, mut out) =
        (s.grid::<E>(rows, columns), s.vector::<E>(columns), s.grid::<E>(rows, columns));
    let (mut inverses, d_out) = (s.device.zeros(rows), s.grid::<E>(rows, columns));
    s.device.rms_norm(x.matrix(), weight.view(), 1e-5, out.matrix_mut(), inverses.view_mut());
    let (mut d_x, mut d_weight) = (s.grid::<E>(rows, columns), s.vector::<f32>(columns));
    s.device.rms_norm_backward(
        d_out.matrix(),
        x.matrix(),
        weight.view(),
        inverses.view(),
        Accumulate::Add,
        d_x.matrix_mut(),
        Some(d_weight.view_mut()),
    );
    [out.read(), s.read(&inverses), d_x.read(), s.read(&d_weight)].concat()
}

fn head_norm<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let (rows, heads) = (29, Heads { first: 1, count: 3, dim: 64 });
    let (x, weight) = (s.grid::<E>(rows, 5 * 64), s.vector::<E>(64));
    let (mut out, mut inverses) = (s.grid::<E>(rows, 5 * 64), s.device.zeros(rows * 3));
    s.device.head_norm(&heads, x.matrix(), weight.view(), 1e-5, out.matrix_mut(), inverses.view_mut());
    let (mut d, mut d_weight) = (s.grid::<E>(rows, 5 * 64), s.vector::<f32>(64));
    s.device.head_norm_backward(
        &heads,
        d.matrix_mut(),
        x.matrix(),
        weight.view(),
        inverses.view(),
        Some(d_weight.view_mut()),
    );
    [out.read(), s.read(&inverses), d.read(), s.read(&d_weight)].concat()
}

fn layer_norm<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let (rows, columns) = (41, 200);
    let (x, weight, bias) = (s.grid::<E>(rows, columns), s.vector::<E>(columns), s.vector::<E>(columns));
    let (mut out, mut statistics) = (s.grid::<E>(rows, columns), s.device.zeros(2 * rows));
    s.device.layer_norm(
        x.matrix(),
        weight.view(),
        Some(bias.view()),
        1e-5,
        out.matrix_mut(),
        statistics.view_mut(),
    );
    let (d_out, mut d_x) = (s.grid::<E>(rows, columns), s.grid::<E>(rows, columns));
    let [mut d_weight, mut d_bias] = [(); 2].map(|()| s.vector::<f32>(columns));
    s.device.layer_norm_backward(
        d_out.matrix(),
        x.matrix(),
        weight.view(),
        statistics.view(),
        Accumulate::Replace,
        d_x.matrix_mut(),
        Some(d_weight.view_mut()),
        Some(d_bias.view_mut()),
    );
    [out.read(), d_x.read(), s.read(&d_weight), s.read(&d_bias)].concat()
}

fn swiglu<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let (rows, columns) = (19, 104);
    let (x, d_out) = (s.grid::<E>(rows, 2 * columns), s.grid::<E>(rows, columns));
    let (mut out, mut d_x) = (s.grid::<E>(rows, columns), s.grid::<E>(rows, 2 * columns));
    s.device.swiglu(x.matrix(), out.matrix_mut());
    s.device.swiglu_backward(x.matrix(), d_out.matrix(), d_x.matrix_mut());
    [out.read(), d_x.read()].concat()
}

fn gelu<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let (rows, columns) = (19, 101);
    let (x, d_out) = (s.grid::<E>(rows, columns), s.grid::<E>(rows, columns));
    let each = [Gelu::Tanh, Gelu::Exact].map(|kind| {
        let (mut out, mut d_x) = (s.grid::<E>(rows, columns), s.grid::<E>(rows, columns));
        s.device.gelu(kind, x.matrix(), out.matrix_mut());
        s.device.gelu_backward(kind, x.matrix(), d_out.matrix(), d_x.matrix_mut());
        [out.read(), d_x.read()].concat()
    });
    each.concat()
}

fn rotate<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let (rows, heads) = (23, Heads { first: 1, count: 2, dim: 24 });
    let rotary = Rotary::new(s.device, 16, &[1.0, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01], 50, 1.0);
    let (positions, mut x, mut y) = (s.tokens(rows, 50), s.grid::<E>(rows, 96), s.grid::<E>(rows, 96));
    s.device.rotate(&heads, positions.view(), &rotary, Turn::Forward, x.matrix_mut());
    s.device.rotate(&heads, positions.view(), &rotary, Turn::Backward, y.matrix_mut());
    [x.read(), y.read()].concat()
}

fn embedding<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let (rows, entries, columns) = (300, 20, 72);
    let (tokens, table) = (s.tokens(rows, entries), s.grid::<E>(entries, columns));
    let (mut out, d_out) = (s.grid::<E>(rows, columns), s.grid::<E>(rows, columns));
    s.device.embedding(tokens.view(), table.matrix(), Accumulate::Add, out.matrix_mut());
    let mut d_table = s.grid::<f32>(entries, columns);
    s.device.embedding_backward(tokens.view(), d_out.matrix(), d_table.matrix_mut());
    [out.read(), d_table.read()].concat()
}

fn cross_entropy(s: &CheckInputs<'_>) -> Vec<f32> {
    let (rows, vocabulary) = (21, 3001);
    let mut targets: Vec<u32> = (0..rows).map(|_| s.below(vocabulary) as u32).collect();
    targets[3] = IGNORED;
    let (targets, mut logits, mut losses) =
        (s.given(&targets), s.grid::<f32>(rows, vocabulary), s.device.zeros(rows));
    s.device.cross_entropy(logits.matrix_mut(), targets.view(), Some(0.5), losses.view_mut());
    [logits.read(), s.read(&losses)].concat()
}

fn linear_cross_entropy<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let (rows, inputs, vocabulary) = (70, 64, 520);
    let (x, weight, targets) =
        (s.grid::<E>(rows, inputs), s.vector::<E>(vocabulary * inputs), s.tokens(rows, vocabulary));
    let (mut losses, mut workspace) = (s.device.zeros(rows), s.device.zeros(32 * vocabulary));
    let (mut d_x, mut d_weight) = (s.grid::<E>(rows, inputs), s.vector::<f32>(vocabulary * inputs));
    let gradients = HeadGradients { d_x: d_x.matrix_mut(), d_weight: Some(d_weight.view_mut()) };
    s.device.linear_cross_entropy(
        x.matrix(),
        weight.view(),
        targets.view(),
        1.0,
        losses.view_mut(),
        Some(gradients),
        workspace.view_mut(),
    );
    [s.read(&losses), d_x.read(), s.read(&d_weight)].concat()
}
