//! The first error of a GPU, which stays.
//!
//! Operators return nothing, and a GPU tells late what went wrong. So a call of the driver or of one of NVIDIA's libraries that fails leaves its error with the
//! device, and these hold from then on:
//!
//! - The first error stays; what fails after it is a consequence and is not kept.
//! - Nothing more is launched, copied or captured on the device, on either of its streams.
//! - What is read is zero, and a sum is not a number. [`Device::check`](crate::Device::check) returns the error.
//! - An error that the GPU meets while it works is known after the next wait: a read, a sum, [`Device::synchronize`](crate::Device::synchronize).
//!
//! So a caller that reads first and checks next never passes on a number that a broken GPU made. Memory that is used up is an answer to the one who can do without
//! ([`Device::reserve`](crate::Device::reserve)); where nobody can, it is the device's error too. What remains a panic are wrong arguments: views of another
//! device, lengths that differ, tokens beyond the vocabulary.

use std::fmt;
use std::sync::OnceLock;

use super::CudaError;

/// Which GPU: its number in this process, and what finds it on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gpu {
    pub ordinal: usize,
    pub name: String,
    /// On the PCI bus.
    pub address: String,
    pub uuid: String,
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ordinal, name, address, uuid } = self;
        write!(f, "GPU {ordinal} ({name} at {address}, {uuid})")
    }
}

/// A call that a GPU failed: what was asked of it, and the driver's own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFault {
    pub gpu: Gpu,
    pub what: String,
    pub why: String,
}

impl fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed to {}: {}", self.gpu, self.what, self.why)
    }
}

/// The first error of a device.
#[derive(Default)]
pub(super) struct Sticky(OnceLock<CudaError>);

impl Sticky {
    pub(super) fn check(&self) -> Result<(), CudaError> {
        self.0.get().cloned().map_or(Ok(()), Err)
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.get().is_some()
    }

    /// Keeps an error unless there is one; returns the one that stays.
    pub(super) fn keep(&self, error: CudaError) -> CudaError {
        self.0.get_or_init(|| error).clone()
    }
}
