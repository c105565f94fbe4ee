//! Questions that have no answer, each with the nearest one that has.

use bedplate_diag::{Diagnostic, Page, pages};
use bedplate_layout::{Layout, LayoutRefusal};
use bedplate_perf::PerfError;
use bedplate_units::{Bytes, Dollars, Seconds, grouped};

use crate::{NearMiss, Nearest, Objection};

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SearchError {
    #[error("{model} cannot be trained without GPUs")]
    NoGpus { model: String },
    #[error("{} GPUs are more than any fabric joins; the largest hold about a million", grouped((*.gpus).into()))]
    TooManyGpus { gpus: u32, nearest: Vec<Nearest> },
    #[error(
        "{model} has no legal layout on {} with {global_batch} sequences of {sequence} tokens per step: {reason}",
        gpu_count(*.gpus)
    )]
    NoLayout {
        model: String,
        gpus: u32,
        global_batch: u64,
        sequence: u64,
        /// The rule that cut most branches, with values.
        reason: String,
        nearest: Vec<Nearest>,
    },
    #[error(
        "{model} does not fit on {}: of {} legal layouts the smallest, {layout}, needs {needed} per GPU and there are {available}",
        gpu_count(*.gpus),
        grouped(*.layouts)
    )]
    DoesNotFit {
        model: String,
        gpus: u32,
        layouts: u64,
        layout: Box<Layout>,
        needed: Bytes,
        available: Bytes,
        nearest: Vec<Nearest>,
    },
    #[error("layout {layout} cannot be used: {}", reasons(.refusals))]
    RefusedLayout { layout: Box<Layout>, refusals: Vec<LayoutRefusal> },
    #[error("no machine of the catalog trains {model} on {tokens} tokens {limits}")]
    NoMachine {
        model: String,
        tokens: String,
        limits: String,
        /// Changes of the question with which it has an answer.
        ways: Vec<NearMiss>,
        /// Why each machine was not chosen.
        others: Vec<(String, Objection)>,
    },
    #[error("a budget of {} buys no compute", .dollars.map_or("nothing".into(), |d| d.to_string()))]
    EmptyBudget { dollars: Option<Dollars>, gpu_time: Option<Seconds> },
    #[error(transparent)]
    Predict(#[from] PerfError),
}

fn reasons(refusals: &[LayoutRefusal]) -> String {
    refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn gpu_count(gpus: u32) -> String {
    if gpus == 1 { "1 GPU".into() } else { format!("{} GPUs", grouped(gpus.into())) }
}

pages! { pub PAGES "plan":
    ZERO_GPUS "zero-gpus" User
        "The question names no GPUs, so there is nothing to train on."
        "name at least one node, such as `p5.48xlarge:1`"
    TOO_MANY_GPUS "too-many-gpus" User
        "The question names more GPUs than any network joins: the largest clusters announced hold about a million chips. A prediction beyond that would have no basis."
        "name at most 1,048,576 GPUs"
    NO_LAYOUT "no-layout" User
        "No layout obeys every rule on exactly this number of GPUs. The degrees of a layout multiply to the number of GPUs, tensor parallelism divides the heads, there are at most as many stages as layers, and data ranks divide the global batch. Some numbers of GPUs do not have the factors for that."
        "use another number of GPUs, or a global batch with more divisors"
    DOES_NOT_FIT "does-not-fit" User
        "Layouts exist, but each needs more memory per GPU than there is, even with everything sharded and all activations recomputed."
        "use more GPUs, GPUs with more memory, or a shorter sequence; or keep optimizer state in host memory"
    REFUSED_LAYOUT "refused-layout" User
        "The requested layout breaks a rule of the model, the cluster or the batch, so it cannot be priced."
        "`--explain LAYOUT` shows the nearest layout that works"
    NO_MACHINE "no-machine" User
        "No machine type of the catalog, in any number tried, meets the deadline and the budget. The answer lists the reason for every machine."
        "allow more time, more money or more GPUs; the nearest miss is in the answer"
    EMPTY_BUDGET "empty-budget" User
        "The budget is zero or not a number, so no model can be trained for it."
        "give dollars or GPU-hours above zero"
}

impl Diagnostic for SearchError {
    fn page(&self) -> &'static Page {
        match self {
            SearchError::NoGpus { .. } => &ZERO_GPUS,
            SearchError::TooManyGpus { .. } => &TOO_MANY_GPUS,
            SearchError::NoLayout { .. } => &NO_LAYOUT,
            SearchError::DoesNotFit { .. } => &DOES_NOT_FIT,
            SearchError::RefusedLayout { .. } => &REFUSED_LAYOUT,
            SearchError::NoMachine { .. } => &NO_MACHINE,
            SearchError::EmptyBudget { .. } => &EMPTY_BUDGET,
            SearchError::Predict(error) => error.page(),
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            SearchError::TooManyGpus { nearest, .. }
            | SearchError::NoLayout { nearest, .. }
            | SearchError::DoesNotFit { nearest, .. } => {
                let ways: Vec<String> = nearest.iter().map(ToString::to_string).collect();
                (!ways.is_empty()).then(|| ways.join("; or "))
            }
            SearchError::NoMachine { ways, .. } => {
                let ways: Vec<String> = ways.iter().map(ToString::to_string).collect();
                (!ways.is_empty()).then(|| ways.join("; or "))
            }
            SearchError::Predict(error) => error.help(),
            _ => None,
        }
    }
}
