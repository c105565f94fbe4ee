//! NVIDIA's NCCL, found when the program runs.
#![expect(unsafe_code, reason = "calls NCCL")]

use std::ffi::{CStr, c_char};
use std::fmt;
use std::sync::OnceLock;

use bedplate_kernels::{CudaError, OpenLibrary, WantedLibrary, functions};

use crate::{ElementFormat, Reduction};

const NCCL: WantedLibrary = WantedLibrary {
    what: "NCCL",
    files: &["libnccl.so.2", "libnccl.so"],
    package: "NCCL (`pip install nvidia-nccl-cu13` into the active Python environment, or `libnccl2` of NVIDIA's repository)",
    companion: None,
};

functions! {
    /// NCCL's functions. Communicators and streams are numbers; 0 is none.
    Functions {
        version = c"ncclGetVersion"(version: &mut i32);
        unique_id = c"ncclGetUniqueId"(id: &mut UniqueId);
        init = c"ncclCommInitRankConfig"(
            communicator: &mut usize, members: i32, id: UniqueId, member: i32, config: &mut Config,
        );
        split = c"ncclCommSplit"(
            communicator: usize, colour: i32, key: i32, part: &mut usize, config: &mut Config,
        );
        state = c"ncclCommGetAsyncError"(communicator: usize, state: &mut i32);
        finalize = c"ncclCommFinalize"(communicator: usize);
        destroy = c"ncclCommDestroy"(communicator: usize);
        abort = c"ncclCommAbort"(communicator: usize);
        group_start = c"ncclGroupStart"();
        group_end = c"ncclGroupEnd"();
        all_reduce = c"ncclAllReduce"(
            from: u64, to: u64, count: usize, format: i32, by: i32, communicator: usize, stream: usize,
        );
        all_gather = c"ncclAllGather"(
            from: u64, to: u64, count: usize, format: i32, communicator: usize, stream: usize,
        );
        reduce_scatter = c"ncclReduceScatter"(
            from: u64, to: u64, count: usize, format: i32, by: i32, communicator: usize, stream: usize,
        );
        broadcast = c"ncclBroadcast"(
            from: u64, to: u64, count: usize, format: i32, root: i32, communicator: usize, stream: usize,
        );
        reduce = c"ncclReduce"(
            from: u64, to: u64, count: usize, format: i32, by: i32, root: i32, communicator: usize, stream: usize,
        );
        send = c"ncclSend"(
            from: u64, count: usize, format: i32, peer: i32, communicator: usize, stream: usize,
        );
        receive = c"ncclRecv"(
            to: u64, count: usize, format: i32, peer: i32, communicator: usize, stream: usize,
        );
    }
}

/// What the members of a new communicator find each other by.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct UniqueId(pub(super) [u8; UniqueId::BYTES]);

impl UniqueId {
    pub(super) const BYTES: usize = 128;
}

/// How a communicator is made, as NCCL 2.14 had it: libraries since then take what it lacks as not set.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
}

impl Config {
    /// No call waits inside NCCL: its state is asked for, so that a wait can be given up.
    pub(super) fn not_blocking() -> Self {
        Self { size: size_of::<Self>(), magic: 0xcafe_beef, version: 21_400, blocking: 0 }
    }
}

/// Answers that are no errors.
pub(super) const DONE: i32 = 0;
pub(super) const CUDA_FAILED: i32 = 1;
pub(super) const UNDER_WAY: i32 = 7;

/// The library, opened once.
pub(super) struct Nccl {
    pub(super) functions: Functions,
    pub(super) version: Version,
    last_error: Option<unsafe extern "C" fn(usize) -> *const c_char>,
}

/// A version of NCCL, as it counts them: 22803 is 2.28.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub(super) u32);

impl Version {
    /// The first whose communicators can be split.
    const OLDEST: Self = Self(21_801);
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(code) = *self;
        write!(f, "{}.{}.{}", code / 10_000, code / 100 % 100, code % 100)
    }
}

impl Nccl {
    /// The library of this process, or why there is none.
    pub(super) fn get() -> Result<&'static Self, &'static str> {
        static FOUND: OnceLock<Result<Nccl, String>> = OnceLock::new();
        FOUND.get_or_init(Self::open).as_ref().map_err(String::as_str)
    }

    fn open() -> Result<Self, String> {
        let explained = |error: CudaError| match &error {
            CudaError::Missing { package, .. } => format!("{error}; install {package}"),
            _ => error.to_string(),
        };
        let library = OpenLibrary::open(&NCCL).map_err(explained)?;
        let functions = Functions::load(&library).map_err(explained)?;
        let mut code = 0;
        let answer = functions.version(&mut code);
        let version = Version(code.unsigned_abs());
        if answer != DONE || version < Version::OLDEST {
            return Err(format!("NCCL {version} is older than {}, the oldest that is used", Version::OLDEST));
        }
        // SAFETY: NCCL's header declares it so: a communicator, and a text that stays.
        let last_error = library.symbol(c"ncclGetLastError").ok().map(|found| unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn(usize) -> *const c_char>(found)
        });
        Ok(Self { functions, version, last_error })
    }

    /// What an answer means, with what the library says about it.
    pub(super) fn explain(&self, answer: i32) -> String {
        let kind = match answer {
            CUDA_FAILED => "a call of CUDA failed",
            2 => "a call of the system failed",
            3 => "an internal error",
            4 => "wrong arguments",
            5 => "wrong usage",
            6 => "another rank, or the network to it, failed",
            _ => "an unknown error",
        };
        let said = self.last_error.map(|last_error| {
            // SAFETY: the function takes no communicator for the last error of the process, and its text ends with a zero.
            unsafe {
                let text = last_error(0);
                if text.is_null() {
                    String::new()
                } else {
                    CStr::from_ptr(text).to_string_lossy().into_owned()
                }
            }
        });
        let said = said.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let version = self.version;
        match said {
            Some(said) => format!("NCCL {version}: {kind} ({said})"),
            None => format!("NCCL {version}: {kind}; NCCL_DEBUG=WARN shows more"),
        }
    }
}

/// NCCL's number of a format.
pub(super) fn format(format: ElementFormat) -> i32 {
    match format {
        ElementFormat::I8 => 0,
        ElementFormat::U8 => 1,
        ElementFormat::I32 => 2,
        ElementFormat::U32 => 3,
        ElementFormat::I64 => 4,
        ElementFormat::U64 => 5,
        ElementFormat::F16 => 6,
        ElementFormat::F32 => 7,
        ElementFormat::F64 => 8,
        ElementFormat::Bf16 => 9,
    }
}

/// NCCL's number of a reduction.
pub(super) fn reduction(by: Reduction) -> i32 {
    match by {
        Reduction::Sum => 0,
        Reduction::Max => 2,
        Reduction::Min => 3,
        Reduction::Average => 4,
    }
}
