//! Kubernetes node lists: `kubectl get nodes -o json` or `-o yaml`.
//!
//! **What a node is** follows from the first of these that applies: the `instance` option, for nodes with
//! GPUs; `node.kubernetes.io/instance-type`, where the catalog has that instance; `nvidia.com/gpu.product`
//! with `nvidia.com/gpu.count`; the capacity `nvidia.com/gpu` (or `amd.com/gpu`, `aws.amazon.com/neuron`)
//! with the `accelerator` option. Other nodes are machines without accelerators. Labels that name a different
//! catalog instance or accelerator than the `instance` option are refused. With `allows_unknown` a node that would be refused
//! for its hardware is a machine with GPUs of no known type.
//!
//! **The tree** comes from `topology.k8s.aws/network-node-layer-1` (top) to `-4`, or from the labels of NVIDIA
//! Topograph: `network.topology.nvidia.com/core`, `spine` and `leaf`, or `fabric.topograph.run/tier-N` with
//! tier 0 next to the node.
//!
//! **Scale-up domains** over several nodes come from `nvidia.com/gpu.clique`, else from Topograph's
//! `network.topology.nvidia.com/accelerator` or `accelerator.topograph.run/domain`. A domain that spans
//! several switches is attached to the lowest one they have in common.
//!
//! **Health**: not ready is down; cordoned, or marked for disruption, is draining; HyperPod's
//! `sagemaker.amazonaws.com/node-health-status` other than `Schedulable` is drained; fewer GPUs allocatable
//! than the machine has is degraded. GPUs that are not allocatable count as failed; since the list does not say
//! which ones, they are taken to be the last of the node.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use bedplate_catalog::{Catalog, Instance};
use bedplate_diag::{Place, Source};
use bedplate_document::kubernetes;
use bedplate_units::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

use crate::draft::{ClusterDraft, Culprit, MAX_GPUS_PER_NODE, Straddling, check_limit, shown};
use crate::kind::{contradicts, find_accelerator};
use crate::paths::{DomainNames, Paths, place_of_name};
use crate::{Cluster, Health, ImportOptions, NodeKind, TopologyError, json, yaml};

const EXPECTED: &str = "a list of Kubernetes nodes";
const GPU_RESOURCES: [&str; 4] =
    ["nvidia.com/gpu", "amd.com/gpu", "aws.amazon.com/neurondevice", "aws.amazon.com/neuron"];
const AWS_LAYERS: [&str; 4] = [
    "topology.k8s.aws/network-node-layer-1",
    "topology.k8s.aws/network-node-layer-2",
    "topology.k8s.aws/network-node-layer-3",
    "topology.k8s.aws/network-node-layer-4",
];
const TOPOGRAPH_TIERS: [&str; 3] = [
    "network.topology.nvidia.com/core",
    "network.topology.nvidia.com/spine",
    "network.topology.nvidia.com/leaf",
];
const DOMAIN_LABELS: [&str; 3] =
    ["nvidia.com/gpu.clique", "network.topology.nvidia.com/accelerator", "accelerator.topograph.run/domain"];

/// A list of nodes, or a single node.
#[derive(Debug, Deserialize)]
struct Document {
    kind: Option<String>,
    items: Option<Vec<Item>>,
    #[serde(flatten)]
    item: Item,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Item {
    kind: Option<String>,
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    labels: Option<BTreeMap<String, Text>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    unschedulable: Option<bool>,
    taints: Option<Vec<Taint>>,
}

#[derive(Debug, Deserialize)]
struct Taint {
    key: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    capacity: Option<BTreeMap<String, Text>>,
    allocatable: Option<BTreeMap<String, Text>>,
    conditions: Option<Vec<Condition>>,
}

#[derive(Debug, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: Text,
    reason: Option<String>,
}

