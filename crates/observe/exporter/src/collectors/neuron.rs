//! AWS Neuron devices, by the JSON that `neuron-monitor` prints.
//!
//! The command is started once and prints a report every few seconds; its counts are those of a period and are added up here, as
//! neuron-monitor-prometheus does.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use crate::collectors::{Collector, Failed};
use crate::metrics::Metric;
use crate::metrics::host as metric;
use crate::series::{Naming, SeriesBatch, Spot};

/// The longest report that is read.
const LONGEST: u64 = 4 << 20;
/// A report older than this says nothing about now.
const STALE: Duration = Duration::from_secs(30);
/// A command that has not reported for this long hangs, and is started again.
const HANGS: Duration = Duration::from_secs(300);
/// How long to wait before a command that ended is started again.
const START_AGAIN: Duration = Duration::from_secs(60);
const MOST_SERIES: usize = 4096;
/// More often than neuron-monitor can be told to report.
const BETWEEN_REPORTS: Duration = Duration::from_millis(100);

/// One value of a report, with its labels.
#[derive(Debug, Clone, PartialEq)]
pub struct NeuronValue {
    pub metric: &'static Metric,
    pub labels: Vec<(&'static str, String)>,
    pub value: f64,
    /// It counts a period and is to be added up.
    pub is_of_period: bool,
    pub device: Option<u32>,
}

/// Reads one report; nothing where the text is no JSON object.
pub fn values(report: &str) -> Option<Vec<NeuronValue>> {
    let report: Value = serde_json::from_str(report).ok()?;
    report.as_object()?;
    let mut values = Vec::new();
    for runtime in items(&report["neuron_runtime_data"]) {
        of_runtime(runtime, &mut values);
    }
    for device in items(&report["system_data"]["neuron_hw_counters"]["neuron_devices"]) {
        of_device(device, &mut values);
    }
    values.truncate(MOST_SERIES);
    let mut seen = BTreeSet::new();
    values.retain(|value| seen.insert((value.metric.name, value.labels.clone())));
    Some(values)
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn of_runtime(runtime: &Value, values: &mut Vec<NeuronValue>) {
    let tag = match &runtime["neuron_runtime_tag"] {
        Value::String(tag) => tag.clone(),
        other => other.as_u64().map_or(String::new(), |number| number.to_string()),
    };
    let mut put = |metric, label: Option<(&'static str, &str)>, value: Option<f64>, is_of_period| {
        let mut labels = vec![("runtime_tag", tag.clone())];
        labels.extend(label.map(|(key, value)| (key, value.to_owned())));
        let value = value.filter(|value| value.is_finite());
        values.extend(value.map(|value| NeuronValue { metric, labels, value, is_of_period, device: None }));
    };
    let is_failing = runtime["error"].as_str().is_some_and(|error| !error.is_empty());
    put(&metric::NEURON_RUNTIME_ERROR, None, Some(f64::from(u8::from(is_failing))), false);
    let report = &runtime["report"];
    for (core, counters) in fields(&report["neuroncore_counters"]["neuroncores_in_use"]) {
        let percent = counters["neuroncore_utilization"].as_f64();
        put(
            &metric::NEURON_UTILIZATION,
            Some(("neuroncore", core)),
            percent.map(|value| value / 100.0),
            false,
        );
    }
    for (place, bytes) in fields(&report["memory_used"]["neuron_runtime_used_bytes"]) {
        put(&metric::NEURON_MEMORY, Some(("memory_location", place)), bytes.as_f64(), false);
    }
    let stats = &report["execution_stats"];
    for (status, count) in fields(&stats["execution_summary"]) {
        put(&metric::NEURON_STATUS, Some(("status_type", status)), count.as_f64(), true);
    }
    for (kind, count) in fields(&stats["error_summary"]) {
        put(&metric::NEURON_ERRORS, Some(("error_type", kind)), count.as_f64(), true);
    }
    for (percentile, seconds) in fields(&stats["latency_stats"]["total_latency"]) {
        put(&metric::NEURON_LATENCY, Some(("percentile", percentile)), seconds.as_f64(), false);
    }
}

fn of_device(device: &Value, values: &mut Vec<NeuronValue>) {
    let Some(index) = device["neuron_device_index"].as_u64().and_then(|index| u32::try_from(index).ok())
    else {
        return;
    };
    for (kind, count) in fields(device).filter(|(kind, _)| kind.contains("_ecc_")) {
        let labels = vec![("neuron_device_index", index.to_string()), ("event_type", kind.to_owned())];
        values.extend(count.as_f64().map(|value| NeuronValue {
            metric: &metric::NEURON_ECC,
            labels,
            value,
            is_of_period: false,
            device: Some(index),
        }));
    }
}

fn fields(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value))
}

