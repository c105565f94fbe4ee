//! Products of `f32` by the processor's tile unit (AMX), which multiplies bf16.
//!
//! A number is the sum of three bf16, exactly: what rounding to bf16 leaves is rounded in turn, and 24 bits are three times eight. Of
//! the nine products of such parts six count; the other three together are below 2^-24 of the whole, what rounding the
//! product to `f32` may cost. The five small ones are summed first, where they are summed among their like, then the large one on
//! top of them, block by block of the depth: as many roundings at the size of the sum as multiply-adds make. Six bf16 products take
//! the tile unit three eighths of the time that two vector units take for one in `f32`.
//!
//! What is too small for the parts (below about 1e-33) counts as zero there; infinities become NaN.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use crate::Accumulate;

use super::multiplier::{Multiplier, Panels, Right, Side, Tile};
use super::operand::Operand;
use super::tiles::{Configuration, LANES, PLAIN, REGISTER, STEP, set_up_tiles};
use super::transpose::{RegisterBlock, load, transpose};

/// Parts of a number.
const PARTS: usize = 3;
/// Rows of a result from which on it is faster than vectors: for fewer, packing the parts of the right side takes longer than is gained.
pub(super) const LEAST_ROWS: usize = 128;

pub(crate) struct SplitTiles;

impl Multiplier for SplitTiles {
    fn tile(&self) -> Tile {
        Tile {
            rows: LANES,
            columns: LANES,
            step: STEP,
            cells_per_step: PARTS * STEP / 2,
            block_depth: 64,
            block_rows: 256,
            block_columns: 512,
        }
    }

    #[expect(unsafe_code, reason = "calls code for instructions that the processor has")]
    fn pack(&self, side: Side, from: &Operand<'_>, first_lane: usize, panel: &mut [f32]) {
        // SAFETY: this multiplier is chosen only where the processor has tiles, and then it has these instructions.
        unsafe { pack(side, from, first_lane, panel) }
    }

    fn multiply(&self, depth: usize, left: Panels<'_>, right: Right<'_>, mode: Accumulate, sums: &mut [f32]) {
        let steps = depth.div_ceil(STEP);
        let cells = steps * PARTS * 2 * REGISTER;
        assert!(right.cells.len() >= cells && sums.len() >= left.count * LANES * LANES);
        if let Some(before_last) = left.count.checked_sub(1) {
            assert!(left.cells.len() >= before_last * left.stride + cells);
            multiply_tiles(steps, left, right, mode, sums);
        }
    }
}

/// A tile of sums on its way to those that are there.
#[repr(C, align(64))]
struct Sums([f32; LANES * LANES]);

