//! What a step costs on ranks that share a host, layout by layout.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use bedplate_breakdown::Part;
use bedplate_catalog::{Accelerator, Catalog};
use bedplate_diag::{Diagnostic, Source};
use bedplate_layout::{ComputePrecision, Layout, Recompute};
use bedplate_perf::{HostRun, PeerCopies, PerfError, PredictedStep, Task, memory_on_host, predict_on_host};
use bedplate_testkit::host_of_ranks;
use bedplate_transformer::{Transformer, from_config};

/// Eight threads: ranks have cores of their own. Every operation takes a nanosecond a byte.
fn host(threads: u32, operations: &[&str]) -> Accelerator {
    let text = host_of_ranks(threads, operations);
    let catalog = Catalog::with_overlays(&[Source::new("host.toml", &text)]).unwrap();
    catalog.accelerator("host").unwrap().clone()
}

const ALL: [&str; 5] = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "exchange"];

const LLAMA: &str = r#"{"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128, "max_position_embeddings": 64,
    "tie_word_embeddings": false}"#;
const MIXTRAL: &str = r#"{"model_type": "mixtral", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 96, "num_local_experts": 4,
    "num_experts_per_tok": 2, "max_position_embeddings": 64, "tie_word_embeddings": false}"#;

const NS: f64 = 1e-9;

fn model(config: &str) -> Transformer {
    from_config(Source::new("config.json", config)).unwrap()
}

/// Eight sequences of 32 tokens, one at a time.
fn run(layout: &str) -> HostRun {
    HostRun {
        sequence: 32,
        global_batch: 8,
        micro_batch: 1,
        precision: ComputePrecision::Fp32,
        recompute: Recompute::None,
        task: Task::Pretrain,
        copies: PeerCopies::None,
        layout: layout.parse::<Layout>().unwrap(),
    }
}

fn priced(config: &str, layout: &str) -> PredictedStep {
    predict_on_host(&model(config), &host(8, &ALL), &run(layout)).unwrap()
}

fn part(step: &PredictedStep, part: Part) -> f64 {
    step.time[part].exposed.get()
}

fn near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-6, "{found} against {expected}");
}

/// Totals that all ranks add up.
const TOTALS: f64 = 3.0 * 32.0;

#[test]
fn split_state_is_exchanged_once_a_step_or_with_every_micro_batch() {
    let weights = model(LLAMA).parameters().total as f64 * 4.0;
    let up = |layout: &str| part(&priced(LLAMA, layout), Part::ScaleUp);
    near(up("dp2"), NS * (weights + TOTALS));
    // Gradients are scattered and new weights gathered.
    near(up("dp2.zero1"), NS * (2.0 * weights + TOTALS));
    // Gradients after each of four micro-batches.
    near(up("dp2.zero2"), NS * ((4.0 + 1.0) * weights + TOTALS));
    // Weights are gathered in both passes too, those of the head in one.
    let head = 4.0 * (256.0 * 64.0 + 64.0);
    near(up("dp2.zero3"), NS * (4.0 * (3.0 * weights - head) + TOTALS));
    // Groups of two on four ranks have two micro-batches, and add up what they own.
    near(up("dp4.hsdp2"), NS * (2.0 * (3.0 * weights - head) + 0.5 * weights + TOTALS));
}

#[test]
fn what_is_split_is_updated_by_its_owner_alone() {
    let optimizer = |layout: &str| part(&priced(LLAMA, layout), Part::Optimizer);
    near(optimizer("dp4"), 4.0 * optimizer("dp4.zero1"));
    near(optimizer("dp2.zero3"), optimizer("dp2.zero1"));
}

#[test]
fn tensor_ranks_add_up_four_sums_a_layer() {
    let sums = 4.0 * 4.0 * 8.0 * (32.0 * 64.0 * 4.0);
    near(part(&priced(LLAMA, "tp2"), Part::ScaleUp), NS * (sums + TOTALS));
    let sequence_parallel = part(&priced(LLAMA, "tp2.sp"), Part::ScaleUp);
    assert!(
        sequence_parallel > NS * 2.0 * sums,
        "gathers and scatters, and the gradients of norms and tables"
    );
}

#[test]
fn stages_wait_for_each_other_unless_they_are_more_than_the_cores() {
    let (two, four) = (priced(LLAMA, "pp2"), priced(LLAMA, "pp4"));
    assert!(part(&two, Part::Bubble) > 0.0 && part(&four, Part::Bubble) > part(&two, Part::Bubble));
    let interleaved = priced(LLAMA, "pp2.vpp2");
    assert!(part(&interleaved, Part::Bubble) < part(&two, Part::Bubble));
    let crowded = predict_on_host(&model(LLAMA), &host(1, &ALL), &run("pp4")).unwrap();
    assert!(
        part(&crowded, Part::Bubble) < part(&four, Part::Bubble),
        "waiting ranks leave their core to others"
    );
    let busy = [Part::Compute, Part::Memory].map(|of| part(&two, of) / part(&priced(LLAMA, "dp2"), of));
    assert!(busy.iter().all(|share| (0.8..1.05).contains(share)), "the same work: {busy:?}");
}

#[test]
fn context_and_expert_ranks_pass_on_keys_and_tokens() {
    let ring = priced(LLAMA, "cp2");
    let kv = 16.0 * 128.0 * 4.0;
    // Round once in each pass, with gradients twice; and the gradients of all weights.
    let weights = model(LLAMA).parameters().total as f64 * 4.0;
    near(part(&ring, Part::ScaleUp), NS * (4.0 * 8.0 * 4.0 * kv + weights + TOTALS));
    let (spread, whole) = (priced(MIXTRAL, "dp2.ep2"), priced(MIXTRAL, "dp2"));
    let trips = 2.0 * 4.0 * 4.0 * (32.0 * 2.0 * 64.0 * 4.0);
    let experts = 2.0 * 4.0 * 3.0 * 64.0 * 96.0 * 4.0;
    near(part(&spread, Part::ScaleUp) - part(&whole, Part::ScaleUp), NS * (trips - experts));
}

#[test]
fn ranks_beyond_the_cores_take_turns() {
    let up = |threads: u32, layout: &str| {
        part(&predict_on_host(&model(LLAMA), &host(threads, &ALL), &run(layout)).unwrap(), Part::ScaleUp)
    };
    near(up(2, "dp4"), up(8, "dp4"));
    // Two groups of two at once on two cores.
    assert!(up(2, "dp2.tp2") > 1.9 * up(8, "dp2.tp2"));
}

#[test]
fn an_operation_that_was_not_measured_is_named() {
    let measured = host(8, &["all_reduce"]);
    let price = |layout: &str| predict_on_host(&model(LLAMA), &measured, &run(layout));
    assert!(["dp2", "tp2", "pp2", "cp2", "dp2.tp2"].iter().all(|layout| price(layout).is_ok()));
    for (layout, operation, ranks) in
        [("dp2.zero1", "all_gather", 2), ("dp4.zero3", "all_gather", 4), ("tp2.sp", "all_gather", 2)]
    {
        let error = price(layout).unwrap_err();
        assert_eq!(error, PerfError::CollectivesNotMeasured { operation, ranks });
        assert_eq!(error.page().code, "plan/collectives-not-measured");
    }
}

#[test]
fn memory_needs_no_measurement() {
    for layout in ["dp2", "dp4.zero3", "tp2.sp", "pp2.vpp2", "dp2.cp2.zero1"] {
        assert_eq!(memory_on_host(&model(LLAMA), &run(layout)), priced(LLAMA, layout).memory, "{layout}");
    }
}
