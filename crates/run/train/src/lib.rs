//! The training loop: one process, any of the networks, exactly reproducible from its configuration.
//!
//! [`run`] does what `bedplate train` does: it opens the corpora, builds the network, goes step by step, evaluates, writes
//! checkpoints and the finished weights, and tells an [`Observer`] about all of it. A [`Trainer`] is the part without files:
//! one step over given micro-batches. The order of data is a pure function of the seed and the number of samples seen, and
//! operators give the same bits on any number of threads, so a run that was stopped and resumed gives the bits of one that was
//! not.
//!
//! This crate does not know clusters, plans or command lines.

mod adapter;
mod checkpoint;
mod clock;
mod config;
mod copies;
mod error;
mod export;
mod links;
mod membership;
mod memory;
mod optimizer;
mod output_lock;
mod passes;
mod peers;
mod pipeline;
mod ranks;
mod recovered_state;
mod run;
mod schedule;
mod setup;
mod store;
mod telemetry;
mod trained;
mod trainer;
mod upkeep;
mod written;

pub use adapter::{ADAPTER_CONFIG_FILE, ADAPTER_FILE, Adapters};
pub use bedplate_checkpoint::Published;
pub use checkpoint::Change;
pub use config::{
    AdapterConfig, CheckpointConfig, CorpusConfig, DataConfig, EvaluationConfig, LIST_KEYS, ModelConfig,
    OptimizerConfig, OutputConfig, Precision, SETTINGS_FILE, TrainConfig, TrainingConfig,
};
pub use error::{PAGES, TrainError};
pub use membership::Membership;
pub use memory::Needs;
pub use passes::tokens_of;
pub use ranks::RunRanks;
pub use run::{Observer, Place, Resume, RunOptions, RunSummary, Setup, StepPlan, run, run_on};
pub use schedule::{Decay, LearningRate};
pub use setup::read_architecture;
pub use telemetry::{Telemetry, announce_arguments, announce_fault};
pub use trained::Trained;
pub use trainer::{StepOutcome, Trainer};
