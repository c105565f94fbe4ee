//! Memory of a device, and views of it.
//!
//! A buffer begins at a cache line and, once it is large, at a huge page. It never grows: whoever builds a network
//! allocates what a step needs once.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Range;
use std::ptr::NonNull;

use crate::Value;

/// Numbers on a device.
pub struct Buffer<E> {
    start: NonNull<E>,
    len: usize,
}

/// Numbers of a buffer that an operator may read.
#[derive(Debug, Clone, Copy)]
pub struct View<'a, E>(&'a [E]);

/// Numbers of a buffer that an operator may change.
#[derive(Debug)]
pub struct ViewMut<'a, E>(&'a mut [E]);

/// A matrix by rows; `stride` numbers lie between the starts of two rows.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a, E> {
    pub(crate) view: View<'a, E>,
    pub rows: usize,
    pub columns: usize,
    pub stride: usize,
}

/// A matrix that an operator may change.
#[derive(Debug)]
pub struct MatrixMut<'a, E> {
    pub(crate) view: ViewMut<'a, E>,
    pub rows: usize,
    pub columns: usize,
    pub stride: usize,
}

const CACHE_LINE: usize = 64;
const HUGE_PAGE: usize = 2 << 20;

#[expect(unsafe_code, reason = "aligned memory, handed out as slices only")]
impl<E: Value> Buffer<E> {
    pub fn zeros(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: the layout has a size above zero, by `layout`.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(memory.cast::<E>()) else { handle_alloc_error(layout) };
        if layout.align() == HUGE_PAGE {
            // SAFETY: the range was allocated above; the call gives advice and changes no content.
            unsafe { libc::madvise(memory.cast(), layout.size(), libc::MADV_HUGEPAGE) };
        }
        Self { start, len }
    }

    fn layout(len: usize) -> Layout {
        let size = (len * size_of::<E>()).max(CACHE_LINE);
        let align = if size >= 2 * HUGE_PAGE { HUGE_PAGE } else { CACHE_LINE };
        Layout::from_size_align(size, align).expect("a buffer is smaller than the address space")
    }

    pub(crate) fn host(&self) -> &[E] {
        // SAFETY: `start` points to `len` initialised elements that this buffer owns.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn host_mut(&mut self) -> &mut [E] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<E: Value> Buffer<E> {
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
        View(self.host())
    }

    pub fn view_mut(&mut self) -> ViewMut<'_, E> {
        ViewMut(self.host_mut())
    }

    /// Panics when the range is outside the buffer.
    pub fn range(&self, range: Range<usize>) -> View<'_, E> {
        self.view().range(range)
    }

    /// Panics when the range is outside the buffer.
    pub fn range_mut(&mut self, range: Range<usize>) -> ViewMut<'_, E> {
        self.view_mut().into_range(range)
    }
}

#[expect(unsafe_code, reason = "gives back what `zeros` allocated")]
impl<E> Drop for Buffer<E> {
    fn drop(&mut self) {
        let size = (self.len * size_of::<E>()).max(CACHE_LINE);
        let align = if size >= 2 * HUGE_PAGE { HUGE_PAGE } else { CACHE_LINE };
        let layout = Layout::from_size_align(size, align).expect("as it was allocated");
        // SAFETY: `start` was allocated by `zeros` with this layout, which follows from `len` alone.
        unsafe { dealloc(self.start.as_ptr().cast(), layout) }
    }
}

#[expect(unsafe_code, reason = "a buffer owns its memory")]
// SAFETY: a buffer is the only owner of its memory, like a `Vec`.
unsafe impl<E: Send> Send for Buffer<E> {}

#[expect(unsafe_code, reason = "a shared buffer can only be read")]
// SAFETY: `&Buffer` gives only `&[E]`.
unsafe impl<E: Sync> Sync for Buffer<E> {}

