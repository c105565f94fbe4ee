//! What a cluster on this machine shall be, and how that is remembered in its state directory.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

use bedplate_catalog::Catalog;
use bedplate_diag::Source;
use bedplate_drivers::StateDirectory;
use bedplate_terminal::{CliError, Context, files};
use bedplate_topology::{Cluster, ExportFormat, Format, ImportOptions, export, import};
use serde_json::{Value, json};

use super::share::{Share, shares};
use super::{Arguments, UpError};
use crate::commands::cluster;
use crate::machine::Machine;

/// A cluster of this machine: which nodes it has and what each gets of the machine.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shape {
    pub(crate) name: String,
    /// cluster.toml.
    pub(crate) cluster: String,
    /// Those of this machine.
    pub(crate) nodes: Vec<Share>,
    /// How many of its nodes are other machines, which join.
    pub(crate) remote: u32,
    pub(crate) site: Option<String>,
    pub(crate) probe: Option<String>,
    pub(crate) listen: Option<String>,
    pub(crate) watch: Watch,
}

/// How nodes watch themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Watch {
    pub(crate) rules: Option<String>,
    pub(crate) profile: Option<String>,
    /// The first node's port for Prometheus.
    pub(crate) export: Option<u16>,
    pub(crate) root: Option<String>,
}

impl Watch {
    /// What an agent is told, the `number`th of its machine.
    pub(crate) fn arguments(&self, node: &str, number: usize) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut add = |flag: &str, value: Option<String>| {
            arguments.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value]));
        };
        add("--health-rules", self.rules.clone());
        add("--profile", self.profile.clone());
        let port = self.export.and_then(|first| first.checked_add(u16::try_from(number).ok()?));
        add("--export", port.map(|port| format!("127.0.0.1:{port}")));
        add("--observe-root", self.root.as_ref().map(|root| format!("{root}/{node}")));
        arguments
    }
}

impl Shape {
    pub(crate) fn new(arguments: &Arguments, context: &Context, machine: Machine) -> Result<Self, CliError> {
        let catalog = context.load_catalog()?;
        let cluster = wanted(arguments, &catalog, machine)?;
        let shape = Self {
            name: cluster.name().to_owned(),
            nodes: shares(&cluster, cluster.node_count().saturating_sub(arguments.remote), machine),
            remote: arguments.remote,
            cluster: export(&cluster, ExportFormat::Document),
            site: None,
            probe: None,
            listen: None,
            watch: Watch::default(),
        };
        shape.with_rules(arguments)
    }

    /// The same cluster by other rules, where the command line names some.
    pub(crate) fn with_rules(self, arguments: &Arguments) -> Result<Self, CliError> {
        if self.remote > 0 {
            let listen = arguments.listen.as_ref().or(self.listen.as_ref());
            if listen.and_then(|listen| reachable_address(listen)).is_none() {
                return Err(UpError::Unreachable { listen: listen.cloned() }.into());
            }
        }
        let absolute = |path: &std::path::PathBuf| match fs::canonicalize(path) {
            Ok(path) => Ok(path.display().to_string()),
            Err(source) => Err(files::FileError::Read { path: path.display().to_string(), source }),
        };
        Ok(Self {
            site: arguments.site.as_ref().map(absolute).transpose()?.or(self.site),
            probe: arguments.probe.clone().or(self.probe),
            listen: arguments.listen.clone().or(self.listen),
            watch: Watch {
                rules: arguments.health_rules.as_ref().map(absolute).transpose()?.or(self.watch.rules),
                profile: arguments.profile.map(|name| name.profile().to_string()).or(self.watch.profile),
                export: arguments.export.or(self.watch.export),
                root: arguments.observe_root.as_ref().map(absolute).transpose()?.or(self.watch.root),
            },
            ..self
        })
    }

    /// The shape that the cluster of a directory has.
    pub(crate) fn load(state: &StateDirectory) -> Result<Self, CliError> {
        Self::find(state)?.ok_or_else(|| UpError::NoShape { state: state.path().to_owned() }.into())
    }

