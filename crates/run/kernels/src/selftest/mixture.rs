//! Routing, and tokens on their way to experts and back.

use super::sample::CheckInputs;
use super::{Check, checks};
use crate::{Accumulate, Balance, Buffer, Element, ExpertRows, PackedExperts, WeightFormat};

pub(super) const CHECKS: &[Check] = checks![route in f32, dispatch in f32, combine, gate, expert_linear, expert_linear_packed, swiglu_experts];

fn route(s: &CheckInputs<'_>) -> Vec<f32> {
    let (rows, count, per_token) = (33, 40, 3);
    let (logits, mut probabilities) = (s.grid::<f32>(rows, count), s.grid::<f32>(rows, count));
    let (mut experts, mut weights) = (s.device.zeros(rows * per_token), s.device.zeros(rows * per_token));
    s.device.route(
        logits.matrix(),
        per_token,
        true,
        probabilities.matrix_mut(),
        experts.view_mut(),
        weights.view_mut(),
    );
    let (counted, shares) = (s.tokens(rows, 2), s.grid::<f32>(2, count));
    let mut one_layer = s.device.zeros(count);
    s.device.expert_shares(experts.view(), per_token, counted.view(), 30, one_layer.view_mut());
    let balance =
        Balance { coefficient: 0.1, shares: shares.matrix(), layers: 2, counted: counted.view(), tokens: 30 };
    let (d_weights, mut d_logits) = (s.vector::<f32>(rows * per_token), s.grid::<f32>(rows, count));
    s.device.route_backward(
        probabilities.matrix(),
        experts.view(),
        weights.view(),
        per_token,
        true,
        d_weights.view(),
        Some(balance),
        d_logits.matrix_mut(),
    );
    let chosen = [s.read_whole(&experts), s.read(&weights), s.read(&one_layer)].concat();
    [probabilities.read(), chosen, d_logits.read()].concat()
}

/// Where choices of experts lie.
struct Sorted {
    order: Buffer<u32>,
    slots: Buffer<u32>,
    offsets: Buffer<u32>,
}

fn sorted(s: &CheckInputs<'_>, choices: usize, count: usize) -> Sorted {
    let experts = s.tokens(choices, count);
    let [mut order, mut slots] = [(); 2].map(|()| s.device.zeros(choices));
    let mut offsets = s.device.zeros(count + 1);
    s.device.dispatch(experts.view(), count, order.view_mut(), slots.view_mut(), offsets.view_mut());
    Sorted { order, slots, offsets }
}

fn dispatch(s: &CheckInputs<'_>) -> Vec<f32> {
    let Sorted { order, slots, offsets } = sorted(s, 700, 11);
    [&order, &slots, &offsets].map(|whole| s.read_whole(whole)).concat()
}

fn combine<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let (tokens, per_token, columns) = (50, 2, 72);
    let Sorted { order, slots, .. } = sorted(s, tokens * per_token, 7);
    let (x, mut gathered) = (s.grid::<E>(tokens, columns), s.grid::<E>(tokens * per_token, columns));
    s.device.gather_rows(x.matrix(), order.view(), per_token, gathered.matrix_mut());
    let weights = s.vector::<f32>(tokens * per_token);
    let (mut out, mut d_x) = (s.grid::<E>(tokens, columns), s.grid::<f32>(tokens, columns));
    s.device.combine(
        gathered.matrix(),
        slots.view(),
        weights.view(),
        per_token,
        Accumulate::Add,
        out.matrix_mut(),
    );
    s.device.gather_rows_backward(
        gathered.matrix(),
        slots.view(),
        per_token,
        Accumulate::Replace,
        d_x.matrix_mut(),
    );
    let (d_out, mut d_y) = (s.grid::<E>(tokens, columns), s.grid::<E>(tokens * per_token, columns));
    let mut d_weights = s.device.zeros(tokens * per_token);
    s.device.combine_backward(
        d_out.matrix(),
        gathered.matrix(),
        slots.view(),
        weights.view(),
        per_token,
        d_y.matrix_mut(),
        d_weights.view_mut(),
    );
    [gathered.read(), out.read(), d_x.read(), d_y.read(), s.read(&d_weights)].concat()
}

