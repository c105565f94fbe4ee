//! How a packed matrix lies in memory.
//!
//! A *panel* has 32 outputs and all inputs; a *step* is the part of a panel with 32 neighbouring inputs, and takes the same number
//! of bytes everywhere. Steps of a panel follow each other, and so do panels: a product with one row reads memory from
//! front to back. Outputs and inputs that the matrix lacks are zero.
//!
//! Inside a step, f32 and f16 lie input by input, the outputs side by side. Bf16 and whole numbers lie as the tile unit wants its right side: a
//! half of sixteen outputs after the other, in it pairs of inputs, in these the outputs with two numbers each; of 8-bit numbers four
//! inputs instead of pairs. 4-bit numbers share a byte with the one sixteen inputs on. Whole numbers come behind the 32 scales of the
//! step, as f16.

use half::f16;

use super::round;
use crate::{Bf16, Rows, WeightFormat};

/// Outputs of a panel.
pub(super) const LANES: usize = 32;
/// Inputs of a step, and numbers that share a scale.
pub(super) const STEP: usize = 32;
/// Outputs of a half, as wide as a register of the tile unit.
pub(super) const HALF: usize = 16;
/// Bytes of the scales of a step.
pub(super) const SCALES: usize = 2 * LANES;
/// Added to 4-bit numbers, which are stored without a sign.
const OFFSET: i32 = 8;

/// The numbers of a step before they are rounded: by output, then by input.
type Wide = [[f32; STEP]; LANES];

/// A packed matrix in the processor's memory.
#[derive(Clone, Copy)]
pub(super) struct Weight<'a> {
    pub(super) format: WeightFormat,
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    pub(super) bytes: &'a [u8],
}

pub(super) fn step_bytes(format: WeightFormat) -> usize {
    match format {
        WeightFormat::F32 => 4 * LANES * STEP,
        WeightFormat::Bf16 | WeightFormat::F16 | WeightFormat::Fp8 => 2 * LANES * STEP,
        WeightFormat::Int8 => SCALES + LANES * STEP,
        WeightFormat::Int4 => SCALES + LANES * STEP / 2,
    }
}

pub(super) fn panel_bytes(format: WeightFormat, inputs: usize) -> usize {
    inputs.div_ceil(STEP) * step_bytes(format)
}

impl<'a> Weight<'a> {
    pub(super) fn panels(&self) -> usize {
        self.outputs.div_ceil(LANES)
    }

    pub(super) fn panel_bytes(&self) -> usize {
        panel_bytes(self.format, self.inputs)
    }

    /// The steps of a panel from an input on, which begins a step.
    pub(super) fn steps(&self, panel: usize, first_input: usize) -> &'a [u8] {
        let start = panel * self.panel_bytes() + first_input / STEP * step_bytes(self.format);
        &self.bytes[start..(panel + 1) * self.panel_bytes()]
    }

    /// The numbers of one output, in order. Panics at an output beyond the matrix.
    pub(super) fn output(&self, output: usize, mut put: impl FnMut(usize, f32)) {
        assert!(output < self.outputs, "row {output} of a matrix of {} rows", self.outputs);
        let steps = self.steps(output / LANES, 0).chunks_exact(step_bytes(self.format));
        for (step, bytes) in steps.enumerate() {
            for input in 0..STEP.min(self.inputs - step * STEP) {
                put(step * STEP + input, number(self.format, bytes, output % LANES, input));
            }
        }
    }
}

/// One number of a step.
fn number(format: WeightFormat, step: &[u8], lane: usize, input: usize) -> f32 {
    let pair = |at: usize| u16::from_le_bytes([step[2 * at], step[2 * at + 1]]);
    let scale = || f16::from_bits(pair(lane)).to_f32();
    match format {
        WeightFormat::F32 => {
            let at = 4 * (input * LANES + lane);
            f32::from_ne_bytes([step[at], step[at + 1], step[at + 2], step[at + 3]])
        }
        WeightFormat::F16 => f16::from_bits(pair(input * LANES + lane)).to_f32(),
        WeightFormat::Bf16 | WeightFormat::Fp8 => Bf16::from_bits(pair(in_pairs(lane, input))).to_f32(),
        WeightFormat::Int8 => f32::from(step[SCALES + in_fours(lane, input)].cast_signed()) * scale(),
        WeightFormat::Int4 => {
            let (byte, shift) = in_nibbles(lane, input);
            (i32::from(step[SCALES + byte] >> shift & 15) - OFFSET) as f32 * scale()
        }
    }
}

