//! Products of bf16 by the processor's tile unit (AMX), summed in `f32`.
//!
//! A tile register holds sixteen rows of sixteen cells; a cell is a pair of bf16 that follow each other in depth. Two left
//! registers times two right ones give a tile of 32 x 32 sums in four registers. Per step of 32 in depth a left panel
//! holds its two registers by lanes; a right panel holds them turned around, pair by pair.

use std::arch::asm;
use std::arch::x86_64::*;

use crate::{Accumulate, Bf16};

use super::multiplier::{Multiplier, Panels, Right, Side, Tile};
use super::operand::{Elements, Operand};
use super::transpose::{RegisterBlock, first, load, transpose};

/// Lanes of a panel, and depth of a step.
pub(super) const LANES: usize = 32;
pub(super) const STEP: usize = 32;
/// Cells of a tile register.
pub(super) const REGISTER: usize = 256;

pub(crate) struct Tiles;

impl Multiplier for Tiles {
    fn tile(&self) -> Tile {
        Tile {
            rows: LANES,
            columns: LANES,
            step: STEP,
            cells_per_step: STEP / 2,
            block_depth: 512,
            block_rows: 256,
            block_columns: 256,
        }
    }

    #[expect(unsafe_code, reason = "calls code for instructions that the processor has")]
    fn pack(&self, side: Side, from: &Operand<'_>, first_lane: usize, panel: &mut [f32]) {
        // SAFETY: this multiplier is chosen only where the processor has tiles, and then it has these instructions.
        unsafe { pack(side, from, first_lane, panel) }
    }

    fn multiply(&self, depth: usize, left: Panels<'_>, right: Right<'_>, mode: Accumulate, sums: &mut [f32]) {
        let steps = depth.div_ceil(STEP);
        let cells = steps * 2 * REGISTER;
        assert!(right.cells.len() >= cells && sums.len() >= left.count * LANES * LANES);
        if let Some(before_last) = left.count.checked_sub(1) {
            assert!(left.cells.len() >= before_last * left.stride + cells);
            multiply_tiles(steps, left, right, mode, sums);
        }
    }
}

/// How the eight tile registers are set up.
#[repr(C, align(64))]
pub(crate) struct Configuration(pub(crate) [u8; 64]);

/// Rows of a register that has as many as its configuration is for.
pub(crate) const EACH: u8 = 0;

impl Configuration {
    pub(crate) const NONE: Self = Self([0; 64]);

    /// Palette 1, for so many rows. A register is its rows and the bytes of a row.
    const fn new(registers: [(u8, u8); 8], rows: u8) -> Self {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        let mut register = 0;
        while register < 8 {
            let (of_register, bytes_of_row) = registers[register];
            bytes[16 + 2 * register] = bytes_of_row;
            bytes[48 + register] = if of_register == EACH { rows } else { of_register };
            register += 1;
        }
        Self(bytes)
    }

    /// One for each number of rows, from 1 on.
    pub(crate) const fn for_rows<const MOST: usize>(registers: [(u8, u8); 8]) -> [Self; MOST] {
        let mut all = [const { Self::NONE }; MOST];
        let mut rows = 1;
        while rows <= MOST {
            all[rows - 1] = Self::new(registers, rows as u8);
            rows += 1;
        }
        all
    }
}

pub(super) static PLAIN: Configuration = Configuration::new([(16, 64); 8], 16);

/// Assembler that sets the tile registers up where they are not, by operands of these names. Looking is ten times as fast as setting up.
macro_rules! set_up_tiles {
    ($found:literal, $wanted:literal) => {
        concat!(
            "sttilecfg [{",
            $found,
            "}]\nvmovdqu64 zmm16, [{",
            $found,
            "}]\nvpcmpeqd k1, zmm16, [{",
            $wanted,
            "}]\nkortestw k1, k1\njc 2f\nldtilecfg [{",
            $wanted,
            "}]\n2:"
        )
    };
}
pub(crate) use set_up_tiles;

