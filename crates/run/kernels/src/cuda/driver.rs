//! NVIDIA's driver: a context, a stream, memory, kernels, events, graphs.
#![expect(unsafe_code, reason = "calls the driver")]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::fault::Sticky;
use super::library::{DRIVER, OpenLibrary, functions};
use super::{CudaError, DeviceFault, Gpu};

functions! {
    /// The driver's functions, by the names of their current versions. Handles are numbers; 0 is none.
    Functions {
        init = c"cuInit"(flags: u32);
        driver_version = c"cuDriverGetVersion"(version: &mut i32);
        device_count = c"cuDeviceGetCount"(count: &mut i32);
        device = c"cuDeviceGet"(device: &mut i32, ordinal: i32);
        device_name = c"cuDeviceGetName"(name: *mut c_char, length: i32, device: i32);
        bus_id = c"cuDeviceGetPCIBusId"(text: *mut c_char, length: i32, device: i32);
        attribute = c"cuDeviceGetAttribute"(value: &mut i32, attribute: i32, device: i32);
        retain = c"cuDevicePrimaryCtxRetain"(context: &mut usize, device: i32);
        set_current = c"cuCtxSetCurrent"(context: usize);
        uuid = c"cuDeviceGetUuid_v2"(uuid: &mut [u8; 16], device: i32);
        error_name = c"cuGetErrorName"(code: i32, text: &mut *const c_char);
        error_text = c"cuGetErrorString"(code: i32, text: &mut *const c_char);
        stream_create = c"cuStreamCreate"(stream: &mut usize, flags: u32);
        stream_synchronize = c"cuStreamSynchronize"(stream: usize);
        stream_wait = c"cuStreamWaitEvent"(stream: usize, event: usize, flags: u32);
        stream_destroy = c"cuStreamDestroy_v2"(stream: usize);
        memory_info = c"cuMemGetInfo_v2"(free: &mut usize, total: &mut usize);
        allocate = c"cuMemAlloc_v2"(address: &mut u64, bytes: usize);
        free = c"cuMemFree_v2"(address: u64);
        host_allocate = c"cuMemHostAlloc"(pointer: &mut *mut c_void, bytes: usize, flags: u32);
        host_free = c"cuMemFreeHost"(pointer: *mut c_void);
        host_to_device = c"cuMemcpyHtoDAsync_v2"(to: u64, from: *const c_void, bytes: usize, stream: usize);
        device_to_host = c"cuMemcpyDtoHAsync_v2"(to: *mut c_void, from: u64, bytes: usize, stream: usize);
        device_to_device = c"cuMemcpyDtoDAsync_v2"(to: u64, from: u64, bytes: usize, stream: usize);
        set_bytes = c"cuMemsetD8Async"(to: u64, value: u8, bytes: usize, stream: usize);
        module_load = c"cuModuleLoadData"(module: &mut usize, image: *const c_void);
        module_function = c"cuModuleGetFunction"(function: &mut usize, module: usize, name: *const c_char);
        function_property = c"cuFuncGetAttribute"(value: &mut i32, attribute: i32, function: usize);
        function_attribute = c"cuFuncSetAttribute"(function: usize, attribute: i32, value: i32);
        launch = c"cuLaunchKernelEx"(
            how: &How, function: usize, parameters: *mut *mut c_void, extra: *mut *mut c_void,
        );
        event_create = c"cuEventCreate"(event: &mut usize, flags: u32);
        event_record = c"cuEventRecord"(event: usize, stream: usize);
        event_query = c"cuEventQuery"(event: usize);
        event_destroy = c"cuEventDestroy_v2"(event: usize);
        event_elapsed = c"cuEventElapsedTime"(milliseconds: &mut f32, from: usize, to: usize);
        begin_capture = c"cuStreamBeginCapture_v2"(stream: usize, mode: i32);
        end_capture = c"cuStreamEndCapture"(stream: usize, graph: &mut usize);
        instantiate = c"cuGraphInstantiateWithFlags"(executable: &mut usize, graph: usize, flags: u64);
        graph_launch = c"cuGraphLaunch"(executable: usize, stream: usize);
        graph_destroy = c"cuGraphDestroy"(graph: usize);
        executable_destroy = c"cuGraphExecDestroy"(executable: usize);
        encode_tiles = c"cuTensorMapEncodeTiled"(
            map: &mut TileMap, format: i32, rank: u32, address: u64, extents: *const u64, strides: *const u64,
            tile: *const u32, steps: *const u32, interleave: i32, swizzle: i32, promotion: i32, fill: i32,
        );
    }
}

