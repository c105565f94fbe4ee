//! What a user wants planned: a model, a cluster, a workload, and what may be varied.

use bedplate_catalog::Catalog;
use bedplate_layout::{ComputePrecision, Recompute};
use bedplate_perf::{
    Constants, Dispatcher, ExpertOverlap, Hardware, Offload, Routing, Stack, Task, Workload,
};
use bedplate_search::{Axes, Setup};
use bedplate_topology::Cluster;
use bedplate_transformer::{Optimizer, Transformer};
use bedplate_units::Tokens;

use super::constants::Choice;
use crate::choice::choice;
use crate::commands::{cluster, model};
use crate::stop::Stop;

/// The arguments that every question about a training run shares.
#[derive(clap::Args)]
pub(super) struct Question {
    /// A built-in name or a config.json
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) model: String,
    /// INSTANCE:COUNT, several joined by `+`, or a cluster file
    #[arg(long, value_name = "CLUSTER")]
    pub(super) cluster: String,
    /// Tokens per sequence
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(super) seq: u64,
    /// Sequences per optimizer step [default: 4M tokens a step, 16M from 100B parameters on]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000), conflicts_with = "batch_tokens")]
    pub(super) global_batch: Option<u64>,
    /// Tokens per optimizer step, instead of --global-batch
    #[arg(long, value_name = "TOKENS")]
    pub(super) batch_tokens: Option<Tokens>,
    /// Number format of the large matrix products
    #[arg(long, value_enum, default_value = "bf16")]
    precision: Format,
    /// What learns: all weights from scratch, all weights, or adapters
    #[arg(long, value_enum, default_value = "pretrain")]
    task: TaskKind,
    /// Rank of the adapters with --task lora
    #[arg(long, default_value_t = 16)]
    lora_rank: u32,
    #[arg(long, value_enum, default_value = "adamw")]
    optimizer: OptimizerKind,
    /// The training software
    #[arg(long, value_parser = choice(&Stack::ALL), default_value = "megatron")]
    stack: Stack,
    /// How unevenly tokens reach experts: the busiest rank's load over the mean
    #[arg(long, value_name = "RATIO")]
    routing_skew: Option<f64>,
    /// Tokens travel to experts by plain all-to-all, one copy per expert
    #[arg(long)]
    plain_dispatch: bool,
    /// Expert communication overlaps with the work of another micro-batch
    #[arg(long)]
    overlap_experts: bool,
    /// Keep optimizer state in host memory
    #[arg(long)]
    offload_optimizer: bool,
    /// What if there were no EFA or InfiniBand: TCP on the same network cards
    #[arg(long)]
    no_rdma: bool,
    #[command(flatten)]
    constants: Choice,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    Bf16,
    Fp16,
    Fp8,
    Fp4,
    Fp32,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum TaskKind {
    Pretrain,
    FineTune,
    Lora,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum OptimizerKind {
    Adamw,
    Adamw8bit,
    SgdMomentum,
    Sgd,
}

/// The question with everything loaded.
pub(super) struct Loaded {
    pub(super) model: Transformer,
    pub(super) cluster: Cluster,
    pub(super) hardware: Hardware,
    pub(super) workload: Workload,
    pub(super) constants: Constants,
    pub(super) precision: ComputePrecision,
}

impl Loaded {
    pub(super) fn setup(&self) -> Setup<'_> {
        Setup {
            model: &self.model,
            hardware: self.hardware,
            workload: self.workload,
            constants: &self.constants,
        }
    }

    /// Everything that may vary, in the number format asked for.
    pub(super) fn axes(&self) -> Axes {
        Axes {
            precision: vec![self.precision],
            recompute: vec![Recompute::None, Recompute::Selective, Recompute::Full],
            ..Axes::default()
        }
    }

    /// A smaller space that holds the best layout in nearly all cases, for questions that search many times.
    pub(super) fn practical_axes(&self) -> Axes {
        Axes { precision: vec![self.precision], ..Axes::practical(self.hardware.domain) }
    }
}

/// From so many parameters on a step has 16M tokens instead of 4M, as Llama 3 was trained.
const LARGE_MODEL: u64 = 100_000_000_000;

impl Question {
    pub(super) fn load(&self, catalog: &Catalog) -> Result<Loaded, Stop> {
        let model = model::load(&self.model)?;
        let cluster = cluster::load(&self.cluster, catalog)?;
        let mut hardware = Hardware::from_cluster(&cluster, catalog)?;
        if self.no_rdma {
            hardware = hardware.without_rdma();
        }
        Ok(Loaded {
            workload: self.workload(&model),
            constants: self.constants.load()?,
            precision: self.precision(),
            model,
            cluster,
            hardware,
        })
    }

    fn precision(&self) -> ComputePrecision {
        match self.precision {
            Format::Bf16 => ComputePrecision::Bf16,
            Format::Fp16 => ComputePrecision::Fp16,
            Format::Fp8 => ComputePrecision::Fp8,
            Format::Fp4 => ComputePrecision::Fp4,
            Format::Fp32 => ComputePrecision::Fp32,
        }
    }

    fn workload(&self, model: &Transformer) -> Workload {
        Workload {
            sequence: self.seq,
            global_batch: self.global_batch(model),
            task: match self.task {
                TaskKind::Pretrain => Task::Pretrain,
                TaskKind::FineTune => Task::FineTune,
                TaskKind::Lora => Task::Lora { rank: self.lora_rank },
            },
            optimizer: match self.optimizer {
                OptimizerKind::Adamw => Optimizer::AdamW,
                OptimizerKind::Adamw8bit => Optimizer::AdamW8bit,
                OptimizerKind::SgdMomentum => Optimizer::SgdMomentum,
                OptimizerKind::Sgd => Optimizer::Sgd,
            },
            stack: self.stack,
            routing: self.routing_skew.map_or(Routing::Balanced, Routing::Skewed),
            dispatcher: match self.plain_dispatch {
                true => Dispatcher::AllToAll,
                false => Dispatcher::Deduplicating,
            },
            expert_overlap: match self.overlap_experts {
                true => ExpertOverlap::Overlapped,
                false => ExpertOverlap::Serial,
            },
            offload: if self.offload_optimizer { Offload::Optimizer } else { Offload::Nothing },
            ..Workload::default()
        }
    }

    fn global_batch(&self, model: &Transformer) -> u64 {
        let default = if model.parameters().total >= LARGE_MODEL { 16_777_216.0 } else { 4_194_304.0 };
        let tokens = self.batch_tokens.map_or(default, Tokens::get);
        self.global_batch.unwrap_or_else(|| ((tokens / self.seq as f64).round() as u64).max(1))
    }
}
