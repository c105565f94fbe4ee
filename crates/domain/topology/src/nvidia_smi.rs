//! The matrix of `nvidia-smi topo -m`: how the devices of one node are joined.
//!
//! Columns are GPUs and network cards (`NIC0`, or older `mlx5_0`), then `CPU Affinity`, `NUMA Affinity` and
//! `GPU NUMA ID` as far as the driver prints them. Cells are `X`, `NV#`, `PIX`, `PXB`, `PHB`, `NODE` and `SYS`.
//! Underlining, which the tool prints to terminals, is removed; tabs and spaces both separate columns. GPUs
//! joined by `NV#`, directly or over others, form one scale-up domain. The result is a cluster of one node;
//! which GPU it has comes from the `instance` or the `accelerator` option. The bandwidth of the domain is that
//! of the links that the matrix counts; more links than the GPU has are refused.
//!
//! GPUs of a cluster are numbered domain by domain. Where the matrix mixes domains (GPU0 with GPU2, GPU1 with
//! GPU3), [`NodeLinks`] keeps them in the cluster's order and under the names of the matrix.

use std::cmp::Ordering;

use bedplate_catalog::{Accelerator, Catalog};
use bedplate_diag::{Place, Source};
use bedplate_units::Bandwidth;

use crate::draft::{ClusterDraft, check_limit, shown};
use crate::format::without_mark;
use crate::kind::{contradicts, find_accelerator};
use crate::{Cluster, Format, ImportOptions, NodeKind, TopologyError};

const EXPECTED: &str = "a matrix of `nvidia-smi topo -m`";
const MAX_DEVICES: u64 = 512;

/// One node and the links within it.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeTopology {
    pub cluster: Cluster,
    pub links: NodeLinks,
}

/// How the GPUs and network cards of one node are joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLinks {
    /// In the order of the cluster's GPUs of that node.
    pub gpus: Vec<Device>,
    pub network_cards: Vec<Device>,
    /// Row by row over GPUs, then network cards.
    links: Vec<Link>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// As in the matrix: `GPU3`, `NIC0`.
    pub name: String,
    /// The network card behind `NIC0`, such as `mlx5_0`, from the legend.
    pub legend: Option<String>,
    /// Cores next to the device, such as `0-23,96-119`.
    pub cpu_affinity: Option<String>,
    pub numa_affinity: Option<String>,
}

/// How two devices are joined. A smaller link is a better one, and of NVLinks the one with more of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// The device itself.
    Same,
    /// A number of bonded NVLinks (`NV18`).
    NvLink(u16),
    /// At most one PCIe bridge (`PIX`).
    PcieSwitch,
    /// Several PCIe bridges, but not the host's (`PXB`).
    PcieSwitches,
    /// The PCIe host bridge, that is the CPU (`PHB`).
    HostBridge,
    /// Host bridges within one NUMA node (`NODE`).
    NumaNode,
    /// The link between NUMA nodes (`SYS`).
    System,
}

impl Link {
    fn rank(self) -> u32 {
        match self {
            Link::Same => 0,
            Link::NvLink(count) => 1 + u32::from(u16::MAX - count),
            Link::PcieSwitch => 0x1_0001,
            Link::PcieSwitches => 0x1_0002,
            Link::HostBridge => 0x1_0003,
            Link::NumaNode => 0x1_0004,
            Link::System => 0x1_0005,
        }
    }
}

impl Ord for Link {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for Link {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl NodeLinks {
    /// The link between two GPUs, by number within the node.
    pub fn gpu_link(&self, a: u32, b: u32) -> Option<Link> {
        self.link(a as usize, b as usize, self.gpus.len(), self.gpus.len())
    }

    /// The link between a GPU and a network card.
    pub fn network_link(&self, gpu: u32, card: u32) -> Option<Link> {
        let width = self.gpus.len() + self.network_cards.len();
        self.link(gpu as usize, self.gpus.len() + card as usize, self.gpus.len(), width)
    }

