//! What every device offers: memory, and the operators with their documentation, their checks of shapes and the part
//! that their time is booked under.
//!
//! A [`Device`] stands in front of one *backend*, the implementation for one kind of hardware, which is the only one to look
//! at the elements. A backend has a method for each operator, takes its arguments
//! (as one struct where they are many) and relies on the checks made here.

/// Has an operator done by the device's backend, its time booked under a part. Another kind of device is another arm.
macro_rules! on_backend {
    ($device:ident, $part:ident, $operator:ident $arguments:tt) => {
        match &$device.backend {
            crate::device::Backend::Cpu(cpu) => {
                cpu.time(bedplate_breakdown::Part::$part, || cpu.$operator $arguments)
            }
            crate::device::Backend::Cuda(cuda) => {
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
mod element;
mod embedding;
mod expert_linear;
mod experts;
mod fp8;
mod heads;
mod latent;
mod linear;
mod memory;
mod norm;
mod packed;
mod paged;
mod pattern;
mod rotary;
mod route;
mod sampling;
mod sinks;
mod stream;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bedplate_breakdown::{Breakdown, Measured};

use crate::cpu::{Cpu, DeviceTraffic};
use crate::cuda::{Cuda, CudaError, CudaGraph, Transfers};
pub(crate) use activation::ActivationBackward;
pub use activation::{Gate, Gelu, LimitedGate};
pub use adamw::AdamW;
pub(crate) use attention::{AttentionBackward, AttentionForward, MergeParts};
pub use attention::{AttentionShape, Qkv, VisibleKeys};
pub use choice::{DeviceChoice, NoSuchChoice};
pub(crate) use cross_entropy::CrossEntropy;
pub use cross_entropy::{HeadGradients, IGNORED, LossRule};
pub(crate) use element::Elements;
pub use element::{Bf16, BufferValue, Element};
pub(crate) use embedding::EmbeddingForward;
pub(crate) use expert_linear::{ExpertBackwardWeight, ExpertForward};
pub(crate) use experts::{CombineBackward, Dispatch, GateBackward, GateForward, GatherRows, SumSlots};
pub use heads::Heads;
pub use latent::HeadPart;
pub(crate) use latent::HeadParts;
pub use linear::Accumulate;
pub(crate) use linear::{LinearBackwardInput, LinearBackwardWeight, LinearForward};
pub(crate) use memory::{AddressSpace, Owner};
pub use memory::{Buffer, MappedFile, Matrix, MatrixMut, Rows, View, ViewMut};
pub use norm::NormWeight;
pub(crate) use norm::{HeadNormBackward, NormBackward, NormForward};
pub(crate) use packed::PackedStorage;
pub use packed::{ExpertRows, Packed, PackedExperts, WeightFormat};
pub use paged::{KvFormat, PagedRows, PagedShape, Sight};
pub(crate) use paged::{PagedForward, StoreKv};
pub(crate) use pattern::share_of_digest;
pub use pattern::{Pattern, WrongWords};
pub(crate) use rotary::Rotation;
pub use rotary::{Pairing, Rotary, Turn};
pub use route::{Balance, GroupScore, RouteGroups, RouteRule, RouteScores};
pub(crate) use route::{ExpertShares, RouteBackward, RouteForward};
pub(crate) use sampling::Candidates;
pub use sampling::SampleParams;
pub(crate) use sinks::SinkBackward;
pub use stream::NONE;

/// Something that operators run on. One thread calls them; they share the work out.
pub struct Device {
    backend: Backend,
}

#[expect(clippy::large_enum_variant, reason = "a process has one device")]
enum Backend {
    Cpu(Cpu),
    Cuda(Box<Cuda>),
}

impl Device {
    /// The processor with `threads` threads, at least one.
    pub fn cpu(threads: usize) -> Self {
        Self { backend: Backend::Cpu(Cpu::new(threads)) }
    }

    /// NVIDIA's GPU of this number. Driver, compiler (NVRTC) and cuBLASLt are looked for now; kernels are compiled when they are first used, and
    /// kept in the user's cache.
    pub fn cuda(ordinal: usize) -> Result<Self, CudaError> {
        Ok(Self { backend: Backend::Cuda(Box::new(Cuda::new(ordinal)?)) })
    }

    /// GPUs that the driver shows this process, in its order, each by its place on the host's bus; none where there is no driver.
    pub fn gpus() -> Result<Vec<String>, CudaError> {
        Cuda::list()
    }

    /// Whether this is the processor, which reaches the device's memory.
    pub fn is_cpu(&self) -> bool {
        matches!(self.backend, Backend::Cpu(_))
    }

    /// A device for tests: the processor with memory that only it can find, so that a caller who takes a shortcut past the
    /// device is found out. It refuses views of other devices, counts what goes in and out and poisons what is released.
    #[doc(hidden)]
    pub fn apart(threads: usize) -> Self {
        Self { backend: Backend::Cpu(Cpu::apart(threads)) }
    }

    #[cfg(test)]
    pub(crate) fn of(cpu: Cpu) -> Self {
        Self { backend: Backend::Cpu(cpu) }
    }

    fn processor(&self) -> Option<&Cpu> {
        match &self.backend {
            Backend::Cpu(cpu) => Some(cpu),
            Backend::Cuda(_) => None,
        }
    }

    /// What a device for tests has counted.
    #[doc(hidden)]
    pub fn traffic(&self) -> DeviceTraffic {
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
        match &self.backend {
            Backend::Cpu(cpu) => cpu.instructions(),
            Backend::Cuda(cuda) => cuda.instructions(),
        }
    }

    /// FLOP/s of products of f32 whose elements stay in registers, all threads at work: by multiply-adds, or by a tile unit that takes six
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
        match &self.backend {
            Backend::Cpu(_) => None,
            Backend::Cuda(cuda) => Some(cuda.name()),
        }
    }

    /// Bytes of the device's own memory that are free; none for the processor, whose memory is the system's.
    pub fn free_memory(&self) -> Option<usize> {
        match &self.backend {
            Backend::Cpu(_) => None,
            Backend::Cuda(cuda) => Some(cuda.memory().0),
        }
    }

    /// Bytes of the device's own memory; none for the processor.
    pub fn memory(&self) -> Option<usize> {
        match &self.backend {
            Backend::Cpu(_) => None,
            Backend::Cuda(cuda) => Some(cuda.memory().1),
        }
    }

    /// The first error of the device, after which it has done nothing more. What it meets while it works is known after a wait: callers read or
    /// [wait](Self::synchronize) first and check next, before they use what they have read.
    pub fn check(&self) -> Result<(), CudaError> {
        match &self.backend {
            Backend::Cpu(_) => Ok(()),
            Backend::Cuda(cuda) => cuda.check(),
        }
    }

    /// Waits until everything that was started is done.
    pub fn synchronize(&self) {
        match &self.backend {
            Backend::Cpu(_) => {}
            Backend::Cuda(cuda) => cuda.wait(),
        }
    }

    /// Captures the operators that `work` calls in a CUDA graph, without running them, so that [`launch_graph`](Self::launch_graph) can start them all at once; none where the
    /// device has nothing to gain from it, and then `work` is not called. The same work must have been done once before, so that
    /// kernels are compiled and scratch memory is there; inside it nothing may be read, written or allocated, and all views must stay where they are
    /// for as long as the graph is launched.
    pub fn capture(&self, work: impl FnOnce(&Device)) -> Option<CudaGraph> {
        match &self.backend {
            Backend::Cpu(_) => None,
            Backend::Cuda(cuda) => Some(cuda.capture(|| work(self))),
        }
    }

    /// Starts what was captured, on the elements that its views have now, and says whether it could: larger work in between may have moved scratch memory, and
    /// then the graph is of no use any more. Its time is booked under [`Part::Compute`](bedplate_breakdown::Part::Compute).
    #[must_use = "a CUDA graph may be out of date"]
    pub fn launch_graph(&self, graph: &CudaGraph) -> bool {
        match &self.backend {
            Backend::Cpu(_) => unreachable!("the processor has no CUDA graphs"),
            Backend::Cuda(cuda) => cuda.time(bedplate_breakdown::Part::Compute, || cuda.launch_graph(graph)),
        }
    }

    /// The time of operators by part since this was last asked.
    pub fn take_measured(&self) -> Breakdown<Measured> {
        match &self.backend {
            Backend::Cpu(cpu) => cpu.take_measured(),
            Backend::Cuda(cuda) => cuda.take_measured(),
        }
    }

    /// Private memory; all elements are zero.
    pub fn zeros<E: BufferValue>(&self, len: usize) -> Buffer<E> {
        match &self.backend {
            Backend::Cpu(cpu) => cpu.zeros(len),
            Backend::Cuda(cuda) => cuda.zeros(len),
        }
    }

    /// Private memory that is taken from the system where it is written for the first time; all elements are zero. For what may be
    /// large and is rarely full.
    pub fn reserve<E: BufferValue>(&self, len: usize) -> io::Result<Buffer<E>> {
        match &self.backend {
            Backend::Cpu(cpu) => cpu.reserve(len),
            Backend::Cuda(cuda) => cuda.reserve(len),
        }
    }

    /// Memory that other processes can map by its [descriptor](Buffer::descriptor); all elements are zero.
    pub fn shareable<E: BufferValue>(&self, len: usize) -> io::Result<Buffer<E>> {
        match &self.backend {
            Backend::Cpu(cpu) => cpu.shareable(len),
            Backend::Cuda(_) => Err(not_shared()),
        }
    }

    /// Maps what a peer process made with [`Device::shareable`] and sent the descriptor of.
    ///
    /// # Safety
    ///
    /// No process may write to elements while another reads or writes them: processes agree on whose turn it is. No process
    /// may shorten the memory.
    #[expect(unsafe_code, reason = "the borrow checker does not see other processes")]
    pub unsafe fn map_shared<E: BufferValue>(
        &self,
        descriptor: OwnedFd,
        len: usize,
    ) -> io::Result<Buffer<E>> {
        match &self.backend {
            // SAFETY: as the caller upholds.
            Backend::Cpu(cpu) => unsafe { cpu.map_shared(descriptor, len) },
            Backend::Cuda(_) => Err(not_shared()),
        }
    }

    /// Maps a file read-only; what of it is never looked at is never loaded. A GPU loads it whole.
    ///
    /// # Safety
    ///
    /// The file must not be changed or shortened while it is mapped.
    #[expect(unsafe_code, reason = "the borrow checker does not see other processes")]
    pub unsafe fn map_file(&self, file: &File) -> io::Result<MappedFile> {
        match &self.backend {
            // SAFETY: as the caller upholds.
            Backend::Cpu(cpu) => unsafe { cpu.map_file(file) },
            Backend::Cuda(cuda) => cuda.load_file(file),
        }
    }

    /// The elements themselves, for a transport that moves them; absent where only the device reaches its memory.
    pub fn lend<'a, E: BufferValue>(&self, view: View<'a, E>) -> Option<&'a [E]> {
        match &self.backend {
            Backend::Cpu(cpu) => Some(cpu.slice(view)),
            Backend::Cuda(_) => None,
        }
    }

    /// As [`lend`](Self::lend), to be written.
    pub fn lend_mut<'a, E: BufferValue>(&self, view: ViewMut<'a, E>) -> Option<&'a mut [E]> {
        match &self.backend {
            Backend::Cpu(cpu) => Some(cpu.slice_mut(view)),
            Backend::Cuda(_) => None,
        }
    }

    /// Another stream of a GPU, for a transport that moves elements of its memory; none for the processor, whose elements are [lent](Self::lend).
    pub fn transfers(&self) -> Option<Result<Arc<Transfers>, CudaError>> {
        match &self.backend {
            Backend::Cpu(_) => None,
            Backend::Cuda(cuda) => Some(cuda.transfers()),
        }
    }

    /// Where elements lie in a GPU's memory, for such a transport; none for the processor. Panics when the view is of another device.
    pub fn address_of<E: BufferValue>(&self, view: View<'_, E>) -> Option<u64> {
        match &self.backend {
            Backend::Cpu(_) => None,
            Backend::Cuda(cuda) => Some(cuda.at(view)),
        }
    }

    /// Copies elements to the device. Panics when the lengths differ.
    pub fn write<E: BufferValue>(&self, to: ViewMut<'_, E>, from: &[E]) {
        match &self.backend {
            Backend::Cpu(cpu) => cpu.write(to, from),
            Backend::Cuda(cuda) => cuda.write(to, from),
        }
    }

    /// Copies elements from the device; zeros where it has [failed](Self::check). Panics when the lengths differ.
    pub fn read<E: BufferValue>(&self, from: View<'_, E>, to: &mut [E]) {
        match &self.backend {
            Backend::Cpu(cpu) => cpu.read(from, to),
            Backend::Cuda(cuda) => cuda.read(from, to),
        }
    }
}

fn not_shared() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "memory of a GPU is not shared between processes")
}

#[cfg(test)]
mod tests;
