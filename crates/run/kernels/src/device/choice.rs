//! Which device a user asks for.

use std::fmt;
use std::str::FromStr;

use crate::{CudaError, Device};

/// `auto`, `cpu`, `cuda` or `cuda:N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first GPU where there is one, else the processor.
    #[default]
    Auto,
    Cpu,
    /// A GPU of its own for every rank; the first for a process alone.
    Gpu,
    Cuda(usize),
}

/// A name that no device has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a device; use `auto`, `cpu`, `cuda` or `cuda:0`, `cuda:1` and so on")]
pub struct NoSuchChoice(String);

impl DeviceChoice {
    /// Opens the device; `threads` are the processor's. Without a driver or a GPU, `auto` is the processor; a GPU that lacks something is not passed
    /// over in silence.
    pub fn open(self, threads: usize) -> Result<Device, CudaError> {
        match self {
            DeviceChoice::Cpu => Ok(Device::cpu(threads)),
            DeviceChoice::Cuda(ordinal) => Device::cuda(ordinal),
            DeviceChoice::Gpu => Device::cuda(0),
            DeviceChoice::Auto => match Device::cuda(0) {
                Err(error) if error.is_no_gpu() => Ok(Device::cpu(threads)),
                opened => opened,
            },
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = NoSuchChoice;

    fn from_str(text: &str) -> Result<Self, NoSuchChoice> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Gpu),
            _ => text
                .strip_prefix("cuda:")
                .and_then(|ordinal| ordinal.parse().ok())
                .map(Self::Cuda)
                .ok_or_else(|| NoSuchChoice(text.to_owned())),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Gpu => f.write_str("cuda"),
            DeviceChoice::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_as_it_is_written() {
        for name in ["auto", "cpu", "cuda", "cuda:0", "cuda:13"] {
            assert_eq!(name.parse::<DeviceChoice>().unwrap().to_string(), name);
        }
        for name in ["", "gpu", "cuda:", "cuda:x", "CPU"] {
            assert!(name.parse::<DeviceChoice>().is_err(), "{name}");
        }
    }
}