/// The newest report, and when it came.
type Newest = Arc<Mutex<Option<(Instant, Vec<NeuronValue>)>>>;

pub(crate) struct Neuron {
    naming: Naming,
    program: PathBuf,
    child: Option<Child>,
    /// Commands that were killed and have not ended yet.
    killed: Vec<Child>,
    newest: Newest,
    taken: Option<Instant>,
    totals: BTreeMap<(&'static str, String), f64>,
    started: Option<Instant>,
}

impl Neuron {
    pub(crate) fn new(program: PathBuf, naming: Naming) -> Self {
        Self {
            naming,
            program,
            child: None,
            killed: Vec::new(),
            newest: Arc::default(),
            taken: None,
            totals: BTreeMap::new(),
            started: None,
        }
    }

    /// Starts the command, again after a minute when it has ended or hangs.
    fn start(&mut self) -> Result<(), Failed> {
        let is_running = self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        let since = |at: Option<Instant>| at.map(|at| at.elapsed());
        let silence = since(self.heard().or(self.started)).unwrap_or_default();
        if is_running && silence < HANGS {
            return Ok(());
        }
        self.end();
        if since(self.started).is_some_and(|since| since < START_AGAIN) {
            return Err(Failed);
        }
        self.started = Some(Instant::now());
        let mut command = Command::new(&self.program);
        // In a group of its own: what it starts dies with it.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn().map_err(|_| Failed)?;
        let output = child.stdout.take().ok_or(Failed)?;
        let newest = Arc::clone(&self.newest);
        let reader = thread::Builder::new().name("neuron".into());
        reader.spawn(move || read_reports(output, &newest, BETWEEN_REPORTS)).map_err(|_| Failed)?;
        self.child = Some(child);
        Ok(())
    }

    /// When the last report of this command came.
    fn heard(&self) -> Option<Instant> {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        newest.as_ref().map(|(at, _)| *at).filter(|at| self.started.is_none_or(|started| *at >= started))
    }

    /// It is not waited for: a command in the middle of a call to a broken driver cannot even be killed.
    fn end(&mut self) {
        if let Some(child) = self.child.take() {
            let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
            self.killed.push(child);
        }
        self.killed.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}

/// Reads lines until there are no more, at most one in so much time: a command that never stops talking waits for us.
fn read_reports(output: impl Read, newest: &Newest, between: Duration) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut output).take(LONGEST).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if let Some(values) = values(&String::from_utf8_lossy(&line)) {
            *newest.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), values));
        }
        thread::sleep(between);
    }
}

impl Drop for Neuron {
    fn drop(&mut self) {
        self.end();
    }
}

