//! Memory of a device, and views of it.
//!
//! A view says where elements lie; only the backend that owns the memory can look at them, so no caller reaches a
//! device's elements but through [`Device::read`](crate::Device::read) and [`Device::write`](crate::Device::write).
//!
//! Kinds of memory: private ([`Device::zeros`](crate::Device::zeros)), shareable between processes
//! ([`Device::shareable`](crate::Device::shareable)) and a file that is only read
//! ([`Device::map_file`](crate::Device::map_file)). Pinned memory, from which another device copies by itself, is
//! private memory of the processor until there is such a device. No kind of memory grows: a network allocates what a
//! step needs once.

use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use crate::{BufferValue, cpu, cuda};

/// The address space that elements lie in; an address of one means nothing in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AddressSpace(pub(crate) u32);

/// What owns memory and gives it back.
pub(crate) enum Owner {
    Cpu(cpu::CpuMemory),
    #[expect(dead_code, reason = "gives the memory back when it is dropped")]
    Cuda(cuda::CudaMemory),
}

/// Elements on a device.
pub struct Buffer<E> {
    place: AddressSpace,
    address: usize,
    len: usize,
    owner: Owner,
    elements: PhantomData<E>,
}

/// A file that a device reads as if it were its memory, such as weights.
pub struct MappedFile {
    place: AddressSpace,
    address: usize,
    bytes: usize,
    #[expect(dead_code, reason = "gives the memory back when it is dropped")]
    owner: Owner,
}

/// Elements of a buffer that an operator may read.
#[derive(Debug, Clone, Copy)]
pub struct View<'a, E> {
    pub(crate) place: AddressSpace,
    pub(crate) address: usize,
    len: usize,
    elements: PhantomData<&'a [E]>,
}

/// Elements of a buffer that an operator may change.
#[derive(Debug)]
pub struct ViewMut<'a, E>(pub(crate) View<'a, E>, PhantomData<&'a mut [E]>);

/// Elements by rows; `stride` elements lie between the starts of two rows.
#[derive(Debug, Clone, Copy)]
pub struct Rows<N> {
    pub(crate) elements: N,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) stride: usize,
}

/// A matrix that an operator may read.
pub type Matrix<'a, E> = Rows<View<'a, E>>;

/// A matrix that an operator may change.
pub type MatrixMut<'a, E> = Rows<ViewMut<'a, E>>;

/// Neighbouring elements, from which some can be taken.
pub trait Slice: Sized {
    fn count(&self) -> usize;

    /// Panics when the range is outside.
    fn cut(self, range: Range<usize>) -> Self;
}

impl<E: BufferValue> Buffer<E> {
    pub(crate) fn new(place: AddressSpace, address: usize, len: usize, owner: Owner) -> Self {
        Self { place, address, len, owner, elements: PhantomData }
    }

    /// The same memory as what a file holds.
    pub(crate) fn into_file(self) -> MappedFile {
        let bytes = self.bytes();
        MappedFile::new(self.place, self.address, bytes, self.owner)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn bytes(&self) -> usize {
        self.len * size_of::<E>()
    }

    pub fn view(&self) -> View<'_, E> {
        View { place: self.place, address: self.address, len: self.len, elements: PhantomData }
    }

    pub fn view_mut(&mut self) -> ViewMut<'_, E> {
        ViewMut(self.view(), PhantomData)
    }

    /// Panics when the range is outside the buffer.
    pub fn range(&self, range: Range<usize>) -> View<'_, E> {
        self.view().range(range)
    }

    /// Panics when the range is outside the buffer.
    pub fn range_mut(&mut self, range: Range<usize>) -> ViewMut<'_, E> {
        self.view_mut().range(range)
    }

    /// What a peer process needs to map the same memory; only shareable memory has it.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.owner {
            Owner::Cpu(memory) => memory.descriptor(),
            Owner::Cuda(_) => None,
        }
    }
}

impl MappedFile {
    pub(crate) fn new(place: AddressSpace, address: usize, bytes: usize, owner: Owner) -> Self {
        Self { place, address, bytes, owner }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The `len` elements from a byte on; none where the file is shorter or the byte is not a multiple of their size.
    pub fn view<E: BufferValue>(&self, first_byte: usize, len: usize) -> Option<View<'_, E>> {
        let end = len.checked_mul(size_of::<E>())?.checked_add(first_byte)?;
        let fits = end <= self.bytes && first_byte.is_multiple_of(size_of::<E>());
        let address = self.address + first_byte;
        fits.then_some(View { place: self.place, address, len, elements: PhantomData })
    }
}

