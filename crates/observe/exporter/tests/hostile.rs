//! The exporter in a world that means harm: pipes in the place of files, ranks that never answer, flood, lie or speak garbage.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use bedplate_exporter::{Exporter, ExporterOptions, Root, ScrapeTarget};
use bedplate_fakenvml::FakeNvml;
use bedplate_record::{Exposure, MetricsServer, RecordError};
use bedplate_testkit::{Hanging, HangingMount, wait_for, wait_to_see, wait_until};
use nix::sys::stat::Mode;

const PATIENCE: Duration = Duration::from_secs(60);

/// A host in a folder that goes with it.
struct Host(PathBuf);

impl Host {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("bedplate-hostile-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("dev")).unwrap();
        fs::write(folder.join("dev/kmsg"), "").unwrap();
        Self(folder)
    }

    fn path(&self, path: &str) -> PathBuf {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn pipe(&self, path: &str) {
        nix::unistd::mkfifo(&self.path(path), Mode::S_IRWXU).unwrap();
    }

    fn options(&self) -> ExporterOptions {
        let mut options = ExporterOptions::new("n1");
        options.root = Root::at(&self.0);
        options.interval = Duration::from_millis(50);
        options
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Waits until the text is as wanted.
fn text_when(exporter: &Exporter, wanted: impl Fn(&str) -> bool) -> String {
    wait_to_see("the text is as wanted", || exporter.text(), |text| wanted(text))
}

/// A rank that answers every request with the same bytes, as often as `times`.
fn rank(bytes: &'static [u8], times: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 1024]);
            let _ = (0..times).try_for_each(|_| stream.write_all(bytes));
        }
    });
    address
}

fn targets(addresses: &[String]) -> Vec<ScrapeTarget> {
    let numbered = addresses.iter().enumerate();
    numbered
        .map(|(rank, address)| ScrapeTarget::parse(&format!("{address},job=9,rank={rank}")).unwrap())
        .collect()
}

/// What the real promtool says; it also has opinions on names, which are others' own.
fn is_legal(text: &str) {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let Ok(mut promtool) = command.spawn() else {
        return println!("SKIPPED: promtool is not installed");
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_ne!(output.status.code(), Some(1), "{told}\nof\n{text}");
}

#[test]
fn pipes_and_devices_in_the_place_of_files_hold_nothing_up() {
    let host = Host::new("pipes");
    for path in [
        "proc/pressure/cpu",
        "proc/meminfo",
        "proc/stat",
        "proc/diskstats",
        "proc/vmstat",
        "proc/self/mounts",
        "sys/class/infiniband/mlx5_0/ports/1/state",
        "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data",
        "sys/class/infiniband/rdmap0/ports/1/hw_counters/send_wrs",
        "sys/kernel/debug/lustre/llite/fsx-ffff9a/stats",
        "sys/fs/lustre/osc/fsx-OST0000-osc-ffff9a/import",
        "sys/class/nvme/nvme0/state",
        "sys/bus/pci/devices/0000:10:00.0/vendor",
        "sys/devices/system/edac/mc/mc0/ue_count",
        "libnvidia-ml.so.1",
        "jobs/0",
    ] {
        host.pipe(path);
    }
    symlink("/dev/zero", host.path("sys/class/nvme/nvme1/state")).unwrap();
    symlink("/dev/zero", host.path("jobs/1")).unwrap();
    fs::write(host.path("proc/loadavg"), "0.52 0.58 0.59 1/467 12345\n").unwrap();
    let mut options = host.options();
    options.job_folder = Some(host.0.join("jobs"));
    let exporter = Exporter::start(options).unwrap();
    // Each collector has finished a reading and says so.
    let text = text_when(&exporter, |text| {
        ["host", "network", "lustre", "gpu", "filesystem"].iter().all(|name| {
            text.contains(&format!("bedplate_collector_up{{collector=\"{name}\",Hostname=\"n1\"}} 1"))
        })
    });
    assert!(text.contains("node_load1{Hostname=\"n1\"} 0.52"), "{text}");
    is_legal(&text);
}

#[test]
fn a_mount_that_hangs_is_told_while_everything_else_is_read() {
    let host = Host::new("hanging");
    let dead = host.path("dead/x").parent().unwrap().to_owned();
    let Some(mount) = HangingMount::at(&dead, "s3fs", Hanging::Everything) else { return };
    fs::write(host.path("proc/self/mounts"), "a / ext4 rw 0 0\nb /dead fuse.s3fs rw 0 0\n").unwrap();
    fs::write(host.path("proc/loadavg"), "0.52 0.58 0.59 1/467 12345\n").unwrap();
    let mut options = host.options();
    // Files of jobs lie there too.
    options.job_folder = Some(dead.join("jobs"));
    FakeNvml::install(&host.0, 1).unwrap();
    let exporter = Exporter::start(options).unwrap();
    let stalled = "bedplate_mount_stalled_seconds{device=\"b\",fstype=\"fuse.s3fs\",mountpoint=\"/dead\",Hostname=\"n1\"} ";
    let value = |text: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(stalled));
        line.and_then(|value| value.parse().ok()).unwrap_or_default()
    };
    let text = text_when(&exporter, |text| value(text) > 0.0);
    assert!(text.contains("node_load1{Hostname=\"n1\"} 0.52"), "{text}");
    assert!(text.contains("node_filesystem_avail_bytes{device=\"a\""), "{text}");
    is_legal(&text);
    drop(mount);
    text_when(&exporter, |text| text.contains(stalled) && value(text) == 0.0);
}

