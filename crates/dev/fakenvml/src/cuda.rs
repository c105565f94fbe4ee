//! The functions of CUDA's driver, of NVRTC and of cuBLASLt that our kernels call: a GPU that does nothing but remember.
//!
//! Its memory is the host's, copies copy, and kernels are launched without effect. `BEDPLATE_FAKE_CUDA=cuLaunchKernelEx:40:700` makes the 40th call of a function fail with
//! that code, once: a real driver would go on failing, so what is called afterwards shows whether the caller has heard. The failing call and every one after it are
//! appended to the file that `BEDPLATE_FAKE_CUDA_LOG` names; where none is to fail, all calls are.
#![expect(unsafe_code, reason = "a shared library with a C interface")]
#![allow(non_snake_case, reason = "the names are NVIDIA's")]
#![allow(
    clippy::missing_safety_doc,
    clippy::too_many_arguments,
    unreachable_pub,
    reason = "called through C only"
)]

use std::ffi::{c_char, c_void};
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static CALLS: AtomicUsize = AtomicUsize::new(0);
static HAS_FAILED: AtomicBool = AtomicBool::new(false);
static HANDLES: AtomicUsize = AtomicUsize::new(1);

/// What a call answers.
fn answer(name: &str) -> i32 {
    let plan = std::env::var("BEDPLATE_FAKE_CUDA").unwrap_or_default();
    let is_logged = plan.is_empty() || HAS_FAILED.load(Ordering::SeqCst);
    let mut plan = plan.split(':');
    let (of, mut number) = (plan.next(), || plan.next().and_then(|word| word.parse::<usize>().ok()));
    let is_it = of == Some(name) && number() == Some(CALLS.fetch_add(1, Ordering::SeqCst) + 1);
    let code = if is_it { number().unwrap_or(999) as i32 } else { 0 };
    if is_it {
        HAS_FAILED.store(true, Ordering::SeqCst);
    }
    if let (true, Some(log)) = (is_logged || is_it, std::env::var_os("BEDPLATE_FAKE_CUDA_LOG")) {
        let file = OpenOptions::new().append(true).create(true).open(log);
        let _ = file.and_then(|mut file| writeln!(file, "{name}"));
    }
    code
}

fn put<T>(to: *mut T, value: T) {
    // SAFETY: the caller gives a valid pointer to this type, as NVIDIA's headers require.
    unsafe { to.write(value) };
}

/// Functions that do something and answer.
macro_rules! calls {
    ($($name:ident ($($argument:ident: $type:ty),*) $body:block)+) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $type),*) -> i32 {
            let code = answer(stringify!($name));
            if code == 0 $body
            code
        }
    )+};
}

fn new(handle: *mut usize) {
    put(handle, HANDLES.fetch_add(1, Ordering::SeqCst));
}

fn allocate(bytes: usize) -> *mut c_void {
    // SAFETY: any size may be asked for.
    unsafe { libc::calloc(bytes.max(1), 1) }
}

fn copy(to: usize, from: usize, bytes: usize) {
    // SAFETY: both were allocated here or by the caller, with this many bytes.
    unsafe { libc::memmove(to as *mut c_void, from as *const c_void, bytes) };
}

fn release(address: usize) {
    // SAFETY: it was allocated here, and is given back once.
    unsafe { libc::free(address as *mut c_void) };
}

fn put_text(to: *mut c_char, text: &std::ffi::CStr) {
    copy(to as usize, text.as_ptr() as usize, text.count_bytes() + 1);
}

