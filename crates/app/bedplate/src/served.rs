//! What is served on what: arguments shared by questions about serving.

use bedplate_catalog::{Catalog, Purchase};
use bedplate_deploy::Supply;
use bedplate_perf::serving::{Engine, ServedModel, WeightFormat};
use bedplate_terminal::{CliError, choice};
use bedplate_transformer::Precision;

use crate::{clusters, models};

pub(crate) const ENGINES: [(&str, Engine); 4] = [
    ("vllm", Engine::Vllm),
    ("sglang", Engine::Sglang),
    ("trtllm", Engine::TensorRtLlm),
    ("bedplate", Engine::Bedplate),
];

pub(crate) const WEIGHTS: [(&str, WeightFormat); 4] = [
    ("bf16", WeightFormat::Bf16),
    ("fp8", WeightFormat::Fp8),
    ("fp4", WeightFormat::Fp4),
    ("int4", WeightFormat::Int4),
];

pub(crate) const KV: [(&str, Precision); 2] = [("bf16", Precision::Bf16), ("fp8", Precision::Fp8)];

/// How machines are paid for.
#[derive(clap::Args)]
pub(crate) struct Payment {
    /// How the machines are bought
    #[arg(long, value_parser = choice(&Purchase::ALL), default_value = "on-demand")]
    purchase: Purchase,
    /// Only prices of this region
    #[arg(long)]
    region: Option<String>,
}

impl Payment {
    /// The GPUs of each cluster.
    pub(crate) fn supplies(&self, clusters: &[String], catalog: &Catalog) -> Result<Vec<Supply>, CliError> {
        catalog.refuse_unknown_region(self.region.as_deref())?;
        let supply = |name: &String| {
            let cluster = clusters::load(name, catalog)?;
            Ok(Supply::of_cluster(&cluster, catalog, self.purchase, self.region.as_deref())?)
        };
        clusters.iter().map(supply).collect()
    }

    /// The GPUs of every priced machine of the catalog, up to a number.
    pub(crate) fn of_catalog(&self, most_gpus: u32, catalog: &Catalog) -> Result<Vec<Supply>, CliError> {
        catalog.refuse_unknown_region(self.region.as_deref())?;
        Ok(Supply::of_catalog(catalog, self.purchase, self.region.as_deref(), most_gpus))
    }
}

/// A model name known to serving, or a config.json or its folder.
pub(crate) fn load_model(name_or_path: &str) -> Result<ServedModel, CliError> {
    match ServedModel::named(name_or_path) {
        found if !models::is_path(name_or_path, found.is_ok()) => Ok(found?),
        _ => {
            let (transformer, vision) = models::with_vision(name_or_path)?;
            Ok(ServedModel { vision, ..ServedModel::from(transformer) })
        }
    }
}