/// A scalar as text; YAML may write `8` where JSON has `"8"`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Scalar;
        impl Visitor<'_> for Scalar {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a number")
            }
            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.to_owned()))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }
            fn visit_bool<E>(self, flag: bool) -> Result<Text, E> {
                Ok(Text(if flag { "True" } else { "False" }.to_owned()))
            }
            fn visit_unit<E>(self) -> Result<Text, E> {
                Ok(Text(String::new()))
            }
        }
        deserializer.deserialize_any(Scalar)
    }
}

pub(crate) fn read(
    source: Source<'_>,
    options: &ImportOptions,
    catalog: &Catalog,
) -> Result<Cluster, TopologyError> {
    let mut reader = Reader::new(source, options, catalog);
    for item in items(source)? {
        if item.kind.as_deref().is_none_or(|kind| kind == "Node") {
            reader.add(&item)?;
        }
    }
    let names: Vec<String> = reader.draft.nodes.iter().map(|node| node.name.clone()).collect();
    reader.draft.build(&|culprit| match culprit {
        Culprit::Node(index) => place_of_name(source, &names[index]),
        Culprit::Whole | Culprit::Switch(_) => source.whole(),
    })
}

fn items(source: Source<'_>) -> Result<Vec<Item>, TopologyError> {
    let is_json = source.text.trim_start().starts_with('{');
    let document: Document =
        if is_json { json::parse(source, EXPECTED)? } else { yaml::parse(source, EXPECTED)? };
    match (document.kind.as_deref(), document.items) {
        (Some("List" | "NodeList") | None, Some(items)) => Ok(items),
        (Some("Node"), None) => Ok(vec![document.item]),
        (kind, _) => Err(TopologyError::Malformed {
            expected: EXPECTED,
            reason: format!("its kind is `{}`", shown(kind.unwrap_or("nothing"))),
            place: source.place(0),
        }),
    }
}

struct Reader<'a> {
    source: Source<'a>,
    options: &'a ImportOptions,
    catalog: &'a Catalog,
    draft: ClusterDraft,
    paths: Paths,
    domains: DomainNames,
    names: HashSet<String>,
    kinds: HashMap<Machine, u16>,
}

/// What decides a node's kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Machine {
    instance: Option<String>,
    product: Option<String>,
    gpus: u32,
    vcpus: Option<u32>,
    memory: Option<u64>,
}

impl Machine {
    fn of_unknown_type(&self) -> NodeKind {
        let name = self.instance.as_deref().unwrap_or("gpu");
        NodeKind::of_unknown_gpus(format!("{name}-x{}", self.gpus), self.gpus)
    }
}

impl<'a> Reader<'a> {
    fn new(source: Source<'a>, options: &'a ImportOptions, catalog: &'a Catalog) -> Self {
        let name = options.name.clone().unwrap_or_else(|| "kubernetes".to_owned());
        Self {
            source,
            options,
            catalog,
            draft: ClusterDraft { name, straddling: Straddling::Lift, ..ClusterDraft::default() },
            paths: Paths::default(),
            domains: DomainNames::default(),
            names: HashSet::new(),
            kinds: HashMap::new(),
        }
    }

    fn add(&mut self, item: &Item) -> Result<(), TopologyError> {
        let name = &item.metadata.name;
        if !self.names.insert(name.clone()) {
            return Err(TopologyError::Duplicate {
                what: "node",
                name: shown(name),
                place: self.place(item),
            });
        }
        let kind = self.kind_of(item)?;
        let source = self.source;
        let switch = self.paths.lowest(&mut self.draft, item.path(), &|| place_of_name(source, name))?;
        let domain = DOMAIN_LABELS.iter().find_map(|label| item.label(label));
        let domain = domain.map(|domain| self.domains.number(&mut self.draft, domain));
        let gpus = self.draft.kinds.get(kind).accelerators;
        let (health, reason) = health(item, gpus);
        let index = self.draft.nodes.len() as u32;
        let failed = item.allocatable_gpus().unwrap_or(gpus)..gpus;
        self.draft.failed.extend(failed.map(|local| (index, local)));
        let node = self.draft.add_node(name, kind);
        (node.switch, node.domain, node.health, node.reason) = (switch, domain, health, reason);
        Ok(())
    }

