//! What collectives mean, the slow and obvious way: all ranks' elements in one place.

use bedplate_comm::Reduction;

/// Numbers that every format holds exactly, and whose sums over a few ranks it holds too.
pub(crate) fn number(seed: u64, rank: usize, index: usize) -> i64 {
    let mut bits = seed
        ^ (rank as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (index as u64).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    bits = (bits ^ (bits >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((bits >> 40) % 13) as i64
}

pub(crate) fn elements(seed: u64, rank: usize, len: usize) -> Vec<i64> {
    (0..len).map(|index| number(seed, rank, index)).collect()
}

/// The elements of all ranks at one place become one.
pub(crate) fn reduced(seed: u64, ranks: &[usize], index: usize, by: Reduction) -> f64 {
    let all = ranks.iter().map(|rank| number(seed, *rank, index));
    match by {
        Reduction::Sum => all.sum::<i64>() as f64,
        Reduction::Max => all.max().expect("a rank") as f64,
        Reduction::Min => all.min().expect("a rank") as f64,
        Reduction::Average => all.sum::<i64>() as f64 / ranks.len() as f64,
    }
}