impl<'a, E> View<'a, E> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Panics when the range is outside the view.
    pub fn range(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} elements", self.len);
        Self { address: self.address + range.start * size_of::<E>(), len: range.len(), ..self }
    }

    /// The same memory as bytes, for transports, which move elements whatever they mean.
    pub fn bytes(self) -> View<'a, u8>
    where
        E: BufferValue,
    {
        let len = self.len * size_of::<E>();
        View { place: self.place, address: self.address, len, elements: PhantomData }
    }

    /// `rows x columns`, one row after the other. Panics when the view has another size.
    pub fn matrix(self, rows: usize, columns: usize) -> Matrix<'a, E> {
        Rows::new(self, rows, columns)
    }
}

impl<'a, E> ViewMut<'a, E> {
    pub fn len(&self) -> usize {
        self.0.len
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn view(&self) -> View<'_, E> {
        View { ..self.0 }
    }

    /// The same with a shorter lifetime.
    pub fn reborrow(&mut self) -> ViewMut<'_, E> {
        ViewMut(self.view(), PhantomData)
    }

    /// Panics when the range is outside the view.
    pub fn range(self, range: Range<usize>) -> Self {
        Self(self.0.range(range), PhantomData)
    }

    /// The same for the same time; only one of the two may be used for any number.
    fn again(&self) -> Self {
        Self(View { ..self.0 }, PhantomData)
    }

    /// Panics when the view is shorter than `middle`.
    pub fn split_at(self, middle: usize) -> (Self, Self) {
        let right = self.again().range(middle..self.len());
        (self.range(0..middle), right)
    }

    /// The same memory as bytes; all bits are a valid value of any format.
    pub fn bytes(self) -> ViewMut<'a, u8>
    where
        E: BufferValue,
    {
        ViewMut(self.0.bytes(), PhantomData)
    }

    /// `rows x columns`, one row after the other. Panics when the view has another size.
    pub fn matrix(self, rows: usize, columns: usize) -> MatrixMut<'a, E> {
        Rows::new(self, rows, columns)
    }
}

impl<E> Slice for View<'_, E> {
    fn count(&self) -> usize {
        self.len
    }

    fn cut(self, range: Range<usize>) -> Self {
        self.range(range)
    }
}

impl<E> Slice for ViewMut<'_, E> {
    fn count(&self) -> usize {
        self.len()
    }

    fn cut(self, range: Range<usize>) -> Self {
        self.range(range)
    }
}

impl<E> Slice for &[E] {
    fn count(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn cut(self, range: Range<usize>) -> Self {
        &self[range]
    }
}

impl<N: Slice> Rows<N> {
    fn new(elements: N, rows: usize, columns: usize) -> Self {
        assert_eq!(elements.count(), rows * columns, "a {rows} x {columns} matrix");
        Self { elements, rows, columns, stride: columns }
    }

    /// Rows and columns.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    /// Some of the columns; rows stay where they are. Panics when there are no such columns.
    pub fn columns(self, range: Range<usize>) -> Self {
        assert!(range.end <= self.columns, "columns {range:?} of {}", self.columns);
        let end = self.elements.count();
        Self { elements: self.elements.cut(range.start..end), columns: range.len(), ..self }
    }

    /// Some of the rows. Panics when there are no such rows.
    pub fn rows(self, range: Range<usize>) -> Self {
        assert!(range.end <= self.rows, "rows {range:?} of {}", self.rows);
        let end = if range.end == self.rows { self.elements.count() } else { range.end * self.stride };
        Self { elements: self.elements.cut(range.start * self.stride..end), rows: range.len(), ..self }
    }
}

impl<'a> Matrix<'a, f32> {
    /// Rows of elements of two bytes that lie in the first half of each row's place.
    pub(crate) fn halves<E: BufferValue>(self) -> Matrix<'a, E> {
        let Self { elements: View { place, address, len, .. }, rows, columns, stride } = self;
        assert_eq!(size_of::<E>(), 2, "half of an f32");
        let elements = View { place, address, len: 2 * len, elements: PhantomData };
        Rows { elements, rows, columns, stride: 2 * stride }
    }
}

impl<E> MatrixMut<'_, E> {
    /// The same with a shorter lifetime.
    pub fn reborrow(&mut self) -> MatrixMut<'_, E> {
        let Self { rows, columns, stride, .. } = *self;
        Rows { elements: self.elements.reborrow(), rows, columns, stride }
    }

    pub fn matrix(&self) -> Matrix<'_, E> {
        let Self { rows, columns, stride, .. } = *self;
        Rows { elements: self.elements.view(), rows, columns, stride }
    }

    /// The first `middle` columns and the rest. Panics when there are fewer columns.
    pub fn split_columns(self, middle: usize) -> (Self, Self) {
        let right = Rows { elements: self.elements.again(), ..self }.columns(middle..self.columns);
        (self.columns(0..middle), right)
    }
}