/// Files that no kernel has: garbage, endless, of terabytes, folders and loops in their place, or nothing at all.
#[test]
fn odd_files_of_the_kernel_harm_nothing() {
    type Put = fn(&Path);
    let odd: [(&str, Put); 6] = [
        ("nothing", |_| {}),
        ("garbage", |path| {
            fs::write(path, "\u{0}\u{7f} 99999999999999999999 -1 nan \u{fffd}\n".repeat(9_000)).unwrap()
        }),
        ("one line", |path| fs::write(path, "9".repeat(3 << 20)).unwrap()),
        ("terabytes", |path| fs::File::create(path).unwrap().set_len(1 << 40).unwrap()),
        ("folder", |path| fs::create_dir(path).unwrap()),
        ("loop", |path| symlink(path, path).unwrap()),
    ];
    for (name, put) in odd {
        let host = Host::new(&format!("odd-{}", name.replace(' ', "-")));
        for path in [
            "proc/pressure/cpu",
            "proc/loadavg",
            "proc/meminfo",
            "proc/stat",
            "proc/diskstats",
            "proc/vmstat",
            "proc/self/mounts",
            "sys/class/infiniband/mlx5_0/ports/1/state",
            "sys/class/infiniband/mlx5_0/ports/1/rate",
            "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data",
            "sys/kernel/debug/lustre/llite/fsx-ffff9a/stats",
            "sys/class/nvme/nvme0/state",
            "sys/bus/pci/devices/0000:10:00.0/vendor",
            "sys/devices/system/edac/mc/mc0/ue_count",
        ] {
            put(&host.path(path));
        }
        fs::write(host.path("proc/uptime"), "1.0 1.0\n").unwrap();
        let exporter = Exporter::start(host.options()).unwrap();
        let text = text_when(&exporter, |text| {
            ["host", "network", "lustre", "filesystem"].iter().all(|collector| {
                text.contains(&format!(
                    "bedplate_collector_up{{collector=\"{collector}\",Hostname=\"n1\"}} 1"
                ))
            })
        });
        is_legal(&text);
        println!("{name}: {} lines", text.lines().count());
    }
}

