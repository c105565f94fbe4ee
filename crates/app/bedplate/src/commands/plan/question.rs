//! The question of a plan: a model, a cluster, a workload, and what may vary.

use bedplate_calibrate::own_runs::PlannedQuestion;
use bedplate_catalog::Catalog;
use bedplate_layout::ComputePrecision;
use bedplate_perf::{
    Constants, Dispatcher, ExpertOverlap, ExpertRouting, Generation, Hardware, Offload, PeerCopies, Stack,
    Task, Workload,
};
use bedplate_search::{
    Axes, BatchSize, IdleGain, Setup, usual_batch, usual_sequence, usual_stack, with_idle_gpus,
};
use bedplate_terminal::{CliError, ProgramError, choice, length};
use bedplate_topology::Cluster;
use bedplate_transformer::{Optimizer, Transformer};
use bedplate_units::Tokens;

use super::constants::Choice;
use super::task::TaskArguments;
use crate::models;

/// The arguments that every question about a training run shares.
#[derive(clap::Args)]
pub(super) struct Question {
    /// A built-in name, a config.json or its folder
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) model: String,
    /// INSTANCE:COUNT, several joined by `+`, context:NAME of a Slurm, or a cluster file [default with --context: that]
    #[arg(long, value_name = "CLUSTER", required_unless_present = "context")]
    pub(super) cluster: Option<String>,
    /// Tokens per sequence, as 8192 or 8k [default: 8192, for fine-tuning 4096, or the model's context if shorter]
    #[arg(long, value_parser = length::<u64>(100_000_000))]
    pub(super) seq: Option<u64>,
    /// Sequences per optimizer step [default: 4M tokens per step, 16M from 100B parameters; 128 sequences to
    /// fine-tune, 32 for adapters]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000), conflicts_with = "batch_tokens")]
    pub(super) global_batch: Option<u64>,
    /// Tokens per optimizer step, in whole sequences that divide well; instead of --global-batch
    #[arg(long, value_name = "TOKENS")]
    pub(super) batch_tokens: Option<Tokens>,
    #[command(flatten)]
    format: FormatArguments,
    #[command(flatten)]
    task: TaskArguments,
    #[arg(long, value_enum, default_value = "adamw")]
    optimizer: OptimizerKind,
    /// The training software [default: megatron; on a host bedplate, which is this program]
    #[arg(long, value_parser = choice(&Stack::ALL))]
    stack: Option<Stack>,
    /// How unevenly tokens reach experts: the busiest rank's load over the mean
    #[arg(long, value_name = "RATIO")]
    routing_skew: Option<f64>,
    /// Send tokens to experts by plain all-to-all, one copy per expert
    #[arg(long)]
    plain_dispatch: bool,
    /// Overlap expert communication with the work of another micro-batch
    #[arg(long)]
    overlap_experts: bool,
    /// Keep optimizer state in host memory
    #[arg(long)]
    offload_optimizer: bool,
    /// Count the memory for copies of state with which ranks of `bedplate train` survive losses
    #[arg(long)]
    survive: bool,
    /// Price the plan without EFA or InfiniBand: TCP on the same network cards
    #[arg(long)]
    no_rdma: bool,
    /// Price every legal layout; by default, mixtures of experts skip corners that never win
    #[arg(long)]
    complete: bool,
    #[command(flatten)]
    constants: Choice,
}

/// The number format of a run, spelled alike by all commands that plan one.
#[derive(clap::Args)]
pub(super) struct FormatArguments {
    /// Number format of the large matrix products
    #[arg(long, value_enum, default_value = "bf16")]
    precision: Format,
    /// The same as --precision fp8
    #[arg(long, conflicts_with = "precision")]
    fp8: bool,
}

impl FormatArguments {
    pub(super) fn chosen(&self) -> ComputePrecision {
        match self.precision {
            _ if self.fp8 => ComputePrecision::Fp8,
            Format::Bf16 => ComputePrecision::Bf16,
            Format::Fp16 => ComputePrecision::Fp16,
            Format::Fp8 => ComputePrecision::Fp8,
            Format::Fp4 => ComputePrecision::Fp4,
            Format::Fp32 => ComputePrecision::Fp32,
        }
    }
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
enum OptimizerKind {
    Adamw,
    Adamw8bit,
    SgdMomentum,
    Sgd,
}

/// The question with everything loaded.
pub(super) struct Loaded {
    /// The model as it was named: a built-in name or a path.
    pub(super) named: String,
    /// The cluster as it was named; `None` for the nodes that a scheduler offered.
    pub(super) named_cluster: Option<String>,
    pub(super) model: Transformer,
    pub(super) cluster: Cluster,
    pub(super) hardware: Hardware,
    pub(super) workload: Workload,
    pub(super) constants: Constants,
    pub(super) precision: ComputePrecision,
    /// What a reader should know about the machine as it was taken.
    pub(super) remarks: Vec<String>,
    /// Whether corners of the space that never win are searched too.
    is_complete: bool,
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

