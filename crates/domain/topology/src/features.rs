//! Labels that an orchestrator gives nodes, such as Slurm's features: few distinct sets, shared by many nodes.

use std::collections::HashMap;

/// More than any cluster uses.
pub(crate) const MAX_FEATURE_SETS: u64 = 60_000;

/// Distinct sets of features; number 0 is the empty one.
#[derive(Debug)]
pub(crate) struct FeatureSets {
    list: Vec<Vec<String>>,
    known: HashMap<Vec<String>, u16>,
}

impl Default for FeatureSets {
    fn default() -> Self {
        Self { list: vec![Vec::new()], known: HashMap::from([(Vec::new(), 0)]) }
    }
}

impl FeatureSets {
    /// The number of a set. Beyond the limit all further sets get the last number; `build` refuses the draft.
    pub(crate) fn intern(&mut self, features: Vec<String>) -> u16 {
        if let Some(number) = self.known.get(&features) {
            return *number;
        }
        let number = self.list.len().min(MAX_FEATURE_SETS as usize) as u16;
        self.list.push(features.clone());
        self.known.insert(features, number);
        number
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// The table for nodes in their final order, sets numbered by first appearance.
    pub(crate) fn table(&self, of_node: impl Iterator<Item = u16> + Clone) -> FeatureTable {
        if of_node.clone().all(|set| set == 0) {
            return FeatureTable::default();
        }
        let mut renumbered = vec![None; self.list.len()];
        let mut table = FeatureTable::default();
        for old in of_node {
            let sets = &mut table.sets;
            let number = *renumbered[usize::from(old)].get_or_insert_with(|| {
                sets.push(self.list[usize::from(old)].clone());
                sets.len() as u16 - 1
            });
            table.of_node.push(number);
        }
        table.of_node.shrink_to_fit();
        table
    }
}

/// The features of each node; empty where no node has any.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct FeatureTable {
    sets: Vec<Vec<String>>,
    of_node: Vec<u16>,
}

impl FeatureTable {
    pub(crate) fn get(&self, node: u32) -> &[String] {
        self.of_node.get(node as usize).map_or(&[], |set| &self.sets[usize::from(*set)])
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let words = self.sets.iter().flatten().map(|word| word.capacity() + size_of::<String>());
        let sets = self.sets.capacity() * size_of::<Vec<String>>();
        self.of_node.capacity() * size_of::<u16>() + sets + words.sum::<usize>()
    }
}
