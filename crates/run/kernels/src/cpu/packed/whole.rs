//! Products of rows with whole numbers by the tile unit (AMX), summed exactly within a step.
//!
//! A row of bf16 is rounded to whole numbers of 8 bits, with a scale for each 32 inputs as the weights have. The products of a step are then
//! sums of whole numbers, which no order changes; times both scales they are added in `f32`, step by step. A single row and hundreds
//! of them so get the same sums, and no weight is ever widened: one row costs little more than reading the panel.

use std::arch::asm;
use std::arch::x86_64::*;

use super::layout::{HALF, LANES, SCALES, STEP, step_bytes};
use super::tiles::{FEW, configure};
use super::unit::cells;
use crate::cpu::multiply::{Configuration, EACH, Panels};
use crate::{Accumulate, Bf16, Rows, WeightFormat};

/// Inputs of a block, which a panel's unfolded numbers stay in the nearest cache for.
pub(super) const BLOCK: usize = 512;
/// Steps whose sums are scaled together.
const TURN: usize = 4;
/// Cells of the whole numbers of a step of a panel, a byte each.
const STEP_CELLS: usize = LANES * STEP / 4;
/// Cells of a row in a step: its numbers, and their scale.
const ROW_CELLS: usize = STEP / 4 + 1;
/// The farthest whole number from zero.
const MOST: f32 = 127.0;
/// Bytes ahead of those in use that are asked for.
const AHEAD: usize = 4096;

/// Cells of one row of a left panel.
pub(super) fn row_cells(depth: usize) -> usize {
    depth.div_ceil(STEP) * ROW_CELLS
}

/// For each number of rows: registers 0 and 1 are sums, 4 is a left side of 32 bytes per row, 6 and 7 are right sides of eight rows.
static CONFIGURATIONS: [Configuration; FEW] = Configuration::for_rows({
    let (left, right) = ((EACH, STEP as u8), (STEP as u8 / 4, 64));
    let sums = (EACH, 64);
    [sums, sums, sums, sums, left, left, right, right]
});

/// Rounds rows to a left panel of `panel_rows` rows: step by step, in these the numbers row by row, then the scales of the rows. Rows and
/// inputs that are lacking are zero.
#[inline(always)]
pub(super) fn pack(x: Rows<&[Bf16]>, panel_rows: usize, to: &mut [f32]) {
    for (step, to) in to.chunks_exact_mut(panel_rows * ROW_CELLS).enumerate() {
        let (numbers, scales) = to.split_at_mut(panel_rows * STEP / 4);
        let inputs = step * STEP..((step + 1) * STEP).min(x.columns);
        let numbers = numbers.as_chunks_mut::<{ STEP / 4 }>().0;
        for (row, (numbers, scale)) in numbers.iter_mut().zip(scales).enumerate() {
            let mut wide = [Bf16::default(); STEP];
            if row < x.rows {
                wide[..inputs.len()].copy_from_slice(&x.row(row)[inputs.clone()]);
            }
            *scale = round(&wide, numbers);
        }
    }
}

/// Rounds the numbers of a row in a step, and says by what to multiply them. Not a number where one of them is none or endless.
#[inline(always)]
fn round(x: &[Bf16; STEP], to: &mut [f32; STEP / 4]) -> f32 {
    // As whole numbers the bits are ordered as the sizes are, with what is no number at the top.
    let farthest = x.iter().fold(0, |farthest: u16, x| farthest.max(x.to_bits() & 0x7fff));
    let farthest = Bf16::from_bits(farthest).to_f32();
    let (scale, inverse) = (farthest / MOST, if farthest == 0.0 { 0.0 } else { MOST / farthest });
    let mut whole = [0i8; STEP];
    for (to, x) in whole.iter_mut().zip(x) {
        *to = nearest(x.to_f32() * inverse);
    }
    for (to, four) in to.iter_mut().zip(whole.as_chunks::<4>().0) {
        *to = f32::from_bits(u32::from_le_bytes(four.map(i8::cast_unsigned)));
    }
    if farthest.is_finite() { scale } else { f32::NAN }
}

/// Ties to even, for numbers up to 127 to either side.
#[inline(always)]
fn nearest(number: f32) -> i8 {
    /// Adding it leaves no room for a fraction, and the whole number in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    (number.clamp(-MOST, MOST) + ROUND).to_bits() as i8
}

