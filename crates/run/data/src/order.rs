//! Order as a pure function: which sample comes when is computed from its number, never remembered.

mod mixture;
mod permutation;

pub(crate) use mixture::Mixture;
pub(crate) use permutation::Permutation;
