//! Layouts priced per second on one core, as a ratio to a named limit.
//!
//! The limit: the same core doing nothing but a hundred dependent multiplications and additions per layout.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an example prints and may stop")]
use std::hint::black_box;
use std::time::Instant;

use bedplate_catalog::Catalog;
use bedplate_layout::{Ends, Layout, Schedule, Sharding};
use bedplate_perf::{Constants, Grid, Hardware, LayerKey, Problem, Workload};
use bedplate_topology::Cluster;
use bedplate_transformer::builtin;

fn main() {
    let catalog = Catalog::builtin();
    let cluster = Cluster::from_spec("p5.48xlarge:2048", &catalog).unwrap();
    let hardware = Hardware::from_cluster(&cluster, &catalog).unwrap();
    let workload = Workload { sequence: 8192, global_batch: 2048, ..Workload::default() };
    let model = builtin("llama-3.1-405b").unwrap();
    let problem = Problem::new(&model, &hardware, &workload, &Constants::builtin()).unwrap();

    let layout: Layout = "tp8.sp".parse().unwrap();
    let costs = problem.layer_costs(LayerKey::of(&layout));
    let grids: Vec<Grid> = (1..=126u32)
        .flat_map(|pipeline| (0..11).map(move |power| (pipeline, 1u32 << power)))
        .map(|(pipeline, data)| Grid {
            pipeline,
            virtual_stages: 1,
            ends: Ends::default(),
            schedule: Schedule::default(),
            data,
            sharding: Sharding::Optimizer,
        })
        .collect();
    let priced = per_second(grids.len(), || {
        for grid in &grids {
            black_box(problem.combine(black_box(&costs), grid));
        }
    });
    let limit = per_second(grids.len(), || {
        for grid in &grids {
            let mut value = f64::from(grid.pipeline);
            for _ in 0..100 {
                value = value * 0.999 + 0.001;
            }
            black_box(value);
        }
    });
    let keys = per_second(1, || {
        black_box(problem.layer_costs(black_box(LayerKey::of(&layout))));
    });
    println!("combine: {priced:.0} layouts/s, {:.2} of the limit of {limit:.0}/s", priced / limit);
    println!("layer_costs: {keys:.0} entries/s");
    println!("against the target of 1,000,000 layouts/s: {:.1} times", priced / 1e6);
}

/// Calls per second of the best of twenty rounds, so that other work on the machine counts little.
fn per_second(calls: usize, mut work: impl FnMut()) -> f64 {
    let round = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        let repeats = 200;
        for _ in 0..repeats {
            work();
        }
        (calls * repeats) as f64 / start.elapsed().as_secs_f64()
    };
    (0..20).map(|_| round(&mut work)).fold(0.0, f64::max)
}