    fn link(&self, row: usize, column: usize, rows: usize, columns: usize) -> Option<Link> {
        let width = self.gpus.len() + self.network_cards.len();
        (row < rows && column < columns).then(|| self.links[row * width + column])
    }

    /// The network cards nearest to a GPU: those with its best link, in order.
    pub fn nearest_cards(&self, gpu: u32) -> Vec<u32> {
        let cards = || 0..self.network_cards.len() as u32;
        let best = cards().filter_map(|card| self.network_link(gpu, card)).min();
        cards().filter(|card| best.is_some() && self.network_link(gpu, *card) == best).collect()
    }
}

/// Reads the matrix and keeps the links, which [`import`](crate::import) drops.
pub fn read_nvidia_smi(
    source: Source<'_>,
    options: &ImportOptions,
    catalog: &Catalog,
) -> Result<NodeTopology, TopologyError> {
    Format::NvidiaSmi.check_options(options, source)?;
    read(without_mark(source), options, catalog)
}

pub(crate) fn read(
    source: Source<'_>,
    options: &ImportOptions,
    catalog: &Catalog,
) -> Result<NodeTopology, TopologyError> {
    let matrix = Matrix::parse(source)?;
    let domains = matrix.domains();
    let kind = node_kind(&matrix, &domains, source, options, catalog)?;
    let mut draft = ClusterDraft {
        name: options.name.clone().unwrap_or_else(|| "localhost".to_owned()),
        ..ClusterDraft::default()
    };
    let kind = draft.kinds.intern(kind);
    draft.add_node("localhost", kind);
    let cluster = draft.build(&|_| source.whole())?;
    Ok(NodeTopology { cluster, links: matrix.into_links(&domains) })
}

/// Whether a text has the header of the matrix: several columns, the first being `GPU0`.
pub(crate) fn looks_like(text: &str) -> bool {
    text.lines().any(|line| is_header(&without_escapes(line)))
}

fn is_header(line: &str) -> bool {
    let mut words = line.split_whitespace();
    words.next() == Some("GPU0") && words.all(|word| cell(word).is_none())
}

/// The text without terminal escapes such as the underlining `ESC [4m`.
fn without_escapes(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        if character != '\u{1b}' {
            text.push(character);
        } else if characters.next() == Some('[') {
            // Parameters up to the final letter.
            let _ = characters.find(|c| ('\u{40}'..='\u{7e}').contains(c));
        }
    }
    text
}

fn cell(word: &str) -> Option<Link> {
    match word {
        "X" => Some(Link::Same),
        "PIX" => Some(Link::PcieSwitch),
        "PXB" => Some(Link::PcieSwitches),
        "PHB" => Some(Link::HostBridge),
        "NODE" => Some(Link::NumaNode),
        "SYS" | "SOC" => Some(Link::System),
        _ => word.strip_prefix("NV")?.parse().ok().map(Link::NvLink),
    }
}

/// The matrix as printed.
struct Matrix {
    devices: Vec<Device>,
    links: Vec<Option<Link>>,
}

impl Matrix {
    fn parse(source: Source<'_>) -> Result<Self, TopologyError> {
        let mut lines = source.text.lines().enumerate();
        let malformed =
            |reason: String, place: Place| TopologyError::Malformed { expected: EXPECTED, reason, place };
        let header = lines.by_ref().map(|(_, line)| without_escapes(line)).find(|line| is_header(line));
        let header =
            header.ok_or_else(|| malformed("there is no header with GPU0".into(), source.whole()))?;
        let mut matrix = Self::from_header(&header, source)?;
        let mut legend = Vec::new();
        for (index, line) in lines {
            let line = without_escapes(line);
            match line.split_whitespace().next().and_then(|name| matrix.find(name)) {
                Some(row) => {
                    matrix.read_row(row, &line).map_err(|reason| malformed(reason, source.line(index + 1)))?
                }
                None => legend.extend(legend_entry(&line)),
            }
        }
        matrix.add_legend(legend);
        matrix.mirror();
        matrix.check_complete().map_err(|reason| malformed(reason, source.whole()))?;
        Ok(matrix)
    }

