//! What a user reads when a model cannot be read.

use bedplate_diag::{Source, render_text};
use bedplate_transformer::{Family, PAGES, Shape, Transformer, builtin, from_config, to_config_json};
use expect_test::{Expect, expect};

fn check(config: &str, expected: Expect) {
    let error = from_config(Source::new("config.json", config)).expect_err("this configuration is wrong");
    expected.assert_eq(&render_text(&error));
}

/// A small Llama with some lines replaced or added.
fn llama(lines: &[&str]) -> String {
    let base = [
        "\"model_type\": \"llama\"",
        "\"vocab_size\": 100",
        "\"hidden_size\": 64",
        "\"intermediate_size\": 96",
        "\"num_hidden_layers\": 2",
        "\"num_attention_heads\": 8",
        "\"max_position_embeddings\": 128",
    ];
    let key = |line: &str| line.split(':').next().map(str::to_owned);
    let kept = base.iter().filter(|line| !lines.iter().any(|other| key(other) == key(line)));
    let all: Vec<&str> = kept.chain(lines).copied().collect();
    format!("{{\n  {}\n}}", all.join(",\n  "))
}

#[test]
fn misspelt_name() {
    let error = builtin("llama-3.1-80b").unwrap_err();
    expect![[r#"
        error[model/unknown-name]: no built-in model is called `llama-3.1-80b`
        help:  did you mean `llama-3.1-8b` or `llama-3.1-70b` or `llama-3.1-405b`?
    "#]]
    .assert_eq(&render_text(&error));
    let error = builtin("nothing like it").unwrap_err();
    expect![[r#"
        error[model/unknown-name]: no built-in model is called `nothing like it`
        help:  list the names with `bedplate model list`, or give the path of the model's config.json
    "#]]
    .assert_eq(&render_text(&error));
}

#[test]
fn malformed_json() {
    check(
        "{\n  \"hidden_size\": ,\n}",
        expect![[r#"
        error[model/malformed-json]: cannot parse the model configuration
          in   config.json:2:18: "hidden_size": ,
          why  expected value at line 2 column 18
        help:  correct the JSON at the line shown, or download the model's config.json again
    "#]],
    );
    check(
        "",
        expect![[r#"
        error[model/malformed-json]: cannot parse the model configuration
          in   config.json:1:1
          why  EOF while parsing a value at line 1 column 0
        help:  correct the JSON at the line shown, or download the model's config.json again
    "#]],
    );
    check(
        &"[".repeat(100_000),
        expect![[r#"
        error[model/malformed-json]: cannot parse the model configuration
          in   config.json:1:128: …[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[…
          why  recursion limit exceeded at line 1 column 128
        help:  correct the JSON at the line shown, or download the model's config.json again
    "#]],
    );
}

#[test]
fn other_json() {
    check(
        "[1, 2]",
        expect![[r#"
        error[model/not-an-object]: a model configuration is a JSON object, but this is an array
          in   config.json:1:1: [1, 2]
        help:  give the config.json of the model, not its index, tokenizer or list of files
    "#]],
    );
    check(
        "{}",
        expect![[r#"
            error[model/missing-key]: the configuration has no `model_type`, which says how to read its keys
              in   config.json
            help:  known types: gpt2, bloom, mpt, llama, llama4_text, llama4, mistral, mixtral, qwen2, qwen2_vl, qwen2_vl_text, qwen2_5_vl, qwen2_5_vl_text, qwen2_moe, qwen3, qwen3_moe, deepseek_v2, deepseek_v3, kimi_k2, deepseek_v32, gpt_oss, gemma, gemma2, gemma3_text, gemma3, phi3, olmo2, olmo3, olmoe, glm, glm4, glm4_moe, smollm3, granite, ministral, nemotron, nemotron_h, qwen3_next, grok-1
        "#]],
    );
}

#[test]
fn unknown_type() {
    check(
        "{\"model_type\": \"lama\"}",
        expect![[r#"
            error[model/unknown-type]: model type `lama` is not known
              in   config.json:1:2: {"model_type": "lama"}
            help:  did you mean `llama`? known types: gpt2, bloom, mpt, llama, llama4_text, llama4, mistral, mixtral, qwen2, qwen2_vl, qwen2_vl_text, qwen2_5_vl, qwen2_5_vl_text, qwen2_moe, qwen3, qwen3_moe, deepseek_v2, deepseek_v3, kimi_k2, deepseek_v32, gpt_oss, gemma, gemma2, gemma3_text, gemma3, phi3, olmo2, olmo3, olmoe, glm, glm4, glm4_moe, smollm3, granite, ministral, nemotron, nemotron_h, qwen3_next, grok-1
        "#]],
    );
    check(
        "{\"model_type\": 7}",
        expect![[r#"
        error[model/wrong-value]: `model_type` must be a string, but is 7
          in   config.json:1:2: {"model_type": 7}
        help:  correct the value at the line shown
    "#]],
    );
}

#[test]
fn missing_key() {
    check(
        "{\"model_type\": \"llama\", \"hidden_size\": 64}",
        expect![[r#"
        error[model/missing-key]: the configuration has no `num_hidden_layers`, which model type `llama` needs
          in   config.json
        help:  add `"num_hidden_layers": ...` to the configuration
    "#]],
    );
}

#[test]
fn wrong_values() {
    check(
        &llama(&["\"hidden_size\": \"wide\""]),
        expect![[r#"
        error[model/wrong-value]: `hidden_size` must be a whole number from 1 to 2147483648, but is "wide"
          in   config.json:8:3: "hidden_size": "wide"
        help:  correct the value at the line shown
    "#]],
    );
    check(
        &llama(&["\"hidden_size\": 0"]),
        expect![[r#"
        error[model/wrong-value]: `hidden_size` must be a whole number from 1 to 2147483648, but is 0
          in   config.json:8:3: "hidden_size": 0
        help:  correct the value at the line shown
    "#]],
    );
    check(
        &llama(&["\"num_hidden_layers\": 1000000000000000000000000000000"]),
        expect![[r#"
        error[model/wrong-value]: `num_hidden_layers` must be a whole number from 1 to 100000, but is 1e+30
          in   config.json:8:3: "num_hidden_layers": 1000000000000000000000000000000
        help:  correct the value at the line shown
    "#]],
    );
    check(
        &llama(&["\"attention_bias\": 1"]),
        expect![[r#"
        error[model/wrong-value]: `attention_bias` must be true or false, but is 1
          in   config.json:9:3: "attention_bias": 1
        help:  correct the value at the line shown
    "#]],
    );
    check(
        &llama(&[
            "\"model_type\": \"gemma2\"",
            "\"layer_types\": [\"linear_attention\", \"full_attention\"]",
        ]),
        expect![[r#"
            error[model/wrong-value]: `layer_types` must be a list of `full_attention` and `sliding_attention`, but is "linear_attention"
              in   config.json:9:3: "layer_types": ["linear_attention", "full_attention"]
            help:  correct the value at the line shown
        "#]],
    );
}

#[test]
fn inconsistent_sizes() {
    check(
        &llama(&["\"num_attention_heads\": 7"]),
        expect![[r#"
        error[model/inconsistent-shape]: the model cannot be built: the hidden size 64 is not a multiple of the 7 heads, and no head size is given
          in   config.json:8:3: "num_attention_heads": 7
        help:  compare the sizes with the model's published config.json
    "#]],
    );
    check(
        &llama(&["\"num_key_value_heads\": 3"]),
        expect![[r#"
        error[model/inconsistent-shape]: the model cannot be built: 8 query heads do not divide evenly over 3 key-value heads
          in   config.json:9:3: "num_key_value_heads": 3
        help:  compare the sizes with the model's published config.json
    "#]],
    );
    check(
        &llama(&["\"model_type\": \"mixtral\"", "\"num_local_experts\": 4", "\"num_experts_per_tok\": 5"]),
        expect![[r#"
            error[model/inconsistent-shape]: the model cannot be built: each token goes to 5 experts, but there are only 4
              in   config.json:10:3: "num_experts_per_tok": 5
            help:  compare the sizes with the model's published config.json
        "#]],
    );
    check(
        &llama(&["\"model_type\": \"gemma2\"", "\"layer_types\": [\"full_attention\"]"]),
        expect![[r#"
            error[model/inconsistent-shape]: the model cannot be built: the list of layers has 1 entries, but the model has 2 layers
              in   config.json:9:3: "layer_types": ["full_attention"]
            help:  compare the sizes with the model's published config.json
        "#]],
    );
    check(
        &llama(&[
            "\"hidden_size\": 2000000000",
            "\"intermediate_size\": 2000000000",
            "\"num_hidden_layers\": 99999",
        ]),
        expect![[r#"
            error[model/inconsistent-shape]: the model cannot be built: the model would have 2799972000400398000000000 parameters, more than 10^18
              in   config.json
            help:  compare the sizes with the model's published config.json
        "#]],
    );
}

#[test]
fn a_nested_key_is_found_in_its_section() {
    let config = "{\n  \"model_type\": \"gemma3\",\n  \"vision_config\": {\"hidden_size\": 1152},\n  \"text_config\": {\n    \"hidden_size\": -1\n  }\n}";
    check(
        config,
        expect![[r#"
        error[model/wrong-value]: `hidden_size` must be a whole number from 1 to 2147483648, but is -1
          in   config.json:5:5: "hidden_size": -1
        help:  correct the value at the line shown
    "#]],
    );
}

#[test]
fn a_shape_outside_its_family_cannot_be_exported() {
    let shape = builtin("deepseek-v2-lite").unwrap().into_shape();
    let model = Transformer::new(Shape { family: Family::Llama, ..shape }).unwrap();
    let error = to_config_json(&model).unwrap_err();
    expect![[r#"
        error[model/cannot-export]: model `deepseek-v2-lite` cannot be written as a `llama` configuration
        help:  choose a family whose configurations have that feature
    "#]]
    .assert_eq(&render_text(&error));
}

#[test]
fn every_page_has_its_own_code() {
    let mut codes: Vec<&str> = PAGES.iter().map(|page| page.code).collect();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes.len(), PAGES.len());
    assert!(codes.iter().all(|code| code.starts_with("model/")));
}
