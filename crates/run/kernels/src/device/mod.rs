//! What every device offers: memory, and the operators with their documentation, their checks of shapes and the part
//! that their time is booked under.
//!
//! A [`Device`] stands in front of one *room*, the implementation for one kind of hardware, which is the only one to look
//! at the numbers. A room has a method for each operator, takes the same arguments and relies on the checks made here.

/// Has an operator done by the device's room, its time booked under a part. Another kind of device is another arm.
macro_rules! in_room {
    ($device:ident, $part:ident, $operator:ident $arguments:tt) => {
        match &$device.room {
            crate::device::Room::Cpu(cpu) => {
                cpu.time(bedplate_breakdown::Part::$part, || cpu.$operator $arguments)
            }
            crate::device::Room::Cuda(cuda) => {
                cuda.time(bedplate_breakdown::Part::$part, || cuda.$operator $arguments)
            }
        }
    };
}

mod activation;
mod adamw;
mod attention;
mod choice;
mod cross_entropy;
mod draw;
mod element;
mod embedding;
mod expert_linear;
mod experts;
mod fp8;
mod heads;
mod linear;
mod memory;
mod norm;
mod packed;
mod paged;
mod rotary;
mod route;
mod stream;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bedplate_breakdown::{Breakdown, Measured};

use crate::cpu::{Cpu, Traffic};
use crate::cuda::{Cuda, CudaError, Recording, Transfers};
pub use activation::Gelu;
pub use adamw::AdamW;
pub use attention::{AttentionShape, Qkv, Seen};
pub use choice::{DeviceChoice, NoSuchChoice};
pub use cross_entropy::{HeadGradients, IGNORED};
pub(crate) use draw::Candidates;
pub use draw::Draw;
pub(crate) use element::Numbers;
pub use element::{Bf16, Element, Value};
pub use heads::Heads;
pub use linear::Put;
pub use memory::{Buffer, MappedFile, Matrix, MatrixMut, Rows, View, ViewMut};
pub(crate) use memory::{Owner, Place};
pub(crate) use packed::Body;
pub use packed::{Packed, WeightFormat};
pub use paged::{KvFormat, PagedRows, PagedShape, Sight};
pub use rotary::{Rotary, Turn};
pub use route::Balance;
pub use stream::NONE;

/// Something that operators run on. One thread calls them; they share the work out.
pub struct Device {
    room: Room,
}

#[expect(clippy::large_enum_variant, reason = "a process has one device")]
enum Room {
    Cpu(Cpu),
    Cuda(Box<Cuda>),
}

impl Device {
    /// The processor with `threads` threads, at least one.
    pub fn cpu(threads: usize) -> Self {
        Self { room: Room::Cpu(Cpu::new(threads)) }
    }

    /// NVIDIA's GPU of this number. Driver, compiler (NVRTC) and cuBLASLt are looked for now; kernels are compiled when they are first used, and
    /// kept in the user's cache.
    pub fn cuda(ordinal: usize) -> Result<Self, CudaError> {
        Ok(Self { room: Room::Cuda(Box::new(Cuda::new(ordinal)?)) })
    }

    /// GPUs that the driver shows this process, in its order, each by its place on the host's bus; none where there is no driver.
    pub fn gpus() -> Result<Vec<String>, CudaError> {
        Cuda::list()
    }

    /// Whether this is the processor, which reaches the device's memory.
    pub fn is_cpu(&self) -> bool {
        matches!(self.room, Room::Cpu(_))
    }

    /// A device for tests: the processor with memory that only it can find, so that a caller who takes a shortcut past the
    /// device is found out. It refuses views of other devices, counts what goes in and out and poisons what is released.
    #[doc(hidden)]
    pub fn apart(threads: usize) -> Self {
        Self { room: Room::Cpu(Cpu::apart(threads)) }
    }

    #[cfg(test)]
    pub(crate) fn of(cpu: Cpu) -> Self {
        Self { room: Room::Cpu(cpu) }
    }

    fn processor(&self) -> Option<&Cpu> {
        match &self.room {
            Room::Cpu(cpu) => Some(cpu),
            Room::Cuda(_) => None,
        }
    }

