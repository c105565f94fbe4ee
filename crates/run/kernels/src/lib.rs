//! The operators of a transformer, each forward and backward, on a [`Device`].
//!
//! An operator is a method of the device that takes [`View`]s of buffers, so that nobody above this crate
//! touches a number directly: a device with its own memory can stand behind the same methods. Activations and
//! weights are `f32` or [`Bf16`] ([`Element`]); gradients of weights, statistics and sums are always `f32`. There is no
//! graph: who calls forward keeps what backward needs and says so by passing it.
//!
//! Three conventions hold everywhere. Matrices lie by rows, and a linear layer's weight is `outputs x inputs`, as Hugging
//! Face stores it. Gradients of weights are added to what is there, for gradient accumulation. Results do not depend
//! on the number of threads: work is cut by shape alone, and each piece is summed in one order.
//!
//! This crate does not know models, files or distribution. Every operator's time is booked under the part of a
//! [`Breakdown`](bedplate_breakdown::Breakdown) that it belongs to ([`Device::take_measured`]).
//!
//! ```
//! use bedplate_kernels::{Buffer, Device};
//!
//! let device = Device::cpu(1);
//! let mut numbers = Buffer::<f32>::zeros(4);
//! device.write(numbers.view_mut(), &[3.0, 0.0, 4.0, 0.0]);
//! assert_eq!(device.sum_of_squares(numbers.view()), 25.0);
//! ```

mod cpu;
mod device;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod testing;

pub use cpu::{AdamW, AttentionShape, Balance, Gelu, HeadGradients, IGNORED, Into, Rotary, Turn};
pub use device::{Bf16, Buffer, Device, Element, Heads, Matrix, MatrixMut, Value, View, ViewMut};