/// Multiplies left panels of `rows` rows by some steps of a panel, into a strip of 32 sums for each row.
///
/// While the vectors scale the sums of some steps, the tile unit makes those of the next ones.
pub(super) fn multiply(
    rows: usize,
    left: Panels<'_>,
    (format, steps): (WeightFormat, &[u8]),
    buffer: &mut [f32],
    mode: Accumulate,
    strip: &mut [f32],
) {
    configure(&CONFIGURATIONS[rows - 1]);
    let each = step_bytes(format);
    let (count, row_cells) = (steps.len() / each, rows * ROW_CELLS);
    let (unfolded, sums) = buffer.split_at_mut(BLOCK / STEP * STEP_CELLS);
    let sums_of = |turn: usize| turn % 2 * TURN * rows * LANES..(turn % 2 + 1) * TURN * rows * LANES;
    for (panel, strip) in (0..left.count).zip(strip.chunks_exact_mut(rows * LANES)) {
        let left = &left.cells[panel * left.stride..][..count * row_cells];
        if mode == Accumulate::Replace {
            strip.fill(0.0);
        }
        let turns = count.div_ceil(TURN);
        for turn in 0..=turns {
            let of = |turn: usize| turn * TURN..((turn + 1) * TURN).min(count);
            if turn < turns {
                let steps = &steps[of(turn).start * each..of(turn).end * each];
                let right = if format == WeightFormat::Int4 {
                    let to = &mut unfolded[of(turn).start * STEP_CELLS..of(turn).end * STEP_CELLS];
                    if panel == 0 {
                        unfold(steps, to);
                    }
                    Right { cells: to, step: STEP_CELLS, lines_ahead: 0 }
                } else {
                    let lines_ahead = if panel == 0 { each / 64 } else { 0 };
                    Right { cells: &cells(steps)[SCALES / 4..], step: each / 4, lines_ahead }
                };
                let left = &left[of(turn).start * row_cells..of(turn).end * row_cells];
                products(rows, of(turn).len(), left, &right, &mut sums[sums_of(turn)]);
            }
            if let Some(before) = turn.checked_sub(1) {
                let steps = &steps[of(before).start * each..of(before).end * each];
                let left = &left[of(before).start * row_cells..of(before).end * row_cells];
                add(rows, left, steps.chunks_exact(each), &sums[sums_of(before)], strip);
            }
        }
    }
}

/// The numbers of some steps in the order of the tile unit.
struct Right<'a> {
    cells: &'a [f32],
    /// Cells from one step to the next.
    step: usize,
    /// Cache lines of a step that are asked for ahead.
    lines_ahead: usize,
}

/// Sums the products of each of `count` steps, at most [`TURN`]: step by step and half by half, sixteen sums for each row. All that needs what
/// the tile registers hold is one block of assembler.
#[expect(unsafe_code, reason = "tile instructions have no stable intrinsics")]
fn products(rows: usize, count: usize, left: &[f32], right: &Right<'_>, sums: &mut [f32]) {
    assert!(left.len() >= count * rows * ROW_CELLS && sums.len() >= count * rows * LANES && count > 0);
    assert!(right.cells.len() >= (count - 1) * right.step + STEP_CELLS);
    // SAFETY: for each step, reads a register of `rows` rows of the left side and two of eight rows of the right one, and writes two
    // of `rows` rows. All are that long, as asserted. Fetching ahead touches no memory. `multiply` has set the registers up, and nothing
    // but products uses them.
    unsafe {
        asm!(
            "2:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tileloadd tmm4, [{left} + {narrow}]",
            "tileloadd tmm6, [{right} + {wide}]",
            "tdpbssd tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{right} + {wide} + 512]",
            "tdpbssd tmm1, tmm4, tmm7",
            "mov {line}, {lines}",
            "test {line}, {line}",
            "jz 4f",
            "3:",
            "prefetcht0 [{ahead}]",
            "add {ahead}, 64",
            "dec {line}",
            "jnz 3b",
            "4:",
            "tilestored [{sums} + {wide}], tmm0",
            "add {sums}, {half}",
            "tilestored [{sums} + {wide}], tmm1",
            "add {sums}, {half}",
            "add {left}, {left_step}",
            "add {right}, {right_step}",
            "dec {count}",
            "jnz 2b",
            left = inout(reg) left.as_ptr() => _,
            left_step = in(reg) 4 * rows * ROW_CELLS,
            right = inout(reg) right.cells.as_ptr() => _,
            right_step = in(reg) 4 * right.step,
            ahead = inout(reg) right.cells.as_ptr().wrapping_byte_add(AHEAD) => _,
            line = out(reg) _,
            lines = in(reg) right.lines_ahead,
            sums = inout(reg) sums.as_mut_ptr() => _,
            half = in(reg) 64 * rows,
            narrow = in(reg) STEP,
            wide = in(reg) 64usize,
            count = inout(reg) count => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Adds sums of whole numbers, times the scales of their rows and outputs, to a strip.
#[expect(unsafe_code, reason = "calls code for instructions that the processor has")]
fn add<'a>(
    rows: usize,
    left: &[f32],
    steps: impl Iterator<Item = &'a [u8]>,
    sums: &[f32],
    strip: &mut [f32],
) {
    let mut scales = [[0.0; LANES]; TURN];
    let mut count = 0;
    for (to, step) in scales.iter_mut().zip(steps) {
        // SAFETY: the tile unit is used only where the processor has tiles, and then it has these instructions.
        unsafe { widen_scales(step[..SCALES].as_chunks().0, to) };
        count += 1;
    }
    // SAFETY: as above.
    unsafe { add_scaled(rows, left, &scales[..count], sums, strip) };
}

#[inline]
#[target_feature(enable = "avx512f")]
#[expect(unsafe_code, reason = "vector loads and stores take a pointer")]
fn widen_scales(bits: &[[u8; 2 * HALF]], to: &mut [f32; LANES]) {
    for (bits, to) in bits.iter().zip(to.as_chunks_mut::<HALF>().0) {
        // SAFETY: sixteen numbers of two bytes are read.
        let bits = unsafe { _mm256_loadu_si256(bits.as_ptr().cast()) };
        // SAFETY: sixteen numbers of four bytes are written.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), _mm512_cvtph_ps(bits)) };
    }
}

#[target_feature(enable = "avx512f")]
#[expect(unsafe_code, reason = "vector loads and stores take a pointer")]
fn add_scaled(rows: usize, left: &[f32], scales: &[[f32; LANES]], sums: &[f32], strip: &mut [f32]) {
    let sums = sums.as_chunks::<HALF>().0;
    for (row, to) in strip.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        for (half, to) in to.as_chunks_mut::<HALF>().0.iter_mut().enumerate() {
            // SAFETY: sixteen numbers are read.
            let mut total = unsafe { _mm512_loadu_ps(to.as_ptr()) };
            for (step, of_outputs) in scales.iter().enumerate() {
                let of_row = _mm512_set1_ps(left[step * rows * ROW_CELLS + rows * STEP / 4 + row]);
                // SAFETY: sixteen scales of a half are read.
                let of_outputs = unsafe { _mm512_loadu_ps(of_outputs[half * HALF..][..HALF].as_ptr()) };
                let sums = &sums[(2 * step + half) * rows + row];
                // SAFETY: sixteen whole numbers of four bytes are read.
                let sums = unsafe { _mm512_loadu_si512(sums.as_ptr().cast()) };
                let scale = _mm512_mul_ps(of_outputs, of_row);
                total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), scale, total);
            }
            // SAFETY: sixteen numbers are written.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), total) };
        }
    }
}

