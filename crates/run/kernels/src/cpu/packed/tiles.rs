//! Products of bf16 rows with panels by the tile unit (AMX), summed in `f32`.
//!
//! A step of a panel fills two registers. Up to sixteen rows take one more, which has just these rows: a single row costs little
//! more than reading the panel. More rows go as left panels of 32 by the tiles of `multiply`. Sums that are stored between
//! blocks of the depth go on exactly where they were, so that blocks may be of any size.

use std::arch::asm;

use super::layout::{LANES, STEP};
use super::unit::cells;
use crate::cpu::multiply::{Configuration, EACH, set_up_tiles};
use crate::{Bf16, Rows};

/// Rows that are multiplied by a register of their own.
pub(super) const FEW: usize = 16;
/// Cells of a step of a panel.
const STEP_CELLS: usize = LANES * STEP / 2;
/// Bytes ahead of those in use that are asked for.
const AHEAD: usize = 4096;

/// Rows of bf16 as a left panel: step by step, and in a step row by row. Inputs that are lacking become zero.
pub(super) fn pack_few(x: Rows<&[Bf16]>, to: &mut [f32]) {
    let rows = x.rows;
    for row in 0..rows {
        let (whole, rest) = x.row(row).as_chunks::<STEP>();
        let mut last = [Bf16::default(); STEP];
        last[..rest.len()].copy_from_slice(rest);
        let rest = (!rest.is_empty()).then_some(&last);
        let cells = to.as_chunks_mut::<{ STEP / 2 }>().0.iter_mut().skip(row).step_by(rows);
        for (to, from) in cells.zip(whole.iter().chain(rest)) {
            let pairs = from.as_chunks::<2>().0;
            *to = std::array::from_fn(|cell| join(pairs[cell]));
        }
    }
}

/// A cell of the tile unit.
#[inline(always)]
pub(super) fn join([low, high]: [Bf16; 2]) -> f32 {
    f32::from_bits(u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16)
}

/// Those of sums and of the left side have as many rows as there are.
static CONFIGURATIONS: [Configuration; FEW] = Configuration::for_rows({
    let mut registers = [(EACH, 64); 8];
    registers[6] = (16, 64);
    registers[7] = (16, 64);
    registers
});

/// Sets the tile registers up.
#[expect(unsafe_code, reason = "tile instructions have no stable intrinsics")]
pub(super) fn configure(wanted: &'static Configuration) {
    let mut found = Configuration::NONE;
    // SAFETY: writes and reads a configuration. The process has been allowed to use tiles.
    unsafe {
        asm!(
            set_up_tiles!("found", "wanted"),
            found = in(reg) found.0.as_mut_ptr(),
            wanted = in(reg) wanted.0.as_ptr(),
            out("zmm16") _,
            out("k1") _,
            options(nostack),
        );
    }
}

/// Sums the products of a left panel of `rows` rows, at most [`FEW`], with all of a panel's steps. What comes next is asked for ahead. All
/// that needs what the tile registers hold is one block of assembler, as in `multiply`.
#[expect(unsafe_code, reason = "tile instructions have no stable intrinsics")]
pub(super) fn sum_few(rows: usize, left: &[f32], steps: &[u8], strip: &mut [f32]) {
    configure(&CONFIGURATIONS[rows - 1]);
    let right = cells(steps);
    let steps = right.len() / STEP_CELLS;
    assert!(left.len() >= steps * rows * STEP / 2 && strip.len() >= rows * LANES);
    // SAFETY: reads `steps` registers of `rows` rows of the left side and twice as many of 16 rows of the right one; writes
    // `rows` rows of 128 bytes of sums. All are that long, as asserted. Fetching ahead touches no memory. The registers have
    // been set up, and nothing but products uses them.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "mov {stride:e}, 64",
            "test {steps}, {steps}",
            "jz 6f",
            "5:",
            "mov {line:e}, 32",
            "7:",
            "prefetcht0 [{ahead}]",
            "prefetcht0 [{ahead} + 64]",
            "prefetcht0 [{ahead} + 128]",
            "prefetcht0 [{ahead} + 192]",
            "add {ahead}, 256",
            "sub {line}, 4",
            "jnz 7b",
            "tileloadd tmm4, [{left} + {stride}]",
            "tileloadd tmm6, [{right} + {stride}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{right} + {stride} + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "add {left}, {left_step}",
            "add {right}, 2048",
            "dec {steps}",
            "jnz 5b",
            "6:",
            "mov {stride:e}, 128",
            "tilestored [{sums} + {stride}], tmm0",
            "tilestored [{sums} + {stride} + 64], tmm1",
            stride = out(reg) _,
            line = out(reg) _,
            sums = in(reg) strip.as_mut_ptr(),
            steps = inout(reg) steps => _,
            left = inout(reg) left.as_ptr() => _,
            left_step = in(reg) rows * 64,
            right = inout(reg) right.as_ptr() => _,
            ahead = inout(reg) right.as_ptr().wrapping_byte_add(AHEAD) => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
