//! The answer of EC2's DescribeInstanceTopology, as `aws ec2 describe-instance-topology` prints it.
//!
//! `NetworkNodes` lists the switches of an instance from the top of the network down, three or four of them;
//! the last is the one nearest to the instance and becomes its leaf. An instance without network nodes (it is
//! not running, or its type is not supported) is attached to no switch. An `InstanceType` that the catalog does not
//! know is a machine without accelerators and figures. The `instance` option is for answers that leave
//! the type out; another type in the catalog contradicts it.
//! `CapacityBlockId` is the same for the instances of one UltraServer and makes them one scale-up domain;
//! it means nothing for other instance types. Where such a domain spans several network nodes, its
//! instances are attached to the lowest one they have in common. Nodes are named by `InstanceId`. `GroupName`,
//! zones and unknown fields are ignored: the network nodes say more. The pages of one answer are given
//! as several sources.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use bedplate_catalog::Catalog;
use bedplate_diag::Source;
use serde::Deserialize;

use crate::draft::{ClusterDraft, Culprit, Straddling, shown};
use crate::kind::instance_is_multi_node;
use crate::paths::{DomainNames, Paths, place_of_name};
use crate::{Cluster, ImportOptions, NodeKind, TopologyError, json};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer<'a> {
    #[serde(borrow)]
    instances: Vec<Instance<'a>>,
    #[serde(borrow)]
    next_token: Option<Cow<'a, str>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Instance<'a> {
    #[serde(borrow)]
    instance_id: Cow<'a, str>,
    #[serde(borrow)]
    instance_type: Option<Cow<'a, str>>,
    #[serde(borrow)]
    network_nodes: Option<Vec<Cow<'a, str>>>,
    #[serde(borrow)]
    capacity_block_id: Option<Cow<'a, str>>,
}

pub(crate) fn read(
    sources: &[Source<'_>],
    options: &ImportOptions,
    catalog: &Catalog,
) -> Result<Cluster, TopologyError> {
    let answers: Vec<Answer<'_>> = sources
        .iter()
        .map(|source| json::parse(*source, "an answer of DescribeInstanceTopology"))
        .collect::<Result<_, _>>()?;
    check_complete(&answers, sources)?;
    let mut reader = Reader::new(options, catalog);
    for (answer, source) in answers.iter().zip(sources) {
        for instance in &answer.instances {
            reader.add(instance, *source)?;
        }
    }
    let names: Vec<String> = reader.draft.nodes.iter().map(|node| node.name.clone()).collect();
    let place = |name: &str| {
        let source = sources.iter().find(|source| source.text.contains(name)).or(sources.first());
        source.map_or_else(|| Source::new("ec2", "").whole(), |source| place_of_name(*source, name))
    };
    reader.draft.build(&|culprit| match culprit {
        Culprit::Node(index) => place(&names[index]),
        Culprit::Whole | Culprit::Switch(_) => place(""),
    })
}

/// Every page but the last has a token for the next one.
fn check_complete(answers: &[Answer<'_>], sources: &[Source<'_>]) -> Result<(), TopologyError> {
    let has_token = |answer: &Answer<'_>| answer.next_token.as_ref().is_some_and(|token| !token.is_empty());
    if !answers.is_empty() && answers.iter().all(has_token) {
        return Err(TopologyError::MissingPages { place: place_of_name(sources[0], "NextToken") });
    }
    Ok(())
}

struct Reader<'a> {
    catalog: &'a Catalog,
    draft: ClusterDraft,
    paths: Paths,
    domains: DomainNames,
    nodes: HashSet<String>,
    kinds: HashMap<String, InstanceKind>,
    default_type: Option<&'a str>,
}

#[derive(Debug, Clone, Copy)]
struct InstanceKind {
    kind: u16,
    is_multi_node: bool,
}

impl<'a> Reader<'a> {
    fn new(options: &'a ImportOptions, catalog: &'a Catalog) -> Self {
        let name = options.name.clone().unwrap_or_else(|| "ec2".to_owned());
        Self {
            catalog,
            draft: ClusterDraft { name, straddling: Straddling::Lift, ..ClusterDraft::default() },
            paths: Paths::default(),
            domains: DomainNames::default(),
            nodes: HashSet::new(),
            kinds: HashMap::new(),
            default_type: options.instance.as_deref(),
        }
    }

    fn add(&mut self, instance: &Instance<'_>, source: Source<'_>) -> Result<(), TopologyError> {
        let place = || place_of_name(source, &instance.instance_id);
        if !self.nodes.insert(instance.instance_id.clone().into_owned()) {
            let (what, name) = ("node", shown(&instance.instance_id));
            return Err(TopologyError::Duplicate { what, name, place: place() });
        }
        let kind = self.kind_of(instance, source)?;
        let path = instance.network_nodes.iter().flatten().map(AsRef::as_ref);
        let switch = self.paths.lowest(&mut self.draft, path, &place)?;
        let block = instance.capacity_block_id.as_ref().filter(|id| kind.is_multi_node && !id.is_empty());
        let domain = block.map(|id| self.domains.number(&mut self.draft, id));
        let node = self.draft.add_node(instance.instance_id.clone(), kind.kind);
        (node.switch, node.domain) = (switch, domain);
        Ok(())
    }

    fn kind_of(
        &mut self,
        instance: &Instance<'_>,
        source: Source<'_>,
    ) -> Result<InstanceKind, TopologyError> {
        let place = || place_of_name(source, &instance.instance_id);
        let Some(name) = instance.instance_type.as_deref().or(self.default_type) else {
            return Err(TopologyError::MissingGpuType {
                node: shown(&instance.instance_id),
                remedy: "the answer has no InstanceType; name the instance with `--instance`",
                place: place(),
            });
        };
        if let Some(known) = self.kinds.get(name) {
            return Ok(*known);
        }
        let kind = match (self.catalog.instance(name), self.default_type) {
            (Ok(found), None) => NodeKind::from_instance(found, self.catalog),
            (Ok(found), Some(option)) if found.name.eq_ignore_ascii_case(option) => {
                NodeKind::from_instance(found, self.catalog)
            }
            (Ok(found), Some(option)) => {
                let (node, found) = (shown(&instance.instance_id), found.name.clone());
                let instance = shown(option);
                return Err(TopologyError::OtherInstance { node, found, instance, place: place() });
            }
            (Err(error), _) if instance.instance_type.is_none() => {
                return Err(TopologyError::unknown_hardware(error, self.catalog, place()));
            }
            (Err(_), _) => NodeKind::bare(name),
        };
        let is_multi_node =
            kind.instance.as_ref().is_some_and(|instance| instance_is_multi_node(instance, self.catalog));
        let known = InstanceKind { kind: self.draft.kinds.intern(kind), is_multi_node };
        self.kinds.insert(name.to_owned(), known);
        Ok(known)
    }
}
