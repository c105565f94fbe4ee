//! A host that trains by itself, with this program's own runtime.
//!
//! Nothing here is fitted: rates are those that `bedplate bench machine` measured on the host, work is counted operator by
//! operator as `run/network` calls them, and memory is added up from the description that `run/network` allocates by. Each of several
//! ranks has its share of the host; what they exchange takes the time that `bedplate bench comm` measured.

mod adapters;
mod collectives;
mod exchange;
mod layer;
mod memory;
mod operators;
mod part;
mod run;
mod serving;
mod step;

pub use collectives::{Collective, LocalCollectives};
pub use run::{HostRun, memory_on_host, predict_on_host};
pub use serving::{HostFormats, HostStep, serve_on_host};

use bedplate_catalog::MeasuredRates;
use bedplate_layout::ComputePrecision;
use bedplate_transformer::{Attention, Positions, Reach, Transformer};

use crate::{Generation, Hardware, PeerCopies, PerfError, Stack, Task, Workload};
use adapters::HostAdapters;
use operators::Operators;

/// A model on a host, as plain numbers.
#[derive(Debug, Clone)]
pub(crate) struct HostModel {
    model: Transformer,
    /// Of one rank.
    rates: MeasuredRates,
    hidden: usize,
    vocab: usize,
    sequence: usize,
    /// Distinct reaches of the layers.
    reaches: usize,
    positions: Positions,
    /// Bytes that the optimizer keeps per trainable parameter.
    moments: f64,
    /// Ranks survive each other.
    copies: PeerCopies,
    /// Where only adapters are trained.
    adapters: Option<HostAdapters>,
    ranks: f64,
    collectives: LocalCollectives,
}

impl HostModel {
    /// The host of a problem, if its hardware is one. Refuses what the runtime cannot do.
    pub(crate) fn of(
        model: &Transformer,
        hardware: &Hardware,
        workload: &Workload,
    ) -> Result<Option<Self>, PerfError> {
        let Some(rates) = hardware.measured.filter(|_| hardware.generation == Generation::Host) else {
            // Ranks exchange numbers through the processor's memory and so stay on it.
            let is_refused = workload.stack == Stack::Bedplate && hardware.gpus > 1;
            let refusal = PerfError::UnsupportedStack { stack: "bedplate", on: "several accelerators" };
            return if is_refused { Err(refusal) } else { Ok(None) };
        };
        if workload.stack != Stack::Bedplate {
            return Err(PerfError::UnsupportedStack { stack: workload.stack.name(), on: "a host" });
        }
        if hardware.gpus > 1 && !hardware.collectives.has(Collective::AllReduce, hardware.gpus) {
            let operation = Collective::AllReduce.name();
            return Err(PerfError::CollectivesNotMeasured { operation, ranks: hardware.gpus });
        }
        if model.runs.iter().any(|run| matches!(run.layer.attention, Attention::Latent(_))) {
            return Err(PerfError::UnsupportedModel { what: "latent attention" });
        }
        if model.is_hybrid() {
            return Err(PerfError::UnsupportedModel { what: "layers with a state or with one half" });
        }
        Ok(Some(Self {
            ranks: f64::from(hardware.gpus),
            collectives: hardware.collectives,
            ..Self::new(model, rates, workload)
        }))
    }

    fn new(model: &Transformer, rates: MeasuredRates, workload: &Workload) -> Self {
        Self {
            model: model.clone(),
            rates,
            hidden: model.hidden as usize,
            vocab: model.vocab as usize,
            sequence: workload.sequence as usize,
            reaches: model.reaches().len(),
            positions: model.positions,
            moments: workload.optimizer.bytes_per_parameter(),
            copies: workload.copies,
            adapters: match workload.task {
                Task::Lora { rank } => Some(HostAdapters::of(model, rank)),
                Task::Pretrain | Task::FineTune => None,
            },
            ranks: 1.0,
            collectives: LocalCollectives::default(),
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
