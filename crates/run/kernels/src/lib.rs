//! The operators of a transformer, each forward and backward, on a [`Device`].
//!
//! An operator is a method of the device that takes [`View`]s of the device's buffers. A view is no slice: callers reach
//! elements only by [`Device::write`] and [`Device::read`], so a device with memory of its own can stand behind the same
//! methods. `device` is what every device offers; behind it are two backends, `cpu` for the processor and `cuda` for NVIDIA's
//! GPUs, which are found at run time. Another kind of device adds a backend and changes no caller. Activations and weights are `f32` or [`Bf16`] ([`Element`]);
//! gradients of weights, statistics and sums are always `f32`. There is no graph: a caller of forward keeps what backward
//! needs and passes it.
//!
//! Three conventions hold everywhere. Matrices lie by rows, and a linear layer's weight is `outputs x inputs`, as Hugging
//! Face stores it. Gradients of weights are added to what is there, for gradient accumulation. Results do not depend
//! on the number of threads.
//!
//! This crate does not know models, files or distribution. Every operator's time is booked under the part of a
//! [`Breakdown`](bedplate_breakdown::Breakdown) that it belongs to ([`Device::take_measured`]).
//!
//! ```
//! use bedplate_kernels::Device;
//!
//! let device = Device::cpu(1);
//! let mut elements = device.zeros::<f32>(4);
//! device.write(elements.view_mut(), &[3.0, 0.0, 4.0, 0.0]);
//! assert_eq!(device.sum_of_squares(elements.view()), 25.0);
//! ```

mod burn_in;
mod cpu;
mod cuda;
mod device;
#[cfg(test)]
mod reference;
mod selftest;
#[cfg(test)]
mod testing;

pub use burn_in::{BurnIn, BurnInFault, BurnInPart, BurnInReport};
pub use cuda::library::{OpenLibrary, WantedLibrary};
pub use cuda::{CudaError, CudaGraph, DeviceFault, Gpu, Moment, PAGES, Transfers};
pub use device::{
    Accumulate, AdamW, AttentionShape, Balance, Bf16, Buffer, BufferValue, Device, DeviceChoice, Element,
    ExpertRows, Gate, Gelu, GroupScore, HeadGradients, HeadPart, Heads, IGNORED, KvFormat, LimitedGate,
    LossRule, MappedFile, Matrix, MatrixMut, NONE, NoSuchChoice, NormWeight, Packed, PackedExperts,
    PagedRows, PagedShape, Pairing, Pattern, Qkv, Rotary, RouteGroups, RouteRule, RouteScores, Rows,
    SampleParams, Sight, Turn, View, ViewMut, VisibleKeys, WeightFormat, WrongWords,
};
pub use selftest::{OperatorFinding, RateOf, rate, selftest};
