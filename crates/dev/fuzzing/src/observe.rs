//! Targets of the parsers that read a node: kernel log, sysfs and procfs files, other programs' metrics, health rules.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::LazyLock;

use bedplate_catalog::Catalog;
use bedplate_diag::render_text;
use bedplate_doctor::{NodeFacts, Sources, examine, gather};
use bedplate_exporter::collectors::{host, lustre, mounts, neuron, ports};
use bedplate_exporter::foreign::Families;
use bedplate_exporter::{ScrapeTarget as Endpoint, watchable};
use bedplate_health::kernel_log::{KernelLine, PciAddress, XidLine};
use bedplate_health::{Health, Profile, Rules, XidSeen, XidSource};
use bedplate_record::Exposition;

pub(crate) const KMSG: &[&str] = &[
    "3,1187,5140900,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n SUBSYSTEM=pci\n",
    "4,2,3,-;NVRM: Xid (PCI:0000:10:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
    "6,1,1,c;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    "4,9,9,-;LustreError: 11-0: fs-OST0001 was evicted by server",
];
pub(crate) const LUSTRE: &[&str] = &[
    "snapshot_time 1.2 secs.nsecs\nread_bytes 40 samples [bytes] 4096 1048576 41943040\nopen 12 samples [usecs] 3 900 4200\n",
    "read RPCs in flight:  3\nwrite RPCs in flight: 4\npending write pages:  20\n",
    "import:\n    name: fs-OST0000\n    state: FULL\n",
];
pub(crate) const MOUNTS: &[&str] =
    &["/dev/nvme0n1p1 / ext4 rw,relatime 0 0\n10.0.0.1@tcp:/fsx /fs\\040x lustre rw,flock 0 0\n"];
pub(crate) const KERNEL_FILES: &[&str] = &[
    "cpu  100 0 50 900 10 0 0 0 0 0\nprocs_blocked 3\n",
    " 259       0 nvme0n1 5 0 16 250 7 0 8 100 0 300 350 0 0 0 0\n",
    "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 total=1000000\n",
    "400 Gb/sec (4X NDR)\n",
    "4: ACTIVE\n",
];
pub(crate) const NODE_FILES: &[&str] = &[
    "nvidia 1 0 - Live 0x0\nefa 4096 0 - Live\ngdrdrv 1 0\n",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n",
    "Max locked memory         65536                65536                bytes\nMax open files 1024 4096 files\n",
    "10.0.0.1@tcp:/fsx /fsx lustre rw,flock 0 0\nMemTotal:       1000 kB\n",
    "0x10de",
    "0x030200",
    "Name: libfabric\nVersion: 1.22.0amzn4.0\n",
    "{\"cuda\": {\"version\": \"12.4.1\"}}",
    "NCCL INFO Initializing aws-ofi-nccl 1.13.2-aws\0",
    "cuda: Optional[str] = '12.4'\n",
    "100 Gb/sec (4X EDR)\n",
];
pub(crate) const NEURON: &[&str] = &[
    r#"{"neuron_runtime_data":[{"neuron_runtime_tag":"7","error":"","report":{"neuroncore_counters":{"neuroncores_in_use":{"0":{"neuroncore_utilization":42.5}}}}}],"system_data":{"neuron_hw_counters":{"neuron_devices":[{"neuron_device_index":3,"mem_ecc_uncorrected":2}]}}}"#,
];
pub(crate) const EXPOSITION: &[&str] = &[
    "# HELP a b\n# TYPE a histogram\na_bucket{le=\"0.1\",x=\"\\\"}\"} 1\na_sum 2.5 1700000000\nvllm:num_requests_running{model_name=\"m\"} 3\n",
    "http://127.0.0.1:8000/metrics,job=12,rank=0",
];
pub(crate) const RULES: &str = include_str!("../../../../data/health/rules.toml");

/// Whatever the kernel log says, the rules stand it, and an address is written as it is read.
pub(crate) fn kernel_log(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut health = Health::new("n1", Rules::built_in(Profile::Strict));
    for (at, record) in text.lines().take(200).enumerate() {
        let line = KernelLine::parse(record).map_or(record, |line| line.text);
        let now_ms = at as u64 * 1000;
        match XidLine::parse(line) {
            Some(xid) => {
                let again = PciAddress::parse(&xid.bus.to_string());
                assert_eq!(again, Some(xid.bus));
                let source = if xid.is_switch { XidSource::Switch } else { XidSource::KernelLog };
                let (process, text) = (xid.process, xid.text);
                health.saw_xid(XidSeen { gpu: Some(0), xid: xid.xid, process, text, source }, now_ms);
            }
            None => health.saw_line(line, now_ms),
        }
    }
    assert!(health.findings().iter().all(|open| open.times > 0 && open.since_ms <= open.seen_ms));
}

