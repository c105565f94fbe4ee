//! Single steps with a known result, and inputs that are refused.
#![allow(clippy::unwrap_used, reason = "tests")]

use bedplate_breakdown::Part;
use bedplate_catalog::Catalog;
use bedplate_diag::{Diagnostic, Source};
use bedplate_layout::Layout;
use bedplate_perf::{
    Constants, ExpertRouting, Fit, Hardware, Network, Offload, Origin, PAGES, PerfError, PredictedStep,
    Stack, Task, Workload, predict,
};
use bedplate_topology::{Cluster, GpuId, Health, NodeId};
use bedplate_transformer::builtin;

fn machine(spec: &str) -> Hardware {
    let catalog = Catalog::builtin();
    Hardware::from_cluster(&Cluster::from_spec(spec, &catalog).unwrap(), &catalog).unwrap()
}

fn step(model: &str, spec: &str, layout: &str, workload: Workload) -> PredictedStep {
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
        // 256 of 288 GPUs: sixteen trays of each rack.
        let hardware = Hardware { domain, ..machine("u-p6e-gb200x72:4") };
        let layout = "dp64.pp4.vpp4.ep64.zero1.fp8".parse().unwrap();
        let model = builtin("deepseek-v3").unwrap();
        predict(&model, &hardware, &layout, &batch(4096, 4096), &Constants::builtin())
            .unwrap()
            .tokens_per_second_per_gpu()
    };
    assert!(rate(64) > 1.3 * rate(8), "{} against {}", rate(64), rate(8));
    assert!(rate(72) < rate(64), "groups of 64 laid over racks of 72 cross their borders");
}

#[test]
fn groups_that_do_not_divide_a_domain_cross_its_border() {
    let out = |layout: &str, spec: &str| {
        let step = step("gpt3-175b", spec, layout, batch(2048, 96));
        step.time[Part::ScaleOut].exposed.get() / step.seconds().get()
    };
    assert_eq!(out("tp3.sp", "dgx-h100:1"), 0.0);
    assert!(out("dp2.tp3.sp", "dgx-h100:2") > 5.0 * out("dp2.tp4.sp", "dgx-h100:2"));
    assert!(out("dp9.tp16.sp", "u-p6e-gb200x72:2") > 2.0 * out("dp6.tp24.sp", "u-p6e-gb200x72:2"));
}

#[test]
fn stages_in_one_node_hop_inside_and_stages_over_nodes_do_not() {
    let out = |spec: &str, layout: &str| {
        let out = step("llama-3-8b", spec, layout, batch(4096, 32)).time[Part::ScaleOut];
        (out.exposed + out.hidden).get()
    };
    assert_eq!(out("dgx-h100:1", "pp2.tp4.sp"), 0.0);
    assert!(out("dgx-h100:2", "pp4.tp4.sp") > 0.0);
}

#[test]
fn sharded_gradients_travel_with_every_micro_batch() {
    let of = |layout: &str, sequences: u64| {
        step("llama-3-8b", "dgx-h100:4", layout, batch(4096, sequences)).seconds().get()
    };
    assert_eq!(of("dp32.zero2", 32), of("dp32.zero1", 32));
    assert!(of("dp32.zero2", 256) > of("dp32.zero1", 256));
}

#[test]
fn untied_heads_are_reduced_and_updated_and_frozen_tables_are_not() {
    let part = |model: &str, task, part: Part| {
        let span = step(model, "dgx-h100:4", "dp32", Workload { task, ..batch(4096, 32) }).time[part];
        (span.exposed + span.hidden).get()
    };
    let constants = Constants::builtin();
    let tables = 2.0 * 128_256.0 * 4096.0;
    let all = part("llama-3-8b", Task::Pretrain, Part::Optimizer) - constants.step_host;
    let stream = (8.03e9) * 22.0 / (3.35e12 * constants.memory_reach);
    assert!((all / stream - 1.0).abs() < 0.01, "{all} against {stream}");
    let lora = part("llama-3-8b", Task::Lora { rank: 16 }, Part::Optimizer) - constants.step_host;
    assert!(lora < 0.1 * all * tables / 8.03e9, "{lora}");
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
    assert!(rate(ExpertRouting::Skewed(1.5)) < rate(ExpertRouting::Balanced));
    // The busiest of sixteen ranks has sixteen times the mean at most; a single one has the mean.
    assert_eq!(rate(ExpertRouting::Skewed(1e9)), rate(ExpertRouting::Skewed(16.0)));
    let alone = |routing| {
        let workload = Workload { routing, ..batch(4096, 1024) };
        step("qwen3-30b-a3b", "dgx-h100:2", "dp16.zero1", workload).seconds()
    };
    assert_eq!(alone(ExpertRouting::Skewed(4.0)), alone(ExpertRouting::Balanced));
}

