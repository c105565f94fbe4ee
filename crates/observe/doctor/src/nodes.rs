//! Many nodes side by side: in what do a few differ from the rest?

use std::collections::BTreeMap;

use serde::Serialize;

use crate::facts::{NodeFacts, SystemLimit};

/// A property in which nodes differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub what: String,
    /// What most nodes have.
    pub most: String,
    /// The others, with what they have.
    pub odd: Vec<OddNode>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct OddNode {
    pub node: String,
    pub has: String,
}

const ABSENT: &str = "-";
const GPU_COUNT: &str = "GPUs";
const GPU_KIND: &str = "GPU";

/// Every property in which some node differs from most, those with the fewest odd nodes first.
pub fn differences(nodes: &[NodeFacts]) -> Vec<Difference> {
    let mut by_property: BTreeMap<String, BTreeMap<&str, String>> = BTreeMap::new();
    for facts in nodes {
        for (what, value) in properties(facts) {
            by_property.entry(what).or_default().insert(&facts.node, value);
        }
    }
    let mut found: Vec<Difference> =
        by_property.into_iter().filter_map(|(what, values)| difference(what, &values, nodes)).collect();
    found.sort_by_key(|difference| difference.odd.len());
    found
}

fn difference(what: String, values: &BTreeMap<&str, String>, nodes: &[NodeFacts]) -> Option<Difference> {
    let value =
        |facts: &NodeFacts| values.get(facts.node.as_str()).cloned().unwrap_or_else(|| ABSENT.to_owned());
    let compared: Vec<&NodeFacts> =
        nodes.iter().filter(|facts| !(facts.hides_gpus && is_of_gpus(&what))).collect();
    let all: Vec<String> = compared.iter().map(|facts| value(facts)).collect();
    let most = most_common(&all)?;
    let mut odd: Vec<OddNode> = compared
        .iter()
        .zip(all)
        .filter(|(_, has)| *has != most)
        .map(|(facts, has)| OddNode { node: facts.node.clone(), has })
        .collect();
    odd.sort_unstable();
    (!odd.is_empty()).then_some(Difference { what, most, odd })
}

fn is_of_gpus(what: &str) -> bool {
    [GPU_COUNT, GPU_KIND].contains(&what)
}

/// The most frequent value; of equally frequent ones the first in order.
pub(crate) fn most_common<T: Ord + Clone>(values: &[T]) -> Option<T> {
    let mut counts: BTreeMap<&T, usize> = BTreeMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    let most = counts.values().copied().max()?;
    counts.into_iter().find(|(_, count)| *count == most).map(|(value, _)| value.clone())
}

/// What should be equal on all nodes of a kind.
fn properties(facts: &NodeFacts) -> Vec<(String, String)> {
    let mut found = vec![
        ("product".to_owned(), shown(facts.product.as_ref())),
        ("kernel".to_owned(), shown(facts.kernel.as_ref())),
        ("driver".to_owned(), shown(facts.driver.as_ref().map(|driver| &driver.version))),
        ("network cards".to_owned(), facts.cards.len().to_string()),
        ("locked memory".to_owned(), limit(facts.limits.locked_memory)),
        ("open files".to_owned(), limit(facts.limits.open_files)),
        ("huge pages".to_owned(), shown(facts.limits.huge_pages)),
        ("NUMA balancing".to_owned(), shown(facts.limits.numa_balancing)),
        ("memory".to_owned(), shown(facts.limits.memory_bytes.map(|bytes| format!("{} GiB", bytes >> 30)))),
    ];
    found.extend(facts.modules.iter().map(|(name, version)| {
        (format!("module {name}"), version.as_ref().map_or_else(|| "loaded".to_owned(), ToString::to_string))
    }));
    for library in &facts.libraries {
        let version = library.version.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string);
        found.push((format!("{} in {}", library.name, library.path), version));
    }
    if !facts.hides_gpus {
        let names = facts.gpus.iter().map(|gpu| gpu.name.clone()).collect::<Vec<_>>();
        found.push((GPU_COUNT.to_owned(), names.len().to_string()));
        found.push((GPU_KIND.to_owned(), most_common(&names).unwrap_or_else(|| ABSENT.to_owned())));
    }
    for (name, value) in &facts.environment {
        if is_setting(name) {
            found.push((format!("variable {name}"), value.clone()));
        }
    }
    found
}

/// Variables that hold an address or a number of the job itself differ by design.
fn is_setting(name: &str) -> bool {
    const OF_THE_JOB: [&str; 4] =
        ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NCCL_COMM_ID", "NCCL_HOSTID"];
    !OF_THE_JOB.contains(&name)
}

fn shown<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| ABSENT.to_owned(), |value| value.to_string())
}

fn limit(limit: Option<SystemLimit>) -> String {
    match limit {
        None => ABSENT.to_owned(),
        Some(SystemLimit::Unlimited) => "unlimited".to_owned(),
        Some(SystemLimit::At(value)) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::Version;

    #[test]
    fn the_odd_ones_out_are_named_with_what_they_have() {
        let node = |name: &str| NodeFacts {
            node: name.to_owned(),
            kernel: Version::parse("6.1.0"),
            ..NodeFacts::default()
        };
        let mut nodes: Vec<NodeFacts> = ["n1", "n2", "n3", "n4"].map(node).to_vec();
        nodes[1].kernel = Version::parse("5.15.0");
        nodes[3].limits.locked_memory = Some(SystemLimit::At(65536));
        let found = differences(&nodes);
        let told: Vec<String> = found
            .iter()
            .map(|it| format!("{}: most {}, {} has {}", it.what, it.most, it.odd[0].node, it.odd[0].has))
            .collect();
        assert_eq!(told, ["kernel: most 6.1.0, n2 has 5.15.0", "locked memory: most -, n4 has 65536"]);
        assert_eq!(differences(&nodes[..1]), []);
        assert_eq!(differences(&[]), []);
    }

    #[test]
    fn a_node_whose_gpus_belong_to_others_is_not_odd_for_having_none() {
        let gpu = crate::facts::GpuFacts { name: "H100".into(), ..Default::default() };
        let node = |name: &str| NodeFacts {
            node: name.to_owned(),
            gpus: vec![gpu.clone(); 8],
            ..NodeFacts::default()
        };
        let busy = NodeFacts { node: "n3".into(), hides_gpus: true, ..NodeFacts::default() };
        assert_eq!(differences(&[node("n1"), node("n2"), busy.clone()]), []);
        let bare = NodeFacts { hides_gpus: false, ..busy };
        assert_eq!(differences(&[node("n1"), node("n2"), bare]).len(), 2);
    }
}
