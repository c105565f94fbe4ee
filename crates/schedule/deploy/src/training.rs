//! A planned layout as the settings of the program that will train with it.
//!
//! Settings start as they are, on made-up data where the program has some: what a user replaces is marked. A program
//! that cannot run the layout says what it lacks instead. Flags, keys, choices and forbidden combinations are checked
//! by tests against tables made from the programs at pinned versions.

mod accelerate;
mod bedplate;
mod bridge;
mod deepspeed;
mod megatron;
mod megatron_model;
mod stages;
mod torchtitan;

use bedplate_layout::Layout;
use bedplate_perf::Workload;
use bedplate_transformer::Transformer;

pub use bedplate::bedplate_settings;

/// What is to be launched.
#[derive(Debug, Clone, Copy)]
pub struct TrainingJob<'a> {
    pub model: &'a Transformer,
    pub layout: &'a Layout,
    pub workload: &'a Workload,
    pub nodes: u32,
    pub gpus_per_node: u32,
    /// Blackwell or newer, whose number formats and rules of launching differ.
    pub is_blackwell: bool,
}

/// A program that trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trainer {
    MegatronLm,
    MegatronBridge,
    Torchtitan,
    Accelerate,
    DeepSpeed,
}

impl Trainer {
    pub const ALL: [Trainer; 5] = [
        Trainer::MegatronLm,
        Trainer::MegatronBridge,
        Trainer::Torchtitan,
        Trainer::Accelerate,
        Trainer::DeepSpeed,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Trainer::MegatronLm => "Megatron-LM",
            Trainer::MegatronBridge => "NeMo Megatron-Bridge",
            Trainer::Torchtitan => "torchtitan",
            Trainer::Accelerate => "Hugging Face Accelerate with FSDP2",
            Trainer::DeepSpeed => "DeepSpeed",
        }
    }

    /// Files and the command, with remarks as comments.
    pub fn settings(self, job: &TrainingJob<'_>) -> Result<String, Lacks> {
        match self {
            Trainer::MegatronLm => megatron::settings(job),
            Trainer::MegatronBridge => bridge::settings(job),
            Trainer::Torchtitan => torchtitan::settings(job),
            Trainer::Accelerate => accelerate::settings(job),
            Trainer::DeepSpeed => deepspeed::settings(job),
        }
    }
}

/// What a program lacks to run a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Lacks {
    #[error("this model")]
    Model,
    #[error("layers with a state in `pretrain_gpt.py`; `pretrain_hybrid.py` has them")]
    Hybrid,
    #[error("settings of attention with an indexer")]
    Indexer,
    #[error("adapters; take Megatron-Bridge, Accelerate or DeepSpeed")]
    Adapters,
    #[error("pipeline parallelism")]
    Pipeline,
    #[error("tensor parallelism together with this sharding")]
    Tensor,
    #[error("context parallelism")]
    Context,
    #[error("expert parallelism")]
    Experts,
    #[error("expert tensor parallelism")]
    ExpertTensor,
    #[error("tensor parallelism over more ranks than the model has key and value heads")]
    TensorAboveKvHeads,
    #[error("this number of chunks per pipeline stage")]
    Chunks,
    #[error("stages with these numbers of layers")]
    Ends,
    #[error("the zero-bubble and dualpipe schedules in this form; take `vpp` for interleaved stages")]
    Schedule,
    #[error("pipeline parallelism for a model whose output shares the input embedding")]
    TiedPipeline,
    #[error("ALiBi positions")]
    Alibi,
    #[error("this number format")]
    Format,
    #[error("this sharding")]
    Sharding,
    #[error("this optimizer")]
    Optimizer,
}

impl Lacks {
    /// What to ask for instead, so that the program can run the plan.
    pub fn instead(self) -> Option<&'static str> {
        Some(match self {
            Lacks::Format => "--precision bf16",
            Lacks::Optimizer => "--optimizer adamw, without --offload-optimizer",
            Lacks::Pipeline | Lacks::TiedPipeline | Lacks::Chunks | Lacks::Ends | Lacks::Schedule => {
                "another --layout, without pp or with plain pp"
            }
            Lacks::Tensor | Lacks::TensorAboveKvHeads => "another --layout, with a smaller tp",
            Lacks::Context => "another --layout, without cp",
            Lacks::Experts | Lacks::ExpertTensor => "another --layout, with other ep and etp or without them",
            Lacks::Sharding => "another --layout, with zero1 or zero3 over all data ranks",
            Lacks::Adapters => "--launch megatron-bridge, accelerate or deepspeed",
            Lacks::Model | Lacks::Hybrid | Lacks::Indexer | Lacks::Alibi => return None,
        })
    }
}

impl TrainingJob<'_> {
    /// The start of a `torchrun` command on every node.
    fn torchrun(&self) -> String {
        let (nodes, each) = (self.nodes, self.gpus_per_node);
        match nodes {
            1 => format!("torchrun --nproc-per-node {each} --standalone"),
            _ => format!(
                "torchrun --nproc-per-node {each} --nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint \"$HEAD_NODE:29500\""
            ),
        }
    }

    /// What must be said about the nodes, if there are several.
    fn node_remark(&self) -> Option<String> {
        (self.nodes > 1)
            .then(|| format!("# on each of {} nodes; HEAD_NODE is the address of one of them", self.nodes))
    }

    /// Sequences that one data rank sees in a step.
    fn sequences_per_rank(&self) -> u64 {
        self.workload.global_batch / u64::from(self.layout.data.max(1))
    }

    /// Micro-batches of one rank in a step.
    fn micro_batches(&self) -> u64 {
        (self.sequences_per_rank() / u64::from(self.layout.micro_batch.max(1))).max(1)
    }
}
