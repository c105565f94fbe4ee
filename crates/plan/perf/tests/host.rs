//! Steps of this program's own runtime on a host, against sums made by hand.
#![allow(clippy::unwrap_used, reason = "tests")]

use bedplate_breakdown::Part;
use bedplate_catalog::{Accelerator, Catalog};
use bedplate_diag::{Diagnostic, Source};
use bedplate_layout::{ComputePrecision, Layout, Recompute};
use bedplate_perf::{
    Constants, Hardware, HostRun, PeerCopies, PerfError, PredictedStep, Stack, Task, Workload, predict,
    predict_on_host,
};
use bedplate_testkit::PLAIN_HOST;
use bedplate_topology::Cluster;
use bedplate_transformer::{Transformer, builtin, from_config};

/// A machine with the host.
const MACHINE: &str = r#"
[[instance]]
name = "host"
provider = "on-premise"
accelerator = "host"
accelerators = 1
"#;

fn catalog() -> Catalog {
    Catalog::with_overlays(&[Source::new("host.toml", &format!("{PLAIN_HOST}{MACHINE}"))]).unwrap()
}

fn host() -> Accelerator {
    catalog().accelerator("host").unwrap().clone()
}

/// Two layers of width 64 with four heads over two pairs of keys and values, and a vocabulary of 256.
const LLAMA: &str = r#"{
    "model_type": "llama", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": false, "hidden_act": "silu"
}"#;

/// One layer of the same width with four experts of width 96, of which a token visits two.
const MIXTRAL: &str = r#"{
    "model_type": "mixtral", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
    "num_local_experts": 4, "num_experts_per_tok": 2,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": false, "hidden_act": "silu"
}"#;

fn model(config: &str) -> Transformer {
    from_config(Source::new("config.json", config)).unwrap()
}

/// Four sequences of 32 tokens in two micro-batches.
const RUN: HostRun = HostRun {
    sequence: 32,
    global_batch: 4,
    micro_batch: 2,
    precision: ComputePrecision::Fp32,
    recompute: Recompute::None,
    task: Task::Pretrain,
    copies: PeerCopies::None,
    layout: Layout::ONE,
};

fn step(config: &str, run: HostRun) -> PredictedStep {
    predict_on_host(&model(config), &host(), &run).unwrap()
}

fn near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-9, "{found} against {expected}");
}

/// Rows of a micro-batch of [`RUN`].
const ROWS: f64 = 64.0;

#[test]
fn activations_are_the_buffers_of_the_workspace() {
    // Buffers of a layer, in numbers per row: kept are qkv, attended, middle and gate_up.
    let kept = |element: f64| ROWS * (element * (128.0 + 64.0 + 64.0 + 256.0) + 4.0 * (2.0 + 2.0 + 4.0));
    // Two normed inputs and the activations.
    let cheap = |element: f64| ROWS * element * (64.0 + 64.0 + 128.0);
    // Stream, normed, attended, qkv, activated, gate_up.
    let gradients = |element: f64| ROWS * element * (64.0 + 64.0 + 64.0 + 128.0 + 128.0 + 256.0);
    // Three streams, the last norm with its statistics; tokens, those whose rows are learned, targets, positions, first keys, losses.
    let rest = |element: f64| ROWS * (element * (3.0 * 64.0 + 64.0) + 4.0 * 2.0 + 4.0 * 6.0);
    let (wide, narrow) = (ComputePrecision::Fp32, ComputePrecision::Bf16);
    for (precision, recompute, layers) in [
        (wide, Recompute::None, 2.0 * kept(4.0) + 2.0 * cheap(4.0)),
        (wide, Recompute::Selective, 2.0 * kept(4.0) + cheap(4.0)),
        (wide, Recompute::Full, kept(4.0) + cheap(4.0)),
        (narrow, Recompute::None, 2.0 * kept(2.0) + 2.0 * cheap(2.0)),
    ] {
        let element = if precision == wide { 4.0 } else { 2.0 };
        let memory = step(LLAMA, HostRun { precision, recompute, ..RUN }).memory;
        assert_eq!(memory.activations.get(), layers + gradients(element) + rest(element));
        assert_eq!(memory.logits.get(), ROWS * 256.0 * 4.0, "all logits fit into 16 MB");
    }
    // The same as one sum, so that the formulas above are not checked only by themselves.
    assert_eq!(step(LLAMA, RUN).memory.activations.get(), 645_120.0);
    let full = HostRun { recompute: Recompute::Full, ..RUN };
    assert_eq!(step(LLAMA, full).memory.activations.get(), 446_464.0);
}

