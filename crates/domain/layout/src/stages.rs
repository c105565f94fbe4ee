//! How many layers the stages of a pipeline hold.
//!
//! The first stage also has the embedding and the last one the head, so where layers do not divide, those two are the
//! ones with a layer less, as in Megatron's `--account-for-embedding-in-pipeline-split`, its
//! `--pipeline-model-parallel-layout`, and in Llama 3's 126 layers over 16 stages. Either end can be set by hand.

use std::fmt;

/// Layers of the first and the last stage, where they are set by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Ends {
    /// `first7`
    pub first: Option<u32>,
    /// `last6`
    pub last: Option<u32>,
}

impl fmt::Display for Ends {
    /// As the grammar has it: `first7.last6`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.first.map(|layers| format!("first{layers}"));
        let last = self.last.map(|layers| format!("last{layers}"));
        f.write_str(&first.into_iter().chain(last).collect::<Vec<_>>().join("."))
    }
}

/// Layers of the first stage, of the longest stage between the ends, and of the last stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageLayers {
    pub first: u64,
    pub longest: u64,
    pub last: u64,
}

impl StageLayers {
    /// Spreads `layers` over `stages`; `None` where the ends leave less than one layer for each other stage.
    pub fn new(layers: u64, stages: u32, ends: Ends) -> Option<Self> {
        let stages = u64::from(stages);
        if stages == 1 {
            let is_whole = |end: Option<u32>| end.is_none_or(|end| u64::from(end) == layers);
            return (is_whole(ends.first) && is_whole(ends.last)).then_some(Self::even(layers));
        }
        let (first, last) = (ends.first.map(u64::from), ends.last.map(u64::from));
        let given = first.into_iter().chain(last).sum::<u64>();
        let others = stages - u64::from(first.is_some()) - u64::from(last.is_some());
        let left = layers.checked_sub(given)?;
        if left < others || others == 0 && left > 0 {
            return None;
        }
        let (few, more) = left.checked_rem(others).map_or((0, 0), |more| (left / others, more));
        // Of the stages with a layer less, the last stage is one, and the first one too if there are others.
        let is_first_long = more > 0 && more + u64::from(last.is_none()) == others;
        Some(Self {
            first: first.unwrap_or(few + u64::from(is_first_long)),
            longest: if others == 0 { 0 } else { few + u64::from(more > 0) },
            last: last.unwrap_or(few),
        })
    }

    fn even(layers: u64) -> Self {
        Self { first: layers, longest: layers, last: layers }
    }

    /// The layers of every stage, from first to last, with the longer ones in the middle.
    pub fn of_each(layers: u64, stages: u32, ends: Ends) -> Option<Vec<u64>> {
        let split = Self::new(layers, stages, ends)?;
        let count = stages as usize;
        if count == 1 {
            return Some(vec![layers]);
        }
        let between = layers - split.first - split.last;
        let inner = stages as u64 - 2;
        let (few, longer) = between.checked_rem(inner).map_or((0, 0), |longer| (between / inner, longer));
        let leading = (inner - longer) / 2;
        let is_longer = |stage: u64| (leading..leading + longer).contains(&stage);
        let inside = (0..inner).map(|stage| few + u64::from(is_longer(stage)));
        Some(std::iter::once(split.first).chain(inside).chain([split.last]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(layers: u64, stages: u32, first: Option<u32>, last: Option<u32>) -> Option<(u64, u64, u64)> {
        let split = StageLayers::new(layers, stages, Ends { first, last })?;
        Some((split.first, split.longest, split.last))
    }

    #[test]
    fn the_ends_are_the_first_to_have_a_layer_less() {
        assert_eq!(split(80, 8, None, None), Some((10, 10, 10)));
        assert_eq!(split(126, 16, None, None), Some((7, 8, 7)));
        assert_eq!(split(127, 16, None, None), Some((8, 8, 7)));
        assert_eq!(split(61, 16, None, None), Some((3, 4, 3)));
        assert_eq!(split(5, 2, None, None), Some((3, 3, 2)));
        assert_eq!(split(7, 1, None, None), Some((7, 7, 7)));
    }

    #[test]
    fn every_stage_has_its_layers_and_the_longest_are_inside() {
        for (layers, stages) in [(126, 16), (61, 16), (5, 2), (7, 7), (10, 4), (62, 3)] {
            for ends in
                [Ends::default(), Ends { first: Some(1), last: None }, Ends { first: None, last: Some(1) }]
            {
                let Some(split) = StageLayers::new(layers, stages, ends) else { continue };
                let each = StageLayers::of_each(layers, stages, ends).expect("the ends fit");
                assert_eq!(each.iter().sum::<u64>(), layers);
                assert_eq!((each[0], each[each.len() - 1]), (split.first, split.last));
                let longest = each[1..each.len() - 1].iter().max();
                assert!(longest.is_none_or(|longest| *longest == split.longest), "{each:?} {split:?}");
            }
        }
        assert_eq!(StageLayers::of_each(6, 4, Ends::default()), Some(vec![1, 2, 2, 1]));
        assert_eq!(StageLayers::of_each(6, 1, Ends::default()), Some(vec![6]));
        assert_eq!(StageLayers::of_each(10, 2, Ends { first: Some(6), last: Some(3) }), None);
    }

    #[test]
    fn ends_set_by_hand_stay() {
        assert_eq!(split(61, 16, Some(5), Some(2)), Some((5, 4, 2)));
        assert_eq!(split(61, 4, Some(13), None), Some((13, 16, 16)));
        assert_eq!(split(61, 4, None, Some(13)), Some((16, 16, 13)));
        assert_eq!(split(10, 2, Some(6), Some(4)), Some((6, 0, 4)));
        assert_eq!(split(10, 2, Some(6), Some(3)), None);
        assert_eq!(split(10, 4, Some(6), Some(3)), None);
    }
}