    fn from_header(header: &str, source: Source<'_>) -> Result<Self, TopologyError> {
        let names = header.split_whitespace().take_while(|word| *word != "CPU" && *word != "NUMA");
        let device = |name: &str| Device {
            name: name.to_owned(),
            legend: None,
            cpu_affinity: None,
            numa_affinity: None,
        };
        let devices: Vec<Device> = names.map(device).collect();
        check_limit("devices in one node", devices.len() as u64, MAX_DEVICES, || source.whole())?;
        let links = vec![None; devices.len() * devices.len()];
        Ok(Self { devices, links })
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.devices.iter().position(|device| device.name == name)
    }

    fn read_row(&mut self, row: usize, line: &str) -> Result<(), String> {
        let width = self.devices.len();
        let mut words = line.split_whitespace().skip(1);
        if self.links[row * width..(row + 1) * width].iter().any(Option::is_some) {
            return Err(format!("the row of {} occurs twice", shown(&self.devices[row].name)));
        }
        for column in 0..width {
            let word = words.next().ok_or_else(|| format!("the row has {column} of {width} cells"))?;
            let link = cell(word).ok_or_else(|| format!("`{}` is not a kind of link", shown(word)))?;
            if (link == Link::Same) != (row == column) {
                return Err(format!("cell {} is `{}`", column + 1, shown(word)));
            }
            self.links[row * width + column] = Some(link);
        }
        let known = |word: Option<&str>| word.filter(|word| *word != "N/A").map(str::to_owned);
        self.devices[row].cpu_affinity = known(words.next());
        self.devices[row].numa_affinity = known(words.next());
        Ok(())
    }

    fn add_legend(&mut self, legend: Vec<(String, String)>) {
        for (name, card) in legend {
            if let Some(index) = self.find(&name) {
                self.devices[index].legend = Some(card);
            }
        }
    }

    /// Rows that older drivers leave out are filled from the mirrored column.
    fn mirror(&mut self) {
        let width = self.devices.len();
        for row in 0..width {
            for column in 0..width {
                let mirrored = self.links[column * width + row];
                let own = &mut self.links[row * width + column];
                *own = own.or(mirrored).or((row == column).then_some(Link::Same));
            }
        }
    }

    fn check_complete(&self) -> Result<(), String> {
        let width = self.devices.len();
        let is_missing = |row: &usize| {
            self.is_gpu(*row) && self.links[row * width..(row + 1) * width].iter().any(Option::is_none)
        };
        match (0..width).find(is_missing) {
            None => Ok(()),
            Some(row) => Err(format!("the row of {} is missing", shown(&self.devices[row].name))),
        }
    }

    fn is_gpu(&self, index: usize) -> bool {
        self.devices[index].name.starts_with("GPU")
    }

    fn gpus(&self) -> Vec<usize> {
        (0..self.devices.len()).filter(|index| self.is_gpu(*index)).collect()
    }

    /// GPUs by connected component over NVLink, in order of the first GPU of each.
    fn domains(&self) -> Vec<Vec<usize>> {
        let width = self.devices.len();
        let gpus = self.gpus();
        let mut is_taken = vec![false; width];
        let mut domains = Vec::new();
        for first in &gpus {
            if is_taken[*first] {
                continue;
            }
            is_taken[*first] = true;
            let mut domain = vec![*first];
            let mut next = 0;
            while let Some(from) = domain.get(next).copied() {
                for to in &gpus {
                    if !is_taken[*to] && matches!(self.links[from * width + to], Some(Link::NvLink(_))) {
                        is_taken[*to] = true;
                        domain.push(*to);
                    }
                }
                next += 1;
            }
            domain.sort_unstable();
            domains.push(domain);
        }
        domains
    }