    /// As [`Shape::load`]; nothing where no cluster has been.
    pub(crate) fn find(state: &StateDirectory) -> Result<Option<Self>, CliError> {
        let path = state.path().join(FILE);
        match fs::read_to_string(&path) {
            Ok(text) => {
                let shape = serde_json::from_str(&text).ok().and_then(|value| Self::from_json(&value));
                let broken = || io::Error::new(io::ErrorKind::InvalidData, "it does not describe a cluster");
                shape.map(Some).ok_or_else(|| UpError::State { path, source: broken() }.into())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(UpError::State { path, source }.into()),
        }
    }

    pub(crate) fn keep(&self, state: &StateDirectory) -> Result<(), CliError> {
        let path = state.path();
        make_private(path).map_err(|source| UpError::State { path: path.to_owned(), source })?;
        for (name, text) in [(FILE, &format!("{:#}\n", self.json())), ("cluster.toml", &self.cluster)] {
            let path = path.join(name);
            files::write_text(&path.display().to_string(), text)?;
            let private = fs::set_permissions(&path, fs::Permissions::from_mode(0o600));
            private.map_err(|source| UpError::State { path, source })?;
        }
        Ok(())
    }

    pub(crate) fn read_cluster(&self, catalog: &Catalog) -> Result<Cluster, CliError> {
        let source = Source::new("cluster.toml", &self.cluster);
        Ok(import(Format::Document, &[source], &ImportOptions::default(), catalog)?)
    }

    pub(crate) fn summary(&self) -> String {
        let gpus: u32 = self.nodes.iter().map(|node| node.gpus).sum();
        let elsewhere = match self.remote {
            0 => String::new(),
            remote => format!(", {remote} more on other machines"),
        };
        format!("{}, {} nodes, {gpus} GPUs{elsewhere}", self.name, self.nodes.len())
    }

    /// Where ranks on other machines reach those of this one, when there are other machines.
    pub(crate) fn address(&self) -> Option<String> {
        let listen = self.listen.as_ref().filter(|_| self.remote > 0)?;
        reachable_address(listen).map(|address| address.to_string())
    }

    pub(crate) fn share(&self, node: &str) -> Option<&Share> {
        self.nodes.iter().find(|share| share.node == node)
    }

    /// What the nodes pretend to have beyond the machine; nothing when they do not.
    pub(crate) fn over_commitment(&self, machine: Machine) -> Vec<String> {
        let count = self.nodes.len();
        let vcpus: u64 = self.nodes.iter().map(|node| u64::from(node.vcpus)).sum();
        let memory: u64 = self.nodes.iter().map(|node| node.pretended_mib).sum();
        let each = |value: String| if count == 1 { value } else { format!("{value} each") };
        let mut lines = Vec::new();
        let pretend =
            if count == 1 { "1 node pretends".to_owned() } else { format!("{count} nodes pretend") };
        if vcpus > u64::from(machine.cores) {
            let vcpus = each(format!("{} vCPUs", self.nodes[0].vcpus));
            lines.push(format!("{pretend} {vcpus} on {} real cores", machine.cores));
        }
        if memory > machine.memory_mib {
            let gib = each(format!("{} GiB", self.nodes[0].pretended_mib / 1024));
            lines.push(format!("{pretend} {gib} of memory on {} real GiB", machine.memory_mib / 1024));
        }
        lines
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "cluster": self.cluster,
            "nodes": self.nodes.iter().map(Share::json).collect::<Vec<_>>(),
            "remote": self.remote,
            "site": self.site,
            "probe": self.probe,
            "listen": self.listen,
            "watch": {
                "rules": self.watch.rules,
                "profile": self.watch.profile,
                "export": self.watch.export,
                "root": self.watch.root,
            },
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        Some(Self {
            name: text("name")?,
            cluster: text("cluster")?,
            nodes: value["nodes"].as_array()?.iter().map(Share::from_json).collect::<Option<_>>()?,
            remote: value["remote"].as_u64().and_then(|remote| u32::try_from(remote).ok()).unwrap_or(0),
            site: text("site"),
            probe: text("probe"),
            listen: text("listen"),
            watch: Watch {
                rules: value["watch"]["rules"].as_str().map(str::to_owned),
                profile: value["watch"]["profile"].as_str().map(str::to_owned),
                export: value["watch"]["export"].as_u64().and_then(|port| u16::try_from(port).ok()),
                root: value["watch"]["root"].as_str().map(str::to_owned),
            },
        })
    }
}

const FILE: &str = "up.json";

/// An address to listen at that means the same on other machines.
fn reachable_address(listen: &str) -> Option<IpAddr> {
    let address: Option<SocketAddr> = listen.parse().ok();
    let address = address.map(|address| address.ip()).or_else(|| listen.parse().ok())?;
    (!address.is_unspecified() && !address.is_loopback()).then_some(address)
}

/// A directory that only its owner can look into: there are tokens in it. Root's jobs run as their users, who must be
/// able to pass through to what belongs to them.
fn make_private(path: &std::path::Path) -> io::Result<()> {
    let mode = if nix::unistd::geteuid().is_root() { 0o711 } else { 0o700 };
    fs::DirBuilder::new().recursive(true).mode(mode).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn wanted(arguments: &Arguments, catalog: &Catalog, machine: Machine) -> Result<Cluster, CliError> {
    let here = arguments.nodes.unwrap_or(1).max(1) + arguments.spare;
    let count = here + arguments.remote;
    if let Some(given) = &arguments.cluster {
        return cluster::load(given, catalog);
    }
    if let Some(instance) = &arguments.like {
        return Ok(Cluster::from_spec(&format!("{instance}:{count}"), catalog)?);
    }
    let text = like_this_machine(machine, here, arguments.remote, catalog)?;
    Ok(import(Format::Document, &[Source::new("this machine", &text)], &ImportOptions::default(), catalog)?)
}

/// A description of nodes that divide this machine among them, and of `remote` ones like them.
fn like_this_machine(
    machine: Machine,
    count: u32,
    remote: u32,
    catalog: &Catalog,
) -> Result<String, CliError> {
    let cpus = (machine.cores / count).max(1);
    let memory = machine.memory_mib / u64::from(count);
    let gpus = machine.gpus / count;
    let mut kind = format!("[[kind]]\nname = \"this-machine\"\nvcpus = {cpus}\nmemory = \"{memory} MiB\"\n");
    if gpus > 0 {
        let model = gpu_model();
        let known = catalog.accelerators.iter().map(|accelerator| accelerator.name.as_str());
        let Some(accelerator) = model.as_deref().and_then(|model| matching(model, known)) else {
            let model = model.unwrap_or_else(|| "the driver does not tell it".to_owned());
            return Err(UpError::UnknownGpu { gpus: machine.gpus, model }.into());
        };
        kind += &format!("accelerator = \"{accelerator}\"\ndomains = [{gpus}]\n");
    }
    Ok(format!(
        "name = \"this machine\"\n\n{kind}\n[[group]]\nkind = \"this-machine\"\ncount = {}\n",
        count + remote
    ))
}

fn gpu_model() -> Option<String> {
    let folders = fs::read_dir("/proc/driver/nvidia/gpus").ok()?.flatten();
    let mut texts =
        folders.filter_map(|folder| files::read_system(folder.path().join("information").to_str()?));
    let model = |text: String| {
        text.lines().find_map(|line| line.strip_prefix("Model:")).map(|model| model.trim().to_owned())
    };
    texts.find_map(model)
}

/// The accelerator whose name is a word of the driver's model; the longest of several.
fn matching<'a>(model: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let model = model.to_lowercase();
    let is_word = |name: &&str| model.split([' ', '-', '_']).any(|word| word == name.to_lowercase());
    known.filter(is_word).max_by_key(|name| name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Machine = Machine { cores: 2, memory_mib: 24_000, gpus: 0 };

    fn shape(arguments: Arguments) -> Shape {
        Shape::new(&arguments, &Context { overlays: Vec::new() }, MACHINE).unwrap()
    }

    #[test]
    fn over_commitment_is_said_and_none_is_not() {
        let four =
            shape(Arguments { nodes: Some(4), like: Some("p5.48xlarge".into()), ..Arguments::default() });
        assert_eq!(four.summary(), "p5.48xlarge:4, 4 nodes, 32 GPUs");
        assert_eq!(
            four.over_commitment(MACHINE),
            [
                "4 nodes pretend 192 vCPUs each on 2 real cores",
                "4 nodes pretend 2048 GiB each of memory on 23 real GiB"
            ]
        );
        let own = shape(Arguments::default());
        assert_eq!(own.nodes.len(), 1);
        assert!(own.over_commitment(MACHINE).is_empty(), "{:?}", own.over_commitment(MACHINE));
    }

    #[test]
    fn a_shape_is_remembered() {
        let spare =
            shape(Arguments { nodes: Some(2), spare: 1, probe: Some("true".into()), ..Arguments::default() });
        assert_eq!(spare.nodes.len(), 3);
        assert_eq!(Shape::from_json(&spare.json()), Some(spare.clone()));
        assert_eq!(spare.read_cluster(&Catalog::builtin()).unwrap().node_count(), 3);
        assert_eq!(Shape::from_json(&json!({ "name": "x" })), None);
    }

    #[test]
    fn a_gpu_is_found_in_the_catalog_by_the_drivers_name() {
        let known = || ["h100", "h200", "a100"].into_iter();
        assert_eq!(matching("NVIDIA H200", known()), Some("h200"));
        assert_eq!(matching("NVIDIA H100 80GB HBM3", known()), Some("h100"));
        assert_eq!(matching("NVIDIA GeForce RTX 4090", known()), None);
    }
}
