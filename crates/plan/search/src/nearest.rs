//! The nearest question that has an answer.
//!
//! Which numbers of GPUs have a legal layout follows from the divisors: tensor degrees that the heads allow,
//! context degrees that the sequence allows, stages up to the layers, data ranks that divide the batch. All
//! products of these are the numbers that work; whether something fits on one of them is then priced.

use std::collections::BTreeSet;
use std::fmt;

use bedplate_layout::{Layout, LayoutRefusal};
use bedplate_perf::{Hardware, Offload, Workload};
use bedplate_transformer::Transformer;
use bedplate_units::{Bytes, grouped};

use crate::axes::{allowed, degrees};
use crate::{Axes, Setup, Space};

/// A change that gives the question an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Nearest {
    /// Another number of GPUs of the same kind.
    Gpus(u32),
    /// The same number of GPUs with at least this much memory each.
    Memory(Bytes),
    /// Optimizer state in host memory.
    Offload,
    /// A part of the layout fixed to a value that the model refuses, and the values that it allows.
    Degree { part: &'static str, values: Vec<u32> },
}

impl fmt::Display for Nearest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Nearest::Gpus(1) => write!(f, "it works on 1 GPU"),
            Nearest::Gpus(gpus) => write!(f, "it works on {} GPUs", grouped(u64::from(*gpus))),
            Nearest::Memory(memory) => write!(f, "it works on GPUs with {memory} of usable memory"),
            Nearest::Offload => write!(f, "it fits with the optimizer state in host memory"),
            Nearest::Degree { part, values } => {
                let values: Vec<String> = values.iter().map(|value| format!("{part}{value}")).collect();
                write!(f, "the model allows {}", values.join(", "))
            }
        }
    }
}

/// Numbers of GPUs up to a million with a legal layout, in rising order. Above one domain only whole domains
/// count.
pub fn legal_gpu_counts(setup: &Setup<'_>, axes: &Axes) -> Vec<u32> {
    let batch = Some(setup.batch());
    let is_legal = |layout: Layout| layout.refusals(setup.model, None, batch).is_empty();
    let heads = query_heads(setup.model);
    let mut tensors = allowed(&axes.tensor, degrees(heads));
    tensors.retain(|tensor| is_legal(Layout { tensor: *tensor, ..Layout::default() }));
    let mut contexts = allowed(&axes.context, degrees(setup.workload.sequence));
    contexts.retain(|context| is_legal(Layout { context: *context, ..Layout::default() }));
    let stages = (1..=setup.model.layer_count().min(4096) as u32).collect();
    let stages = allowed(&axes.pipeline, stages);
    let ranks = degrees(setup.workload.global_batch);

    let products = |counts: BTreeSet<u32>, factors: &[u32]| -> BTreeSet<u32> {
        let grown =
            |count: &u32, factor: &u32| count.checked_mul(*factor).filter(|grown| *grown <= MOST_GPUS);
        counts.iter().flat_map(|count| factors.iter().filter_map(|factor| grown(count, factor))).collect()
    };
    let counts =
        [tensors, contexts, stages, ranks].iter().fold(BTreeSet::from([1]), |counts, f| products(counts, f));
    let domain = setup.hardware.domain.max(1);
    let is_whole = |count: &u32| *count <= domain || count.is_multiple_of(domain);
    counts.into_iter().filter(is_whole).collect()
}

/// Heads of the first layer that has some.
fn query_heads(model: &Transformer) -> u64 {
    model.runs.iter().map(|run| run.layer.attention.heads()).find(|heads| *heads > 0).unwrap_or(1)
}

/// Whether some layout fits on this many GPUs.
pub fn fits_on(setup: &Setup<'_>, axes: &Axes, gpus: u32) -> bool {
    gpus <= MOST_GPUS && Space::new(&setup.with_gpus(gpus), &axes.frugal()).is_ok_and(|space| space.has_fit())
}

/// The smallest number of GPUs on which some layout fits, up to `limit`.
///
/// More GPUs of a kind hold larger models, so bisection finds the answer; where that rule has an
/// exception the answer still fits and is close.
pub fn smallest_gpu_count(setup: &Setup<'_>, axes: &Axes, limit: u32) -> Option<u32> {
    let counts: Vec<u32> =
        legal_gpu_counts(setup, axes).into_iter().filter(|count| *count <= limit).collect();
    let fits = |count: u32| fits_on(setup, axes, count);
    // Doubling keeps the probes small; the last one that fits bounds the bisection.
    let mut low = 0;
    let mut step = 1;
    let mut high = loop {
        let probe = (low + step).min(counts.len()).checked_sub(1)?;
        if fits(counts[probe]) {
            break probe;
        }
        if probe + 1 == counts.len() {
            return None;
        }
        low = probe + 1;
        step *= 2;
    };
    while low < high {
        let middle = (low + high) / 2;
        if fits(counts[middle]) { high = middle } else { low = middle + 1 }
    }
    Some(counts[high])
}

/// What to change when no layout is legal: a wrongly fixed degree, or the number of GPUs.
pub(crate) fn nearest_legal(setup: &Setup<'_>, axes: &Axes, worst: Option<&LayoutRefusal>) -> Vec<Nearest> {
    let mut nearest = Vec::new();
    if let Some(
        LayoutRefusal::TensorDoesNotDivideHeads { .. } | LayoutRefusal::TensorDoesNotFitKvHeads { .. },
    ) = worst
    {
        let legal = |tensor: &u32| {
            let layout = Layout { tensor: *tensor, ..Layout::default() };
            layout.refusals(setup.model, None, None).is_empty()
        };
        let heads = query_heads(setup.model);
        let values: Vec<u32> = degrees(heads).into_iter().filter(legal).collect();
        nearest.push(Nearest::Degree { part: "tp", values });
    }
    let counts = legal_gpu_counts(setup, axes);
    let place = counts.partition_point(|count| *count < setup.gpus());
    let fits = |count: &&u32| fits_on(setup, axes, **count);
    let below = counts[..place].iter().rev().take(TRIES).find(fits);
    let above = counts[place..].iter().filter(|count| **count != setup.gpus()).take(TRIES).find(fits);
    let mut found: Vec<u32> = below.into_iter().chain(above).copied().collect();
    found.sort_by_key(|count| count.abs_diff(setup.gpus()));
    nearest.extend(found.into_iter().map(Nearest::Gpus));
    nearest
}

/// What to change when every layout is too large.
pub(crate) fn nearest_fit(setup: &Setup<'_>, axes: &Axes, needed: Bytes) -> Vec<Nearest> {
    let mut nearest = Vec::new();
    nearest.extend(
        smallest_gpu_count(setup, axes, MOST_GPUS).filter(|count| *count > setup.gpus()).map(Nearest::Gpus),
    );
    let larger = Setup { hardware: Hardware { memory: needed.get(), ..setup.hardware }, ..*setup };
    if fits_on(&larger, axes, setup.gpus()) {
        nearest.push(Nearest::Memory(needed));
    }
    let offload = Workload { offload: Offload::Optimizer, ..setup.workload };
    let is_new = setup.workload.offload != Offload::Optimizer;
    if is_new && fits_on(&Setup { workload: offload, ..*setup }, axes, setup.gpus()) {
        nearest.push(Nearest::Offload);
    }
    nearest
}

/// How many legal numbers of GPUs are priced in each direction.
const TRIES: usize = 24;
/// The largest cluster that is priced or proposed: fabrics are announced for "up to a million chips".
pub(crate) const MOST_GPUS: u32 = 1 << 20;
