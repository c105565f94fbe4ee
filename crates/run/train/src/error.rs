//! What can go wrong in a training run.

use std::io;
use std::path::PathBuf;

use bedplate_checkpoint::{CheckpointError, is_permanent};
use bedplate_comm::{CommError, JoinError};
use bedplate_data::DataError;
use bedplate_diag::{Class, Diagnostic, Page, Place};
use bedplate_document::DocumentError;
use bedplate_kernels::CudaError;
use bedplate_layout::{Layout, LayoutRefusal};
use bedplate_network::NetworkError;
use bedplate_record::RecordError;
use bedplate_serve::FreeMemory;

use crate::{Change, Needs};

#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error(transparent)]
    Config(#[from] DocumentError),
    #[error(transparent)]
    Network(NetworkError),
    #[error(transparent)]
    Serve(#[from] bedplate_serve::ServeError),
    #[error(transparent)]
    Device(#[from] CudaError),
    #[error(transparent)]
    Data(DataError),
    #[error(transparent)]
    Record(RecordError),
    #[error(transparent)]
    Checkpoint(CheckpointError),
    /// Another rank has failed, and says why.
    #[error("rank {rank} has failed")]
    Elsewhere { rank: u32 },
    #[error("cannot read the model's configuration {}", path.display())]
    ReadModel { path: PathBuf, source: io::Error },
    #[error("step {step}: the loss is {loss}, the norm of the gradient {gradient_norm}{}", began(block, *sample))]
    NotFinite {
        step: u64,
        loss: f64,
        gradient_norm: f64,
        /// The first sample of the step's batch.
        first_sample: u64,
        /// The first block whose output is not finite; absent when only gradients are not.
        block: Option<String>,
        sample: Option<u64>,
    },
    #[error("no matrix of the model is called `{target}`, so it can have no adapter")]
    NoSuchTarget { target: String },
    #[error("adapters of rank {rank} are asked for, but `{matrix}` has a rank of at most {most}")]
    RankTooLarge { rank: usize, matrix: String, most: usize },
    #[error("this run needs {needs}; {free}")]
    TooLarge {
        needs: Box<Needs>,
        free: FreeMemory,
        /// Options with which the run fits.
        fits: Option<String>,
    },
    #[error("the layout cannot be used: {}", reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Layout { reasons: Vec<LayoutRefusal> },
    #[error("the layout {layout} cannot be trained with: {why}")]
    UnsupportedLayout { layout: Layout, why: String },
    #[error("the run cannot go on from the memory of its ranks: {why}")]
    StateLost { why: String },
    #[error("{left} ranks are left, and {layout} needs at least {needed} to go on")]
    TooFewRanks { left: u32, needed: u32, layout: Layout },
    #[error(transparent)]
    Ranks(#[from] CommError),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error("`{target}` can have no adapter of its own: embedding and head of this model are one matrix")]
    TiedTarget { target: String },
    #[error("{} is of another adapter: it has no `{tensor}` of this size", path.display())]
    OtherAdapter { path: PathBuf, tensor: String },
    #[error("the checkpoint {} was made with other settings: {}", path.display(), listed(changes))]
    ChangedSettings { path: PathBuf, changes: Vec<Change> },
    #[error("there is no checkpoint to resume from in {}", folder.display())]
    NothingToResume { folder: PathBuf },
    #[error("{} holds a run of {step} steps already", folder.display())]
    FolderInUse { folder: PathBuf, step: u64 },
    #[error("{holder} is writing to {}", folder.display())]
    FolderLocked { folder: PathBuf, holder: String },
    #[error("cannot write {}", path.display())]
    WriteOutput { path: PathBuf, source: io::Error },
}

/// What a run cannot write is one error, whichever part of it was writing.
impl From<NetworkError> for TrainError {
    fn from(error: NetworkError) -> Self {
        match error {
            NetworkError::WriteWeights { path, source } => TrainError::WriteOutput { path, source },
            error => TrainError::Network(error),
        }
    }
}

impl From<CheckpointError> for TrainError {
    fn from(error: CheckpointError) -> Self {
        match error {
            CheckpointError::Write { place, source } => {
                TrainError::WriteOutput { path: place.into(), source }
            }
            error => TrainError::Checkpoint(error),
        }
    }
}

impl From<DataError> for TrainError {
    fn from(error: DataError) -> Self {
        match error {
            DataError::Write { path, source } => TrainError::WriteOutput { path, source },
            error => TrainError::Data(error),
        }
    }
}

impl From<RecordError> for TrainError {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Create { path, source } | RecordError::Write { path, source } => {
                TrainError::WriteOutput { path, source }
            }
            error => TrainError::Record(error),
        }
    }
}

fn began(block: &Option<String>, sample: Option<u64>) -> String {
    match (block, sample) {
        (Some(block), Some(sample)) => format!("; it began in {block}, with sample {sample}"),
        _ => "; every layer's output is finite, so it began in the backward pass".to_owned(),
    }
}

fn listed(changes: &[Change]) -> String {
    changes.iter().map(Change::to_string).collect::<Vec<_>>().join("; ")
}

/// The documentation of every code of this crate.
pub const PAGES: &[&Page] = &[
    &READ_MODEL,
    &NOT_FINITE,
    &NO_SUCH_TARGET,
    &RANK_TOO_LARGE,
    &TOO_LARGE,
    &LAYOUT,
    &UNSUPPORTED_LAYOUT,
    &STATE_LOST,
    &TOO_FEW_RANKS,
    &ELSEWHERE,
    &TIED_TARGET,
    &OTHER_ADAPTER,
    &CHANGED_SETTINGS,
    &NOTHING_TO_RESUME,
    &FOLDER_IN_USE,
    &FOLDER_LOCKED,
    &WRITE_OUTPUT,
    &UNUSABLE_OUTPUT,
];

static READ_MODEL: Page = Page {
    code: "train/cannot-read-model",
    class: Class::User,
    meaning: "`model.config` names neither a readable config.json, nor a folder with one, nor a built-in shape.",
    remedy: "check the path, or list the built-in shapes with `bedplate model list`",
};

static NOT_FINITE: Page = Page {
    code: "train/not-finite",
    class: Class::User,
    meaning: "The loss or the gradient of a step is infinite or NaN. The step was not applied, and the last checkpoint \
              is good. The message names the step, the first sample and the first block whose output is not finite, \
              found by computing the batch again.",
    remedy: "resume from the last checkpoint with a lower `optimizer.learning_rate` or a longer `optimizer.warmup`; if the \
             embedding is named, the weights themselves are broken; look at the sample with `bedplate data show --sample`",
};

static NO_SUCH_TARGET: Page = Page {
    code: "train/no-such-target",
    class: Class::User,
    meaning: "`adapter.targets` are the last words of the names of matrices, such as `q_proj` in \
              `model.layers.0.self_attn.q_proj.weight`. No matrix of this model has that name.",
    remedy: "use q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj; w1, w2, w3 for Mixtral; c_attn, c_proj, c_fc, \
             wpe for GPT-2; lm_head and embed_tokens where they are two matrices",
};

static TIED_TARGET: Page = Page {
    code: "train/tied-target",
    class: Class::User,
    meaning: "Where `tie_word_embeddings` is set, one matrix serves as the embedding and as the head. An adapter on one of the two \
              alone would part them, and PEFT would merge it into both.",
    remedy: "leave `lm_head`, `embed_tokens` and `wte` out of `adapter.targets`; `wpe` and all matrices of layers can have adapters",
};

static RANK_TOO_LARGE: Page = Page {
    code: "train/rank-too-large",
    class: Class::User,
    meaning: "An adapter is a product of two thin matrices. If its rank exceeded the smaller side of the matrix that it \
              adapts, it would be larger than that matrix and able to do no more.",
    remedy: "set `adapter.rank` to at most the number given, usually to 8 to 64",
};

static TOO_LARGE: Page = Page {
    code: "train/too-large",
    class: Class::User,
    meaning: "The run would allocate more memory than this machine has available or than the limits of its control \
              group leave. The need follows from the model's shape and the configuration, so the run was refused before \
              it allocated anything.",
    remedy: "choose a smaller model, `training.micro_batch` or `data.sequence`, `training.recompute = \"full\"`, or adapters",
};

static LAYOUT: Page = Page {
    code: "train/bad-layout",
    class: Class::User,
    meaning: "The layout of the run (`training.layout` or `--layout`) breaks a rule: its degrees do not multiply to the \
              number of ranks, or do not divide the dimension of the model, sequence or batch that they split. The \
              message has every reason.",
    remedy: "change the layout, the number of ranks, or what it divides; `bedplate layout` checks one, `--layout auto` chooses one",
};

static UNSUPPORTED_LAYOUT: Page = Page {
    code: "train/unsupported-layout",
    class: Class::User,
    meaning: "The layout is legal, and this program can plan with it, but it does not train with it yet.",
    remedy: "choose another layout; the message says what is missing",
};

static ELSEWHERE: Page = Page {
    code: "train/another-rank-failed",
    class: Class::Transient,
    meaning: "This rank ended because another one could not go on. Its own output says what went wrong.",
    remedy: "look at the output of the rank that is named",
};

static STATE_LOST: Page = Page {
    code: "train/state-lost",
    class: Class::Transient,
    meaning: "Some ranks were lost together with every copy of a part of their state: a rank and the neighbour that \
              kept its copy, or ranks of a run without copies.",
    remedy: "start the run again with `--resume`; it goes on from its newest checkpoint",
};

static TOO_FEW_RANKS: Page = Page {
    code: "train/too-few-ranks",
    class: Class::Transient,
    meaning: "Ranks were lost, and the ones left do not make up one whole replica of the layout. No other rank came \
              within `training.wait_seconds`, or none was expected.",
    remedy: "start the run again with `--resume`; it goes on from its newest checkpoint, also on fewer ranks with another `--layout`. \
             With `--spares` or more `--restarts` it would have gone on",
};

static OTHER_ADAPTER: Page = Page {
    code: "train/other-adapter",
    class: Class::User,
    meaning: "The file of adapters lacks a matrix that this configuration asks for, or has it in a different size.",
    remedy: "use the rank and the targets that the adapters were made with",
};

static CHANGED_SETTINGS: Page = Page {
    code: "train/changed-settings",
    class: Class::User,
    meaning: "A resumed run must give the same loss curve as one that was never stopped. The settings named differ from \
              those that the checkpoint was made with, and they would have changed the steps done before it.",
    remedy: "restore the settings, or give `--accept-changes` to go on with the new ones from here",
};

static NOTHING_TO_RESUME: Page = Page {
    code: "train/nothing-to-resume",
    class: Class::User,
    meaning: "`--resume` was given, but the output folder has no finished checkpoint.",
    remedy: "start without `--resume`, or name the right `output.folder`",
};

static FOLDER_IN_USE: Page = Page {
    code: "train/folder-in-use",
    class: Class::User,
    meaning: "The output folder holds checkpoints of an earlier run, which a new one would overwrite.",
    remedy: "give `--resume` to go on with that run, or another `output.folder` for a new one",
};

static FOLDER_LOCKED: Page = Page {
    code: "train/folder-locked",
    class: Class::Transient,
    meaning: "Another process is training with the same output folder. Two writers would overwrite each other's checkpoints and \
              records.",
    remedy: "wait for that process or stop it, or give another `output.folder`",
};

static UNUSABLE_OUTPUT: Page = Page {
    code: "train/unusable-output",
    class: Class::User,
    meaning: "The output cannot be written there at all: something that is not a folder is in the way, or this user may not write.",
    remedy: "give another `output.folder`, or change what is there",
};

static WRITE_OUTPUT: Page = Page {
    code: "train/cannot-write",
    class: Class::Transient,
    meaning: "A checkpoint, weights or metrics could not be written. Checkpoints that were finished before are whole.",
    remedy: "free space or fix permissions, then go on with `--resume`",
};

impl Diagnostic for TrainError {
    fn page(&self) -> &'static Page {
        match self {
            TrainError::Config(error) => error.page(),
            TrainError::Network(error) => error.page(),
            TrainError::Serve(error) => error.page(),
            TrainError::Device(error) => error.page(),
            TrainError::Data(error) => error.page(),
            TrainError::Record(error) => error.page(),
            TrainError::Checkpoint(error) => error.page(),
            TrainError::Elsewhere { .. } => &ELSEWHERE,
            TrainError::ReadModel { .. } => &READ_MODEL,
            TrainError::NotFinite { .. } => &NOT_FINITE,
            TrainError::NoSuchTarget { .. } => &NO_SUCH_TARGET,
            TrainError::RankTooLarge { .. } => &RANK_TOO_LARGE,
            TrainError::TooLarge { .. } => &TOO_LARGE,
            TrainError::Layout { .. } => &LAYOUT,
            TrainError::UnsupportedLayout { .. } => &UNSUPPORTED_LAYOUT,
            TrainError::StateLost { .. } => &STATE_LOST,
            TrainError::TooFewRanks { .. } => &TOO_FEW_RANKS,
            TrainError::Ranks(error) => error.page(),
            TrainError::Join(error) => error.page(),
            TrainError::TiedTarget { .. } => &TIED_TARGET,
            TrainError::OtherAdapter { .. } => &OTHER_ADAPTER,
            TrainError::ChangedSettings { .. } => &CHANGED_SETTINGS,
            TrainError::NothingToResume { .. } => &NOTHING_TO_RESUME,
            TrainError::FolderInUse { .. } => &FOLDER_IN_USE,
            TrainError::FolderLocked { .. } => &FOLDER_LOCKED,
            TrainError::WriteOutput { source, .. } if is_permanent(source) => &UNUSABLE_OUTPUT,
            TrainError::WriteOutput { .. } => &WRITE_OUTPUT,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            TrainError::Config(error) => error.help(),
            TrainError::Network(error) => error.help(),
            TrainError::Serve(error) => error.help(),
            TrainError::Device(error) => error.help(),
            TrainError::Data(error) => error.help(),
            TrainError::Record(error) => error.help(),
            TrainError::Checkpoint(error) => error.help(),
            TrainError::TooLarge { fits, free, .. } => {
                let fits = match fits {
                    Some(fits) => format!("it fits with {fits}"),
                    None => {
                        "no setting makes this model fit; choose a smaller one or a machine with more memory"
                            .to_owned()
                    }
                };
                Some([fits].into_iter().chain(free.others()).collect::<Vec<_>>().join("; "))
            }
            _ => None,
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            TrainError::Config(error) => error.place(),
            TrainError::Network(error) => error.place(),
            TrainError::Serve(error) => error.place(),
            TrainError::Data(error) => error.place(),
            TrainError::Record(error) => error.place(),
            _ => None,
        }
    }
}
