//! Every configuration key is honoured, refused or remarked upon where a model is computed.
//!
//! The keys and defaults are those that transformers has in two major versions, as `bedplate-transformer` keeps them for its own
//! test of the shape.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use bedplate_diag::{Diagnostic, Source};
use bedplate_kernels::Device;
use bedplate_network::{Architecture, Network, NetworkError};
use bedplate_transformer::{Family, Fate, fate_of_key};
use serde_json::{Map, Value, json};

type Object = Map<String, Value>;

const COMPUTED: [Family; 24] = [
    Family::Glm4Moe,
    Family::DeepseekV2,
    Family::DeepseekV3,
    Family::GptOss,
    Family::Gemma,
    Family::Gemma2,
    Family::Gemma3,
    Family::Glm,
    Family::Glm4,
    Family::Granite,
    Family::Ministral,
    Family::Olmo2,
    Family::Olmo3,
    Family::Olmoe,
    Family::Phi3,
    Family::SmolLm3,
    Family::Gpt2,
    Family::Llama,
    Family::Mistral,
    Family::Mixtral,
    Family::Qwen2,
    Family::Qwen2Moe,
    Family::Qwen3,
    Family::Qwen3Moe,
];

fn read(config: &Object) -> Result<Architecture, NetworkError> {
    let text = Value::Object(config.clone()).to_string();
    Architecture::from_config(Source::new("config.json", &text))
}

fn with(config: &Object, key: &str, value: Value) -> Object {
    let mut config = config.clone();
    config.insert(key.to_owned(), value);
    config
}

/// What the classes of the computed families write by themselves, with the versions of transformers.
fn classes() -> Vec<(String, Family, Object)> {
    let text = include_str!("../../../domain/transformer/tests/oracle/keys.json");
    let versions: Object = serde_json::from_str(text).unwrap();
    let mut classes = Vec::new();
    for (version, found) in &versions {
        for family in COMPUTED {
            let mut config = found["every"].as_object().unwrap().clone();
            let own = found[family.model_type()].as_object().unwrap().iter();
            config.extend(
                own.filter(|(_, value)| *value != "no default")
                    .map(|(key, value)| (key.clone(), value.clone())),
            );
            if config.get("num_experts_per_tok") == Some(&Value::Null) {
                config.insert("num_experts_per_tok".into(), 2.into());
            }
            if family == Family::Glm4Moe {
                // Its 96 heads do not divide its width; released files say what the size of a head is.
                config.insert("head_dim".into(), 128.into());
            }
            classes.push((version.clone(), family, config));
        }
    }
    classes
}

#[test]
fn a_key_changes_what_is_computed_or_is_refused_or_remarked_upon() {
    for (version, family, config) in classes() {
        let usual = read(&config).unwrap();
        for key in config.keys().filter(|key| !["model_type", "_name_or_path"].contains(&key.as_str())) {
            let what = format!("{version} {family}: {key}");
            let changed = read(&with(&config, key, json!([[1]])));
            match fate_of_key(family, key).unwrap() {
                // The test of the shape is `bedplate-transformer`'s own.
                Fate::Shape => {}
                Fate::Arithmetic => assert!(changed.is_err(), "{what} is not read"),
                Fate::Only(_) => {
                    assert_eq!(changed.unwrap_err().page().code, "network/unsupported", "{what}")
                }
                Fate::LeftOut(_) => {
                    let changed = changed.unwrap();
                    assert!(changed.remarks.iter().any(|remark| remark.contains(key)), "{what}");
                    assert_eq!(changed.numerics, usual.numerics, "{what}");
                }
                Fate::Harmless => {
                    let changed = changed.unwrap();
                    assert_eq!(
                        (&changed.numerics, &changed.remarks),
                        (&usual.numerics, &usual.remarks),
                        "{what}"
                    );
                }
            }
        }
    }
}

#[test]
fn constants_have_the_defaults_of_transformers() {
    for (version, family, config) in classes() {
        let usual = read(&config).unwrap();
        for key in config.keys().filter(|key| *key != "model_type") {
            let mut config = config.clone();
            config.remove(key);
            // Version 4 had 0.9; the newer one counts.
            if family == Family::GptOss && key == "router_aux_loss_coef" && version.starts_with('4') {
                continue;
            }
            if let Ok(found) = read(&config) {
                assert_eq!(found.numerics, usual.numerics, "{version} {family}: {key}");
            }
        }
    }
}

/// A small model of a family, with some keys more.
fn small(model_type: &str, more: Value) -> Object {
    let mut config = json!({
        "model_type": model_type, "vocab_size": 10, "hidden_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "max_position_embeddings": 32,
    });
    if model_type != "gpt2" {
        config["intermediate_size"] = json!(16);
        config["num_key_value_heads"] = json!(2);
        config["head_dim"] = json!(8);
    }
    let mut config = config.as_object().unwrap().clone();
    config.extend(more.as_object().unwrap().clone());
    config
}

