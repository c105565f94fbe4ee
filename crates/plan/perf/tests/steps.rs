//! Single steps whose outcome is known, and inputs that are refused.
#![allow(clippy::unwrap_used, reason = "tests")]

use bedplate_catalog::Catalog;
use bedplate_diag::{Diagnostic, Source};
use bedplate_layout::Layout;
use bedplate_perf::{
    Constants, Fit, Hardware, Network, Offload, Origin, PAGES, PerfError, Routing, Stack, Step, Task,
    Workload, predict,
};
use bedplate_topology::Cluster;
use bedplate_transformer::builtin;

fn machine(spec: &str) -> Hardware {
    let catalog = Catalog::builtin();
    Hardware::from_cluster(&Cluster::from_spec(spec, &catalog).unwrap(), &catalog).unwrap()
}

fn step(model: &str, spec: &str, layout: &str, workload: Workload) -> Step {
    let layout: Layout = layout.parse().unwrap();
    predict(&builtin(model).unwrap(), &machine(spec), &layout, &workload, &Constants::builtin()).unwrap()
}

fn batch(sequence: u64, global_batch: u64) -> Workload {
    Workload { sequence, global_batch, stack: Stack::MegatronBefore2606, ..Workload::default() }
}

/// Seconds measured by NVIDIA's dgxc-benchmarking on H100, within 8 %.
#[test]
fn llama_70b_steps_take_what_was_measured() {
    for (spec, layout, sequences, measured) in [
        ("dgx-h100:8", "dp2.tp4.sp.cp2.pp4.vpp5.zero1", 128, 14.66),
        ("dgx-h100:256", "dp64.tp4.sp.cp2.pp4.vpp5.zero1", 4096, 14.66),
    ] {
        let seconds = step("llama-3.1-70b", spec, layout, batch(8192, sequences)).seconds().get();
        assert!((seconds / measured - 1.0).abs() < 0.08, "{spec} {layout}: {seconds}");
    }
}

#[test]
fn a_rack_scale_domain_helps_expert_parallelism() {
    let rate = |domain| {
        let hardware = Hardware { domain, ..machine("u-p6e-gb200x72:4") };
        let layout = "dp64.pp4.vpp4.ep64.zero1.fp8".parse().unwrap();
        let model = builtin("deepseek-v3").unwrap();
        predict(&model, &hardware, &layout, &batch(4096, 4096), &Constants::builtin())
            .unwrap()
            .tokens_per_second_per_gpu()
    };
    assert!(rate(72) > 1.3 * rate(8), "{} against {}", rate(72), rate(8));
}

#[test]
fn tcp_and_oversubscription_slow_what_crosses_the_network() {
    let rate = |hardware: Hardware| {
        let workload = Workload { stack: Stack::Fsdp, ..batch(4096, 128) };
        let layout = "dp128.fsdp.mb1.recompute-full".parse().unwrap();
        predict(&builtin("llama-3-70b").unwrap(), &hardware, &layout, &workload, &Constants::builtin())
            .unwrap()
            .tokens_per_second_per_gpu()
    };
    let efa = machine("p5.48xlarge:16");
    assert_eq!(efa.network, Network::EfaV2);
    assert!(rate(efa.without_rdma()) < 0.8 * rate(efa));
    assert!(rate(Hardware { oversubscription: 4.0, ..efa }) < rate(efa));
}

#[test]
fn skewed_routing_is_slower_than_balanced() {
    let rate = |routing| {
        let workload = Workload { routing, ..batch(4096, 1024) };
        step("qwen3-30b-a3b", "dgx-h100:2", "dp16.ep16.zero1.fp8", workload).tokens_per_second_per_gpu()
    };
    assert!(rate(Routing::Skewed(1.5)) < rate(Routing::Balanced));
}

#[test]
fn lora_is_faster_and_lighter_than_training_all_weights() {
    let of = |task| step("llama-3-8b", "dgx-h100:1", "dp8.zero1", Workload { task, ..batch(4096, 32) });
    let (all, lora) = (of(Task::FineTune), of(Task::Lora { rank: 16 }));
    assert!(lora.seconds() < all.seconds());
    assert!(lora.memory.optimizer.get() < 0.02 * all.memory.optimizer.get());
    assert_eq!(lora.memory.weights, all.memory.weights);
}

#[test]
fn offloaded_optimizer_state_leaves_the_gpu_and_costs_time() {
    let of = |offload| step("llama-3-8b", "dgx-h100:1", "dp8.zero1", Workload { offload, ..batch(4096, 32) });
    let (inside, outside) = (of(Offload::Nothing), of(Offload::Optimizer));
    assert!(outside.memory.total() < inside.memory.total());
    assert!(outside.seconds() > inside.seconds());
}

#[test]
fn fit_says_by_how_much() {
    let fits = step("llama-3-8b", "dgx-h100:1", "tp8.sp", batch(4096, 8));
    assert!(matches!(fits.fit, Fit::Fits { spare } if spare.get() > 40e9));
    let over = step("llama-3.1-405b", "dgx-h100:1", "tp8.sp", batch(4096, 8));
    assert!(matches!(over.fit, Fit::DoesNotFit { over } if over.get() > 200e9));
    assert!(!over.fit.is_possible());
}

#[test]
fn impossible_questions_are_refused_with_a_reason() {
    let model = builtin("llama-3-8b").unwrap();
    let ask = |layout: &str, workload: Workload| {
        predict(&model, &machine("dgx-h100:1"), &layout.parse().unwrap(), &workload, &Constants::builtin())
            .unwrap_err()
    };
    let empty = ask("dp8", batch(4096, 0));
    assert_eq!(empty.page().code, "plan/empty-step");
    let small = ask("dp8", batch(4096, 4));
    assert_eq!(
        small.to_string(),
        "the layout dp8 cannot be priced: a batch of 4 sequences has less than one for each of 8"
    );
    assert!(matches!(ask("pp64", batch(4096, 64)), PerfError::ImpossibleLayout { .. }));
    assert!(PAGES.iter().all(|page| page.code.starts_with("plan/")));
}

#[test]
fn constants_survive_their_file_and_refuse_nonsense() {
    let constants = Constants::builtin();
    let text = constants.to_toml();
    assert_eq!(Constants::read(Source::new("a.toml", &text), Constants::priors()).unwrap(), constants);
    let overlay = Constants::read(Source::new("b.toml", "gemm_hopper = 0.7\n"), constants).unwrap();
    assert_eq!(overlay, Constants { gemm_hopper: 0.7, ..constants });
    assert!(Constants::read(Source::new("c.toml", "gemm_hoper = 0.7\n"), constants).is_err());
    assert!(Constants::read(Source::new("d.toml", "gemm_hopper = -1.0\n"), constants).is_err());
}

#[test]
fn at_most_forty_five_constants_are_fitted_to_training_rows() {
    let fitted = Constants::FIELDS.iter().filter(|field| field.origin == Origin::Training).count();
    assert!(fitted <= 45, "{fitted}");
}
