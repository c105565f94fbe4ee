//! What multiplies by a packed matrix: the tile unit for rows of bf16 by bf16 and by whole numbers, vectors for everything else.

use super::lanes;
use super::layout::{LANES, STEP, Weight, step_bytes};
use super::widen::widen;
#[cfg(target_arch = "x86_64")]
use super::{tiles, unfold, whole};
use crate::cpu::multiply::{Elements, Multiplier, Operand, Panels, Side};
use crate::cpu::{Cpu, Level};
use crate::{Accumulate, Element, Rows, WeightFormat};

/// Cells of the buffer in which a block of a panel is unfolded.
pub(super) const BUFFER: usize = 512 * LANES / 2 + 16 * LANES;

#[derive(Clone, Copy)]
pub(super) enum Unit {
    #[cfg(target_arch = "x86_64")]
    Tiles(&'static dyn Multiplier),
    /// The tile unit, with rows that are rounded to whole numbers.
    #[cfg(target_arch = "x86_64")]
    Whole(Level),
    Lanes(Level, &'static dyn Multiplier),
}

impl Cpu {
    /// The unit for rows of `X`. Rows of `f32` are never rounded.
    pub(super) fn unit<X: Element>(&self, format: WeightFormat) -> Unit {
        #[cfg(target_arch = "x86_64")]
        if matches!(X::elements(&[]), Elements::Bf16(_)) && self.has_tiles {
            match format {
                WeightFormat::Bf16 | WeightFormat::Fp8 => return Unit::Tiles(self.multiplier::<X, X>()),
                WeightFormat::Int8 | WeightFormat::Int4 => return Unit::Whole(self.level),
                WeightFormat::F32 | WeightFormat::F16 => {}
            }
        }
        Unit::Lanes(self.level, self.multiplier::<f32, f32>())
    }
}

impl Unit {
    /// Rows of a left panel, where there are `rows` in all.
    pub(super) fn panel_rows(self, rows: usize) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Unit::Tiles(many) if rows > tiles::FEW => many.tile().rows,
            #[cfg(target_arch = "x86_64")]
            Unit::Tiles(_) => rows.max(1),
            #[cfg(target_arch = "x86_64")]
            Unit::Whole(_) => rows.clamp(1, tiles::FEW),
            Unit::Lanes(..) if rows == 1 => 1,
            Unit::Lanes(_, many) => many.tile().rows,
        }
    }

    /// Cells of one row of a left panel.
    pub(super) fn row_cells(self, depth: usize) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Unit::Tiles(_) => depth.div_ceil(STEP) * STEP / 2,
            #[cfg(target_arch = "x86_64")]
            Unit::Whole(_) => whole::row_cells(depth),
            Unit::Lanes(..) => depth,
        }
    }

    /// Inputs of a block: what is multiplied of a panel at a time.
    pub(super) fn block(self, rows: usize) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Unit::Tiles(_) if rows > tiles::FEW => 512,
            #[cfg(target_arch = "x86_64")]
            Unit::Tiles(_) => usize::MAX,
            #[cfg(target_arch = "x86_64")]
            Unit::Whole(_) => whole::BLOCK,
            Unit::Lanes(..) => lanes::BLOCK,
        }
    }

    /// Packs the rows from `first` on as a left panel; `panel_rows` of them, fewer where there are no more.
    pub(super) fn pack_left<X: Element>(
        self,
        x: Rows<&[X]>,
        first: usize,
        panel_rows: usize,
        to: &mut [f32],
    ) {
        let end = (first + panel_rows).min(x.rows);
        match (self, X::elements(x.elements)) {
            #[cfg(target_arch = "x86_64")]
            (Unit::Tiles(_), Elements::Bf16(elements)) if panel_rows <= tiles::FEW => {
                let Rows { rows, columns, stride, .. } = x;
                tiles::pack_few(Rows { elements, rows, columns, stride }.rows(first..end), to);
            }
            #[cfg(target_arch = "x86_64")]
            (Unit::Whole(level), Elements::Bf16(elements)) => {
                let Rows { rows, columns, stride, .. } = x;
                let x = Rows { elements, rows, columns, stride }.rows(first..end);
                inlined!(level.vectorized(|| whole::pack(x, panel_rows, to)));
            }
            (Unit::Lanes(level, _), _) if panel_rows == 1 => {
                inlined!(level.vectorized(|| {
                    to.iter_mut().zip(x.row(first)).for_each(|(to, x)| *to = x.widen());
                }));
            }
            #[cfg(target_arch = "x86_64")]
            (Unit::Whole(_), _) => unreachable!("only bf16 is rounded to whole elements"),
            #[cfg(target_arch = "x86_64")]
            (Unit::Tiles(many), _) => many.pack(Side::Left, &Operand::rows_of(x), first, to),
            (Unit::Lanes(_, many), _) => many.pack(Side::Left, &Operand::rows_of(x), first, to),
        }
    }

    /// Multiplies left panels of `panel_rows` rows by a block of a panel, `depth` inputs from `first` on.
    pub(super) fn multiply(
        self,
        (panel_rows, left): (usize, Panels<'_>),
        (weight, panel): (&Weight<'_>, usize),
        (first, depth): (usize, usize),
        buffer: &mut [f32],
        strip: &mut [f32],
    ) {
        let mode = if first == 0 { Accumulate::Replace } else { Accumulate::Add };
        let steps = weight.steps(panel, first);
        match self {
            #[cfg(target_arch = "x86_64")]
            Unit::Tiles(_) if panel_rows <= tiles::FEW => {
                tiles::sum_few(panel_rows, left.cells, steps, strip);
            }
            #[cfg(target_arch = "x86_64")]
            Unit::Tiles(many) => many.multiply(depth, left, cells(steps).into(), mode, strip),
            #[cfg(target_arch = "x86_64")]
            Unit::Whole(_) => {
                let steps = &steps[..depth.div_ceil(STEP) * step_bytes(weight.format)];
                whole::multiply(panel_rows, left, (weight.format, steps), buffer, mode, strip);
            }
            Unit::Lanes(level, _) => {
                let right = as_wide(level, weight.format, steps, depth, buffer);
                lanes::multiply(level, panel_rows, depth, left, right, mode, strip);
            }
        }
    }
}

/// Some steps as `f32`.
fn as_wide<'a>(
    level: Level,
    format: WeightFormat,
    steps: &'a [u8],
    depth: usize,
    buffer: &'a mut [f32],
) -> &'a [f32] {
    if format == WeightFormat::F32 {
        return cells(steps);
    }
    let to = &mut buffer[..depth.div_ceil(STEP) * LANES * STEP];
    #[cfg(target_arch = "x86_64")]
    if level == Level::Avx512 && format == WeightFormat::F16 {
        #[expect(unsafe_code, reason = "calls code for instructions that the processor has")]
        // SAFETY: the processor has the instructions of its level.
        unsafe {
            unfold::f16(steps, to);
        };
        return to;
    }
    inlined!(level.vectorized(|| widen(format, steps, step_bytes(format), to)));
    to
}

/// Bytes as cells of four.
#[expect(unsafe_code, reason = "names the same bits by another type")]
pub(super) fn cells(bytes: &[u8]) -> &[f32] {
    // SAFETY: all bits are valid elements.
    let (before, cells, after) = unsafe { bytes.align_to() };
    assert!(before.is_empty() && after.is_empty(), "steps begin at cache lines and fill them");
    cells
}