#[test]
fn formats_that_a_chip_lacks_are_refused_with_those_it_has() {
    let ask = |spec: &str, layout: &str| {
        let model = builtin("llama-3-8b").unwrap();
        predict(&model, &machine(spec), &layout.parse().unwrap(), &batch(4096, 64), &Constants::builtin())
    };
    let refusal = |spec: &str, layout: &str| ask(spec, layout).unwrap_err().to_string();
    let text = "a step in fp8 cannot be priced on these accelerators, only in bf16, fp16";
    assert_eq!(refusal("p4d.24xlarge:1", "dp8.fp8"), text);
    assert!(refusal("dgx-h100:1", "dp8.fp4").ends_with("only in bf16, fp16, fp8"));
    assert!(refusal("dgx-h100:1", "dp8.fp32").starts_with("a step in fp32"));
    assert!(ask("p6-b200.48xlarge:1", "dp8.fp4").is_ok());
}

#[test]
fn mixed_clusters_have_the_slowest_of_every_figure_in_any_order() {
    let (one, other) = (machine("p4d.24xlarge:2+p5.48xlarge:2"), machine("p5.48xlarge:2+p4d.24xlarge:2"));
    assert_eq!(one, other);
    let slow = machine("p4d.24xlarge:4");
    assert_eq!(Hardware { multiprocessors: slow.multiprocessors, ..one }, slow);
    assert_eq!(one.network, Network::EfaV1);
}

#[test]
fn only_whole_nodes_that_take_work_count() {
    let catalog = Catalog::builtin();
    let mut cluster = Cluster::from_spec("p5.48xlarge:4", &catalog).unwrap();
    cluster.set_failed(GpuId(3), true);
    cluster.set_health(NodeId(2), Health::Draining, None);
    let hardware = Hardware::from_cluster(&cluster, &catalog).unwrap();
    assert_eq!((hardware.gpus, hardware.domain, Hardware::left_out_of(&cluster)), (16, 8, 16));
    for node in cluster.nodes() {
        cluster.set_health(node, Health::Down, None);
    }
    let none = Hardware::from_cluster(&cluster, &catalog).unwrap_err();
    assert_eq!(none.page().code, "plan/no-usable-gpus");
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
    assert!(!over.fit.is_possible() && !over.is_near_miss() && !fits.is_near_miss());
    let needed = fits.memory.total().get();
    let in_memory = |memory: f64| {
        let hardware = Hardware { memory, ..machine("dgx-h100:1") };
        let (model, layout) = (builtin("llama-3-8b").unwrap(), "tp8.sp".parse().unwrap());
        predict(&model, &hardware, &layout, &batch(4096, 8), &Constants::builtin()).unwrap()
    };
    assert!(matches!(in_memory(needed * 1.02).fit, Fit::Tight { .. }));
    assert!(in_memory(needed * 0.95).is_near_miss() && !in_memory(needed * 0.95).fit.is_possible());
    assert!(!in_memory(needed * 0.85).is_near_miss());
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
        "the layout dp8 cannot be priced: a batch of 4 sequences has fewer than one for each of 8"
    );
    for peak in [0.5, f64::NAN, f64::INFINITY, -2.0] {
        let skewed = Workload { routing: ExpertRouting::Skewed(peak), ..batch(4096, 64) };
        assert_eq!(ask("dp8", skewed).page().code, "plan/bad-routing");
    }
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
    for line in
        ["gemm_hopper = -1.0", "gemm_hopper = 0.0", "memory_reach = 7.0", "step_host = 1e9", "cast = nan"]
    {
        assert!(Constants::read(Source::new("d.toml", line), constants).is_err(), "{line}");
    }
    let older = Constants::read(Source::new("e.toml", "efa_alltoall = 0.5\n"), constants).unwrap_err();
    assert!(older.to_string().contains("bytes per second"), "{older}");
}

#[test]
fn at_most_forty_five_constants_are_fitted_to_training_rows() {
    let fitted = Constants::FIELDS.iter().filter(|field| field.origin == Origin::Training).count();
    assert!(fitted <= 45, "{fitted}");
}

#[test]
fn racks_can_be_used_in_part() {
    let rack = machine("u-p6e-gb200x72:4");
    let part = rack.with_idle_gpus().unwrap();
    assert_eq!((part.gpus, part.domain), (256, 64));
    assert_eq!(machine("p5.48xlarge:4").with_idle_gpus(), None);
}
