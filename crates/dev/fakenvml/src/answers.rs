//! What the fake answers: values of the script, or plausible ones, or an error.

use serde_json::Value;

use crate::script::{Script, script};

pub(crate) const SUCCESS: i32 = 0;
pub(crate) const INVALID_ARGUMENT: i32 = 2;
pub(crate) const NOT_SUPPORTED: i32 = 3;
pub(crate) const TIMEOUT: i32 = 10;
pub(crate) const GPU_IS_LOST: i32 = 15;

/// A GPU of a healthy, idle host.
const DEFAULTS: &[(&str, f64)] = &[
    ("temperature", 35.0),
    ("memory_temperature", 38.0),
    ("power_w", 90.0),
    ("power_limit_w", 700.0),
    ("energy_mj", 1_000_000.0),
    ("sm_clock", 1980.0),
    ("memory_clock", 2619.0),
    ("utilization", 0.0),
    ("memory_utilization", 0.0),
    ("encoder", 0.0),
    ("decoder", 0.0),
    ("memory_total", 85_520_809_984.0),
    ("memory_used", 1_048_576_000.0),
    ("memory_reserved", 524_288_000.0),
    ("sbe_volatile", 0.0),
    ("dbe_volatile", 0.0),
    ("sbe_aggregate", 0.0),
    ("dbe_aggregate", 0.0),
    ("remapped_correctable", 0.0),
    ("remapped_uncorrectable", 0.0),
    ("remap_pending", 0.0),
    ("remap_failure", 0.0),
    ("pcie_replay", 0.0),
    ("pcie_width", 16.0),
    ("pcie_max_width", 16.0),
    ("pcie_generation", 5.0),
    ("pcie_max_generation", 5.0),
    ("power_violation_ns", 0.0),
    ("thermal_violation_ns", 0.0),
    ("sync_boost_violation_ns", 0.0),
    ("board_limit_violation_ns", 0.0),
    ("low_utilization_violation_ns", 0.0),
    ("reliability_violation_ns", 0.0),
    ("throttle_reasons", 0.0),
    ("nvlinks_up", 18.0),
    ("nvlink_crc_flit", 0.0),
    ("nvlink_crc_data", 0.0),
    ("nvlink_replay", 0.0),
    ("nvlink_recovery", 0.0),
    ("nvlink_kib", 0.0),
    ("recovery_action", 0.0),
    ("gpm", 1.0),
    ("graphics_percent", 0.0),
    ("sm_percent", 0.0),
    ("occupancy_percent", 0.0),
    ("tensor_percent", 0.0),
    ("dram_percent", 0.0),
    ("fp64_percent", 0.0),
    ("fp32_percent", 0.0),
    ("fp16_percent", 0.0),
    ("pcie_tx_mib", 0.0),
    ("pcie_rx_mib", 0.0),
];

/// The error that the script has for a call, if any.
pub(crate) fn failure(script: &Script, gpu: Option<usize>, call: &str) -> i32 {
    let everywhere = script.value["fails"][call].as_i64();
    let here = gpu.and_then(|gpu| script.gpus().get(gpu)).and_then(|gpu| gpu["fails"][call].as_i64());
    let is_lost = gpu.is_some_and(|gpu| script.gpus().get(gpu).is_some_and(|gpu| gpu["lost"] == true));
    match everywhere.or(here) {
        Some(code) => code as i32,
        None if is_lost => GPU_IS_LOST,
        None => SUCCESS,
    }
}

/// A number of a GPU, or the error that the call ends with.
pub(crate) fn number(call: &str, gpu: usize, key: &str) -> Result<f64, i32> {
    let script = script();
    let known = script.gpus().get(gpu).ok_or(INVALID_ARGUMENT)?;
    match failure(&script, Some(gpu), call) {
        SUCCESS => value(&script, known, key).ok_or(NOT_SUPPORTED),
        code => Err(code),
    }
}

fn value(script: &Script, gpu: &Value, key: &str) -> Option<f64> {
    let scripted = match &gpu[key] {
        Value::Null if gpu.get(key).is_some() => return None,
        Value::Number(number) => number.as_f64(),
        _ => None,
    };
    let default = || DEFAULTS.iter().find(|(known, _)| *known == key).map(|(_, value)| *value);
    let value = scripted.or_else(default)?;
    match key {
        // Power is drawn all the time.
        "energy_mj" => {
            let watts = self::value(script, gpu, "power_w").unwrap_or(0.0);
            Some(value + watts * 1000.0 * script.started.elapsed().as_secs_f64())
        }
        _ => Some(value),
    }
}

/// A text of a GPU, or of the host.
pub(crate) fn text(call: &str, gpu: Option<usize>, key: &str) -> Result<String, i32> {
    let script = script();
    match failure(&script, gpu, call) {
        SUCCESS => {}
        code => return Err(code),
    }
    let Some(at) = gpu else {
        return Ok(script.value[key].as_str().unwrap_or("570.124.06").to_owned());
    };
    let known = script.gpus().get(at).ok_or(INVALID_ARGUMENT)?;
    let default = match key {
        "uuid" => format!("GPU-fa4e0000-0000-0000-0000-{at:012}"),
        "bus_id" => format!("00000000:{:02X}:00.0", 0x10 + at),
        _ => "NVIDIA H100 80GB HBM3".to_owned(),
    };
    Ok(known[key].as_str().map_or(default, str::to_owned))
}
