//! The search against the obvious: every number of every replica, each replayed.

use bedplate_deploy::{DeployOptions, Plan, Pooling, ReplayStage, ServingLayout, Workers, fit, search};
use bedplate_perf::serving::{Parallel, WeightFormat};
use bedplate_transformer::Precision;

use crate::support::{Question, question};

/// Fewest GPUs of one pool that hold, over all degrees, numbers of replicas and a ladder of sequence slots.
fn fewest_gpus(question: &Question) -> Option<u32> {
    let need = question.need();
    let mut best: Option<u32> = None;
    for tensor in [1, 2, 4, 8] {
        for pipeline in [1, 2, 4, 8] {
            let layout = ServingLayout {
                parallel: Parallel { pipeline, ..Parallel::tensor(tensor) },
                weights: WeightFormat::Fp8,
                kv: Precision::Bf16,
                chunk: 8192,
            };
            if fit(&need, &question.supply, &layout).is_err() {
                continue;
            }
            for replicas in 1..=question.supply.gpus() / layout.gpus() {
                let gpus = replicas * layout.gpus();
                if best.is_none_or(|best| gpus < best) && holds(question, layout, replicas) {
                    best = Some(gpus);
                }
            }
        }
    }
    best
}

fn holds(question: &Question, layout: ServingLayout, replicas: u32) -> bool {
    let need = question.need();
    let share = need.options.share;
    [4, 8, 16, 32, 64, 128, 256].into_iter().any(|max_seqs| {
        let plan = Plan::Aggregated(Workers { layout, replicas, max_seqs });
        let stage = ReplayStage::new(&need, &question.supply, plan).expect("the layout is legal");
        let seeds = [need.options.seed, need.options.seed + 1];
        seeds.into_iter().all(|seed| stage.play(5.0, seed).is_ok_and(|shown| shown.holds(share)))
    })
}

#[test]
fn no_plan_of_one_pool_uses_fewer_gpus_than_the_one_found() {
    let cases = [
        ("llama-3.1-8b", (1000, 200, 5.0), (300.0, 12.0)),
        ("llama-3.1-8b", (3000, 300, 25.0), (400.0, 12.0)),
        ("llama-3.3-70b", (1000, 200, 3.0), (500.0, 20.0)),
    ];
    for (model, load, limits) in cases {
        let mut question = question(model, "p5en.48xlarge:1", load, limits);
        question.options = DeployOptions {
            weights: vec![WeightFormat::Fp8],
            kv: vec![Precision::Bf16],
            chunks: vec![8192],
            pooling: Pooling::Aggregated,
            ..DeployOptions::default()
        };
        let found = search(&question.need(), question.supplies()).map(|answer| answer.best.plan.gpus()).ok();
        let fewest = fewest_gpus(&question);
        assert!(
            found.is_some() == fewest.is_some() && found <= fewest,
            "{model}: {found:?} against {fewest:?}"
        );
    }
}
