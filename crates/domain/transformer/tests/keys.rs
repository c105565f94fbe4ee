//! Every key that transformers knows is used, known to be harmless, or refused.
//!
//! `oracle/keys.json` holds, for two major versions of transformers, the keys of every configuration class with their
//! defaults; `oracle/walk` makes it again.

use bedplate_diag::Source;
use bedplate_transformer::{
    Configuration, Fate, ModelError, Reach, RemarkReason, Transformer, builtin_names, fate_of_key,
    from_config,
};
use serde_json::{Map, Value, json};

type Object = Map<String, Value>;

const WELL_FORMED: &str = "the test's own data is well-formed";

/// One configuration class in one version of transformers.
struct Class {
    version: String,
    model_type: String,
    /// What an instance made without arguments writes.
    config: Object,
    /// Names that it reads without writing them.
    other_names: Vec<String>,
}

fn classes() -> Vec<Class> {
    let versions: Value = serde_json::from_str(include_str!("oracle/keys.json")).expect(WELL_FORMED);
    let mut classes = Vec::new();
    for (version, found) in versions.as_object().expect(WELL_FORMED) {
        let every = found["every"].as_object().expect(WELL_FORMED);
        for (model_type, own) in
            found.as_object().expect(WELL_FORMED).iter().filter(|(name, _)| *name != "every")
        {
            let (mut config, mut other_names) = (every.clone(), Vec::new());
            for (key, value) in own.as_object().expect(WELL_FORMED) {
                if value == "no default" {
                    other_names.push(key.clone());
                } else {
                    config.insert(key.clone(), value.clone());
                }
            }
            if config.get("num_experts_per_tok") == Some(&Value::Null) {
                config.insert("num_experts_per_tok".into(), 2.into());
            }
            if model_type == "glm4_moe" {
                // Its 96 heads do not divide its width; released files say what the size of a head is.
                config.insert("head_dim".into(), 128.into());
            }
            let (version, model_type) = (version.clone(), model_type.clone());
            classes.push(Class { version, model_type, config, other_names });
        }
    }
    classes
}

impl Class {
    fn keys(&self) -> impl Iterator<Item = &str> {
        self.config.keys().chain(&self.other_names).map(String::as_str)
    }

    fn fate(&self, key: &str) -> Option<Fate> {
        fate_of_key(self.read().family, key)
    }

    fn read(&self) -> Transformer {
        read(&self.config).unwrap_or_else(|error| panic!("{}: {error}", self.model_type))
    }

    /// Variants of the defaults in which keys are read that the defaults make idle.
    fn variants(&self) -> Vec<Object> {
        let mut without_lists = self.config.clone();
        for list in ["layer_types", "no_rope_layers", "moe_layers"] {
            without_lists.remove(list);
        }
        let mut partly_dense = without_lists.clone();
        for (key, value) in [
            ("mlp_only_layers", json!([0])),
            ("first_k_dense_replace", json!(1)),
            ("interleave_moe_layer_step", json!(2)),
            ("attn_config", json!({"alibi": false})),
        ] {
            if self.config.contains_key(key) {
                partly_dense.insert(key.into(), value);
            }
        }
        vec![self.config.clone(), without_lists, partly_dense]
    }
}

fn read(config: &Object) -> Result<Transformer, ModelError> {
    let text = Value::Object(config.clone()).to_string();
    from_config(Source::new("config.json", &text))
}

fn with(config: &Object, key: &str, value: Value) -> Object {
    let mut config = config.clone();
    config.insert(key.to_owned(), value);
    config
}

#[test]
fn two_major_versions_are_compared() {
    let mut majors: Vec<String> = classes().iter().map(|class| class.version[..2].to_owned()).collect();
    majors.dedup();
    assert_eq!(majors, ["4.", "5."]);
}

