//! How much of a node: GPUs, processor cores and host memory, compared part by part.

use std::fmt;

/// A part of one node, or all of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct Amount {
    pub gpus: u16,
    pub cpus: u16,
    pub memory_mib: u32,
}

impl Amount {
    pub const ZERO: Amount = Amount { gpus: 0, cpus: 0, memory_mib: 0 };

    pub const fn gpus(gpus: u16) -> Self {
        Self { gpus, cpus: 0, memory_mib: 0 }
    }

    /// Whether there is at least `need` of everything.
    pub fn covers(self, need: Amount) -> bool {
        self.gpus >= need.gpus && self.cpus >= need.cpus && self.memory_mib >= need.memory_mib
    }

    /// The smaller of each part.
    pub fn least(self, other: Amount) -> Amount {
        Amount {
            gpus: self.gpus.min(other.gpus),
            cpus: self.cpus.min(other.cpus),
            memory_mib: self.memory_mib.min(other.memory_mib),
        }
    }

    pub fn plus(self, other: Amount) -> Amount {
        Amount {
            gpus: self.gpus.saturating_add(other.gpus),
            cpus: self.cpus.saturating_add(other.cpus),
            memory_mib: self.memory_mib.saturating_add(other.memory_mib),
        }
    }

    /// What is left; `None` when it does not cover `other`.
    pub fn minus(self, other: Amount) -> Option<Amount> {
        Some(Amount {
            gpus: self.gpus.checked_sub(other.gpus)?,
            cpus: self.cpus.checked_sub(other.cpus)?,
            memory_mib: self.memory_mib.checked_sub(other.memory_mib)?,
        })
    }
}

/// Amounts on nodes, those on the same node added up: two roles of a gang may stand there.
pub(crate) fn summed_by_node(amounts: impl Iterator<Item = (u32, Amount)>) -> Vec<(u32, Amount)> {
    let mut amounts: Vec<(u32, Amount)> = amounts.collect();
    amounts.sort_by_key(|(node, _)| *node);
    amounts.dedup_by(|later, kept| {
        let is_same = later.0 == kept.0;
        if is_same {
            kept.1 = kept.1.plus(later.1);
        }
        is_same
    });
    amounts
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.gpus == 1 { "" } else { "s" };
        write!(f, "{} GPU{plural}", self.gpus)?;
        if self.cpus > 0 {
            write!(f, ", {} cores", self.cpus)?;
        }
        if self.memory_mib > 0 {
            write!(f, ", {:.1} GiB", f64::from(self.memory_mib) / 1024.0)?;
        }
        Ok(())
    }
}
