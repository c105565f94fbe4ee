//! Replicas whose step times the performance model predicts: a model, GPUs and how it is split.

use bedplate_catalog::{Catalog, Purchase};
use bedplate_deploy::{
    LayoutPattern, Load, Need, Options, Pattern, Plan, ServingLayoutRefusal, Supply, Workers, fit,
};
use bedplate_diag::{Class, Diagnostic, Page};
use bedplate_perf::serving::{Engine, ServedModel, ServingConstants};
use bedplate_replay::requests::{Objectives, Planned, Traffic};
use bedplate_terminal::{CliError, choice};

use crate::commands::cluster;
use crate::commands::plan::served::{ENGINES, load_model};

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

#[derive(Debug, thiserror::Error)]
#[error("no replica can be split as {layout}: {refusal}")]
struct RefusedReplica {
    layout: String,
    refusal: ServingLayoutRefusal,
}

pub(crate) static REFUSED_REPLICA: Page = Page {
    code: "replay/refused-replica",
    class: Class::User,
    meaning: "The layout breaks a rule of the model or the chip, or the weights and the KV of one request do not fit on the GPUs of a replica.",
    remedy: "give more tensor ranks or narrower formats in `--layout`; `bedplate plan serve` finds those that work",
};

impl Diagnostic for RefusedReplica {
    fn page(&self) -> &'static Page {
        &REFUSED_REPLICA
    }
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
        let cluster = cluster::load(spec, catalog)?;
        Ok(LoadedReplicas {
            model: load_model(name)?,
            supply: Supply::of_cluster(&cluster, catalog, Purchase::OnDemand, None)?,
            constants: ServingConstants::builtin(),
            pattern: self.layout.parse()?,
            engine: self.engine,
        })
    }
}

/// How many replicas, and their sequence slots.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    pub(super) replicas: u32,
    pub(super) split: Option<(u32, u32)>,
    pub(super) max_seqs: u32,
    pub(super) chunk: u32,
}

impl LoadedReplicas {
    pub(super) fn supply(&self) -> &Supply {
        &self.supply
    }

    pub(super) fn need(&self, traffic: &Traffic, chunk: u32, seed: u64) -> Need<'_> {
        Need {
            model: &self.model,
            load: usual_load(traffic),
            traced: None,
            objectives: Objectives::default(),
            constants: &self.constants,
            site: None,
            alternatives: &[],
            options: Options { engine: self.engine, chunks: vec![chunk], seed, ..Options::default() },
        }
    }

    /// The requested replicas, if each of them is possible.
    pub(super) fn plan(&self, need: &Need<'_>, numbers: Numbers) -> Result<Plan, CliError> {
        let workers = |pattern: &LayoutPattern, replicas: u32| {
            let layout =
                LayoutPattern { chunk: pattern.chunk.or(Some(numbers.chunk)), ..*pattern }.completed(need);
            let refused = |refusal| RefusedReplica { layout: layout.to_string(), refusal };
            fit(need, &self.supply, &layout).map_err(refused)?;
            Ok::<_, CliError>(Workers { layout, replicas, max_seqs: numbers.max_seqs })
        };
        let Pattern { first, second } = &self.pattern;
        Ok(match numbers.split {
            None => Plan::Aggregated(workers(first, numbers.replicas)?),
            Some((prefill, decode)) => Plan::Disaggregated {
                prefill: workers(first, prefill)?,
                decode: workers(second.as_ref().unwrap_or(first), decode)?,
            },
        })
    }
}

/// Mean lengths and rate of a traffic; they determine the bend of windowed attention and the usual step.
fn usual_load(traffic: &Traffic) -> Load {
    match traffic {
        Traffic::Generated(load) => Load::new(load.prompt.mean().max(1), load.output.mean().max(1), 1.0),
        Traffic::Trace(requests) => {
            let count = requests.len().max(1) as u64;
            let mean = |tokens: fn(&Planned) -> u32| {
                let sum: u64 = requests.iter().map(|planned| u64::from(tokens(planned))).sum();
                (sum / count).max(1) as u32
            };
            Load::new(mean(|planned| planned.prompt_tokens), mean(|planned| planned.output_tokens), 1.0)
        }
    }
}
