//! One accelerator: its peaks, its memory, its links.

use bedplate_units::{Bandwidth, Bytes, FlopRate, Watts};

use crate::{CollectiveTimes, Evidence, MeasuredRates};

/// A GPU or another training or inference chip, or a host that trains by itself. Peaks are dense; vendors often print
/// sparse ones.
#[derive(Debug, Clone, PartialEq)]
pub struct Accelerator {
    pub name: String,
    pub title: String,
    /// Other spellings: driver product names, node labels, Slurm GRES types.
    pub aliases: Vec<String>,
    pub vendor: String,
    pub generation: String,
    pub peaks: Peaks,
    /// Nominal memory, as sold.
    pub memory: Bytes,
    /// What a program can allocate, where measured. "Does it fit" is decided by this.
    pub memory_usable: Option<Bytes>,
    pub memory_kind: Option<String>,
    pub memory_bandwidth: Option<Bandwidth>,
    pub multiprocessors: Option<u32>,
    pub compute_capability: Option<String>,
    pub power: Option<Watts>,
    /// Name of the fabric that joins accelerators of one scale-up domain.
    pub scale_up: Option<String>,
    /// Name of the fabric between accelerator and host.
    pub host_link: Option<String>,
    /// Rates measured on a host, used instead of its peaks.
    pub measured: Option<MeasuredRates>,
    /// Times of collectives between the ranks of a host.
    pub collectives: Vec<CollectiveTimes>,
    pub notes: Option<String>,
    pub evidence: Evidence,
}

impl Accelerator {
    /// Usable memory where it is known, else the nominal one.
    pub fn memory_for_programs(&self) -> Bytes {
        self.memory_usable.unwrap_or(self.memory)
    }
}

/// Dense peak rates by number format; a format that the chip lacks is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Peaks {
    pub fp32: Option<FlopRate>,
    pub tf32: Option<FlopRate>,
    pub bf16: Option<FlopRate>,
    pub fp8: Option<FlopRate>,
    pub fp4: Option<FlopRate>,
    pub int8: Option<FlopRate>,
}

impl Peaks {
    /// Every format with its peak, widest format first.
    pub fn by_format(&self) -> [(&'static str, Option<FlopRate>); 6] {
        [
            ("fp32", self.fp32),
            ("tf32", self.tf32),
            ("bf16", self.bf16),
            ("fp8", self.fp8),
            ("fp4", self.fp4),
            ("int8", self.int8),
        ]
    }
}