/// Where a number lies in a step of halves and pairs.
fn in_pairs(lane: usize, input: usize) -> usize {
    (lane / HALF * STEP / 2 + input / 2) * 2 * HALF + 2 * (lane % HALF) + input % 2
}

/// Where an 8-bit number lies in a step of halves and fours, behind the scales.
fn in_fours(lane: usize, input: usize) -> usize {
    (lane / HALF * STEP / 4 + input / 4) * 4 * HALF + 4 * (lane % HALF) + input % 4
}

/// The byte of a 4-bit number behind the scales, and by how much it is shifted there.
fn in_nibbles(lane: usize, input: usize) -> (usize, usize) {
    let (half, input, shift) = (lane / HALF, input % (STEP / 2), input / (STEP / 2) * 4);
    ((half * STEP / 8 + input / 4) * 4 * HALF + 4 * (lane % HALF) + input % 4, shift)
}

/// Writes a panel, step by step.
pub(super) fn write_panel(
    format: WeightFormat,
    panel: usize,
    weight: Rows<&[impl crate::Element]>,
    to: &mut [u8],
) {
    for (step, to) in to.chunks_exact_mut(step_bytes(format)).enumerate() {
        let mut wide = [[0.0; STEP]; LANES];
        let inputs = step * STEP..((step + 1) * STEP).min(weight.columns);
        for (lane, wide) in wide.iter_mut().enumerate().take(weight.rows - panel * LANES) {
            let row = &weight.row(panel * LANES + lane)[inputs.clone()];
            wide.iter_mut().zip(row).for_each(|(to, from)| *to = from.widen());
        }
        write_step(format, &wide, to);
    }
}

fn write_step(format: WeightFormat, wide: &Wide, to: &mut [u8]) {
    match format {
        WeightFormat::F32 => each(wide, |lane, input, number| {
            to[4 * (input * LANES + lane)..][..4].copy_from_slice(&number.to_ne_bytes());
        }),
        WeightFormat::F16 => each(wide, |lane, input, number| {
            let bits = f16::from_f32(number).to_bits();
            to[2 * (input * LANES + lane)..][..2].copy_from_slice(&bits.to_le_bytes());
        }),
        WeightFormat::Bf16 | WeightFormat::Fp8 => each(wide, |lane, input, number| {
            let bits = Bf16::from_f32(number).to_bits();
            to[2 * in_pairs(lane, input)..][..2].copy_from_slice(&bits.to_le_bytes());
        }),
        WeightFormat::Int8 => write_whole(wide, round::to_8_bits, to, |to, lane, input, number| {
            to[in_fours(lane, input)] = (number as i8).cast_unsigned();
        }),
        WeightFormat::Int4 => write_whole(wide, round::to_4_bits, to, |to, lane, input, number| {
            let (byte, shift) = in_nibbles(lane, input);
            to[byte] = to[byte] & !(15 << shift) | ((number + OFFSET) as u8) << shift;
        }),
    }
}

fn each(wide: &Wide, mut put: impl FnMut(usize, usize, f32)) {
    for (lane, inputs) in wide.iter().enumerate() {
        for (input, number) in inputs.iter().enumerate() {
            put(lane, input, *number);
        }
    }
}

/// Rounds each output's numbers to whole ones and writes them behind the scales.
fn write_whole(
    wide: &Wide,
    round: impl Fn(&[f32; STEP]) -> round::Rounded,
    to: &mut [u8],
    put: impl Fn(&mut [u8], usize, usize, i32),
) {
    let (scales, numbers) = to.split_at_mut(SCALES);
    for (lane, wide) in wide.iter().enumerate() {
        let rounded = round(wide);
        scales[2 * lane..][..2].copy_from_slice(&rounded.scale.to_bits().to_le_bytes());
        for (input, number) in rounded.numbers.into_iter().enumerate() {
            put(numbers, lane, input, number);
        }
    }
}
