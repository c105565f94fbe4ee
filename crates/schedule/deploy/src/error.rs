//! Questions that have no answer, each with the nearest one that has.

use bedplate_diag::{Diagnostic, Page, pages};
use bedplate_perf::PerfError;
use bedplate_search::SearchError;
use bedplate_units::{Bytes, Seconds};

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DeployError {
    #[error("{what} is out of range")]
    NothingAsked { what: &'static str },
    #[error("a request of {asked} tokens exceeds the context of {model}, which is {context}")]
    ContextTooLong { model: String, asked: u64, context: u64, longer: Option<Longer> },
    #[error("{model} does not fit on {machines}: the closest way to split it, {layout}, needs {over} more")]
    DoesNotFit {
        model: String,
        machines: String,
        layout: String,
        over: Shortage,
        /// What it would fit on.
        nearest: Vec<String>,
    },
    #[error("{model} fits on {machines}, but in no formats that both share")]
    NoCommonFormat { model: String, machines: String },
    #[error("no deployment of {model} on {machines} holds the objectives at {rate} requests/s: {reason}")]
    NoneHolds { model: String, machines: String, rate: f64, reason: Failing, nearest: Vec<String> },
    #[error("`{text}` does not name a deployment: {reason}")]
    UnknownPattern { text: String, reason: String },
    #[error("training {model} on {gpus} GPUs has no plan")]
    Training { model: String, gpus: u32, source: Box<SearchError> },
    #[error("no split of {gpus} GPUs into {what} works: {reason}")]
    NoSplit { gpus: u32, what: &'static str, reason: String },
    #[error(transparent)]
    Predict(#[from] PerfError),
}

/// How many of the recorded requests are too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Longer {
    pub requests: usize,
    pub of: usize,
}

/// What is missing on a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shortage {
    PerGpu(Bytes),
    Tokens(u64),
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Shortage::PerGpu(bytes) => write!(f, "{bytes} per GPU"),
            Shortage::Tokens(tokens) => write!(f, "room for {tokens} tokens of KV"),
        }
    }
}

/// Which limit fails.
#[derive(Debug, Clone, PartialEq)]
pub enum Failing {
    /// Even an empty replica is too slow.
    Speed {
        bound: &'static str,
        best: Seconds,
        limit: Seconds,
        layout: String,
    },
    Gpus {
        needed: u32,
        available: u32,
        plan: String,
    },
    Replay {
        share: f64,
        asked: f64,
        bound: &'static str,
        plan: String,
    },
}

impl std::fmt::Display for Failing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failing::Speed { bound, best, limit, layout } => {
                write!(f, "{bound} is {best} at best, with {layout}, and the limit is {limit}")
            }
            Failing::Gpus { needed, available, plan } => {
                write!(f, "the rate needs {needed} GPUs, with {plan}, and there are {available}")
            }
            Failing::Replay { share, asked, bound, plan } if share < asked => write!(
                f,
                "{bound} fails; in a replay of {plan} {:.1}% of requests met the objectives, and {:.1}% must",
                share * 100.0,
                asked * 100.0
            ),
            Failing::Replay { bound, plan, .. } => {
                write!(
                    f,
                    "{bound} fails; in a replay of {plan} requests arrived faster than they were answered"
                )
            }
        }
    }
}

pages! { pub PAGES "deploy":
    NOTHING_ASKED "nothing-asked" User
        "A load needs requests with at least one token in and one out, at a rate above zero, and at least one GPU and one format to serve them with."
        "give lengths, a rate and a share above zero"
    CONTEXT_TOO_LONG "context-too-long" User
        "Prompt and answer together are longer than the model's context, so no engine would accept the request."
        "ask for shorter requests, or take a model with a longer context"
    DOES_NOT_FIT "does-not-fit" User
        "However the model is split, in every allowed format, the weights and the KV of one request exceed the memory of the GPUs."
        "use more GPUs, GPUs with more memory, or narrower formats; what would fit is in the answer"
    NO_COMMON_FORMAT "no-common-format" User
        "When prompts and decodes run on different GPUs, both need weights and KV in the same formats. Each of the two kinds of GPUs can hold the model in some format, but no format fits both."
        "use more GPUs, so that wider formats fit, or allow more formats with `--precision` and `--kv`"
    NONE_HOLDS "none-holds" User
        "Some deployments fit, but none of those tried meets the objectives at the rate. The answer says which limit fails and names the nearest question that has an answer."
        "relax the limit that fails, lower the rate, or add GPUs; the nearest that holds is in the answer"
    UNKNOWN_PATTERN "unknown-pattern" User
        "A deployment is written as its degrees and formats joined by dots, such as `tp4.pp2.fp8.kv-fp8.chunk8192`; any of them may be left out. Prompt and decode pools are joined by `+`."
        "write something like `tp4.fp8`, or `tp2+tp4` for two pools"
    TRAINING "no-training-plan" User
        "No layout of the training part of a post-training step fits on the GPUs it would get."
        "give more GPUs or shorter sequences; `bedplate plan train` shows what would fit"
    NO_SPLIT "no-split" User
        "Rollouts and training can share the GPUs or divide them, but neither way lets both fit."
        "give more GPUs, shorter answers, or a narrower format for rollouts"
}

impl Diagnostic for DeployError {
    fn page(&self) -> &'static Page {
        match self {
            DeployError::NothingAsked { .. } => &NOTHING_ASKED,
            DeployError::ContextTooLong { .. } => &CONTEXT_TOO_LONG,
            DeployError::DoesNotFit { .. } => &DOES_NOT_FIT,
            DeployError::NoCommonFormat { .. } => &NO_COMMON_FORMAT,
            DeployError::NoneHolds { .. } => &NONE_HOLDS,
            DeployError::UnknownPattern { .. } => &UNKNOWN_PATTERN,
            DeployError::Training { .. } => &TRAINING,
            DeployError::NoSplit { .. } => &NO_SPLIT,
            DeployError::Predict(error) => error.page(),
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            DeployError::DoesNotFit { nearest, .. } | DeployError::NoneHolds { nearest, .. } => {
                (!nearest.is_empty()).then(|| nearest.join("; or "))
            }
            DeployError::ContextTooLong { longer: Some(Longer { requests, of }), .. } => Some(format!(
                "{requests} of the {of} requests of the trace are too long: leave them out of it, or take a model with a longer context"
            )),
            DeployError::Training { source, .. } => source.help(),
            DeployError::Predict(error) => error.help(),
            _ => None,
        }
    }
}
