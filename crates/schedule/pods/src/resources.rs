//! What pods ask for and nodes have, in Kubernetes' units, exactly.

use std::collections::BTreeMap;

/// Amounts of everything that is counted. They may be below zero where more is taken than there is.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resources {
    pub gpus: i64,
    pub cpu_milli: i64,
    pub memory_bytes: i64,
    /// Pods: one for each, against the number that a node takes.
    pub pods: i64,
    /// Anything else by its name: network interfaces, huge pages, ephemeral storage.
    pub others: BTreeMap<String, i64>,
}

impl Resources {
    pub fn add(&mut self, more: &Resources) {
        self.change(more, 1);
    }

    pub fn take(&mut self, less: &Resources) {
        self.change(less, -1);
    }

    fn change(&mut self, by: &Resources, sign: i64) {
        self.gpus += sign * by.gpus;
        self.cpu_milli += sign * by.cpu_milli;
        self.memory_bytes += sign * by.memory_bytes;
        self.pods += sign * by.pods;
        for (name, amount) in &by.others {
            *self.others.entry(name.clone()).or_default() += sign * amount;
        }
    }

    /// The same for a number of equal pods.
    pub(crate) fn times(&self, count: i64) -> Resources {
        Resources {
            gpus: self.gpus * count,
            cpu_milli: self.cpu_milli * count,
            memory_bytes: self.memory_bytes * count,
            pods: self.pods * count,
            others: self.others.iter().map(|(name, amount)| (name.clone(), amount * count)).collect(),
        }
    }

    /// Whether there is enough of all that `need` asks for; what it does not ask for does not matter.
    pub fn covers(&self, need: &Resources) -> bool {
        self.fits(need) > 0
    }

    /// How many times `need` fits.
    pub(crate) fn fits(&self, need: &Resources) -> i64 {
        let of = |have: i64, need: i64| if need <= 0 { i64::MAX } else { have.max(0) / need };
        let named =
            need.others.iter().map(|(name, need)| of(self.others.get(name).copied().unwrap_or(0), *need));
        named
            .chain([
                of(self.gpus, need.gpus),
                of(self.cpu_milli, need.cpu_milli),
                of(self.memory_bytes, need.memory_bytes),
                of(self.pods, need.pods),
            ])
            .min()
            .unwrap_or(i64::MAX)
    }

    /// Whether more is taken of something than there is.
    pub fn is_overdrawn(&self) -> bool {
        let counted = [self.gpus, self.cpu_milli, self.memory_bytes, self.pods];
        counted.into_iter().chain(self.others.values().copied()).any(|amount| amount < 0)
    }
}