/// Multiplies at least one left panel; see [`super::tiles`] for the registers.
#[expect(unsafe_code, reason = "tile instructions have no stable intrinsics")]
fn multiply_tiles(steps: usize, left: Panels<'_>, right: Right<'_>, mode: Accumulate, strip: &mut [f32]) {
    let mut found = Configuration::NONE;
    let mut sums = Sums([0.0; LANES * LANES]);
    // There are no more registers than these, so this one says both whether and where.
    let between = if mode == Accumulate::Add { sums.0.as_mut_ptr() } else { std::ptr::null_mut() };
    let bytes_of_panel = steps * 4 * PARTS * 2 * REGISTER;
    let lines_to_fetch = right.next.len().div_ceil(16).div_ceil(left.count);
    // SAFETY: reads `steps` times six registers of each left panel and of the right one; writes and reads a configuration and a tile
    // of sums; reads and writes the 32 rows of 128 bytes of `left.count` tiles of sums. All are that long, as the caller
    // asserts. Fetching ahead touches no memory. The process has been allowed to use tiles.
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
            "4:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "mov {right_now}, {right}",
            "mov {stride}, 64",
            "mov {count}, {steps}",
            "test {count}, {count}",
            "jz 8f",
            // the small products are summed: first part times third,
            "5:",
            "tileloadd tmm6, [{right_now} + {stride} + 4096]",
            "tileloadd tmm4, [{left} + {stride}]",
            "tileloadd tmm7, [{right_now} + {stride} + 5120]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{left} + {stride} + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            // first times second,
            "tileloadd tmm6, [{right_now} + {stride} + 2048]",
            "tileloadd tmm7, [{right_now} + {stride} + 3072]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            // second times second,
            "tileloadd tmm4, [{left} + {stride} + 2048]",
            "tileloadd tmm5, [{left} + {stride} + 3072]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            // second times first,
            "tileloadd tmm6, [{right_now} + {stride}]",
            "tileloadd tmm7, [{right_now} + {stride} + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            // and third times first;
            "tileloadd tmm4, [{left} + {stride} + 4096]",
            "tileloadd tmm5, [{left} + {stride} + 5120]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {left}, 6144",
            "add {right_now}, 6144",
            "dec {count}",
            "jnz 5b",
            // then first times first on top of them,
            "sub {left}, {bytes}",
            "mov {right_now}, {right}",
            "mov {count}, {steps}",
            "7:",
            "tileloadd tmm6, [{right_now} + {stride}]",
            "tileloadd tmm4, [{left} + {stride}]",
            "tileloadd tmm7, [{right_now} + {stride} + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{left} + {stride} + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {left}, 6144",
            "add {right_now}, 6144",
            "dec {count}",
            "jnz 7b",
            // and the sums are stored, or added to those that are there.
            "8:",
            "mov {stride}, 128",
            "test {sums}, {sums}",
            "jnz 9f",
            "tilestored [{to} + {stride}], tmm0",
            "tilestored [{to} + {stride} + 64], tmm1",
            "tilestored [{to} + {stride} + 2048], tmm2",
            "tilestored [{to} + {stride} + 2112], tmm3",
            "add {to}, 4096",
            "jmp 13f",
            "9:",
            "tilestored [{sums} + {stride}], tmm0",
            "tilestored [{sums} + {stride} + 64], tmm1",
            "tilestored [{sums} + {stride} + 2048], tmm2",
            "tilestored [{sums} + {stride} + 2112], tmm3",
            "mov {count}, 64",
            "mov {right_now}, {sums}",
            "12:",
            "vmovups zmm16, [{right_now}]",
            "vaddps zmm16, zmm16, [{to}]",
            "vmovups [{to}], zmm16",
            "add {right_now}, 64",
            "add {to}, 64",
            "dec {count}",
            "jnz 12b",
            "13:",
            "add {left}, {left_gap}",
            "dec {panels}",
            "jnz 2b",
            right_now = inout(reg) PLAIN.0.as_ptr() => _,
            count = inout(reg) found.0.as_mut_ptr() => _,
            stride = out(reg) _,
            lines = in(reg) lines_to_fetch,
            next = inout(reg) right.next.as_ptr() => _,
            to = inout(reg) strip.as_mut_ptr() => _,
            sums = in(reg) between,
            right = in(reg) right.cells.as_ptr(),
            steps = in(reg) steps,
            bytes = in(reg) bytes_of_panel,
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

/// Packs the parts one after the other, each register by register as [`super::tiles`] does.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn pack(side: Side, from: &Operand<'_>, first_lane: usize, panel: &mut [f32]) {
    let steps = from.depth().div_ceil(STEP);
    let (of_step, _) = panel.as_chunks_mut::<{ PARTS * 2 * REGISTER }>();
    for (step, panel) in of_step[..steps].iter_mut().enumerate() {
        for half in 0..2 {
            let at = At { lane: first_lane + 16 * half, step };
            let to = Registers { panel, half };
            match (side, from.depth_stride() == 1) {
                (Side::Left, true) => lanes(from, at, to),
                (Side::Left, false) => turned_lanes(from, at, to),
                (Side::Right, true) => turned_pairs(from, at, to),
                (Side::Right, false) => pairs(from, at, to),
            }
        }
    }
}

/// Where sixteen lanes of a step begin.
#[derive(Clone, Copy)]
struct At {
    lane: usize,
    step: usize,
}

