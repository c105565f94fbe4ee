//! Dense numbers for GPUs, nodes and switches, and contiguous ranges of them.
//!
//! Ids count from zero within one cluster and mean nothing in another. GPUs are numbered in node order and
//! nodes in the depth-first order of the switch tree, so the GPUs below any switch form one range.

use std::fmt;
use std::marker::PhantomData;

/// A dense id; implemented by [`GpuId`], [`NodeId`] and [`SwitchId`].
pub trait Id: Copy {
    fn from_index(index: u32) -> Self;
    fn index(self) -> u32;
}

macro_rules! id {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl Id for $name {
            fn from_index(index: u32) -> Self {
                Self(index)
            }
            fn index(self) -> u32 {
                self.0
            }
        }
    )*};
}

id! {
    /// One accelerator of the cluster.
    GpuId,
    /// One machine of the cluster.
    NodeId,
    /// One network switch of the cluster; a parent's id is smaller than its children's.
    SwitchId
}

/// Ids without a gap: `start` up to but not including `end`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct IdRange<I> {
    start: u32,
    end: u32,
    ids: PhantomData<I>,
}

pub type GpuRange = IdRange<GpuId>;
pub type NodeRange = IdRange<NodeId>;

impl<I: Id> IdRange<I> {
    /// A range from `start` up to but not including `end`; empty when `end` is not larger.
    pub fn new(start: u32, end: u32) -> Self {
        Self { start, end: end.max(start), ids: PhantomData }
    }

    pub fn len(self) -> u32 {
        self.end - self.start
    }

    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    pub fn contains(self, id: I) -> bool {
        (self.start..self.end).contains(&id.index())
    }

    /// The index of the first id, even for an empty range.
    pub fn start(self) -> u32 {
        self.start
    }

    /// One past the index of the last id.
    pub fn end(self) -> u32 {
        self.end
    }

    pub fn first(self) -> Option<I> {
        (!self.is_empty()).then(|| I::from_index(self.start))
    }

    pub fn last(self) -> Option<I> {
        (!self.is_empty()).then(|| I::from_index(self.end - 1))
    }

    pub fn iter(self) -> Ids<I> {
        Ids { rest: self.start..self.end, ids: PhantomData }
    }
}

impl<I> fmt::Debug for IdRange<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

impl<I: Id> IntoIterator for IdRange<I> {
    type Item = I;
    type IntoIter = Ids<I>;

    fn into_iter(self) -> Ids<I> {
        self.iter()
    }
}

/// The ids of a range, ascending.
#[derive(Debug, Clone)]
pub struct Ids<I> {
    rest: std::ops::Range<u32>,
    ids: PhantomData<I>,
}

impl<I: Id> Iterator for Ids<I> {
    type Item = I;

    fn next(&mut self) -> Option<I> {
        self.rest.next().map(I::from_index)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rest.size_hint()
    }
}

impl<I: Id> DoubleEndedIterator for Ids<I> {
    fn next_back(&mut self) -> Option<I> {
        self.rest.next_back().map(I::from_index)
    }
}

impl<I: Id> ExactSizeIterator for Ids<I> {}
