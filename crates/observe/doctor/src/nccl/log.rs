//! What a log tells, gathered line by line into counts.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::line::{self, Channels, Choice, Connection, Event, Via, Writer};

/// Entries kept of what a log may name any number of: hosts, warnings, settings.
const MOST_KEPT: usize = 4096;
const LONGEST_KEPT: usize = 300;

/// What carried connections, with how many of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NcclTransport {
    /// NVLink or PCIe between GPUs of a node or of an NVLink domain.
    pub peer_to_peer: u64,
    /// Through the memory of the host.
    pub shared_memory: u64,
    /// By the network, with the card reading GPU memory itself.
    pub network_gpu_direct: u64,
    /// By the network, copied through the host.
    pub network_staged: u64,
    pub collnet: u64,
}

/// Collectives that used one algorithm and protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Algorithm {
    pub function: String,
    pub algorithm: String,
    pub protocol: String,
    pub collectives: u64,
    pub smallest_bytes: u64,
    pub largest_bytes: u64,
}

/// What became of the network plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "told")]
pub enum Plugin {
    /// The log does not say.
    #[default]
    Unknown,
    Loaded(String),
    Missing(String),
    /// It is there and could not be used.
    Unusable(String),
}

/// What the plugin for libfabric said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OfiPlugin {
    pub version: Option<String>,
    pub libfabric: Option<String>,
    pub provider: Option<String>,
    /// The fewest network cards that a process found.
    pub cards: Option<u32>,
    pub protocol: Option<String>,
    /// Why it gave up.
    pub failure: Option<String>,
}

/// What the ranks of a job did, as far as their logs tell.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct NcclLog {
    /// Lines that NCCL wrote and that told something.
    pub lines: u64,
    pub versions: BTreeSet<String>,
    pub hosts: BTreeSet<String>,
    pub ranks: u32,
    pub nodes: u32,
    pub networks: BTreeSet<String>,
    pub transport: NcclTransport,
    /// Connections by the network whose name is the key.
    pub network_connections: BTreeMap<String, u64>,
    /// Connections between ranks of one host that went by the network.
    pub network_within_host: u64,
    pub collective_channels: Option<u32>,
    pub nvls_channels: Option<u32>,
    pub point_to_point_channels: Option<u32>,
    pub algorithms: Vec<Algorithm>,
    pub plugin: Plugin,
    pub ofi: OfiPlugin,
    pub no_infiniband: Option<String>,
    pub found_infiniband: bool,
    /// Pairs of GPU and card, or cards, for which GPUDirect RDMA was refused.
    pub gpu_direct_refused: u64,
    /// The path that was too long, and the limit.
    pub gpu_direct_distance: Option<(u32, u32)>,
    pub nvls_is_missing: bool,
    pub peer_to_peer_off: Option<String>,
    pub settings: BTreeMap<String, String>,
    /// Ranks whose first communicator was begun and not finished.
    pub unfinished: BTreeSet<u32>,
    pub warnings: Vec<String>,
}

/// Reads a log line by line.
#[derive(Debug, Default)]
pub struct LogReader {
    log: NcclLog,
    algorithms: BTreeMap<(String, String, String), Algorithm>,
    /// Host of a rank of the largest communicator: what connects two ranks of one host.
    host_of: BTreeMap<u32, u32>,
    hosts: BTreeMap<String, u32>,
    network_pairs: Vec<(u32, u32)>,
    started: BTreeMap<(u32, u32, u32), u32>,
    /// Warnings are told once.
    warned: BTreeSet<String>,
}

impl LogReader {
    /// Takes one line; lines that are not NCCL's are skipped.
    pub fn line(&mut self, text: &str) {
        if let Some((writer, event)) = line::read(text) {
            self.log.lines += 1;
            let host = writer.map(|writer| self.host(writer.host));
            self.take(event, host.unwrap_or(0), writer);
        }
    }

    fn host(&mut self, name: &str) -> u32 {
        let next = self.hosts.len() as u32;
        if let Some(known) = self.hosts.get(name) {
            return *known;
        }
        if self.hosts.len() < MOST_KEPT {
            self.hosts.insert(name.to_owned(), next);
        }
        next
    }

    fn take(&mut self, event: Event<'_>, host: u32, writer: Option<Writer<'_>>) {
        let log = &mut self.log;
        match event {
            Event::Version(version) => keep(&mut log.versions, version),
            Event::Connection(connection) => self.connect(&connection),
            Event::Choice(choice) => self.choose(&choice),
            Event::Channels(channels) => self.widen(channels),
            Event::Network(name) => keep(&mut log.networks, name),
            Event::InitStart { rank, ranks } => self.start(rank, ranks, host, writer),
            Event::InitComplete { rank, ranks } => self.complete(rank, ranks, writer),
            Event::Nodes { nodes } => log.nodes = log.nodes.max(nodes),
            Event::PluginMissing(told) => self.plugin(Plugin::Missing(cut(told))),
            Event::PluginUnusable(told) => self.plugin(Plugin::Unusable(cut(told))),
            Event::PluginLoaded(told) => self.plugin(Plugin::Loaded(cut(told))),
            Event::OfiVersion(version) => log.ofi.version = Some(cut(version)),
            Event::OfiLibfabric(version) => log.ofi.libfabric = Some(cut(version)),
            Event::OfiProvider { provider, cards } => {
                log.ofi.provider = Some(cut(provider));
                log.ofi.cards = Some(log.ofi.cards.map_or(cards, |known| known.min(cards)));
            }
            Event::OfiProtocol(protocol) => log.ofi.protocol = Some(cut(protocol)),
            Event::OfiFailed(told) => {
                log.ofi.failure.get_or_insert_with(|| cut(told));
            }
            Event::InfiniBandFound => log.found_infiniband = true,
            Event::NoInfiniBand(told) => log.no_infiniband = Some(cut(told)),
            Event::GpuDirect { is_enabled, distance } => {
                log.gpu_direct_refused += u64::from(!is_enabled);
                log.gpu_direct_distance = log.gpu_direct_distance.or(distance);
            }
            Event::NvlsMissing => log.nvls_is_missing = true,
            Event::PeerToPeerOff(told) => {
                log.peer_to_peer_off.get_or_insert_with(|| cut(told));
            }
            Event::SetByEnvironment { name, value } if log.settings.len() < MOST_KEPT => {
                log.settings.insert(cut(name), cut(value));
            }
            Event::SetByEnvironment { .. } => {}
            Event::Warning(told) => {
                let told = cut(told);
                if log.warnings.len() < MOST_KEPT && self.warned.insert(told.clone()) {
                    log.warnings.push(told);
                }
            }
        }
    }

