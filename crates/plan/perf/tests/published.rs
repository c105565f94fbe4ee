//! Setups that large publications trained with: their layouts are legal, fit, and run at about the speed reported.
#![allow(clippy::unwrap_used, reason = "tests")]

use bedplate_catalog::Catalog;
use bedplate_layout::{Batch, Layout};
use bedplate_perf::{
    Constants, ExpertOverlap, Fp8Scaling, Hardware, PredictedStep, Stack, Workload, predict,
};
use bedplate_topology::Cluster;
use bedplate_transformer::builtin;

/// One published run.
struct Setup {
    model: &'static str,
    cluster: &'static str,
    layout: &'static str,
    sequence: u64,
    batch: u64,
    /// Bounds of tokens per second and GPU, as far as the publication gives them.
    tokens: (f64, f64),
}

const PUBLISHED: [Setup; 5] = [
    // Llama 3 (arXiv:2407.21783, table 4): 43 % and 41 % of 989 TFLOP/s; no recomputation; the first and the last stage have a
    // layer less; gradients are split over data ranks. The number of interleaved chunks is not given; with 32 micro-batches
    // the first row is priced without.
    Setup {
        model: "llama-3.1-405b",
        cluster: "dgx-h100:1024",
        layout: "dp64.tp8.sp.pp16.zero2",
        sequence: 8192,
        batch: 2048,
        tokens: (110.0, 185.0),
    },
    Setup {
        model: "llama-3.1-405b",
        cluster: "dgx-h100:2048",
        layout: "dp128.tp8.sp.pp16.vpp4.zero2",
        sequence: 8192,
        batch: 2048,
        tokens: (120.0, 175.0),
    },
    // DeepSeek-V3 (arXiv:2412.19437): 180,000 GPU hours for a trillion tokens on 2,048 H800; norms and the projections of
    // latent attention are recomputed, inputs of activation functions are kept in fp8.
    Setup {
        model: "deepseek-v3",
        cluster: "dgx-h100:256",
        layout: "dp128.pp16.dualpipe.ep64.zero1.recompute-selective.fp8",
        sequence: 4096,
        batch: 15360,
        tokens: (1000.0, 2100.0),
    },
    // Megatron-Bridge 25.09, DeepSeek-V3 on 1,024 H100.
    Setup {
        model: "deepseek-v3",
        cluster: "dgx-h100:128",
        layout: "dp64.tp2.sp.pp8.vpp4.ep64.zero1.recompute-selective.fp8",
        sequence: 4096,
        batch: 8192,
        tokens: (1000.0, 1600.0),
    },
    // Megatron-Bridge, Llama 3.1 405B on 512 H100.
    Setup {
        model: "llama-3.1-405b",
        cluster: "dgx-h100:128",
        layout: "dp8.tp8.sp.cp2.pp8.vpp8.zero1.fp8",
        sequence: 8192,
        batch: 512,
        tokens: (230.0, 360.0),
    },
];

fn priced(setup: &Setup) -> (Vec<String>, PredictedStep) {
    let catalog = Catalog::builtin();
    let cluster = Cluster::from_spec(setup.cluster, &catalog).unwrap();
    let hardware = Hardware::from_cluster(&cluster, &catalog).unwrap();
    let (model, layout) = (builtin(setup.model).unwrap(), setup.layout.parse::<Layout>().unwrap());
    let batch = Batch { sequence: setup.sequence, global_batch: setup.batch };
    let refusals = layout.refusals(&model, Some(hardware.gpus.into()), Some(batch));
    let workload = Workload {
        sequence: setup.sequence,
        global_batch: setup.batch,
        stack: Stack::MegatronBefore2606,
        expert_overlap: ExpertOverlap::Serial,
        scaling: Fp8Scaling::PerTensor,
        ..Workload::default()
    };
    let step = predict(&model, &hardware, &layout, &workload, &Constants::builtin()).unwrap();
    (refusals.iter().map(ToString::to_string).collect(), step)
}

#[test]
fn published_layouts_are_legal_and_fit() {
    for setup in &PUBLISHED {
        let (refusals, step) = priced(setup);
        assert!(refusals.is_empty(), "{} {}: {refusals:?}", setup.model, setup.layout);
        assert!(step.fit.is_possible(), "{} {}: {:?}", setup.model, setup.layout, step.memory);
    }
}

#[test]
fn published_layouts_run_at_about_the_published_speed() {
    for setup in &PUBLISHED {
        let (_, step) = priced(setup);
        let tokens = step.tokens_per_second_per_gpu();
        let (least, most) = setup.tokens;
        assert!((least..=most).contains(&tokens), "{} {}: {tokens}", setup.model, setup.layout);
    }
}
