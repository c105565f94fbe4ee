//! Laws of the model, checked on random layouts and machines.
#![allow(clippy::unwrap_used, reason = "tests")]

use bedplate_breakdown::Part;
use bedplate_catalog::Catalog;
use bedplate_layout::{ComputePrecision, Ends, Layout, Recompute, Schedule, Sharding};
use bedplate_perf::{
    Constants, Dispatcher, ExpertOverlap, Grid, Hardware, LayerKey, Problem, Stack, Workload, predict,
};
use bedplate_topology::Cluster;
use bedplate_transformer::{AttentionFlops, FlopsConvention, Transformer, builtin};
use bedplate_units::Bytes;
use proptest::prelude::*;

fn hardware(spec: &str) -> Hardware {
    let catalog = Catalog::builtin();
    Hardware::from_cluster(&Cluster::from_spec(spec, &catalog).unwrap(), &catalog).unwrap()
}

fn models() -> impl Strategy<Value = Transformer> {
    prop::sample::select(vec![
        "llama-3-8b",
        "llama-3-70b",
        "gpt3-175b",
        "qwen3-30b-a3b",
        "deepseek-v3",
        "gpt-oss-120b",
    ])
    .prop_map(|name| builtin(name).unwrap())
}

fn machines() -> impl Strategy<Value = Hardware> {
    prop::sample::select(vec!["p4d.24xlarge:8", "p5.48xlarge:16", "p5en.48xlarge:4", "p6-b200.48xlarge:8"])
        .prop_map(hardware)
}

prop_compose! {
    fn layouts()(
        tensor in 0u32..4, context in 0u32..3, pipeline in 0u32..4, data in 0u32..6, expert in 0u32..4,
        micro in 0u32..3, sharding in 0usize..5, recompute in 0usize..3, precision in 0usize..3, sp: bool,
    ) -> Layout {
        let stage = tensor + context + data;
        Layout {
            data: 1 << data,
            tensor: 1 << tensor,
            is_sequence_parallel: sp && tensor > 0,
            context: 1 << context,
            pipeline: 1 << pipeline,
            virtual_stages: if pipeline > 0 { 2 } else { 1 },
            ends: Ends::default(),
            schedule: Schedule::default(),
            expert: 1 << expert.min(stage),
            expert_tensor: 1,
            sharding: [
                Sharding::None,
                Sharding::Optimizer,
                Sharding::Gradients,
                Sharding::Weights,
                Sharding::WeightsWithin(1 << (data + context).min(3)),
            ][sharding],
            micro_batch: 1 << micro,
            recompute: [Recompute::None, Recompute::Selective, Recompute::Full][recompute],
            precision: [ComputePrecision::Bf16, ComputePrecision::Fp8, ComputePrecision::Fp4][precision],
        }
    }
}

fn workloads() -> impl Strategy<Value = Workload> {
    // Our own runtime has its laws in `host.rs`: it trains on hosts.
    let stacks = Stack::ALL.map(|(_, stack)| stack).into_iter().filter(|stack| *stack != Stack::Bedplate);
    (prop::sample::select(stacks.collect::<Vec<_>>()), prop::bool::ANY, prop::bool::ANY).prop_map(
        |(stack, is_deep, is_overlapped)| Workload {
            sequence: 4096,
            global_batch: 1024,
            stack,
            dispatcher: if is_deep { Dispatcher::Deduplicating } else { Dispatcher::AllToAll },
            expert_overlap: if is_overlapped { ExpertOverlap::Overlapped } else { ExpertOverlap::Serial },
            ..Workload::default()
        },
    )
}

/// The layout in a number format that the machine has.
fn legal(machine: &Hardware, layout: Layout) -> Layout {
    let precision = if machine.has(layout.precision) { layout.precision } else { ComputePrecision::Bf16 };
    Layout { precision, ..layout }
}

