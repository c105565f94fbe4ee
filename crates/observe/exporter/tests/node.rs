//! A whole exporter over a tree of a pretended host, with a pretended NVML.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bedplate_exporter::{Exporter, ExporterOptions, HostnameLabel, JobOnGpu, Root, ScrapeTarget};
use bedplate_fakenvml::FakeNvml;
use bedplate_finding::{Action, OpenFinding};
use bedplate_testkit::wait_to_see;
use serde_json::json;

/// A host in a folder that goes with it.
struct Host {
    folder: PathBuf,
    nvml: FakeNvml,
}

impl Host {
    fn new(name: &str, gpus: usize) -> Self {
        let folder = std::env::temp_dir().join(format!("bedplate-export-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("dev")).unwrap();
        fs::write(folder.join("dev/kmsg"), "").unwrap();
        let nvml = FakeNvml::install(&folder, gpus).unwrap();
        Self { folder, nvml }
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn log(&self, text: &str) {
        let mut log = fs::OpenOptions::new().append(true).open(self.folder.join("dev/kmsg")).unwrap();
        writeln!(log, "4,1,1000,-;{text}").unwrap();
    }

    fn options(&self) -> ExporterOptions {
        let mut options = ExporterOptions::new("n1");
        options.root = Root::at(&self.folder);
        options.interval = Duration::from_millis(50);
        options
    }

    fn start(&self) -> Exporter {
        Exporter::start(self.options()).unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Waits until the text is as wanted.
fn text_when(exporter: &Exporter, wanted: impl Fn(&str) -> bool) -> String {
    wait_to_see("the text is as wanted", || exporter.text(), |text| wanted(text))
}

fn value(text: &str, series: &str) -> Option<f64> {
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    let wanted: Vec<&str> =
        labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty()).collect();
    let line = text.lines().find(|line| {
        let (head, _) = line.rsplit_once(' ').unwrap_or((line, ""));
        let (found, labels) = head.split_once('{').unwrap_or((head, ""));
        found == name && wanted.iter().all(|label| labels.contains(label))
    })?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[test]
fn gpus_are_told_in_the_units_and_labels_of_dcgm_exporter() {
    let host = Host::new("units", 2);
    let script = json!({ "gpus": [
        { "power_w": 412.5, "memory_used": 5_368_709_120_u64, "thermal_violation_ns": 7_000_000_000_u64,
          "sm_percent": 87.5, "pcie_tx_mib": 100, "remapped_uncorrectable": 3, "utilization": 99 },
        {},
    ] });
    host.nvml.write(&script).unwrap();
    let exporter = host.start();
    let text = text_when(&exporter, |text| text.contains("DCGM_FI_PROF_SM_ACTIVE"));
    let of = |series: &str| value(&text, series).unwrap_or_else(|| panic!("no {series} in\n{text}"));
    assert_eq!(of("DCGM_FI_DEV_POWER_USAGE{gpu=\"0\"}"), 412.5);
    assert_eq!(of("DCGM_FI_DEV_FB_USED{gpu=\"0\"}"), 5120.0);
    assert_eq!(of("DCGM_FI_DEV_THERMAL_VIOLATION{gpu=\"0\"}"), 7e9);
    assert_eq!(of("DCGM_FI_PROF_SM_ACTIVE{gpu=\"0\"}"), 0.875);
    assert_eq!(of("DCGM_FI_PROF_PCIE_TX_BYTES{gpu=\"0\"}"), 104_857_600.0);
    assert_eq!(of("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{gpu=\"0\"}"), 3.0);
    assert_eq!(of("DCGM_FI_DEV_GPU_UTIL{gpu=\"1\"}"), 0.0);
    assert_eq!(of("bedplate_gpus_answering"), 2.0);
    let line = text.lines().find(|line| line.starts_with("DCGM_FI_DEV_GPU_TEMP{gpu=\"0\"")).unwrap();
    assert_eq!(
        line,
        "DCGM_FI_DEV_GPU_TEMP{gpu=\"0\",UUID=\"GPU-fa4e0000-0000-0000-0000-000000000000\",pci_bus_id=\"00000000:10:00.0\",device=\"nvidia0\",modelName=\"NVIDIA H100 80GB HBM3\",Hostname=\"n1\"} 35"
    );
}

#[test]
fn what_a_gpu_does_not_support_is_absent_and_no_blank_value_leaks() {
    let host = Host::new("absent", 1);
    let blank = json!({ "gpus": [
        { "memory_temperature": null, "encoder": null, "gpm": 0, "energy_mj": 9_223_372_036_854_775_794_u64,
          "fails": { "nvmlDeviceGetPowerUsage": 4 } }
    ] });
    host.nvml.write(&blank).unwrap();
    let exporter = host.start();
    let text = text_when(&exporter, |text| text.contains("DCGM_FI_DEV_GPU_TEMP{"));
    for name in ["MEMORY_TEMP", "ENC_UTIL", "TOTAL_ENERGY_CONSUMPTION", "POWER_USAGE", "RETIRED_SBE"] {
        assert!(!text.contains(&format!("DCGM_FI_DEV_{name}{{")), "{name}\n{text}");
    }
    assert!(!text.contains("DCGM_FI_PROF_"), "{text}");
    assert!(!text.contains("9223372036854775"), "{text}");
}

#[test]
fn an_old_driver_without_a_function_lacks_only_its_readings() {
    let host = Host::new("old", 1);
    host.nvml.without("nvmlGpmSampleGet").unwrap();
    host.nvml.without("nvmlDeviceGetRemappedRows").unwrap();
    let exporter = host.start();
    let text = text_when(&exporter, |text| text.contains("DCGM_FI_DEV_GPU_TEMP{"));
    assert!(!text.contains("DCGM_FI_PROF_") && !text.contains("REMAPPED_ROWS"), "{text}");
}

#[test]
fn a_host_without_a_driver_has_the_rest() {
    let host = Host::new("bare", 0);
    fs::remove_file(host.nvml.library()).unwrap();
    host.file("proc/loadavg", "0.52 0.58 0.59 1/467 12345\n");
    let exporter = host.start();
    let text = text_when(&exporter, |text| text.contains("node_load1"));
    assert_eq!(value(&text, "node_load1"), Some(0.52));
    let text = text_when(&exporter, |text| value(text, "bedplate_collector_up{collector=\"gpu\"}").is_some());
    assert_eq!(value(&text, "bedplate_collector_up{collector=\"gpu\"}"), Some(1.0));
    assert!(!text.contains("DCGM_"), "{text}");
}

#[test]
fn a_driver_that_does_not_work_is_told_from_one_that_is_not_there() {
    let host = Host::new("broken", 1);
    host.nvml.change(|script| script["fails"] = json!({ "nvmlInit_v2": 9 })).unwrap();
    let exporter = host.start();
    text_when(&exporter, |text| {
        value(text, "bedplate_collector_errors_total{collector=\"gpu\"}") > Some(0.0)
    });
    // A library that is something else.
    let other = Host::new("foreign", 1);
    let libc = ["/lib/x86_64-linux-gnu/libm.so.6", "/usr/lib/libm.so.6", "/lib64/libm.so.6"];
    let Some(foreign) = libc.iter().map(Path::new).find(|path| path.exists()) else {
        println!("SKIPPED: no libm to take for NVML");
        return;
    };
    let mut options = other.options();
    options.nvml = Some(foreign.to_owned());
    let exporter = Exporter::start(options).unwrap();
    text_when(&exporter, |text| {
        value(text, "bedplate_collector_errors_total{collector=\"gpu\"}") > Some(0.0)
    });
}

#[test]
fn a_lost_gpu_is_told_as_lost_and_found() {
    let host = Host::new("lost", 2);
    let exporter = host.start();
    text_when(&exporter, |text| value(text, "bedplate_gpus_answering") == Some(2.0));
    host.nvml.change(|script| script["gpus"][1]["lost"] = json!(true)).unwrap();
    let text = text_when(&exporter, |text| value(text, "bedplate_gpu_lost{gpu=\"1\"}") == Some(1.0));
    assert_eq!(value(&text, "bedplate_gpus_answering"), Some(1.0));
    assert!(!text.contains("DCGM_FI_DEV_GPU_TEMP{gpu=\"1\""), "{text}");
    assert!(text.contains("rule=\"gpu/lost\""), "{text}");
    assert_eq!(exporter.findings()[0].finding.action, Action::Reboot);
}

#[test]
fn xids_of_the_driver_and_of_the_kernel_log_are_counted_once() {
    let host = Host::new("xid", 2);
    let heard: Arc<Mutex<Vec<OpenFinding>>> = Arc::default();
    let mut options = host.options();
    let into = Arc::clone(&heard);
    options.on_findings = Some(Arc::new(move |findings| *into.lock().unwrap() = findings));
    let exporter = Exporter::start(options).unwrap();
    // What stands in the log before it is opened is no news.
    let text = text_when(&exporter, |text| {
        text.contains("DCGM_FI_DEV_XID_ERRORS{")
            && value(text, "bedplate_collector_up{collector=\"kernel-log\"}") == Some(1.0)
    });
    assert_eq!(value(&text, "DCGM_FI_DEV_XID_ERRORS{gpu=\"1\"}"), Some(0.0));
    host.nvml.raise_xid(1, 79).unwrap();
    host.log("NVRM: Xid (PCI:0000:11:00): 79, pid=77, name=python, GPU has fallen off the bus.");
    host.log("NVRM: Xid (PCI:0000:10:00): 13, pid=78, name=python, Graphics Exception");
    let text = text_when(&exporter, |text| {
        value(text, "DCGM_EXP_XID_ERRORS_COUNT{gpu=\"0\",xid=\"13\"}").is_some()
            && value(text, "DCGM_EXP_XID_ERRORS_COUNT{gpu=\"1\",xid=\"79\"}").is_some()
    });
    assert_eq!(value(&text, "DCGM_FI_DEV_XID_ERRORS{gpu=\"1\"}"), Some(79.0));
    // Whichever came second is the same one. What the driver says later comes after what it said before.
    host.nvml.raise_xid(0, 31).unwrap();
    let text =
        text_when(&exporter, |text| value(text, "DCGM_EXP_XID_ERRORS_COUNT{gpu=\"0\",xid=\"31\"}").is_some());
    assert_eq!(value(&text, "DCGM_EXP_XID_ERRORS_COUNT{gpu=\"1\",xid=\"79\"}"), Some(1.0));
    let heard = heard.lock().unwrap();
    let rules: Vec<&str> = heard.iter().map(|open| open.finding.rule.as_str()).collect();
    assert_eq!(rules, ["gpu/xid-13", "gpu/xid-31", "gpu/xid-79"]);
}

#[test]
fn series_of_a_gpu_carry_the_job_that_has_it() {
    let host = Host::new("jobs", 2);
    host.file("jobs/1", "4711\n");
    let mut options = host.options();
    options.job_folder = Some(host.folder.join("jobs"));
    options.hostname_label = HostnameLabel::Both;
    let exporter = Exporter::start(options).unwrap();
    let job = JobOnGpu { job: "12".into(), rank: Some("3".into()) };
    exporter.set_jobs([(0, job)].into());
    let wanted = "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",hpc_job=\"12\",rank=\"3\",Hostname=\"n1\",hostname=\"n1\"}";
    let text = text_when(&exporter, |text| value(text, wanted).is_some());
    assert!(value(&text, "DCGM_FI_DEV_GPU_UTIL{gpu=\"1\",hpc_job=\"4711\"}").is_some(), "{text}");
    exporter.set_jobs([].into());
    text_when(&exporter, |text| {
        let line = text.lines().find(|line| line.starts_with("DCGM_FI_DEV_GPU_UTIL{gpu=\"0\""));
        line.is_some_and(|line| !line.contains("hpc_job"))
    });
}

#[test]
fn network_cards_lustre_and_disks_are_read_from_their_files() {
    let host = Host::new("files", 0);
    host.file("sys/class/infiniband/rdmap0s6/ports/1/hw_counters/send_wrs", "10\n");
    host.file("sys/class/infiniband/rdmap0s6/ports/1/hw_counters/retrans_pkts", "42\n");
    host.file("sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", "1000\n");
    host.file("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    host.file("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
    host.file(
        "sys/kernel/debug/lustre/llite/fsx-ffff9a/stats",
        "snapshot_time 1.0 secs.nsecs\nread_bytes 2 samples [bytes] 1 4096 8192\nopen 3 samples [usecs] 1 2 3000000\n",
    );
    host.file("sys/fs/lustre/osc/fsx-OST0000-osc-ffff9a/import", "import:\n    state: DISCONN\n");
    host.file("sys/class/nvme/nvme0/state", "dead\n");
    host.file(
        "proc/pressure/io",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 total=1000000\n",
    );
    host.file("proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:    500 kB\n");
    host.file("proc/diskstats", " 259 0 nvme0n1 5 0 16 250 7 0 8 100 0 300 350 0 0 0 0\n 259 1 nvme0n1p1 5 0 16 250 7 0 8 100 0 300 350\n");
    let exporter = host.start();
    let text = text_when(&exporter, |text| {
        ["lustre_read_bytes_total", "node_amazonefa_retrans_pkts"].iter().all(|name| text.contains(name))
    });
    let of = |series: &str| value(&text, series).unwrap_or_else(|| panic!("no {series} in\n{text}"));
    assert_eq!(of("node_amazonefa_retrans_pkts{device=\"rdmap0s6\",port=\"1\"}"), 42.0);
    assert_eq!(of("node_infiniband_port_data_transmitted_bytes_total{device=\"mlx5_0\"}"), 4000.0);
    assert_eq!(of("node_infiniband_rate_bytes_per_second"), 50e9);
    assert_eq!(of("lustre_read_bytes_total{target=\"fsx\"}"), 8192.0);
    assert_eq!(of("bedplate_lustre_operation_seconds_total{operation=\"open\"}"), 3.0);
    assert_eq!(of("bedplate_lustre_target_connected{target=\"fsx-OST0000\"}"), 0.0);
    assert_eq!(of("bedplate_nvme_live{device=\"nvme0\"}"), 0.0);
    assert_eq!(of("node_pressure_io_stalled_seconds_total"), 1.0);
    assert_eq!(of("node_memory_MemAvailable_bytes"), 512_000.0);
    assert_eq!(of("node_disk_read_bytes_total{device=\"nvme0n1\"}"), 8192.0);
    assert!(!text.contains("nvme0n1p1"), "{text}");
}

#[test]
fn metrics_of_ranks_are_passed_on_and_a_silent_rank_holds_nobody_up() {
    let host = Host::new("ranks", 1);
    let (good, silent) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = [&good, &silent].map(|listener| listener.local_addr().unwrap().to_string());
    std::thread::spawn(move || {
        for mut stream in good.incoming().flatten() {
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(
                b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"m\"} 4\n",
            );
        }
    });
    let mut options = host.options();
    options.targets = addresses
        .iter()
        .zip(["0", "1"])
        .map(|(address, rank)| ScrapeTarget::parse(&format!("{address},job=9,rank={rank}")).unwrap())
        .collect();
    let exporter = Exporter::start(options).unwrap();
    let text = text_when(&exporter, |text| text.contains("vllm:num_requests_running{"));
    assert_eq!(
        value(&text, "vllm:num_requests_running{hpc_job=\"9\",rank=\"0\",Hostname=\"n1\"}"),
        Some(4.0)
    );
    assert_eq!(value(&text, "bedplate_target_up{rank=\"1\"}"), Some(0.0));
    assert!(text.contains("DCGM_FI_DEV_GPU_TEMP{"), "{text}");
    drop(silent);
}

#[test]
fn every_series_is_in_the_table_and_every_metric_stands_together() {
    let host = Host::new("table", 3);
    host.nvml.raise_xid(0, 63).unwrap();
    let exporter = host.start();
    let text = text_when(&exporter, |text| text.contains("DCGM_FI_PROF_SM_ACTIVE"));
    let mut seen: Vec<&str> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let name = rest.split(' ').next().unwrap();
            assert!(!seen.contains(&name), "{name} twice");
            seen.push(name);
            let metric = bedplate_exporter::metrics::all().find(|metric| metric.name == name).unwrap();
            assert_eq!(rest, format!("{name} {}", metric.kind.name()));
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            assert_eq!(seen.last(), Some(&name), "{line}");
            let metric = bedplate_exporter::metrics::all().find(|metric| metric.name == name).unwrap();
            for label in line.split(['{', ',']).skip(1).filter_map(|pair| pair.split_once("=\"")) {
                assert!(metric.labels.contains(&label.0), "{name} has the label {}", label.0);
            }
        }
    }
}

#[test]
fn energy_is_there_for_the_jobs_that_used_it() {
    let host = Host::new("energy", 1);
    let exporter = host.start();
    text_when(&exporter, |text| text.contains("TOTAL_ENERGY"));
    assert!(exporter.energy_mj()[&0] >= 1_000_000);
}
