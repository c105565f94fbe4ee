//! Bytes of weights, training state and KV cache.

use bedplate_transformer::{Optimizer, ParameterPart, Precision, TrainingState, builtin};

#[test]
fn mixed_precision_training_takes_eighteen_bytes_a_parameter() {
    let model = builtin("llama-3.1-8b").unwrap();
    let parameters = model.parameters().total as f64;
    let bytes = model.training_bytes(TrainingState::default());
    assert_eq!(bytes.weights.get(), 2.0 * parameters);
    assert_eq!(bytes.gradients.get(), 4.0 * parameters);
    assert_eq!(bytes.optimizer.get(), 12.0 * parameters);
    assert_eq!(bytes.total().get(), 18.0 * parameters);
}

#[test]
fn optimizers_differ_in_what_they_keep() {
    let bytes = |optimizer, has_master_weights| {
        TrainingState { optimizer, has_master_weights, ..Default::default() }.bytes(1000).optimizer.get()
    };
    assert_eq!(bytes(Optimizer::AdamW, false), 8000.0);
    assert_eq!(bytes(Optimizer::AdamW8bit, false), 2031.25);
    assert_eq!(bytes(Optimizer::SgdMomentum, true), 8000.0);
    assert_eq!(bytes(Optimizer::Sgd, false), 0.0);
}

#[test]
fn four_bit_formats_carry_their_scales() {
    assert_eq!(Precision::Nvfp4.bytes_per_value(), 0.5625);
    assert_eq!(Precision::Mxfp4.bytes_per_value(), 0.53125);
    for precision in Precision::ALL {
        assert_eq!(Precision::find(&precision.to_string().to_uppercase()), Some(precision));
    }
    assert_eq!(Precision::find("fp7"), None);
}

/// OpenAI's card: the checkpoint of gpt-oss-120b has 60.8 GiB, that of 20b 12.8 GiB.
#[test]
fn gpt_oss_checkpoints_have_the_published_size() {
    let mixed = |part| if part == ParameterPart::Experts { Precision::Mxfp4 } else { Precision::Bf16 };
    let gib = |name| builtin(name).unwrap().weights_bytes_by(mixed).get() / f64::from(1 << 30);
    assert!((gib("gpt-oss-120b") - 60.8).abs() < 0.1, "{}", gib("gpt-oss-120b"));
    assert!((gib("gpt-oss-20b") - 12.8).abs() < 0.1, "{}", gib("gpt-oss-20b"));
}

#[test]
fn kv_cache_per_token() {
    let bytes = |name| builtin(name).unwrap().kv_bytes_per_token(Precision::Bf16).get();
    assert_eq!(bytes("llama-3.1-70b"), 80.0 * 2.0 * 8.0 * 128.0 * 2.0);
    assert_eq!(bytes("deepseek-v3"), 61.0 * (512.0 + 64.0) * 2.0);
    assert_eq!(bytes("mpt-7b"), 32.0 * 2.0 * 4096.0 * 2.0);
}

#[test]
fn windows_bound_the_kv_cache() {
    let model = builtin("gpt-oss-20b").unwrap();
    let layer_token = 2.0 * 8.0 * 64.0;
    let expected = layer_token * (12.0 * 128.0 + 12.0 * 10_000.0);
    assert_eq!(model.kv_bytes(10_000, Precision::Fp8).get(), expected);
    let gemma = builtin("gemma-3-27b").unwrap();
    let kinds = gemma.layer_kinds();
    assert_eq!(kinds.iter().map(|kind| kind.count).collect::<Vec<_>>(), [52, 10]);
}
