//! How Hugging Face names the tensors of a family, by its page.

use bedplate_transformer::{Family, Transformer};

use crate::family::{ExpertPage, MlpPage, Names, page};
use crate::table::MlpNames;

/// Stems of the names of a layer's routed experts.
pub(crate) enum ExpertNames {
    Each {
        stem: String,
        page: MlpPage,
    },
    /// Of biases they are the same with `_bias` behind them.
    Together {
        gate_up: String,
        down: String,
    },
}

impl ExpertNames {
    /// Of one expert, where each has tensors of its own.
    pub(crate) fn of(stem: &str, page: MlpPage, expert: usize) -> MlpNames {
        let name = |part: &str| format!("{stem}.{expert}.{part}");
        MlpNames { gate: page.gate.map(name), up: name(page.up), down: name(page.down) }
    }
}

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

    /// What the names of layers that predict several tokens begin with.
    pub(crate) fn layers_behind(&self, model: &Transformer) -> Vec<String> {
        let first = model.layer_count();
        let layers = first..first + model.prediction_layers;
        layers.map(|layer| format!("{}.{layer}.", self.names.layers)).collect()
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
        self.mlp(index, self.names.mlp)
    }

    pub(crate) fn sinks(&self, index: usize) -> String {
        self.layer(index, self.names.sinks)
    }

    /// A part of latent attention.
    pub(crate) fn latent(&self, index: usize, part: &str) -> String {
        self.layer(index, &format!("{}.{part}", self.names.latent))
    }

    pub(crate) fn correction(&self, index: usize) -> String {
        self.layer(index, self.names.correction)
    }

    /// The stem of the router's names.
    pub(crate) fn router(&self, index: usize) -> String {
        self.layer(index, self.names.router)
    }

    pub(crate) fn experts(&self, index: usize) -> ExpertNames {
        let experts = self.names.experts;
        match self.names.expert {
            ExpertPage::Each(page) => ExpertNames::Each { stem: self.layer(index, experts), page },
            ExpertPage::Together { gate_up, down } => {
                let stem = |part: &str| self.layer(index, &format!("{experts}.{part}"));
                ExpertNames::Together { gate_up: stem(gate_up), down: stem(down) }
            }
        }
    }

    pub(crate) fn shared(&self, index: usize) -> MlpNames {
        self.mlp(index, self.names.shared)
    }

    pub(crate) fn shared_gate(&self, index: usize) -> String {
        self.layer(index, self.names.shared_gate)
    }

    fn mlp(&self, index: usize, page: MlpPage) -> MlpNames {
        let stem = |part: &str| self.layer(index, part);
        MlpNames { gate: page.gate.map(stem), up: stem(page.up), down: stem(page.down) }
    }
}
