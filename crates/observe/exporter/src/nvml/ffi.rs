//! NVML's C interface, found at run time: the only unsafe code of this crate.
//!
//! The library is opened by name, so the program runs on hosts without a driver, and is never closed. Functions are looked up
//! one by one: one that an older driver lacks makes its readings absent and nothing else. Types and numbers are those of
//! `nvml.h`; handles are kept as plain numbers and given back to the library only.

#![expect(unsafe_code, reason = "calls into a C library that is found at run time")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;

use bedplate_host::Library as Opened;

/// A device or event set of NVML; zero is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle(usize);

/// An error number of NVML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) c_int);

impl Code {
    pub(crate) const NOT_SUPPORTED: Code = Code(3);
    pub(crate) const TIMEOUT: Code = Code(10);
    /// Also ours, for a function that the library lacks.
    pub(crate) const FUNCTION_NOT_FOUND: Code = Code(13);
    pub(crate) const GPU_IS_LOST: Code = Code(15);
    pub(crate) const RESET_REQUIRED: Code = Code(16);
}

type Raw = *mut c_void;

#[repr(C)]
#[derive(Default, Clone, Copy)]
struct PciInfo {
    bus_id_legacy: [u8; 16],
    numbers: [c_uint; 5],
    bus_id: [u8; 32],
}

#[repr(C)]
struct MemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// The size of the structure and its version, as NVML wants them.
const MEMORY_V2: c_uint = size_of::<MemoryV2>() as c_uint | 2 << 24;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: i64,
    latency: i64,
    kind: c_uint,
    outcome: c_int,
    value: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct GpmMetric {
    id: c_uint,
    outcome: c_int,
    value: f64,
    names: [*const c_char; 3],
}

/// More metrics than are ever asked for; the library reads as many as `count` says.
const GPM_MOST: usize = 16;

#[repr(C)]
struct GpmMetrics {
    version: c_uint,
    count: c_uint,
    samples: [Raw; 2],
    metrics: [GpmMetric; GPM_MOST],
}

