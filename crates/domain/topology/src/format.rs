//! The formats that clusters are read from and written to, and how to tell them apart.

use bedplate_catalog::Catalog;
use bedplate_diag::Source;

use crate::{
    Blocks, Cluster, ImportOptions, TopologyError, document, ec2, kubernetes, nvidia_smi, slurm, spec,
};

/// A format to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// One line, `p5.48xlarge:64`.
    Spec,
    /// `cluster.toml`.
    Document,
    /// `slurm.conf`, `topology.conf` and `topology.yaml`, alone or together.
    Slurm,
    /// The JSON of EC2's DescribeInstanceTopology.
    Ec2,
    /// A list of Kubernetes nodes, JSON or YAML.
    Kubernetes,
    /// The matrix of `nvidia-smi topo -m`.
    NvidiaSmi,
}

impl Format {
    pub const ALL: [(&'static str, Format); 6] = [
        ("spec", Format::Spec),
        ("toml", Format::Document),
        ("slurm", Format::Slurm),
        ("ec2", Format::Ec2),
        ("kubernetes", Format::Kubernetes),
        ("nvidia-smi", Format::NvidiaSmi),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }

    /// Refuses options that do not apply, because ignoring them would look like accepting them.
    pub(crate) fn check_options(
        self,
        options: &ImportOptions,
        source: Source<'_>,
    ) -> Result<(), TopologyError> {
        use Format::{Ec2, Kubernetes, NvidiaSmi, Slurm};
        let checks: [(&str, bool, &[Format]); 4] = [
            ("instance", options.instance.is_some(), &[Slurm, Ec2, Kubernetes, NvidiaSmi]),
            ("accelerator", options.accelerator.is_some(), &[Slurm, Kubernetes, NvidiaSmi]),
            ("blocks", options.blocks != Blocks::Automatic, &[Slurm]),
            ("topology", options.topology.is_some(), &[Slurm]),
        ];
        match checks.into_iter().find(|(_, is_given, formats)| *is_given && !formats.contains(&self)) {
            None => Ok(()),
            Some((option, ..)) => {
                Err(TopologyError::UnusedOption { option, format: self.title(), place: source.whole() })
            }
        }
    }

    fn title(self) -> &'static str {
        match self {
            Format::Spec => "a cluster in one line",
            Format::Document => "cluster.toml",
            Format::Slurm => "Slurm's files",
            Format::Ec2 => "EC2's instance topology",
            Format::Kubernetes => "a list of Kubernetes nodes",
            Format::NvidiaSmi => "a matrix of `nvidia-smi topo -m`",
        }
    }
}

/// A format to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExportFormat {
    /// `cluster.toml`; loses nothing.
    Document,
    /// `topology.conf` for the tree plugin.
    SlurmTree,
    /// `topology.conf` for the block plugin.
    SlurmBlock,
    /// `topology.yaml`.
    SlurmYaml,
    /// The `NodeName` lines of `slurm.conf`.
    SlurmNodes,
}

