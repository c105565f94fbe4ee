//! FLOPs per token against published figures and laws.

use bedplate_transformer::{
    AttentionFlops, FlopsConvention, Prediction, Reach, RecomputeFlops, Transformer, builtin,
};

const FULL: FlopsConvention = FlopsConvention {
    attention: AttentionFlops::Full,
    recompute: RecomputeFlops::NotCounted,
    prediction: Prediction::LeftOut,
};

fn training_gflop(model: &Transformer, sequence: u64, convention: FlopsConvention) -> f64 {
    model.flops_per_token(sequence, convention).training().get() / 1e9
}

/// Megatron Bridge counts the causal half, NeMo 24.07 and DGX Cloud the full square.
#[test]
fn published_figures_are_met_in_their_convention() {
    let published = [
        ("llama-3-8b", 8192, 51.5, 57.9),
        ("llama-3-70b", 8192, 449.0, 481.0),
        ("llama-3.1-405b", 8192, 2524.0, 2626.0),
    ];
    for (name, sequence, causal, full) in published {
        let model = builtin(name).unwrap();
        let close = |ours: f64, theirs: f64| (ours - theirs).abs() < 0.003 * theirs;
        let ours = training_gflop(&model, sequence, FlopsConvention::default());
        assert!(close(ours, causal), "{name} causal: {ours} against {causal}");
        let ours = training_gflop(&model, sequence, FULL);
        assert!(close(ours, full), "{name} full: {ours} against {full}");
    }
}

/// Narayanan et al. 2021, equation 3: 96 B s l h^2 (1 + s/6h + V/16lh), recompute counted, full square.
#[test]
fn gpt_with_recompute_follows_the_megatron_formula() {
    let model = builtin("gpt3-175b").unwrap();
    let (s, l, h, v) = (2048.0, 96.0, 12_288.0, 50_257.0);
    let formula = 96.0 * l * h * h * (1.0 + s / (6.0 * h) + v / (16.0 * l * h));
    let convention = FlopsConvention { recompute: RecomputeFlops::Counted, ..FULL };
    let ours = model.flops_per_token(2048, convention).training().get();
    assert!((ours / formula - 1.0).abs() < 1e-12, "{ours} against {formula}");
}

#[test]
fn six_n_is_near_for_short_sequences() {
    let model = builtin("llama-2-70b").unwrap();
    let exact = training_gflop(&model, 512, FlopsConvention::default());
    assert!((model.six_n_flops().get() / 1e9 / exact - 1.0).abs() < 0.01);
}

#[test]
fn prediction_counts_only_when_asked() {
    let model = builtin("deepseek-v3").unwrap();
    let with = FlopsConvention { prediction: Prediction::Counted, ..Default::default() };
    let plain = training_gflop(&model, 4096, FlopsConvention::default());
    let counted = training_gflop(&model, 4096, with);
    // One layer of 61, a projection, and the logits once more.
    assert!((1.02..1.05).contains(&(counted / plain)), "{plain} {counted}");
}

#[test]
fn windows_and_chunks_bound_the_scores() {
    let causal = |reach: Reach, sequence| reach.mean_keys(sequence, AttentionFlops::CausalHalved);
    assert_eq!(causal(Reach::Full, 8192), 4096.0);
    assert_eq!(causal(Reach::Window(8192), 8192), 4096.0);
    assert_eq!(causal(Reach::Window(1024), 8192), 1024.0 - 64.0);
    assert_eq!(causal(Reach::Chunk(1024), 8192), 512.0);
    assert_eq!(causal(Reach::Chunk(1024), 1536), (1024.0 * 1024.0 + 512.0 * 512.0) / 2.0 / 1536.0);
    assert_eq!(causal(Reach::Full, 0), 0.0);
    assert_eq!(Reach::Window(1024).mean_keys(8192, AttentionFlops::Full), 1024.0);
}

#[test]
fn decoding_reads_the_latent_in_its_absorbed_form() {
    let of_key = |model| builtin(model).unwrap().runs[0].layer.attention.decode_flops_per_key();
    assert_eq!(of_key("deepseek-v3"), 2.0 * 128.0 * (512.0 + 64.0 + 512.0));
    assert_eq!(of_key("llama-3.1-8b"), 4.0 * 4096.0);
}