    /// How many NVLinks join a GPU with each of its neighbours.
    fn nvlinks(&self, gpu: usize) -> Vec<u16> {
        let row = &self.links[gpu * self.devices.len()..(gpu + 1) * self.devices.len()];
        let count = |link: &Option<Link>| match link {
            Some(Link::NvLink(count)) => Some(*count),
            _ => None,
        };
        row.iter().filter_map(count).collect()
    }

    fn into_links(self, domains: &[Vec<usize>]) -> NodeLinks {
        let gpus: Vec<usize> = domains.iter().flatten().copied().collect();
        let cards = (0..self.devices.len()).filter(|index| !self.is_gpu(*index));
        let order: Vec<usize> = gpus.iter().copied().chain(cards).collect();
        let width = self.devices.len();
        // The matrix may leave out a pair of network cards; this is the worst possible link.
        let link = |row: usize, column: usize| self.links[row * width + column].unwrap_or(Link::System);
        let links = order.iter().flat_map(|row| order.iter().map(|column| link(*row, *column))).collect();
        let mut devices: Vec<Device> = order.iter().map(|index| self.devices[*index].clone()).collect();
        let network_cards = devices.split_off(gpus.len());
        NodeLinks { gpus: devices, network_cards, links }
    }
}

/// `  NIC0: mlx5_0`.
fn legend_entry(line: &str) -> Option<(String, String)> {
    let (name, card) = line.trim().split_once(':')?;
    let (name, card) = (name.trim(), card.trim());
    let is_entry = !card.is_empty() && name.starts_with("NIC") && !name.contains(' ');
    is_entry.then(|| (name.to_owned(), card.to_owned()))
}

fn node_kind(
    matrix: &Matrix,
    domains: &[Vec<usize>],
    source: Source<'_>,
    options: &ImportOptions,
    catalog: &Catalog,
) -> Result<NodeKind, TopologyError> {
    let gpus = matrix.gpus().len() as u32;
    let cards = matrix.devices.len() as u32 - gpus;
    let sizes: Vec<u32> = domains.iter().map(|domain| domain.len() as u32).collect();
    let hardware = |error| TopologyError::unknown_hardware(error, catalog, source.whole());
    if let Some(name) = &options.instance {
        let instance = catalog.instance(name).map_err(hardware)?;
        let kind = NodeKind::from_instance(instance, catalog);
        check_instance(&kind, gpus, source, options, catalog)?;
        let links = Links::of(catalog.accelerator_of(instance), catalog);
        let measured = links.map(|links| links.bandwidth(matrix, source)).transpose()?;
        // The instance's own figure, unless the matrix shows fewer links than there should be.
        let bandwidth = match measured {
            Some(Some(measured)) if Some(measured) < kind.scale_up_bandwidth => Some(measured),
            _ => kind.scale_up_bandwidth,
        };
        let is_as_sold = kind.domain_sizes == sizes && kind.scale_up_bandwidth == bandwidth;
        let kind = NodeKind { scale_up_bandwidth: bandwidth, ..kind };
        return Ok(if is_as_sold { kind } else { split_kind(kind, sizes, cards) });
    }
    let Some(name) = &options.accelerator else {
        let remedy = "the matrix does not name the GPU; name it with `--accelerator`, or the machine with `--instance`";
        return Err(TopologyError::MissingGpuType {
            node: "localhost".to_owned(),
            remedy,
            place: source.whole(),
        });
    };
    let accelerator = find_accelerator(name, catalog).map_err(hardware)?;
    let kind = NodeKind::from_accelerator(accelerator, gpus, catalog);
    let bandwidth = match Links::of(accelerator, catalog) {
        Some(links) => links.bandwidth(matrix, source)?,
        None => None,
    };
    Ok(split_kind(NodeKind { scale_up_bandwidth: bandwidth, ..kind }, sizes, cards))
}

/// Whether matrix and options agree with the node's stated instance.
fn check_instance(
    kind: &NodeKind,
    gpus: u32,
    source: Source<'_>,
    options: &ImportOptions,
    catalog: &Catalog,
) -> Result<(), TopologyError> {
    let (node, instance, place) = ("localhost".to_owned(), kind.name.clone(), source.whole());
    let named = options.accelerator.as_ref();
    if let Some(found) = named.and_then(|named| contradicts(named, kind, catalog)) {
        let expected = kind.accelerator.clone().unwrap_or_default();
        return Err(TopologyError::OtherGpu { node, found, instance, expected, place });
    }
    if kind.accelerators != gpus {
        let (found, expected) = (gpus, kind.accelerators);
        return Err(TopologyError::GpuCount { node, instance, found, expected, place });
    }
    Ok(())
}

/// The NVLinks of one GPU: how many there are, and what one carries.
struct Links {
    accelerator: String,
    count: u16,
    one_way: Bandwidth,
}

impl Links {
    /// Links by fabric, as `nvidia-smi topo -m` counts them on whole machines. The catalog has the bandwidth
    /// of all of them together.
    const COUNTS: [(&'static str, u16); 6] = [
        ("nvlink2", 6),
        ("nvlink3", 12),
        ("nvlink4", 18),
        ("nvlink4-400", 8),
        ("nvlink4-bridge", 12),
        ("nvlink5", 18),
    ];

    fn of(accelerator: &Accelerator, catalog: &Catalog) -> Option<Self> {
        let fabric = catalog.fabric(accelerator.scale_up.as_ref()?).ok()?;
        let (_, count) = Self::COUNTS.into_iter().find(|(name, _)| *name == fabric.name)?;
        let one_way = fabric.one_way_per_accelerator()? / f64::from(count);
        Some(Self { accelerator: accelerator.name.clone(), count, one_way })
    }

    /// What the GPU with the fewest links can send; none without links.
    fn bandwidth(&self, matrix: &Matrix, source: Source<'_>) -> Result<Option<Bandwidth>, TopologyError> {
        let mut fewest: Option<u32> = None;
        for gpu in matrix.gpus() {
            let counts = matrix.nvlinks(gpu);
            if let Some(found) = counts.iter().copied().find(|found| *found > self.count) {
                let (accelerator, expected) = (self.accelerator.clone(), self.count);
                return Err(TopologyError::LinkCount { found, accelerator, expected, place: source.whole() });
            }
            if let Some(links) = self.in_use(&counts) {
                fewest = Some(fewest.map_or(links, |fewest| fewest.min(links)));
            }
        }
        Ok(fewest.map(|links| self.one_way * f64::from(links)))
    }

    /// The links of a GPU over which its neighbours are reached.
    ///
    /// Direct links cannot add up to more than the GPU has. Where they seem to, there is a switch between: every
    /// neighbour is reached over the same links, and the worst one counts.
    fn in_use(&self, counts: &[u16]) -> Option<u32> {
        let sum: u32 = counts.iter().map(|count| u32::from(*count)).sum();
        let fewest = counts.iter().copied().min()?;
        Some(if sum <= u32::from(self.count) { sum } else { fewest.into() })
    }
}

/// The kind with the domains that the matrix shows, which need not be those of the catalog.
fn split_kind(kind: NodeKind, sizes: Vec<u32>, cards: u32) -> NodeKind {
    let has_links = sizes.iter().any(|size| *size > 1);
    NodeKind {
        name: kind.instance.unwrap_or(kind.name),
        instance: None,
        domain_sizes: sizes,
        scale_up_bandwidth: kind.scale_up_bandwidth.filter(|_| has_links),
        network_cards: kind.network_cards.or((cards > 0).then_some(cards)),
        ..kind
    }
}
