//! Products by vector instructions, in `f32`.
//!
//! A tile is `ROWS` rows of two vectors, which together with a row of the right panel fill the registers. Left and right
//! panels hold their lanes side by side, one depth after the other.

use std::marker::PhantomData;

use crate::Accumulate;
use crate::cpu::Level;

use super::multiplier::{Multiplier, Panels, Right, Side, Tile};
use super::operand::{Elements, Operand};

/// A register of `f32`. Its functions must be inlined into code that is compiled for its level.
pub(crate) trait Vector: Copy + Send + Sync + 'static {
    const LANES: usize;
    const LEVEL: Level;

    fn splat(value: f32) -> Self;

    /// The first elements of a slice. Panics when it is too short.
    fn load(from: &[f32]) -> Self;

    /// Panics when the slice is too short.
    fn store(self, to: &mut [f32]);

    /// `self * by + plus`
    fn multiply_add(self, by: Self, plus: Self) -> Self;

    /// Packs lanes whose elements lie one after the other, where the level has a fast way for it.
    fn pack_transposed(_from: &Operand<'_>, _lanes: usize, _first_lane: usize, _panel: &mut [f32]) -> bool {
        false
    }
}

/// The multiplier for one kind of vector.
pub(crate) struct Vectors<V, const ROWS: usize>(PhantomData<V>);

impl<V: Vector, const ROWS: usize> Vectors<V, ROWS> {
    pub(crate) const NEW: Self = Self(PhantomData);
    const COLUMNS: usize = 2 * V::LANES;
}

impl<V: Vector, const ROWS: usize> Multiplier for Vectors<V, ROWS> {
    fn tile(&self) -> Tile {
        Tile {
            rows: ROWS,
            columns: Self::COLUMNS,
            step: 1,
            cells_per_step: 1,
            block_depth: 256,
            block_rows: 256,
            block_columns: 256,
        }
    }

    fn pack(&self, side: Side, from: &Operand<'_>, first_lane: usize, panel: &mut [f32]) {
        let lanes = self.tile().lanes(side);
        V::LEVEL.vectorized(
            #[inline(always)]
            || {
                let is_whole = first_lane + lanes <= from.lanes();
                if from.lane_stride() == 1 && is_whole {
                    return match side {
                        Side::Left => copy_rows::<ROWS>(from, first_lane, panel),
                        Side::Right if lanes == 32 => copy_rows::<32>(from, first_lane, panel),
                        Side::Right if lanes == 16 => copy_rows::<16>(from, first_lane, panel),
                        Side::Right => copy_rows::<8>(from, first_lane, panel),
                    };
                }
                if from.depth_stride() != 1 || !V::pack_transposed(from, lanes, first_lane, panel) {
                    copy_one_by_one(from, lanes, first_lane, panel);
                }
            },
        );
    }

    fn strip_as_right<'a>(&self, strip: &'a [f32], rows: usize, _buffer: &'a mut [f32]) -> &'a [f32] {
        &strip[..rows * Self::COLUMNS]
    }

    fn multiply(&self, depth: usize, left: Panels<'_>, right: Right<'_>, mode: Accumulate, sums: &mut [f32]) {
        V::LEVEL.vectorized(
            #[inline(always)]
            || {
                for (panel, sums) in (0..left.count).zip(sums.chunks_exact_mut(ROWS * Self::COLUMNS)) {
                    right.fetch_next(panel, left.count);
                    let left = &left.cells[panel * left.stride..][..depth * ROWS];
                    tile::<V, ROWS>(left, &right.cells[..depth * Self::COLUMNS], mode, sums);
                }
            },
        );
    }
}

/// One tile: all its sums stay in registers over the whole depth.
#[inline(always)]
fn tile<V: Vector, const ROWS: usize>(left: &[f32], right: &[f32], mode: Accumulate, sums: &mut [f32]) {
    let mut registers = [[V::splat(0.0); 2]; ROWS];
    for (left, right) in left.chunks_exact(ROWS).zip(right.chunks_exact(2 * V::LANES)) {
        let right = [V::load(right), V::load(&right[V::LANES..])];
        for (row, left) in registers.iter_mut().zip(left) {
            let left = V::splat(*left);
            row[0] = left.multiply_add(right[0], row[0]);
            row[1] = left.multiply_add(right[1], row[1]);
        }
    }
    let one = V::splat(1.0);
    for (row, sums) in registers.iter().zip(sums.chunks_exact_mut(2 * V::LANES)) {
        let (first, second) = sums.split_at_mut(V::LANES);
        match mode {
            Accumulate::Replace => row[0].store(first),
            Accumulate::Add => one.multiply_add(row[0], V::load(first)).store(first),
        }
        match mode {
            Accumulate::Replace => row[1].store(second),
            Accumulate::Add => one.multiply_add(row[1], V::load(second)).store(second),
        }
    }
}

