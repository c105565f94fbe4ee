//! Vision encoders as configurations describe them, against the published counts of parameters.

use bedplate_diag::Source;
use bedplate_transformer::{Configuration, Image, ModelError, Vision, builtin};
use proptest::prelude::*;

const QWEN25: &str = include_str!("vision/qwen2.5-vl-7b.json");

fn read(text: &str) -> Result<Option<Vision>, ModelError> {
    Configuration::parse(Source::new("config.json", text))?.vision()
}

fn vision(text: &str) -> Vision {
    read(text).expect("it is right").expect("it has an encoder")
}

const QWEN2: &str = r#"{"model_type": "qwen2_vl", "hidden_size": 3584, "intermediate_size": 18944,
    "max_position_embeddings": 32768, "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
    "vocab_size": 152064, "tie_word_embeddings": false,
    "vision_config": {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "in_chans": 3, "hidden_size": 3584,
                      "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2}}"#;

const GEMMA: &str = r#"{"model_type": "gemma3", "mm_tokens_per_image": 256,
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                    "num_hidden_layers": 34, "sliding_window": 1024},
    "vision_config": {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
                      "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": false}}"#;

const LLAVA: &str = r#"{"model_type": "llava",
    "text_config": {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
                    "num_attention_heads": 32, "max_position_embeddings": 4096, "vocab_size": 32064},
    "vision_config": {"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "model_type": "clip_vision_model",
                      "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768}}"#;

/// Parameters of the whole model, as its weights on the hub have them.
fn total(text: &str) -> u64 {
    let configuration = Configuration::parse(Source::new("config.json", text)).expect("it is JSON");
    configuration.transformer().expect("it is right").parameters().total + vision(text).parameters
}

#[test]
fn parameters_are_those_of_published_weights() {
    assert_eq!(total(QWEN25), 8_292_166_656);
    assert_eq!(total(QWEN2), 8_291_375_616);
    assert_eq!(total(LLAVA), 7_063_427_072);
    let gemma = builtin("gemma-3-4b").expect("it is built in").parameters().total;
    assert_eq!(total(GEMMA) - gemma, 416_866_032 + 1152 + 1152 * 2560, "SigLIP, a norm and the projection");
}

#[test]
fn images_become_patches_and_tokens() {
    let check = |text: &str, (width, height), patches, tokens| {
        assert_eq!(vision(text).image(width, height), Image { patches, tokens }, "{width}x{height}");
    };
    check(QWEN25, (1024, 1024), 74 * 74, 37 * 37);
    check(QWEN25, (1280, 720), 92 * 52, 46 * 26);
    check(QWEN25, (1, 1), 16, 4);
    check(QWEN25, (32_768, 32_768), 256 * 256, 128 * 128);
    check(GEMMA, (1, 9000), 64 * 64, 256);
    check(LLAVA, (1024, 768), 24 * 24, 576);
}

#[test]
fn windows_save_most_of_the_attention() {
    let windowed = vision(QWEN25);
    let image = windowed.image(1024, 1024);
    let full = Vision { windows: None, ..windowed.clone() };
    assert!(windowed.attention_flops(&image) < 0.15 * full.attention_flops(&image));
    assert!(windowed.product_flops(&image) > 6e12 && windowed.product_flops(&image) < 8e12);
}

#[test]
fn wrong_sections_are_refused_with_their_key() {
    for (wrong, key) in [
        (QWEN25.replace("\"num_heads\": 16", "\"num_heads\": 7"), "num_heads"),
        (QWEN25.replace("\"depth\": 32", "\"depth\": 0"), "depth"),
        (GEMMA.replace("\"image_size\": 896", "\"image_size\": 3"), "image_size"),
        (GEMMA.replace("\"patch_size\": 14", "\"patch_size\": 99999"), "patch_size"),
        (LLAVA.replace("\"num_hidden_layers\": 24", "\"num_hidden_layers\": 1e30"), "num_hidden_layers"),
        (LLAVA.replace("\"hidden_size\": 1024, ", ""), "hidden_size"),
    ] {
        let error = read(&wrong).expect_err(key);
        assert!(error.to_string().contains(key), "{key}: {error}");
    }
    let other = GEMMA.replace("\"model_type\": \"gemma3\",", "\"model_type\": \"other\",");
    assert_eq!(read(&other).expect("its language model is known"), None, "no such encoder is known");
}

proptest! {
    #[test]
    fn any_image_has_tokens_within_bounds(width in 0u32..100_000, height in 0u32..100_000) {
        for text in [QWEN25, GEMMA] {
            let vision = vision(text);
            let image = vision.image(width, height);
            prop_assert!(image.tokens >= 1 && image.tokens <= image.patches);
            prop_assert!(vision.product_flops(&image).is_finite() && vision.attention_flops(&image) > 0.0);
        }
    }
}
