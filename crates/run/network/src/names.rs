//! How Hugging Face names the tensors of each family.

use bedplate_transformer::Family;

use crate::table::MlpNames;

pub(crate) struct TensorNames {
    family: Family,
}

impl TensorNames {
    pub(crate) fn of(family: Family) -> Self {
        Self { family }
    }

    fn is_gpt2(&self) -> bool {
        self.family == Family::Gpt2
    }

    /// GPT-2's linear layers are stored as `inputs x outputs`.
    pub(crate) fn are_transposed(&self) -> bool {
        self.is_gpt2()
    }

    /// A prefix that the names in files of a model saved without its head lack.
    pub(crate) fn optional_prefix(&self) -> &'static str {
        if self.is_gpt2() { "transformer." } else { "model." }
    }

    pub(crate) fn embedding(&self) -> String {
        if self.is_gpt2() { "transformer.wte.weight" } else { "model.embed_tokens.weight" }.into()
    }

    pub(crate) fn positions(&self) -> String {
        "transformer.wpe.weight".into()
    }

    pub(crate) fn final_norm(&self) -> String {
        if self.is_gpt2() { "transformer.ln_f" } else { "model.norm" }.into()
    }

    pub(crate) fn head(&self) -> String {
        "lm_head.weight".into()
    }

    fn layer(&self, index: usize, rest: &str) -> String {
        let stem = if self.is_gpt2() { "transformer.h" } else { "model.layers" };
        format!("{stem}.{index}.{rest}")
    }

    pub(crate) fn before_attention(&self, index: usize) -> String {
        self.layer(index, if self.is_gpt2() { "ln_1" } else { "input_layernorm" })
    }

    pub(crate) fn before_mlp(&self, index: usize) -> String {
        self.layer(index, if self.is_gpt2() { "ln_2" } else { "post_attention_layernorm" })
    }

    /// Stems of queries, keys and values; one stem where they are one matrix.
    pub(crate) fn qkv(&self, index: usize) -> Vec<String> {
        if self.is_gpt2() {
            return vec![self.layer(index, "attn.c_attn")];
        }
        ["q", "k", "v"].iter().map(|part| self.layer(index, &format!("self_attn.{part}_proj"))).collect()
    }

    pub(crate) fn head_norms(&self, index: usize) -> [String; 2] {
        ["q", "k"].map(|part| self.layer(index, &format!("self_attn.{part}_norm.weight")))
    }

    pub(crate) fn output(&self, index: usize) -> String {
        self.layer(index, if self.is_gpt2() { "attn.c_proj" } else { "self_attn.o_proj" })
    }

    pub(crate) fn dense(&self, index: usize) -> MlpNames {
        if self.is_gpt2() {
            let stem = |part: &str| self.layer(index, part);
            return MlpNames { gate: None, up: stem("mlp.c_fc"), down: stem("mlp.c_proj") };
        }
        self.gated(&self.layer(index, "mlp"))
    }

    pub(crate) fn router(&self, index: usize) -> String {
        let mixtral = self.family == Family::Mixtral;
        self.layer(index, if mixtral { "block_sparse_moe.gate.weight" } else { "mlp.gate.weight" })
    }

    pub(crate) fn expert(&self, index: usize, expert: usize) -> MlpNames {
        if self.family == Family::Mixtral {
            let stem = |part: &str| self.layer(index, &format!("block_sparse_moe.experts.{expert}.{part}"));
            return MlpNames { gate: Some(stem("w1")), up: stem("w3"), down: stem("w2") };
        }
        self.gated(&self.layer(index, &format!("mlp.experts.{expert}")))
    }

    pub(crate) fn shared(&self, index: usize) -> MlpNames {
        self.gated(&self.layer(index, "mlp.shared_expert"))
    }

    pub(crate) fn shared_gate(&self, index: usize) -> String {
        self.layer(index, "mlp.shared_expert_gate.weight")
    }

    fn gated(&self, stem: &str) -> MlpNames {
        MlpNames {
            gate: Some(format!("{stem}.gate_proj")),
            up: format!("{stem}.up_proj"),
            down: format!("{stem}.down_proj"),
        }
    }
}
