//! Where a cluster comes from: a specification, or files of some format.

pub(crate) mod slurm;

use bedplate_catalog::Catalog;
use bedplate_diag::Source;
use bedplate_terminal::{CliError, Console, choice, files};
use bedplate_topology::{Blocks, Cluster, Format, ImportOptions, import, import_detected};

/// What a description leaves open, and the format where it cannot be detected.
#[derive(clap::Args, Default)]
pub(crate) struct Reading {
    /// The format of the files; detected from their content by default
    #[arg(long, value_parser = choice(&Format::ALL))]
    format: Option<Format>,
    /// The catalog instance of every GPU node
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
    /// The accelerator of nodes that only count their GPUs
    #[arg(long, value_name = "NAME")]
    accelerator: Option<String>,
    /// A name for the cluster
    #[arg(long)]
    name: Option<String>,
    /// What Slurm blocks are
    #[arg(long, value_enum, default_value = "automatic")]
    blocks: BlockMeaning,
    /// The topology of a topology.yaml that has several
    #[arg(long, value_name = "NAME")]
    topology: Option<String>,
}

#[derive(Clone, Copy, Default, clap::ValueEnum)]
enum BlockMeaning {
    /// Scale-up domains where the accelerator has domains over several nodes, else leaves
    #[default]
    Automatic,
    /// Scale-up domains such as NVL72 racks
    Domains,
    /// Groups of nodes below one leaf
    Leaves,
}

impl Reading {
    fn options(&self) -> ImportOptions {
        ImportOptions {
            name: self.name.clone(),
            instance: self.instance.clone(),
            accelerator: self.accelerator.clone(),
            blocks: match self.blocks {
                BlockMeaning::Automatic => Blocks::Automatic,
                BlockMeaning::Domains => Blocks::Domains,
                BlockMeaning::Leaves => Blocks::Leaves,
            },
            topology: self.topology.clone(),
            allows_unknown: false,
        }
    }
}

/// A cluster from a specification or a file, without options.
pub(crate) fn load(text: &str, catalog: &Catalog) -> Result<Cluster, CliError> {
    load_all(&[text.to_owned()], &Reading::default(), catalog)
}

/// A cluster from a specification or from files of one description.
pub(crate) fn load_all(inputs: &[String], reading: &Reading, catalog: &Catalog) -> Result<Cluster, CliError> {
    if let [only] = inputs
        && let Some(slurm) = slurm::named(only)?
    {
        return slurm::load(&slurm, &[], reading.options(), catalog);
    }
    if let [spec] = inputs
        && !is_file(spec)
    {
        return Ok(import(
            Format::Spec,
            &[Source::new("the command line", spec)],
            &reading.options(),
            catalog,
        )?);
    }
    let texts = inputs.iter().map(|path| files::read_text(path)).collect::<Result<Vec<_>, _>>()?;
    let sources: Vec<Source<'_>> =
        inputs.iter().zip(&texts).map(|(path, text)| Source::new(path, text)).collect();
    Ok(match reading.format {
        Some(format) => import(format, &sources, &reading.options(), catalog)?,
        None => import_detected(&sources, &reading.options(), catalog)?,
    })
}

/// Writes the text of a cluster, with a summary.
pub(crate) fn write_cluster(
    cluster: &Cluster,
    text: &str,
    path: &str,
    console: &Console,
) -> Result<(), CliError> {
    files::write_text(path, text)?;
    console.say(&format!("wrote {path}: {} nodes, {} GPUs", cluster.node_count(), cluster.gpu_count()));
    Ok(())
}

/// Specifications have neither slashes nor file extensions.
fn is_file(text: &str) -> bool {
    let endings = [".toml", ".conf", ".yaml", ".yml", ".json", ".txt"];
    text == "-"
        || text.contains('/')
        || endings.iter().any(|ending| text.ends_with(ending))
        || std::path::Path::new(text).is_file()
}
