//! What a search may vary, and over which values.

use bedplate_layout::{ComputePrecision, Layout, Recompute, Sharding};

/// The values that each part of a layout may take.
///
/// `None` means every value that the rules allow: every divisor of the number of GPUs, of the batch or of the
/// layers. A list restricts a part to its members. The number format changes what is learned and not only
/// how fast, so it is varied only on request.
#[derive(Debug, Clone, PartialEq)]
pub struct Axes {
    pub tensor: Option<Vec<u32>>,
    pub context: Option<Vec<u32>>,
    pub pipeline: Option<Vec<u32>>,
    pub virtual_stages: Option<Vec<u32>>,
    pub expert: Option<Vec<u32>>,
    pub expert_tensor: Option<Vec<u32>>,
    pub micro_batch: Option<Vec<u32>>,
    /// Without and with sequence parallelism; without tensor parallelism only "without" exists.
    pub sequence_parallel: Vec<bool>,
    pub sharding: Vec<ShardingKind>,
    pub recompute: Vec<Recompute>,
    pub precision: Vec<ComputePrecision>,
}

/// What data ranks split, with the size of groups left to the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShardingKind {
    None,
    Optimizer,
    Gradients,
    Weights,
    /// Weights inside groups that fill one scale-up domain or several.
    WeightsWithinDomains,
}

impl Default for Axes {
    fn default() -> Self {
        Self {
            tensor: None,
            context: None,
            pipeline: None,
            virtual_stages: None,
            expert: None,
            expert_tensor: None,
            micro_batch: None,
            sequence_parallel: vec![false, true],
            sharding: vec![
                ShardingKind::None,
                ShardingKind::Optimizer,
                ShardingKind::Gradients,
                ShardingKind::Weights,
                ShardingKind::WeightsWithinDomains,
            ],
            recompute: vec![Recompute::None, Recompute::Selective, Recompute::Full],
            precision: vec![ComputePrecision::Bf16],
        }
    }
}

impl Axes {
    /// A few thousand layouts that usually include the best one: cheap enough to compare many machines.
    ///
    /// Tensor and expert groups stay inside one domain, micro-batches and context groups are small.
    pub fn coarse(domain: u32) -> Self {
        let up_to = |limit: u32| (1..=limit).collect::<Vec<u32>>();
        Self {
            tensor: Some(up_to(domain.min(16))),
            context: Some(up_to(8)),
            virtual_stages: Some(up_to(8)),
            expert_tensor: Some(vec![1]),
            micro_batch: Some(vec![1, 2, 4]),
            sequence_parallel: vec![true],
            sharding: vec![
                ShardingKind::Optimizer,
                ShardingKind::Weights,
                ShardingKind::WeightsWithinDomains,
            ],
            recompute: vec![Recompute::None, Recompute::Full],
            ..Self::default()
        }
    }

    /// The complete space without corners that win on no machine we know: cheap enough for an interactive answer
    /// for mixtures of experts on thousands of GPUs.
    ///
    /// Experts are not cut, tensor groups stay inside one domain, a micro-batch has at most 16 sequences.
    pub fn practical(domain: u32) -> Self {
        Self {
            tensor: Some((1..=domain).collect()),
            expert_tensor: Some(vec![1]),
            micro_batch: Some((1..=16).collect()),
            ..Self::default()
        }
    }

    /// The same where ranks divide the batch and nothing else, as on a host.
    pub(crate) fn data_parallel(&self) -> Self {
        let one = || Some(vec![1]);
        Self {
            tensor: one(),
            context: one(),
            pipeline: one(),
            virtual_stages: one(),
            expert: one(),
            expert_tensor: one(),
            sharding: vec![ShardingKind::None],
            ..self.clone()
        }
    }

    /// The corner of the same space that needs the least memory, to check whether anything fits at all.
    pub(crate) fn frugal(&self) -> Self {
        let smallest = |list: &Option<Vec<u32>>| {
            list.as_ref().map(|list| list.iter().copied().min().into_iter().collect())
        };
        Self {
            micro_batch: smallest(&self.micro_batch).or(Some(vec![1])),
            virtual_stages: smallest(&self.virtual_stages).or(Some(vec![1])),
            recompute: self.recompute.iter().copied().max_by_key(|each| *each as u8).into_iter().collect(),
            sequence_parallel: self.sequence_parallel.iter().copied().max().into_iter().collect(),
            ..self.clone()
        }
    }

    /// Whether a layout is within these values; it may still be illegal.
    pub fn contains(&self, layout: &Layout) -> bool {
        let within =
            |list: &Option<Vec<u32>>, degree: u32| list.as_ref().is_none_or(|list| list.contains(&degree));
        within(&self.tensor, layout.tensor)
            && within(&self.context, layout.context)
            && within(&self.pipeline, layout.pipeline)
            && within(&self.virtual_stages, layout.virtual_stages)
            && within(&self.expert, layout.expert)
            && within(&self.expert_tensor, layout.expert_tensor)
            && within(&self.micro_batch, layout.micro_batch)
            && (layout.tensor == 1 || self.sequence_parallel.contains(&layout.is_sequence_parallel))
            && self.sharding.contains(&ShardingKind::of(layout.sharding))
            && self.recompute.contains(&layout.recompute)
            && self.precision.contains(&layout.precision)
    }
}

impl ShardingKind {
    pub fn of(sharding: Sharding) -> Self {
        match sharding {
            Sharding::None => ShardingKind::None,
            Sharding::Optimizer => ShardingKind::Optimizer,
            Sharding::Gradients => ShardingKind::Gradients,
            Sharding::Weights => ShardingKind::Weights,
            Sharding::WeightsWithin(_) => ShardingKind::WeightsWithinDomains,
        }
    }
}

/// The members of a list, or all candidates, in rising order.
pub(crate) fn allowed(list: &Option<Vec<u32>>, candidates: Vec<u32>) -> Vec<u32> {
    match list {
        None => candidates,
        Some(list) => candidates.into_iter().filter(|candidate| list.contains(candidate)).collect(),
    }
}

/// All divisors in rising order. Takes O(√n).
pub(crate) fn divisors(number: u64) -> Vec<u64> {
    let mut small = Vec::new();
    let mut large = Vec::new();
    let mut candidate = 1;
    while candidate * candidate <= number {
        if number.is_multiple_of(candidate) {
            small.push(candidate);
            if candidate * candidate != number {
                large.push(number / candidate);
            }
        }
        candidate += 1;
    }
    small.extend(large.into_iter().rev());
    small
}

/// Divisors that fit in a degree's type.
pub(crate) fn degrees(number: u64) -> Vec<u32> {
    divisors(number).into_iter().filter_map(|divisor| u32::try_from(divisor).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_are_complete_and_rise() {
        assert_eq!(divisors(1), [1]);
        assert_eq!(divisors(12), [1, 2, 3, 4, 6, 12]);
        assert_eq!(divisors(36), [1, 2, 3, 4, 6, 9, 12, 18, 36]);
        assert_eq!(divisors(1_000_000_000).len(), 100);
    }

    #[test]
    fn a_list_restricts_and_no_list_allows_all() {
        assert_eq!(allowed(&None, vec![1, 2, 4]), [1, 2, 4]);
        assert_eq!(allowed(&Some(vec![8, 4]), vec![1, 2, 4]), [4]);
    }
}