pub(crate) fn lustre_files(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for statistic in lustre::statistics(&text) {
        assert!(statistic.range.is_none_or(|(least, most, sum)| (least + most + sum).is_finite()
            || [least, most, sum].iter().all(|value| value.is_finite())));
    }
    let _ = (lustre::rpc_statistics(&text), lustre::is_connected(&text));
}

/// Files of the kernel that the exporter reads for the host and its network cards.
pub(crate) fn kernel_files(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let numbers = [
        host::total_us(&text, "some"),
        host::total_us(&text, "full"),
        host::first_number(&text),
        host::processor_ticks(&text).map(|ticks| ticks.waiting),
        ports::state_id(&text),
        ports::bytes_per_second(&text),
    ];
    assert!(numbers.iter().flatten().all(|number| number.is_finite()));
    assert!(host::disks(&text).all(|disk| !disk.name.is_empty() && disk.busy_ms.is_finite()));
}

/// Every file that `doctor` reads of a node has these bytes: nothing fails, and what was read is plain data.
pub(crate) fn node_files(data: &[u8]) {
    const FILES: [&str; 17] = [
        "proc/modules",
        "proc/driver/nvidia/version",
        "proc/self/limits",
        "proc/meminfo",
        "proc/mounts",
        "proc/1/comm",
        "etc/fstab",
        "sys/bus/pci/devices/0000:10:00.0/vendor",
        "sys/bus/pci/devices/0000:10:00.0/class",
        "sys/class/infiniband/mlx5_0/ports/1/state",
        "sys/class/infiniband/mlx5_0/ports/1/rate",
        "sys/devices/virtual/dmi/id/product_name",
        "usr/lib/libnccl-net.so",
        "usr/lib/pkgconfig/libfabric.pc",
        "usr/local/cuda/version.json",
        "usr/lib/python3/dist-packages/torch/version.py",
        "usr/lib/python3/dist-packages/torch-2.5.1.dist-info/METADATA",
    ];
    static CATALOG: LazyLock<Catalog> = LazyLock::new(Catalog::builtin);
    let root = Tree::of(&FILES, data);
    let sources = Sources {
        root: root.0.clone(),
        environment: BTreeMap::new(),
        nvidia_smi: root.0.join("usr/bin/nvidia-smi"),
        ..Sources::this("n1".to_owned())
    };
    let facts = gather(&sources);
    let text = serde_json::to_string(&facts).expect("facts are plain data");
    assert_eq!(serde_json::from_str::<NodeFacts>(&text).ok(), Some(facts.clone()));
    examine(&facts, &CATALOG, Some("p5.48xlarge"));
}

/// A folder with files, gone with this.
struct Tree(PathBuf);

impl Tree {
    fn of(files: &[&str], bytes: &[u8]) -> Self {
        let name = format!("bedplate-fuzz-{}-{:?}", std::process::id(), std::thread::current().id());
        let tree = Self(std::env::temp_dir().join(name));
        for file in files {
            let path = tree.0.join(file);
            std::fs::create_dir_all(path.parent().expect("it is in a folder")).expect("there is room");
            std::fs::write(path, bytes).expect("there is room");
        }
        tree
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn mount_table(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    assert!(mounts::watched_mounts(&text).len() <= 64);
}

pub(crate) fn neuron_report(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let values = neuron::values(&text).unwrap_or_default();
    assert!(values.iter().all(|value| value.value.is_finite()));
}

/// What is passed on can be read again, and reads the same.
pub(crate) fn foreign_metrics(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = Endpoint::parse(&text);
    let families = Families::read(&text, "");
    let mut written = Exposition::default();
    families.write(&mut written);
    let written = written.into_string();
    let mut again = Exposition::default();
    Families::read(&written, "").write(&mut again);
    assert_eq!(again.into_string(), written);
}

pub(crate) fn health_rules(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match Rules::built_in(Profile::Nvidia).with_own(&text, "own.toml", &watchable()) {
        Ok(rules) => assert!(!rules.all().is_empty()),
        Err(error) => assert!(!render_text(&error).is_empty()),
    }
}
