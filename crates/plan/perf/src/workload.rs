//! What is trained, and with which software: everything about a step except model, machine and layout.

use bedplate_transformer::Optimizer;

/// One optimizer step of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workload {
    /// Tokens per sequence.
    pub sequence: u64,
    /// Sequences per optimizer step over all ranks.
    pub global_batch: u64,
    pub task: Task,
    pub optimizer: Optimizer,
    pub stack: Stack,
    pub routing: ExpertRouting,
    pub dispatcher: Dispatcher,
    pub expert_overlap: ExpertOverlap,
    pub offload: Offload,
    pub scaling: Fp8Scaling,
    /// Multi-token prediction modules are trained too, where the model has them.
    pub trains_prediction: bool,
    /// Of each other's state; only the runtime of this program keeps them.
    pub copies: PeerCopies,
}

/// The copies that ranks keep of each other's state, to go on when some of them are lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PeerCopies {
    #[default]
    None,
    /// They follow the state with every step, by its gradients.
    EveryStep,
    /// They are made anew every few steps.
    EveryFewSteps,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            sequence: 4096,
            global_batch: 1,
            task: Task::Pretrain,
            optimizer: Optimizer::AdamW,
            stack: Stack::Megatron,
            routing: ExpertRouting::Balanced,
            dispatcher: Dispatcher::Deduplicating,
            expert_overlap: ExpertOverlap::Serial,
            offload: Offload::Nothing,
            scaling: Fp8Scaling::PerTensor,
            trains_prediction: true,
            copies: PeerCopies::None,
        }
    }
}

impl Workload {
    pub fn tokens(&self) -> f64 {
        self.sequence as f64 * self.global_batch as f64
    }
}

/// Which weights are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    Pretrain,
    /// Supervised fine-tuning of all weights.
    FineTune,
    /// Adapters of this rank next to frozen weights: no weight gradients, little state.
    Lora {
        rank: u32,
    },
}

impl Task {
    /// Whether most weights are frozen, so that a token needs fewer FLOPs than MFU counts.
    pub fn trains_adapters(self) -> bool {
        matches!(self, Task::Lora { .. })
    }
}

/// The software that runs the step. Its overheads are measured by class, not by release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stack {
    /// Megatron Core with recipes for the model: fused kernels, overlapped communication, CUDA graphs.
    Megatron,
    /// The same before Megatron Core 26.06, whose MoE layers launch more kernels.
    MegatronBefore2606,
    /// Stock Megatron Core, with no recipe for the model.
    MegatronStock,
    /// Megatron-LM of 2021–22: no flash attention, nothing overlapped.
    Megatron2021,
    /// Megatron-DeepSpeed of 2022.
    MegatronDeepSpeed,
    /// DeepSpeed ZeRO-3 of 2021.
    DeepSpeedZero3,
    /// PyTorch FSDP, eager or compiled.
    Fsdp,
    /// FSDP around Transformer Engine's kernels, as in NeMo Automodel.
    FsdpTe,
    /// JAX MaxText.
    MaxText,
    Nanotron,
    /// This program's own runtime, which trains on a host.
    Bedplate,
}

impl Stack {
    pub const ALL: [(&'static str, Stack); 11] = [
        ("megatron", Stack::Megatron),
        ("megatron-before-26.06", Stack::MegatronBefore2606),
        ("megatron-stock", Stack::MegatronStock),
        ("megatron-2021", Stack::Megatron2021),
        ("megatron-deepspeed", Stack::MegatronDeepSpeed),
        ("deepspeed-zero3", Stack::DeepSpeedZero3),
        ("fsdp", Stack::Fsdp),
        ("fsdp-te", Stack::FsdpTe),
        ("maxtext", Stack::MaxText),
        ("nanotron", Stack::Nanotron),
        ("bedplate", Stack::Bedplate),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }

    pub fn find(name: &str) -> Option<Stack> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, stack)| stack)
    }
}

/// How evenly a router spreads tokens over experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ExpertRouting {
    Balanced,
    /// The busiest expert rank gets this many times the mean: at least 1, and at most as many as there are
    /// expert ranks, which means the whole load.
    Skewed(f64),
}

impl ExpertRouting {
    /// Load of the busiest of `ranks` expert ranks relative to the mean.
    pub(crate) fn peak(self, ranks: f64) -> f64 {
        match self {
            ExpertRouting::Balanced => 1.0,
            ExpertRouting::Skewed(peak) => peak.min(ranks).max(1.0),
        }
    }
}

/// How tokens travel to their experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dispatcher {
    /// NCCL all-to-all: one copy per expert.
    AllToAll,
    /// DeepEP, HybridEP: one copy per domain, spread inside it.
    Deduplicating,
}

/// Whether the all-to-all of one micro-batch overlaps with the work of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertOverlap {
    Serial,
    Overlapped,
}

/// What lives in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    Nothing,
    /// Optimizer state; gradients travel out and weights back once per step.
    Optimizer,
    /// As many of the activations as do not fit otherwise: they travel out behind the forward and back behind the
    /// backward pass. Only links as wide as NVLink-C2C make this worth while.
    Activations,
}

/// How fp8 numbers share their scales. fp4 always scales blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fp8Scaling {
    /// One scale per tensor, current or delayed.
    PerTensor,
    /// One scale per block (MXFP8), cast along rows and along columns.
    Block,
}