    /// What a device for tests has counted.
    #[doc(hidden)]
    pub fn traffic(&self) -> Traffic {
        self.processor().map(Cpu::traffic).unwrap_or_default()
    }

    /// Threads of the processor that do the work; a GPU has one that starts it.
    pub fn threads(&self) -> usize {
        self.processor().map_or(1, Cpu::threads)
    }

    /// Whether bf16 products use the processor's tile unit (AMX).
    pub fn has_tiles(&self) -> bool {
        self.processor().is_some_and(Cpu::has_tiles)
    }

    /// What the operators are compiled for, as people say it.
    pub fn instructions(&self) -> String {
        match &self.room {
            Room::Cpu(cpu) => cpu.instructions(),
            Room::Cuda(cuda) => cuda.instructions(),
        }
    }

    /// FLOP/s of products of f32 whose numbers stay in registers, all threads at work: by multiply-adds, or by a tile unit that takes six
    /// products of bf16 for one. 0 for a GPU, whose limit is not measured so. Takes some tenths of a second.
    pub fn arithmetic_limit(&self) -> f64 {
        self.processor().map_or(0.0, Cpu::arithmetic_limit)
    }

    /// The same for products of bf16: more where there is a tile unit, as many where they are made in f32.
    pub fn arithmetic_limit_bf16(&self, of_f32: f64) -> f64 {
        self.processor().map_or(0.0, |cpu| cpu.arithmetic_limit_bf16(of_f32))
    }

    /// The name that a GPU's driver gives it.
    pub fn gpu_name(&self) -> Option<&str> {
        match &self.room {
            Room::Cpu(_) => None,
            Room::Cuda(cuda) => Some(cuda.name()),
        }
    }

    /// Bytes of the device's own memory that are free; none for the processor, whose memory is the system's.
    pub fn free_memory(&self) -> Option<usize> {
        match &self.room {
            Room::Cpu(_) => None,
            Room::Cuda(cuda) => Some(cuda.memory().0),
        }
    }

    /// Bytes of the device's own memory; none for the processor.
    pub fn memory(&self) -> Option<usize> {
        match &self.room {
            Room::Cpu(_) => None,
            Room::Cuda(cuda) => Some(cuda.memory().1),
        }
    }

    /// Waits until everything that was started is done.
    pub fn synchronize(&self) {
        match &self.room {
            Room::Cpu(_) => {}
            Room::Cuda(cuda) => cuda.wait(),
        }
    }

    /// Records the operators that `work` calls, without running them, so that [`replay`](Self::replay) can start them all at once; none where the
    /// device has nothing to gain from it, and then `work` is not called. The same work must have been done once before, so that
    /// kernels are compiled and scratch memory is there; inside it nothing may be read, written or allocated, and all views must stay where they are
    /// for as long as the recording is replayed.
    pub fn record(&self, work: impl FnOnce(&Device)) -> Option<Recording> {
        match &self.room {
            Room::Cpu(_) => None,
            Room::Cuda(cuda) => Some(cuda.record(|| work(self))),
        }
    }

    /// Starts what was recorded, on the numbers that its views have now, and says whether it could: larger work in between may have moved scratch memory, and
    /// then the recording is of no use any more. Its time is booked under [`Part::Compute`](bedplate_breakdown::Part::Compute).
    #[must_use = "a recording may be out of date"]
    pub fn replay(&self, recording: &Recording) -> bool {
        match &self.room {
            Room::Cpu(_) => unreachable!("the processor makes no recordings"),
            Room::Cuda(cuda) => cuda.time(bedplate_breakdown::Part::Compute, || cuda.replay(recording)),
        }
    }

    /// The time of operators by part since this was last asked.
    pub fn take_measured(&self) -> Breakdown<Measured> {
        match &self.room {
            Room::Cpu(cpu) => cpu.take_measured(),
            Room::Cuda(cuda) => cuda.take_measured(),
        }
    }

    /// Private memory; all numbers are zero.
    pub fn zeros<E: Value>(&self, len: usize) -> Buffer<E> {
        match &self.room {
            Room::Cpu(cpu) => cpu.zeros(len),
            Room::Cuda(cuda) => cuda.zeros(len),
        }
    }

