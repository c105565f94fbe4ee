//! Products of few rows with 4-bit weights by the tile unit, with the weights on the left.
//!
//! With an output per row of a register, the 32 numbers of a row share their scale: they are looked up in a table of sixteen that has been scaled
//! and rounded once. That takes two thirds of the instructions of scaling each number. Rows are then the right side, and sums come with
//! an output per row. Which side is which changes no sum.

use std::arch::asm;

use super::layout::{HALF, LANES, STEP, step_bytes};
use super::tiles::{Configuration, FEW, configure, join};
use super::unfold::int4_rows;
use crate::{Bf16, Put, Rows, WeightFormat};

/// Steps that are unfolded at a time.
const TURN: usize = 8;
/// Cells of a step of a panel.
const STEP_CELLS: usize = LANES * STEP / 2;

/// For each number of rows: registers 0, 1 are sums and 4 a right side with as many columns; 6 and 7 are left sides of sixteen outputs.
static CONFIGURATIONS: [Configuration; FEW] = {
    let mut all = [const { Configuration([0; 64]) }; FEW];
    let mut rows = 1;
    while rows <= FEW {
        let bytes = &mut all[rows - 1].0;
        bytes[0] = 1;
        let mut register = 0;
        while register < 8 {
            bytes[16 + 2 * register] = if register < 6 { 4 * rows as u8 } else { 64 };
            bytes[48 + register] = HALF as u8;
            register += 1;
        }
        rows += 1;
    }
    all
};

/// Rows of bf16 as a right side: step by step, in these pair by pair of inputs, in these row by row.
pub(super) fn pack(x: Rows<&[Bf16]>, to: &mut [f32]) {
    for row in 0..x.rows {
        let (whole, rest) = x.row(row).as_chunks::<STEP>();
        let mut last = [Bf16::default(); STEP];
        last[..rest.len()].copy_from_slice(rest);
        let rest = (!rest.is_empty()).then_some(&last);
        let steps = to.chunks_exact_mut(x.rows * STEP / 2);
        for (to, from) in steps.zip(whole.iter().chain(rest)) {
            for (to, pair) in to.chunks_exact_mut(x.rows).zip(from.as_chunks::<2>().0) {
                to[row] = join(*pair);
            }
        }
    }
}

/// Sums the products of `rows` rows, at most [`FEW`], with all of a panel's steps.
pub(super) fn sum(rows: usize, x: &[f32], steps: &[u8], buffer: &mut [f32], strip: &mut [f32]) {
    configure(&CONFIGURATIONS[rows - 1]);
    let (unfolded, sums) = buffer.split_at_mut(2 * TURN * STEP_CELLS);
    let (each, sums) = (step_bytes(WeightFormat::Int4), &mut sums[..rows * LANES]);
    sums.fill(0.0);
    let x = x.chunks(TURN * rows * STEP / 2);
    for (turn, (steps, x)) in steps.chunks(TURN * each).zip(x).enumerate() {
        let count = steps.len() / each;
        let to = &mut unfolded[turn % 2 * TURN * STEP_CELLS..][..count * STEP_CELLS];
        int4_rows(steps, to);
        let put = if turn == 0 { Put::Replace } else { Put::Add };
        multiply(rows, count, to, x, put, sums);
    }
    for (output, sums) in sums.chunks_exact(rows).enumerate() {
        sums.iter().zip(strip[output..].iter_mut().step_by(LANES)).for_each(|(sum, to)| *to = *sum);
    }
}

/// Multiplies `count` steps of 32 outputs by `rows` rows. All that needs what the tile registers hold is one block of assembler.
#[expect(unsafe_code, reason = "tile instructions have no stable intrinsics")]
fn multiply(rows: usize, count: usize, weights: &[f32], x: &[f32], put: Put, sums: &mut [f32]) {
    assert!(weights.len() >= count * STEP_CELLS && x.len() >= count * rows * STEP / 2);
    assert!(sums.len() >= rows * LANES && count > 0);
    // SAFETY: reads `count` times two registers of weights and one of rows, and reads and writes two registers of sums. All are that
    // long, as asserted. `sum` has set the registers up, and nothing but products uses them.
    unsafe {
        asm!(
            "test {adds}, {adds}",
            "jnz 2f",
            "tilezero tmm0",
            "tilezero tmm1",
            "jmp 3f",
            "2:",
            "tileloadd tmm0, [{sums} + {apart}]",
            "tileloadd tmm1, [{more} + {apart}]",
            "3:",
            "tileloadd tmm4, [{x} + {apart}]",
            "tileloadd tmm6, [{weights} + {stride}]",
            "tdpbf16ps tmm0, tmm6, tmm4",
            "tileloadd tmm7, [{weights} + {stride} + 1024]",
            "tdpbf16ps tmm1, tmm7, tmm4",
            "add {weights}, 2048",
            "add {x}, {step}",
            "dec {count}",
            "jnz 3b",
            "tilestored [{sums} + {apart}], tmm0",
            "tilestored [{more} + {apart}], tmm1",
            adds = in(reg) usize::from(put == Put::Add),
            sums = in(reg) sums.as_mut_ptr(),
            more = in(reg) sums.as_mut_ptr().wrapping_add(rows * HALF),
            apart = in(reg) 4 * rows,
            stride = in(reg) 64usize,
            step = in(reg) 64 * rows,
            x = inout(reg) x.as_ptr() => _,
            weights = inout(reg) weights.as_ptr() => _,
            count = inout(reg) count => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