calls! {
    cuInit(_flags: u32) {}
    cuDriverGetVersion(version: *mut i32) { put(version, 12_090) }
    cuDeviceGetCount(count: *mut i32) { put(count, 1) }
    cuDeviceGet(device: *mut i32, ordinal: i32) { put(device, ordinal) }
    cuDeviceGetName(name: *mut c_char, _length: i32, _device: i32) { put_text(name, c"Stand-in") }
    cuDeviceGetPCIBusId(text: *mut c_char, _length: i32, _device: i32) { put_text(text, c"0000:1b:00.0") }
    cuDeviceGetUuid_v2(uuid: *mut [u8; 16], _device: i32) { put(uuid, [0xab; 16]) }
    cuDeviceGetAttribute(value: *mut i32, attribute: i32, _device: i32) {
        put(value, match attribute { 75 => 8, 76 => 0, 16 => 4, _ => 160 << 10 })
    }
    cuDevicePrimaryCtxRetain(context: *mut usize, _device: i32) { new(context) }
    cuCtxSetCurrent(_context: usize) {}
    cuStreamCreate(stream: *mut usize, _flags: u32) { new(stream) }
    cuStreamSynchronize(_stream: usize) {}
    cuStreamWaitEvent(_stream: usize, _event: usize, _flags: u32) {}
    cuStreamDestroy_v2(_stream: usize) {}
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) { put(free, 8 << 30); put(total, 16 << 30) }
    cuMemAlloc_v2(address: *mut u64, bytes: usize) { put(address, allocate(bytes) as u64) }
    cuMemFree_v2(address: u64) { release(address as usize) }
    cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, _flags: u32) { put(pointer, allocate(bytes)) }
    cuMemFreeHost(pointer: *mut c_void) { release(pointer as usize) }
    cuMemcpyHtoDAsync_v2(to: u64, from: usize, bytes: usize, _stream: usize) { copy(to as usize, from, bytes) }
    cuMemcpyDtoHAsync_v2(to: usize, from: u64, bytes: usize, _stream: usize) { copy(to, from as usize, bytes) }
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, _stream: usize) {
        copy(to as usize, from as usize, bytes)
    }
    cuMemsetD8Async(to: u64, value: u8, bytes: usize, _stream: usize) {
        // SAFETY: it was allocated here, with this many bytes.
        unsafe { libc::memset(to as *mut c_void, i32::from(value), bytes) };
    }
    cuModuleLoadData(module: *mut usize, _image: usize) { new(module) }
    cuModuleGetFunction(function: *mut usize, _module: usize, _name: usize) { new(function) }
    cuFuncGetAttribute(value: *mut i32, _attribute: i32, _function: usize) { put(value, 0) }
    cuFuncSetAttribute(_function: usize, _attribute: i32, _value: i32) {}
    cuLaunchKernelEx(_how: usize, _function: usize, _parameters: usize, _extra: usize) {}
    cuEventCreate(event: *mut usize, _flags: u32) { new(event) }
    cuEventRecord(_event: usize, _stream: usize) {}
    cuEventQuery(_event: usize) {}
    cuEventDestroy_v2(_event: usize) {}
    cuEventElapsedTime(milliseconds: *mut f32, _from: usize, _to: usize) { put(milliseconds, 0.0) }
    cuStreamBeginCapture_v2(_stream: usize, _mode: i32) {}
    cuStreamEndCapture(_stream: usize, graph: *mut usize) { new(graph) }
    cuGraphInstantiateWithFlags(executable: *mut usize, _graph: usize, _flags: u64) { new(executable) }
    cuGraphLaunch(_executable: usize, _stream: usize) {}
    cuGraphDestroy(_graph: usize) {}
    cuGraphExecDestroy(_executable: usize) {}
    cuTensorMapEncodeTiled() {}
    nvrtcVersion(major: *mut i32, minor: *mut i32) { put(major, 99); put(minor, 0) }
    nvrtcCreateProgram(program: *mut usize, _source: usize, _name: usize, _headers: i32, _sources: usize, _names: usize) {
        new(program)
    }
    nvrtcCompileProgram(_program: usize, _count: i32, _options: usize) {}
    nvrtcGetProgramLogSize(_program: usize, size: *mut usize) { put(size, 1) }
    nvrtcGetProgramLog(_program: usize, log: *mut c_char) { put_text(log, c"") }
    nvrtcGetCUBINSize(_program: usize, size: *mut usize) { put(size, 8) }
    nvrtcGetCUBIN(_program: usize, image: *mut c_char) { put_text(image, c"\x7fELF...") }
    nvrtcDestroyProgram(_program: usize) {}
    cublasLtCreate(handle: *mut usize) { new(handle) }
    cublasLtMatmulDescCreate(product: *mut usize, _compute: i32, _scale: i32) { new(product) }
    cublasLtMatmulDescSetAttribute(_product: usize, _attribute: i32, _value: usize, _bytes: usize) {}
    cublasLtMatrixLayoutCreate(layout: *mut usize, _format: i32, _rows: u64, _columns: u64, _stride: i64) { new(layout) }
    cublasLtMatmulPreferenceCreate(wish: *mut usize) { new(wish) }
    cublasLtMatmulPreferenceSetAttribute(_wish: usize, _attribute: i32, _value: usize, _bytes: usize) {}
    cublasLtMatmulAlgoGetHeuristic(
        _handle: usize, _product: usize, _a: usize, _b: usize, _c: usize, _d: usize, _wish: usize, _wanted: i32,
        _choices: usize, found: *mut i32
    ) {
        put(found, 1)
    }
    cublasLtMatmul() {}
}

/// Two errors have the driver's own words; the others have none.
fn words(code: i32) -> [&'static std::ffi::CStr; 2] {
    match code {
        2 => [c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"],
        700 => [c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"],
        _ => [c"CUDA_ERROR_UNKNOWN", c"unknown error"],
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(code: i32, text: *mut *const c_char) -> i32 {
    put(text, words(code)[0].as_ptr());
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(code: i32, text: *mut *const c_char) -> i32 {
    put(text, words(code)[1].as_ptr());
    0
}
