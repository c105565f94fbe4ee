//! What can be wrong with a model that is to be computed, or with its weights.

use std::io;
use std::path::PathBuf;

use bedplate_diag::{Class, Diagnostic, Page, Place};
use bedplate_transformer::{ModelError, Remark};

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error(transparent)]
    Model(Box<ModelError>),
    #[error("this program cannot compute {feature}")]
    Unsupported { feature: String },
    #[error("{0}")]
    NotComputed(Box<Remark>),
    #[error("sequences of {longest} tokens are asked for, but the model has {positions} learned positions")]
    TooLong { longest: usize, positions: u64 },
    #[error("{count} {what} cannot be divided evenly among {degree} {among}")]
    Uneven { what: &'static str, count: u64, degree: u64, among: &'static str },
    #[error("cannot read weights from {}", path.display())]
    ReadWeights { path: PathBuf, source: io::Error },
    #[error("{} is not a usable safetensors file: {what}", path.display())]
    BrokenWeights { path: PathBuf, what: String },
    #[error("{} lacks {count} tensors of the model, first `{first}`", path.display())]
    MissingTensors { path: PathBuf, first: String, count: usize },
    #[error("tensor `{tensor}` in {} has shape {found:?}, but the model's is {expected:?}", path.display())]
    WrongShape { path: PathBuf, tensor: String, expected: Vec<usize>, found: Vec<usize> },
    #[error("number {place} of tensor `{tensor}` in {} is {value}", path.display())]
    NotFinite { path: PathBuf, tensor: String, place: usize, value: f32 },
    #[error("{} holds `{head}` and another embedding, but the configuration says that they are one matrix", path.display())]
    DistinctHead { path: PathBuf, head: String },
    #[error("cannot write weights to {}", path.display())]
    WriteWeights { path: PathBuf, source: io::Error },
}

impl From<ModelError> for NetworkError {
    fn from(error: ModelError) -> Self {
        Self::Model(Box::new(error))
    }
}

/// The documentation of every code of this crate.
pub const PAGES: &[&Page] = &[
    &UNSUPPORTED,
    &TOO_LONG,
    &UNEVEN,
    &READ_WEIGHTS,
    &BROKEN_WEIGHTS,
    &MISSING_TENSORS,
    &WRONG_SHAPE,
    &NOT_FINITE,
    &DISTINCT_HEAD,
    &WRITE_WEIGHTS,
];

static UNSUPPORTED: Page = Page {
    code: "network/unsupported",
    class: Class::User,
    meaning: "The configuration describes a model that can be planned but not computed here. The program computes \
              GPT-2, Llama, Mistral, Ministral, Mixtral, Qwen2, Qwen2-MoE, Qwen3, Qwen3-MoE, Gemma, Gemma 2, Gemma 3, Phi-3, \
              Phi-4, OLMo 2, OLMo 3, OLMoE, GLM, GLM-4, SmolLM3 and Granite models with rotary (default, linear, dynamic, \
              llama3, yarn, longrope) or learned positions, full or sliding-window attention. Some features have no \
              kernel for a GPU yet.",
    remedy: "choose a model of these families, or remove the feature from its configuration",
};

static TOO_LONG: Page = Page {
    code: "network/too-long",
    class: Class::User,
    meaning: "The model has learned positions: one vector for each position. The sequence is longer than there are positions.",
    remedy: "set `data.sequence` to at most the number of positions (`n_positions` in config.json)",
};

static UNEVEN: Page = Page {
    code: "network/uneven-slices",
    class: Class::User,
    meaning: "Tensor parallelism gives every rank the same number of query heads, of key and value heads, and of columns of each \
              MLP and expert; key and value heads are not replicated. Expert parallelism gives every rank the same number of routed \
              experts, context parallelism two equal chunks of every sequence, and sequence parallelism equally many rows of a \
              micro-batch. The degree must divide each of them.",
    remedy: "choose a degree that divides the number that is named, or use pipeline stages instead",
};

static READ_WEIGHTS: Page = Page {
    code: "network/cannot-read-weights",
    class: Class::User,
    meaning: "A file of weights could not be opened or read. A folder must hold model.safetensors, or \
              model.safetensors.index.json and the files it names.",
    remedy: "check the path; weights in PyTorch's .bin files must be converted to safetensors first",
};

static BROKEN_WEIGHTS: Page = Page {
    code: "network/broken-weights",
    class: Class::User,
    meaning: "A safetensors file does not agree with its header, because it was cut off while copying or is another \
              kind of file. Or a tensor that the model needs has another format than F32, BF16 or F16.",
    remedy: "copy or download the file again and compare its size",
};

static MISSING_TENSORS: Page = Page {
    code: "network/missing-tensors",
    class: Class::User,
    meaning: "The weights do not hold every tensor that the configuration asks for, so they belong to another model or \
              some files are missing.",
    remedy: "use the config.json that was published with the weights",
};

static WRONG_SHAPE: Page = Page {
    code: "network/wrong-shape",
    class: Class::User,
    meaning: "A tensor has the right name, but its shape is not the one in the configuration.",
    remedy: "use the config.json that was published with the weights",
};

static NOT_FINITE: Page = Page {
    code: "network/weights-not-finite",
    class: Class::User,
    meaning: "A tensor of the given weights holds NaN or infinity, which would spread to everything computed with it. \
              The run that wrote it has diverged, or the file is damaged.",
    remedy: "use an earlier checkpoint of those weights, or copy or download the file again",
};

static DISTINCT_HEAD: Page = Page {
    code: "network/distinct-head",
    class: Class::User,
    meaning: "`tie_word_embeddings` is set, or is the default of the model's family, so the embedding also serves as the head. The \
              weights hold a head of their own that differs from it; it would be lost.",
    remedy: "set `tie_word_embeddings` to false in config.json to use both, or remove the head from the weights",
};

static WRITE_WEIGHTS: Page = Page {
    code: "network/cannot-write-weights",
    class: Class::Transient,
    meaning: "Weights could not be written. What was there before is unchanged.",
    remedy: "check space and permissions of the folder, then run again",
};

impl Diagnostic for NetworkError {
    fn page(&self) -> &'static Page {
        match self {
            NetworkError::Model(error) => error.page(),
            NetworkError::Unsupported { .. } | NetworkError::NotComputed(_) => &UNSUPPORTED,
            NetworkError::TooLong { .. } => &TOO_LONG,
            NetworkError::Uneven { .. } => &UNEVEN,
            NetworkError::ReadWeights { .. } => &READ_WEIGHTS,
            NetworkError::BrokenWeights { .. } => &BROKEN_WEIGHTS,
            NetworkError::MissingTensors { .. } => &MISSING_TENSORS,
            NetworkError::WrongShape { .. } => &WRONG_SHAPE,
            NetworkError::NotFinite { .. } => &NOT_FINITE,
            NetworkError::DistinctHead { .. } => &DISTINCT_HEAD,
            NetworkError::WriteWeights { .. } => &WRITE_WEIGHTS,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            NetworkError::Model(error) => error.help(),
            _ => None,
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            NetworkError::Model(error) => error.place(),
            NetworkError::NotComputed(remark) => Some(&remark.place),
            _ => None,
        }
    }
}