impl Collector for Neuron {
    fn name(&self) -> &'static str {
        "neuron"
    }

    fn collect(&mut self, to: &mut SeriesBatch) -> Result<(), Failed> {
        self.start()?;
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some((at, values)) = newest.filter(|(at, _)| at.elapsed() < STALE) else {
            // At first it takes a moment; later silence means that it hangs.
            let is_new = self.started.is_some_and(|started| started.elapsed() < STALE);
            return if is_new { Ok(()) } else { Err(Failed) };
        };
        let is_new = self.taken.replace(at) != Some(at);
        let mut totals = BTreeMap::new();
        for value in values {
            let pairs: Vec<(&str, &str)> =
                value.labels.iter().map(|(key, text)| (*key, text.as_str())).collect();
            let labels = self.naming.labels(&pairs);
            let mut number = value.value;
            if value.is_of_period {
                let key = (value.metric.name, labels.to_string());
                number =
                    self.totals.get(&key).copied().unwrap_or(0.0) + if is_new { value.value } else { 0.0 };
                totals.insert(key, number);
            }
            to.put(value.metric, &labels, &value.device.map_or(Spot::Node, Spot::Gpu), number);
        }
        // Those of runtimes that are gone are forgotten.
        self.totals = totals;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bedplate_testkit::{wait_for, wait_until};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::HostnameLabel;

    /// A command that starts another and says nothing for ever is given up with everything it started.
    #[test]
    fn a_monitor_that_hangs_is_told_and_ended_with_its_children() {
        let folder = std::env::temp_dir().join(format!("bedplate-neuron-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (program, pid) = (folder.join("monitor"), folder.join("pid"));
        // Another process writes it: what this one has open when a test thread forks cannot be executed.
        let script = format!("#!/bin/sh\nsleep 600 &\necho $! > {}\nwait\n", pid.display());
        let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
        let written = Command::new("sh").args(["-c", write]).arg(&program).arg(script).status();
        assert!(written.unwrap().success());
        let mut neuron = Neuron::new(program, Naming::new("n1", HostnameLabel::Capital));
        let child = wait_for("the command to start", || {
            neuron.collect(&mut SeriesBatch::default()).unwrap();
            std::fs::read_to_string(&pid).ok()?.trim().parse::<i32>().ok()
        });
        assert_eq!(neuron.collect(&mut SeriesBatch::default()), Ok(()), "at first it may be silent");
        neuron.started = Instant::now().checked_sub(STALE);
        assert_eq!(neuron.collect(&mut SeriesBatch::default()), Err(Failed));
        neuron.end();
        let is_there = || nix::sys::signal::kill(Pid::from_raw(child), None).is_ok() && !is_zombie(child);
        wait_until("its child is gone", || !is_there());
        std::fs::remove_dir_all(folder).unwrap();
    }

    fn is_zombie(pid: i32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        status.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
    }

    proptest! {
        /// What is written as neuron-monitor writes it is read as it was.
        #[test]
        fn a_report_is_read_as_it_was_written(
            cores in prop::collection::btree_map(0u32..128, 0.0f64..100.0, 0..8),
            bytes in 0u64..1 << 50,
            completed in 0u32..1_000_000,
            ecc in 0u32..1000,
        ) {
            let in_use: serde_json::Map<String, Value> = cores
                .iter()
                .map(|(core, percent)| (core.to_string(), json!({ "neuroncore_utilization": percent })))
                .collect();
            let report = json!({
                "neuron_runtime_data": [{ "neuron_runtime_tag": "7", "error": "", "report": {
                    "neuroncore_counters": { "neuroncores_in_use": in_use },
                    "memory_used": { "neuron_runtime_used_bytes": { "host": bytes } },
                    "execution_stats": { "execution_summary": { "completed": completed } },
                }}],
                "system_data": { "neuron_hw_counters": { "neuron_devices": [
                    { "neuron_device_index": 3, "mem_ecc_corrected": ecc } ] } },
            });
            let read = super::values(&report.to_string()).expect("it is a report");
            let of = |name: &str| -> Vec<f64> {
                read.iter().filter(|value| value.metric.name == name).map(|value| value.value).collect()
            };
            prop_assert_eq!(of("neuroncore_utilization_ratio").len(), cores.len());
            prop_assert_eq!(of("neuron_runtime_memory_used_bytes"), [bytes as f64]);
            prop_assert_eq!(of("execution_status_total"), [f64::from(completed)]);
            prop_assert_eq!(of("hardware_ecc_events_total"), [f64::from(ecc)]);
        }

        #[test]
        fn arbitrary_bytes_never_harm(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let newest = Newest::default();
            read_reports(&bytes[..], &newest, Duration::ZERO);
            let _ = super::values(&String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn a_report_gives_utilisation_memory_latency_and_errors() {
        let report = r#"{"neuron_runtime_data":[{"pid":1,"neuron_runtime_tag":"7","error":"","report":{
            "execution_stats":{"error_summary":{"generic":1},"execution_summary":{"completed":120},
              "latency_stats":{"total_latency":{"p50":0.002}}},
            "memory_used":{"neuron_runtime_used_bytes":{"host":1000,"neuron_device":2000}},
            "neuroncore_counters":{"neuroncores_in_use":{"0":{"neuroncore_utilization":42.5}}}}}],
            "system_data":{"neuron_hw_counters":{"neuron_devices":[{"neuron_device_index":3,"mem_ecc_uncorrected":2}]}}}"#;
        let values = values(report).unwrap();
        let find = |name: &str| values.iter().find(|value| value.metric.name == name).unwrap();
        assert_eq!(find("neuroncore_utilization_ratio").value, 0.425);
        assert!(find("execution_status_total").is_of_period);
        assert_eq!(find("hardware_ecc_events_total").device, Some(3));
        assert_eq!(values.len(), 8);
    }

    #[test]
    fn what_is_no_report_gives_nothing() {
        assert_eq!(super::values(""), None);
        assert_eq!(super::values("[1,2]"), None);
        assert_eq!(super::values("{}"), Some(Vec::new()));
        assert_eq!(super::values(r#"{"neuron_runtime_data":{"a":1},"system_data":3}"#), Some(Vec::new()));
    }
}
