//! Inputs of checks: numbers that look random and are the same on every device, and matrices whose rows lie apart.

use std::cell::Cell;

use crate::{Buffer, BufferValue, Device, Element, Matrix, MatrixMut};

pub(crate) struct CheckInputs<'d> {
    pub(crate) device: &'d Device,
    pub(crate) gap: usize,
    state: Cell<u64>,
}

/// A matrix on the device.
pub(crate) struct Grid<'d, E> {
    device: &'d Device,
    buffer: Buffer<E>,
    rows: usize,
    columns: usize,
    stride: usize,
}

impl<'d> CheckInputs<'d> {
    pub(crate) fn new(device: &'d Device, gap: usize) -> Self {
        Self { device, gap, state: Cell::new(0x1234_5678_9abc_def1) }
    }

    fn bits(&self) -> u64 {
        let mut state = self.state.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.state.set(state);
        state >> 11
    }

    /// Between -1 and 1, a multiple of 1/128.
    pub(crate) fn number(&self) -> f32 {
        (self.bits() % 257) as f32 / 128.0 - 1.0
    }

    pub(crate) fn below(&self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }

    /// A vector on the device.
    pub(crate) fn vector<E: Element>(&self, len: usize) -> Buffer<E> {
        let numbers: Vec<E> = (0..len).map(|_| E::narrow(self.number())).collect();
        self.given(&numbers)
    }

    pub(crate) fn given<E: BufferValue>(&self, numbers: &[E]) -> Buffer<E> {
        let mut buffer = self.device.zeros(numbers.len());
        self.device.write(buffer.view_mut(), numbers);
        buffer
    }

    /// Whole numbers below a limit.
    pub(crate) fn tokens(&self, len: usize, limit: usize) -> Buffer<u32> {
        let tokens: Vec<u32> = (0..len).map(|_| self.below(limit) as u32).collect();
        self.given(&tokens)
    }

    /// A matrix of random numbers; between its rows there are NaN.
    pub(crate) fn grid<E: Element>(&self, rows: usize, columns: usize) -> Grid<'d, E> {
        self.grid_of(rows, columns, || self.number())
    }

    /// Between -1 and 1, a multiple of 1/8: of such numbers e4m3 with a common scale holds any exactly.
    pub(crate) fn coarse(&self) -> f32 {
        self.below(17) as f32 / 8.0 - 1.0
    }

    pub(crate) fn grid_of<E: Element>(
        &self,
        rows: usize,
        columns: usize,
        number: impl Fn() -> f32,
    ) -> Grid<'d, E> {
        let stride = columns + self.gap;
        let numbers: Vec<E> = (0..rows * stride)
            .map(|at| E::narrow(if at % stride < columns { number() } else { f32::NAN }))
            .collect();
        Grid { device: self.device, buffer: self.given(&numbers), rows, columns, stride }
    }

    pub(crate) fn read<E: Element>(&self, buffer: &Buffer<E>) -> Vec<f32> {
        let mut numbers = vec![E::default(); buffer.len()];
        self.device.read(buffer.view(), &mut numbers);
        numbers.into_iter().map(E::widen).collect()
    }

    pub(crate) fn read_whole(&self, buffer: &Buffer<u32>) -> Vec<f32> {
        let mut numbers = vec![0; buffer.len()];
        self.device.read(buffer.view(), &mut numbers);
        numbers.into_iter().map(|number| number as f32).collect()
    }
}

impl<E: Element> Grid<'_, E> {
    pub(crate) fn matrix(&self) -> Matrix<'_, E> {
        self.buffer.view().matrix(self.rows, self.stride).columns(0..self.columns)
    }

    pub(crate) fn matrix_mut(&mut self) -> MatrixMut<'_, E> {
        self.buffer.view_mut().matrix(self.rows, self.stride).columns(0..self.columns)
    }

    /// The numbers of the matrix, and NaN first where something was written between its rows.
    pub(crate) fn read(&self) -> Vec<f32> {
        let mut numbers = vec![E::default(); self.buffer.len()];
        self.device.read(self.buffer.view(), &mut numbers);
        let mut found = Vec::with_capacity(self.rows * self.columns + 1);
        for row in numbers.chunks(self.stride) {
            let (inside, gap) = row.split_at(self.columns);
            if !gap.iter().all(|number| number.widen().is_nan()) {
                found.push(f32::NAN);
            }
            found.extend(inside.iter().map(|number| number.widen()));
        }
        found
    }
}