/// How a tile of a matrix is found by the copy engine.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
pub(super) struct TileMap([u64; 16]);

/// How a kernel is launched, as the driver has it.
#[repr(C)]
pub(super) struct How {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: usize,
    attributes: *const Attribute,
    count: u32,
}

/// Whether a kernel may be started while the one before it ends.
#[repr(C)]
struct Attribute {
    id: u32,
    unused: u32,
    value: [u64; 8],
}

const STARTS_EARLY: Attribute = Attribute { id: 6, unused: 0, value: [1, 0, 0, 0, 0, 0, 0, 0] };

/// What a kernel is called with.
#[derive(Clone, Copy)]
pub(super) enum Argument<'a> {
    Word(u64),
    /// A struct, eight bytes at a time.
    Words(&'a [u64]),
    Map(&'a TileMap),
}

/// Blocks, threads and shared bytes of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct KernelLaunch {
    pub(super) grid: [usize; 3],
    pub(super) block: [usize; 3],
    pub(super) shared: usize,
}

/// A GPU's primary context with the one stream that everything runs on.
pub(super) struct CudaContext {
    functions: Functions,
    handle: usize,
    stream: usize,
    /// Whether the next kernel has to wait until everything before it is done.
    is_fenced: AtomicBool,
    /// How often scratch memory was moved.
    moves: AtomicU64,
    fault: Sticky,
    pub(super) gpu: Gpu,
    pub(super) major: i32,
    pub(super) minor: i32,
    pub(super) processors: usize,
    /// Bytes of shared memory that a block of threads can have.
    pub(super) shared: usize,
    pub(super) driver_version: i32,
}