impl<'a, E: Copy> View<'a, E> {
    /// Numbers that lie in the memory of the processor.
    pub fn of_host(values: &'a [E]) -> Self {
        Self(values)
    }

    pub(crate) fn host(self) -> &'a [E] {
        self.0
    }

    pub fn len(self) -> usize {
        self.0.len()
    }

    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Panics when the range is outside the view.
    pub fn range(self, range: Range<usize>) -> Self {
        Self(&self.0[range])
    }

    /// `rows x columns`, one row after the other. Panics when the view has another size.
    pub fn matrix(self, rows: usize, columns: usize) -> Matrix<'a, E> {
        assert_eq!(self.len(), rows * columns, "a {rows} x {columns} matrix");
        Matrix { view: self, rows, columns, stride: columns }
    }
}

impl<'a, E> ViewMut<'a, E> {
    /// Numbers that lie in the memory of the processor.
    pub fn of_host(values: &'a mut [E]) -> Self {
        Self(values)
    }

    pub(crate) fn into_host(self) -> &'a mut [E] {
        self.0
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn view(&self) -> View<'_, E> {
        View(self.0)
    }

    /// The same for a shorter time.
    pub fn reborrow(&mut self) -> ViewMut<'_, E> {
        ViewMut(self.0)
    }

    /// Panics when the range is outside the view.
    pub fn into_range(self, range: Range<usize>) -> Self {
        Self(&mut self.0[range])
    }

    /// Panics when the view is shorter than `middle`.
    pub fn split_at(self, middle: usize) -> (Self, Self) {
        let (left, right) = self.0.split_at_mut(middle);
        (Self(left), Self(right))
    }

    /// `rows x columns`, one row after the other. Panics when the view has another size.
    pub fn matrix(self, rows: usize, columns: usize) -> MatrixMut<'a, E> {
        assert_eq!(self.len(), rows * columns, "a {rows} x {columns} matrix");
        MatrixMut { view: self, rows, columns, stride: columns }
    }
}

impl<'a, E: Copy> Matrix<'a, E> {
    /// Some of the columns; rows stay where they are. Panics when there are no such columns.
    pub fn columns(self, range: Range<usize>) -> Self {
        assert!(range.end <= self.columns, "columns {range:?} of {}", self.columns);
        let view = self.view.range(range.start..self.view.len());
        Self { view, columns: range.len(), ..self }
    }

    /// Some of the rows. Panics when there are no such rows.
    pub fn rows(self, range: Range<usize>) -> Self {
        assert!(range.end <= self.rows, "rows {range:?} of {}", self.rows);
        let end = if range.end == self.rows { self.view.len() } else { range.end * self.stride };
        Self { view: self.view.range(range.start * self.stride..end), rows: range.len(), ..self }
    }
}

impl<E> MatrixMut<'_, E> {
    pub fn reborrow(&mut self) -> MatrixMut<'_, E> {
        let Self { view, rows, columns, stride } = self;
        MatrixMut { view: view.reborrow(), rows: *rows, columns: *columns, stride: *stride }
    }

    pub fn matrix(&self) -> Matrix<'_, E> {
        Matrix { view: self.view.view(), rows: self.rows, columns: self.columns, stride: self.stride }
    }

    /// Some of the columns; rows stay where they are. Panics when there are no such columns.
    pub fn into_columns(self, range: Range<usize>) -> Self {
        assert!(range.end <= self.columns, "columns {range:?} of {}", self.columns);
        let len = self.view.len();
        Self { view: self.view.into_range(range.start..len), columns: range.len(), ..self }
    }

    /// Some of the rows. Panics when there are no such rows.
    pub fn into_rows(self, range: Range<usize>) -> Self {
        assert!(range.end <= self.rows, "rows {range:?} of {}", self.rows);
        let end = if range.end == self.rows { self.view.len() } else { range.end * self.stride };
        Self { view: self.view.into_range(range.start * self.stride..end), rows: range.len(), ..self }
    }
}
