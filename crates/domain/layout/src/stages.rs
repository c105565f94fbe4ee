//! How many layers the stages of a pipeline hold.
//!
//! The first stage also has the embedding and the last one the head, so where layers do not divide, those two are the
//! ones with a layer less, as in Megatron's `--account-for-embedding-in-pipeline-split`, its
//! `--pipeline-model-parallel-layout`, and in Llama 3's 126 layers over 16 stages. Either end can be set by hand.

/// Layers of the first and the last stage, where they are set by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Ends {
    /// `first7`
    pub first: Option<u32>,
    /// `last6`
    pub last: Option<u32>,
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
    fn ends_set_by_hand_stay() {
        assert_eq!(split(61, 16, Some(5), Some(2)), Some((5, 4, 2)));
        assert_eq!(split(61, 4, Some(13), None), Some((13, 16, 16)));
        assert_eq!(split(61, 4, None, Some(13)), Some((16, 16, 13)));
        assert_eq!(split(10, 2, Some(6), Some(4)), Some((6, 0, 4)));
        assert_eq!(split(10, 2, Some(6), Some(3)), None);
        assert_eq!(split(10, 4, Some(6), Some(3)), None);
    }
}
