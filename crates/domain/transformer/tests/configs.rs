//! Configurations as they are found on the hub.

use bedplate_diag::Source;
use bedplate_transformer::{
    Attention, LeftOut, Positions, Reach, Transformer, builtin, builtin_names, from_config, to_config_json,
};

fn read(config: &str) -> Transformer {
    from_config(Source::new("config.json", config)).expect("this configuration is right")
}

/// Gemma 3 on the hub leaves heads and vocabulary to the defaults of transformers.
#[test]
fn the_text_part_of_a_multimodal_model_is_read() {
    let model = read(
        r#"{"model_type": "gemma3", "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
            "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                            "num_hidden_layers": 34, "sliding_window": 1024}}"#,
    );
    assert_eq!(model.left_out, [LeftOut::Vision]);
    assert_eq!(model.parameters(), builtin("gemma-3-4b").unwrap().parameters());
}

#[test]
fn a_multimodal_model_may_tie_outside_its_text_part() {
    let text = r#""vocab_size": 10, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
                  "num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 8"#;
    let nested =
        format!(r#"{{"model_type": "mistral", "tie_word_embeddings": true, "text_config": {{{text}}}}}"#);
    assert!(read(&nested).has_tied_embeddings);
}

#[test]
fn llama_4_alternates_chunks_with_full_attention() {
    let model = builtin("llama-4-maverick").unwrap();
    let reaches: Vec<Reach> = model.layers().map(|layer| layer.reach).take(4).collect();
    assert_eq!(reaches, [Reach::Chunk(8192), Reach::Chunk(8192), Reach::Chunk(8192), Reach::Full]);
    let sparse: Vec<bool> = model.layers().map(|layer| layer.mlp.mixture().is_some()).take(4).collect();
    assert_eq!(sparse, [false, true, false, true]);
}

#[test]
fn shapes_read_like_the_model_card() {
    let model = builtin("deepseek-v3").unwrap();
    assert_eq!(model.runs.iter().map(|run| run.count).collect::<Vec<_>>(), [3, 58]);
    let layer = &model.runs[1].layer;
    assert!(matches!(layer.attention, Attention::Latent(latent) if latent.kv_rank == 512));
    let mixture = layer.mlp.mixture().unwrap();
    assert_eq!((mixture.experts, mixture.per_token), (256, 8));
    assert_eq!(builtin("gpt2").unwrap().positions, Positions::Learned { count: 1024 });
    assert_eq!(model.truncated(5).unwrap().layer_count(), 5);
    assert!(model.truncated(0).is_err());
}

#[test]
fn every_builtin_survives_export() {
    for name in builtin_names() {
        let model = builtin(name).unwrap();
        assert_eq!(read(&to_config_json(&model).unwrap()), model, "{name}");
    }
}

/// DeepSeek-V3.2 is V3 with an indexer in each of its 61 layers.
#[test]
fn an_indexer_adds_its_projections() {
    let v3 = builtin("deepseek-v3").unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&to_config_json(&v3).unwrap()).unwrap();
    config["model_type"] = "deepseek_v32".into();
    for (key, value) in [("index_n_heads", 64), ("index_head_dim", 128), ("index_topk", 2048)] {
        config[key] = value.into();
    }
    let v32 = read(&config.to_string());
    let per_layer = 1536 * 64 * 128 + 7168 * 128 + 7168 * 64 + 2 * 128;
    assert_eq!(v32.parameters().total - v3.parameters().total, 61 * per_layer);
    assert_eq!(read(&to_config_json(&v32).unwrap()).runs, v32.runs);
}
