//! Laws that hold for every model, and refusals instead of panics for everything else.

#![recursion_limit = "256"]

use bedplate_diag::{Source, render_text};
use bedplate_transformer::{
    AttentionFlops, Family, FlopsConvention, Precision, Transformer, from_config, to_config_json,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn read(config: &str) -> Result<Transformer, String> {
    from_config(Source::new("config.json", config)).map_err(|error| render_text(&error))
}

/// A configuration with the keys of every family at once; a family ignores the keys of the others.
fn config() -> impl Strategy<Value = Value> {
    let sizes = (1u64..8, 1u64..5, 1u64..33, 1u64..4, 1u64..200, 1u64..9, 1u64..300);
    let lists = (prop::collection::vec(0u64..12, 0..4), prop::collection::vec(any::<bool>(), 0..2));
    let choices = (prop::collection::vec(any::<bool>(), 10), prop::sample::select(Family::ALL), 0u64..6);
    (sizes, lists, choices).prop_map(|(sizes, lists, choices)| {
        let (kv_heads, group, head_dim, scale, width, layers, vocab) = sizes;
        let (flags, family, small) = choices;
        let heads = kv_heads * group;
        let hidden = heads * head_dim * scale;
        let bounded = match family {
            Family::Llama4 => "chunked_attention",
            Family::Qwen3Next => "linear_attention",
            _ => "sliding_attention",
        };
        let alternate =
            |layer: u64| if (layer + small).is_multiple_of(3) { "full_attention" } else { bounded };
        let mut keys = json!({
            "model_type": family.model_type(), "_name_or_path": "some/model", "vocab_size": vocab,
            "hidden_size": hidden, "n_embd": hidden, "d_model": hidden, "intermediate_size": width,
            "intermediate_size_mlp": width + 1, "moe_intermediate_size": width + 2, "n_inner": width,
            "num_hidden_layers": layers, "n_layer": layers, "n_layers": layers, "n_positions": vocab,
            "num_attention_heads": heads, "n_head": heads, "n_heads": heads,
            "num_key_value_heads": kv_heads, "max_position_embeddings": vocab, "max_seq_len": vocab,
            "expansion_ratio": small + 1, "num_local_experts": small + 2, "num_experts": small + 2,
            "n_routed_experts": small + 2, "num_experts_per_tok": 2, "n_shared_experts": small,
            "shared_expert_intermediate_size": small * 8, "decoder_sparse_step": small / 2 + 1,
            "mlp_only_layers": lists.0, "first_k_dense_replace": small, "moe_layer_freq": small / 3 + 1,
            "interleave_moe_layer_step": small / 2 + 1, "kv_lora_rank": width, "v_head_dim": head_dim,
            "qk_nope_head_dim": head_dim, "qk_rope_head_dim": 2, "sliding_window": width,
            "max_window_layers": small, "num_nextn_predict_layers": small / 3,
            "hybrid_override_pattern": "ME*-".chars().cycle().take(layers as usize).collect::<String>(),
            "mamba_num_heads": heads, "mamba_head_dim": head_dim, "n_groups": kv_heads, "ssm_state_size": small + 1,
            "linear_num_value_heads": heads, "linear_num_key_heads": kv_heads, "linear_value_head_dim": head_dim,
            "moe_shared_expert_intermediate_size": small, "use_conv_bias": flags[2],
            "attention_bias": flags[0], "mlp_bias": flags[1], "qkv_bias": flags[2], "no_bias": flags[3],
            "tie_word_embeddings": flags[4], "use_sliding_window": flags[5], "learned_pos_emb": flags[6],
            "attn_config": {"alibi": flags[7], "rope": flags[8]},
        });
        if flags[9] {
            keys["head_dim"] = json!(head_dim + 1);
            keys["q_lora_rank"] = json!(width);
            keys["moe_layers"] = json!(lists.0);
            keys["vision_config"] = json!({});
        }
        if !lists.1.is_empty() && flags[5] {
            keys["layer_types"] = json!((0..layers).map(alternate).collect::<Vec<_>>());
        }
        keys
    })
}

/// Values that no sensible file has.
fn nonsense() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0u64..5).prop_map(Value::from),
        Just(Value::Null),
        Just(json!(true)),
        Just(json!([])),
        Just(json!([1, "a", null])),
        Just(json!({})),
        "\\PC{0,8}".prop_map(Value::from),
        (1u64 << 30..1 << 32).prop_map(Value::from),
        Just(json!(100_000)),
    ]
}

/// Calls everything that computes; none of it may panic or return NaN.
fn exercise(model: &Transformer) {
    let parameters = model.parameters();
    assert!(parameters.active <= parameters.total);
    assert!(parameters.active_without_embedding <= parameters.active);
    assert_eq!(parameters.parts().map(|(_, count)| count).sum::<u64>(), parameters.total);
    assert!(model.flops_per_token(u64::MAX, FlopsConvention::default()).training().get().is_finite());
    assert!(model.kv_bytes(u64::MAX, Precision::Bf16).get().is_finite());
    model.prediction_parameters();
}

proptest! {
    #[test]
    fn import_export_import_is_the_identity(config in config()) {
        let model = read(&config.to_string()).unwrap();
        exercise(&model);
        let exported = to_config_json(&model).unwrap();
        prop_assert_eq!(read(&exported).unwrap(), model);
    }

    #[test]
    fn flops_grow_with_the_sequence(config in config(), short in 0u64..5000, more in 0u64..5000) {
        let model = read(&config.to_string()).unwrap();
        for attention in [AttentionFlops::CausalHalved, AttentionFlops::Full] {
            let convention = FlopsConvention { attention, ..Default::default() };
            let flops = |sequence| model.flops_per_token(sequence, convention).training();
            // Chunks of unequal length may lower the mean by their remainder.
            let families = [Family::Llama4, Family::Qwen3Next, Family::NemotronH];
            let has_chunks = families.contains(&model.family);
            prop_assert!(has_chunks || flops(short).get() <= flops(short + more).get() * (1.0 + 1e-12));
        }
        let full = FlopsConvention { attention: AttentionFlops::Full, ..Default::default() };
        let causal = model.flops_per_token(short, FlopsConvention::default()).training();
        prop_assert!(causal.get() <= model.flops_per_token(short, full).training().get());
    }

    #[test]
    fn nonsense_is_refused_or_computed_but_never_panics(
        config in config(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), nonsense()), 1..4),
    ) {
        let mut keys: Map<String, Value> = config.as_object().unwrap().clone();
        let names: Vec<String> = keys.keys().filter(|key| *key != "model_type").cloned().collect();
        for (index, value) in changes {
            keys.insert(names[index.index(names.len())].clone(), value);
        }
        if let Ok(model) = read(&Value::Object(keys).to_string()) {
            exercise(&model);
            prop_assert!(to_config_json(&model).is_ok());
        }
    }

    #[test]
    fn cut_and_scrambled_files_are_refused_or_read(config in config(), at in any::<prop::sample::Index>(), with in "\\PC{0,3}") {
        let text = config.to_string();
        let mut cut = at.index(text.len());
        while !text.is_char_boundary(cut) {
            cut -= 1;
        }
        let _ = read(&text[..cut]);
        let _ = read(&format!("{}{with}{}", &text[..cut], text[cut..].get(1..).unwrap_or("")));
    }

    #[test]
    fn any_text_is_refused_politely(text in any::<String>()) {
        let _ = read(&text);
        let _ = bedplate_transformer::builtin(&text);
    }
}
