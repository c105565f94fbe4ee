//! Replicas whose step times the performance model predicts: a model, GPUs and how it is split.

use bedplate_catalog::{Catalog, Purchase};
use bedplate_deploy::{DeployOptions, Need, Numbers, OfferedLoad, Pattern, Plan, RefusedReplica, Supply};
use bedplate_perf::serving::{Engine, ServedModel, ServingConstants};
use bedplate_replay::requests::{Objectives, Traffic};
use bedplate_terminal::{CliError, choice};

use crate::clusters;
use crate::served::{ENGINES, load_model};

#[derive(clap::Args)]
pub(super) struct Modelled {
    /// Predict steps of this model instead of adding up --step-time
    #[arg(long, value_name = "NAME|FILE", requires = "cluster", conflicts_with = "step_time")]
    pub(super) model: Option<String>,
    /// The machines whose GPUs a replica gets: INSTANCE:COUNT or a cluster file
    #[arg(long, value_name = "CLUSTER", requires = "model")]
    cluster: Option<String>,
    /// How a replica is split and stored, such as `tp4.fp8.kv-fp8`; `tp4+tp2` for the two pools of --disaggregate
    #[arg(long, value_name = "LAYOUT", default_value = "tp1.bf16", requires = "model")]
    layout: String,
    /// The engine whose scheduling and overheads are predicted
    #[arg(long, value_parser = choice(&ENGINES), default_value = "vllm", requires = "model")]
    engine: Engine,
}

/// The loaded inputs of `--model`.
pub(super) struct LoadedReplicas {
    model: ServedModel,
    supply: Supply,
    constants: ServingConstants,
    pattern: Pattern,
    engine: Engine,
}

impl Modelled {
    pub(super) fn load(&self, name: &str, catalog: &Catalog) -> Result<LoadedReplicas, CliError> {
        let spec = self.cluster.as_deref().expect("clap requires a cluster with a model");
        let cluster = clusters::load(spec, catalog)?;
        Ok(LoadedReplicas {
            model: load_model(name)?,
            supply: Supply::of_cluster(&cluster, catalog, Purchase::OnDemand, None)?,
            constants: ServingConstants::builtin(),
            pattern: self.layout.parse()?,
            engine: self.engine,
        })
    }
}

impl LoadedReplicas {
    pub(super) fn supply(&self) -> &Supply {
        &self.supply
    }

    pub(super) fn need(&self, traffic: &Traffic, chunk: u32, seed: u64) -> Need<'_> {
        Need {
            model: &self.model,
            load: OfferedLoad::usual_of(traffic),
            traced: None,
            objectives: Objectives::default(),
            constants: &self.constants,
            site: None,
            errors: None,
            alternatives: &[],
            options: DeployOptions {
                engine: self.engine,
                chunks: vec![chunk],
                seed,
                ..DeployOptions::default()
            },
        }
    }

    pub(super) fn plan(&self, need: &Need<'_>, numbers: Numbers) -> Result<Plan, RefusedReplica> {
        Plan::requested(need, &self.supply, &self.pattern, numbers)
    }
}
