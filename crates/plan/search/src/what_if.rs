//! The same question for a setup that differs in one thing.
//!
//! A [`WhatIf`] changes the machine or the workload and nothing else, so the difference in time is due to it.

use std::fmt;

use bedplate_catalog::Catalog;
use bedplate_layout::{Layout, LayoutRefusal};
use bedplate_perf::{Fit, Generation, Hardware, Network, Offload, Workload};
use bedplate_units::{Bandwidth, Bytes, Seconds, grouped};

use crate::{Axes, LayoutCandidate, Machine, SearchError, Setup, search};

/// One change.
#[derive(Debug, Clone, PartialEq)]
pub enum WhatIf {
    /// Another network generation at the same bandwidth.
    Network(Network),
    /// TCP on the same network cards.
    WithoutRdma,
    /// Network cards this many times as fast.
    ScaleOutTimes(f64),
    /// A scale-up domain of this many GPUs, at the current scale-up bandwidth.
    Domain(u32),
    MemoryTimes(f64),
    /// Another sequence length; the tokens of a step stay as close as whole sequences allow.
    Sequence(u64),
    GlobalBatch(u64),
    /// Optimizer state in host memory, over the machine's own link or over another.
    OffloadOptimizer {
        over: Option<(&'static str, Bandwidth)>,
    },
    /// As many GPUs of another machine.
    Machine {
        name: String,
        hardware: Box<Hardware>,
    },
}

impl WhatIf {
    /// As many GPUs of an instance or UltraServer of the catalog.
    pub fn machine(name: &str, catalog: &Catalog) -> Option<Self> {
        let machine = Machine::of_catalog(catalog).into_iter().find(|machine| machine.name == name)?;
        Some(WhatIf::Machine { name: machine.name, hardware: Box::new(machine.hardware.ok()?) })
    }

    /// State in host memory over NVLink-C2C, as Grace machines have it.
    pub fn offload_over_c2c(catalog: &Catalog) -> Option<Self> {
        let rate = catalog.fabric("nvlink-c2c").ok()?.one_way_per_accelerator()?;
        Some(WhatIf::OffloadOptimizer { over: Some(("NVLink-C2C", rate)) })
    }

    pub fn apply<'a>(&self, setup: &Setup<'a>) -> Setup<'a> {
        let (hardware, workload) = (setup.hardware, setup.workload);
        let with_hardware = |hardware: Hardware| Setup { hardware, ..*setup };
        let with_workload = |workload: Workload| Setup { workload, ..*setup };
        match self {
            WhatIf::Network(network) => with_hardware(Hardware { network: *network, ..hardware }),
            WhatIf::WithoutRdma => with_hardware(hardware.without_rdma()),
            WhatIf::ScaleOutTimes(factor) => {
                with_hardware(Hardware { scale_out: hardware.scale_out * factor, ..hardware })
            }
            WhatIf::Domain(domain) => with_hardware(Hardware { domain: *domain, ..hardware }),
            WhatIf::MemoryTimes(factor) => {
                with_hardware(Hardware { memory: hardware.memory * factor, ..hardware })
            }
            WhatIf::Sequence(sequence) => {
                let tokens = workload.sequence.saturating_mul(workload.global_batch);
                let global_batch = (tokens / sequence.max(&1)).max(1);
                with_workload(Workload { sequence: *sequence, global_batch, ..workload })
            }
            WhatIf::GlobalBatch(global_batch) => {
                with_workload(Workload { global_batch: *global_batch, ..workload })
            }
            WhatIf::OffloadOptimizer { over } => {
                let host_link = over.map_or(hardware.host_link, |(_, rate)| rate.get());
                let workload = Workload { offload: Offload::Optimizer, ..workload };
                Setup { hardware: Hardware { host_link, ..hardware }, workload, ..*setup }
            }
            WhatIf::Machine { hardware: other, .. } => {
                with_hardware(Hardware { gpus: hardware.gpus, ..**other })
            }
        }
    }

    /// The usual questions about a setup: newer networks, none, a rack-scale domain, more memory, longer
    /// sequences, state in host memory.
    pub fn usual(setup: &Setup<'_>) -> Vec<Self> {
        let longer = WhatIf::Sequence(setup.workload.sequence.saturating_mul(2));
        if setup.hardware.generation == Generation::Host {
            return vec![WhatIf::MemoryTimes(2.0), longer];
        }
        let Hardware { network, domain, .. } = setup.hardware;
        let generations = [Network::EfaV1, Network::EfaV2, Network::EfaV3, Network::EfaV4];
        let newer = generations.into_iter().filter(|other| network != Network::Rdma && *other > network);
        let mut questions: Vec<Self> =
            newer.filter(|_| network != Network::Tcp).map(WhatIf::Network).collect();
        if network != Network::Tcp {
            questions.push(WhatIf::WithoutRdma);
        }
        questions.push(WhatIf::ScaleOutTimes(2.0));
        if domain < 72 {
            questions.push(WhatIf::Domain(72));
        }
        questions.push(WhatIf::MemoryTimes(2.0));
        questions.push(longer);
        if setup.workload.offload == Offload::Nothing {
            questions.push(WhatIf::OffloadOptimizer { over: None });
        }
        questions
    }
}

