//! Memory of a GPU: buffers, scratch that grows, copies in and out, and what kernels report.
#![expect(unsafe_code, reason = "reads what kernels report")]

use std::cell::RefCell;
use std::ffi::c_void;
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use super::driver::{CudaContext, OUT_OF_MEMORY};
use super::{Cuda, CudaError};
use crate::device::{AddressSpace, MappedFile, Owner};
use crate::{Buffer, BufferValue, Matrix, MatrixMut, View, ViewMut};

/// Bytes of a GPU's memory; they are given back when this is dropped.
pub(crate) struct CudaMemory {
    context: Arc<CudaContext>,
    address: u64,
}

impl CudaMemory {
    /// CudaMemory that is used up is not the device's error: the caller may have another way.
    fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, CudaError> {
        let (driver, mut address) = (context.driver(), 0);
        context.check()?;
        let what = format_args!("give {bytes} bytes of memory");
        match driver.allocate(&mut address, bytes.max(16)) {
            0 => Ok(Self { context: context.clone(), address }),
            OUT_OF_MEMORY => Err(context.error(OUT_OF_MEMORY, what)),
            code => Err(context.fail(code, what)),
        }
    }

    /// What stands for memory on a device that has failed and computes nothing any more.
    fn none(context: &Arc<CudaContext>) -> Self {
        Self { context: context.clone(), address: 0 }
    }

    fn clear(&self, bytes: usize) {
        self.context.set_bytes(self.address, 0, bytes.max(16));
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        // The driver waits for kernels that use it. Nothing can be done where it refuses.
        if self.address != 0 {
            self.context.driver().free(self.address);
        }
    }
}

/// The place of a GPU's memory, apart from those of the processor's test devices. A process has one context for each GPU, so that what was allocated by one
/// device of it is good for the next.
pub(super) fn place_of(ordinal: usize) -> AddressSpace {
    AddressSpace(1 << 31 | ordinal as u32)
}

/// Memory between kernels of one operator; it grows to what the largest step needs and stays.
#[derive(Default)]
pub(super) struct Scratch(RefCell<Option<(CudaMemory, usize)>>);

impl Scratch {
    pub(super) fn of(&self, context: &Arc<CudaContext>, bytes: usize) -> u64 {
        self.try_of(context, bytes).unwrap_or_else(|error| {
            context.keep(error);
            0
        })
    }

    /// The same where there is another way without it.
    pub(super) fn try_of(&self, context: &Arc<CudaContext>, bytes: usize) -> Result<u64, CudaError> {
        let mut held = self.0.borrow_mut();
        match &*held {
            Some((memory, size)) if *size >= bytes => Ok(memory.address),
            _ => {
                // Somewhat more than what it had, so that what grows little by little rarely moves.
                let grown = held.take().map_or(0, |(_, size)| size + size / 8);
                context.note_move();
                let size = bytes.max(grown).next_multiple_of(1 << 21);
                let memory = CudaMemory::new(context, size)?;
                // What was there before may be NaN, which attention would multiply by weights of zero.
                memory.clear(size);
                let address = memory.address;
                *held = Some((memory, size));
                Ok(address)
            }
        }
    }
}

/// Host memory that kernels write to: three words about bad input, then eight bytes for a result.
pub(super) struct DeviceReport {
    pointer: *mut u32,
    context: Arc<CudaContext>,
}

impl DeviceReport {
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self, CudaError> {
        let mut pointer: *mut c_void = std::ptr::null_mut();
        // 2: mapped into the GPU's addresses, which are the host's.
        context.attempt("give host memory", |driver| driver.host_allocate(&mut pointer, 64, 2))?;
        // SAFETY: 64 bytes were allocated just now.
        unsafe { pointer.cast::<u8>().write_bytes(0, 64) };
        Ok(Self { pointer: pointer.cast(), context: context.clone() })
    }

    pub(super) fn address(&self) -> u64 {
        self.pointer.expose_provenance() as u64
    }

    /// Where a result of eight bytes goes.
    pub(super) fn result_address(&self) -> u64 {
        self.address() + 32
    }

    /// The result, after the stream has been waited for.
    pub(super) fn result(&self) -> u64 {
        // SAFETY: inside the allocation; no kernel runs, as the caller has waited.
        unsafe { self.pointer.cast::<u64>().add(4).read_volatile() }
    }

    /// Panics where a kernel met bad input.
    pub(super) fn check(&self) {
        // SAFETY: inside the allocation; a kernel writes the first word once, after the others are of no interest until it has.
        let [what, number, limit] = [0, 1, 2].map(|at| unsafe { self.pointer.add(at).read_volatile() });
        if what == 0 {
            return;
        }
        // SAFETY: as above.
        unsafe { self.pointer.write_volatile(0) };
        let what = match what {
            1 => "token",
            2 => "target",
            3 => "position",
            4 => "expert",
            5 => "slot",
            6 => "block or position",
            _ => "row",
        };
        panic!("{what} {number} is beyond the {limit} that there are");
    }
}

