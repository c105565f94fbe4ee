//! How one replica is split over GPUs and in which formats it is stored, in one spelling:
//! `tp4.pp2.fp8.kv-fp8.chunk8192`.

use std::fmt;

use bedplate_perf::PerfError;
use bedplate_perf::serving::{Deployment, Images, Parallel, Replica, WeightFormat};
use bedplate_transformer::Precision;
use bedplate_units::Bytes;

use crate::{Need, Supply};

/// A replica's degrees, formats and chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServingLayout {
    pub parallel: Parallel,
    pub weights: WeightFormat,
    pub kv: Precision,
    /// Most prompt tokens of a step, for each attention data rank.
    pub chunk: u32,
}

/// Why no replica can be split this way, whatever the load.
#[derive(Debug, Clone, PartialEq)]
pub enum ServingLayoutRefusal {
    /// The machine has no accelerators, and serving without them is not modelled.
    NotPriced,
    NoArithmetic {
        format: &'static str,
        accelerator: String,
    },
    HeadsDoNotDivide {
        tensor: u32,
        heads: u64,
    },
    OutsideDomain {
        tensor: u32,
        domain: u32,
    },
    TooFewLayers {
        stages: u32,
        layers: u64,
    },
    NoExperts {
        degree: &'static str,
    },
    FewerExperts {
        ranks: u32,
        experts: u64,
    },
    RanksDoNotDivide {
        expert: u32,
        stage: u32,
    },
    TooFewGpus {
        needed: u32,
        available: u32,
    },
    DoesNotFit {
        over_per_gpu: Bytes,
    },
    /// Weights fit, one request's KV does not.
    NoRoom {
        needed_tokens: u64,
        room_tokens: u64,
    },
}

impl fmt::Display for ServingLayoutRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServingLayoutRefusal::NotPriced => {
                write!(f, "serving on a host without accelerators cannot be priced yet")
            }
            ServingLayoutRefusal::NoArithmetic { format, accelerator } => {
                write!(f, "{accelerator} has no {format} arithmetic")
            }
            ServingLayoutRefusal::HeadsDoNotDivide { tensor, heads } => {
                write!(f, "{tensor} tensor ranks do not divide {heads} heads")
            }
            ServingLayoutRefusal::OutsideDomain { tensor, domain } => {
                write!(f, "{tensor} tensor ranks do not fit in a domain of {domain} GPUs")
            }
            ServingLayoutRefusal::TooFewLayers { stages, layers } => {
                write!(f, "{stages} stages for {layers} layers")
            }
            ServingLayoutRefusal::NoExperts { degree } => write!(f, "`{degree}` is for models with experts"),
            ServingLayoutRefusal::FewerExperts { ranks, experts } => {
                write!(f, "{ranks} expert ranks are more than the {experts} experts")
            }
            ServingLayoutRefusal::RanksDoNotDivide { expert, stage } => {
                write!(f, "{expert} expert ranks do not divide the {stage} GPUs of a stage")
            }
            ServingLayoutRefusal::TooFewGpus { needed, available } => {
                write!(f, "a replica needs {needed} GPUs and there are {available}")
            }
            ServingLayoutRefusal::DoesNotFit { over_per_gpu } => {
                write!(f, "weights and workspace exceed a GPU by {over_per_gpu}")
            }
            ServingLayoutRefusal::NoRoom { needed_tokens, room_tokens } => write!(
                f,
                "next to the weights there is room for {room_tokens} tokens of KV and a request needs {needed_tokens}"
            ),
        }
    }
}

impl ServingLayout {
    pub fn gpus(&self) -> u32 {
        self.parallel.gpus()
    }

    /// The formats, as in `fp8.kv-bf16`.
    pub fn formats(&self) -> String {
        format!("{}.kv-{}", self.weights.name(), self.kv)
    }

