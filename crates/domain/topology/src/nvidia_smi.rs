//! The matrix of `nvidia-smi topo -m`: how the devices of one node are joined.
//!
//! Columns are GPUs and network cards (`NIC0`, or older `mlx5_0`), then `CPU Affinity`, `NUMA Affinity` and
//! `GPU NUMA ID` as far as the driver prints them. Cells are `X`, `NV#`, `PIX`, `PXB`, `PHB`, `NODE` and `SYS`.
//! Underlining, which the tool prints to terminals, is removed; tabs and spaces both separate columns. GPUs
//! joined by `NV#`, directly or over others, form one scale-up domain. The result is a cluster of one node;
//! which GPU it has comes from the `instance` or the `accelerator` option. The bandwidth of the domain is that
//! of the links that the matrix counts; more links than the GPU has are refused. Links over PCIe and the affinities of devices are
//! checked for their form and dropped.

use bedplate_catalog::{Accelerator, Catalog};
use bedplate_diag::{Place, Source};
use bedplate_units::Bandwidth;

use crate::draft::{ClusterDraft, check_limit, shown};
use crate::kind::{contradicts, find_accelerator};
use crate::{Cluster, ImportOptions, NodeKind, TopologyError};

const EXPECTED: &str = "a matrix of `nvidia-smi topo -m`";
const MAX_DEVICES: u64 = 512;

/// How two devices are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Joint {
    /// The device itself.
    Same,
    /// A number of bonded NVLinks (`NV18`).
    NvLink(u16),
    /// PCIe, over bridges or over the host.
    Pcie,
}

pub(crate) fn read(
    source: Source<'_>,
    options: &ImportOptions,
    catalog: &Catalog,
) -> Result<Cluster, TopologyError> {
    let matrix = Matrix::parse(source)?;
    let domains = matrix.domains();
    let kind = node_kind(&matrix, &domains, source, options, catalog)?;
    let mut draft = ClusterDraft {
        name: options.name.clone().unwrap_or_else(|| "localhost".to_owned()),
        ..ClusterDraft::default()
    };
    let kind = draft.kinds.intern(kind);
    draft.add_node("localhost", kind);
    draft.build(&|_| source.whole())
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

fn cell(word: &str) -> Option<Joint> {
    match word {
        "X" => Some(Joint::Same),
        "PIX" | "PXB" | "PHB" | "NODE" | "SYS" | "SOC" => Some(Joint::Pcie),
        _ => word.strip_prefix("NV")?.parse().ok().map(Joint::NvLink),
    }
}

/// The matrix as printed.
struct Matrix {
    /// `GPU3`, `NIC0`, `mlx5_0`.
    devices: Vec<String>,
    links: Vec<Option<Joint>>,
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
        for (index, line) in lines {
            let line = without_escapes(line);
            if let Some(row) = line.split_whitespace().next().and_then(|name| matrix.find(name)) {
                matrix.read_row(row, &line).map_err(|reason| malformed(reason, source.line(index + 1)))?;
            }
        }
        matrix.mirror();
        matrix.check_complete().map_err(|reason| malformed(reason, source.whole()))?;
        Ok(matrix)
    }

    fn from_header(header: &str, source: Source<'_>) -> Result<Self, TopologyError> {
        let names = header.split_whitespace().take_while(|word| *word != "CPU" && *word != "NUMA");
        let devices: Vec<String> = names.map(str::to_owned).collect();
        check_limit("devices in one node", devices.len() as u64, MAX_DEVICES, || source.whole())?;
        let links = vec![None; devices.len() * devices.len()];
        Ok(Self { devices, links })
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.devices.iter().position(|device| device == name)
    }

    fn read_row(&mut self, row: usize, line: &str) -> Result<(), String> {
        let width = self.devices.len();
        let mut words = line.split_whitespace().skip(1);
        if self.links[row * width..(row + 1) * width].iter().any(Option::is_some) {
            return Err(format!("the row of {} occurs twice", shown(&self.devices[row])));
        }
        for column in 0..width {
            let word = words.next().ok_or_else(|| format!("the row has {column} of {width} cells"))?;
            let link = cell(word).ok_or_else(|| format!("`{}` is not a kind of link", shown(word)))?;
            if (link == Joint::Same) != (row == column) {
                return Err(format!("cell {} is `{}`", column + 1, shown(word)));
            }
            self.links[row * width + column] = Some(link);
        }
        Ok(())
    }

    /// Rows that older drivers leave out are filled from the mirrored column.
    fn mirror(&mut self) {
        let width = self.devices.len();
        for row in 0..width {
            for column in 0..width {
                let mirrored = self.links[column * width + row];
                let own = &mut self.links[row * width + column];
                *own = own.or(mirrored).or((row == column).then_some(Joint::Same));
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
            Some(row) => Err(format!("the row of {} is missing", shown(&self.devices[row]))),
        }
    }

    fn is_gpu(&self, index: usize) -> bool {
        self.devices[index].starts_with("GPU")
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
                    if !is_taken[*to] && matches!(self.links[from * width + to], Some(Joint::NvLink(_))) {
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
        let count = |link: &Option<Joint>| match link {
            Some(Joint::NvLink(count)) => Some(*count),
            _ => None,
        };
        row.iter().filter_map(count).collect()
    }
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