    fn place(&self, item: &Item) -> Place {
        place_of_name(self.source, &item.metadata.name)
    }

    fn kind_of(&mut self, item: &Item) -> Result<u16, TopologyError> {
        let machine = item.machine();
        check_limit("GPUs in one node", machine.gpus.into(), MAX_GPUS_PER_NODE, || self.place(item))?;
        if let Some(kind) = self.kinds.get(&machine) {
            return Ok(*kind);
        }
        let described = self.describe(&machine, item);
        let kind = described.or_else(|error| match self.options.allows_unknown {
            true => Ok(machine.of_unknown_type()),
            false => Err(error),
        })?;
        let number = self.draft.kinds.intern(kind);
        self.kinds.insert(machine, number);
        Ok(number)
    }

    fn describe(&self, machine: &Machine, item: &Item) -> Result<NodeKind, TopologyError> {
        if let Some(kind) = self.instance_kind(machine, item)? {
            return Ok(kind);
        }
        let host = NodeKind {
            vcpus: machine.vcpus,
            memory: machine.memory.map(|bytes| Bytes::new(bytes as f64)),
            ..NodeKind::bare(machine.instance.as_deref().unwrap_or("cpu"))
        };
        if machine.gpus == 0 {
            return Ok(host);
        }
        let accelerator = self.accelerator_kind(machine, item)?;
        Ok(NodeKind { vcpus: host.vcpus, memory: host.memory, ..accelerator })
    }

    fn instance_kind(&self, machine: &Machine, item: &Item) -> Result<Option<NodeKind>, TopologyError> {
        let by_option = match &self.options.instance {
            Some(name) if machine.gpus > 0 => Some(self.catalog.instance(name).map_err(|error| {
                TopologyError::unknown_hardware(error, self.catalog, self.source.whole())
            })?),
            _ => None,
        };
        let by_label = machine.instance.as_deref().and_then(|name| self.catalog.instance(name).ok());
        let Some(instance) = by_option.or(by_label) else { return Ok(None) };
        let kind = NodeKind::from_instance(instance, self.catalog);
        self.check_instance(&kind, by_label, machine, item)?;
        Ok(Some(kind))
    }

    /// Whether the labels agree with the node's stated instance.
    fn check_instance(
        &self,
        kind: &NodeKind,
        by_label: Option<&Instance>,
        machine: &Machine,
        item: &Item,
    ) -> Result<(), TopologyError> {
        let (node, instance) = (shown(&item.metadata.name), kind.name.clone());
        if let Some(other) = by_label.filter(|other| other.name != kind.name) {
            let (found, place) = (other.name.clone(), self.place(item));
            return Err(TopologyError::OtherInstance { node, found, instance, place });
        }
        let named = self.product(machine).filter(|_| machine.gpus > 0);
        if let Some(found) = named.and_then(|named| contradicts(named, kind, self.catalog)) {
            let (expected, place) = (kind.accelerator.clone().unwrap_or_default(), self.place(item));
            return Err(TopologyError::OtherGpu { node, found, instance, expected, place });
        }
        if machine.gpus > kind.accelerators {
            let (found, expected, place) = (machine.gpus, kind.accelerators, self.place(item));
            return Err(TopologyError::GpuCount { node, instance, found, expected, place });
        }
        Ok(())
    }

    /// The GPU by its label, else by the option.
    fn product<'m>(&'m self, machine: &'m Machine) -> Option<&'m str> {
        let product = machine.product.as_ref().or(self.options.accelerator.as_ref())?;
        Some(product.strip_suffix("-SHARED").unwrap_or(product))
    }

    fn accelerator_kind(&self, machine: &Machine, item: &Item) -> Result<NodeKind, TopologyError> {
        let Some(product) = self.product(machine) else {
            return Err(TopologyError::MissingGpuType {
                node: shown(&item.metadata.name),
                remedy: "name the GPU with `--accelerator`, or run NVIDIA's GPU feature discovery, which labels nodes with it",
                place: self.place(item),
            });
        };
        let accelerator = find_accelerator(product, self.catalog)
            .map_err(|error| TopologyError::unknown_hardware(error, self.catalog, self.place(item)))?;
        Ok(NodeKind::from_accelerator(accelerator, machine.gpus, self.catalog))
    }
}

