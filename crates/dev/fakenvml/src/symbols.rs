//! The functions of NVML, as C calls them.

#![expect(unsafe_code, reason = "a shared library with a C interface")]
#![allow(non_snake_case, reason = "the names are NVML's")]
#![allow(clippy::missing_safety_doc, unreachable_pub, reason = "called through C only, as nvml.h says")]

use std::ffi::{c_char, c_void};
use std::thread;
use std::time::{Duration, Instant};

use crate::answers::{GPU_IS_LOST, INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS, TIMEOUT, failure, number, text};
use crate::script::script;

type Device = *mut c_void;

fn index(device: Device) -> usize {
    (device as usize).wrapping_sub(1)
}

/// Writes through a pointer of the caller.
fn put<T>(to: *mut T, outcome: Result<T, i32>) -> i32 {
    match outcome {
        Ok(_) if to.is_null() => INVALID_ARGUMENT,
        Ok(value) => {
            // SAFETY: nvml.h requires a valid pointer to this type; null was refused above.
            unsafe { to.write(value) };
            SUCCESS
        }
        Err(code) => code,
    }
}

fn put_text(to: *mut c_char, room: u32, outcome: Result<String, i32>) -> i32 {
    let text = match outcome {
        Ok(text) if text.len() < room as usize && !to.is_null() => text,
        Ok(_) => return 7,
        Err(code) => return code,
    };
    // SAFETY: nvml.h requires `room` bytes at `to`, and the text with its end is shorter.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
        to.add(text.len()).write(0);
    }
    SUCCESS
}

/// Calls that fill one number.
macro_rules! numbers {
    ($($call:ident $key:literal $type:ident $factor:literal)+) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $call(device: Device, value: *mut $type) -> i32 {
            let read = number(stringify!($call), index(device), $key);
            put(value, read.map(|value| (value * $factor) as $type))
        }
    )+};
}