    /// What the model or the chip rules out, before anything is priced.
    pub(crate) fn refusal(&self, need: &Need<'_>, supply: &Supply) -> Option<ServingLayoutRefusal> {
        let model = &need.model.transformer;
        let Parallel { tensor, pipeline, expert, attention_data } = self.parallel;
        let hardware = &supply.hardware;
        let lacks = |format, has: bool| {
            (!has).then(|| ServingLayoutRefusal::NoArithmetic {
                format,
                accelerator: supply.accelerator.clone(),
            })
        };
        let arithmetic = match self.weights {
            WeightFormat::Fp8 => lacks("fp8", hardware.has_fp8),
            WeightFormat::Fp4 => lacks("fp4", hardware.has_fp4),
            WeightFormat::Bf16 | WeightFormat::Int4 => None,
        };
        let kv = if self.kv == Precision::Fp8 { lacks("fp8", hardware.has_fp8) } else { None };
        let heads = model.runs.iter().map(|run| run.layer.attention.heads());
        let odd = heads.into_iter().find(|heads| heads % u64::from(tensor.max(1)) != 0);
        let experts =
            model.runs.iter().find_map(|run| run.layer.mlp.mixture()).map(|mixture| mixture.experts);
        let layers = model.layer_count();
        arithmetic
            .or(kv)
            .or(odd.map(|heads| ServingLayoutRefusal::HeadsDoNotDivide { tensor, heads }))
            .or((tensor > hardware.domain)
                .then_some(ServingLayoutRefusal::OutsideDomain { tensor, domain: hardware.domain }))
            .or((u64::from(pipeline) > layers)
                .then_some(ServingLayoutRefusal::TooFewLayers { stages: pipeline, layers }))
            .or(match experts {
                None if expert > 1 => Some(ServingLayoutRefusal::NoExperts { degree: "ep" }),
                None if attention_data > 1 => Some(ServingLayoutRefusal::NoExperts { degree: "adp" }),
                Some(experts) if u64::from(expert) > experts => {
                    Some(ServingLayoutRefusal::FewerExperts { ranks: expert, experts })
                }
                _ => None,
            })
            .or((!self.parallel.stage_gpus().is_multiple_of(expert.max(1))).then(|| {
                ServingLayoutRefusal::RanksDoNotDivide { expert, stage: self.parallel.stage_gpus() }
            }))
            .or((self.gpus() > supply.gpus())
                .then(|| ServingLayoutRefusal::TooFewGpus { needed: self.gpus(), available: supply.gpus() }))
    }

    /// The replica of the performance model.
    pub fn replica(&self, need: &Need<'_>, supply: &Supply) -> Result<Replica, PerfError> {
        let model = need.model.clone();
        let engine = need.options.engine;
        let mut deployment = Deployment::new(model, self.weights, supply.hardware, self.parallel, engine);
        deployment.kv = self.kv;
        deployment.settings.chunk = self.chunk;
        deployment.speculation = need.options.speculation;
        deployment.adapters = need.options.adapters;
        deployment.images = need.options.images.map(|pictures| {
            // What prompts share is text; every image is encoded.
            let computed = f64::from(need.load.input) * (1.0 - need.load.shared_share());
            let per_prompt_token = f64::from(pictures.per_request) / computed.max(1.0);
            Images { image: pictures.image, per_prompt_token }
        });
        let measured = need.site.and_then(|site| site.find(&deployment, &supply.accelerator));
        deployment.adjustment = measured.unwrap_or_default();
        Replica::new(deployment, need.constants)
    }
}

/// Everything; `{:#}` writes only the degrees.
impl fmt::Display for ServingLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parallel { tensor, pipeline, expert, attention_data } = self.parallel;
        write!(f, "tp{tensor}")?;
        for (name, degree) in [("pp", pipeline), ("ep", expert), ("adp", attention_data)] {
            if degree > 1 {
                write!(f, ".{name}{degree}")?;
            }
        }
        match f.alternate() {
            true => Ok(()),
            false => write!(f, ".{}.chunk{}", self.formats(), self.chunk),
        }
    }
}