fn gate<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let (rows, columns) = (31, 60);
    let (x, logits, mut out) =
        (s.grid::<E>(rows, columns), s.vector::<f32>(rows), s.grid::<E>(rows, columns));
    s.device.gate_rows(x.matrix(), logits.view(), Accumulate::Add, out.matrix_mut());
    let (d_out, mut d_x, mut d_logits) =
        (s.grid::<E>(rows, columns), s.grid::<E>(rows, columns), s.device.zeros(rows));
    s.device.gate_rows_backward(
        d_out.matrix(),
        x.matrix(),
        logits.view(),
        d_x.matrix_mut(),
        d_logits.view_mut(),
    );
    [out.read(), d_x.read(), s.read(&d_logits)].concat()
}

fn expert_linear<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let [rows, count, inputs, outputs] = [300, 5, 72, 88];
    let offsets = sorted(s, rows, count).offsets;
    let (x, weights) = (s.grid::<E>(rows, inputs), s.vector::<E>(count * outputs * inputs));
    let (mut out, d_out) = (s.grid::<E>(rows, outputs), s.grid::<E>(rows, outputs));
    s.device.expert_linear(x.matrix(), offsets.view(), weights.view(), out.matrix_mut());
    let (mut d_x, mut d_weights) = (s.grid::<E>(rows, inputs), s.vector::<f32>(count * outputs * inputs));
    s.device.expert_linear_backward_input(d_out.matrix(), offsets.view(), weights.view(), d_x.matrix_mut());
    s.device.expert_linear_backward_weight(d_out.matrix(), x.matrix(), offsets.view(), d_weights.view_mut());
    [out.read(), d_x.read(), s.read(&d_weights)].concat()
}

fn expert_linear_packed<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let [rows, count, inputs, outputs] = [150, 5, 72, 88];
    let offsets = sorted(s, rows, count).offsets;
    let x = s.grid::<E>(rows, inputs);
    let weights: Vec<Buffer<E>> = (0..count).map(|_| s.vector(outputs * inputs)).collect();
    let each = [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::Int8].map(|format| {
        let experts = experts(s, &weights, outputs, format);
        let mut out = s.grid::<E>(rows, outputs);
        s.device.expert_linear_packed(x.matrix(), offsets.view(), &experts, out.matrix_mut());
        out.read()
    });
    each.concat()
}

/// Numbers of tokens for which a GPU has kernels of their own, some of whose tiles stick out.
fn swiglu_experts<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let [count, per_token, inputs, width] = [7, 2, 192, 136];
    let [gate_up, down] = [2 * width * inputs, width * inputs]
        .map(|len| (0..count).map(|_| s.vector::<E>(len)).collect::<Vec<Buffer<E>>>());
    let (gate_up, down) =
        (experts(s, &gate_up, 2 * width, WeightFormat::Bf16), experts(s, &down, width, WeightFormat::Bf16));
    let each = [1, 12, 31, 60, 900].map(|tokens| {
        let slots = tokens * per_token;
        let Sorted { order, offsets, .. } = sorted(s, slots, count);
        let rows = ExpertRows { order: order.view(), per_token, offsets: offsets.view() };
        let x = s.grid::<E>(tokens, inputs);
        let (mut gathered, mut room) = (s.grid::<E>(slots, inputs), s.grid::<E>(slots, 2 * width));
        let (mut activated, mut out) = (s.grid::<E>(slots, width), s.grid::<E>(slots, width));
        let rooms = (gathered.matrix_mut(), room.matrix_mut());
        s.device.swiglu_experts(x.matrix(), rows, &gate_up, rooms, activated.matrix_mut());
        let slotted = s.grid::<E>(slots, inputs);
        s.device.expert_linear_packed(slotted.matrix(), offsets.view(), &down, out.matrix_mut());
        [activated.read(), out.read()].concat()
    });
    each.concat()
}

fn experts<E: Element>(
    s: &CheckInputs<'_>,
    weights: &[Buffer<E>],
    outputs: usize,
    format: WeightFormat,
) -> PackedExperts {
    let each = weights.iter().map(|weight| s.device.pack(weight.view(), outputs, format));
    s.device.pack_experts(each.collect())
}