numbers! {
    nvmlDeviceGetPowerUsage "power_w" u32 1000.0
    nvmlDeviceGetEnforcedPowerLimit "power_limit_w" u32 1000.0
    nvmlDeviceGetTotalEnergyConsumption "energy_mj" u64 1.0
    nvmlDeviceGetPcieReplayCounter "pcie_replay" u32 1.0
    nvmlDeviceGetCurrPcieLinkWidth "pcie_width" u32 1.0
    nvmlDeviceGetMaxPcieLinkWidth "pcie_max_width" u32 1.0
    nvmlDeviceGetCurrPcieLinkGeneration "pcie_generation" u32 1.0
    nvmlDeviceGetMaxPcieLinkGeneration "pcie_max_generation" u32 1.0
    nvmlDeviceGetCurrentClocksThrottleReasons "throttle_reasons" u64 1.0
    nvmlDeviceGetRetiredPagesPendingStatus "retired_pending" u32 1.0
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> i32 {
    failure(&script(), None, "nvmlInit_v2")
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> i32 {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, room: u32) -> i32 {
    put_text(to, room, text("nvmlSystemGetDriverVersion", None, "driver"))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCount_v2(count: *mut u32) -> i32 {
    let script = script();
    match failure(&script, None, "nvmlDeviceGetCount_v2") {
        SUCCESS => put(count, Ok(script.gpus().len() as u32)),
        code => code,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: *mut Device) -> i32 {
    let script = script();
    if index as usize >= script.gpus().len() {
        return INVALID_ARGUMENT;
    }
    match failure(&script, Some(index as usize), "nvmlDeviceGetHandleByIndex_v2") {
        // A handle from before stays valid; a new one of a lost GPU cannot be had.
        SUCCESS => put(device, Ok((index as usize + 1) as Device)),
        code => code,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUUID(device: Device, to: *mut c_char, room: u32) -> i32 {
    put_text(to, room, text("nvmlDeviceGetUUID", Some(index(device)), "uuid"))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetName(device: Device, to: *mut c_char, room: u32) -> i32 {
    put_text(to, room, text("nvmlDeviceGetName", Some(index(device)), "name"))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMinorNumber(device: Device, minor: *mut u32) -> i32 {
    put(minor, Ok(index(device) as u32))
}

#[repr(C)]
pub struct PciInfo {
    bus_id_legacy: [u8; 16],
    domain: u32,
    bus: u32,
    device: u32,
    device_id: u32,
    subsystem_id: u32,
    bus_id: [u8; 32],
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPciInfo_v3(device: Device, to: *mut PciInfo) -> i32 {
    let filled = text("nvmlDeviceGetPciInfo_v3", Some(index(device)), "bus_id").map(|text| {
        let mut bus_id = [0; 32];
        bus_id[..text.len().min(31)].copy_from_slice(&text.as_bytes()[..text.len().min(31)]);
        PciInfo {
            bus_id_legacy: [0; 16],
            domain: 0,
            bus: 0x10 + index(device) as u32,
            device: 0,
            device_id: 0x2330_10de,
            subsystem_id: 0,
            bus_id,
        }
    });
    put(to, filled)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTemperature(device: Device, _sensor: u32, value: *mut u32) -> i32 {
    let read = number("nvmlDeviceGetTemperature", index(device), "temperature");
    put(value, read.map(|value| value as u32))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetClockInfo(device: Device, clock: u32, value: *mut u32) -> i32 {
    let key = if clock == 2 { "memory_clock" } else { "sm_clock" };
    put(value, number("nvmlDeviceGetClockInfo", index(device), key).map(|value| value as u32))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUtilizationRates(device: Device, to: *mut [u32; 2]) -> i32 {
    let of = |key| number("nvmlDeviceGetUtilizationRates", index(device), key).map(|value| value as u32);
    put(to, of("utilization").and_then(|gpu| Ok([gpu, of("memory_utilization")?])))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetEncoderUtilization(device: Device, to: *mut u32, period: *mut u32) -> i32 {
    put(period, Ok(1_000_000));
    put(to, number("nvmlDeviceGetEncoderUtilization", index(device), "encoder").map(|value| value as u32))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetDecoderUtilization(device: Device, to: *mut u32, period: *mut u32) -> i32 {
    put(period, Ok(1_000_000));
    put(to, number("nvmlDeviceGetDecoderUtilization", index(device), "decoder").map(|value| value as u32))
}

#[repr(C)]
pub struct Memory {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, to: *mut Memory) -> i32 {
    let of = |key| number("nvmlDeviceGetMemoryInfo_v2", index(device), key).map(|value| value as u64);
    let filled = of("memory_total").and_then(|total| {
        let (reserved, used) = (of("memory_reserved")?, of("memory_used")?);
        let free = total.saturating_sub(reserved + used);
        Ok(Memory { version: 0x0200_0028, total, reserved, free, used })
    });
    put(to, filled)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTotalEccErrors(device: Device, kind: u32, counter: u32, to: *mut u64) -> i32 {
    let key = match (kind, counter) {
        (0, 0) => "sbe_volatile",
        (1, 0) => "dbe_volatile",
        (0, 1) => "sbe_aggregate",
        _ => "dbe_aggregate",
    };
    put(to, number("nvmlDeviceGetTotalEccErrors", index(device), key).map(|value| value as u64))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetRetiredPages(
    device: Device,
    cause: u32,
    count: *mut u32,
    _addresses: *mut u64,
) -> i32 {
    let key = if cause == 0 { "retired_sbe" } else { "retired_dbe" };
    put(count, number("nvmlDeviceGetRetiredPages", index(device), key).map(|value| value as u32))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetRemappedRows(
    device: Device,
    correctable: *mut u32,
    uncorrectable: *mut u32,
    pending: *mut u32,
    failure: *mut u32,
) -> i32 {
    let keys = ["remapped_correctable", "remapped_uncorrectable", "remap_pending", "remap_failure"];
    for (key, to) in keys.into_iter().zip([correctable, uncorrectable, pending, failure]) {
        let read = number("nvmlDeviceGetRemappedRows", index(device), key);
        let code = put(to, read.map(|value| value as u32));
        if code != SUCCESS {
            return code;
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetViolationStatus(device: Device, policy: u32, to: *mut [u64; 2]) -> i32 {
    let keys = [
        "power_violation_ns",
        "thermal_violation_ns",
        "sync_boost_violation_ns",
        "board_limit_violation_ns",
        "low_utilization_violation_ns",
        "reliability_violation_ns",
    ];
    let Some(key) = keys.get(policy as usize) else { return NOT_SUPPORTED };
    put(to, number("nvmlDeviceGetViolationStatus", index(device), key).map(|value| [0, value as u64]))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetNvLinkState(device: Device, link: u32, to: *mut u32) -> i32 {
    let read = number("nvmlDeviceGetNvLinkState", index(device), "nvlinks_up");
    put(to, read.map(|up| u32::from(f64::from(link) < up)))
}

#[repr(C)]
pub struct FieldValue {
    field: u32,
    scope: u32,
    timestamp: i64,
    latency: i64,
    kind: u32,
    outcome: i32,
    value: u64,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFieldValues(device: Device, count: i32, to: *mut FieldValue) -> i32 {
    let code = failure(&script(), Some(index(device)), "nvmlDeviceGetFieldValues");
    if code != SUCCESS || to.is_null() {
        return code;
    }
    // SAFETY: nvml.h requires `count` values at `to`.
    for field in unsafe { std::slice::from_raw_parts_mut(to, count.max(0) as usize) } {
        let key = match field.field {
            82 => "memory_temperature",
            38 => "nvlink_crc_flit",
            45 => "nvlink_crc_data",
            52 => "nvlink_replay",
            59 => "nvlink_recovery",
            138 | 139 => "nvlink_kib",
            230 => "recovery_action",
            _ => "no such field",
        };
        match number("nvmlDeviceGetFieldValues", index(device), key) {
            Ok(value) => {
                let is_long = field.field == 138 || field.field == 139;
                (field.kind, field.outcome, field.value) =
                    (if is_long { 3 } else { 1 }, SUCCESS, value as u64);
            }
            Err(code) => field.outcome = code,
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmQueryDeviceSupport(device: Device, to: *mut [u32; 2]) -> i32 {
    put(to, number("nvmlGpmQueryDeviceSupport", index(device), "gpm").map(|gpm| [1, gpm as u32]))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmSampleAlloc(sample: *mut *mut u64) -> i32 {
    put(sample, Ok(Box::into_raw(Box::new(0_u64))))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmSampleFree(sample: *mut u64) -> i32 {
    if !sample.is_null() {
        // SAFETY: only samples of `nvmlGpmSampleAlloc` are given back, once.
        drop(unsafe { Box::from_raw(sample) });
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmSampleGet(device: Device, sample: *mut u64) -> i32 {
    put(sample, number("nvmlGpmSampleGet", index(device), "gpm").map(|_| index(device) as u64))
}

#[repr(C)]
pub struct GpmMetric {
    id: u32,
    outcome: i32,
    value: f64,
    names: [*const c_char; 3],
}

#[repr(C)]
pub struct GpmMetrics {
    version: u32,
    count: u32,
    samples: [*mut u64; 2],
    metrics: [GpmMetric; 1],
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmMetricsGet(asked: *mut GpmMetrics) -> i32 {
    // SAFETY: nvml.h requires a valid structure with two samples that were filled.
    let (count, gpu) = unsafe { ((*asked).count, *(*asked).samples[1] as usize) };
    // SAFETY: as many metrics follow as the caller says.
    let first = unsafe { (&raw mut (*asked).metrics).cast::<GpmMetric>() };
    for at in 0..count as usize {
        // SAFETY: see above.
        let metric = unsafe { &mut *first.add(at) };
        let key = match metric.id {
            1 => "graphics_percent",
            2 => "sm_percent",
            3 => "occupancy_percent",
            5 => "tensor_percent",
            10 => "dram_percent",
            11 => "fp64_percent",
            12 => "fp32_percent",
            13 => "fp16_percent",
            20 => "pcie_tx_mib",
            21 => "pcie_rx_mib",
            _ => "no such metric",
        };
        match number("nvmlGpmMetricsGet", gpu, key) {
            Ok(value) => (metric.outcome, metric.value) = (SUCCESS, value),
            Err(code) => metric.outcome = code,
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetCreate(set: *mut *mut c_void) -> i32 {
    put(set, Ok(std::ptr::dangling_mut()))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(_set: *mut c_void) -> i32 {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceRegisterEvents(device: Device, _types: u64, _set: *mut c_void) -> i32 {
    failure(&script(), Some(index(device)), "nvmlDeviceRegisterEvents")
}

#[repr(C)]
pub struct EventData {
    device: Device,
    kind: u64,
    data: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetWait_v2(_set: *mut c_void, to: *mut EventData, timeout_ms: u32) -> i32 {
    let until = Instant::now() + Duration::from_millis(timeout_ms.into());
    loop {
        if let Some((gpu, xid)) = next_event() {
            let device = (gpu + 1) as Device;
            let event =
                EventData { device, kind: 8, data: xid, gpu_instance: u32::MAX, compute_instance: u32::MAX };
            return put(to, Ok(event));
        }
        let code = failure(&script(), None, "nvmlEventSetWait_v2");
        if code != SUCCESS && code != GPU_IS_LOST {
            return code;
        }
        if Instant::now() >= until {
            return TIMEOUT;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn next_event() -> Option<(usize, u64)> {
    let mut script = script();
    let event = script.events().get(script.delivered)?;
    let event = (event["gpu"].as_u64().unwrap_or(0) as usize, event["xid"].as_u64().unwrap_or(0));
    script.delivered += 1;
    Some(event)
}
