//! Layouts priced per second and core, against calculon's published rate, and equality with `predict`.
//!
//! Run with `cargo bench -p bedplate-search`. Calculon (github calculon-ai/calculon@caa4b11) was measured at 77
//! to 146 layouts per CPU second and core; see the crate's README.

#![expect(clippy::print_stdout, reason = "a bench prints its result")]

use std::time::Instant;

use bedplate_catalog::Catalog;
use bedplate_layout::ComputePrecision;
use bedplate_perf::{Constants, Hardware, Workload};
use bedplate_search::{Axes, Setup, Space};
use bedplate_topology::Cluster;
use bedplate_transformer::builtin;

/// The faster end of calculon's measured range.
const CALCULON: f64 = 150.0;
const RUNS: usize = 5;

fn main() {
    println!(
        "{:<36} {:>11} {:>9} {:>9} {:>9} {:>12} {:>9}",
        "space", "layouts", "fit", "1 thread", "2 threads", "layouts/s", "calculon"
    );
    let both = vec![ComputePrecision::Bf16, ComputePrecision::Fp8];
    let bf16 = vec![ComputePrecision::Bf16];
    let complete = |precision: &[ComputePrecision]| Axes { precision: precision.to_vec(), ..Axes::default() };
    report("llama-3.1-405b", "p5.48xlarge:2048", 8192, 2048, "complete", &complete(&bf16));
    report("llama-3.1-405b", "p5.48xlarge:2048", 8192, 2048, "bf16, fp8", &complete(&both));
    report("llama-3-70b", "p5.48xlarge:128", 8192, 1024, "complete", &complete(&bf16));
    report("gpt3-175b", "p4de.24xlarge:64", 2048, 1536, "complete", &complete(&bf16));
    report("mixtral-8x7b", "p5.48xlarge:32", 4096, 1024, "complete", &complete(&bf16));
    report("deepseek-v3", "p5.48xlarge:256", 4096, 15360, "practical", &Axes::practical(8));
    report("deepseek-v3", "p5.48xlarge:256", 4096, 15360, "complete", &complete(&bf16));
}

fn report(model: &str, cluster: &str, sequence: u64, global_batch: u64, title: &str, axes: &Axes) {
    let catalog = Catalog::builtin();
    let cluster = Cluster::from_spec(cluster, &catalog).expect("the cluster is in the catalog");
    let model = builtin(model).expect("the model is built in");
    let constants = Constants::builtin();
    let setup = Setup {
        model: &model,
        hardware: Hardware::from_cluster(&cluster, &catalog).expect("the catalog has its figures"),
        workload: Workload { sequence, global_batch, ..Workload::default() },
        constants: &constants,
    };
    let priced = |threads: usize| {
        let began = Instant::now();
        let space = Space::new(&setup, axes).expect("there are GPUs");
        let slices = space.slices(threads);
        let priced = std::thread::scope(|scope| {
            let workers: Vec<_> =
                slices.into_iter().map(|slice| scope.spawn(|| space.price(slice, 10))).collect();
            let done = workers.into_iter().map(|worker| worker.join().expect("pricing does not panic"));
            done.reduce(bedplate_search::Priced::merge)
        });
        (began.elapsed().as_secs_f64(), priced.map(|priced| priced.counts).unwrap_or_default())
    };
    let fastest =
        |threads| (0..RUNS).map(|_| priced(threads)).min_by(|a, b| a.0.total_cmp(&b.0)).expect("runs");
    let ((alone, counts), (together, _)) = (fastest(1), fastest(2));
    let rate = counts.priced as f64 / alone;
    println!(
        "{:<36} {:>11} {:>9} {:>8.3}s {:>8.3}s {:>12.0} {:>8.0}x",
        format!("{} @ {}, {title}", model.name, setup.gpus()),
        counts.priced,
        counts.fits + counts.tight,
        alone,
        together,
        rate,
        rate / CALCULON,
    );
    check_against_predict(&setup, axes);
}

/// A thousand random layouts priced from tables equal `predict`, bit for bit.
fn check_against_predict(setup: &Setup<'_>, axes: &Axes) {
    let space = Space::new(setup, axes).expect("there are GPUs");
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..1000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let layout = space.layout((state >> 11) % space.len()).expect("the index lies in the space");
        let step = setup.predict(&layout).expect("the layout is legal");
        let problem = space.problem();
        let costs = problem.layer_costs(bedplate_perf::LayerKey::of(&layout));
        let grid = bedplate_perf::Grid::of(&layout);
        assert_eq!(problem.memory(&costs, &grid), step.memory, "{layout}");
        assert_eq!(problem.seconds(&costs, &grid), step.seconds().get(), "{layout}");
    }
}