impl At {
    /// How many lanes and how much depth the operand has there.
    fn present(self, from: &Operand<'_>) -> (usize, usize) {
        let deep = from.depth() - self.step * STEP;
        (from.lanes().saturating_sub(self.lane).min(16), deep.min(STEP))
    }
}

/// The registers of a half of a panel's lanes, one for each part.
struct Registers<'a> {
    panel: &'a mut [f32; PARTS * 2 * REGISTER],
    half: usize,
}

impl Registers<'_> {
    /// Writes a row of each register.
    #[inline]
    #[target_feature(enable = "avx512f")]
    #[expect(unsafe_code, reason = "vector stores take a pointer")]
    fn put(&mut self, row: usize, parts: [__m512i; PARTS]) {
        assert!(row < 16 && self.half < 2);
        for (part, cells) in parts.into_iter().enumerate() {
            let start = (2 * part + self.half) * REGISTER + 16 * row;
            // SAFETY: sixteen cells from there on are inside the panel, which has two registers for each part.
            unsafe { _mm512_storeu_si512(self.panel.as_mut_ptr().add(start).cast(), cells) };
        }
    }

    /// Rows that the operand lacks are zeros.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn clear(&mut self, rows: Range<usize>) {
        for row in rows {
            self.put(row, [_mm512_setzero_si512(); PARTS]);
        }
    }
}

/// The elements of a lane at a step, which lie one after the other; what is not there is zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn lane(from: &Operand<'_>, at: At, row: usize, deep: usize) -> [__m512; 2] {
    let start = (at.lane + row) * from.lane_stride() + at.step * STEP;
    let low = load(from.elements(), start, deep.min(16));
    let high = match deep.saturating_sub(16) {
        0 => _mm512_setzero_ps(),
        more => load(from.elements(), start + 16, more),
    };
    from.fetch(start + LANES * from.lane_stride());
    from.fetch(start + LANES * from.lane_stride() + 16);
    [low, high]
}

/// Row `l`: the elements of lane `l`, for an operand that lies so.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn lanes(from: &Operand<'_>, at: At, mut to: Registers<'_>) {
    let (present, deep) = at.present(from);
    let join = neighbours();
    for row in 0..present {
        let [low, high] = lane(from, at, row, deep).map(|elements| split(elements));
        to.put(row, std::array::from_fn(|part| _mm512_permutex2var_epi16(low[part], join, high[part])));
    }
    to.clear(present..16);
}

/// Row `p`: for each lane, the elements at the depths `2p` and `2p + 1`, for an operand that lies by lanes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn turned_pairs(from: &Operand<'_>, at: At, mut to: Registers<'_>) {
    let (present, deep) = at.present(from);
    let (mut low, mut high): (RegisterBlock, RegisterBlock) =
        ([_mm512_setzero_si512(); 16], [_mm512_setzero_si512(); 16]);
    for (row, (low, high)) in low.iter_mut().zip(&mut high).enumerate().take(present) {
        [*low, *high] = lane(from, at, row, deep).map(|elements| _mm512_castps_si512(elements));
    }
    for (number, half) in [low, high].into_iter().enumerate() {
        let depths = transpose(half);
        for pair in 0..8 {
            let [below, above] = [depths[2 * pair], depths[2 * pair + 1]];
            to.put(8 * number + pair, joined(_mm512_castsi512_ps(below), _mm512_castsi512_ps(above)));
        }
    }
}

/// The cells of a pair of depths, for an operand that lies by depth.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn pair(from: &Operand<'_>, at: At, pair: usize, (present, deep): (usize, usize)) -> [__m512i; PARTS] {
    let below = (at.step * STEP + 2 * pair) * from.depth_stride() + at.lane;
    let above = below + from.depth_stride();
    from.fetch(below + STEP * from.depth_stride());
    from.fetch(above + STEP * from.depth_stride());
    // A depth that the operand lacks counts as zeros.
    let has_above = 2 * pair + 1 < deep;
    let above = if has_above { load(from.elements(), above, present) } else { _mm512_setzero_ps() };
    joined(load(from.elements(), below, present), above)
}

