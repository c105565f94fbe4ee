//! Setups by short names, shared by the tests of this crate.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]
#![allow(unreachable_pub, reason = "each test file is a crate of its own and uses some of this")]

use bedplate_catalog::Catalog;
use bedplate_perf::{Constants, Hardware, Workload};
use bedplate_search::Setup;
use bedplate_topology::Cluster;
use bedplate_transformer::{Transformer, builtin};

/// What a [`Setup`] borrows.
pub struct Bench {
    pub model: Transformer,
    pub constants: Constants,
    pub hardware: Hardware,
    pub workload: Workload,
}

/// `bench("llama-3-8b", "p5.48xlarge:2", 8192, 64)`: model, cluster, tokens per sequence, sequences per step.
pub fn bench(model: &str, cluster: &str, sequence: u64, global_batch: u64) -> Bench {
    let catalog = Catalog::builtin();
    let cluster = Cluster::from_spec(cluster, &catalog).unwrap();
    Bench {
        model: builtin(model).unwrap(),
        constants: Constants::builtin(),
        hardware: Hardware::from_cluster(&cluster, &catalog).unwrap(),
        workload: Workload { sequence, global_batch, ..Workload::default() },
    }
}

impl Bench {
    pub fn setup(&self) -> Setup<'_> {
        Setup {
            model: &self.model,
            hardware: self.hardware,
            workload: self.workload,
            constants: &self.constants,
        }
    }
}

/// A seeded sampler: Knuth's linear congruential generator, upper bits.
#[allow(dead_code, reason = "not every test file draws")]
pub fn draws(seed: u64, below: u64) -> impl Iterator<Item = u64> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) % below
    })
}