#[test]
fn a_mixture_keeps_its_routing_and_what_its_experts_made() {
    // Among them which tokens are not padding, and each expert's share of each layer.
    assert_eq!(step(MIXTRAL, RUN).memory.activations.get(), 665_380.0);
}

#[test]
fn large_vocabularies_make_their_logits_some_rows_at_a_time() {
    let config = LLAMA.replace("\"vocab_size\": 256", "\"vocab_size\": 131072");
    let memory = step(&config, RUN).memory;
    assert_eq!(memory.logits.get(), 32.0 * 131_072.0 * 4.0);
    // The largest product packs the head's matrix, on a tile unit each number as three of bf16.
    assert_eq!(memory.workspace.get(), 32e6 + 6.0 * 131_072.0 * 64.0);
}

#[test]
fn state_takes_sixteen_bytes_in_fp32_and_eighteen_in_bf16() {
    let parameters = model(LLAMA).parameters().total as f64;
    for (precision, weights, optimizer) in
        [(ComputePrecision::Fp32, 4.0, 8.0), (ComputePrecision::Bf16, 2.0, 12.0)]
    {
        let memory = step(LLAMA, HostRun { precision, ..RUN }).memory;
        let state =
            [memory.weights, memory.gradients, memory.optimizer].map(|bytes| bytes.get() / parameters);
        assert_eq!(state, [weights, 4.0, optimizer]);
        assert!(memory.communication.is_zero());
    }
}

/// Tokens of a step, and matrix elements that each of them multiplies.
const TOKENS: f64 = 128.0;
const MATRICES: f64 = 2.0 * (128.0 * 64.0 + 64.0 * 64.0 + 256.0 * 64.0 + 64.0 * 128.0) + 256.0 * 64.0;
const PARAMETERS: f64 = MATRICES + 256.0 * 64.0 + 2.0 * 128.0 + 64.0;

#[test]
fn seconds_are_work_over_measured_rates() {
    let time = step(LLAMA, RUN).time;
    // A query sees 16.5 of 32 keys; scores and values forward, and 2.5 times that backward.
    let attention = 2.0 * 14.0 * TOKENS * 64.0 * 16.5;
    near(time[Part::Compute].exposed.get(), 6.0 * MATRICES * TOKENS / 300e9 + attention / 150e9);
    // Elements per row and layer. Forward: two norms, rotation of six heads, activation.
    let forward = 2.0 * 2.0 * 64.0 + 2.0 * 96.0 + (256.0 + 128.0);
    // Backward: two norms, the rotation, gate and up with its gradient.
    let backward = 2.0 * 4.0 * 64.0 + 2.0 * 96.0 + (256.0 + 128.0 + 256.0);
    // Embedding, last norm, its backward pass; and rows of the table's gradient, read and written in fp32.
    let around = 4.0 * (2.0 + 2.0 + 3.0) * 64.0 + (4.0 + 8.0) * 64.0;
    let streamed = TOKENS * (2.0 * 4.0 * (forward + backward) + around);
    // Gradients are cleared once and measured once.
    let swept = 2.0 * 4.0 * PARAMETERS;
    let losses = TOKENS * 256.0 * 4.0 / 4e9;
    near(time[Part::Memory].exposed.get(), (streamed + swept) / 30e9 + losses);
    near(time[Part::Optimizer].exposed.get(), 28.0 * PARAMETERS / 25e9);
    for part in [Part::ScaleUp, Part::ScaleOut, Part::Bubble, Part::Storage, Part::Host, Part::Other] {
        assert!(time[part].exposed.is_zero(), "{part}");
    }
}