fn seconds(model: &Transformer, hardware: &Hardware, layout: &Layout, workload: &Workload) -> f64 {
    predict(model, hardware, layout, workload, &Constants::builtin()).unwrap().seconds().get()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn more_bandwidth_never_slows_a_step(
        model in models(), machine in machines(), layout in layouts(), workload in workloads(), factor in 1.0..8.0f64,
    ) {
        let layout = legal(&machine, layout);
        let before = seconds(&model, &machine, &layout, &workload);
        let faster = [
            Hardware { scale_up: machine.scale_up * factor, ..machine },
            Hardware { scale_out: machine.scale_out * factor, ..machine },
            Hardware { memory_bandwidth: machine.memory_bandwidth * factor, ..machine },
            Hardware { peak_bf16: machine.peak_bf16 * factor, peak_fp8: machine.peak_fp8 * factor, peak_fp4: machine.peak_fp4 * factor, ..machine },
        ];
        for hardware in faster {
            prop_assert!(seconds(&model, &hardware, &layout, &workload) <= before * (1.0 + 1e-9));
        }
    }

    #[test]
    fn more_micro_batches_take_longer(
        model in models(), machine in machines(), layout in layouts(), workload in workloads(), times in 2u64..5,
    ) {
        let layout = legal(&machine, layout);
        let more = Workload { global_batch: workload.global_batch * times, ..workload };
        prop_assert!(seconds(&model, &machine, &layout, &more) > seconds(&model, &machine, &layout, &workload));
    }

    #[test]
    fn more_layers_take_longer(
        machine in machines(), layout in layouts(), workload in workloads(), stages in 1u64..6,
    ) {
        let layout = legal(&machine, layout);
        let model = builtin("llama-3-70b").unwrap();
        let (few, many) = (stages * 8, (stages + 1) * 8);
        let few = seconds(&model.truncated(few).unwrap(), &machine, &layout, &workload);
        prop_assert!(seconds(&model.truncated(many).unwrap(), &machine, &layout, &workload) > few);
    }

    #[test]
    fn parts_of_time_and_memory_add_up_and_none_is_negative(
        model in models(), machine in machines(), layout in layouts(), workload in workloads(),
    ) {
        let layout = legal(&machine, layout);
        let step = predict(&model, &machine, &layout, &workload, &Constants::builtin()).unwrap();
        let parts: Bytes = step.memory.parts().into_iter().map(|(_, bytes)| bytes).sum();
        prop_assert_eq!(parts, step.memory.total());
        prop_assert!(step.memory.parts().iter().all(|(_, bytes)| bytes.get() >= 0.0 && bytes.get().is_finite()));
        prop_assert!(step.time.parts().all(|(_, span)| span.exposed.get() >= 0.0 && span.hidden.get() >= 0.0));
        let problem = Problem::new(&model, &machine, &workload, &Constants::builtin()).unwrap();
        let total = problem.seconds(&problem.layer_costs(LayerKey::of(&layout)), &Grid::of(&layout));
        prop_assert_eq!(step.seconds().get(), total);
    }

    #[test]
    fn cached_and_uncached_prices_are_equal_to_the_bit(
        model in models(), machine in machines(), layout in layouts(), workload in workloads(),
    ) {
        let layout = legal(&machine, layout);
        let constants = Constants::builtin();
        let problem = Problem::new(&model, &machine, &workload, &constants).unwrap();
        let costs = problem.layer_costs(LayerKey::of(&layout));
        let cached = problem.combine(&costs, &Grid::of(&layout));
        let uncached = predict(&model, &machine, &layout, &workload, &constants).unwrap();
        prop_assert_eq!(cached, uncached);
    }

    #[test]
    fn whatever_spans_domains_uses_the_network_and_waits_for_tcp(
        model in models(), machine in machines(), layout in layouts(), workload in workloads(),
    ) {
        let layout = legal(&machine, layout);
        prop_assume!(layout.stage_ranks() * layout.pipeline > machine.domain);
        let step = predict(&model, &machine, &layout, &workload, &Constants::builtin()).unwrap();
        let out = step.time[Part::ScaleOut];
        prop_assert!((out.exposed + out.hidden).get() > 0.0);
        prop_assert!(seconds(&model, &machine.without_rdma(), &layout, &workload) > step.seconds().get());
    }

    #[test]
    fn sharding_more_never_needs_more_state(model in models(), machine in machines(), layout in layouts()) {
        let layout = legal(&machine, layout);
        let workload = Workload { global_batch: 1024, ..Workload::default() };
        let state = |sharding| {
            let layout = Layout { sharding, ..layout };
            let memory = predict(&model, &machine, &layout, &workload, &Constants::builtin()).unwrap().memory;
            (memory.weights + memory.gradients + memory.optimizer).get()
        };
        let by_degree = [Sharding::None, Sharding::Optimizer, Sharding::Gradients].map(state);
        prop_assert!(by_degree.is_sorted_by(|a, b| a >= b));
    }
}

/// Constants of a machine without losses.
fn ideal() -> Constants {
    let zero = [
        "reduction_hopper",
        "wave_weight",
        "misalignment",
        "elementwise",
        "cast",
        "logit_bytes",
        "attention_ramp",
        "host_tuned",
        "step_host",
        "straggler",
        "imbalance",
    ];
    let one = ["gemm_hopper", "attention_hopper", "memory_reach"];
    let mut values = Constants::builtin().values();
    for (value, field) in values.iter_mut().zip(Constants::FIELDS) {
        if zero.contains(&field.name) {
            *value = 0.0;
        } else if one.contains(&field.name) {
            *value = 1.0;
        }
    }
    Constants::from_values(&values)
}

#[test]
fn one_gpu_without_losses_runs_at_the_roofline() {
    let machine = hardware("p5.48xlarge:1");
    let model = builtin("llama-3-70b").unwrap();
    let workload = Workload { sequence: 4096, global_batch: 4, ..Workload::default() };
    let layout: Layout = "mb4".parse().unwrap();
    let step = predict(&model, &machine, &layout, &workload, &ideal()).unwrap();
    let convention =
        FlopsConvention { attention: AttentionFlops::CausalHalved, ..FlopsConvention::default() };
    let flops = model.flops_per_token(4096, convention);
    // Fused attention computes its scores once more in the backward pass: 2.5 instead of 2 times.
    // Beside the 512 FLOPs of a score, each pass has an exponential, which takes Hopper as long as 256 FLOPs.
    let all = flops.training().get() + (0.5 + 2.0 * 256.0 / 512.0) * flops.forward.attention_scores.get();
    let roofline = all * workload.tokens() / machine.peak_bf16;
    let ratio = step.time[Part::Compute].exposed.get() / roofline;
    assert!((1.0..1.001).contains(&ratio), "{ratio}");
    for part in [Part::ScaleUp, Part::ScaleOut, Part::Bubble, Part::Memory, Part::Host, Part::Other] {
        assert!(step.time[part].exposed.is_zero(), "{part}");
    }
}