impl Drop for DeviceReport {
    fn drop(&mut self) {
        self.context.driver().host_free(self.pointer.cast());
    }
}

// SAFETY: the pointer is to memory that this alone owns.
unsafe impl Send for DeviceReport {}

impl Cuda {
    /// Where there is no memory, that is the device's error, and the buffer stands for one.
    pub(crate) fn zeros<E: BufferValue>(&self, len: usize) -> Buffer<E> {
        self.allocate(len).unwrap_or_else(|error| {
            self.context.keep(error);
            Buffer::new(self.place, 0, len, Owner::Cuda(CudaMemory::none(&self.context)))
        })
    }

    pub(crate) fn reserve<E: BufferValue>(&self, len: usize) -> io::Result<Buffer<E>> {
        self.allocate(len).map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))
    }

    fn allocate<E: BufferValue>(&self, len: usize) -> Result<Buffer<E>, CudaError> {
        let bytes = len.checked_mul(size_of::<E>()).expect("a buffer is smaller than the address space");
        let memory = CudaMemory::new(&self.context, bytes)?;
        memory.clear(bytes);
        let address = memory.address as usize;
        Ok(Buffer::new(self.place, address, len, Owner::Cuda(memory)))
    }

    /// Brings a file to the GPU.
    pub(crate) fn load_file(&self, mut file: &File) -> io::Result<MappedFile> {
        let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let mut buffer = self.reserve::<u8>(bytes)?;
        let mut chunk = vec![0; (64 << 20).min(bytes.max(1))];
        let mut done = 0;
        while done < bytes {
            let count = file.read(&mut chunk[..(bytes - done).min(64 << 20)])?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.write(buffer.range_mut(done..done + count), &chunk[..count]);
            done += count;
        }
        Ok(buffer.into_file())
    }

    pub(crate) fn write<E: BufferValue>(&self, to: ViewMut<'_, E>, from: &[E]) {
        assert_eq!(to.len(), from.len(), "elements to write");
        let (to, bytes, stream) = (self.at_mut(&to), size_of_val(from), self.context.stream());
        self.context
            .ask("take elements", |driver| driver.host_to_device(to, from.as_ptr().cast(), bytes, stream));
    }

    pub(crate) fn read<E: BufferValue>(&self, from: View<'_, E>, to: &mut [E]) {
        assert_eq!(from.len(), to.len(), "elements to read");
        self.context.read(self.at(from), to);
        self.wait();
        if self.context.has_failed() {
            to.fill(E::default());
        }
    }

    /// Waits for everything that was started, and panics where a kernel met bad input.
    pub(crate) fn wait(&self) {
        self.timeline.pause(&self.context);
        self.context.synchronize();
        if !self.context.has_failed() {
            self.report.check();
        }
    }

    /// The address of a view. Panics when the view is of another device.
    pub(crate) fn at<E>(&self, view: View<'_, E>) -> u64 {
        let found = view.place;
        assert!(found == self.place, "this view belongs to another device: {found:?}, not {:?}", self.place);
        view.address as u64
    }

    pub(super) fn at_mut<E>(&self, view: &ViewMut<'_, E>) -> u64 {
        self.at(view.view())
    }

    /// The address of a matrix and the distance of its rows.
    pub(super) fn rows<E: BufferValue>(&self, matrix: &Matrix<'_, E>) -> MatrixLines {
        MatrixLines { address: self.at(matrix.elements), stride: matrix.stride, bytes: size_of::<E>() }
    }

    pub(super) fn rows_mut<E: BufferValue>(&self, matrix: &MatrixMut<'_, E>) -> MatrixLines {
        assert!(matrix.stride >= matrix.columns || matrix.rows <= 1, "rows of a matrix overlap");
        MatrixLines { address: self.at_mut(&matrix.elements), stride: matrix.stride, bytes: size_of::<E>() }
    }
}

/// Where the rows of a matrix lie.
#[derive(Debug, Clone, Copy)]
pub(super) struct MatrixLines {
    pub(super) address: u64,
    pub(super) stride: usize,
    pub(super) bytes: usize,
}

impl MatrixLines {
    /// Whether every row begins at a multiple of sixteen bytes.
    pub(super) fn is_aligned(&self) -> bool {
        self.address.is_multiple_of(16) && (self.stride * self.bytes).is_multiple_of(16)
    }
}
