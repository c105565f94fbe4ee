//! Parts of heads that are put elsewhere: what latent attention makes its keys and values from.
//!
//! Its keys consist of a part that each head has for itself and one that all heads share, and its values are as wide as they like. Attention wants
//! heads of one size side by side. On the processor only.

use bedplate_breakdown::Part;

use super::Backend;
use crate::{Device, Element, Matrix, MatrixMut};

/// Where some numbers of each head lie in a row: those of head `h` begin at column `h * apart + first`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadPart {
    /// Columns from head to head; 0 where all heads share one.
    pub apart: usize,
    pub first: usize,
}

impl HeadPart {
    /// Columns that a row has at least.
    fn columns(self, heads: usize, len: usize) -> usize {
        heads.saturating_sub(1) * self.apart + self.first + len
    }
}

pub(crate) struct HeadParts<'a, E> {
    pub(crate) heads: usize,
    pub(crate) len: usize,
    pub(crate) from: (Matrix<'a, E>, HeadPart),
    pub(crate) to: (MatrixMut<'a, E>, HeadPart),
}

impl Device {
    /// Copies `len` numbers of each of `heads` heads.
    pub fn copy_heads<E: Element>(
        &self,
        (heads, len): (usize, usize),
        from: (Matrix<'_, E>, HeadPart),
        to: (MatrixMut<'_, E>, HeadPart),
    ) {
        assert!(heads <= 1 || to.1.apart >= len, "heads lie apart");
        let parts = HeadParts { heads, len, from, to };
        match &self.backend {
            Backend::Cpu(cpu) => cpu.time(Part::Memory, || cpu.copy_heads(parts.checked())),
            Backend::Cuda(_) => unreachable!("a GPU does not copy parts of heads"),
        }
    }

    /// Replaces `len` numbers by the sums of those of all heads.
    pub fn sum_heads<E: Element>(
        &self,
        (heads, len): (usize, usize),
        from: (Matrix<'_, E>, HeadPart),
        to: MatrixMut<'_, E>,
    ) {
        let parts = HeadParts { heads, len, from, to: (to, HeadPart { apart: 0, first: 0 }) };
        match &self.backend {
            Backend::Cpu(cpu) => cpu.time(Part::Memory, || cpu.sum_heads(parts.checked())),
            Backend::Cuda(_) => unreachable!("a GPU does not add up parts of heads"),
        }
    }
}

impl<E> HeadParts<'_, E> {
    fn checked(self) -> Self {
        let Self { heads, len, from, to } = &self;
        assert_eq!(from.0.rows, to.0.rows, "rows of heads");
        assert!(from.1.columns(*heads, *len) <= from.0.columns, "heads that are read");
        assert!(to.1.columns(*heads, *len) <= to.0.columns, "heads that are written");
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::lend;

    #[test]
    fn parts_of_heads_go_where_they_belong() {
        let device = Device::cpu(2);
        // Two heads of three numbers, and one of two that they share.
        let own = lend(&device, &(0..12).map(|number| number as f32).collect::<Vec<_>>());
        let shared = lend(&device, &[50.0f32, 51.0, 60.0, 61.0]);
        let mut keys = lend(&device, &[0.0f32; 16]);
        let part = |apart, first| HeadPart { apart, first };
        device.copy_heads(
            (2, 2),
            (own.view().matrix(2, 6), part(3, 1)),
            (keys.view_mut().matrix(2, 8), part(4, 0)),
        );
        device.copy_heads(
            (2, 2),
            (shared.view().matrix(2, 2), part(0, 0)),
            (keys.view_mut().matrix(2, 8), part(4, 2)),
        );
        let mut found = [0.0; 16];
        device.read(keys.view(), &mut found);
        let expected =
            [1.0, 2.0, 50.0, 51.0, 4.0, 5.0, 50.0, 51.0, 7.0, 8.0, 60.0, 61.0, 10.0, 11.0, 60.0, 61.0];
        assert_eq!(found, expected);
        let mut sums = lend(&device, &[0.0f32; 4]);
        device.sum_heads((2, 2), (keys.view().matrix(2, 8), part(4, 2)), sums.view_mut().matrix(2, 2));
        let mut found = [0.0; 4];
        device.read(sums.view(), &mut found);
        assert_eq!(found, [100.0, 102.0, 120.0, 122.0]);
    }
}
