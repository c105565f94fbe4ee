//! Operands of a product, whatever their format and direction.
//!
//! Both sides of a product are seen alike: some *lanes* (rows of the left side, columns of the right side), each with
//! as many elements as the product is deep. `sums[i, j]` is the sum over the depth of lane `i` of the left side times lane
//! `j` of the right side. A matrix, its transpose and a part of either are operands without any copying.

use std::ops::Range;

use super::fetch;
pub(crate) use crate::device::Elements;
use crate::{Element, Rows};

impl Elements<'_> {
    pub(crate) fn len(self) -> usize {
        match self {
            Elements::F32(values) => values.len(),
            Elements::Bf16(values) => values.len(),
        }
    }

    #[inline(always)]
    pub(crate) fn at(self, index: usize) -> f32 {
        match self {
            Elements::F32(values) => values[index],
            Elements::Bf16(values) => values[index].widen(),
        }
    }
}

/// One side of a product: lane `l` at depth `d` lies at `l * lane_stride + d * depth_stride`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operand<'a> {
    elements: Elements<'a>,
    lanes: usize,
    depth: usize,
    lane_stride: usize,
    depth_stride: usize,
}

impl<'a> Operand<'a> {
    /// Panics when some lane would reach beyond the elements, or when neighbours are neither lanes nor depth.
    pub(crate) fn new(
        elements: Elements<'a>,
        (lanes, lane_stride): (usize, usize),
        (depth, depth_stride): (usize, usize),
    ) -> Self {
        let is_empty = lanes == 0 || depth == 0;
        let end = if is_empty { 0 } else { (lanes - 1) * lane_stride + (depth - 1) * depth_stride + 1 };
        assert!(end <= elements.len(), "an operand of {lanes} lanes {depth} deep in {}", elements.len());
        assert!(lane_stride == 1 || depth_stride == 1, "an operand lies by lanes or by depth");
        Self { elements, lanes, depth, lane_stride, depth_stride }
    }

    /// The lanes are the rows of a matrix.
    pub(crate) fn rows_of<E: Element>(matrix: Rows<&'a [E]>) -> Self {
        let elements = E::elements(matrix.elements);
        Self::new(elements, (matrix.rows, matrix.stride), (matrix.columns, 1))
    }

    /// The lanes are the columns of a matrix.
    pub(crate) fn columns_of<E: Element>(matrix: Rows<&'a [E]>) -> Self {
        let elements = E::elements(matrix.elements);
        Self::new(elements, (matrix.columns, 1), (matrix.rows, matrix.stride))
    }

    pub(crate) fn elements(&self) -> Elements<'a> {
        self.elements
    }

    pub(crate) fn lanes(&self) -> usize {
        self.lanes
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    pub(crate) fn lane_stride(&self) -> usize {
        self.lane_stride
    }

    pub(crate) fn depth_stride(&self) -> usize {
        self.depth_stride
    }

    /// Asks for what lies at an index, which may be outside, to be read later.
    #[inline(always)]
    pub(crate) fn fetch(&self, index: usize) {
        match self.elements {
            Elements::F32(values) => fetch::to_read(values.as_ptr().wrapping_add(index)),
            Elements::Bf16(values) => fetch::to_read(values.as_ptr().wrapping_add(index)),
        }
    }

    /// A part of the depth. Panics when it is not that deep.
    pub(crate) fn some_depth(self, range: Range<usize>) -> Self {
        assert!(range.end <= self.depth, "depth {range:?} of {}", self.depth);
        let elements = self.elements_from(range.start * self.depth_stride);
        Self { elements, depth: range.len(), ..self }
    }

    /// Elements from `start` on; what lies beyond the end is never touched.
    fn elements_from(&self, start: usize) -> Elements<'a> {
        match self.elements {
            Elements::F32(values) => Elements::F32(&values[start.min(values.len())..]),
            Elements::Bf16(values) => Elements::Bf16(&values[start.min(values.len())..]),
        }
    }
}