thread_local! {
    /// The context that is current in this thread.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The GPUs that the driver shows, each by its place on the bus.
pub(super) fn list() -> Result<Vec<String>, CudaError> {
    let functions = Functions::load(&OpenLibrary::open(&DRIVER)?)?;
    let mut count = 0;
    refused(&functions, functions.init(0), "start")?;
    refused(&functions, functions.device_count(&mut count), "count GPUs")?;
    let bus_id = |ordinal: i32| {
        let mut device = 0;
        refused(&functions, functions.device(&mut device, ordinal), "open the GPU")?;
        bus_id(&functions, device)
    };
    (0..count).map(bus_id).collect()
}

fn bus_id(functions: &Functions, device: i32) -> Result<String, CudaError> {
    let mut text = [0 as c_char; 32];
    refused(functions, functions.bus_id(text.as_mut_ptr(), 32, device), "tell a GPU's place")?;
    // SAFETY: the driver wrote a text that ends with a zero within the array.
    Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
}

/// As `nvidia-smi` writes it.
fn uuid(functions: &Functions, device: i32) -> Result<String, CudaError> {
    let mut bytes = [0; 16];
    refused(functions, functions.uuid(&mut bytes, device), "tell a GPU's UUID")?;
    let hex = bytes.map(|byte| format!("{byte:02x}")).concat();
    Ok(["GPU", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"))
}

impl CudaContext {
    pub(super) fn new(ordinal: usize) -> Result<Arc<Self>, CudaError> {
        let functions = Functions::load(&OpenLibrary::open(&DRIVER)?)?;
        let check = |code, what| refused(&functions, code, what);
        check(functions.init(0), "start")?;
        let (mut count, mut device, mut handle, mut stream, mut driver_version) = (0, 0, 0, 0, 0);
        check(functions.driver_version(&mut driver_version), "tell its version")?;
        check(functions.device_count(&mut count), "count GPUs")?;
        if ordinal >= count as usize {
            return Err(CudaError::NoSuchDevice { ordinal, count: count as usize });
        }
        check(functions.device(&mut device, ordinal as i32), "open the GPU")?;
        let mut text = [0 as c_char; 128];
        check(functions.device_name(text.as_mut_ptr(), 128, device), "tell the GPU's name")?;
        // SAFETY: the driver wrote a text that ends with a zero within the array.
        let name = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned();
        let attribute = |which| {
            let mut value = 0;
            refused(&functions, functions.attribute(&mut value, which, device), "tell an attribute")?;
            Ok::<i32, CudaError>(value)
        };
        let (major, minor, processors) = (attribute(75)?, attribute(76)?, attribute(16)?);
        let shared = attribute(97)? as usize;
        if major < 8 {
            return Err(CudaError::OldDevice { ordinal, name, major, minor });
        }
        let (address, uuid) = (bus_id(&functions, device)?, uuid(&functions, device)?);
        let gpu = Gpu { ordinal, name, address, uuid };
        check(functions.retain(&mut handle, device), "make a context")?;
        check(functions.set_current(handle), "use its context")?;
        CURRENT.set(handle);
        check(functions.stream_create(&mut stream, 1), "make a stream")?;
        let processors = processors as usize;
        let is_fenced = AtomicBool::new(true);
        Ok(Arc::new(Self {
            functions,
            handle,
            stream,
            is_fenced,
            moves: AtomicU64::new(0),
            fault: Sticky::default(),
            gpu,
            major,
            minor,
            processors,
            shared,
            driver_version,
        }))
    }

    /// The functions, with the context current in this thread.
    pub(super) fn driver(&self) -> &Functions {
        if CURRENT.get() != self.handle {
            match self.functions.set_current(self.handle) {
                0 => CURRENT.set(self.handle),
                code => drop(self.fail(code, "use its context")),
            }
        }
        &self.functions
    }

    pub(super) fn stream(&self) -> usize {
        self.stream
    }

    /// The first error, if there was one.
    pub(super) fn check(&self) -> Result<(), CudaError> {
        self.fault.check()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.fault.is_set()
    }

    /// Calls the driver, unless a call has failed before; an error stays with the device.
    pub(super) fn attempt(
        &self,
        what: impl Display,
        call: impl FnOnce(&Functions) -> i32,
    ) -> Result<(), CudaError> {
        let driver = self.driver();
        self.check()?;
        match call(driver) {
            0 => Ok(()),
            code => Err(self.fail(code, what)),
        }
    }

    /// The same for an operator, which has no one to tell; whether it was done.
    pub(super) fn ask(&self, what: impl Display, call: impl FnOnce(&Functions) -> i32) -> bool {
        self.attempt(what, call).is_ok()
    }

    /// Keeps what the driver answered as the device's error; returns the one that stays.
    pub(super) fn fail(&self, code: i32, what: impl Display) -> CudaError {
        self.keep(self.error(code, what))
    }

    /// Keeps an error unless there is one already; returns the one that stays.
    pub(super) fn keep(&self, error: CudaError) -> CudaError {
        self.fault.keep(error)
    }

    /// Keeps what one of NVIDIA's libraries says as the device's error; returns the one that stays.
    pub(super) fn fail_in_library(&self, what: &str, why: String) -> CudaError {
        let fault = DeviceFault { gpu: self.gpu.clone(), what: what.to_owned(), why };
        self.keep(CudaError::Fault(Box::new(fault)))
    }

    /// What an answer of the driver means.
    pub(super) fn error(&self, code: i32, what: impl Display) -> CudaError {
        let (gpu, what, why) = (self.gpu.clone(), what.to_string(), words(&self.functions, code));
        match code {
            OUT_OF_MEMORY => CudaError::NoMemory { gpu: Box::new(gpu), what, why },
            _ => CudaError::Fault(Box::new(DeviceFault { gpu, what, why })),
        }
    }

    pub(super) fn synchronize(&self) {
        self.ask("finish its work", |driver| driver.stream_synchronize(self.stream));
    }

    pub(super) fn set_bytes(&self, to: u64, value: u8, bytes: usize) {
        self.ask("set memory", |driver| driver.set_bytes(to, value, bytes, self.stream));
    }

    /// Copies bytes of the GPU.
    pub(super) fn copy(&self, from: u64, to: u64, bytes: usize) {
        self.ask("copy", |driver| driver.device_to_device(to, from, bytes, self.stream));
    }

    /// Begins to copy to the host; the elements are there after a wait.
    pub(super) fn read<T>(&self, from: u64, to: &mut [T]) {
        let bytes = size_of_val(to);
        self.ask("give elements", |driver| {
            driver.device_to_host(to.as_mut_ptr().cast(), from, bytes, self.stream)
        });
    }

    pub(super) fn launch(
        &self,
        name: &str,
        function: usize,
        launch: KernelLaunch,
        arguments: &[Argument<'_>],
    ) {
        let mut pointers = [std::ptr::null_mut::<c_void>(); 24];
        assert!(arguments.len() <= pointers.len(), "a kernel has at most 24 arguments");
        for (pointer, argument) in pointers.iter_mut().zip(arguments) {
            *pointer = match argument {
                Argument::Word(word) => std::ptr::from_ref(word).cast_mut().cast(),
                Argument::Words(words) => words.as_ptr().cast_mut().cast(),
                Argument::Map(map) => std::ptr::from_ref(*map).cast_mut().cast(),
            };
        }
        let ([gx, gy, gz], [bx, by, bz]) = (launch.grid.map(|n| n as u32), launch.block.map(|n| n as u32));
        if gx == 0 || gy == 0 || gz == 0 {
            return;
        }
        let is_early = !self.is_fenced.swap(false, Ordering::Relaxed) && self.major >= 9;
        let how = How {
            grid: [gx, gy, gz],
            block: [bx, by, bz],
            shared: launch.shared as u32,
            stream: self.stream,
            attributes: &STARTS_EARLY,
            count: u32::from(is_early),
        };
        self.ask(format_args!("start the kernel {name}"), |driver| {
            driver.launch(&how, function, pointers.as_mut_ptr(), std::ptr::null_mut())
        });
    }

    /// The next kernel starts when everything before it is done. Kernels look at weights before they wait for the one before them, so weights are
    /// written in front of a fence.
    pub(super) fn fence(&self) {
        self.is_fenced.store(true, Ordering::Relaxed);
    }

    /// Scratch memory has moved: CUDA graphs made before may not be launched again.
    pub(super) fn note_move(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    /// Tiles of 64 columns and `tile_rows` rows of a bf16 matrix whose rows lie `stride` elements apart.
    pub(super) fn tiles(
        &self,
        address: u64,
        rows: usize,
        columns: usize,
        stride: usize,
        tile_rows: u32,
    ) -> TileMap {
        const BF16: i32 = 9;
        const SWIZZLE_128: i32 = 3;
        const PROMOTE_128: i32 = 2;
        let mut map = TileMap([0; 16]);
        let (extents, strides) = ([columns as u64, rows as u64], [2 * stride as u64]);
        let (tile, steps) = ([64, tile_rows], [1, 1]);
        let [extents, strides] = [extents.as_ptr(), strides.as_ptr()];
        let [tile, steps] = [tile.as_ptr(), steps.as_ptr()];
        self.ask("describe tiles", |driver| {
            let (swizzle, promote) = (SWIZZLE_128, PROMOTE_128);
            driver.encode_tiles(
                &mut map, BF16, 2, address, extents, strides, tile, steps, 0, swizzle, promote, 0,
            )
        });
        map
    }

    /// Bytes that are free on the GPU, and all.
    pub(super) fn memory(&self) -> (usize, usize) {
        let (mut free, mut total) = (0, 0);
        self.ask("tell its memory", |driver| driver.memory_info(&mut free, &mut total));
        (free, total)
    }
}

fn refused(functions: &Functions, code: i32, what: &'static str) -> Result<(), CudaError> {
    if code == 0 {
        return Ok(());
    }
    Err(CudaError::Refused { what, why: words(functions, code) })
}

/// The driver's answer where memory is used up.
pub(super) const OUT_OF_MEMORY: i32 = 2;

/// An error as the driver says it: `CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered`.
fn words(functions: &Functions, code: i32) -> String {
    let (mut name, mut text) = (std::ptr::null(), std::ptr::null());
    functions.error_name(code, &mut name);
    functions.error_text(code, &mut text);
    let [name, text] = [name, text].map(|text: *const c_char| {
        // SAFETY: the driver's texts are constants that end with a zero.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy())
    });
    match (name, text) {
        (Some(name), Some(text)) => format!("{name} ({code}): {text}"),
        (name, text) => format!("{} ({code})", name.or(text).unwrap_or("CUDA error".into())),
    }
}
