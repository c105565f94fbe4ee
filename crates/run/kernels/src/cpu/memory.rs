//! Memory of the processor: how it is got and given back, and how views become slices.
//!
//! Buffers begin at a cache line and, once they are large, at a huge page.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::Cpu;
use super::share::SharedRows;
use crate::device::{AddressSpace, MappedFile, Owner};
use crate::{Buffer, BufferValue, Matrix, MatrixMut, Rows, View, ViewMut};

const CACHE_LINE: usize = 64;
const HUGE_PAGE: usize = 2 << 20;

/// Bytes of the processor's memory, and how they are given back.
pub(crate) struct CpuMemory {
    start: NonNull<u8>,
    bytes: usize,
    kind: Kind,
    /// Of a device for tests.
    counts: Option<Arc<Counts>>,
}

enum Kind {
    Heap,
    Mapped,
    /// Anonymous memory that becomes real where it is written, inside a larger range.
    Anonymous {
        base: usize,
        bytes: usize,
    },
    /// Mapped, and other processes may map it too.
    Shareable(OwnedFd),
}

/// What a device for tests has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceTraffic {
    /// Memory that is allocated now.
    pub bytes: usize,
    /// How often elements were written to the device and read from it.
    pub writes: usize,
    pub reads: usize,
}

#[derive(Default)]
struct Counts {
    bytes: AtomicUsize,
    writes: AtomicUsize,
    reads: AtomicUsize,
}

/// How the addresses in views relate to the processor's.
pub(crate) struct Addresses {
    place: AddressSpace,
    /// What is added to the processor's address.
    offset: usize,
    counts: Option<Arc<Counts>>,
}

impl Addresses {
    pub(crate) const HOST: Self = Self { place: AddressSpace(0), offset: 0, counts: None };

    /// An address space of its own. Processors have no addresses that begin with these bits, so an access that does
    /// not go through the device faults.
    pub(crate) fn apart() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let place = AddressSpace(NEXT.fetch_add(1, Ordering::Relaxed));
        Self { place, offset: 1 << 62, counts: Some(Arc::default()) }
    }

    fn own(&self, mut memory: CpuMemory) -> (AddressSpace, usize, Owner) {
        memory.counts.clone_from(&self.counts);
        if let Some(counts) = &self.counts {
            counts.bytes.fetch_add(memory.bytes, Ordering::Relaxed);
        }
        (self.place, memory.start.as_ptr().expose_provenance() + self.offset, Owner::Cpu(memory))
    }

    /// The processor's address of a view. Panics when the view is of another device.
    #[inline(always)]
    fn find(&self, place: AddressSpace, address: usize) -> usize {
        assert!(place == self.place, "this view belongs to another device: {place:?}, not {:?}", self.place);
        address - self.offset
    }

    /// The elements of a view. Panics when the view is of another device.
    #[expect(unsafe_code, reason = "addresses become slices here")]
    pub(crate) fn slice<'a, E: BufferValue>(&self, view: View<'a, E>) -> &'a [E] {
        let start = std::ptr::with_exposed_provenance(self.find(view.place, view.address));
        // SAFETY: only buffers and mapped files make views, of memory in this place that holds values of `E` and is borrowed
        // for as long as the view lives; a part of a view lies inside it.
        unsafe { std::slice::from_raw_parts(start, view.len()) }
    }
}

impl Cpu {
    pub(crate) fn zeros<E: BufferValue>(&self, len: usize) -> Buffer<E> {
        self.buffer(len, CpuMemory::zeros(bytes_of::<E>(len)))
    }

    pub(crate) fn reserve<E: BufferValue>(&self, len: usize) -> io::Result<Buffer<E>> {
        Ok(self.buffer(len, CpuMemory::reserve(bytes_of::<E>(len))?))
    }

    pub(crate) fn shareable<E: BufferValue>(&self, len: usize) -> io::Result<Buffer<E>> {
        Ok(self.buffer(len, CpuMemory::shareable(bytes_of::<E>(len))?))
    }

    /// # Safety
    ///
    /// As for [`Device::map_shared`](crate::Device::map_shared).
    #[expect(unsafe_code, reason = "the borrow checker does not see other processes")]
    pub(crate) unsafe fn map_shared<E: BufferValue>(
        &self,
        from: OwnedFd,
        len: usize,
    ) -> io::Result<Buffer<E>> {
        // SAFETY: as the caller upholds.
        Ok(self.buffer(len, unsafe { CpuMemory::map_shared(from, bytes_of::<E>(len)) }?))
    }