#[repr(C)]
struct EventData {
    device: Raw,
    kind: u64,
    data: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// Declares a table of functions that may each be missing, and how it is filled.
macro_rules! functions {
    ($($field:ident $symbol:literal ($($argument:ty),*))+) => {
        #[derive(Clone, Copy)]
        struct Functions {
            $($field: Option<unsafe extern "C" fn($($argument),*) -> c_int>,)+
        }

        impl Functions {
            fn find(library: Opened) -> Self {
                Self {
                    $(
                        // SAFETY: a symbol of this name has this signature in every NVML since it exists; null becomes `None`.
                        $field: unsafe {
                            std::mem::transmute::<Raw, Option<unsafe extern "C" fn($($argument),*) -> c_int>>(
                                library.symbol($symbol).unwrap_or(std::ptr::null_mut()),
                            )
                        },
                    )+
                }
            }
        }
    };
}

functions! {
    init c"nvmlInit_v2" ()
    driver c"nvmlSystemGetDriverVersion" (*mut c_char, c_uint)
    count c"nvmlDeviceGetCount_v2" (*mut c_uint)
    device c"nvmlDeviceGetHandleByIndex_v2" (c_uint, *mut Raw)
    uuid c"nvmlDeviceGetUUID" (Raw, *mut c_char, c_uint)
    name c"nvmlDeviceGetName" (Raw, *mut c_char, c_uint)
    pci c"nvmlDeviceGetPciInfo_v3" (Raw, *mut PciInfo)
    temperature c"nvmlDeviceGetTemperature" (Raw, c_uint, *mut c_uint)
    power c"nvmlDeviceGetPowerUsage" (Raw, *mut c_uint)
    power_limit c"nvmlDeviceGetEnforcedPowerLimit" (Raw, *mut c_uint)
    energy c"nvmlDeviceGetTotalEnergyConsumption" (Raw, *mut u64)
    clock c"nvmlDeviceGetClockInfo" (Raw, c_uint, *mut c_uint)
    utilization c"nvmlDeviceGetUtilizationRates" (Raw, *mut [c_uint; 2])
    encoder c"nvmlDeviceGetEncoderUtilization" (Raw, *mut c_uint, *mut c_uint)
    decoder c"nvmlDeviceGetDecoderUtilization" (Raw, *mut c_uint, *mut c_uint)
    memory c"nvmlDeviceGetMemoryInfo_v2" (Raw, *mut MemoryV2)
    ecc c"nvmlDeviceGetTotalEccErrors" (Raw, c_uint, c_uint, *mut u64)
    retired c"nvmlDeviceGetRetiredPages" (Raw, c_uint, *mut c_uint, *mut u64)
    retired_pending c"nvmlDeviceGetRetiredPagesPendingStatus" (Raw, *mut c_uint)
    remapped c"nvmlDeviceGetRemappedRows" (Raw, *mut c_uint, *mut c_uint, *mut c_uint, *mut c_uint)
    replays c"nvmlDeviceGetPcieReplayCounter" (Raw, *mut c_uint)
    width c"nvmlDeviceGetCurrPcieLinkWidth" (Raw, *mut c_uint)
    max_width c"nvmlDeviceGetMaxPcieLinkWidth" (Raw, *mut c_uint)
    generation c"nvmlDeviceGetCurrPcieLinkGeneration" (Raw, *mut c_uint)
    max_generation c"nvmlDeviceGetMaxPcieLinkGeneration" (Raw, *mut c_uint)
    violation c"nvmlDeviceGetViolationStatus" (Raw, c_uint, *mut [u64; 2])
    throttle c"nvmlDeviceGetCurrentClocksThrottleReasons" (Raw, *mut u64)
    nvlink c"nvmlDeviceGetNvLinkState" (Raw, c_uint, *mut c_uint)
    fields c"nvmlDeviceGetFieldValues" (Raw, c_int, *mut FieldValue)
    gpm_support c"nvmlGpmQueryDeviceSupport" (Raw, *mut [c_uint; 2])
    gpm_alloc c"nvmlGpmSampleAlloc" (*mut Raw)
    gpm_free c"nvmlGpmSampleFree" (Raw)
    gpm_sample c"nvmlGpmSampleGet" (Raw, Raw)
    gpm_metrics c"nvmlGpmMetricsGet" (*mut GpmMetrics)
    event_set c"nvmlEventSetCreate" (*mut Raw)
    register c"nvmlDeviceRegisterEvents" (Raw, u64, Raw)
    wait c"nvmlEventSetWait_v2" (Raw, *mut EventData, c_uint)
}

/// Calls a function if there is one and turns its number into a result.
macro_rules! call {
    ($function:expr $(, $argument:expr)*) => {
        match $function {
            None => Err(Code::FUNCTION_NOT_FOUND),
            // SAFETY: handles come from the library, and pointers are to values of the type that the function fills.
            Some(function) => match unsafe { function($($argument),*) } {
                0 => Ok(()),
                code => Err(Code(code)),
            },
        }
    };
}

/// The library, open and initialised.
#[derive(Clone, Copy)]
pub(crate) struct NvmlLibrary {
    functions: Functions,
}

/// Why there is no NVML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoLibrary {
    /// No such library: a host without the driver.
    Absent(String),
    /// It is something else.
    Foreign,
    /// It is there and refuses.
    Refuses(Code),
}

impl NvmlLibrary {
    pub(crate) fn open(path: &Path) -> Result<Self, NoLibrary> {
        let functions = Functions::find(Opened::open(path).map_err(NoLibrary::Absent)?);
        if functions.init.is_none() || functions.count.is_none() || functions.device.is_none() {
            return Err(NoLibrary::Foreign);
        }
        call!(functions.init).map_err(NoLibrary::Refuses)?;
        Ok(Self { functions })
    }

    pub(crate) fn driver(&self) -> Result<String, Code> {
        text(|to, room| call!(self.functions.driver, to, room))
    }

    pub(crate) fn count(&self) -> Result<u32, Code> {
        filled(|to| call!(self.functions.count, to))
    }

    pub(crate) fn device(&self, index: u32) -> Result<Handle, Code> {
        let mut device: Raw = std::ptr::null_mut();
        call!(self.functions.device, index, &raw mut device)?;
        Ok(Handle(device as usize))
    }

    pub(crate) fn uuid(&self, device: Handle) -> Result<String, Code> {
        text(|to, room| call!(self.functions.uuid, device.raw(), to, room))
    }

    pub(crate) fn name(&self, device: Handle) -> Result<String, Code> {
        text(|to, room| call!(self.functions.name, device.raw(), to, room))
    }

    pub(crate) fn bus_id(&self, device: Handle) -> Result<String, Code> {
        let info: PciInfo = filled(|to| call!(self.functions.pci, device.raw(), to))?;
        Ok(until_zero(&info.bus_id))
    }

    pub(crate) fn temperature(&self, device: Handle) -> Result<u32, Code> {
        filled(|to| call!(self.functions.temperature, device.raw(), 0, to))
    }

    pub(crate) fn power_mw(&self, device: Handle) -> Result<u32, Code> {
        filled(|to| call!(self.functions.power, device.raw(), to))
    }

    pub(crate) fn power_limit_mw(&self, device: Handle) -> Result<u32, Code> {
        filled(|to| call!(self.functions.power_limit, device.raw(), to))
    }