#[test]
fn a_pipe_among_the_files_of_jobs_takes_no_gpu_away() {
    let host = Host::new("job-pipe");
    FakeNvml::install(&host.0, 2).unwrap();
    host.pipe("jobs/0");
    let mut options = host.options();
    options.job_folder = Some(host.0.join("jobs"));
    let exporter = Exporter::start(options).unwrap();
    text_when(&exporter, |text| text.contains("DCGM_FI_DEV_GPU_TEMP{gpu=\"1\""));
}

const GOOD: &[u8] =
    b"HTTP/1.0 200 OK\r\n\r\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 4\n";
/// Names of the exporter's own with other types, labels that it adds itself, one series twice, and what is no text at all.
const LIES: &[u8] = b"HTTP/1.0 200 OK\r\n\r\n# TYPE DCGM_FI_DEV_GPU_TEMP counter\nDCGM_FI_DEV_GPU_TEMP{gpu=\"0\",Hostname=\"n1\"} 99\n\
# TYPE bedplate_finding histogram\nbedplate_finding{rule=\"gpu/lost\",action=\"replace\"} 1\n\
x{rank=\"7\",Hostname=\"other\"} NaN\nx{rank=\"7\",Hostname=\"other\"} 2\ny{a=\"1\",a=\"2\"} 1\nz 1e999\nw{a:b=\"1\"} 1\nv{a=\"\xff\xfe\0\"} 1\n\
# HELP u \\x\nu +Inf\n";
const FLOOD: &[u8] = &[b'x'; 1 << 20];
const HEAD: &[u8] = b"HTTP/1.0 200 OK\r\n\r\n";

#[test]
fn ranks_that_flood_lie_or_fall_silent_harm_neither_the_node_nor_each_other() {
    let host = Host::new("ranks");
    FakeNvml::install(&host.0, 1).unwrap();
    // It takes connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = [
        rank(GOOD, 1),
        silent.local_addr().unwrap().to_string(),
        rank(LIES, 1),
        rank(FLOOD, 100),
        rank(HEAD, 1_000_000),
        rank(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 1),
        "127.0.0.1:1".to_owned(),
    ];
    let mut options = host.options();
    options.targets = targets(&addresses);
    // One that is named twice is asked once.
    options.targets.push(options.targets[0].clone());
    let exporter = Exporter::start(options).unwrap();
    let text =
        text_when(&exporter, |text| text.contains("vllm:num_requests_running{") && text.contains("\nx{"));
    is_legal(&text);
    let up = |rank: usize| {
        let labels = format!(
            "target=\"http://{}/metrics\",hpc_job=\"9\",rank=\"{rank}\",Hostname=\"n1\"",
            addresses[rank]
        );
        let line = format!("bedplate_target_up{{{labels}}} ");
        let values: Vec<&str> = text.lines().filter_map(|text| text.strip_prefix(line.as_str())).collect();
        assert_eq!(values.len(), 1, "{line}\n{text}");
        values[0] == "1"
    };
    assert!(up(0) && up(2), "{text}");
    assert!(![1, 3, 5, 6].iter().any(|rank| up(*rank)), "{text}");
    assert!(text.contains(
        "x{exported_rank=\"7\",exported_Hostname=\"other\",hpc_job=\"9\",rank=\"2\",Hostname=\"n1\"} NaN\n"
    ));
    assert!(!text.contains("bedplate_finding{"), "{text}");
    let heads: Vec<&str> =
        text.lines().filter(|line| line.starts_with("# TYPE DCGM_FI_DEV_GPU_TEMP ")).collect();
    assert_eq!(heads, ["# TYPE DCGM_FI_DEV_GPU_TEMP gauge"]);
    drop(silent);
}

