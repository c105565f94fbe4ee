//! Parts of heads that are put elsewhere.

use super::Cpu;
use crate::Element;
use crate::device::HeadParts;

impl Cpu {
    pub(crate) fn copy_heads<E: Element>(&self, parts: HeadParts<'_, E>) {
        let HeadParts { heads, len, from: (from, at), to: (to, place) } = parts;
        let (from, shape) = (self.rows(from), (to.rows, heads * len));
        inlined!(self.in_rows(shape, self.rows_mut(to), |row, to| {
            for head in 0..heads {
                let from = &from.row(row)[head * at.apart + at.first..][..len];
                to[head * place.apart + place.first..][..len].copy_from_slice(from);
            }
        }));
    }

    pub(crate) fn sum_heads<E: Element>(&self, parts: HeadParts<'_, E>) {
        let HeadParts { heads, len, from: (from, at), to: (to, _) } = parts;
        let (from, shape) = (self.rows(from), (to.rows, heads * len));
        inlined!(self.in_rows(shape, self.rows_mut(to), |row, to| {
            for (column, to) in to.iter_mut().take(len).enumerate() {
                let of = |head: usize| from.row(row)[head * at.apart + at.first + column].widen();
                *to = E::narrow((0..heads).map(of).sum());
            }
        }));
    }
}
