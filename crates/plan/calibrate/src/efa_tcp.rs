//! Stated figures of GPT-3 175B with FSDP on p4d, over EFA and over TCP on the same cards.
//!
//! The setting is that of the PyTorch blog of March 2022: sequence 512, batch 20 per GPU, SGD, full
//! recomputation; TFLOP/s count the recomputed pass. Three constants of the network are fitted to the four
//! figures, so they check the form of the model and nothing more.

use bedplate_catalog::Catalog;
use bedplate_perf::{Constants, Hardware, Origin, Stack, Workload, predict};
use bedplate_topology::Cluster;
use bedplate_transformer::{
    AttentionFlops, FlopsConvention, Optimizer, RecomputeFlops, Transformer, builtin,
};

/// One stated figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EfaTcpFigure {
    /// p4d.24xlarge instances.
    pub nodes: u32,
    pub has_efa: bool,
    /// TFLOP/s per GPU.
    pub stated: f64,
}

pub const EFA_TCP_FIGURES: [EfaTcpFigure; 4] = [
    EfaTcpFigure { nodes: 16, has_efa: true, stated: 159.0 },
    EfaTcpFigure { nodes: 16, has_efa: false, stated: 120.0 },
    EfaTcpFigure { nodes: 64, has_efa: true, stated: 130.0 },
    EfaTcpFigure { nodes: 64, has_efa: false, stated: 70.0 },
];

impl EfaTcpFigure {
    /// Predicted TFLOP/s per GPU; none where the catalog or the built-in models lack what it takes.
    pub fn predicted(&self, constants: &Constants, catalog: &Catalog) -> Option<f64> {
        let model = builtin("gpt3-175b").ok()?;
        let cluster = Cluster::from_spec(&format!("p4d.24xlarge:{}", self.nodes), catalog).ok()?;
        let hardware = Hardware::from_cluster(&cluster, catalog).ok()?;
        let hardware = if self.has_efa { hardware } else { hardware.without_rdma() };
        let gpus = hardware.gpus;
        let workload = Workload {
            sequence: 512,
            global_batch: 20 * u64::from(gpus),
            stack: Stack::Fsdp,
            optimizer: Optimizer::Sgd,
            ..Workload::default()
        };
        let layout = format!("dp{gpus}.zero3.mb20.recompute-full.fp16").parse().ok()?;
        let step = predict(&model, &hardware, &layout, &workload, constants).ok()?;
        Some(step.tokens_per_second_per_gpu() * flops_per_token(&model) / 1e12)
    }
}

fn flops_per_token(model: &Transformer) -> f64 {
    let convention = FlopsConvention {
        attention: AttentionFlops::Full,
        recompute: RecomputeFlops::Counted,
        ..FlopsConvention::default()
    };
    model.flops_per_token(512, convention).training().get()
}

/// Fits the constants of [`Origin::EfaTcp`] to the four figures.
pub fn fit_efa_tcp(start: &Constants, catalog: &Catalog) -> Constants {
    let loss = |constants: &Constants| -> f64 {
        let error = |figure: &EfaTcpFigure| {
            figure.predicted(constants, catalog).map_or(0.0, |rate| (rate / figure.stated).ln().powi(2))
        };
        EFA_TCP_FIGURES.iter().map(error).sum()
    };
    crate::fit::descend(start, Origin::EfaTcp, loss)
}
