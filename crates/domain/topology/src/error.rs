//! What can be wrong with the description of a cluster, and the pages that explain it.

use bedplate_catalog::{Catalog, CatalogError};
use bedplate_diag::{Diagnostic, Page, Place, pages};
use bedplate_document::DocumentError;
use bedplate_units::grouped;

use crate::kind::{find_accelerator, instances_with};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    #[error("this is not {expected}: {reason}")]
    Malformed { expected: &'static str, reason: String, place: Place },
    #[error("`{key}` is not a key of {file}")]
    UnknownKey { file: &'static str, key: String, near: Option<&'static str>, known: String, place: Place },
    #[error("the node list `{text}` cannot be read: {reason}")]
    BadHostlist { text: String, reason: String, place: Place },
    #[error("`{name}` is not a valid name for a {what}: {reason}")]
    BadName { what: &'static str, name: String, reason: &'static str, place: Place },
    #[error("{} {what} are more than the limit of {}", grouped(*.count), grouped(*.limit))]
    TooMany { what: &'static str, count: u64, limit: u64, place: Place },
    #[error("the description has no nodes")]
    Empty { place: Place },
    #[error("the switches {} form a cycle", cycle(.switches))]
    Cycle { switches: Vec<String>, place: Place },
    #[error("{what} `{name}` occurs twice")]
    Duplicate { what: &'static str, name: String, place: Place },
    #[error("{what} `{name}` is attached to both `{first}` and `{second}`")]
    TwoParents { what: &'static str, name: String, first: String, second: String, place: Place },
    #[error("there is no {what} called `{name}`")]
    Undefined { what: &'static str, name: String, near: Option<String>, place: Place },
    #[error("node `{node}` is attached to no switch")]
    WithoutSwitch { node: String, place: Place },
    #[error("scale-up domain `{domain}` has nodes on {first} and on {second}")]
    DomainAcrossSwitches { domain: String, first: String, second: String, place: Place },
    #[error("nothing says which GPU node `{node}` has")]
    MissingGpuType { node: String, remedy: &'static str, place: Place },
    #[error("the hardware is not in the catalog")]
    UnknownHardware {
        source: CatalogError,
        /// Where the name is an accelerator's: instances that have it.
        instances: Vec<String>,
        place: Place,
    },
    #[error("node `{node}` has {found} GPUs, but {instance} has {expected}")]
    GpuCount { node: String, instance: String, found: u32, expected: u32, place: Place },
    #[error("node `{node}` has {found} GPUs, but {instance} has {expected}")]
    OtherGpu { node: String, found: String, instance: String, expected: String, place: Place },
    #[error("node `{node}` is a {found}, not a {instance}")]
    OtherInstance { node: String, found: String, instance: String, place: Place },
    #[error("the matrix shows {found} NVLinks between two GPUs, but {accelerator} has {expected} in all")]
    LinkCount { found: u16, accelerator: String, expected: u16, place: Place },
    #[error("the option `{option}` does not apply to {format}")]
    UnusedOption { option: &'static str, format: &'static str, place: Place },
    #[error("the file includes another one")]
    Include { file: String, place: Place },
    #[error("the list of instances is one page of several")]
    MissingPages { place: Place },
    #[error("this is not a known description of a cluster")]
    UnknownFormat { place: Place },
    #[error("`{text}` is not a level of a cluster")]
    UnknownLevel { text: String },
    #[error(transparent)]
    Document(#[from] DocumentError),
}

impl TopologyError {
    /// A name that the catalog does not have. Where an instance was expected and the name is an
    /// accelerator's, the error can propose machines.
    pub(crate) fn unknown_hardware(source: CatalogError, catalog: &Catalog, place: Place) -> Self {
        let instances = match &source {
            CatalogError::UnknownName { kind: "instance", name, .. } => find_accelerator(name, catalog)
                .map_or_else(|_| Vec::new(), |found| instances_with(found, catalog)),
            _ => Vec::new(),
        };
        TopologyError::UnknownHardware { source, instances, place }
    }
}

fn cycle(switches: &[String]) -> String {
    let shown: Vec<&str> = switches.iter().take(8).map(String::as_str).collect();
    let more = if switches.len() > shown.len() { " → …" } else { "" };
    format!("{}{more} → {}", shown.join(" → "), switches.first().map_or("", String::as_str))
}

pages! { pub PAGES "cluster":
    MALFORMED "malformed" User
        "A part of the input does not have the form that its format requires. The place shown is where reading stopped."
        "correct the place shown; the formats are described in the book under `cluster import`"
    UNKNOWN_KEY "unknown-key" User
        "A line has a key that its format does not know. It is refused, because otherwise a misspelt key would be silently ignored."
        "remove the key or correct its spelling"
    BAD_HOSTLIST "bad-hostlist" User
        "A list of names in Slurm's notation, such as `n[001-064,100]`, cannot be read."
        "write ranges as `first-last`, the first not larger than the last, separated by commas within the brackets"
    BAD_NAME "bad-name" User
        "The name of a node, switch or domain has characters that Slurm's files and command lines could not carry."
        "rename it with letters, digits, dots, dashes and underscores"
    TOO_MANY "too-many" User
        "A count is larger than in any real cluster. It is probably a typo, or the file holds something else."
        "correct the count"
    EMPTY "empty" User
        "The description could be read, but it has no nodes."
        "check that the right file was given and that it is complete"
    CYCLE "cycle" User
        "Switches are each other's parents in a circle. A cluster is a tree of switches: every switch has at most one parent, and no switch is above itself."
        "remove one of the links of the cycle"
    DUPLICATE "duplicate" User
        "A node, a switch, a domain or a state is defined twice, and nothing says which definition is meant."
        "remove or rename one of the two"
    TWO_PARENTS "two-parents" User
        "A node or a switch is attached to two switches. Bedplate describes a cluster as a tree, so several rails to one group of switches are written as one switch."
        "name it under one switch only; write parallel rails as a single switch"
    UNDEFINED "undefined" User
        "The description refers to a node or a switch that it does not define."
        "define it, or correct the spelling"
    WITHOUT_SWITCH "without-switch" User
        "The description has a tree of switches, but a node with GPUs is not in it, so its distance to the others is unknown."
        "add the node to its switch"
    DOMAIN_ACROSS_SWITCHES "domain-across-switches" User
        "The nodes of one scale-up domain (an NVLink rack or UltraServer) are attached to different switches. Bedplate expects a domain below one leaf."
        "attach all nodes of the domain to the same switch"
    MISSING_GPU_TYPE "missing-gpu-type" User
        "A node has GPUs, or is used as if it had, but nothing says which."
        "name the instance or the accelerator, with `--instance` or `--accelerator`"
    UNKNOWN_HARDWARE "unknown-hardware" User
        "The description names an instance, accelerator or storage class that the catalog does not have."
        "list what exists with `bedplate catalog`, or describe your own hardware in an overlay file"
    GPU_COUNT "gpu-count" User
        "A node reports a different number of GPUs than its instance has. One of the two is wrong."
        "correct the instance, or leave it out so that the node is described by its GPUs alone"
    CONTRADICTION "contradiction" User
        "The description shows different hardware from the instance or accelerator named for it. One of the two is wrong."
        "correct the named instance or accelerator, or leave it out"
    UNUSED_OPTION "unused-option" User
        "An option does not apply to this format: the description already says it, or the format has nothing of the kind."
        "leave the option out"
    INCLUDE "include" User
        "A Slurm file has an Include line. Bedplate reads only the files it is given and opens no others."
        "give the included file as a further input, and remove the Include line from a copy of this one"
    MISSING_PAGES "missing-pages" User
        "The output of DescribeInstanceTopology ends in a NextToken, so there are more instances than it shows. Reading it would take a part of a cluster for the whole."
        "run `aws ec2 describe-instance-topology` without `--max-items` and `--no-paginate`, or give all pages"
    UNKNOWN_FORMAT "unknown-format" User
        "The content matches none of the known formats."
        "name the format with `--format`"
    UNKNOWN_LEVEL "unknown-level" User
        "The levels of a cluster are gpu, domain, node, leaf, spine, core, tier4 and so on, and cluster."
        "use gpu, domain, node, leaf, spine, core or cluster"
}

impl Diagnostic for TopologyError {
    fn page(&self) -> &'static Page {
        match self {
            TopologyError::Malformed { .. } => &MALFORMED,
            TopologyError::UnknownKey { .. } => &UNKNOWN_KEY,
            TopologyError::BadHostlist { .. } => &BAD_HOSTLIST,
            TopologyError::BadName { .. } => &BAD_NAME,
            TopologyError::TooMany { .. } => &TOO_MANY,
            TopologyError::Empty { .. } => &EMPTY,
            TopologyError::Cycle { .. } => &CYCLE,
            TopologyError::Duplicate { .. } => &DUPLICATE,
            TopologyError::TwoParents { .. } => &TWO_PARENTS,
            TopologyError::Undefined { .. } => &UNDEFINED,
            TopologyError::WithoutSwitch { .. } => &WITHOUT_SWITCH,
            TopologyError::DomainAcrossSwitches { .. } => &DOMAIN_ACROSS_SWITCHES,
            TopologyError::MissingGpuType { .. } => &MISSING_GPU_TYPE,
            TopologyError::UnknownHardware { .. } => &UNKNOWN_HARDWARE,
            TopologyError::GpuCount { .. } => &GPU_COUNT,
            TopologyError::OtherGpu { .. }
            | TopologyError::OtherInstance { .. }
            | TopologyError::LinkCount { .. } => &CONTRADICTION,
            TopologyError::UnusedOption { .. } => &UNUSED_OPTION,
            TopologyError::Include { .. } => &INCLUDE,
            TopologyError::MissingPages { .. } => &MISSING_PAGES,
            TopologyError::UnknownFormat { .. } => &UNKNOWN_FORMAT,
            TopologyError::UnknownLevel { .. } => &UNKNOWN_LEVEL,
            TopologyError::Document(error) => error.page(),
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            TopologyError::UnknownKey { near: Some(near), .. } => Some(format!("did you mean `{near}`?")),
            TopologyError::UnknownKey { known, .. } => Some(format!("the keys here are {known}")),
            TopologyError::Undefined { near: Some(near), .. } => Some(format!("did you mean `{near}`?")),
            TopologyError::MissingGpuType { remedy, .. } => Some((*remedy).to_owned()),
            TopologyError::UnknownHardware { instances, .. } if !instances.is_empty() => {
                let names: Vec<String> = instances.iter().map(|name| format!("`{name}`")).collect();
                Some(format!(
                    "that is an accelerator; name a machine that has it, such as {}",
                    names.join(", ")
                ))
            }
            TopologyError::UnknownHardware { source, .. } => source.help(),
            TopologyError::Include { file, .. } => Some(format!(
                "give `{file}` as a further input, and remove the Include line from a copy of this file"
            )),
            TopologyError::Document(error) => error.help(),
            _ => None,
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            TopologyError::Malformed { place, .. }
            | TopologyError::UnknownKey { place, .. }
            | TopologyError::BadHostlist { place, .. }
            | TopologyError::BadName { place, .. }
            | TopologyError::TooMany { place, .. }
            | TopologyError::Empty { place }
            | TopologyError::Cycle { place, .. }
            | TopologyError::Duplicate { place, .. }
            | TopologyError::TwoParents { place, .. }
            | TopologyError::Undefined { place, .. }
            | TopologyError::WithoutSwitch { place, .. }
            | TopologyError::DomainAcrossSwitches { place, .. }
            | TopologyError::MissingGpuType { place, .. }
            | TopologyError::UnknownHardware { place, .. }
            | TopologyError::GpuCount { place, .. }
            | TopologyError::OtherGpu { place, .. }
            | TopologyError::OtherInstance { place, .. }
            | TopologyError::LinkCount { place, .. }
            | TopologyError::UnusedOption { place, .. }
            | TopologyError::Include { place, .. }
            | TopologyError::MissingPages { place }
            | TopologyError::UnknownFormat { place } => Some(place),
            TopologyError::UnknownLevel { .. } => None,
            TopologyError::Document(error) => error.place(),
        }
    }
}
