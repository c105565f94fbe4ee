//! Attention over several sets of keys, put together by the logarithms of their sums.

use crate::Element;
use crate::cpu::Cpu;
use crate::cpu::elementary::exp;
use crate::device::MergeParts;

impl Cpu {
    pub(crate) fn merge<E: Element, O: Element>(&self, parts: MergeParts<'_, E, O>) {
        let MergeParts { part, part_log_sums, whole, log_sums } = parts;
        let (part, part_log_sums) = (self.rows(part), self.slice(part_log_sums));
        let heads = part_log_sums.len() / part.rows.max(1);
        let dim = part.columns / heads.max(1);
        let (shape, outputs) = (part.shape(), (self.rows_mut(whole), self.shared(log_sums, heads)));
        inlined!(self.in_rows(shape, outputs, |row, (whole, log_sums)| {
            let part_log_sums = &part_log_sums[row * heads..][..heads];
            let of_heads = part.row(row).chunks_exact(dim).zip(whole.chunks_exact_mut(dim));
            for ((part, whole), (more, so_far)) in of_heads.zip(part_log_sums.iter().zip(log_sums)) {
                let [old, new] = shares(so_far, *more);
                for (whole, part) in whole.iter_mut().zip(part) {
                    *whole = O::narrow(old * whole.widen() + new * part.widen());
                }
            }
        }));
    }
}

/// What two parts count in the whole, whose logarithm replaces that of the first. Nothing changes where neither saw a key.
#[inline(always)]
fn shares(so_far: &mut f32, more: f32) -> [f32; 2] {
    let most = if *so_far > more { *so_far } else { more };
    if most == f32::NEG_INFINITY {
        return [1.0, 0.0];
    }
    let weights = [exp(*so_far - most), exp(more - most)];
    let sum = weights[0] + weights[1];
    *so_far = most + sum.ln();
    weights.map(|weight| weight / sum)
}