    pub(crate) fn energy_mj(&self, device: Handle) -> Result<u64, Code> {
        filled(|to| call!(self.functions.energy, device.raw(), to))
    }

    /// In MHz; 1 is the SM clock, 2 the memory clock.
    pub(crate) fn clock(&self, device: Handle, kind: u32) -> Result<u32, Code> {
        filled(|to| call!(self.functions.clock, device.raw(), kind, to))
    }

    /// Percentages of the GPU and of its memory.
    pub(crate) fn utilization(&self, device: Handle) -> Result<[u32; 2], Code> {
        filled(|to| call!(self.functions.utilization, device.raw(), to))
    }

    pub(crate) fn encoder(&self, device: Handle) -> Result<u32, Code> {
        let mut period = 0;
        filled(|to| call!(self.functions.encoder, device.raw(), to, &raw mut period))
    }

    pub(crate) fn decoder(&self, device: Handle) -> Result<u32, Code> {
        let mut period = 0;
        filled(|to| call!(self.functions.decoder, device.raw(), to, &raw mut period))
    }

    /// Bytes of memory: reserved, free, used.
    pub(crate) fn memory(&self, device: Handle) -> Result<[u64; 3], Code> {
        let mut memory = MemoryV2 { version: MEMORY_V2, total: 0, reserved: 0, free: 0, used: 0 };
        call!(self.functions.memory, device.raw(), &raw mut memory)?;
        Ok([memory.reserved, memory.free, memory.used])
    }

    /// Corrected (0) or uncorrected (1) errors, since the driver was loaded (0) or ever (1).
    pub(crate) fn ecc(&self, device: Handle, kind: u32, counter: u32) -> Result<u64, Code> {
        filled(|to| call!(self.functions.ecc, device.raw(), kind, counter, to))
    }

    /// How many pages were retired for single-bit (0) or double-bit (1) errors.
    pub(crate) fn retired(&self, device: Handle, cause: u32) -> Result<u32, Code> {
        const INSUFFICIENT_SIZE: Code = Code(7);
        let mut count: c_uint = 0;
        // Without room for addresses the library says how many there are.
        match call!(self.functions.retired, device.raw(), cause, &raw mut count, std::ptr::null_mut()) {
            Ok(()) | Err(INSUFFICIENT_SIZE) => Ok(count),
            Err(code) => Err(code),
        }
    }

    pub(crate) fn retired_pending(&self, device: Handle) -> Result<u32, Code> {
        filled(|to| call!(self.functions.retired_pending, device.raw(), to))
    }

    /// Rows remapped for correctable and uncorrectable errors, whether some wait, whether it failed.
    pub(crate) fn remapped(&self, device: Handle) -> Result<[u32; 4], Code> {
        let mut rows: [c_uint; 4] = [0; 4];
        let [correctable, uncorrectable, pending, failed] = &mut rows;
        call!(self.functions.remapped, device.raw(), correctable, uncorrectable, pending, failed)?;
        Ok(rows)
    }

    pub(crate) fn replays(&self, device: Handle) -> Result<u32, Code> {
        filled(|to| call!(self.functions.replays, device.raw(), to))
    }

    pub(crate) fn width(&self, device: Handle) -> Result<u32, Code> {
        filled(|to| call!(self.functions.width, device.raw(), to))
    }

    pub(crate) fn max_width(&self, device: Handle) -> Result<u32, Code> {
        filled(|to| call!(self.functions.max_width, device.raw(), to))
    }

    pub(crate) fn generation(&self, device: Handle) -> Result<u32, Code> {
        filled(|to| call!(self.functions.generation, device.raw(), to))
    }

    pub(crate) fn max_generation(&self, device: Handle) -> Result<u32, Code> {
        filled(|to| call!(self.functions.max_generation, device.raw(), to))
    }

    /// Nanoseconds for which a policy held the clocks down.
    pub(crate) fn violation_ns(&self, device: Handle, policy: u32) -> Result<u64, Code> {
        let [_, time]: [u64; 2] = filled(|to| call!(self.functions.violation, device.raw(), policy, to))?;
        Ok(time)
    }

    pub(crate) fn throttle_reasons(&self, device: Handle) -> Result<u64, Code> {
        filled(|to| call!(self.functions.throttle, device.raw(), to))
    }

    pub(crate) fn is_nvlink_up(&self, device: Handle, link: u32) -> Result<bool, Code> {
        let state: u32 = filled(|to| call!(self.functions.nvlink, device.raw(), link, to))?;
        Ok(state == 1)
    }

