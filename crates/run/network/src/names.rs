//! How Hugging Face names the tensors of a family, by its page.

use bedplate_transformer::Family;

use crate::family::{MlpPage, Names, page};
use crate::table::MlpNames;

pub(crate) struct TensorNames {
    names: Names,
}

impl TensorNames {
    /// Panics where the family is not computed, which is refused with the architecture.
    pub(crate) fn of(family: Family) -> Self {
        Self {
            names: page(family).expect("families without a page were refused with the architecture").names,
        }
    }

    pub(crate) fn are_transposed(&self) -> bool {
        self.names.are_transposed
    }

    pub(crate) fn optional_prefix(&self) -> &'static str {
        self.names.prefix
    }

    pub(crate) fn embedding(&self) -> String {
        self.names.embedding.into()
    }

    pub(crate) fn positions(&self) -> String {
        self.names.positions.into()
    }

    pub(crate) fn final_norm(&self) -> String {
        self.names.final_norm.into()
    }

    pub(crate) fn head(&self) -> String {
        self.names.head.into()
    }

    fn layer(&self, index: usize, rest: &str) -> String {
        format!("{}.{index}.{rest}", self.names.layers)
    }

    pub(crate) fn before_attention(&self, index: usize) -> String {
        self.layer(index, self.names.before_attention)
    }

    pub(crate) fn after_attention(&self, index: usize) -> String {
        self.layer(index, self.names.after_attention)
    }

    pub(crate) fn before_mlp(&self, index: usize) -> String {
        self.layer(index, self.names.before_mlp)
    }

    pub(crate) fn after_mlp(&self, index: usize) -> String {
        self.layer(index, self.names.after_mlp)
    }

    /// Stems of queries, keys and values; one stem where they are one matrix.
    pub(crate) fn qkv(&self, index: usize) -> Vec<String> {
        self.names.qkv.iter().map(|part| self.layer(index, part)).collect()
    }

    pub(crate) fn head_norms(&self, index: usize) -> [String; 2] {
        self.names.head_norms.map(|norm| self.layer(index, norm))
    }

    pub(crate) fn output(&self, index: usize) -> String {
        self.layer(index, self.names.output)
    }

    pub(crate) fn dense(&self, index: usize) -> MlpNames {
        self.mlp(index, "", self.names.mlp)
    }

    pub(crate) fn router(&self, index: usize) -> String {
        self.layer(index, self.names.router)
    }

    pub(crate) fn expert(&self, index: usize, expert: usize) -> MlpNames {
        self.mlp(index, &format!("{}.{expert}.", self.names.experts), self.names.expert)
    }

    pub(crate) fn shared(&self, index: usize) -> MlpNames {
        self.mlp(index, "", self.names.shared)
    }

    pub(crate) fn shared_gate(&self, index: usize) -> String {
        self.layer(index, self.names.shared_gate)
    }

    fn mlp(&self, index: usize, within: &str, page: MlpPage) -> MlpNames {
        let stem = |part: &str| self.layer(index, &format!("{within}{part}"));
        MlpNames { gate: page.gate.map(stem), up: stem(page.up), down: stem(page.down) }
    }
}