impl fmt::Display for WhatIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WhatIf::Network(network) => write!(f, "with {}", network_name(*network)),
            WhatIf::WithoutRdma => f.write_str("with TCP on the same network cards"),
            WhatIf::ScaleOutTimes(factor) => write!(f, "with {factor} times the network bandwidth"),
            WhatIf::Domain(72) => f.write_str("with NVL72 domains"),
            WhatIf::Domain(gpus) => write!(f, "with scale-up domains of {gpus} GPUs"),
            WhatIf::MemoryTimes(factor) => write!(f, "with {factor} times the memory"),
            WhatIf::Sequence(tokens) => write!(f, "with sequences of {} tokens", grouped(*tokens)),
            WhatIf::GlobalBatch(batch) => write!(f, "with {} sequences per step", grouped(*batch)),
            WhatIf::OffloadOptimizer { over: None } => f.write_str("with optimizer state in host memory"),
            WhatIf::OffloadOptimizer { over: Some((link, _)) } => {
                write!(f, "with optimizer state in host memory over {link}")
            }
            WhatIf::Machine { name, .. } => write!(f, "on as many GPUs of {name}"),
        }
    }
}

fn network_name(network: Network) -> &'static str {
    match network {
        Network::Rdma => "lossless RDMA",
        Network::EfaV1 => "EFA v1",
        Network::EfaV2 => "EFA v2",
        Network::EfaV3 => "EFA v3",
        Network::EfaV4 => "EFA v4",
        Network::Tcp => "TCP",
    }
}

/// A layout priced in the changed setup.
#[derive(Debug, Clone, PartialEq)]
pub struct Counterfactual {
    pub what: WhatIf,
    pub outcome: WhatIfOutcome,
    /// The best layout of the changed setup, where it was searched for.
    pub best: Option<LayoutCandidate>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum WhatIfOutcome {
    /// Times are per token of a step, so that other batches and sequences compare: `ratio` below 1 is faster.
    Runs {
        seconds: Seconds,
        ratio: f64,
        fit: Fit,
    },
    DoesNotFit {
        over: Bytes,
    },
    Refused {
        refusals: Vec<LayoutRefusal>,
    },
}

/// Prices a layout of `setup` after a change.
pub fn what_if(setup: &Setup<'_>, layout: &Layout, what: &WhatIf) -> Result<Counterfactual, SearchError> {
    let other = what.apply(setup);
    let refusals = layout.refusals(setup.model, Some(other.gpus().into()), Some(other.batch()));
    let outcome = if refusals.is_empty() {
        let (now, then) = (setup.predict(layout)?, other.predict(layout)?);
        let per_token = |step: &bedplate_perf::PredictedStep| step.seconds().get() / step.tokens;
        match then.fit {
            Fit::DoesNotFit { over } => WhatIfOutcome::DoesNotFit { over },
            fit => WhatIfOutcome::Runs {
                seconds: then.seconds(),
                ratio: per_token(&then) / per_token(&now),
                fit,
            },
        }
    } else {
        WhatIfOutcome::Refused { refusals }
    };
    Ok(Counterfactual { what: what.clone(), outcome, best: None })
}

/// The same, with the best layout of the changed setup. Takes a search.
pub fn what_if_best(
    setup: &Setup<'_>,
    axes: &Axes,
    layout: &Layout,
    what: &WhatIf,
) -> Result<Counterfactual, SearchError> {
    let best = search(&what.apply(setup), axes, 1).ok().and_then(|answer| answer.best.first().copied());
    Ok(Counterfactual { best, ..what_if(setup, layout, what)? })
}