    /// Values of fields, each with a scope: `u32::MAX` adds up all NVLinks.
    pub(crate) fn fields<const N: usize>(
        &self,
        device: Handle,
        wanted: [(u32, u32); N],
    ) -> Result<[Option<f64>; N], Code> {
        let mut values =
            wanted.map(|(field, scope)| FieldValue { field, scope, outcome: -1, ..FieldValue::default() });
        call!(self.functions.fields, device.raw(), N as c_int, values.as_mut_ptr())?;
        Ok(values.map(|value| value.read()))
    }

    pub(crate) fn has_gpm(&self, device: Handle) -> bool {
        let mut support: [c_uint; 2] = [1, 0];
        call!(self.functions.gpm_support, device.raw(), &raw mut support).is_ok() && support[1] != 0
    }

    pub(crate) fn gpm_sample(&self) -> Result<GpmSample, Code> {
        let mut sample: Raw = std::ptr::null_mut();
        call!(self.functions.gpm_alloc, &raw mut sample)?;
        Ok(GpmSample { library: *self, sample: sample as usize })
    }

    pub(crate) fn fill_gpm(&self, device: Handle, sample: &mut GpmSample) -> Result<(), Code> {
        call!(self.functions.gpm_sample, device.raw(), sample.sample as Raw)
    }

    /// Metrics between two samples of one device.
    pub(crate) fn gpm(
        &self,
        older: &GpmSample,
        newer: &GpmSample,
        ids: impl Iterator<Item = u32>,
    ) -> Result<Vec<Option<f64>>, Code> {
        let none = GpmMetric { id: 0, outcome: -1, value: 0.0, names: [std::ptr::null(); 3] };
        let mut asked = GpmMetrics {
            version: 1,
            count: 0,
            samples: [older.sample as Raw, newer.sample as Raw],
            metrics: [none; GPM_MOST],
        };
        for (metric, id) in asked.metrics.iter_mut().zip(ids) {
            metric.id = id;
            asked.count += 1;
        }
        call!(self.functions.gpm_metrics, &raw mut asked)?;
        let value =
            |metric: &GpmMetric| (metric.outcome == 0 && metric.value.is_finite()).then_some(metric.value);
        Ok(asked.metrics[..asked.count as usize].iter().map(value).collect())
    }

    pub(crate) fn event_set(&self) -> Result<Handle, Code> {
        let mut set: Raw = std::ptr::null_mut();
        call!(self.functions.event_set, &raw mut set)?;
        Ok(Handle(set as usize))
    }

    /// Asks for the critical XIDs of a device.
    pub(crate) fn register_xids(&self, device: Handle, set: Handle) -> Result<(), Code> {
        const XID_CRITICAL_ERROR: u64 = 8;
        call!(self.functions.register, device.raw(), XID_CRITICAL_ERROR, set.raw())
    }

    /// Waits for the next XID of any registered device.
    pub(crate) fn wait(&self, set: Handle, timeout_ms: u32) -> Result<(Handle, u64), Code> {
        let mut event = EventData {
            device: std::ptr::null_mut(),
            kind: 0,
            data: 0,
            gpu_instance: 0,
            compute_instance: 0,
        };
        call!(self.functions.wait, set.raw(), &raw mut event, timeout_ms)?;
        Ok((Handle(event.device as usize), event.data))
    }
}

impl Handle {
    fn raw(self) -> Raw {
        self.0 as Raw
    }
}

/// Room for one sample of the activity counters; given back when dropped.
pub(crate) struct GpmSample {
    library: NvmlLibrary,
    sample: usize,
}

impl Drop for GpmSample {
    fn drop(&mut self) {
        let _ = call!(self.library.functions.gpm_free, self.sample as Raw);
    }
}

impl FieldValue {
    /// As a number, whatever its type.
    fn read(self) -> Option<f64> {
        let value = match self.kind {
            0 => f64::from_bits(self.value),
            1 => f64::from(self.value as u32),
            2 | 3 => self.value as f64,
            4 => self.value as i64 as f64,
            5 => f64::from(self.value as i32),
            6 => f64::from(self.value as u16),
            _ => return None,
        };
        (self.outcome == 0 && value.is_finite()).then_some(value)
    }
}

fn filled<T: Default>(fill: impl FnOnce(*mut T) -> Result<(), Code>) -> Result<T, Code> {
    let mut value = T::default();
    fill(&raw mut value)?;
    Ok(value)
}

fn text(fill: impl FnOnce(*mut c_char, c_uint) -> Result<(), Code>) -> Result<String, Code> {
    let mut bytes = [0_u8; 128];
    fill(bytes.as_mut_ptr().cast(), bytes.len() as c_uint)?;
    Ok(until_zero(&bytes))
}

fn until_zero(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
