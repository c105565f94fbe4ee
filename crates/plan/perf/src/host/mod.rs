//! A host that trains by itself, with this program's own runtime.
//!
//! Nothing here is fitted: rates are those that `bedplate bench machine` measured on the host, work is counted operator by
//! operator as `run/network` calls them, and memory is added up from the description that `run/network` allocates by. The only layouts are data-parallel
//! ones: each rank has its share of the host, holds the whole model and computes micro-batch after micro-batch; then the ranks add
//! up their gradients, in the time that `bedplate bench comm` measured.

mod adapters;
mod layer;
mod memory;
mod operators;
mod run;
mod step;

pub use run::{HostRun, predict_on_host};

use bedplate_catalog::{CollectiveCurve, MeasuredRates};
use bedplate_layout::ComputePrecision;
use bedplate_transformer::workspace::Widths;
use bedplate_transformer::{Attention, Positions, Reach, Transformer};

use crate::{Generation, Hardware, PerfError, Stack, Task, Workload};
use adapters::Adapters;
use operators::Operators;

/// A model on a host, as plain numbers.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    rates: MeasuredRates,
    hidden: usize,
    vocab: usize,
    sequence: usize,
    /// Of each layer, from first to last.
    widths: Vec<Widths>,
    /// Each kind of layer with how many there are of it.
    kinds: Vec<Kind>,
    /// Distinct reaches of the layers.
    reaches: usize,
    positions: Positions,
    parameters: f64,
    /// Bytes that the optimizer keeps per trainable parameter.
    moments: f64,
    /// Where only adapters are trained.
    adapters: Option<Adapters>,
    /// Between several ranks.
    all_reduce: Option<CollectiveCurve>,
}

#[derive(Debug, Clone, Copy)]
struct Kind {
    count: f64,
    widths: Widths,
    /// Keys that a query sees, on average.
    keys: f64,
}

impl Host {
    /// The host of a problem, if its hardware is one. Refuses what the runtime cannot do.
    pub(crate) fn of(
        model: &Transformer,
        hardware: &Hardware,
        workload: &Workload,
    ) -> Result<Option<Self>, PerfError> {
        let Some(rates) = hardware.measured.filter(|_| hardware.generation == Generation::Host) else {
            return match workload.stack {
                Stack::Bedplate => Err(PerfError::UnsupportedStack { stack: "bedplate", on: "accelerators" }),
                _ => Ok(None),
            };
        };
        if workload.stack != Stack::Bedplate {
            return Err(PerfError::UnsupportedStack { stack: workload.stack.name(), on: "a host" });
        }
        if hardware.gpus > 1 && hardware.all_reduce.is_none() {
            return Err(PerfError::CollectivesNotMeasured { ranks: hardware.gpus });
        }
        if model.runs.iter().any(|run| matches!(run.layer.attention, Attention::Latent(_))) {
            return Err(PerfError::UnsupportedModel { what: "latent attention" });
        }
        Ok(Some(Self { all_reduce: hardware.all_reduce, ..Self::new(model, rates, workload) }))
    }

    fn new(model: &Transformer, rates: MeasuredRates, workload: &Workload) -> Self {
        let kinds = model.layer_kinds().into_iter().map(|run| Kind {
            count: run.count as f64,
            widths: Widths::of(model.hidden, &run.layer),
            keys: mean_keys(run.layer.reach, workload.sequence),
        });
        Self {
            rates,
            hidden: model.hidden as usize,
            vocab: model.vocab as usize,
            sequence: workload.sequence as usize,
            widths: model.layers().map(|layer| Widths::of(model.hidden, layer)).collect(),
            kinds: kinds.collect(),
            reaches: model.reaches().len(),
            positions: model.positions,
            parameters: model.parameters().total as f64,
            moments: workload.optimizer.bytes_per_parameter(),
            adapters: match workload.task {
                Task::Lora { rank } => Some(Adapters::of(model, rank)),
                Task::Pretrain | Task::FineTune => None,
            },
            all_reduce: None,
        }
    }

    /// The operators in a number format; an unmeasured format uses the other's rates.
    fn operators(&self, precision: ComputePrecision) -> Operators {
        let MeasuredRates { fp32, bf16, .. } = self.rates;
        let rates = if precision == ComputePrecision::Fp32 { fp32.or(bf16) } else { bf16.or(fp32) };
        let rates = rates.expect("a measured host has a format: checked when the catalog is read");
        Operators::new(&self.rates, &rates, element_bytes(precision))
    }
}

/// Bytes of an activation or a compute weight.
fn element_bytes(precision: ComputePrecision) -> f64 {
    if precision == ComputePrecision::Fp32 { WIDE } else { 2.0 }
}

/// Bytes of a number in fp32, and of an index.
const WIDE: f64 = 4.0;

/// Keys per query including the query's own, which matters for short sequences: `(s + 1) / 2` for full attention.
fn mean_keys(reach: Reach, sequence: u64) -> f64 {
    let seen = |size: u64| (size * (size + 1) / 2) as f64;
    let all = match reach {
        Reach::Full => seen(sequence),
        Reach::Window(size) => {
            let size = size.min(sequence);
            seen(size) + (sequence - size) as f64 * size as f64
        }
        Reach::Chunk(size) => (sequence / size) as f64 * seen(size) + seen(sequence % size),
    };
    all / sequence.max(1) as f64
}
