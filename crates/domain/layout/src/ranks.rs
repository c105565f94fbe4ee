//! Which rank does what.
//!
//! Ranks count fastest along tensor, then context, then data, then pipeline, so tensor groups sit inside a
//! node and stages lie far apart. Inside a stage experts count along expert-tensor, then expert, then
//! copies. Every group is therefore an arithmetic progression and is never stored.

use crate::rules::fit_each_other;
use crate::{Layout, LayoutRefusal};

/// A direction in which ranks form groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dimension {
    Tensor,
    Context,
    Data,
    /// Data and context together: the ranks that hold the same weights.
    DataWithContext,
    Pipeline,
    Expert,
    ExpertTensor,
    /// Ranks that hold copies of the same experts.
    ExpertData,
}

/// Where a rank stands in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coordinates {
    pub tensor: u32,
    pub context: u32,
    pub data: u32,
    pub pipeline: u32,
    pub expert: u32,
    pub expert_tensor: u32,
    pub expert_data: u32,
}

/// Ranks `first, first + stride, …`, `size` of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    pub first: u32,
    pub stride: u32,
    pub size: u32,
}

impl Group {
    pub fn ranks(self) -> impl Iterator<Item = u32> {
        (0..self.size).map(move |index| self.first + index * self.stride)
    }
}

/// The map of a layout whose parts fit each other and whose world fits in 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankMap {
    layout: Layout,
    world: u32,
}

impl RankMap {
    pub fn new(layout: &Layout) -> Result<Self, LayoutRefusal> {
        if let Some(refusal) = fit_each_other(layout).into_iter().next() {
            return Err(refusal);
        }
        let world = u32::try_from(layout.world()).map_err(|_| LayoutRefusal::TooManyRanks)?;
        Ok(Self { layout: *layout, world })
    }

    pub fn world(&self) -> u32 {
        self.world
    }

    /// Where `rank` stands. Ranks are below [`world`](Self::world).
    pub fn coordinates(&self, rank: u32) -> Coordinates {
        let at = |dimension| self.position(dimension, rank);
        Coordinates {
            tensor: at(Dimension::Tensor),
            context: at(Dimension::Context),
            data: at(Dimension::Data),
            pipeline: at(Dimension::Pipeline),
            expert: at(Dimension::Expert),
            expert_tensor: at(Dimension::ExpertTensor),
            expert_data: at(Dimension::ExpertData),
        }
    }

    /// The rank at a place of the dense grid; the inverse of [`coordinates`](Self::coordinates).
    pub fn rank(&self, at: &Coordinates) -> u32 {
        at.tensor * self.stride(Dimension::Tensor)
            + at.context * self.stride(Dimension::Context)
            + at.data * self.stride(Dimension::Data)
            + at.pipeline * self.stride(Dimension::Pipeline)
    }

    /// The ranks that `rank` works with along a dimension, itself included.
    pub fn group(&self, dimension: Dimension, rank: u32) -> Group {
        let (stride, size) = (self.stride(dimension), self.size(dimension));
        Group { first: rank - self.position(dimension, rank) * stride, stride, size }
    }

    /// Every group of a dimension, in order of first rank.
    pub fn groups(&self, dimension: Dimension) -> impl Iterator<Item = Group> {
        (0..self.world)
            .filter(move |rank| self.position(dimension, *rank) == 0)
            .map(move |rank| self.group(dimension, rank))
    }

    pub fn size(&self, dimension: Dimension) -> u32 {
        let layout = &self.layout;
        match dimension {
            Dimension::Tensor => layout.tensor,
            Dimension::Context => layout.context,
            Dimension::Data => layout.data,
            Dimension::DataWithContext => layout.data * layout.context,
            Dimension::Pipeline => layout.pipeline,
            Dimension::Expert => layout.expert,
            Dimension::ExpertTensor => layout.expert_tensor,
            Dimension::ExpertData => layout.expert_data(),
        }
    }

    fn stride(&self, dimension: Dimension) -> u32 {
        let layout = &self.layout;
        match dimension {
            Dimension::Tensor | Dimension::ExpertTensor => 1,
            Dimension::Context | Dimension::DataWithContext => layout.tensor,
            Dimension::Data => layout.tensor * layout.context,
            Dimension::Pipeline => layout.stage_ranks(),
            Dimension::Expert => layout.expert_tensor,
            Dimension::ExpertData => layout.expert_tensor * layout.expert,
        }
    }

    fn position(&self, dimension: Dimension, rank: u32) -> u32 {
        rank / self.stride(dimension) % self.size(dimension)
    }
}