    fn buffer<E: BufferValue>(&self, len: usize, memory: CpuMemory) -> Buffer<E> {
        let (place, address, owner) = self.addresses.own(memory);
        Buffer::new(place, address, len, owner)
    }

    /// # Safety
    ///
    /// As for [`Device::map_file`](crate::Device::map_file).
    #[expect(unsafe_code, reason = "the borrow checker does not see other processes")]
    pub(crate) unsafe fn map_file(&self, file: &File) -> io::Result<MappedFile> {
        let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        // SAFETY: as the caller upholds.
        let memory = unsafe { CpuMemory::map(file.as_raw_fd(), bytes, libc::PROT_READ, Kind::Mapped) }?;
        let (place, address, owner) = self.addresses.own(memory);
        Ok(MappedFile::new(place, address, bytes, owner))
    }

    pub(crate) fn write<E: BufferValue>(&self, to: ViewMut<'_, E>, from: &[E]) {
        if let Some(counts) = &self.addresses.counts {
            counts.writes.fetch_add(1, Ordering::Relaxed);
        }
        self.slice_mut(to).copy_from_slice(from);
    }

    pub(crate) fn read<E: BufferValue>(&self, from: View<'_, E>, to: &mut [E]) {
        if let Some(counts) = &self.addresses.counts {
            counts.reads.fetch_add(1, Ordering::Relaxed);
        }
        to.copy_from_slice(self.slice(from));
    }

    pub(crate) fn traffic(&self) -> DeviceTraffic {
        self.addresses.counts.as_ref().map_or(DeviceTraffic::default(), |counts| DeviceTraffic {
            bytes: counts.bytes.load(Ordering::Relaxed),
            writes: counts.writes.load(Ordering::Relaxed),
            reads: counts.reads.load(Ordering::Relaxed),
        })
    }

    /// The elements of a view. Panics when the view is of another device.
    pub(crate) fn slice<'a, E: BufferValue>(&self, view: View<'a, E>) -> &'a [E] {
        self.addresses.slice(view)
    }

    /// The elements of a view. Panics when the view is of another device.
    #[expect(unsafe_code, reason = "addresses become slices here")]
    pub(crate) fn slice_mut<'a, E: BufferValue>(&self, view: ViewMut<'a, E>) -> &'a mut [E] {
        let start = std::ptr::with_exposed_provenance_mut(self.addresses.find(view.0.place, view.0.address));
        // SAFETY: as above; only mutably borrowed buffers make such views, and parts that are split off do not overlap.
        unsafe { std::slice::from_raw_parts_mut(start, view.len()) }
    }

    pub(crate) fn rows<'a, E: BufferValue>(&self, matrix: Matrix<'a, E>) -> Rows<&'a [E]> {
        let Rows { elements, rows, columns, stride } = matrix;
        Rows { elements: self.slice(elements), rows, columns, stride }
    }

    /// The rows of a matrix, to be shared out.
    pub(crate) fn rows_mut<'a, E: BufferValue>(&self, matrix: MatrixMut<'a, E>) -> SharedRows<'a, E> {
        let Rows { elements, rows, columns, stride } = matrix;
        assert!(stride >= columns || rows <= 1, "rows of a matrix overlap");
        // No slice on the way: elements between the rows may belong to another matrix of the same operator.
        let start =
            std::ptr::with_exposed_provenance_mut(self.addresses.find(elements.0.place, elements.0.address));
        SharedRows::at(start, elements.len(), columns, stride)
    }

    /// Elements to be shared out, `each` for every row.
    pub(crate) fn shared<'a, E: BufferValue>(&self, view: ViewMut<'a, E>, each: usize) -> SharedRows<'a, E> {
        SharedRows::new(self.slice_mut(view), each, each)
    }
}

impl<E> Rows<&[E]> {
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &[E] {
        &self.elements[row * self.stride..][..self.columns]
    }
}

#[expect(unsafe_code, reason = "allocates, maps and gives back")]
impl CpuMemory {
    /// Large memory comes from the system, which has zeros: an allocator would write them once more, to small pages, before huge
    /// ones can be asked for.
    pub(crate) fn zeros(bytes: usize) -> Self {
        let layout = layout(bytes);
        if bytes >= 2 * HUGE_PAGE {
            return Self::anonymous(bytes, 0).unwrap_or_else(|_| handle_alloc_error(layout));
        }
        // SAFETY: the layout has a size above zero, by `layout`.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(memory) else { handle_alloc_error(layout) };
        Self { start, bytes, kind: Kind::Heap, counts: None }
    }

    fn reserve(bytes: usize) -> io::Result<Self> {
        Self::anonymous(bytes, libc::MAP_NORESERVE)
    }