impl Item {
    fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key).map(|text| text.0.as_str()).filter(|value| !value.is_empty())
    }

    /// The switches above the node, from the top down.
    fn path(&self) -> Vec<&str> {
        let of = |labels: &[&str]| labels.iter().filter_map(|label| self.label(label)).collect::<Vec<_>>();
        let mut path = of(&AWS_LAYERS);
        if path.is_empty() {
            path = of(&TOPOGRAPH_TIERS);
        }
        if path.is_empty() {
            let tiers = (0..16).rev().map(|tier| format!("fabric.topograph.run/tier-{tier}"));
            path = tiers.filter_map(|label| self.label(&label)).collect();
        }
        path
    }

    fn machine(&self) -> Machine {
        let capacity = |key: &str| self.status.capacity.as_ref()?.get(key).map(|text| text.0.as_str());
        let by_capacity = || GPU_RESOURCES.iter().find_map(|key| capacity(key)?.parse::<u32>().ok());
        let by_label = || self.label("nvidia.com/gpu.count")?.parse::<u32>().ok();
        let instance = self.label("node.kubernetes.io/instance-type");
        Machine {
            instance: instance.or_else(|| self.label("beta.kubernetes.io/instance-type")).map(str::to_owned),
            product: self.label("nvidia.com/gpu.product").map(str::to_owned),
            gpus: by_label().or_else(by_capacity).unwrap_or(0),
            vcpus: capacity("cpu").and_then(|cpu| cpu.parse().ok()),
            memory: capacity("memory").and_then(bytes),
        }
    }

    /// Allocatable GPUs, where the node reports them.
    fn allocatable_gpus(&self) -> Option<u32> {
        let allocatable = self.status.allocatable.as_ref()?;
        GPU_RESOURCES.iter().find_map(|key| allocatable.get(*key)?.0.parse().ok())
    }

    fn has_taint(&self, keys: &[&str]) -> bool {
        self.spec.taints.iter().flatten().any(|taint| keys.contains(&taint.key.as_str()))
    }
}

/// The worst state that the node reports, with its reason.
fn health(item: &Item, gpus: u32) -> (Health, Option<String>) {
    let ready = item.status.conditions.iter().flatten().find(|condition| condition.kind == "Ready");
    if let Some(ready) = ready.filter(|ready| !ready.status.0.eq_ignore_ascii_case("true")) {
        return (Health::Down, Some(ready.reason.clone().unwrap_or_else(|| "not ready".to_owned())));
    }
    if item.has_taint(&["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]) {
        return (Health::Down, Some("not ready".to_owned()));
    }
    match item.label("sagemaker.amazonaws.com/node-health-status") {
        None | Some("Schedulable") => {}
        Some(other) => return (Health::Drained, Some(other.to_owned())),
    }
    if item.spec.unschedulable == Some(true) || item.has_taint(&["node.kubernetes.io/unschedulable"]) {
        return (Health::Draining, Some("cordoned".to_owned()));
    }
    if item.has_taint(&["karpenter.sh/disrupted", "ToBeDeletedByClusterAutoscaler"]) {
        return (Health::Draining, Some("marked for disruption".to_owned()));
    }
    match item.allocatable_gpus() {
        Some(allocatable) if allocatable < gpus => {
            (Health::Degraded, Some(format!("{allocatable} of {gpus} GPUs allocatable")))
        }
        _ => (Health::Healthy, None),
    }
}

/// Bytes of a Kubernetes quantity such as `2097152Ki`, if it is a whole number.
fn bytes(quantity: &str) -> Option<u64> {
    let bytes = kubernetes::quantity(quantity)?;
    (bytes.fract() == 0.0 && bytes < (1_u64 << 53) as f64).then_some(bytes as u64)
}