#[test]
fn a_file_system_that_is_mounted_twice_is_told_once() {
    let host = Host::new("twice");
    for mount in ["fsx-ffff9a", "fsx-ffff9b"] {
        let stats = "read_bytes 2 samples [bytes] 1 4096 8192\nopen 3 samples [usecs] 1 2 3000000\n";
        fs::write(host.path(&format!("sys/kernel/debug/lustre/llite/{mount}/stats")), stats).unwrap();
        let folder = format!("sys/fs/lustre/osc/fsx-OST0000-osc-{}", mount.trim_start_matches("fsx-"));
        let state = if mount.ends_with('a') { "FULL" } else { "DISCONN" };
        fs::write(host.path(&format!("{folder}/import")), format!("import:\n    state: {state}\n")).unwrap();
    }
    let exporter = Exporter::start(host.options()).unwrap();
    let text = text_when(&exporter, |text| text.contains("lustre_read_bytes_total{"));
    is_legal(&text);
    assert!(
        text.contains("lustre_read_bytes_total{component=\"client\",target=\"fsx\",Hostname=\"n1\"} 16384\n"),
        "{text}"
    );
    let connected = "bedplate_lustre_target_connected{component=\"client\",target=\"fsx-OST0000\",type=\"osc\",Hostname=\"n1\"}";
    assert!(text.contains(&format!("{connected} 0\n")), "{text}");
}

#[test]
fn promtool_reads_everything_that_a_whole_node_says() {
    let host = Host::new("whole");
    let nvml = FakeNvml::install(&host.0, 8).unwrap();
    fs::write(host.path("proc/loadavg"), "0.52 0.58 0.59 1/467 12345\n").unwrap();
    fs::write(host.path("sys/class/infiniband/rdmap0/ports/1/hw_counters/send_wrs"), "10\n").unwrap();
    let mut options = host.options();
    // A name that needs escaping.
    options.node = "n\"1\\\n".to_owned();
    let exporter = Exporter::start(options).unwrap();
    text_when(&exporter, |text| text.contains("DCGM_FI_DEV_XID_ERRORS{"));
    nvml.raise_xid(3, 79).unwrap();
    let text = text_when(&exporter, |text| {
        text.contains("bedplate_finding{") && text.contains("DCGM_FI_PROF_SM_ACTIVE{")
    });
    is_legal(&text);
}

fn get(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: n1\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn two_exporters_on_one_port_are_one_and_a_clear_error() {
    let host = Host::new("port");
    let exporter = Exporter::start(host.options()).unwrap();
    let first =
        MetricsServer::start("127.0.0.1:0".parse().unwrap(), Exposure::Loopback, exporter.reader()).unwrap();
    let second = MetricsServer::start(first.address(), Exposure::Loopback, exporter.reader());
    assert!(matches!(second, Err(RecordError::Listen { .. })));
    // The first one goes on, while clients come that say nothing.
    let quiet: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(first.address()).unwrap()).collect();
    assert!(get(first.address()).contains("bedplate_collector_up"));
    drop(quiet);
}

#[test]
fn an_exporter_that_ends_leaves_no_monitor_behind() {
    let host = Host::new("monitor");
    let (program, pid) = (host.path("bin/neuron-monitor"), host.path("pid"));
    write_program(&program, &format!("#!/bin/sh\necho $$ > {}\nexec sleep 600\n", pid.display()));
    let mut options = host.options();
    options.neuron_monitor = Some(program);
    let exporter = Exporter::start(options).unwrap();
    let written = || fs::read_to_string(&pid).unwrap_or_default().trim().parse::<i32>().ok();
    let monitor = wait_for("the monitor starts", written);
    drop(exporter);
    wait_until("the monitor ends", || !is_alive(monitor));
}

/// Another process writes it: a program that this one had open when a test thread forked could not be executed.
fn write_program(path: &Path, text: &str) {
    let mut writer = Command::new("sh");
    writer.args(["-c", "cat > \"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
    let mut writer = writer.spawn().unwrap();
    writer.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(writer.wait().unwrap().success());
}

fn is_alive(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}