    /// Everything that may vary, in the requested number format.
    pub(super) fn axes(&self) -> Axes {
        match self.is_complete {
            true => Axes { precision: vec![self.precision], ..Axes::default() },
            false => self.setup().usual_axes(self.precision),
        }
    }

    /// What is needed to ask it again.
    pub(super) fn planned(&self) -> PlannedQuestion {
        PlannedQuestion {
            model: self.named.clone(),
            cluster: self.named_cluster.clone(),
            stack: self.workload.stack,
            task: self.workload.task,
        }
    }

    pub(super) fn small_axes(&self) -> Axes {
        self.setup().small_axes(self.precision)
    }
}

impl Question {
    pub(super) fn load(&self, cluster: Cluster, catalog: &Catalog) -> Result<Loaded, CliError> {
        let model = models::load(&self.model)?;
        let mut hardware = Hardware::from_cluster(&cluster, catalog)?;
        if self.survive && hardware.generation != Generation::Host {
            let message =
                "--survive counts what `bedplate train` keeps, which trains on hosts only".to_owned();
            return Err(ProgramError::Usage { message }.into());
        }
        if self.no_rdma {
            hardware = hardware.without_rdma();
        }
        Ok(Loaded {
            workload: self.workload(&model, &hardware),
            named: self.model.clone(),
            named_cluster: self.cluster.clone().filter(|text| !text.starts_with("context:")),
            is_complete: self.complete,
            constants: self.constants.load()?,
            precision: self.format.chosen(),
            remarks: Cluster::remarks_on_spec(cluster.name(), catalog),
            model,
            cluster,
            hardware,
        })
    }

    /// The machine with some GPUs of each domain idle, where that is faster than with all of them.
    pub(super) fn with_idle_gpus(&self, whole: Loaded) -> Loaded {
        let workload_on = |hardware: &Hardware| self.workload(&whole.model, hardware);
        let Some(idle) = with_idle_gpus(&whole.setup(), &whole.small_axes(), workload_on) else {
            return whole;
        };
        let remark = match idle.gain {
            IdleGain::Faster(share) => format!("{:.0}% faster than with all of them", share * 100.0),
            IdleGain::OnlyThenFits => "no layout of all of them fits".to_owned(),
        };
        let (used, domain) = (idle.hardware.domain, whole.hardware.domain);
        let mut remarks = whole.remarks.clone();
        remarks.push(format!("{used} of the {domain} GPUs of each scale-up domain are used: {remark}"));
        Loaded { hardware: idle.hardware, workload: idle.workload, remarks, ..whole }
    }

    fn workload(&self, model: &Transformer, hardware: &Hardware) -> Workload {
        let task = self.task.task();
        let sequence = self.seq.unwrap_or_else(|| usual_sequence(model, task));
        let batch = match (self.global_batch, self.batch_tokens) {
            (Some(sequences), _) => BatchSize::Sequences(sequences),
            (None, Some(tokens)) => BatchSize::Tokens(tokens),
            (None, None) => usual_batch(model, task),
        };
        Workload {
            sequence,
            global_batch: batch.sequences(sequence, hardware.gpus),
            task,
            optimizer: match self.optimizer {
                OptimizerKind::Adamw => Optimizer::AdamW,
                OptimizerKind::Adamw8bit => Optimizer::AdamW8bit,
                OptimizerKind::SgdMomentum => Optimizer::SgdMomentum,
                OptimizerKind::Sgd => Optimizer::Sgd,
            },
            stack: self.stack.unwrap_or_else(|| usual_stack(hardware)),
            routing: self.routing_skew.map_or(ExpertRouting::Balanced, ExpertRouting::Skewed),
            dispatcher: match self.plain_dispatch {
                true => Dispatcher::AllToAll,
                false => Dispatcher::Deduplicating,
            },
            expert_overlap: match self.overlap_experts {
                true => ExpertOverlap::Overlapped,
                false => ExpertOverlap::Serial,
            },
            offload: if self.offload_optimizer { Offload::Optimizer } else { Offload::Nothing },
            // Modules that predict further tokens are made for pre-training.
            trains_prediction: task == Task::Pretrain,
            copies: if self.survive { PeerCopies::EveryStep } else { PeerCopies::None },
            ..Workload::default()
        }
    }
}
