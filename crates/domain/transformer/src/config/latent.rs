//! The keys of multi-head latent attention.

use serde_json::json;

use super::Object;
use super::keys::Keys;
use crate::{Indexer, Latent, ModelError};

pub(super) fn read(
    keys: &Keys<'_>,
    heads: u64,
    has_bias: bool,
    has_indexer: bool,
) -> Result<Latent, ModelError> {
    Ok(Latent {
        heads,
        query_rank: keys.optional_size("q_lora_rank")?,
        kv_rank: keys.size("kv_lora_rank")?,
        nope_dim: keys.size("qk_nope_head_dim")?,
        rope_dim: keys.size("qk_rope_head_dim")?,
        value_dim: keys.size("v_head_dim")?,
        has_bias,
        indexer: if has_indexer { Some(read_indexer(keys)?) } else { None },
    })
}

fn read_indexer(keys: &Keys<'_>) -> Result<Indexer, ModelError> {
    Ok(Indexer {
        heads: keys.size("index_n_heads")?,
        head_dim: keys.size("index_head_dim")?,
        keys: keys.size("index_topk")?,
    })
}

pub(super) fn write(object: &mut Object, latent: &Latent) {
    object.insert("num_attention_heads".into(), latent.heads.into());
    object.insert("num_key_value_heads".into(), latent.heads.into());
    object.insert("q_lora_rank".into(), json!(latent.query_rank));
    object.insert("kv_lora_rank".into(), latent.kv_rank.into());
    object.insert("qk_nope_head_dim".into(), latent.nope_dim.into());
    object.insert("qk_rope_head_dim".into(), latent.rope_dim.into());
    object.insert("v_head_dim".into(), latent.value_dim.into());
    if let Some(Indexer { heads, head_dim, keys }) = latent.indexer {
        object.insert("index_n_heads".into(), heads.into());
        object.insert("index_head_dim".into(), head_dim.into());
        object.insert("index_topk".into(), keys.into());
    }
}
