//! What a cluster on this machine shall be, and how that is remembered in its state directory.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use bedplate_catalog::Catalog;
use bedplate_diag::Source;
use bedplate_drivers::{NodeSummary, StateDirectory};
use bedplate_host::replace_private_file;
use bedplate_topology::{Cluster, ExportFormat, Format, ImportOptions, export, import};
use serde_json::{Value, json};

use crate::share::{Share, shares};
use crate::{LocalError, Machine};

/// What is asked of a cluster on this machine. Paths are absolute: processes of the cluster run elsewhere.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    pub nodes: Option<u32>,
    /// An instance of the catalog that every node is like.
    pub like: Option<String>,
    pub spare: u32,
    /// Nodes that are other machines, which join.
    pub remote: u32,
    /// A whole cluster instead.
    pub cluster: Option<Cluster>,
    pub site: Option<String>,
    pub probe: Option<String>,
    pub listen: Option<String>,
    pub watch: Watch,
}

impl Wanted {
    /// Whether anything was said about what the cluster shall be.
    pub(crate) fn names_a_shape(&self) -> bool {
        self.nodes.is_some() || self.like.is_some() || self.cluster.is_some() || self.spare + self.remote > 0
    }
}

/// A cluster of this machine: which nodes it has and what each gets of the machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    pub name: String,
    /// cluster.toml.
    pub cluster: String,
    /// Those of this machine.
    pub nodes: Vec<Share>,
    /// How many of its nodes are other machines, which join.
    pub remote: u32,
    pub site: Option<String>,
    pub probe: Option<String>,
    pub listen: Option<String>,
    pub watch: Watch,
}

/// How nodes watch themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Watch {
    pub rules: Option<String>,
    pub profile: Option<String>,
    /// The first node's port for Prometheus.
    pub export: Option<u16>,
    pub root: Option<String>,
}

