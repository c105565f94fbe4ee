//! Why a GPU cannot be used.

use bedplate_diag::{Diagnostic, Page, pages};

use super::{DeviceFault, Gpu};

#[derive(Debug, Clone, thiserror::Error)]
pub enum CudaError {
    #[error("cannot load {what} ({file}): {why}")]
    Missing { what: &'static str, file: &'static str, package: &'static str, why: String },
    #[error("{what} lacks the function `{symbol}`")]
    TooOld { what: &'static str, symbol: &'static str },
    #[error("there is no GPU {ordinal}: the driver shows {count}")]
    NoSuchDevice { ordinal: usize, count: usize },
    #[error(
        "GPU {ordinal} ({name}) has compute capability {major}.{minor}, but 8.0 is the least that is used"
    )]
    OldDevice { ordinal: usize, name: String, major: i32, minor: i32 },
    #[error("the GPU refused to {what}: {why}")]
    Refused { what: &'static str, why: String },
    #[error("{0}")]
    Fault(Box<DeviceFault>),
    #[error("{gpu} has too little free memory to {what}: {why}")]
    NoMemory { gpu: Box<Gpu>, what: String, why: String },
    #[error("cannot compile kernel {kernel} for {architecture}: {log}")]
    Compile { kernel: &'static str, architecture: String, log: String },
}

impl CudaError {
    /// Whether there is no GPU at all, rather than one that cannot be used.
    pub fn is_no_gpu(&self) -> bool {
        match self {
            CudaError::Missing { file, .. } => *file == "libcuda.so.1",
            CudaError::NoSuchDevice { count, .. } => *count == 0,
            // The driver is there and finds no GPU: `no CUDA-capable device is detected`.
            CudaError::Refused { what, .. } => *what == "start",
            _ => false,
        }
    }
}

pages! { pub PAGES "cuda":
    MISSING "library-missing" User
        "A GPU needs three libraries, which the program loads when a GPU is asked for: NVIDIA's driver (libcuda.so.1), the run-time compiler NVRTC and cuBLASLt. One of them is neither where the system's loader looks nor in the active Python environment, whose packages (`site-packages/nvidia/*/lib`) are searched too."
        "install the package that is named, or use `--device cpu`"
    TOO_OLD "library-too-old" User
        "A library was found but lacks a function that this program calls: it is older than CUDA 12.0."
        "install a driver and libraries of CUDA 12 or later"
    NO_SUCH_DEVICE "no-such-device" User
        "The driver shows fewer GPUs than the number asks for. GPUs are counted from 0; `CUDA_VISIBLE_DEVICES` may hide some."
        "choose a lower number, or look at `nvidia-smi` and CUDA_VISIBLE_DEVICES"
    OLD_DEVICE "old-device" User
        "The kernels use bf16 and asynchronous copies, which GPUs have from Ampere on (compute capability 8.0)."
        "use another GPU, or `--device cpu`"
    REFUSED "refused" Transient
        "The driver or a library answered a call with an error. Memory may be used up by another program, or the GPU may have failed."
        "look at `nvidia-smi` for other programs and at the kernel's log for Xid errors, then try again"
    FAULT "device-fault" Transient
        "A GPU failed a call while it was computing: a launch, a copy or a wait. The message names the GPU by its number in this process, its place on the PCI bus and its UUID, the call, and the driver's error by name and number. Results that the GPU computed since its last good answer were not reported, saved or sent to other ranks. Training goes on from its newest checkpoint; requests that were running have failed."
        "start again, on another GPU where there is one; look at the kernel's log and at `bedplate health` for an XID of that GPU at that time"
    NO_MEMORY "out-of-memory" User
        "The GPU had less free memory than was asked for: the work is too large for it, or another program holds a part."
        "choose a smaller model, batch or context, or end the other programs that `nvidia-smi` shows"
    COMPILE "kernel-does-not-compile" Bug
        "The compiler that was found refuses a kernel of this program."
        "report it with the versions that `nvidia-smi` shows; until then use `--device cpu`"
}

impl Diagnostic for CudaError {
    fn page(&self) -> &'static Page {
        match self {
            CudaError::Missing { .. } => &MISSING,
            CudaError::TooOld { .. } => &TOO_OLD,
            CudaError::NoSuchDevice { .. } => &NO_SUCH_DEVICE,
            CudaError::OldDevice { .. } => &OLD_DEVICE,
            CudaError::Refused { .. } => &REFUSED,
            CudaError::Fault(_) => &FAULT,
            CudaError::NoMemory { .. } => &NO_MEMORY,
            CudaError::Compile { .. } => &COMPILE,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            CudaError::Missing { package, .. } => Some(format!("install {package}, or use `--device cpu`")),
            _ => None,
        }
    }
}
