//! A node in a folder is read and judged: good, then with one flaw after another.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_catalog::Catalog;
use bedplate_doctor::{Check, CheckVerdict, NodeFacts, Sources, Stack, examine, gather, worst};
use bedplate_testkit::{Hanging, HangingMount};
use expect_test::expect;

/// A p5.48xlarge in a temporary folder, with a driver's tool that prints a file.
struct FakeNode {
    root: PathBuf,
    environment: BTreeMap<String, String>,
}

impl FakeNode {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("bedplate-doctor-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let node = Self { root, environment: BTreeMap::new() };
        node.write("sys/devices/virtual/dmi/id/product_name", "p5.48xlarge\n");
        node.write("proc/sys/kernel/osrelease", "6.1.0-1029-aws\n");
        node.write("proc/modules", "nvidia 1 0 - Live\nnvidia_uvm 1 0 - Live\nefa 1 0 - Live\ngdrdrv 1 0 - Live\nlustre 1 0 - Live\n");
        node.write("sys/module/efa/version", "2.13.0g\n");
        node.write(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n",
        );
        node.write("proc/self/limits", LIMITS);
        node.write("proc/sys/vm/nr_hugepages", "5128\n");
        node.write("proc/sys/kernel/numa_balancing", "0\n");
        node.write("proc/meminfo", "MemTotal:       2097152000 kB\n");
        node.write("proc/mounts", "10.1.0.9@tcp:/fsx /fsx lustre rw 0 0\n");
        node.write("proc/77/comm", "nv-fabricmanage\n");
        node.devices();
        node.libraries();
        node.nvidia_smi(8, "1980");
        node
    }

    fn devices(&self) {
        for gpu in 0..8 {
            self.pci(&format!("0000:{gpu}0:00.0"), "0x10de", "0x030200", "0x2330");
        }
        for switch in 0..4 {
            self.pci(&format!("0000:a{switch}:00.0"), "0x10de", "0x068000", "0x22a3");
        }
        for card in 0..32 {
            self.pci(&format!("0001:{card:02}:00.0"), "0x1d0f", "0x020000", "0xefa2");
            let folder = format!("sys/class/infiniband/rdmap{card}s0");
            self.write(&format!("{folder}/ports/1/state"), "4: ACTIVE\n");
            self.write(&format!("{folder}/ports/1/rate"), "100 Gb/sec (4X EDR)\n");
            self.write(&format!("{folder}/device/uevent"), "DRIVER=efa\n");
        }
    }

    fn libraries(&self) {
        self.write("opt/amazon/efa/lib/pkgconfig/libfabric.pc", "Name: libfabric\nVersion: 1.22.0amzn4.0\n");
        self.write(
            "opt/amazon/ofi-nccl/lib/libnccl-net.so",
            "\u{7f}ELF...NET/OFI Initializing aws-ofi-nccl 1.13.2-aws\0...",
        );
        self.write("usr/lib/x86_64-linux-gnu/libnccl.so.2.23.4", "");
        let packages = "opt/venv/lib/python3.12/site-packages";
        self.write(&format!("{packages}/torch-2.6.0+cu124.dist-info/METADATA"), "");
        self.write(
            &format!("{packages}/torch/version.py"),
            "__version__ = '2.6.0+cu124'\ncuda: Optional[str] = '12.4'\n",
        );
        self.write(&format!("{packages}/nvidia_nccl_cu12-2.23.4.dist-info/METADATA"), "");
        self.write(&format!("{packages}/nvidia_cuda_runtime_cu12-12.4.127.dist-info/METADATA"), "");
        fs::create_dir_all(self.root.join("dev/shm")).unwrap();
    }

    fn pci(&self, address: &str, vendor: &str, class: &str, device: &str) {
        for (file, text) in [("vendor", vendor), ("class", class), ("device", device)] {
            self.write(&format!("sys/bus/pci/devices/{address}/{file}"), text);
        }
    }

    fn nvidia_smi(&self, gpus: u32, clock_of_3: &str) {
        let line = |gpu: u32| {
            let clock = if gpu == 3 { clock_of_3 } else { "1980" };
            format!(
                "{gpu}, NVIDIA H100 80GB HBM3, Enabled, Enabled, Disabled, Default, {clock}, 1980, 700.00, 700.00, 16, 16, 81559, 0x0"
            )
        };
        let text: Vec<String> = (0..gpus).map(line).collect();
        self.script(&format!("case \"$1\" in --query*) cat <<'E'\n{}\nE\n;; esac", text.join("\n")));
    }