/// Multiplies at least one left panel. All that needs the tile registers is one block of assembler, which sets them up
/// where they are not: the compiler knows nothing of them, so what they hold may be gone between two blocks.
#[expect(unsafe_code, reason = "tile instructions have no stable intrinsics")]
fn multiply_tiles(steps: usize, left: Panels<'_>, right: Right<'_>, mode: Accumulate, strip: &mut [f32]) {
    let mut found = Configuration::NONE;
    let bytes_of_panel = steps * 4 * 2 * REGISTER;
    let lines_to_fetch = right.next.len().div_ceil(16).div_ceil(left.count);
    // SAFETY: reads `steps` times two registers of each left panel and of the right one; writes and reads a configuration; reads
    // and writes the 32 rows of 128 bytes of `left.count` tiles of sums. All are that long, as the caller asserts.
    // Fetching ahead touches no memory. The process has been allowed to use tiles.
    unsafe {
        asm!(
            set_up_tiles!("count", "right_now"),
            // For each left panel, from label 2 on: a share of what is multiplied next is fetched,
            "mov {count}, {lines}",
            "test {count}, {count}",
            "jz 4f",
            "3:",
            "prefetcht1 [{next}]",
            "add {next}, 64",
            "dec {count}",
            "jnz 3b",
            // the sums begin at zero or where they are,
            "4:",
            "mov {stride}, 128",
            "test {adds}, {adds}",
            "jnz 5f",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "jmp 6f",
            "5:",
            "tileloadd tmm0, [{sums} + {stride}]",
            "tileloadd tmm1, [{sums} + {stride} + 64]",
            "tileloadd tmm2, [{sums} + {stride} + 2048]",
            "tileloadd tmm3, [{sums} + {stride} + 2112]",
            // the panels are multiplied step by step,
            "6:",
            "mov {right_now}, {right}",
            "mov {stride}, 64",
            "mov {count}, {steps}",
            "test {count}, {count}",
            "jz 8f",
            "7:",
            "tileloadd tmm6, [{right_now} + {stride}]",
            "tileloadd tmm4, [{left} + {stride}]",
            "tileloadd tmm7, [{right_now} + {stride} + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{left} + {stride} + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {left}, 2048",
            "add {right_now}, 2048",
            "dec {count}",
            "jnz 7b",
            // and the sums are stored.
            "8:",
            "mov {stride}, 128",
            "tilestored [{sums} + {stride}], tmm0",
            "tilestored [{sums} + {stride} + 64], tmm1",
            "tilestored [{sums} + {stride} + 2048], tmm2",
            "tilestored [{sums} + {stride} + 2112], tmm3",
            "add {sums}, 4096",
            "add {left}, {left_gap}",
            "dec {panels}",
            "jnz 2b",
            right_now = inout(reg) PLAIN.0.as_ptr() => _,
            count = inout(reg) found.0.as_mut_ptr() => _,
            stride = out(reg) _,
            lines = in(reg) lines_to_fetch,
            next = inout(reg) right.next.as_ptr() => _,
            adds = in(reg) usize::from(mode == Accumulate::Add),
            sums = inout(reg) strip.as_mut_ptr() => _,
            right = in(reg) right.cells.as_ptr(),
            steps = in(reg) steps,
            left = inout(reg) left.cells.as_ptr() => _,
            left_gap = in(reg) (4 * left.stride).wrapping_sub(bytes_of_panel),
            panels = inout(reg) left.count => _,
            out("zmm16") _,
            out("k1") _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Packs register by register: gathers sixteen lanes and one step of depth, and turns them around where the
/// operand lies the other way than the side wants.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
#[expect(unsafe_code, reason = "vector stores take a pointer")]
fn pack(side: Side, from: &Operand<'_>, first_lane: usize, panel: &mut [f32]) {
    let steps = from.depth().div_ceil(STEP);
    assert!(panel.len() >= steps * 2 * REGISTER);
    for step in 0..steps {
        for half in 0..2 {
            let lane = first_lane + 16 * half;
            let lies_by_lanes = from.depth_stride() == 1;
            let block = if lies_by_lanes { by_lanes(from, lane, step) } else { by_pairs(from, lane, step) };
            let is_turned = lies_by_lanes != (side == Side::Left);
            let block = if is_turned { transpose(block) } else { block };
            let to = &mut panel[(2 * step + half) * REGISTER..][..REGISTER];
            for (row, cells) in block.into_iter().enumerate() {
                // SAFETY: sixteen rows of sixteen cells fill `to`.
                unsafe { _mm512_storeu_si512(to.as_mut_ptr().add(16 * row).cast(), cells) };
            }
        }
    }
}

/// Row `l` of the block: the elements of lane `l` at this step, which lie one after the other.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn by_lanes(from: &Operand<'_>, lane: usize, step: usize) -> RegisterBlock {
    let deep = from.depth() - step * STEP;
    let present = from.lanes().saturating_sub(lane);
    let mut block = [_mm512_setzero_si512(); 16];
    for (row, cells) in block.iter_mut().enumerate().take(present) {
        let start = (lane + row) * from.lane_stride() + step * STEP;
        *cells = load_narrow(from.elements(), start, deep);
        from.fetch(start + LANES * from.lane_stride());
    }
    block
}

/// Row `p` of the block: for each lane, the elements at the depths `2p` and `2p + 1` of this step.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn by_pairs(from: &Operand<'_>, lane: usize, step: usize) -> RegisterBlock {
    let present = from.lanes().saturating_sub(lane).min(16);
    let deep = from.depth() - step * STEP;
    let start = step * STEP * from.depth_stride() + lane;
    let mut block = [_mm512_setzero_si512(); 16];
    if present == 0 {
        return block;
    }
    for (pair, cells) in block.iter_mut().enumerate().take(deep.div_ceil(2)) {
        let even = start + 2 * pair * from.depth_stride();
        // A depth that the operand lacks counts as zeros.
        let of_odd = if 2 * pair + 1 < deep { present } else { 0 };
        let odd = if of_odd == 0 { even } else { even + from.depth_stride() };
        *cells = interleave(from.elements(), (even, present), (odd, of_odd));
        from.fetch(even + STEP * from.depth_stride());
        from.fetch(odd + STEP * from.depth_stride());
    }
    block
}

/// Each cell holds a bf16 of the first row below and one of the second above. Rows: where they start, and how many count.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn interleave(elements: Elements<'_>, even: (usize, usize), odd: (usize, usize)) -> __m512i {
    let joined = match elements {
        Elements::F32(_) => {
            let (even, odd) = (load(elements, even.0, even.1), load(elements, odd.0, odd.1));
            as_integers(_mm512_cvtne2ps_pbh(odd, even))
        }
        Elements::Bf16(values) => {
            let even = _mm512_castsi256_si512(load_half(values, even.0, even.1));
            _mm512_inserti64x4::<1>(even, load_half(values, odd.0, odd.1))
        }
    };
    _mm512_permutexvar_epi16(alternating(), joined)
}