#[test]
fn recomputation_does_norms_and_activations_or_whole_layers_again() {
    let part = |recompute, part: Part| step(LLAMA, HostRun { recompute, ..RUN }).time[part].exposed.get();
    let more = |recompute, of: Part| part(recompute, of) - part(Recompute::None, of);
    let cheap = 2.0 * 4.0 * TOKENS * (2.0 * 2.0 * 64.0 + 384.0);
    near(more(Recompute::Selective, Part::Memory), cheap / 30e9);
    assert!(more(Recompute::Selective, Part::Compute).abs() < 1e-15);
    let matrices = MATRICES - 256.0 * 64.0;
    let attention = 2.0 * 4.0 * TOKENS * 64.0 * 16.5;
    near(more(Recompute::Full, Part::Compute), 2.0 * matrices * TOKENS / 300e9 + attention / 150e9);
}

#[test]
fn bf16_halves_the_bytes_of_activations_and_writes_one_more_copy_of_the_weights() {
    let time = step(LLAMA, HostRun { precision: ComputePrecision::Bf16, ..RUN }).time;
    near(time[Part::Optimizer].exposed.get(), 30.0 * PARAMETERS / 25e9);
    let attention = 2.0 * 14.0 * TOKENS * 64.0 * 16.5;
    near(time[Part::Compute].exposed.get(), 6.0 * MATRICES * TOKENS / 2e12 + attention / 500e9);
}

#[test]
fn experts_are_products_over_the_tokens_that_visit_them() {
    let time = step(MIXTRAL, RUN).time;
    let attention = 14.0 * TOKENS * 64.0 * 16.5;
    let matrices = 128.0 * 64.0 + 64.0 * 64.0 + 4.0 * 64.0 + 2.0 * 3.0 * 96.0 * 64.0 + 256.0 * 64.0;
    near(time[Part::Compute].exposed.get(), 6.0 * matrices * TOKENS / 300e9 + attention / 150e9);
}

#[test]
fn adapters_learn_with_little_state_but_as_much_arithmetic_in_layers() {
    let lora = HostRun { task: Task::Lora { rank: 8 }, ..RUN };
    let (adapted, whole) = (step(LLAMA, lora), step(LLAMA, RUN));
    assert!(adapted.memory.gradients < whole.memory.gradients);
    assert!(adapted.time[Part::Optimizer].exposed < whole.time[Part::Optimizer].exposed);
    let head = 2.0 * 256.0 * 64.0 * TOKENS / 300e9;
    let compute = |step: &PredictedStep| step.time[Part::Compute].exposed.get();
    assert!(compute(&adapted) > compute(&whole) - head);
    // Rank 8 beside queries, keys, values and outputs of both layers.
    let learning = 2.0 * 8.0 * ((64.0 + 64.0) + 2.0 * (32.0 + 64.0) + (64.0 + 64.0));
    near(adapted.time[Part::Optimizer].exposed.get(), 28.0 * learning / 25e9);
}

#[test]
fn the_ordinary_prediction_for_a_cluster_of_one_host_is_the_same() {
    let catalog = catalog();
    let cluster = Cluster::from_spec("host:1", &catalog).unwrap();
    let hardware = Hardware::from_cluster(&cluster, &catalog).unwrap();
    let workload = Workload { sequence: 32, global_batch: 4, stack: Stack::Bedplate, ..Workload::default() };
    let layout: Layout = "mb2.fp32".parse().unwrap();
    let ordinary = predict(&model(LLAMA), &hardware, &layout, &workload, &Constants::builtin()).unwrap();
    assert_eq!(ordinary, step(LLAMA, RUN));
    assert_eq!((ordinary.gpus, ordinary.tokens), (1, TOKENS));
    assert_eq!(hardware.peak(ComputePrecision::Fp32), 400e9);
    assert_eq!(hardware.peak(ComputePrecision::Bf16), 4e12);
}

