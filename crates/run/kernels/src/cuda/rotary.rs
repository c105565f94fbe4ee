//! Rotary positions.

use super::kernel::{address, flag, word};
use super::source::KernelSource::Pointwise;
use super::{Cuda, format_of};
use crate::device::Rotation;
use crate::{Element, Turn};

impl Cuda {
    pub(crate) fn rotate<E: Element>(&self, rotation: Rotation<'_, E>) {
        let Rotation { heads, positions, rotary, turn, x, .. } = rotation;
        let (to, rows) = (self.rows_mut(&x), x.rows);
        let wide = to.is_aligned() && heads.dim.is_multiple_of(8) && rotary.pairs.is_multiple_of(8);
        let pieces = rows * heads.count * rotary.pairs;
        assert!(u32::try_from(pieces).is_ok(), "{pieces} pairs are more than a kernel turns at once");
        self.kernel(Pointwise, [format_of::<E>(); 3], "rotate").over(
            if wide { pieces / 8 } else { pieces },
            &[
                address(to.address),
                word(to.stride),
                word(rows),
                word(heads.count),
                word(heads.dim),
                address(self.at(positions)),
                address(self.at(rotary.cosines.view())),
                address(self.at(rotary.sines.view())),
                word(rotary.pairs),
                word(rotary.max_positions()),
                flag(turn == Turn::Backward),
                flag(wide),
                address(self.report.address()),
            ],
        );
    }
}
