//! Questions in one line.

use bedplate_catalog::{Catalog, Purchase};
use bedplate_deploy::{DeployOptions, Need, OfferedLoad, Supply};
use bedplate_perf::serving::{ServedModel, ServingConstants};
use bedplate_replay::requests::{Objectives, TracedLoad, picoseconds};
use bedplate_topology::Cluster;

/// A question with what it borrows.
pub(crate) struct Question {
    pub(crate) model: ServedModel,
    pub(crate) supply: Supply,
    pub(crate) constants: ServingConstants,
    pub(crate) load: OfferedLoad,
    pub(crate) traced: Option<TracedLoad>,
    pub(crate) objectives: Objectives,
    pub(crate) options: DeployOptions,
}

/// GPUs that are paid for singly, so that the numbers of GPUs of plans can be compared.
pub(crate) fn supply(cluster: &str) -> Supply {
    Supply { gpus_per_unit: 1, ..rented(cluster) }
}

/// GPUs that are paid for as whole machines.
pub(crate) fn rented(cluster: &str) -> Supply {
    let catalog = Catalog::builtin();
    let cluster = Cluster::from_spec(cluster, &catalog).expect("the cluster is in the catalog");
    Supply::of_cluster(&cluster, &catalog, Purchase::OnDemand, None).expect("its GPUs are known")
}

/// `model on cluster`, tokens in and out, rate, and limits in milliseconds; 0 is no limit.
pub(crate) fn question(
    model: &str,
    cluster: &str,
    (input, output, per_second): (u32, u32, f64),
    (ttft, itl): (f64, f64),
) -> Question {
    let limit = |ms: f64| (ms > 0.0).then(|| picoseconds(ms / 1e3));
    Question {
        model: ServedModel::named(model).expect("the model is built in"),
        supply: supply(cluster),
        constants: ServingConstants::builtin(),
        load: OfferedLoad::new(input, output, per_second),
        traced: None,
        objectives: Objectives { ttft: limit(ttft), itl: limit(itl), end_to_end: None },
        options: DeployOptions::default(),
    }
}

impl Question {
    pub(crate) fn need(&self) -> Need<'_> {
        Need {
            model: &self.model,
            load: self.load,
            traced: self.traced.as_ref(),
            objectives: self.objectives,
            constants: &self.constants,
            site: None,
            errors: None,
            alternatives: &[],
            options: self.options.clone(),
        }
    }

    pub(crate) fn supplies(&self) -> &[Supply] {
        std::slice::from_ref(&self.supply)
    }
}