/// Row `p`: for each lane, the elements at the depths `2p` and `2p + 1`, for an operand that lies so.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn pairs(from: &Operand<'_>, at: At, mut to: Registers<'_>) {
    let (present, deep) = at.present(from);
    let count = if present == 0 { 0 } else { deep.div_ceil(2) };
    for row in 0..count {
        to.put(row, pair(from, at, row, (present, deep)));
    }
    to.clear(count..16);
}

/// Row `l`: the elements of lane `l`, for an operand that lies by depth.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn turned_lanes(from: &Operand<'_>, at: At, mut to: Registers<'_>) {
    let (present, deep) = at.present(from);
    let count = if present == 0 { 0 } else { deep.div_ceil(2) };
    let mut blocks: [RegisterBlock; PARTS] = [[_mm512_setzero_si512(); 16]; PARTS];
    for row in 0..count {
        for (block, cells) in blocks.iter_mut().zip(pair(from, at, row, (present, deep))) {
            block[row] = cells;
        }
    }
    let [first, second, third] = blocks.map(|block| transpose(block));
    for (row, ((first, second), third)) in first.into_iter().zip(second).zip(third).enumerate() {
        to.put(row, [first, second, third]);
    }
}

/// Cells of two rows of elements: the parts of one below, those of the other above.
#[inline]
#[target_feature(enable = "avx512f")]
fn joined(below: __m512, above: __m512) -> [__m512i; PARTS] {
    let (below, above) = (split(below), split(above));
    std::array::from_fn(|part| _mm512_or_si512(_mm512_srli_epi32::<16>(below[part]), above[part]))
}

/// The parts of sixteen elements, each a bf16 in the upper half of its cell and zeros below.
#[inline]
#[target_feature(enable = "avx512f")]
fn split(elements: __m512) -> [__m512i; PARTS] {
    let (half, upper) = (_mm512_set1_epi32(0x8000), _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
    let rounded = |of: __m512| _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(of), half), upper);
    let first = rounded(elements);
    let left = _mm512_sub_ps(elements, _mm512_castsi512_ps(first));
    let second = rounded(left);
    // Eight bits are left at most, so that nothing is cut off; but for NaN, which stays one.
    let third = _mm512_sub_ps(left, _mm512_castsi512_ps(second));
    [first, second, _mm512_and_si512(_mm512_castps_si512(third), upper)]
}

