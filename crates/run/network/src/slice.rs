//! A network cut over ranks (tensor parallelism): which part of each matrix a rank has, and how partial sums meet.
//!
//! Query heads, key and value heads, and the widths of MLPs and experts are divided. Norms, routers, biases of layers whose inputs
//! are cut, the embedding and the head are whole on every rank, and every rank computes the same gradient of them.

use std::ops::Range;

use bedplate_kernels::{Device, ViewMut};
use bedplate_transformer::{Attention, Dense, GroupedQuery, Layer, Mixture, Mlp};

use crate::NetworkError;

/// Rank `rank` of the `degree` ranks that share every layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    pub degree: usize,
    pub rank: usize,
}

/// Adds up the ranks' partial sums in place. All ranks call it in the same order with the same lengths, and all must get the same
/// bits.
pub trait Reduce: Send + Sync {
    fn sum(&self, device: &Device, partial: ViewMut<'_, f32>);
}

impl Slice {
    pub const WHOLE: Self = Self { degree: 1, rank: 0 };

    /// This rank's share of `count` columns, which `degree` divides.
    pub(crate) fn share(self, count: usize) -> Range<usize> {
        let each = count / self.degree;
        self.rank * each..(self.rank + 1) * each
    }

    /// The shape of a layer as one rank has it.
    pub(crate) fn layer(self, layer: &Layer) -> Result<Layer, NetworkError> {
        let Attention::GroupedQuery(attention) = layer.attention else {
            unreachable!("latent attention was refused with the architecture")
        };
        let attention = GroupedQuery {
            heads: self.divide("query heads", attention.heads)?,
            kv_heads: self.divide("key and value heads", attention.kv_heads)?,
            ..attention
        };
        let narrower = |what, dense: Dense| -> Result<Dense, NetworkError> {
            Ok(Dense { width: self.divide(what, dense.width)?, ..dense })
        };
        let mlp = match layer.mlp {
            Mlp::Dense(dense) => Mlp::Dense(narrower("columns of the MLP", dense)?),
            Mlp::Mixture(mixture) => Mlp::Mixture(Mixture {
                expert: narrower("columns of an expert", mixture.expert)?,
                shared: mixture
                    .shared
                    .map(|shared| narrower("columns of the shared expert", shared))
                    .transpose()?,
                ..mixture
            }),
        };
        Ok(Layer { attention: Attention::GroupedQuery(attention), mlp, ..*layer })
    }

    fn divide(self, what: &'static str, count: u64) -> Result<u64, NetworkError> {
        let degree = self.degree as u64;
        if count.is_multiple_of(degree) {
            return Ok(count / degree);
        }
        Err(NetworkError::Uneven { what, count, degree })
    }
}
