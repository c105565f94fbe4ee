//! A network cut over ranks: which part of it a rank has, and what blocks need of the other ranks while they are computed.
//!
//! Tensor parallelism divides query heads, key and value heads, and the widths of MLPs and experts. Norms, routers, biases of layers
//! whose inputs are cut, the embedding and the head are whole on every rank. With sequence parallelism each tensor rank has a share
//! of the rows of the residual stream, and so of the gradients of norms, embedding and head ([`Tensor::is_partial`](crate::Tensor)).
//! Context parallelism divides the rows of every sequence, expert parallelism the routed experts.

use std::ops::Range;

use bedplate_kernels::{Device, View, ViewMut};
use bedplate_transformer::workspace::Ranks;
use bedplate_transformer::{Attention, Dense, GroupedQuery, Layer, Mixture, Mlp, QkNorm};

use crate::NetworkError;

/// One rank's place among the `degree` ranks that share something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankShare {
    pub degree: usize,
    pub rank: usize,
}

/// Which part of a network a rank has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardSpec {
    /// Of every matrix.
    pub tensor: RankShare,
    /// Whether norms and residual streams hold only this tensor rank's share of the rows, which are cut in one piece
    /// (sequence parallelism).
    pub has_cut_rows: bool,
    /// Of the rows of every sequence, as [`cut_rows`] says.
    pub context: RankShare,
    /// Of the routed experts of every layer, neighbours together. The matrices of an expert are also cut by `tensor`.
    pub experts: RankShare,
    /// Each section of a block begins and ends at a multiple of this many numbers; at least 1.
    pub unit: usize,
}

/// The ranks over which sums go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Among {
    Tensor,
    Context,
}

