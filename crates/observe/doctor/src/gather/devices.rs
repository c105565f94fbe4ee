//! Kernel modules, the PCI bus, network cards, device files, services and mounts.

use std::path::Path;

use super::{Sources, names, read_text};
use crate::facts::{Card, Driver, Mount, NodeFacts};
use crate::version::Version;

const MODULES: [&str; 12] = [
    "nvidia",
    "nvidia_uvm",
    "nvidia_peermem",
    "nv_peer_mem",
    "nvidia_fs",
    "gdrdrv",
    "efa",
    "efa_nv_peermem",
    "lustre",
    "mlx5_core",
    "ib_uverbs",
    "neuron",
];
const DEVICES: [&str; 5] =
    ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/gdrdrv", "/dev/infiniband", "/dev/nvidia-fs0"];
const SERVICES: [&str; 3] = ["nv-fabricmanager", "nvidia-persiste", "nvidia-imex"];

pub(super) fn gather(sources: &Sources, facts: &mut NodeFacts) {
    facts.product = sources.text("/sys/devices/virtual/dmi/id/product_name").filter(|name| !name.is_empty());
    facts.kernel = sources.text("/proc/sys/kernel/osrelease").and_then(|text| Version::parse(&text));
    modules(sources, facts);
    facts.driver = sources.text("/proc/driver/nvidia/version").and_then(|text| driver(&text));
    pci(sources, facts);
    facts.cards = cards(sources);
    facts.devices =
        DEVICES.iter().filter(|path| sources.at(path).exists()).map(|path| (*path).to_owned()).collect();
    facts.services = services(sources);
    facts.mounts = mounts(sources);
}

fn modules(sources: &Sources, facts: &mut NodeFacts) {
    let loaded = sources.text("/proc/modules").unwrap_or_default();
    for name in MODULES {
        let is_loaded = loaded.lines().any(|line| line.split(' ').next() == Some(name))
            || sources.at(&format!("/sys/module/{name}/version")).exists();
        if is_loaded {
            let version = sources.text(&format!("/sys/module/{name}/version"));
            facts.modules.insert(name.to_owned(), version.and_then(|text| Version::parse(&text)));
        }
    }
}

/// `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build …`
fn driver(text: &str) -> Option<Driver> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let is_version =
        |word: &&str| word.matches('.').count() >= 1 && word.starts_with(|c: char| c.is_ascii_digit());
    let version = Version::parse(line.split_whitespace().find(is_version)?)?;
    Some(Driver { version, is_open: line.contains("Open Kernel Module") })
}

fn pci(sources: &Sources, facts: &mut NodeFacts) {
    let folder = sources.at("/sys/bus/pci/devices");
    for name in names(&folder) {
        let read = |file: &str| read_text(&folder.join(&name).join(file)).unwrap_or_default();
        let (vendor, class, device) = (read("vendor"), read("class"), read("device"));
        match vendor.as_str() {
            "0x10de" if class.starts_with("0x0302") || class.starts_with("0x0300") => {
                facts.pci.nvidia_gpus += 1
            }
            "0x10de" if class.starts_with("0x0680") => facts.pci.nvswitches += 1,
            "0x1d0f" if device.starts_with("0xefa") => facts.pci.efa_cards += 1,
            "0x15b3" if class.starts_with("0x0207") => facts.pci.infiniband_cards += 1,
            _ => {}
        }
    }
}

fn cards(sources: &Sources) -> Vec<Card> {
    let folder = sources.at("/sys/class/infiniband");
    names(&folder).into_iter().map(|name| card(&folder.join(&name), &name)).collect()
}

fn card(folder: &Path, name: &str) -> Card {
    let driver = std::fs::read_link(folder.join("device/driver"))
        .ok()
        .and_then(|target| target.file_name()?.to_str().map(str::to_owned))
        .or_else(|| read_text(&folder.join("device/uevent")).and_then(|text| field(&text, "DRIVER=")))
        .unwrap_or_default();
    let port = names(&folder.join("ports")).into_iter().next().unwrap_or_else(|| "1".to_owned());
    let read = |file: &str| read_text(&folder.join("ports").join(&port).join(file));
    // `4: ACTIVE` and `100 Gb/sec (4X EDR)`
    let state = read("state").and_then(|text| Some(text.split_once(": ")?.1.to_owned()));
    let rate = read("rate").and_then(|text| text.split_whitespace().next()?.parse().ok());
    let rate = rate.filter(|rate: &f64| rate.is_finite());
    Card { name: name.to_owned(), driver, state, rate_gbps: rate }
}

fn field(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned)
}

/// Services by the names of their processes, which the kernel cuts to 15 characters.
fn services(sources: &Sources) -> Vec<String> {
    let folder = sources.at("/proc");
    let pids = names(&folder).into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let mut found: Vec<String> = pids
        .filter_map(|pid| read_text(&folder.join(pid).join("comm")))
        .filter(|name| SERVICES.iter().any(|service| name.starts_with(&service[..service.len().min(15)])))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Lustre file systems that are mounted, and those that should be.
fn mounts(sources: &Sources) -> Vec<Mount> {
    let read = |path: &str| sources.text(path).unwrap_or_default();
    let lustre = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
        words.filter(|words| words.get(2) == Some(&"lustre")).map(|words| words[1].to_owned()).collect()
    };
    let mounted = lustre(&read("/proc/mounts"));
    let wanted = lustre(&read("/etc/fstab")).into_iter().filter(|path| !mounted.contains(path));
    let mount = |path: String, is_mounted| Mount { kind: "lustre".to_owned(), path, is_mounted };
    let missing: Vec<Mount> = wanted.map(|path| mount(path, false)).collect();
    mounted.into_iter().map(|path| mount(path, true)).chain(missing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_says_its_version_and_whether_it_is_open() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version:  gcc";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder)";
        let read = |text| driver(text).map(|it| (it.version.to_string(), it.is_open));
        assert_eq!(read(closed), Some(("550.54.15".to_owned(), false)));
        assert_eq!(read(open), Some(("570.86.15".to_owned(), true)));
        assert_eq!(read("something else"), None);
    }
}