#[test]
fn what_the_runtime_cannot_do_has_no_price() {
    let catalog = catalog();
    let hardware =
        |spec: &str| Hardware::from_cluster(&Cluster::from_spec(spec, &catalog).unwrap(), &catalog).unwrap();
    let price = |spec: &str, model: &Transformer, stack, layout: &str| {
        let workload = Workload { sequence: 32, global_batch: 4, stack, ..Workload::default() };
        predict(model, &hardware(spec), &layout.parse().unwrap(), &workload, &Constants::builtin())
    };
    let small = model(LLAMA);
    for (spec, model, stack, layout, code) in [
        ("host:1", &small, Stack::Megatron, "mb1", "plan/unsupported-stack"),
        ("p5.48xlarge:1", &small, Stack::Bedplate, "dp4", "plan/unsupported-stack"),
        ("host:2", &small, Stack::Bedplate, "dp2", "plan/collectives-not-measured"),
        ("host:1", &builtin("deepseek-v3").unwrap(), Stack::Bedplate, "mb1", "plan/unsupported-model"),
        ("host:1", &small, Stack::Bedplate, "fp8", "plan/unsupported-precision"),
        ("p5.48xlarge:1", &small, Stack::Megatron, "dp4.fp32", "plan/unsupported-precision"),
    ] {
        let error = price(spec, model, stack, layout).expect_err(code);
        assert_eq!(error.page().code, code);
    }
    let unmeasured = Accelerator { measured: None, ..host() };
    let error = predict_on_host(&small, &unmeasured, &RUN).unwrap_err();
    assert!(matches!(error, PerfError::MissingFigure { .. }), "{error}");
}

#[test]
fn ranks_of_a_host_share_it_and_add_up_their_gradients() {
    let collectives =
        "[[accelerator.collective]]\nop = \"all_reduce\"\nranks = 2\nbytes = [1, 1e12]\nus = [5, 5e12]\n";
    let text = format!("{PLAIN_HOST}{MACHINE}\n{collectives}");
    let catalog = Catalog::with_overlays(&[Source::new("host.toml", &text)]).unwrap();
    let price = |spec: &str, layout: &str| {
        let hardware =
            Hardware::from_cluster(&Cluster::from_spec(spec, &catalog).unwrap(), &catalog).unwrap();
        let workload =
            Workload { sequence: 32, global_batch: 4, stack: Stack::Bedplate, ..Workload::default() };
        predict(&model(LLAMA), &hardware, &layout.parse().unwrap(), &workload, &Constants::builtin())
    };
    let (one, two) = (price("host:1", "mb2.fp32").unwrap(), price("host:2", "dp2.mb2.fp32").unwrap());
    let of = |step: &PredictedStep, part: Part| step.time[part].exposed.get();
    let near =
        |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-6, "{found} {expected}");
    assert_eq!((two.gpus, two.tokens), (2, one.tokens));
    // Gradients are cleared and measured by each rank for itself, so its own part of the host takes twice as long for that.
    near(of(&two, Part::Compute), of(&one, Part::Compute));
    near(of(&two, Part::Optimizer), 2.0 * of(&one, Part::Optimizer));
    let gradients = 4.0 * model(LLAMA).parameters().total as f64;
    // A microsecond a byte, a block at a time, and three sums of a few totals.
    near(of(&two, Part::ScaleUp), 5e-6 * (gradients + 3.0 * 32.0));
    assert_eq!(of(&one, Part::ScaleUp), 0.0);
    // Only all-reduce was measured.
    assert!(price("host:2", "tp2.mb2.fp32").is_ok());
    let error = price("host:2", "dp2.zero1.mb2.fp32").unwrap_err();
    assert_eq!(error.page().code, "plan/collectives-not-measured");
}
