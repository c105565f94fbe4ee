//! Operators that pass over memory once: filling, copying, adding, converting, sums of squares, looking for NaN.

use bedplate_breakdown::Part;

use super::Backend;
use crate::{Accumulate, BufferValue, Device, Element, Matrix, MatrixMut, View, ViewMut};

/// No place at all.
pub const NONE: u32 = u32::MAX;

impl Device {
    pub fn fill<E: Element>(&self, to: ViewMut<'_, E>, value: f32) {
        on_backend!(self, Memory, fill(to, value));
    }

    /// Numbers of a normal distribution around zero. Each follows from the key and its place alone, whatever the device: the first has the
    /// place `first`.
    pub fn fill_normal<E: Element>(&self, to: ViewMut<'_, E>, key: u64, first: usize, deviation: f64) {
        on_backend!(self, Memory, fill_normal(to, key, first, deviation));
    }

    /// Panics when the lengths differ.
    pub fn copy<E: BufferValue>(&self, x: View<'_, E>, to: ViewMut<'_, E>) {
        assert_eq!(x.len(), to.len(), "elements to copy");
        on_backend!(self, Memory, copy(x, to));
    }

    /// `to += x`. Panics when the lengths differ.
    pub fn add<A: Element, B: Element>(&self, x: View<'_, A>, to: ViewMut<'_, B>) {
        assert_eq!(x.len(), to.len(), "elements to add");
        on_backend!(self, Memory, add(x, to));
    }

    /// `to = x` or `to += x`, row by row, whatever lies between the rows and in whatever format. Panics when the shapes differ.
    pub fn put_rows<A: Element, B: Element>(&self, x: Matrix<'_, A>, mode: Accumulate, to: MatrixMut<'_, B>) {
        assert_eq!(x.shape(), to.shape(), "rows to put");
        on_backend!(self, Memory, put_rows(x, mode, to));
    }

    /// `to = factor * x`, rounded or widened from one format to another. Panics when the lengths differ.
    pub fn scale<A: Element, B: Element>(&self, x: View<'_, A>, factor: f32, to: ViewMut<'_, B>) {
        assert_eq!(x.len(), to.len(), "elements to scale");
        on_backend!(self, Memory, scale(x, factor, to));
    }

    /// `to *= factor`. On the processor only.
    pub fn multiply_by<E: Element>(&self, to: ViewMut<'_, E>, factor: f32) {
        match &self.backend {
            Backend::Cpu(cpu) => cpu.time(Part::Memory, || cpu.multiply_by(to, factor)),
            Backend::Cuda(_) => unreachable!("a GPU does not multiply in place"),
        }
    }

    /// Rounds or widens elements from one format to another. Panics when the lengths differ.
    pub fn convert<A: Element, B: Element>(&self, from: View<'_, A>, to: ViewMut<'_, B>) {
        assert_eq!(from.len(), to.len(), "elements to convert");
        on_backend!(self, Memory, scale(from, 1.0, to));
    }

    /// The sum, in an order that depends on the length alone. For short lists: nothing is shared out.
    pub fn sum(&self, of: View<'_, f32>) -> f64 {
        on_backend!(self, Memory, sum(of))
    }

    /// The sum of squares, in an order that depends on the length alone.
    pub fn sum_of_squares<E: Element>(&self, of: View<'_, E>) -> f64 {
        on_backend!(self, Memory, sum_of_squares(of))
    }

    /// The place of the largest number of each row, the first of several; [`NONE`](crate::NONE) where none is above minus infinity.
    pub fn argmax(&self, logits: Matrix<'_, f32>, to: ViewMut<'_, u32>) {
        assert_eq!(to.len(), logits.rows, "a place for each row");
        on_backend!(self, Memory, argmax(logits, to));
    }

    /// The place of the first infinity or NaN.
    pub fn first_non_finite<E: Element>(&self, x: View<'_, E>) -> Option<usize> {
        on_backend!(self, Memory, first_non_finite(x))
    }
}

#[cfg(test)]
mod tests;
