//! Heads that lie side by side in the rows of a matrix.

use std::ops::Range;

/// Some neighbouring heads of every row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// The number of the first one; it starts at column `first * dim`.
    pub first: usize,
    pub count: usize,
    /// Columns of one head.
    pub dim: usize,
}

impl Heads {
    pub fn columns(&self) -> Range<usize> {
        self.first * self.dim..(self.first + self.count) * self.dim
    }
}