#[test]
fn what_cannot_be_computed_is_refused_with_its_reason() {
    let llama3 = |more: Value| {
        let mut scheme = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                "original_max_position_embeddings": 16});
        scheme.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"rope_scaling": scheme})
    };
    for (family, keys, said) in [
        ("llama", json!({"head_dim": 7}), "heads of an odd size, 7"),
        ("llama", json!({"rms_norm_eps": -1e-5}), "`rms_norm_eps` must be a number from 0 to 1"),
        ("gpt2", json!({"layer_norm_epsilon": -1e-5}), "`layer_norm_epsilon` must be a number from 0 to 1"),
        ("llama", json!({"rope_theta": 0}), "`rope_theta` must be"),
        ("llama", json!({"initializer_range": -0.02}), "`initializer_range` must be"),
        ("llama", json!({"add_cross_attention": true}), "`add_cross_attention` = true is not computed here"),
        ("gpt2", json!({"add_cross_attention": true}), "`add_cross_attention` = true is not computed here"),
        ("gpt2", json!({"pruned_heads": {"0": [1]}}), "`pruned_heads`"),
        (
            "llama",
            json!({"quantization_config": {"quant_method": "gptq"}}),
            "`quantization_config` is not computed",
        ),
        ("llama", json!({"partial_rotary_factor": 0.5}), "`partial_rotary_factor` must be 1"),
        (
            "llama",
            json!({"rope_parameters": {"partial_rotary_factor": 0.5}}),
            "`partial_rotary_factor` must be 1",
        ),
        ("llama", json!({"rope_scaling": {"type": "ntk", "factor": 2.0}}), "rotary scheme `ntk`"),
        ("llama", json!({"rope_scaling": {"type": "linear"}}), "no `factor`"),
        ("llama", llama3(json!({"factor": null})), "no `factor`"),
        ("llama", llama3(json!({"high_freq_factor": 1.0})), "above `low_freq_factor`, 1"),
        ("llama", json!({"hidden_act": "relu"}), "activation `relu`"),
    ] {
        let error = read(&small(family, keys.clone())).unwrap_err();
        assert!(error.to_string().contains(said), "{keys}: {error}");
    }
}

#[test]
fn what_is_left_out_is_remarked_upon() {
    let device = Device::cpu(1);
    let remarks = |family: &str, keys: Value, longest: usize| {
        Network::new(&device, read(&small(family, keys)).unwrap(), longest).unwrap().remarks()
    };
    assert_eq!(remarks("llama", json!({}), 32), [""; 0]);
    for (family, keys, said) in [
        ("gpt2", json!({"attn_pdrop": 0.1}), "`attn_pdrop` = 0.1 is left out of training"),
        ("llama", json!({"attention_dropout": 0.2}), "`attention_dropout` = 0.2 is left out of training"),
        ("llama", json!({"rms_norm_epsilon": 0.1}), "did you mean `rms_norm_eps`?"),
        ("llama", json!({"sliding_window": 8}), "`sliding_window` is not a key of `llama` configurations"),
        (
            "llama",
            json!({"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 1}}),
            "`beta_fast` in `rope_scaling`",
        ),
    ] {
        let found = remarks(family, keys, 32);
        assert!(found.len() == 1 && found[0].contains(said), "{found:?}");
    }
    let found = remarks("llama", json!({}), 33);
    assert!(found.len() == 1 && found[0].contains("33 tokens are longer than the 32"), "{found:?}");
}

/// Everything of a nested configuration counts, and what is saved describes the language model alone.
#[test]
fn constants_come_from_the_text_section_where_there_is_one() {
    let text = small("mistral", json!({"rms_norm_eps": 0.25, "rope_theta": 500.0}));
    let whole = json!({"model_type": "mistral3", "rms_norm_eps": 0.5, "tie_word_embeddings": true,
                       "vision_config": {"hidden_size": 3}, "text_config": text});
    let found = read(whole.as_object().unwrap()).unwrap();
    assert_eq!(found.numerics, read(&text).unwrap().numerics);
    let again = Architecture::from_config(Source::new("saved", found.config_json())).unwrap();
    assert_eq!(again.numerics, found.numerics);
    assert!(again.transformer.has_tied_embeddings && again.transformer.left_out.is_empty());
    assert_eq!(again.transformer.runs, found.transformer.runs);
}

#[test]
fn a_model_that_sees_what_follows_is_refused() {
    let (_, _, config) = classes().into_iter().find(|(_, family, _)| *family == Family::Llama).unwrap();
    assert!(read(&with(&config, "is_causal", json!(true))).is_ok());
    let error = read(&with(&config, "is_causal", json!(false))).unwrap_err();
    assert_eq!(error.page().code, "network/unsupported");
    assert!(error.to_string().contains("is_causal"), "{error}");
}