impl ExportFormat {
    pub const ALL: [(&'static str, ExportFormat); 5] = [
        ("toml", ExportFormat::Document),
        ("slurm-tree", ExportFormat::SlurmTree),
        ("slurm-block", ExportFormat::SlurmBlock),
        ("slurm-yaml", ExportFormat::SlurmYaml),
        ("slurm-nodes", ExportFormat::SlurmNodes),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// Reads a cluster from one or more texts of a format.
///
/// Slurm takes its files in any order, EC2 the pages of one answer; the others take a single text. An option
/// that does not apply to the format is refused. A leading byte order mark is skipped.
pub fn import(
    format: Format,
    sources: &[Source<'_>],
    options: &ImportOptions,
    catalog: &Catalog,
) -> Result<Cluster, TopologyError> {
    let sources: Vec<Source<'_>> = sources.iter().copied().map(without_mark).collect();
    let [first, rest @ ..] = sources.as_slice() else { return Err(empty(&sources)) };
    if sources.iter().all(|source| source.text.trim().is_empty()) {
        return Err(empty(&sources));
    }
    format.check_options(options, *first)?;
    if let (Some(second), false) = (rest.first(), matches!(format, Format::Slurm | Format::Ec2)) {
        return Err(TopologyError::Malformed {
            expected: "a single file",
            reason: format!("`{}` is given too, and only Slurm and EC2 have several", second.name),
            place: second.whole(),
        });
    }
    let mut cluster = match format {
        Format::Spec => spec::read(*first, catalog)?,
        Format::Document => document::read(*first, catalog)?,
        Format::Slurm => slurm::read(&sources, options, catalog)?,
        Format::Ec2 => ec2::read(&sources, options, catalog)?,
        Format::Kubernetes => kubernetes::read(*first, options, catalog)?,
        Format::NvidiaSmi => nvidia_smi::read(*first, options, catalog)?,
    };
    if let Some(name) = &options.name {
        cluster.name.clone_from(name);
    }
    Ok(cluster)
}

/// Writes a cluster. Every cluster can be written in every format; Slurm's say less than `cluster.toml`.
pub fn export(cluster: &Cluster, format: ExportFormat) -> String {
    match format {
        ExportFormat::Document => document::write(cluster),
        ExportFormat::SlurmTree => slurm::tree_conf(cluster),
        ExportFormat::SlurmBlock => slurm::block_conf(cluster),
        ExportFormat::SlurmYaml => slurm::topology_yaml(cluster),
        ExportFormat::SlurmNodes => slurm::node_lines(cluster),
    }
}

/// How much of a text is examined to detect its format.
const LOOKED_AT: usize = 64 * 1024;

/// The format of a text by its content, else by its file extension; none where neither helps.
pub fn detect(source: Source<'_>) -> Option<Format> {
    let source = without_mark(source);
    by_content(source.text).or_else(|| by_ending(source).filter(|_| !source.text.trim().is_empty()))
}

fn by_content(whole: &str) -> Option<Format> {
    let text = head(whole);
    if let Some(format) = detect_json(text.trim_start()) {
        return Some(format);
    }
    if nvidia_smi::looks_like(text) {
        return Some(Format::NvidiaSmi);
    }
    detect_lines(text).or_else(|| is_spec(whole).then_some(Format::Spec))
}

/// A text with unrecognised content is most likely misspelt; the reader of its format says where.
fn by_ending(source: Source<'_>) -> Option<Format> {
    let name = source.name.to_ascii_lowercase();
    match name.rsplit_once('.')?.1 {
        "toml" => Some(Format::Document),
        "conf" => Some(Format::Slurm),
        "yaml" | "yml" if slurm::is_yaml(source.text) => Some(Format::Slurm),
        "yaml" | "yml" => Some(Format::Kubernetes),
        _ => None,
    }
}

/// Like [`import`], with the format of the first text for which [`detect`] finds one.
pub fn import_detected(
    sources: &[Source<'_>],
    options: &ImportOptions,
    catalog: &Catalog,
) -> Result<Cluster, TopologyError> {
    match sources.iter().find_map(|source| detect(*source)) {
        Some(format) => import(format, sources, options, catalog),
        None => Err(match sources.iter().find(|source| !without_mark(**source).text.trim().is_empty()) {
            Some(source) => TopologyError::UnknownFormat { place: source.place(0) },
            None => empty(sources),
        }),
    }
}

fn empty(sources: &[Source<'_>]) -> TopologyError {
    let first = sources.first().copied().unwrap_or(Source::new("cluster", ""));
    TopologyError::Empty { place: first.whole() }
}

/// The text without the byte order mark that some editors prepend.
pub(crate) fn without_mark(source: Source<'_>) -> Source<'_> {
    Source::new(source.name, source.text.strip_prefix('\u{feff}').unwrap_or(source.text))
}

fn head(text: &str) -> &str {
    let mut end = text.len().min(LOOKED_AT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn detect_json(text: &str) -> Option<Format> {
    if !text.starts_with('{') {
        return None;
    }
    if text.contains("\"Instances\"") || text.contains("\"NetworkNodes\"") {
        return Some(Format::Ec2);
    }
    text.contains("\"kind\"").then_some(Format::Kubernetes)
}

/// The first line that only one format can have decides.
fn detect_lines(text: &str) -> Option<Format> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).find_map(|line| {
        let lower = line.get(..40.min(line.len())).unwrap_or(line).to_ascii_lowercase();
        let key = lower.split(['=', ':', ' ', '\t']).next().unwrap_or("");
        match key {
            "switchname" | "blockname" | "blocksizes" | "nodename" | "clustername" | "slurmctldhost"
            | "partitionname" => Some(Format::Slurm),
            "apiversion" | "kind" | "items" if line.contains(':') => Some(Format::Kubernetes),
            "-" if lower.starts_with("- topology:") => Some(Format::Slurm),
            "[[group]]" | "[[switch]]" | "[[kind]]" | "[fabric]" | "[[storage]]" | "[[health]]"
            | "[[domain]]" => Some(Format::Document),
            _ => None,
        }
    })
}

fn is_spec(text: &str) -> bool {
    let text = text.trim();
    let is_part = |part: &str| {
        let part = part.trim();
        part.starts_with(|c: char| c.is_ascii_alphabetic())
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b".-:_".contains(&b))
    };
    !text.is_empty() && text.len() <= 4096 && text.split('+').all(is_part)
}