    /// Private memory that is taken from the system where it is written for the first time; all numbers are zero. For what may be
    /// large and is rarely full.
    pub fn reserve<E: Value>(&self, len: usize) -> io::Result<Buffer<E>> {
        match &self.room {
            Room::Cpu(cpu) => cpu.reserve(len),
            Room::Cuda(cuda) => cuda.reserve(len),
        }
    }

    /// Memory that other processes can map by its [descriptor](Buffer::descriptor); all numbers are zero.
    pub fn shareable<E: Value>(&self, len: usize) -> io::Result<Buffer<E>> {
        match &self.room {
            Room::Cpu(cpu) => cpu.shareable(len),
            Room::Cuda(_) => Err(not_shared()),
        }
    }

    /// Maps what a peer process made with [`Device::shareable`] and sent the descriptor of.
    ///
    /// # Safety
    ///
    /// No process may write to numbers while another reads or writes them: processes agree on whose turn it is. No process
    /// may shorten the memory.
    #[expect(unsafe_code, reason = "the borrow checker does not see other processes")]
    pub unsafe fn map_shared<E: Value>(&self, descriptor: OwnedFd, len: usize) -> io::Result<Buffer<E>> {
        match &self.room {
            // SAFETY: as the caller upholds.
            Room::Cpu(cpu) => unsafe { cpu.map_shared(descriptor, len) },
            Room::Cuda(_) => Err(not_shared()),
        }
    }

    /// Maps a file read-only; what of it is never looked at is never loaded. A GPU loads it whole.
    ///
    /// # Safety
    ///
    /// The file must not be changed or shortened while it is mapped.
    #[expect(unsafe_code, reason = "the borrow checker does not see other processes")]
    pub unsafe fn map_file(&self, file: &File) -> io::Result<MappedFile> {
        match &self.room {
            // SAFETY: as the caller upholds.
            Room::Cpu(cpu) => unsafe { cpu.map_file(file) },
            Room::Cuda(cuda) => cuda.load_file(file),
        }
    }

    /// The numbers themselves, for a transport that moves them; absent where only the device reaches its memory.
    pub fn lend<'a, E: Value>(&self, view: View<'a, E>) -> Option<&'a [E]> {
        match &self.room {
            Room::Cpu(cpu) => Some(cpu.slice(view)),
            Room::Cuda(_) => None,
        }
    }

    /// As [`lend`](Self::lend), to be written.
    pub fn lend_mut<'a, E: Value>(&self, view: ViewMut<'a, E>) -> Option<&'a mut [E]> {
        match &self.room {
            Room::Cpu(cpu) => Some(cpu.slice_mut(view)),
            Room::Cuda(_) => None,
        }
    }

    /// Another stream of a GPU, for a transport that moves numbers of its memory; none for the processor, whose numbers are [lent](Self::lend).
    pub fn transfers(&self) -> Option<Result<Arc<Transfers>, CudaError>> {
        match &self.room {
            Room::Cpu(_) => None,
            Room::Cuda(cuda) => Some(cuda.transfers()),
        }
    }

    /// Where numbers lie in a GPU's memory, for such a transport; none for the processor. Panics when the view is of another device.
    pub fn address_of<E: Value>(&self, view: View<'_, E>) -> Option<u64> {
        match &self.room {
            Room::Cpu(_) => None,
            Room::Cuda(cuda) => Some(cuda.at(view)),
        }
    }

    /// Copies numbers to the device. Panics when the lengths differ.
    pub fn write<E: Value>(&self, to: ViewMut<'_, E>, from: &[E]) {
        match &self.room {
            Room::Cpu(cpu) => cpu.write(to, from),
            Room::Cuda(cuda) => cuda.write(to, from),
        }
    }

    /// Copies numbers from the device. Panics when the lengths differ.
    pub fn read<E: Value>(&self, from: View<'_, E>, to: &mut [E]) {
        match &self.room {
            Room::Cpu(cpu) => cpu.read(from, to),
            Room::Cuda(cuda) => cuda.read(from, to),
        }
    }
}

fn not_shared() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "memory of a GPU is not shared between processes")
}

#[cfg(test)]
mod tests;