/// The upper halves of the cells of one register, then those of another.
#[inline]
#[target_feature(enable = "avx512f")]
fn neighbours() -> __m512i {
    // 1, 3, 5, ... to 63.
    let low = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    let first = _mm512_add_epi32(_mm512_slli_epi32::<2>(low), _mm512_set1_epi32(1));
    _mm512_or_si512(first, _mm512_slli_epi32::<16>(_mm512_add_epi32(first, _mm512_set1_epi32(2))))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::operand::Elements;
    use super::super::vectors::{Avx512, Vectors};
    use super::*;

    /// The sums of two matrices of 32 lanes by a multiplier.
    fn product(by: &dyn Multiplier, depth: usize, left: &[f32], right: &[f32]) -> Vec<f32> {
        let (tile, mut sums) = (by.tile(), vec![0.0; LANES * LANES]);
        let operand = |elements| Operand::new(Elements::F32(elements), (LANES, depth), (depth, 1));
        let pack = |side, elements, lane| {
            let mut panel = vec![0.0; tile.panel_cells(side, depth)];
            by.pack(side, &operand(elements), lane, &mut panel);
            panel
        };
        for row in (0..LANES).step_by(tile.rows) {
            for column in (0..LANES).step_by(tile.columns) {
                let (left, right) = (pack(Side::Left, left, row), pack(Side::Right, right, column));
                let mut strip = vec![0.0; tile.rows * tile.columns];
                let panels = Panels { cells: &left, stride: left.len(), count: 1 };
                by.multiply(depth, panels, Right::from(&right[..]), Accumulate::Replace, &mut strip);
                for (at, sum) in strip.into_iter().enumerate() {
                    let (row, column) = (row + at / tile.columns, column + at % tile.columns);
                    if row < LANES && column < LANES {
                        sums[row * LANES + column] = sum;
                    }
                }
            }
        }
        sums
    }

    /// Errors in units of the last place of the sum of magnitudes: the largest, and the root of the mean square.
    fn errors(depth: usize, left: &[f32], right: &[f32], sums: &[f32]) -> (f64, f64) {
        let of = |at: usize| {
            let pairs = left[at / LANES * depth..][..depth].iter().zip(&right[at % LANES * depth..][..depth]);
            let (mut exact, mut size) = (0.0, 0.0);
            for (a, b) in pairs {
                let product = f64::from(*a) * f64::from(*b);
                (exact, size) = (exact + product, size + product.abs());
            }
            (f64::from(sums[at]) - exact) / (size.max(f64::MIN_POSITIVE) * f64::from(f32::EPSILON))
        };
        let all: Vec<f64> = (0..LANES * LANES).map(of).collect();
        let largest = all.iter().fold(0.0, |most: f64, error| most.max(error.abs()));
        (largest, (all.iter().map(|error| error * error).sum::<f64>() / all.len() as f64).sqrt())
    }

    /// The most that such an error can be: half for each rounding at the size of the sum.
    ///
    /// A step's sixteen pairs are two chains of multiply-adds, whose first products fit into `f32`; the chains are added, and each
    /// step to the sum. The small products are rounded at 2^-7 of its size, which at these depths is less than half a rounding in
    /// all, and those that do not count are less than one. First parts are larger than their numbers by 2^-8 at most.
    fn most(depth: usize) -> f64 {
        let of_chain = depth.min(STEP).div_ceil(2) - 1;
        let roundings = of_chain + 1 + depth.div_ceil(STEP);
        0.5 * 1.02 * (roundings as f64 + 1.5)
    }

    fn elements(count: usize) -> impl Strategy<Value = Vec<f32>> {
        // Of all sizes that products of two still have in f32.
        proptest::collection::vec(
            (-1.0f32..1.0, -40i32..40).prop_map(|(one, size)| one * 2f32.powi(size)),
            count,
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// As near to the exact sums as multiply-adds of f32 come.
        #[test]
        fn sums_are_those_of_f32(depth in 1usize..150, seed in elements(2 * LANES * 150)) {
            if !crate::cpu::has_tiles() {
                return Ok(());
            }
            let (left, right) = seed.split_at(LANES * 150);
            let (left, right) = (&left[..LANES * depth], &right[..LANES * depth]);
            let (largest, mean) = errors(depth, left, right, &product(&SplitTiles, depth, left, right));
            let vectors = Vectors::<Avx512, 8>::NEW;
            let (_, of_vectors) = errors(depth, left, right, &product(&vectors, depth, left, right));
            prop_assert!(mean <= 1.5 * of_vectors + 0.1, "{mean} beside {of_vectors} at depth {depth}");
            prop_assert!(largest <= most(depth), "{largest} at depth {depth}");
        }
    }

    /// Three parts are the whole number.
    #[test]
    fn products_with_one_are_exact() {
        if !crate::cpu::has_tiles() {
            return;
        }
        let given: Vec<f32> =
            (0..LANES as u32).map(|at| f32::from_bits(0x3f80_0001 + at * 0x0003_1415)).collect();
        let sums = product(&SplitTiles, 1, &given, &[1.0; LANES]);
        assert!(
            given.iter().enumerate().all(|(row, number)| sums[row * LANES].to_bits() == number.to_bits())
        );
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        if !crate::cpu::has_tiles() {
            return;
        }
        for bad in [f32::NAN, f32::INFINITY, f32::from_bits(u32::MAX), f32::from_bits(0x7fff_ffff)] {
            let mut left = vec![1.0; LANES * 40];
            left[45] = bad;
            let sums = product(&SplitTiles, 40, &left, &[1.0; LANES * 40]);
            assert!(sums[LANES..2 * LANES].iter().all(|sum| !sum.is_finite()), "{bad}");
            assert!(sums[..LANES].iter().chain(&sums[2 * LANES..]).all(|sum| *sum == 40.0), "{bad}");
        }
    }
}
