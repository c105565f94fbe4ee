//! The backend of NVIDIA GPUs: driver, compiler and cuBLASLt found at run time, and the operators as kernels that are compiled at first use.
//!
//! Everything runs on one stream in the order of the calls; a call returns before its work is done, and [`read`](Cuda::read) waits. A call that
//! fails leaves [the device's first error](fault), and nothing is launched after it. What
//! the processor's backend checks by looking at numbers (tokens, targets, positions, blocks) kernels check and report, and the next wait panics with it.
//! Products of bf16 are summed in f32 by the tensor cores, those of f32 in f32 without rounding to shorter formats.
//!
//! Batches: norms, activations, decoding attention and products with packed whole numbers of up to eight rows give a row the same bits whatever rows are
//! beside it. cuBLASLt chooses by the number of rows, and one or two rows of bf16 have a kernel of their own, so there the last bit may change with the batch.
//! The gradients of queries are added in no fixed order where Hopper's attention kernel computes them; all else is the same in every run.

mod activation;
mod adamw;
mod attention;
mod blas;
mod compile;
mod cross_entropy;
mod driver;
mod embedding;
mod error;
mod expert_linear;
mod experts;
mod fault;
mod fp8;
mod graph;
mod grouped;
mod kernel;
pub(crate) mod library;
mod linear;
mod memory;
mod norm;
mod packed;
mod paged;
mod rotary;
mod route;
mod sampling;
mod source;
mod stream;
#[cfg(test)]
mod tests;
mod timeline;
mod transfer;

use std::cell::Cell;
use std::sync::Arc;

use bedplate_breakdown::{Breakdown, Measured, Part};

use crate::Element;
use crate::device::AddressSpace;
use blas::Blas;
use compile::Compiler;
use driver::CudaContext;
pub use error::{CudaError, PAGES};
pub use fault::{DeviceFault, Gpu};
pub use graph::CudaGraph;
use kernel::Kernels;
pub(crate) use memory::CudaMemory;
use memory::{DeviceReport, Scratch};
pub(crate) use packed::PackedBody;
use source::KernelFormat;
use timeline::DeviceTimeline;
pub use transfer::{Moment, Transfers};

pub(crate) struct Cuda {
    context: Arc<CudaContext>,
    place: AddressSpace,
    kernels: Kernels,
    blas: Blas,
    timeline: DeviceTimeline,
    report: DeviceReport,
    /// For cuBLASLt.
    workspace: Scratch,
    /// Sides of products that were rounded or widened.
    sides: [Scratch; 2],
    /// Sums between two kernels.
    partial: Scratch,
    small: Scratch,
    is_capturing: Cell<bool>,
}

impl Cuda {
    pub(crate) fn new(ordinal: usize) -> Result<Self, CudaError> {
        let context = CudaContext::new(ordinal)?;
        let kernels = Kernels::new(&context, Compiler::new()?);
        let (blas, report) = (Blas::new(&context)?, DeviceReport::new(&context)?);
        Ok(Self {
            place: memory::place_of(ordinal),
            kernels,
            blas,
            timeline: DeviceTimeline::default(),
            report,
            workspace: Scratch::default(),
            sides: [Scratch::default(), Scratch::default()],
            partial: Scratch::default(),
            small: Scratch::default(),
            is_capturing: Cell::new(false),
            context,
        })
    }

    /// GPUs that the driver shows; none where there is no driver.
    pub(crate) fn list() -> Result<Vec<String>, CudaError> {
        match driver::list() {
            Err(error) if error.is_no_gpu() => Ok(Vec::new()),
            listed => listed,
        }
    }

    /// The chip, what kernels are compiled for, and the versions that were found.
    pub(crate) fn instructions(&self) -> String {
        let (driver, (major, minor)) = (self.context.driver_version, self.kernels.compiler_version());
        let architecture = self.kernels.architecture();
        let name = self.name();
        format!(
            "{name}, {architecture}, CUDA {}.{}, NVRTC {major}.{minor}",
            driver / 1000,
            driver % 1000 / 10
        )
    }

    pub(crate) fn name(&self) -> &str {
        &self.context.gpu.name
    }

    /// The first error, if there was one.
    pub(crate) fn check(&self) -> Result<(), CudaError> {
        self.context.check()
    }

    /// Bytes that are free on the GPU, and all.
    pub(crate) fn memory(&self) -> (usize, usize) {
        self.context.memory()
    }

    pub(crate) fn take_measured(&self) -> Breakdown<Measured> {
        self.timeline.take(&self.context)
    }

    /// Books what an operator takes under a part; what is captured has no time yet.
    pub(crate) fn time<R>(&self, part: Part, operator: impl FnOnce() -> R) -> R {
        if !self.is_capturing.get() {
            self.timeline.enter(&self.context, part);
        }
        operator()
    }

    fn is_hopper(&self) -> bool {
        (self.context.major, self.context.minor) == (9, 0)
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // Buffers may outlive the device and be used by the next one of the same GPU, on another stream.
        self.context.synchronize();
    }
}

/// The format of an element in kernels.
fn format_of<E: Element>() -> KernelFormat {
    if E::NAME == "f32" { KernelFormat::F32 } else { KernelFormat::Bf16 }
}