#[test]
fn every_key_of_transformers_has_a_fate() {
    let mut unknown = Vec::new();
    for class in classes() {
        let strange = class.keys().filter(|key| class.fate(key).is_none());
        unknown.extend(strange.map(|key| format!("{} {}: {key}", class.version, class.model_type)));
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// A key that is said to describe the shape cannot hold nonsense; any other key changes nothing.
#[test]
fn the_keys_of_the_shape_are_read_and_no_others() {
    for class in classes() {
        let shape = class.read();
        for key in class.keys().filter(|key| !["model_type", "_name_or_path"].contains(key)) {
            let nonsense = if key == "attn_config" { json!(3) } else { json!({"?": [1]}) };
            let what = format!("{} {}: {key}", class.version, class.model_type);
            if class.fate(key) == Some(Fate::Shape) {
                let is_read = |config: &Object| read(&with(config, key, nonsense.clone())).is_err();
                assert!(class.variants().iter().any(is_read), "{what} is not read");
            } else {
                let found = read(&with(&class.config, key, nonsense.clone()));
                assert_eq!(found.unwrap_or_else(|error| panic!("{what}: {error}")), shape, "{what}");
            }
        }
    }
}

/// What is left out has the default that transformers gives it, or the configuration is refused.
#[test]
fn defaults_are_those_of_transformers() {
    // New in version 5; files from before it that lack the key hold no such module.
    let ours = [("deepseek_v3", "num_nextn_predict_layers"), ("glm4_moe", "num_nextn_predict_layers")];
    for class in classes() {
        let shape = class.read();
        for key in class.config.keys().filter(|key| *key != "model_type") {
            let mut config = class.config.clone();
            config.remove(key);
            let what = (&class.model_type[..], key.as_str());
            match read(&config) {
                Ok(found) => assert!(found == shape || ours.contains(&what), "{} {what:?}", class.version),
                Err(ModelError::MissingKey { key: missing, .. }) => assert_eq!(missing, key),
                // The size that was put in above.
                Err(ModelError::Inconsistent { .. }) if what == ("glm4_moe", "head_dim") => {}
                Err(error) => panic!("{what:?}: {error}"),
            }
        }
    }
}

#[test]
fn no_remark_is_made_on_what_transformers_writes_by_itself() {
    for class in classes() {
        let text = Value::Object(class.config.clone()).to_string();
        let configuration = Configuration::parse(Source::new("config.json", &text)).expect(WELL_FORMED);
        let remarks = configuration.remarks().expect(WELL_FORMED);
        // GPT-2 has dropout unless told otherwise.
        let unexpected = remarks.iter().filter(|remark| remark.reason != RemarkReason::LeftOut);
        assert_eq!(unexpected.count(), 0, "{} {}: {remarks:?}", class.version, class.model_type);
        assert!(remarks.is_empty() || class.model_type == "gpt2", "{}: {remarks:?}", class.model_type);
    }
    for name in builtin_names() {
        let path = format!("{}/../../../data/models/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).expect(WELL_FORMED);
        let remarks =
            Configuration::parse(Source::new(name, &text)).expect(WELL_FORMED).remarks().expect(WELL_FORMED);
        assert!(remarks.is_empty(), "{name}: {remarks:?}");
    }
}

fn remarks(config: &str) -> Vec<String> {
    let configuration = Configuration::parse(Source::new("config.json", config)).expect(WELL_FORMED);
    configuration
        .remarks()
        .expect(WELL_FORMED)
        .iter()
        .map(|remark| format!("{remark} ({})", remark.place))
        .collect()
}

#[test]
fn remarks_name_the_key_its_line_and_a_likely_one() {
    let config = "{\n\"model_type\": \"llama\",\n\"rms_norm_epss\": 1e-5,\n\"attention_dropout\": 0.1,\n\
                  \"add_cross_attention\": true,\n\"is_encoder_decoder\": null,\n\"quantization_config\": {\"bits\": 4}\n}";
    let expected = [
        "`rms_norm_epss` is not a key of `llama` configurations and is ignored; did you mean `rms_norm_eps`? (config.json:3:1: \"rms_norm_epss\": 1e-5,)",
        "`attention_dropout` = 0.1 is left out of training (config.json:4:1: \"attention_dropout\": 0.1,)",
        "`add_cross_attention` = true is not computed here, only false (config.json:5:1: \"add_cross_attention\": true,)",
        "`quantization_config` is not computed here (config.json:7:1: \"quantization_config\": {\"bits\": 4})",
    ];
    let mut found = remarks(config);
    found.sort_by_key(|remark| expected.iter().position(|text| text == remark));
    assert_eq!(found, expected);
}

#[test]
fn remarks_are_on_the_language_model_of_a_multimodal_configuration() {
    let config = r#"{"model_type": "mistral3", "image_token_index": 3, "vision_config": {"x": 1},
                     "text_config": {"model_type": "mistral", "attention_bias": true}}"#;
    let found = remarks(config);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("`attention_bias` is not a key of `mistral`"), "{found:?}");
}

/// A configuration of four layers with a few keys more.
fn windowed(model_type: &str, more: Value) -> Result<Vec<Reach>, String> {
    let mut config = json!({
        "model_type": model_type, "vocab_size": 10, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 4,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 32,
        "moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 8,
        "sliding_window": 3,
    });
    config.as_object_mut().expect(WELL_FORMED).extend(more.as_object().expect(WELL_FORMED).clone());
    let model =
        from_config(Source::new("config.json", &config.to_string())).map_err(|error| error.to_string())?;
    Ok(model.layers().map(|layer| layer.reach).collect())
}

#[test]
fn windows_are_where_transformers_has_them() {
    let reaches = |bounded: [bool; 4]| bounded.map(|yes| if yes { Reach::Window(3) } else { Reach::Full });
    let types = json!(["full_attention", "full_attention", "sliding_attention", "full_attention"]);
    let on = |more: Value| {
        let mut keys = json!({"use_sliding_window": true});
        keys.as_object_mut().expect(WELL_FORMED).extend(more.as_object().expect(WELL_FORMED).clone());
        keys
    };
    let (no, yes) = (false, true);
    for (family, keys, expected) in [
        ("qwen2", json!({}), [no, no, no, no]),
        ("qwen2", on(json!({})), [no, no, no, no]),
        ("qwen2", on(json!({"max_window_layers": 1})), [no, yes, yes, yes]),
        ("qwen2", on(json!({"max_window_layers": 1, "layer_types": types})), [no, no, yes, no]),
        ("qwen2_moe", json!({}), [no, no, no, no]),
        ("qwen2_moe", on(json!({})), [yes, no, yes, no]),
        ("qwen2_moe", on(json!({"max_window_layers": 2})), [yes, no, no, no]),
        ("qwen2_moe", on(json!({"max_window_layers": 2, "layer_types": types})), [no, no, yes, no]),
        ("qwen3_moe", json!({"max_window_layers": 2}), [no, no, no, no]),
        ("qwen3_moe", on(json!({"max_window_layers": 2, "layer_types": types})), [yes, yes, yes, yes]),
        ("mistral", json!({"layer_types": types}), [yes, yes, yes, yes]),
        ("mistral", json!({"sliding_window": null}), [no, no, no, no]),
    ] {
        let found = windowed(family, keys.clone()).expect(WELL_FORMED);
        assert_eq!(found, reaches(expected), "{family} {keys}");
    }
    let error = windowed("qwen2", json!({"layer_types": types})).unwrap_err();
    assert!(error.contains("as long as no window is in use"), "{error}");
    let chunks = json!(["chunked_attention", "full_attention", "full_attention", "full_attention"]);
    assert!(windowed("qwen2", on(json!({"layer_types": chunks}))).is_err());
}

#[test]
fn two_names_of_one_key_must_agree() {
    let config = r#"{"model_type": "gpt2", "n_embd": 16, "hidden_size": 32, "n_head": 2, "n_layer": 1,
                     "n_positions": 8, "vocab_size": 10}"#;
    let error = from_config(Source::new("config.json", config)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`n_embd` must be the same as `hidden_size`, which means the same, but is 16"
    );
}
