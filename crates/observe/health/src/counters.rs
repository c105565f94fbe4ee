//! Raw series of a node over time: what moved when a job became slow.
//!
//! Rules judge a reading by limits that hold for every node. A counter says something about *one job* by what it did before and since: a few
//! hundred retransmits a second are usual on one fabric and a fault on another. So a few counters are kept for a quarter of an
//! hour, one value every ten seconds, and compared around the time in question.

use std::collections::VecDeque;

use bedplate_finding::Layer;

/// How a counter's values are read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CounterKind {
    /// It only grows: its rate per second is compared.
    Rate,
    /// A level that falls when something is wrong; the lowest of a node counts.
    Low,
}

/// A counter that is worth comparing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NodeCounter {
    pub metric: &'static str,
    pub kind: CounterKind,
    pub layer: Layer,
    pub words: &'static str,
    /// A smaller rate says nothing; of a level, the share by which it must fall.
    pub least: f64,
    /// A rate must grow this many times.
    pub times: f64,
    /// For its layer, as natural logarithm of the odds.
    pub weight: f64,
}

const fn rate(
    metric: &'static str,
    layer: Layer,
    words: &'static str,
    least: f64,
    weight: f64,
) -> NodeCounter {
    NodeCounter { metric, kind: CounterKind::Rate, layer, words, least, times: 3.0, weight }
}

/// What is kept. Times of violations are in nanoseconds of a second.
pub const COUNTERS: [NodeCounter; 13] = [
    rate("node_amazonefa_retrans_pkts", Layer::Network, "retransmitted packets of EFA", 20.0, 1.8),
    rate("node_amazonefa_retrans_timeout_events", Layer::Network, "retransmission timeouts of EFA", 0.1, 2.2),
    rate(
        "node_infiniband_local_ack_timeout_err_total",
        Layer::Network,
        "acknowledgements of RDMA that timed out",
        0.1,
        2.0,
    ),
    rate("node_infiniband_roce_adp_retrans_total", Layer::Network, "retransmissions of RoCE", 20.0, 1.8),
    rate("DCGM_FI_DEV_THERMAL_VIOLATION", Layer::Hardware, "time throttled for heat", 2e7, 2.5),
    rate("DCGM_FI_DEV_POWER_VIOLATION", Layer::Hardware, "time throttled for power", 1e8, 1.2),
    rate("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", Layer::Hardware, "corrected memory errors of GPUs", 0.05, 1.5),
    rate("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", Layer::Hardware, "replays on PCIe", 1.0, 1.8),
    rate("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", Layer::Hardware, "replays on NVLink", 1.0, 1.8),
    NodeCounter {
        metric: "DCGM_FI_DEV_SM_CLOCK",
        kind: CounterKind::Low,
        layer: Layer::Hardware,
        words: "the lowest clock of its GPUs in MHz",
        least: 0.1,
        times: 1.0,
        weight: 2.2,
    },
    rate("bedplate_lustre_operation_seconds_total", Layer::Storage, "time in operations of Lustre", 0.2, 1.8),
    rate(
        "node_pressure_io_waiting_seconds_total",
        Layer::Storage,
        "time in which tasks waited for storage",
        0.1,
        1.6,
    ),
    rate(
        "node_pressure_cpu_waiting_seconds_total",
        Layer::Application,
        "time in which tasks waited for a processor",
        0.2,
        0.8,
    ),
];

/// Between two values that are kept, and how many.
pub const EVERY_S: f64 = 10.0;
const KEPT: usize = 90;
/// What was before, and how close to the onset that ends.
const BEFORE_S: f64 = 600.0;
const GUARD_S: f64 = 15.0;
/// Values on either side without which nothing is compared.
const FEWEST: usize = 3;

/// The counters of one node.
#[derive(Debug, Clone, Default)]
pub struct CounterWindows {
    series: [VecDeque<(f64, f64)>; COUNTERS.len()],
}

/// A counter that moved.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CounterMove {
    pub counter: &'static NodeCounter,
    pub before: f64,
    pub since: f64,
}

impl CounterWindows {
    /// A node's value of a metric; of one that is not kept nothing comes.
    pub fn take(&mut self, metric: &str, at: f64, value: f64) {
        let Some(index) = COUNTERS.iter().position(|counter| counter.metric == metric) else { return };
        let series = &mut self.series[index];
        let is_early = series.back().is_some_and(|(last, _)| at - last < 0.5 * EVERY_S);
        if !value.is_finite() || is_early {
            return;
        }
        if series.len() == KEPT {
            series.pop_front();
        }
        series.push_back((at, value));
    }