    fn script(&self, body: &str) {
        self.write("bin/nvidia-smi", &format!("#!/bin/sh\n{body}\n"));
        fs::set_permissions(self.root.join("bin/nvidia-smi"), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Written aside and renamed: a script that is being executed cannot be opened for writing.
        let aside = path.with_extension("part");
        fs::write(&aside, text).unwrap();
        fs::rename(&aside, &path).unwrap();
    }

    fn remove(&self, path: &str) {
        let path = self.root.join(path);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }

    fn sources(&self) -> Sources {
        Sources {
            root: self.root.clone(),
            environment: self.environment.clone(),
            nvidia_smi: self.root.join("bin/nvidia-smi"),
            patience: Duration::from_secs(60),
            node: "n1".to_owned(),
            process: "self".to_owned(),
        }
    }

    fn facts(&self) -> NodeFacts {
        gather(&self.sources())
    }

    fn checks(&self) -> Vec<Check> {
        // The size of a folder's file system is that of the host it is on.
        let mut facts = self.facts();
        facts.limits.shared_memory_bytes = Some(16 << 30);
        examine(&facts, &Catalog::builtin(), None).checks
    }

    fn flaws(&self) -> Vec<String> {
        let bad = self.checks().into_iter().filter(|check| check.verdict != CheckVerdict::Pass);
        bad.map(|check| format!("{} {}: {}", check.verdict, check.rule, check.found)).collect()
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units
Max processes             unlimited            unlimited            processes
Max open files            1048576              1048576              files
Max locked memory         unlimited            unlimited            bytes
";

#[test]
fn a_good_node_passes_in_all_five_layers() {
    let node = FakeNode::new("good");
    let checks = node.checks();
    assert_eq!(worst(&checks), CheckVerdict::Pass, "{:#?}", node.flaws());
    for layer in Stack::ALL {
        assert!(checks.iter().any(|check| check.layer == layer), "nothing was checked of {layer}");
    }
    let told: Vec<String> =
        checks.iter().map(|check| format!("{} {}: {}", check.layer, check.rule, check.found)).collect();
    expect![[r#"
        hardware gpu/count: all 8 GPUs answer
        hardware gpu/kind: GPUs are NVIDIA H100 80GB HBM3
        hardware gpu/fabric-manager: the fabric manager runs
        hardware gpu/settings: settings of all 8 GPUs are as they should be
        hardware network/cards: all 32 network cards are there
        kernel driver/efa: efa 2.13.0g
        kernel driver/nvidia: driver 570.86.15, open modules
        kernel driver/gpu-direct-rdma: by DMA-BUF, or by the driver efa itself
        kernel driver/gdrcopy: gdrdrv is loaded
        kernel storage/lustre: /fsx is mounted
        kernel limit/locked-memory: locked memory is unlimited
        kernel limit/open-files: a process may open 1048576 files
        kernel limit/huge-pages: 5128 huge pages are set aside
        kernel limit/shared-memory: /dev/shm has 16384 MiB
        runtime cuda/driver: CUDA 12.4 runs on driver 570.86.15
        communication library/nccl: NCCL 2.23.4
        communication library/aws-ofi-nccl: aws-ofi-nccl 1.13.2-aws
        communication library/libfabric: libfabric 1.22.0amzn4.0
        framework framework/pytorch: PyTorch 2.6.0+cu124 for CUDA 12.4
        framework environment/variables: no variable of NCCL, libfabric, CUDA or PyTorch does harm
    "#]]
    .assert_eq(&(told.join("\n") + "\n"));
}

#[test]
fn each_flaw_is_found_by_itself() {
    type Harm = fn(&mut FakeNode);
    let flaws: [(&str, Harm, &str); 15] = [
        (
            "lost",
            |node| node.nvidia_smi(7, "1980"),
            "fail gpu/count: 7 of 8 GPUs answer: 1 on the bus but do not answer",
        ),
        (
            "clock",
            |node| node.nvidia_smi(8, "1200"),
            "warn gpu/clock: GPU 3: application clock is 1200 MHz of 1980 MHz",
        ),
        ("smi", |node| node.script("exit 15"), "fail nvidia-smi/unread: nvidia-smi failed: exit status: 15"),
        (
            "card",
            |node| node.remove("sys/class/infiniband/rdmap5s0"),
            "fail network/cards: 31 of 32 network cards are there",
        ),
        (
            "efa",
            |node| {
                node.write("proc/modules", "nvidia 1 0 - Live\ngdrdrv 1 0 - Live\n");
                node.remove("sys/module/efa");
            },
            "fail driver/efa: there are 32 EFA devices and the module efa is not loaded",
        ),
        (
            "memlock",
            |node| {
                node.write(
                    "proc/self/limits",
                    &LIMITS.replace("memory         unlimited", "memory         8388608  "),
                )
            },
            "fail limit/locked-memory: locked memory is limited to 8 MiB",
        ),
        (
            "files",
            |node| {
                node.write(
                    "proc/self/limits",
                    &LIMITS.replace("1048576              1048576", "1024                 1048576"),
                )
            },
            "warn limit/open-files: a process may open 1024 files",
        ),
        (
            "pages",
            |node| node.write("proc/sys/vm/nr_hugepages", "0\n"),
            "warn limit/huge-pages: no huge pages are set aside",
        ),
        (
            "plugin",
            |node| node.remove("opt/amazon/ofi-nccl/lib/libnccl-net.so"),
            "fail library/aws-ofi-nccl: aws-ofi-nccl is in none of the usual folders nor on LD_LIBRARY_PATH",
        ),
        (
            "fabric",
            |node| node.write("opt/amazon/efa/lib/pkgconfig/libfabric.pc", "Version: 1.18.1\n"),
            "fail library/libfabric: libfabric 1.18.1; aws-ofi-nccl 1.13.2-aws needs 1.22",
        ),
        (
            "driver",
            |node| {
                node.write(
                    "proc/driver/nvidia/version",
                    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  x\n",
                )
            },
            "fail driver/version: driver 470.57.02 is older than 525",
        ),
        (
            "copies",
            |node| node.write("usr/local/cuda/lib64/libnccl.so.2.18.3", ""),
            "warn library/nccl-copies: there are different versions of NCCL: 2.18.3 and 2.23.4",
        ),
        (
            "fstab",
            |node| node.write("etc/fstab", "fs:/b /scratch lustre defaults 0 0\n"),
            "fail storage/lustre: /scratch is in /etc/fstab and not mounted",
        ),
        (
            "variable",
            |node| {
                node.environment.insert("NCCL_P2P_DISABLE".into(), "1".into());
            },
            "fail environment/nccl-p2p-disable: NCCL_P2P_DISABLE=1 is set",
        ),
        (
            "typo",
            |node| {
                node.environment.insert("NCCL_IB_TIMEOUTS".into(), "22".into());
            },
            "warn environment/unknown: NCCL does not read NCCL_IB_TIMEOUTS",
        ),
    ];
    for (name, harm, told) in flaws {
        let mut node = FakeNode::new(name);
        harm(&mut node);
        let found = node.flaws();
        assert!(found.iter().any(|flaw| flaw == told), "{name}: {found:#?}");
    }
}

#[test]
fn every_flaw_says_why_it_matters_and_how_to_fix_it_and_the_network_what_it_costs() {
    let mut node = FakeNode::new("worst");
    node.nvidia_smi(6, "900");
    node.remove("opt/amazon");
    node.remove("sys/class/infiniband");
    node.write("proc/self/limits", &LIMITS.replace("unlimited", "1024     "));
    node.environment.insert("FI_PROVIDER".into(), "tcp".into());
    node.environment.insert("NCCL_ALGO".into(), "Ring".into());
    let checks = node.checks();
    let bad: Vec<&Check> = checks.iter().filter(|check| check.verdict != CheckVerdict::Pass).collect();
    assert!(bad.len() > 7);
    for check in &bad {
        assert!(!check.why.is_empty() && !check.fix.is_empty(), "{check:?}");
        assert!(check.finding("n1").is_some_and(|finding| finding.rule.starts_with("doctor/")));
    }
    let sockets = bad.iter().find(|check| check.rule == "library/aws-ofi-nccl").unwrap();
    let cost = sockets.cost.as_ref().unwrap();
    assert!(cost.slowdown > 1.5 && cost.told.contains("over TCP sockets"), "{cost:?}");
}

#[test]
fn facts_travel_as_json() {
    let node = FakeNode::new("json");
    let facts = node.facts();
    let text = serde_json::to_string(&facts).unwrap();
    assert_eq!(serde_json::from_str::<NodeFacts>(&text).unwrap(), facts);
}

#[test]
fn a_machine_without_anything_is_read_too() {
    let root = std::env::temp_dir().join(format!("bedplate-doctor-{}-empty", std::process::id()));
    fs::create_dir_all(&root).unwrap();
    let sources = Sources { root: root.clone(), ..Sources::this("n1".to_owned()) };
    let examination = examine(&gather(&sources), &Catalog::builtin(), None);
    fs::remove_dir_all(&root).unwrap();
    assert_eq!(examination.instance, None);
    assert!(!Path::new(&root).exists());
}

#[test]
fn pipes_in_the_place_of_files_hold_nothing_up() {
    let node = FakeNode::new("pipes");
    let files = [
        "opt/amazon/ofi-nccl/lib/libnccl-net.so",
        "proc/modules",
        "proc/self/limits",
        "usr/local/cuda/version.json",
    ];
    for file in files {
        let path = node.root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    }
    let facts = node.facts();
    assert_eq!(facts.gpus.len(), 8);
    assert_eq!(facts.limits.locked_memory, None);
}

#[test]
fn folders_on_a_mount_that_hangs_are_named_and_the_rest_is_read() {
    let mut node = FakeNode::new("hanging");
    let dead = node.root.join("dead");
    fs::create_dir_all(&dead).unwrap();
    let Some(_mount) = HangingMount::at(&dead, "s3fs", Hanging::Everything) else { return };
    let whole = node.facts();
    node.environment.insert("LD_LIBRARY_PATH".into(), "/dead/lib".into());
    node.environment.insert("HOME".into(), "/dead/ada".into());
    let mut sources = node.sources();
    sources.patience = Duration::from_secs(1);
    let facts = gather(&sources);
    let told: Vec<&str> = facts.remarks.iter().map(|remark| remark.told.as_str()).collect();
    assert!(told.iter().any(|told| told.contains("dead/lib does not answer")), "{told:?}");
    assert!(told.iter().any(|told| told.contains("dead/ada/.local/lib does not answer")), "{told:?}");
    assert_eq!((facts.libraries, facts.limits), (whole.libraries, whole.limits));
}

/// Files that no kernel has: garbage, endless, of terabytes, folders and loops in their place, or nothing at all.
#[test]
fn odd_files_of_the_kernel_are_read_as_nothing_and_judged() {
    type Put = fn(&Path);
    let odd: [(&str, Put); 6] = [
        ("nothing", |_| {}),
        ("garbage", |path| {
            fs::write(path, "\u{0}\u{7f} 99999999999999999999 -1 nan\n".repeat(9_000)).unwrap()
        }),
        ("one line", |path| fs::write(path, "9".repeat(9 << 20)).unwrap()),
        ("terabytes", |path| fs::File::create(path).unwrap().set_len(1 << 40).unwrap()),
        ("folder", |path| fs::create_dir(path).unwrap()),
        ("loop", |path| std::os::unix::fs::symlink(path, path).unwrap()),
    ];
    for (name, put) in odd {
        let node = FakeNode::new(&format!("odd-{}", name.replace(' ', "-")));
        for file in [
            "proc/modules",
            "proc/sys/kernel/osrelease",
            "proc/driver/nvidia/version",
            "proc/self/limits",
            "proc/sys/vm/nr_hugepages",
            "proc/meminfo",
            "proc/mounts",
            "proc/77/comm",
            "sys/devices/virtual/dmi/id/product_name",
            "sys/module/efa/version",
            "sys/class/infiniband/rdmap0s0/ports/1/state",
            "sys/class/infiniband/rdmap0s0/ports/1/rate",
            "sys/bus/pci/devices/0000:00:00.0/vendor",
        ] {
            let path = node.root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let _ = fs::remove_file(&path);
            put(&path);
        }
        let facts = gather(&node.sources());
        let checks = examine(&facts, &Catalog::builtin(), None);
        assert!(!checks.checks.is_empty(), "{name}");
        let text = serde_json::to_string(&facts).unwrap();
        assert_eq!(serde_json::from_str::<NodeFacts>(&text).unwrap(), facts, "{name}");
        assert!(text.len() < 1 << 20, "{name}: {} bytes are kept", text.len());
    }
}