    /// One loaded plugin decides; otherwise what could not be used tells more than what is missing.
    fn plugin(&mut self, plugin: Plugin) {
        let weight = |plugin: &Plugin| match plugin {
            Plugin::Unknown => 0,
            Plugin::Missing(_) => 1,
            Plugin::Unusable(_) => 2,
            Plugin::Loaded(_) => 3,
        };
        if weight(&plugin) > weight(&self.log.plugin) {
            self.log.plugin = plugin;
        }
    }

    fn connect(&mut self, connection: &Connection<'_>) {
        let transport = &mut self.log.transport;
        match &connection.via {
            Via::PeerToPeer(_) => transport.peer_to_peer += 1,
            Via::SharedMemory => transport.shared_memory += 1,
            Via::CollNet => transport.collnet += 1,
            Via::Network { name, has_gpu_direct } => {
                let count = if *has_gpu_direct {
                    &mut transport.network_gpu_direct
                } else {
                    &mut transport.network_staged
                };
                *count += 1;
                if self.log.network_connections.len() < MOST_KEPT {
                    *self.log.network_connections.entry(cut(name)).or_default() += 1;
                }
                if self.network_pairs.len() < MOST_KEPT {
                    self.network_pairs.push((connection.from, connection.to));
                }
            }
        }
    }

    fn choose(&mut self, choice: &Choice<'_>) {
        let key = (cut(choice.function), cut(choice.algorithm), cut(choice.protocol));
        if self.algorithms.len() >= MOST_KEPT && !self.algorithms.contains_key(&key) {
            return;
        }
        let entry = self.algorithms.entry(key.clone()).or_insert(Algorithm {
            function: key.0,
            algorithm: key.1,
            protocol: key.2,
            collectives: 0,
            smallest_bytes: u64::MAX,
            largest_bytes: 0,
        });
        entry.collectives += 1;
        entry.smallest_bytes = entry.smallest_bytes.min(choice.bytes);
        entry.largest_bytes = entry.largest_bytes.max(choice.bytes);
    }

    /// The widest communicator counts: small ones of pipeline stages have fewer channels by design.
    fn widen(&mut self, channels: Channels) {
        let wider =
            |known: &mut Option<u32>, count: u32| *known = Some(known.map_or(count, |it| it.max(count)));
        wider(&mut self.log.collective_channels, channels.collective);
        wider(&mut self.log.nvls_channels, channels.nvls);
        wider(&mut self.log.point_to_point_channels, channels.point_to_point);
    }

    fn start(&mut self, rank: u32, ranks: u32, host: u32, writer: Option<Writer<'_>>) {
        if ranks > self.log.ranks {
            self.log.ranks = ranks;
            self.host_of.clear();
        }
        if ranks == self.log.ranks && self.host_of.len() < MOST_KEPT {
            self.host_of.insert(rank, host);
        }
        if self.started.len() < MOST_KEPT {
            *self.started.entry((writer.map_or(0, |it| it.process), rank, ranks)).or_default() += 1;
        }
    }

    fn complete(&mut self, rank: u32, ranks: u32, writer: Option<Writer<'_>>) {
        self.log.ranks = self.log.ranks.max(ranks);
        if let Some(open) = self.started.get_mut(&(writer.map_or(0, |it| it.process), rank, ranks)) {
            *open = open.saturating_sub(1);
        }
    }

    /// Everything that was told.
    pub fn finish(mut self) -> NcclLog {
        let same_host = |(from, to): &&(u32, u32)| {
            self.host_of.get(from).is_some_and(|host| self.host_of.get(to) == Some(host))
        };
        self.log.network_within_host = self.network_pairs.iter().filter(same_host).count() as u64;
        self.log.nodes = self.log.nodes.max(self.hosts.len() as u32);
        self.log.hosts = self.hosts.into_keys().collect();
        self.log.algorithms = self.algorithms.into_values().collect();
        self.log.unfinished =
            self.started.iter().filter(|(_, open)| **open > 0).map(|((_, rank, _), _)| *rank).collect();
        self.log
    }
}

fn keep(set: &mut BTreeSet<String>, text: &str) {
    if set.len() < MOST_KEPT {
        set.insert(cut(text));
    }
}

fn cut(text: &str) -> String {
    text.chars().take(LONGEST_KEPT).collect()
}