/// How far ahead of what is copied the next is asked for.
const AHEAD: usize = 16;

/// Lanes that lie side by side at each depth.
#[inline(always)]
fn copy_rows<const LANES: usize>(from: &Operand<'_>, first_lane: usize, panel: &mut [f32]) {
    let starts = (0..from.depth()).map(|depth| depth * from.depth_stride() + first_lane);
    match from.elements() {
        Elements::F32(values) => {
            for (start, row) in starts.zip(panel.chunks_exact_mut(LANES)) {
                row.copy_from_slice(&values[start..start + LANES]);
                from.fetch(start + AHEAD * from.depth_stride());
            }
        }
        Elements::Bf16(values) => {
            for (start, row) in starts.zip(panel.chunks_exact_mut(LANES)) {
                let values = &values[start..start + LANES];
                row.iter_mut().zip(values).for_each(|(to, from)| *to = from.to_f32());
            }
        }
    }
}

/// Any lanes in any direction; those that the operand lacks become zero.
#[inline(always)]
fn copy_one_by_one(from: &Operand<'_>, lanes: usize, first_lane: usize, panel: &mut [f32]) {
    let present = (from.lanes() - first_lane).min(lanes);
    for (depth, row) in panel.chunks_exact_mut(lanes).take(from.depth()).enumerate() {
        for (lane, to) in row[..present].iter_mut().enumerate() {
            *to = from.elements().at((first_lane + lane) * from.lane_stride() + depth * from.depth_stride());
        }
        row[present..].fill(0.0);
    }
}

/// Plain Rust, for processors without the wide instructions.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; 4]);

impl Vector for Portable {
    const LANES: usize = 4;
    const LEVEL: Level = Level::Portable;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; 4])
    }

    #[inline(always)]
    fn load(from: &[f32]) -> Self {
        Self([from[0], from[1], from[2], from[3]])
    }

    #[inline(always)]
    fn store(self, to: &mut [f32]) {
        to[..4].copy_from_slice(&self.0);
    }

    #[inline(always)]
    fn multiply_add(self, by: Self, plus: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] * by.0[lane] + plus.0[lane]))
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use wide::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::*;

    use super::{Operand, Vector};
    use crate::cpu::Level;
    use crate::cpu::multiply::transpose;

    /// Sixteen lanes.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512(__m512);

    /// Eight lanes.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(__m256);

    #[expect(unsafe_code, reason = "instructions of the level that the code around is compiled for")]
    impl Vector for Avx512 {
        const LANES: usize = 16;
        const LEVEL: Level = Level::Avx512;

        #[inline(always)]
        fn splat(value: f32) -> Self {
            // SAFETY: this type is used only at its level.
            Self(unsafe { _mm512_set1_ps(value) })
        }

        #[inline(always)]
        fn load(from: &[f32]) -> Self {
            assert!(from.len() >= Self::LANES);
            // SAFETY: this type is used only at its level; the slice is long enough.
            Self(unsafe { _mm512_loadu_ps(from.as_ptr()) })
        }

        #[inline(always)]
        fn store(self, to: &mut [f32]) {
            assert!(to.len() >= Self::LANES);
            // SAFETY: as for `load`.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) }
        }

        #[inline(always)]
        fn multiply_add(self, by: Self, plus: Self) -> Self {
            // SAFETY: this type is used only at its level.
            Self(unsafe { _mm512_fmadd_ps(self.0, by.0, plus.0) })
        }

        #[inline(always)]
        fn pack_transposed(from: &Operand<'_>, lanes: usize, first_lane: usize, panel: &mut [f32]) -> bool {
            // SAFETY: this type is used only at its level.
            unsafe { transpose::pack_f32(from, lanes, first_lane, panel) };
            true
        }
    }

    #[expect(unsafe_code, reason = "instructions of the level that the code around is compiled for")]
    impl Vector for Avx2 {
        const LANES: usize = 8;
        const LEVEL: Level = Level::Avx2;

        #[inline(always)]
        fn splat(value: f32) -> Self {
            // SAFETY: this type is used only at its level.
            Self(unsafe { _mm256_set1_ps(value) })
        }

        #[inline(always)]
        fn load(from: &[f32]) -> Self {
            assert!(from.len() >= Self::LANES);
            // SAFETY: this type is used only at its level; the slice is long enough.
            Self(unsafe { _mm256_loadu_ps(from.as_ptr()) })
        }

        #[inline(always)]
        fn store(self, to: &mut [f32]) {
            assert!(to.len() >= Self::LANES);
            // SAFETY: as for `load`.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), self.0) }
        }

        #[inline(always)]
        fn multiply_add(self, by: Self, plus: Self) -> Self {
            // SAFETY: this type is used only at its level.
            Self(unsafe { _mm256_fmadd_ps(self.0, by.0, plus.0) })
        }
    }
}
