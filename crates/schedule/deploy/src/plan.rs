//! A whole deployment: replicas of one pool, or of two.

use std::fmt;

use bedplate_perf::serving::KvLink;

use crate::{ServingLayout, Supply};

/// Replicas of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workers {
    pub layout: ServingLayout,
    pub replicas: u32,
    /// Most sequences that run at once on a replica.
    pub max_seqs: u32,
}

impl Workers {
    pub fn gpus(&self) -> u32 {
        self.layout.gpus().saturating_mul(self.replicas)
    }
}

/// The replicas of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    Aggregated(Workers),
    Disaggregated { prefill: Workers, decode: Workers },
}

impl Plan {
    pub fn gpus(&self) -> u32 {
        match self {
            Plan::Aggregated(workers) => workers.gpus(),
            Plan::Disaggregated { prefill, decode } => prefill.gpus().saturating_add(decode.gpus()),
        }
    }

    /// As many replicas as fit on the GPUs, pools in proportion where they share them; none where nothing fits.
    pub fn within(&self, supply: &Supply) -> Option<Plan> {
        if supply.holds(self) {
            return Some(*self);
        }
        let gpus = supply.gpus();
        let plan = match (self, &supply.prompts) {
            (Plan::Aggregated(workers), _) => {
                Plan::Aggregated(Workers { replicas: gpus / workers.layout.gpus(), ..*workers })
            }
            (Plan::Disaggregated { prefill, decode }, Some(prompts)) => {
                let most = |workers: &Workers, gpus: u32| Workers {
                    replicas: workers.replicas.min(gpus / workers.layout.gpus()),
                    ..*workers
                };
                Plan::Disaggregated { prefill: most(prefill, prompts.gpus()), decode: most(decode, gpus) }
            }
            (Plan::Disaggregated { prefill, decode }, None) => {
                let share = f64::from(gpus) / f64::from(self.gpus());
                let fewer = |workers: &Workers| Workers {
                    replicas: ((f64::from(workers.replicas) * share) as u32).max(1),
                    ..*workers
                };
                Plan::Disaggregated { prefill: fewer(prefill), decode: fewer(decode) }
            }
        };
        let has_all = match &plan {
            Plan::Aggregated(workers) => workers.replicas > 0,
            Plan::Disaggregated { prefill, decode } => prefill.replicas > 0 && decode.replicas > 0,
        };
        (has_all && supply.holds(&plan)).then_some(plan)
    }

    /// The replicas that decode.
    pub fn decoders(&self) -> &Workers {
        match self {
            Plan::Aggregated(workers) => workers,
            Plan::Disaggregated { decode, .. } => decode,
        }
    }

    /// With one more replica that decodes.
    pub(crate) fn with_one_decoder_more(self) -> Plan {
        let more = |workers: Workers| Workers { replicas: workers.replicas.saturating_add(1), ..workers };
        match self {
            Plan::Aggregated(workers) => Plan::Aggregated(more(workers)),
            Plan::Disaggregated { prefill, decode } => Plan::Disaggregated { prefill, decode: more(decode) },
        }
    }

    /// What connects the pools: NVLink only if both are in one domain.
    pub fn link(&self, supply: &Supply) -> KvLink {
        let is_near = supply.prompts.is_none() && self.gpus() <= supply.hardware.domain;
        if is_near { KvLink::ScaleUp } else { KvLink::ScaleOut }
    }
}

/// `16 x tp2 in fp8.kv-fp8`, or `6 x tp4 + 3 x tp2 in fp8.kv-fp8` for prompts and decodes.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Plan::Aggregated(workers) => {
                write!(f, "{} x {:#} in {}", workers.replicas, workers.layout, workers.layout.formats())
            }
            Plan::Disaggregated { prefill, decode } => {
                write!(f, "{} x {:#}", prefill.replicas, prefill.layout)?;
                if prefill.layout.formats() != decode.layout.formats() {
                    write!(f, " in {}", prefill.layout.formats())?;
                }
                write!(f, " + {} x {:#} in {}", decode.replicas, decode.layout, decode.layout.formats())
            }
        }
    }
}