    /// What differs between the time since `onset` and the minutes before it.
    pub fn moved(&self, onset: f64) -> Vec<CounterMove> {
        let (from, guard) = (onset - BEFORE_S, onset - GUARD_S);
        let moved = |(counter, series): (&'static NodeCounter, &VecDeque<(f64, f64)>)| {
            let side = |is_in: &dyn Fn(f64) -> bool| {
                series.iter().copied().filter(|(at, _)| is_in(*at)).collect::<Vec<(f64, f64)>>()
            };
            let before = typical(counter.kind, &side(&|at| (from..=guard).contains(&at)))?;
            let since = typical(counter.kind, &side(&|at| at > guard))?;
            let is_moved = match counter.kind {
                CounterKind::Rate => since >= counter.least && since > counter.times * before,
                CounterKind::Low => before > 0.0 && since < (1.0 - counter.least) * before,
            };
            is_moved.then_some(CounterMove { counter, before, since })
        };
        COUNTERS.iter().zip(&self.series).filter_map(moved).collect()
    }
}

/// A rate over all values, or the middle of levels.
fn typical(kind: CounterKind, values: &[(f64, f64)]) -> Option<f64> {
    if values.len() < FEWEST {
        return None;
    }
    let (first, last) = (values.first()?, values.last()?);
    match kind {
        // One that began anew has no rate.
        CounterKind::Rate => {
            (last.1 >= first.1 && last.0 > first.0).then(|| (last.1 - first.1) / (last.0 - first.0))
        }
        CounterKind::Low => {
            let mut levels: Vec<f64> = values.iter().map(|(_, value)| *value).collect();
            levels.sort_by(f64::total_cmp);
            Some(levels[levels.len() / 2])
        }
    }
}

/// The values of one reading of a node that are kept: sums of what grows, the lowest of levels.
pub fn of_readings<'a>(readings: impl Iterator<Item = crate::Reading<'a>>) -> Vec<(&'static str, f64)> {
    let mut found: [Option<f64>; COUNTERS.len()] = [None; COUNTERS.len()];
    for reading in readings {
        let Some(index) = COUNTERS.iter().position(|counter| counter.metric == reading.metric) else {
            continue;
        };
        let value = match (COUNTERS[index].kind, found[index]) {
            (CounterKind::Rate, so_far) => so_far.unwrap_or(0.0) + reading.value,
            (CounterKind::Low, so_far) => so_far.map_or(reading.value, |so_far| so_far.min(reading.value)),
        };
        found[index] = Some(value);
    }
    COUNTERS.iter().zip(found).filter_map(|(counter, value)| Some((counter.metric, value?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Reading, ReadingPlace};

    fn windows(metric: &str, value: impl Fn(f64) -> f64) -> CounterWindows {
        let mut windows = CounterWindows::default();
        for turn in 0..80 {
            let at = 10.0 * f64::from(turn);
            windows.take(metric, at, value(at));
        }
        windows
    }

    #[test]
    fn a_rate_that_grows_at_the_onset_is_found_and_a_steady_one_is_not() {
        const RETRANSMITS: &str = "node_amazonefa_retrans_pkts";
        let grows = windows(RETRANSMITS, |at| 5.0 * at + if at > 600.0 { 300.0 * (at - 600.0) } else { 0.0 });
        let [moved] = grows.moved(600.0)[..] else { panic!("{:?}", grows.moved(600.0)) };
        assert_eq!(moved.counter.layer, Layer::Network);
        assert!((moved.before - 5.0).abs() < 1.0 && moved.since > 200.0, "{moved:?}");
        assert_eq!(windows(RETRANSMITS, |at| 400.0 * at).moved(600.0), []);
        assert_eq!(
            windows(RETRANSMITS, |at| if at > 600.0 { 40.0 } else { 0.0 }).moved(600.0),
            [],
            "too few"
        );
    }

    #[test]
    fn a_clock_that_falls_is_found_and_a_job_that_just_began_has_no_before() {
        const CLOCK: &str = "DCGM_FI_DEV_SM_CLOCK";
        let falls = windows(CLOCK, |at| if at > 600.0 { 1200.0 } else { 1980.0 });
        assert_eq!(falls.moved(605.0).len(), 1);
        assert_eq!(falls.moved(5.0), []);
        assert_eq!(windows(CLOCK, |at| 1980.0 - (at % 30.0)).moved(600.0), []);
    }

    #[test]
    fn readings_of_a_node_become_one_value_each() {
        let reading = |metric, gpu, value| Reading { metric, place: ReadingPlace::Gpu(gpu), value };
        let readings = [
            reading("DCGM_FI_DEV_SM_CLOCK", 0, 1980.0),
            reading("DCGM_FI_DEV_SM_CLOCK", 1, 1410.0),
            reading("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 0, 2.0),
            reading("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 1, 3.0),
            reading("DCGM_FI_DEV_GPU_TEMP", 1, 60.0),
        ];
        assert_eq!(
            of_readings(readings.into_iter()),
            [("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 5.0), ("DCGM_FI_DEV_SM_CLOCK", 1410.0)]
        );
        let mut windows = CounterWindows::default();
        for at in 0..10_000 {
            windows.take("DCGM_FI_DEV_SM_CLOCK", f64::from(at), 1.0);
        }
        assert!(windows.series.iter().all(|series| series.len() <= KEPT));
    }
}
