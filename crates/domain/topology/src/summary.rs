//! A cluster in a few lines.

use std::fmt;

use bedplate_units::grouped;

use crate::{AttachedStorage, Cluster, GpuRange, Health, Level};

/// Counts by kind, health and level. Prints as a short text.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    pub name: String,
    pub nodes: u32,
    pub gpus: u32,
    /// GPUs that work may be placed on.
    pub usable_gpus: u32,
    pub kinds: Vec<KindCount>,
    /// Only states that occur.
    pub health: Vec<HealthCount>,
    pub levels: Vec<LevelCount>,
    pub storage: Vec<AttachedStorage>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindCount {
    pub kind: String,
    pub accelerator: Option<String>,
    pub nodes: u32,
    pub gpus: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCount {
    pub health: Health,
    pub nodes: u32,
}

/// The sets of a level. At switch levels only switches count: what is below no switch of that
/// height, such as a login node, is neither a leaf nor a spine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LevelCount {
    pub level: Level,
    pub sets: u32,
    /// GPUs in the smallest and the largest set.
    pub smallest: u32,
    pub largest: u32,
}

impl LevelCount {
    fn add(&mut self, gpus: GpuRange) {
        self.sets += 1;
        self.smallest = self.smallest.min(gpus.len());
        self.largest = self.largest.max(gpus.len());
    }
}

impl Cluster {
    pub fn summary(&self) -> Summary {
        Summary {
            name: self.name.clone(),
            nodes: self.node_count(),
            gpus: self.gpu_count(),
            usable_gpus: self.usable_gpus(),
            kinds: self.count_by_kind(),
            health: self.count_by_health(),
            levels: self.count_by_level(),
            storage: self.storage.clone(),
        }
    }

    pub fn count_by_kind(&self) -> Vec<KindCount> {
        let mut nodes = vec![0; self.kinds.len()];
        for kind in &self.nodes.kind {
            nodes[usize::from(*kind)] += 1;
        }
        let count = |(kind, nodes): (&crate::NodeKind, u32)| KindCount {
            kind: kind.name.clone(),
            accelerator: kind.accelerator.clone(),
            nodes,
            gpus: nodes * kind.accelerators,
        };
        self.kinds.iter().zip(nodes).map(count).collect()
    }

    pub fn count_by_health(&self) -> Vec<HealthCount> {
        let nodes = |wanted| self.nodes.health.iter().filter(|health| **health == wanted).count() as u32;
        let counts =
            Health::ALL.iter().map(|(_, health)| HealthCount { health: *health, nodes: nodes(*health) });
        counts.filter(|count| count.nodes > 0).collect()
    }

    pub fn count_by_level(&self) -> Vec<LevelCount> {
        self.levels().filter(|level| *level != Level::Gpu).map(|level| self.count_level(level)).collect()
    }

    fn count_level(&self, level: Level) -> LevelCount {
        let mut count = LevelCount { level, sets: 0, smallest: u32::MAX, largest: 0 };
        match level {
            Level::Switch(_) => {
                let switches = self.switches().filter(|switch| switch.level() == level);
                switches.for_each(|switch| count.add(switch.gpus()));
            }
            _ => self.sets(level).for_each(|set| count.add(set.gpus)),
        }
        LevelCount { smallest: count.smallest.min(count.largest), ..count }
    }

    fn usable_gpus(&self) -> u32 {
        let working = self.nodes().into_iter().filter(|node| self.health(*node).takes_work());
        let gpus: u32 = working.map(|node| self.node(node).gpus().len()).sum();
        let failed = self.failed.iter().filter(|gpu| self.health(self.node_of(**gpu)).takes_work()).count();
        gpus - failed as u32
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |number: u32| grouped(number.into());
        let gpus = |number| counted(number, "GPU");
        writeln!(f, "{}: {}, {}", self.name, counted(self.nodes, "node"), gpus(self.gpus))?;
        for kind in &self.kinds {
            writeln!(f, "  {} x {} ({})", count(kind.nodes), kind.kind, gpus(kind.gpus))?;
        }
        for level in &self.levels {
            let sizes = if level.smallest == level.largest {
                gpus(level.largest)
            } else {
                format!("{} to {}", count(level.smallest), gpus(level.largest))
            };
            writeln!(f, "  {:<8} {} of {sizes}", level.level, count(level.sets))?;
        }
        for health in &self.health {
            writeln!(f, "  {:<8} {}", health.health, counted(health.nodes, "node"))?;
        }
        for storage in &self.storage {
            writeln!(f, "  storage  {} of {}", storage.capacity, storage.class)?;
        }
        Ok(())
    }
}

/// `1 node`, `1,024 nodes`.
fn counted(number: u32, what: &str) -> String {
    format!("{} {what}{}", grouped(number.into()), if number == 1 { "" } else { "s" })
}
