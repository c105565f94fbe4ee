//! Why branches of the enumeration were cut: a histogram by rule, with an example each.

use std::mem::discriminant;

use bedplate_layout::{Layout, LayoutRefusal};

/// One rule and how often it cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusalCount {
    /// Branches that the rule cut. A branch stands for all layouts that share the parts its example names.
    pub branches: u64,
    /// The first branch in the order of enumeration, and the rule it broke with its values.
    pub example: Layout,
    pub refusal: LayoutRefusal,
}

/// Refusals by rule, those that cut most first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refusals(Vec<RefusalCount>);

impl Refusals {
    pub(crate) fn add(&mut self, example: Layout, refusal: LayoutRefusal) {
        match self.0.iter_mut().find(|known| discriminant(&known.refusal) == discriminant(&refusal)) {
            Some(known) => known.branches += 1,
            None => self.0.push(RefusalCount { branches: 1, example, refusal }),
        }
    }

    /// Adds the first of several refusals of one branch, and says whether there was one.
    pub(crate) fn add_first(&mut self, example: Layout, refusals: &[LayoutRefusal]) -> bool {
        if let Some(refusal) = refusals.first() {
            self.add(example, *refusal);
        }
        !refusals.is_empty()
    }

    pub(crate) fn sort(&mut self) {
        self.0.sort_by_key(|count| std::cmp::Reverse(count.branches));
    }

    pub fn iter(&self) -> impl Iterator<Item = &RefusalCount> {
        self.0.iter()
    }

    pub fn branches(&self) -> u64 {
        self.0.iter().map(|count| count.branches).sum()
    }

    /// The rule that cut most.
    pub fn first(&self) -> Option<&RefusalCount> {
        self.0.first()
    }
}
