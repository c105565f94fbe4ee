//! What can go wrong in a training run.

use std::io;
use std::path::PathBuf;

use bedplate_data::DataError;
use bedplate_diag::{Class, Diagnostic, Page, Place};
use bedplate_document::DocumentError;
use bedplate_network::NetworkError;
use bedplate_record::RecordError;

#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error(transparent)]
    Config(#[from] DocumentError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Record(#[from] RecordError),
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
    #[error("`{target}` can have no adapter of its own: embedding and head of this model are one matrix")]
    TiedTarget { target: String },
    #[error("{} is of another adapter: it has no `{tensor}` of this size", path.display())]
    OtherAdapter { path: PathBuf, tensor: String },
    #[error("the checkpoint {} is of another run: {what}", path.display())]
    OtherCheckpoint { path: PathBuf, what: String },
    #[error("cannot read the checkpoint {}", path.display())]
    ReadCheckpoint { path: PathBuf, source: io::Error },
    #[error("there is no checkpoint to resume from in {}", folder.display())]
    NothingToResume { folder: PathBuf },
    #[error("{} holds a run of {step} steps already", folder.display())]
    FolderInUse { folder: PathBuf, step: u64 },
    #[error("cannot write {}", path.display())]
    WriteOutput { path: PathBuf, source: io::Error },
}

fn began(block: &Option<String>, sample: Option<u64>) -> String {
    match (block, sample) {
        (Some(block), Some(sample)) => format!("; it began in {block}, with sample {sample}"),
        _ => "; every layer's output is finite, so it began in the backward pass".to_owned(),
    }
}

/// The documentation of every code of this crate.
pub const PAGES: &[&Page] = &[
    &READ_MODEL,
    &NOT_FINITE,
    &NO_SUCH_TARGET,
    &TIED_TARGET,
    &OTHER_ADAPTER,
    &OTHER_CHECKPOINT,
    &READ_CHECKPOINT,
    &NOTHING_TO_RESUME,
    &FOLDER_IN_USE,
    &WRITE_OUTPUT,
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
    meaning: "The loss or the gradient of a step is infinite or no number at all. The step was not applied; the last \
              checkpoint is good. The message names the step, the first sample and the first block whose output is not \
              finite, found by computing the batch again.",
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

static OTHER_ADAPTER: Page = Page {
    code: "train/other-adapter",
    class: Class::User,
    meaning: "The file of adapters lacks a matrix that this configuration asks for, or has it in another size.",
    remedy: "use the rank and the targets that the adapters were made with",
};

static OTHER_CHECKPOINT: Page = Page {
    code: "train/other-checkpoint",
    class: Class::User,
    meaning: "A run goes on exactly only from a checkpoint of the same model, data order and batch. This one differs.",
    remedy: "use the configuration that the checkpoint was made with, or start from its weights with `model.weights`",
};

static READ_CHECKPOINT: Page = Page {
    code: "train/cannot-read-checkpoint",
    class: Class::Transient,
    meaning: "A file or folder of checkpoints could not be read.",
    remedy: "check that the file system is there, then resume again",
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
            TrainError::Data(error) => error.page(),
            TrainError::Record(error) => error.page(),
            TrainError::ReadModel { .. } => &READ_MODEL,
            TrainError::NotFinite { .. } => &NOT_FINITE,
            TrainError::NoSuchTarget { .. } => &NO_SUCH_TARGET,
            TrainError::TiedTarget { .. } => &TIED_TARGET,
            TrainError::OtherAdapter { .. } => &OTHER_ADAPTER,
            TrainError::OtherCheckpoint { .. } => &OTHER_CHECKPOINT,
            TrainError::ReadCheckpoint { .. } => &READ_CHECKPOINT,
            TrainError::NothingToResume { .. } => &NOTHING_TO_RESUME,
            TrainError::FolderInUse { .. } => &FOLDER_IN_USE,
            TrainError::WriteOutput { .. } => &WRITE_OUTPUT,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            TrainError::Config(error) => error.help(),
            TrainError::Network(error) => error.help(),
            TrainError::Data(error) => error.help(),
            TrainError::Record(error) => error.help(),
            _ => None,
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            TrainError::Config(error) => error.place(),
            TrainError::Network(error) => error.place(),
            TrainError::Data(error) => error.place(),
            TrainError::Record(error) => error.place(),
            _ => None,
        }
    }
}
