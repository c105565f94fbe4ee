//! One line of an `NCCL_DEBUG=INFO` log: who wrote it, and what it tells.
//!
//! Formats are those of NCCL 2.18 to 2.28 and of the aws-ofi-nccl plugin 1.7 to 1.16. A launcher may put anything before the
//! line. A line that tells nothing of interest gives `None`.

/// How two ranks are connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Via<'a> {
    /// NVLink or PCIe; `CUMEM`, `IPC`, `MNNVL`, `direct pointer`, `indirect`.
    PeerToPeer(&'a str),
    SharedMemory,
    Network {
        name: &'a str,
        has_gpu_direct: bool,
    },
    CollNet,
}

/// A connection as one side announces it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Connection<'a> {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) via: Via<'a>,
}

/// The choice for one collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice<'a> {
    /// Empty before NCCL 2.23.
    pub(super) function: &'a str,
    pub(super) bytes: u64,
    pub(super) algorithm: &'a str,
    pub(super) protocol: &'a str,
}

/// Channels of a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Channels {
    pub(super) collective: u32,
    pub(super) nvls: u32,
    pub(super) point_to_point: u32,
}

/// What a line tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event<'a> {
    Version(&'a str),
    Connection(Connection<'a>),
    Choice(Choice<'a>),
    Channels(Channels),
    /// The network chosen for a communicator.
    Network(&'a str),
    InitStart {
        rank: u32,
        ranks: u32,
    },
    InitComplete {
        rank: u32,
        ranks: u32,
    },
    Nodes {
        nodes: u32,
    },
    PluginMissing(&'a str),
    PluginUnusable(&'a str),
    PluginLoaded(&'a str),
    /// The OFI plugin said what it is, which provider it chose, or why it gave up.
    OfiVersion(&'a str),
    OfiLibfabric(&'a str),
    OfiProvider {
        provider: &'a str,
        cards: u32,
    },
    OfiProtocol(&'a str),
    OfiFailed(&'a str),
    NoInfiniBand(&'a str),
    InfiniBandFound,
    /// `Some(distance)` when the path between GPU and card is too long.
    GpuDirect {
        is_enabled: bool,
        distance: Option<(u32, u32)>,
    },
    NvlsMissing,
    PeerToPeerOff(&'a str),
    SetByEnvironment {
        name: &'a str,
        value: &'a str,
    },
    Warning(&'a str),
}

/// Who wrote a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Writer<'a> {
    pub(super) host: &'a str,
    pub(super) process: u32,
}

/// The writer, where the line names one, and what it tells.
pub(super) fn read(line: &str) -> Option<(Option<Writer<'_>>, Event<'_>)> {
    for (mark, is_warning) in [("NCCL INFO ", false), ("NCCL WARN ", true)] {
        if let Some((head, told)) = line.split_once(mark) {
            let event = event(told.trim()).or_else(|| is_warning.then_some(Event::Warning(told.trim())))?;
            return Some((writer(head), event));
        }
    }
    bare_version(line).map(|version| (None, Event::Version(version)))
}

/// `NCCL version 2.28.3+cuda13.0`, which rank 0 writes without its name; a launcher may have put a label before it.
fn bare_version(line: &str) -> Option<&str> {
    let (label, version) = line.trim().split_once("NCCL version ")?;
    let label = label.trim_end();
    let is_label = label.is_empty() || label.ends_with([':', '>', ']']);
    (is_label && !version.contains(' ')).then_some(version)
}

/// `host:pid:tid`, the word before `[0]`, whatever stands before it.
fn writer(head: &str) -> Option<Writer<'_>> {
    let word = head.split_whitespace().find(|word| writer_of(word).is_some())?;
    writer_of(word)
}

fn writer_of(word: &str) -> Option<Writer<'_>> {
    let (rest, thread) = word.rsplit_once(':')?;
    let (host, process) = rest.rsplit_once(':')?;
    thread.parse::<u32>().ok()?;
    (!host.is_empty()).then_some(Writer { host, process: process.parse().ok()? })
}

fn event(told: &str) -> Option<Event<'_>> {
    connection(told)
        .map(Event::Connection)
        .or_else(|| choice(told).map(Event::Choice))
        .or_else(|| channels(told).map(Event::Channels))
        .or_else(|| initialisation(told))
        .or_else(|| plugin(told))
        .or_else(|| ofi(told))
        .or_else(|| device(told))
        .or_else(|| setting(told))
        .or_else(|| told.strip_prefix("NCCL version ").map(Event::Version))
}

/// `Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read`, with `[send]` or `[receive]` for a network.
fn connection(told: &str) -> Option<Connection<'_>> {
    let rest = told.strip_prefix("Channel ")?;
    let (_, pair) = rest.split_once(" : ")?;
    let (pair, via) = pair.split_once(" via ")?;
    let (from, to) = pair.split_once(" -> ")?;
    Some(Connection { from: rank(from)?, to: rank(to)?, via: transport(via)? })
}

/// `7[3] [send]` is rank 7.
fn rank(text: &str) -> Option<u32> {
    text.trim().split('[').next()?.parse().ok()
}

fn transport(via: &str) -> Option<Via<'_>> {
    let (kind, rest) = via.split_once('/')?;
    match kind {
        "P2P" => Some(Via::PeerToPeer(rest.split('/').next().unwrap_or(rest))),
        "SHM" => Some(Via::SharedMemory),
        "COLLNET" => Some(Via::CollNet),
        "NET" => {
            let mut parts = rest.split('/');
            let name = parts.next()?;
            Some(Via::Network { name, has_gpu_direct: parts.any(|part| part.starts_with("GDRDMA")) })
        }
        _ => None,
    }
}

/// `AllReduce: 4096 Bytes -> Algo 1 proto 2 time 12.3`, or with names since 2.24; without the function before 2.23.
fn choice(told: &str) -> Option<Choice<'_>> {
    let (size, chosen) = told.split_once(" Bytes -> Algo ")?;
    let (function, bytes) = size.rsplit_once(": ").unwrap_or(("", size));
    let mut words = chosen.split_whitespace();
    let algorithm = algorithm(words.next()?);
    if words.next()? != "proto" {
        return None;
    }
    Some(Choice { function, bytes: bytes.trim().parse().ok()?, algorithm, protocol: protocol(words.next()?) })
}

fn algorithm(text: &str) -> &str {
    match text {
        "0" | "TREE" => "tree",
        "1" | "RING" => "ring",
        "2" | "COLLNET_DIRECT" => "collnet-direct",
        "3" | "COLLNET_CHAIN" => "collnet-chain",
        "4" | "NVLS" => "nvls",
        "5" | "NVLS_TREE" => "nvls-tree",
        "6" | "PAT" => "pat",
        other => other,
    }
}

fn protocol(text: &str) -> &str {
    match text {
        "0" | "LL" => "LL",
        "1" | "LL128" => "LL128",
        "2" | "SIMPLE" => "Simple",
        other => other,
    }
}

/// `16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer`
fn channels(told: &str) -> Option<Channels> {
    if !told.contains(" coll channels, ") {
        return None;
    }
    let mut found = Channels { collective: 0, nvls: 0, point_to_point: 0 };
    for part in told.split(", ") {
        let (count, kind) = part.split_once(' ')?;
        let count = count.parse().ok()?;
        match kind {
            "coll channels" => found.collective = count,
            "nvls channels" => found.nvls = count,
            "p2p channels" => found.point_to_point = count,
            _ => {}
        }
    }
    Some(found)
}

fn initialisation(told: &str) -> Option<Event<'_>> {
    if let Some(name) = told.strip_prefix("Using network ") {
        return Some(Event::Network(name.trim()));
    }
    let value = |name: &str| {
        let mut words = told.split_whitespace().skip_while(|word| *word != name);
        words.nth(1)?.parse::<u32>().ok()
    };
    if !told.contains("comm ") {
        return None;
    }
    if told.ends_with("Init START") {
        return Some(Event::InitStart { rank: value("rank")?, ranks: value("nranks")? });
    }
    if told.ends_with("Init COMPLETE") {
        return Some(Event::InitComplete { rank: value("rank")?, ranks: value("nranks")? });
    }
    told.contains(" nNodes ").then(|| value("nNodes").map(|nodes| Event::Nodes { nodes })).flatten()
}

/// Whether NCCL found a network plugin; the wording changed in 2.19, 2.21, 2.23 and 2.28.
fn plugin(told: &str) -> Option<Event<'_>> {
    let rest = told.strip_prefix("NET/Plugin")?.trim_start_matches([' ', ':']);
    if let Some(name) = rest.strip_prefix("Loaded net plugin ") {
        return Some(Event::PluginLoaded(name.trim()));
    }
    let is_unusable = rest.contains("symbol (>= v5)") || rest.contains("symbol (v4 or v5)");
    if is_unusable && !rest.contains("CollNet") {
        return Some(Event::PluginUnusable(rest));
    }
    if rest.contains("undefined symbol") || dependency(rest).is_some_and(|name| !name.contains("nccl-net")) {
        return Some(Event::PluginUnusable(rest));
    }
    let is_missing = rest.starts_with("No plugin found")
        || rest.starts_with("Could not find:")
        || rest.starts_with("Plugin load")
        || dependency(rest).is_some();
    is_missing.then_some(Event::PluginMissing(rest))
}

/// The library that the loader could not open: the plugin, or one that the plugin needs.
fn dependency(told: &str) -> Option<&str> {
    let (before, _) = told.split_once(": cannot open shared object file")?;
    before.split_whitespace().next_back()
}

/// What the plugin for libfabric says of itself.
fn ofi(told: &str) -> Option<Event<'_>> {
    let rest = told.strip_prefix("NET/OFI ")?.trim();
    if let Some(version) = rest.strip_prefix("Initializing aws-ofi-nccl ") {
        return Some(Event::OfiVersion(version));
    }
    if let Some(version) = rest.strip_prefix("Using Libfabric version ") {
        return Some(Event::OfiLibfabric(version));
    }
    let selected =
        rest.strip_prefix("Selected Provider is ").or_else(|| rest.strip_prefix("Selected provider is "));
    if let Some(selected) = selected {
        return provider(selected);
    }
    if let Some(protocol) = rest.strip_prefix("Using transport protocol ") {
        return Some(Event::OfiProtocol(protocol.split_whitespace().next().unwrap_or(protocol)));
    }
    const GIVES_UP: [&str; 9] = [
        "aws-ofi-nccl initialization failed",
        "Couldn't find any optimal provider",
        "No eligible providers were found",
        "EFA provider requires at least",
        "Unable to find a protocol that worked",
        "Insufficient Libfabric devices found",
        "Initializing plugin failed",
        "Failed to initialize rdma protocol",
        "GDR disabled on GDR-supported instance type",
    ];
    GIVES_UP.iter().any(|sign| rest.starts_with(sign)).then_some(Event::OfiFailed(rest))
}

/// `efa (found 32 nics)` or `efa, fabric is efa-direct (found 32 nics)`.
fn provider(selected: &str) -> Option<Event<'_>> {
    let provider = selected.split([' ', ',']).next()?;
    let (_, found) = selected.split_once("(found ")?;
    Some(Event::OfiProvider { provider, cards: found.split_whitespace().next()?.parse().ok()? })
}

fn device(told: &str) -> Option<Event<'_>> {
    if told.starts_with("NET/IB : No device found") || told.starts_with("Failed to open libibverbs") {
        return Some(Event::NoInfiniBand(told));
    }
    if told.starts_with("NET/IB : Using") {
        return Some(Event::InfiniBandFound);
    }
    if told.contains("GPU Direct RDMA ") {
        let is_enabled = told.contains("GPU Direct RDMA Enabled");
        return Some(Event::GpuDirect { is_enabled, distance: distance(told) });
    }
    if told.starts_with("NVLS multicast support is not available") {
        return Some(Event::NvlsMissing);
    }
    let is_off =
        told.starts_with("P2P is disabled between") || told.starts_with("Could not enable P2P between");
    is_off.then_some(Event::PeerToPeerOff(told))
}

/// `(distance 5 > 4)`
fn distance(told: &str) -> Option<(u32, u32)> {
    let (_, rest) = told.split_once("(distance ")?;
    let (distance, limit) = rest.split_once(')')?.0.split_once('>')?;
    Some((distance.trim().parse().ok()?, limit.trim().parse().ok()?))
}

/// `NCCL_P2P_DISABLE set by environment to 1.`
fn setting(told: &str) -> Option<Event<'_>> {
    let (name, value) = told.split_once(" set by environment to ")?;
    let is_name =
        name.starts_with("NCCL_") && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name.then(|| Event::SetByEnvironment { name, value: value.trim().trim_end_matches('.') })
}