/// 0, 16, 1, 17, ...: takes from the lower and the upper half in turn.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn alternating() -> __m512i {
    let low = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    _mm512_or_si512(low, _mm512_slli_epi32::<16>(_mm512_add_epi32(low, _mm512_set1_epi32(16))))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[expect(unsafe_code, reason = "masked loads take a pointer")]
fn load_half(values: &[Bf16], start: usize, count: usize) -> __m256i {
    assert!(start + count <= values.len(), "{count} elements from {start} of {}", values.len());
    // SAFETY: the mask covers only elements inside the slice.
    unsafe { _mm256_maskz_loadu_epi16(first(count), values.as_ptr().add(start).cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
#[expect(unsafe_code, reason = "names the same bits by another type")]
pub(super) fn as_integers(values: __m512bh) -> __m512i {
    // SAFETY: both types are 512 plain bits.
    unsafe { std::mem::transmute(values) }
}

/// `count` neighbours from `start` on as bf16, at most 32, then zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
#[expect(unsafe_code, reason = "masked loads take a pointer")]
fn load_narrow(elements: Elements<'_>, start: usize, count: usize) -> __m512i {
    let count = count.min(32);
    assert!(start + count <= elements.len(), "{count} elements from {start} of {}", elements.len());
    match elements {
        Elements::Bf16(values) => {
            let mask = if count == 32 { u32::MAX } else { (1 << count) - 1 };
            // SAFETY: the mask covers only elements inside the slice.
            unsafe { _mm512_maskz_loadu_epi16(mask, values.as_ptr().add(start).cast()) }
        }
        Elements::F32(values) => {
            let (low, high) = (first(count), first(count.saturating_sub(16)));
            // SAFETY: the mask covers only elements inside the slice.
            let low = unsafe { _mm512_maskz_loadu_ps(low, values.as_ptr().add(start)) };
            // SAFETY: as above; an empty mask reads nothing.
            let high = unsafe { _mm512_maskz_loadu_ps(high, values.as_ptr().wrapping_add(start + 16)) };
            as_integers(_mm512_cvtne2ps_pbh(high, low))
        }
    }
}
