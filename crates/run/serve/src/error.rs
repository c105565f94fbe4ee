//! What keeps a model from being served.

use std::io;
use std::path::PathBuf;

use bedplate_batching::OptionsFlaw;
use bedplate_comm::CommError;
use bedplate_diag::{Class, Diagnostic, Page, Place};
use bedplate_kernels::CudaError;
use bedplate_network::NetworkError;
use bedplate_units::Bytes;

use crate::FreeMemory;

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot read {}", path.display())]
    ReadModel { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Network(Box<NetworkError>),
    #[error(transparent)]
    Device(#[from] CudaError),
    #[error("the settings do not fit together: {0}")]
    Options(OptionsFlaw),
    #[error(
        "{given} for keys and values hold {blocks} blocks of {block}; a text of {context} tokens needs {needed}"
    )]
    TooFewBlocks { given: Bytes, block: Bytes, blocks: u64, needed: u64, context: u32 },
    #[error("{needed} of memory are needed: weights {weights}, keys and values {kv}; {free}")]
    TooLarge {
        needed: Bytes,
        free: FreeMemory,
        weights: Bytes,
        kv: Bytes,
        /// The nearest setting with which the model fits.
        fits: Option<String>,
    },
    #[error("the system gives no memory for keys and values")]
    NoMemory(#[source] io::Error),
    #[error("this device has no attention over keys and values of fp8 for this model")]
    KvFormat,
    #[error("cannot keep prefixes in {}", path.display())]
    SpillFolder { path: PathBuf, source: io::Error },
    #[error("a {part} and the model do not belong together: {reason}")]
    Mismatch { part: &'static str, reason: String },
    #[error("the ranks of the model cannot work together any more")]
    Ranks(#[source] Box<CommError>),
    #[error("the model has stopped: {reason}")]
    Stopped { reason: String },
}

/// The documentation of every code of this crate.
pub const PAGES: &[&Page] =
    &[&READ_MODEL, &OPTIONS, &TOO_FEW_BLOCKS, &TOO_LARGE, &KV_FORMAT, &SPILL_FOLDER, &MISMATCH, &STOPPED];

static READ_MODEL: Page = Page {
    code: "serve/cannot-read-model",
    class: Class::User,
    meaning: "A model is served from a folder in Hugging Face's format: config.json, safetensors in one file or many, \
              tokenizer.json and its configuration. A file of it could not be read.",
    remedy: "give the folder that holds config.json; `bedplate checkpoint convert` makes one of a training run",
};

static OPTIONS: Page = Page {
    code: "serve/settings",
    class: Class::User,
    meaning: "Settings of the request scheduler contradict each other.",
    remedy: "change the setting that is named",
};

static TOO_FEW_BLOCKS: Page = Page {
    code: "serve/too-little-memory-for-keys",
    class: Class::User,
    meaning: "While a text is generated, its keys and values are kept in memory. The memory given for them cannot hold \
              one text of the longest length to be served.",
    remedy: "give more memory (`--kv-memory`) or serve shorter texts (`--context`)",
};

static TOO_LARGE: Page = Page {
    code: "serve/too-large",
    class: Class::User,
    meaning: "Weights, keys and values together need more memory than this process may take, which is what the system \
              has free or what the limits of its control group leave. Nothing was loaded.",
    remedy: "choose a smaller format (`--weights int8` or `int4`), less memory for keys and values (`--kv-memory`) or a smaller model",
};

static SPILL_FOLDER: Page = Page {
    code: "serve/spill-folder",
    class: Class::User,
    meaning: "The folder for prefixes that no longer fit into memory cannot be made or written.",
    remedy: "give a folder on a disk with room, owned by you (`--spill-folder`)",
};

static KV_FORMAT: Page = Page {
    code: "serve/kv-format",
    class: Class::User,
    meaning: "Keys and values of fp8 need an NVIDIA GPU of the Hopper generation, activations of bf16, heads of 64 or 128 numbers, at most eight \
              query heads for each key head, and blocks of a multiple of 16 tokens.",
    remedy: "leave out `--kv fp8`; where the GPU and the model are such, `--precision bf16` and a `--block` that is a multiple of 16",
};

static MISMATCH: Page = Page {
    code: "serve/mismatch",
    class: Class::User,
    meaning: "A draft model must have the same vocabulary as the model that it works beside. The one given was made for \
              another model.",
    remedy: "use the one that was made for this model",
};

static STOPPED: Page = Page {
    code: "serve/stopped",
    class: Class::Transient,
    meaning: "The engine of a model cannot go on: its GPU has failed, a rank of it was lost or is silent, or the program has a fault. Requests that were running \
              have failed.",
    remedy: "look at what was said before, then start it again; a cluster, a router or `--replicas` does so by itself",
};

impl Diagnostic for ServeError {
    fn page(&self) -> &'static Page {
        match self {
            ServeError::Network(error) => error.page(),
            ServeError::Ranks(error) => error.page(),
            ServeError::Device(error) => error.page(),
            ServeError::ReadModel { .. } => &READ_MODEL,
            ServeError::Options(_) => &OPTIONS,
            ServeError::TooFewBlocks { .. } => &TOO_FEW_BLOCKS,
            ServeError::TooLarge { .. } | ServeError::NoMemory(_) => &TOO_LARGE,
            ServeError::KvFormat => &KV_FORMAT,
            ServeError::SpillFolder { .. } => &SPILL_FOLDER,
            ServeError::Mismatch { .. } => &MISMATCH,
            ServeError::Stopped { .. } => &STOPPED,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            ServeError::Network(error) => error.help(),
            ServeError::Device(error) => error.help(),
            ServeError::TooLarge { free, fits, .. } => {
                let fits = fits.as_ref().map(|fits| format!("it fits with {fits}"));
                let said: Vec<String> = fits.into_iter().chain(free.others()).collect();
                (!said.is_empty()).then(|| said.join("; "))
            }
            _ => None,
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            ServeError::Network(error) => error.place(),
            _ => None,
        }
    }
}