impl Watch {
    /// What an agent is told, the `number`th of its machine.
    pub fn arguments(&self, node: &str, number: usize) -> Vec<String> {
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
    pub fn new(wanted: &Wanted, catalog: &Catalog, machine: Machine) -> Result<Self, LocalError> {
        let cluster = wanted_cluster(wanted, catalog, machine)?;
        let shape = Self {
            name: cluster.name().to_owned(),
            nodes: shares(&cluster, cluster.node_count().saturating_sub(wanted.remote), machine),
            remote: wanted.remote,
            cluster: export(&cluster, ExportFormat::Document),
            site: None,
            probe: None,
            listen: None,
            watch: Watch::default(),
        };
        shape.with_rules(wanted)
    }

    /// The same cluster by other rules, where some are named.
    pub(crate) fn with_rules(self, wanted: &Wanted) -> Result<Self, LocalError> {
        let listen = wanted.listen.clone().or(self.listen);
        if self.remote > 0 && listen.as_deref().and_then(reachable_address).is_none() {
            return Err(LocalError::Unreachable { listen });
        }
        let watch = wanted.watch.clone();
        Ok(Self {
            site: wanted.site.clone().or(self.site),
            probe: wanted.probe.clone().or(self.probe),
            listen,
            watch: Watch {
                rules: watch.rules.or(self.watch.rules),
                profile: watch.profile.or(self.watch.profile),
                export: watch.export.or(self.watch.export),
                root: watch.root.or(self.watch.root),
            },
            ..self
        })
    }

    /// The shape that the cluster of a directory has.
    pub fn load(state: &StateDirectory) -> Result<Self, LocalError> {
        Self::find(state)?.ok_or_else(|| LocalError::NoShape { state: state.path().to_owned() })
    }

    /// As [`Shape::load`]; nothing where no cluster has been.
    pub fn find(state: &StateDirectory) -> Result<Option<Self>, LocalError> {
        let path = state.path().join(FILE);
        match fs::read_to_string(&path) {
            Ok(text) => {
                let shape = serde_json::from_str(&text).ok().and_then(|value| Self::from_json(&value));
                let broken = || io::Error::new(io::ErrorKind::InvalidData, "it does not describe a cluster");
                shape.map(Some).ok_or_else(|| LocalError::State { path, source: broken() })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(LocalError::State { path, source }),
        }
    }

    pub fn keep(&self, state: &StateDirectory) -> Result<(), LocalError> {
        let path = state.path();
        make_private(path).map_err(|source| LocalError::State { path: path.to_owned(), source })?;
        for (name, text) in [(FILE, &format!("{:#}\n", self.json())), ("cluster.toml", &self.cluster)] {
            let path = path.join(name);
            replace_private_file(&path, text.as_bytes())
                .map_err(|source| LocalError::State { path, source })?;
        }
        Ok(())
    }

    pub fn read_cluster(&self, catalog: &Catalog) -> Result<Cluster, LocalError> {
        let source = Source::new("cluster.toml", &self.cluster);
        Ok(import(Format::Document, &[source], &ImportOptions::default(), catalog)?)
    }

    pub fn summary(&self) -> String {
        let gpus: u32 = self.nodes.iter().map(|node| node.gpus).sum();
        let elsewhere = match self.remote {
            0 => String::new(),
            remote => format!(", {remote} more on other machines"),
        };
        format!("{}, {} nodes, {gpus} GPUs{elsewhere}", self.name, self.nodes.len())
    }

    /// Where ranks on other machines reach those of this one, when there are other machines.
    pub fn address(&self) -> Option<String> {
        let listen = self.listen.as_ref().filter(|_| self.remote > 0)?;
        reachable_address(listen).map(|address| address.to_string())
    }

    pub fn share(&self, node: &str) -> Option<&Share> {
        self.nodes.iter().find(|share| share.node == node)
    }

    /// What the nodes pretend to have beyond the machine; nothing when they do not.
    pub fn over_commitment(&self, machine: Machine) -> Vec<String> {
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

    /// What stands, in a few lines.
    pub fn describe(&self, nodes: &[NodeSummary], machine: Machine) -> Vec<String> {
        let linked = nodes.iter().filter(|node| node.is_linked).count();
        let gpus: u32 = nodes.iter().map(|node| node.gpus).sum();
        let devices = match (gpus, machine.gpus) {
            (0, _) => "no GPUs".to_owned(),
            (gpus, 0) => format!("{gpus} GPUs, all of them simulated"),
            (gpus, real) if gpus > real => format!("{gpus} GPUs, of which this machine really has {real}"),
            (gpus, _) => format!("{gpus} GPUs"),
        };
        let mut lines = vec![format!("{}: {linked} of {} nodes, {devices}", self.name, nodes.len())];
        for node in nodes.iter().filter(|node| !node.is_linked || node.reason.is_some()) {
            let down = || match self.share(node.name.as_str()) {
                Some(_) => format!("down; `bedplate node start {}`", node.name),
                None => "has not joined".to_owned(),
            };
            let why = node.reason.as_ref().map_or_else(down, |reason| reason.text.clone());
            lines.push(format!("{}: {why}", node.name));
        }
        lines.extend(self.over_commitment(machine));
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
pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    let mode = if nix::unistd::geteuid().is_root() { 0o711 } else { 0o700 };
    fs::DirBuilder::new().recursive(true).mode(mode).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn wanted_cluster(wanted: &Wanted, catalog: &Catalog, machine: Machine) -> Result<Cluster, LocalError> {
    let here = wanted.nodes.unwrap_or(1).max(1) + wanted.spare;
    let count = here + wanted.remote;
    if let Some(given) = &wanted.cluster {
        return Ok(given.clone());
    }
    if let Some(instance) = &wanted.like {
        return Ok(Cluster::from_spec(&format!("{instance}:{count}"), catalog)?);
    }
    let text = like_this_machine(machine, here, wanted.remote, catalog)?;
    Ok(import(Format::Document, &[Source::new("this machine", &text)], &ImportOptions::default(), catalog)?)
}

/// A description of nodes that divide this machine among them, and of `remote` ones like them.
fn like_this_machine(
    machine: Machine,
    count: u32,
    remote: u32,
    catalog: &Catalog,
) -> Result<String, LocalError> {
    let cpus = (machine.cores / count).max(1);
    let memory = machine.memory_mib / u64::from(count);
    let gpus = machine.gpus / count;
    let mut kind = format!("[[kind]]\nname = \"this-machine\"\nvcpus = {cpus}\nmemory = \"{memory} MiB\"\n");
    if gpus > 0 {
        let model = gpu_model();
        let known = catalog.accelerators.iter().map(|accelerator| accelerator.name.as_str());
        let Some(accelerator) = model.as_deref().and_then(|model| matching(model, known)) else {
            let model = model.unwrap_or_else(|| "the driver does not tell it".to_owned());
            return Err(LocalError::UnknownGpu { gpus: machine.gpus, model });
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
    let mut texts = folders.filter_map(|folder| fs::read_to_string(folder.path().join("information")).ok());
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

    fn shape(wanted: Wanted) -> Shape {
        Shape::new(&wanted, &Catalog::builtin(), MACHINE).unwrap()
    }

    #[test]
    fn over_commitment_is_said_and_none_is_not() {
        let four = shape(Wanted { nodes: Some(4), like: Some("p5.48xlarge".into()), ..Wanted::default() });
        assert_eq!(four.summary(), "p5.48xlarge:4, 4 nodes, 32 GPUs");
        assert_eq!(
            four.over_commitment(MACHINE),
            [
                "4 nodes pretend 192 vCPUs each on 2 real cores",
                "4 nodes pretend 2048 GiB each of memory on 23 real GiB"
            ]
        );
        let own = shape(Wanted::default());
        assert_eq!(own.nodes.len(), 1);
        assert!(own.over_commitment(MACHINE).is_empty(), "{:?}", own.over_commitment(MACHINE));
    }

    #[test]
    fn a_shape_is_remembered() {
        let spare =
            shape(Wanted { nodes: Some(2), spare: 1, probe: Some("true".into()), ..Wanted::default() });
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