    fn anonymous(bytes: usize, more: i32) -> io::Result<Self> {
        let whole = bytes.max(1) + HUGE_PAGE;
        let (anywhere, protection) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | more;
        // SAFETY: a new range is asked for, so no other memory is touched.
        let base = unsafe { libc::mmap(anywhere, whole, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let offset = base.cast::<u8>().align_offset(HUGE_PAGE);
        // SAFETY: the range is longer than the offset, which is less than a huge page.
        let start = unsafe { base.cast::<u8>().add(offset) };
        // SAFETY: the range was mapped above; the call gives advice and changes no content.
        unsafe { libc::madvise(start.cast(), bytes.max(1), libc::MADV_HUGEPAGE) };
        let start = NonNull::new(start).ok_or_else(io::Error::last_os_error)?;
        let kind = Kind::Anonymous { base: base.expose_provenance(), bytes: whole };
        Ok(Self { start, bytes, kind, counts: None })
    }

    fn shareable(bytes: usize) -> io::Result<Self> {
        // SAFETY: the name ends with a zero; the call makes a new descriptor or none.
        let descriptor = unsafe { libc::memfd_create(c"bedplate".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
        file.set_len(bytes.max(1) as u64)?;
        // SAFETY: no other process has the descriptor yet; one that gets it vouches for itself.
        unsafe { Self::map_shared(file.into(), bytes) }
    }

    /// # Safety
    ///
    /// As for [`Device::map_shared`](crate::Device::map_shared).
    unsafe fn map_shared(from: OwnedFd, bytes: usize) -> io::Result<Self> {
        let file = File::from(from);
        if file.metadata()?.len() < bytes as u64 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "shared memory is shorter than its elements",
            ));
        }
        let from = OwnedFd::from(file);
        let (raw, protection) = (from.as_raw_fd(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: as the caller upholds.
        unsafe { Self::map(raw, bytes, protection, Kind::Shareable(from)) }
    }

    /// # Safety
    ///
    /// Other processes must not change what this one borrows, nor shorten the file.
    unsafe fn map(from: RawFd, bytes: usize, protection: i32, kind: Kind) -> io::Result<Self> {
        let anywhere = std::ptr::null_mut();
        // SAFETY: a new range is asked for, so no other memory is touched.
        let start = unsafe { libc::mmap(anywhere, bytes.max(1), protection, libc::MAP_SHARED, from, 0) };
        match NonNull::new(start.cast()) {
            Some(first) if start != libc::MAP_FAILED => Ok(Self { start: first, bytes, kind, counts: None }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.kind {
            Kind::Shareable(descriptor) => Some(descriptor.as_fd()),
            Kind::Heap | Kind::Mapped | Kind::Anonymous { .. } => None,
        }
    }

    /// Private memory as elements.
    pub(crate) fn elements_mut(&mut self) -> &mut [f32] {
        // SAFETY: the memory is aligned to cache lines, initialised and borrowed mutably; all bits are valid elements.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.bytes / size_of::<f32>()) }
    }
}

fn bytes_of<E>(len: usize) -> usize {
    len.checked_mul(size_of::<E>()).expect("a buffer is smaller than the address space")
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.max(CACHE_LINE), CACHE_LINE)
        .expect("a buffer is smaller than the address space")
}

#[expect(unsafe_code, reason = "gives back what was allocated or mapped")]
impl Drop for CpuMemory {
    fn drop(&mut self) {
        if let Some(counts) = &self.counts {
            counts.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
            if let Kind::Heap = self.kind {
                // SAFETY: this memory is still allocated and has no other owner. Every format has NaN in these bits.
                unsafe { self.start.write_bytes(0xff, self.bytes) };
            }
        }
        match self.kind {
            // SAFETY: `start` was allocated with this layout, which follows from the bytes alone.
            Kind::Heap => unsafe { dealloc(self.start.as_ptr(), layout(self.bytes)) },
            Kind::Anonymous { base, bytes } => {
                // SAFETY: the range was mapped with this size, and nothing borrows it any more.
                unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(base), bytes) };
            }
            Kind::Mapped | Kind::Shareable(_) => {
                // SAFETY: the range was mapped with this size, and nothing borrows it any more.
                unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes.max(1)) };
            }
        }
    }
}

#[expect(unsafe_code, reason = "memory has one owner")]
// SAFETY: the memory has no other owner in this process, like that of a `Vec`.
unsafe impl Send for CpuMemory {}

#[expect(unsafe_code, reason = "shared memory can only be read")]
// SAFETY: `&Memory` gives nothing that could be written to.
unsafe impl Sync for CpuMemory {}
