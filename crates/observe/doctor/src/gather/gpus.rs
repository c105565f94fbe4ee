//! GPUs and their settings, from `nvidia-smi`.
//!
//! It is the driver's own tool, on every node with a driver, and dies alone when a lost GPU keeps the driver waiting.

use super::{Sources, command, remark};
use crate::facts::{GpuFacts, NodeFacts};

const FIELDS: [&str; 13] = [
    "index",
    "name",
    "persistence_mode",
    "ecc.mode.current",
    "mig.mode.current",
    "compute_mode",
    "clocks.applications.graphics",
    "clocks.max.sm",
    "power.limit",
    "power.default_limit",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "memory.total",
];
/// Renamed to `clocks_event_reasons.active` by drivers since 535, which still know the old name.
const THROTTLE: &str = "clocks_throttle_reasons.active";

pub(super) fn gather(sources: &Sources, facts: &mut NodeFacts) {
    match query(sources) {
        Ok(text) => facts.gpus = parse_nvidia_smi(&text),
        Err(told) => return remark(facts, "nvidia-smi", told),
    }
    if facts.gpus.len() > 1
        && let Ok(text) = command::output(&sources.nvidia_smi, &["nvlink", "-s"], sources.patience)
    {
        for (index, links) in nvlinks(&text) {
            if let Some(gpu) = facts.gpus.iter_mut().find(|gpu| gpu.index == index) {
                gpu.nvlinks = Some(links);
            }
        }
    }
}

/// All fields, or fewer where a driver does not know the last one.
fn query(sources: &Sources) -> Result<String, String> {
    let ask = |fields: &[&str]| {
        let fields = format!("--query-gpu={}", fields.join(","));
        command::output(&sources.nvidia_smi, &[&fields, "--format=csv,noheader,nounits"], sources.patience)
    };
    let all: Vec<&str> = FIELDS.into_iter().chain([THROTTLE]).collect();
    ask(&all).or_else(|told| if told.contains("failed") { ask(&FIELDS) } else { Err(told) })
}

/// Reads what `nvidia-smi --query-gpu` writes for our fields; lines that are not of that form are skipped.
pub fn parse_nvidia_smi(text: &str) -> Vec<GpuFacts> {
    const MOST_GPUS: usize = 1024;
    text.lines().filter_map(gpu).take(MOST_GPUS).collect()
}

fn gpu(line: &str) -> Option<GpuFacts> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let text = |at: usize| fields.get(at).copied().filter(|text| !text.is_empty() && !text.starts_with('['));
    let text = |at: usize| text(at).filter(|text| *text != "N/A");
    let number =
        |at: usize| text(at).and_then(|text| text.parse::<f64>().ok()).filter(|value| value.is_finite());
    let flag = |at: usize| text(at).map(|text| text == "Enabled");
    let reasons = |at: usize| u64::from_str_radix(text(at)?.trim_start_matches("0x"), 16).ok();
    Some(GpuFacts {
        index: text(0)?.parse().ok()?,
        name: text(1)?.to_owned(),
        is_persistent: flag(2),
        has_ecc: flag(3),
        has_mig: flag(4),
        compute_mode: text(5).map(str::to_owned),
        clock_limit: number(6),
        clock_most: number(7),
        power_limit: number(8),
        power_default: number(9),
        link_width: number(10),
        link_width_most: number(11),
        memory_mib: number(12),
        throttle_reasons: reasons(13),
        nvlinks: None,
    })
}

/// Links that are up and all links of each GPU, from `nvidia-smi nvlink -s`.
fn nvlinks(text: &str) -> Vec<(u32, (u32, u32))> {
    let mut found: Vec<(u32, (u32, u32))> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(index) = line.strip_prefix("GPU ").and_then(|rest| rest.split(':').next()?.parse().ok()) {
            found.push((index, (0, 0)));
        } else if let Some((_, (up, all))) = found.last_mut().filter(|_| line.starts_with("Link ")) {
            *all += 1;
            *up += u32::from(line.contains("GB/s"));
        }
    }
    found.retain(|(_, (_, all))| *all > 0);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_unsupported_ones_left_out() {
        let text = "0, NVIDIA H100 80GB HBM3, Enabled, Enabled, Disabled, Default, 1980, 1980, 700.00, 700.00, 16, 16, 81559, 0x0000000000000001\n\
                    1, Tesla T4, Disabled, [N/A], [Not Supported], Default, [N/A], 1590, 70.00, 70.00, 8, 16, 15360, 0x0000000000000008\n\
                    garbage";
        let gpus = parse_nvidia_smi(text);
        assert_eq!(gpus.len(), 2);
        assert_eq!(
            (gpus[0].is_persistent, gpus[0].has_mig, gpus[0].throttle_reasons),
            (Some(true), Some(false), Some(1))
        );
        assert_eq!((gpus[1].has_ecc, gpus[1].has_mig, gpus[1].clock_limit), (None, None, None));
        assert_eq!((gpus[1].link_width, gpus[1].link_width_most), (Some(8.0), Some(16.0)));
    }

    #[test]
    fn a_line_of_a_real_h200_is_read_whole() {
        // Driver 580.159.04, nothing running.
        let text = "0, NVIDIA H200, Enabled, Enabled, Disabled, Default, 1980, 1980, 700.00, 700.00, 16, 16, 143771, 0x0000000000000001\n";
        let gpu = &parse_nvidia_smi(text)[0];
        assert_eq!(
            (gpu.name.as_str(), gpu.clock_limit, gpu.power_default),
            ("NVIDIA H200", Some(1980.0), Some(700.0))
        );
        assert_eq!(
            (gpu.memory_mib, gpu.link_width, gpu.throttle_reasons),
            (Some(143_771.0), Some(16.0), Some(1))
        );
    }

    #[test]
    fn links_are_counted_by_gpu() {
        let text = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\nGPU 1: NVIDIA H100\n\t Link 0: 26.562 GB/s\n";
        assert_eq!(nvlinks(text), [(0, (1, 2)), (1, (1, 1))]);
    }
}