/// What a block needs of other ranks while it is computed.
///
/// All ranks of a group call the same method in the same order with matching lengths. No method fails: an implementation that
/// cannot go on remembers why, leaves the numbers as they are and returns at once from then on; its owner asks it after the pass.
/// A group of one rank is never asked.
pub trait Peers: Send + Sync {
    /// Adds up the ranks' partial sums in place. All must get the same bits.
    fn sum(&self, device: &Device, among: Among, partial: ViewMut<'_, f32>);

    /// Puts what each tensor rank has one after the other; `to` is longer than `from` by the degree.
    fn gather(&self, device: &Device, from: View<'_, u8>, to: ViewMut<'_, u8>);

    /// Adds up the tensor ranks' partial sums and gives each its part; `from` is longer than `to` by the degree.
    fn scatter_sums(&self, device: &Device, from: View<'_, f32>, to: ViewMut<'_, f32>);

    /// Sends to the next context rank and receives as much from the one before, at once; the first follows the last.
    fn pass_on(&self, device: &Device, outgoing: View<'_, u8>, incoming: ViewMut<'_, u8>);

    /// Gives rank `r` of the expert group as many bytes as the first list says for `r`, and takes as many from it as the second
    /// says; they lie one after the other and make up all of the view.
    fn exchange(
        &self,
        device: &Device,
        outgoing: (View<'_, u8>, &[usize]),
        incoming: (ViewMut<'_, u8>, &[usize]),
    );
}

/// The rows of a sequence of `sequence` tokens that a rank has, in the order in which it has them.
///
/// The sequence is cut into twice as many chunks as there are ranks, and each rank has one from the front and the matching one
/// from the back: with causal attention all then have the same work.
pub fn cut_rows(context: RankShare, sequence: usize) -> impl Iterator<Item = usize> + Clone {
    let [front, back] = context_chunks(context, sequence);
    front.chain(back)
}

/// The two pieces of a sequence that a rank has; one rank has all of it in the first.
pub(crate) fn context_chunks(RankShare { degree, rank }: RankShare, sequence: usize) -> [Range<usize>; 2] {
    if degree == 1 {
        return [0..sequence, sequence..sequence];
    }
    let each = sequence / (2 * degree);
    [rank, 2 * degree - 1 - rank].map(|chunk| chunk * each..(chunk + 1) * each)
}

impl RankShare {
    pub const WHOLE: Self = Self { degree: 1, rank: 0 };

    pub fn is_whole(self) -> bool {
        self.degree == 1
    }

    /// This rank's share of `count` things, which `degree` divides.
    pub(crate) fn of(self, count: usize) -> Range<usize> {
        let each = count / self.degree;
        self.rank * each..(self.rank + 1) * each
    }
}

impl ShardSpec {
    /// All of a network, on one rank.
    pub const WHOLE: Self = Self {
        tensor: RankShare::WHOLE,
        has_cut_rows: false,
        context: RankShare::WHOLE,
        experts: RankShare::WHOLE,
        unit: 1,
    };

    /// Whether a rank needs no other one.
    pub fn is_whole(&self) -> bool {
        self.tensor.is_whole() && self.context.is_whole() && self.experts.is_whole()
    }

    /// Whether a rank has all weights of its blocks, though others may share its sequences.
    pub fn has_all_numbers(&self) -> bool {
        self.tensor.is_whole() && self.experts.is_whole()
    }

    /// Panics where a rank is none of those that there are.
    pub(crate) fn check(&self) {
        for share in [self.tensor, self.context, self.experts] {
            assert!(share.rank < share.degree, "rank {} of {}", share.rank, share.degree);
        }
        assert!(self.unit > 0, "sections have lengths that are multiples of something");
    }

    /// The numbers of ranks, by which buffers are sized.
    pub fn ranks(&self) -> Ranks {
        Ranks {
            tensor: self.tensor.degree,
            has_cut_rows: self.has_cut_rows,
            context: self.context.degree,
            experts: self.experts.degree,
        }
    }

    /// The shape of a layer as one rank has it. Routed experts stay as many, since tokens are routed to all of them.
    pub(crate) fn layer(&self, layer: &Layer) -> Result<Layer, NetworkError> {
        let divide = |what, count| divide(what, count, self.tensor.degree, "tensor-parallel ranks");
        let refuse = |what: &str| {
            let feature = format!("{what} on tensor-parallel ranks");
            Err(NetworkError::Unsupported { feature })
        };
        let attention = match layer.attention {
            _ if self.tensor.is_whole() => layer.attention,
            Attention::GroupedQuery(attention) if attention.qk_norm == QkNorm::AllHeads => {
                return refuse("norms over all heads of queries and keys");
            }
            Attention::GroupedQuery(attention) => Attention::GroupedQuery(GroupedQuery {
                heads: divide("query heads", attention.heads)?,
                kv_heads: divide("key and value heads", attention.kv_heads)?,
                ..attention
            }),
            Attention::Latent(_) => return refuse("latent attention"),
            Attention::Recurrent(_) | Attention::Absent => {
                unreachable!("layers without attention were refused with the architecture")
            }
        };
        let narrower = |what, dense: Dense| -> Result<Dense, NetworkError> {
            Ok(Dense { width: divide(what, dense.width)?, ..dense })
        };
        let mlp = match layer.mlp {
            Mlp::Dense(dense) => Mlp::Dense(narrower("columns of the MLP", dense)?),
            Mlp::Absent => unreachable!("layers without an MLP were refused with the architecture"),
            Mlp::Mixture(mixture) => {
                self::divide(
                    "routed experts",
                    mixture.experts,
                    self.experts.degree,
                    "expert-parallel ranks",
                )?;
                Mlp::Mixture(Mixture {
                    expert: narrower("columns of an expert", mixture.expert)?,
                    shared: mixture
                        .shared
                        .map(|shared| narrower("columns of the shared expert", shared))
                        .transpose()?,
                    ..mixture
                })
            }
        };
        Ok(Layer { attention, mlp, ..*layer })
    }

    /// Refuses sequences and micro-batches that cannot be cut into equal parts.
    pub(crate) fn check_rows(&self, sequences: usize, sequence: usize) -> Result<(), NetworkError> {
        if !self.context.is_whole() {
            let chunks = 2 * self.context.degree;
            divide(
                "tokens of a sequence",
                sequence as u64,
                chunks,
                "chunks, two for each context-parallel rank",
            )?;
        }
        if self.has_cut_rows {
            let rows = (sequences * sequence / self.context.degree) as u64;
            divide("rows of a micro-batch", rows, self.tensor.degree, "tensor-parallel ranks (`sp`)")?;
        }
        Ok(())
    }
}

fn divide(what: &'static str, count: u64, degree: usize, among: &'static str) -> Result<u64, NetworkError> {
    let degree = degree as u64;
    if count.is_multiple_of(degree) {
        return Ok(count / degree);
    }
    Err(NetworkError::Uneven { what, count, degree, among })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_belongs_to_one_rank_and_all_ranks_have_the_same_work() {
        for degree in [1, 2, 3, 4] {
            let (mut seen, mut work) = (vec![0; 24], Vec::new());
            for rank in 0..degree {
                let rows = cut_rows(RankShare { degree, rank }, 24);
                rows.clone().for_each(|row| seen[row] += 1);
                assert_eq!(rows.clone().count(), 24 / degree);
                work.push(rows.map(|row| row + 1).sum::<usize>());
            }
            assert_eq!(seen, [1; 24]);
            assert!(work.iter().all(|of_rank| *of_rank == work[0]), "{work:?}");
        }
    }
}