/// Unfolds as many steps of 4-bit numbers as `to` has room for, to a byte each.
#[expect(unsafe_code, reason = "calls code for instructions that the processor has")]
fn unfold(steps: &[u8], to: &mut [f32]) {
    // SAFETY: the tile unit is used only where the processor has tiles, and then it has these instructions.
    unsafe { unfold_wide(steps, to) }
}

/// A cache line has the first sixteen inputs of sixteen outputs, four of them for each, in its low bits and the others in its high bits.
#[target_feature(enable = "avx512f,avx512bw")]
#[expect(unsafe_code, reason = "vector loads and stores take a pointer")]
fn unfold_wide(steps: &[u8], to: &mut [f32]) {
    const HALF_LINES: usize = STEP / 8;
    let (low, offset) = (_mm512_set1_epi8(15), _mm512_set1_epi8(8));
    let steps = steps.as_chunks::<{ SCALES + LANES * STEP / 2 }>().0;
    for (step, to) in steps.iter().zip(to.as_chunks_mut::<STEP_CELLS>().0) {
        fetch_ahead(step);
        let halves = step[SCALES..].as_chunks::<64>().0.as_chunks::<HALF_LINES>().0;
        for (lines, to) in halves.iter().zip(to.as_chunks_mut::<{ STEP_CELLS / 2 }>().0) {
            let (first, others) = to.split_at_mut(HALF_LINES * 16);
            let to = first.as_chunks_mut::<16>().0.iter_mut().zip(others.as_chunks_mut::<16>().0);
            for (line, (first, other)) in lines.iter().zip(to) {
                fetch_ahead(line);
                // SAFETY: 64 bytes are read.
                let line = unsafe { _mm512_loadu_si512(line.as_ptr().cast()) };
                let signed = |bits| _mm512_sub_epi8(_mm512_and_si512(bits, low), offset);
                // SAFETY: 64 bytes are written.
                unsafe { _mm512_storeu_si512(first.as_mut_ptr().cast(), signed(line)) };
                let high = signed(_mm512_srli_epi16::<4>(line));
                // SAFETY: as above.
                unsafe { _mm512_storeu_si512(other.as_mut_ptr().cast(), high) };
            }
        }
    }
}

/// Asks for the cache line that lies ahead of some bytes. Line by line: many requests at once would wait for each other, and all work
/// behind them.
#[inline(always)]
#[expect(unsafe_code, reason = "an instruction that takes an address")]
fn fetch_ahead(bytes: &[u8]) {
    // SAFETY: it changes nothing but what the cache holds, and ignores addresses that are not valid.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(AHEAD).cast()) };
}
