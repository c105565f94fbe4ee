//! Nodes, and the requirements on nodes that pods and volumes have in the same words.

use bedplate_finding::Action;
use bedplate_kubernetes::k8s_openapi::api::core::v1 as core;
use bedplate_kubernetes::names;
use bedplate_pods::{Effect, Node, NodeFinding, Operator, Requirement, Taint, Term};

use super::resources;

pub(crate) fn node(object: &core::Node) -> Node {
    let status = object.status.clone().unwrap_or_default();
    let spec = object.spec.clone().unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let allocatable = resources(&status.allocatable.unwrap_or_default());
    let capacity = resources(&status.capacity.unwrap_or_default());
    Node {
        name: object.metadata.name.clone().unwrap_or_default(),
        labels: object.metadata.labels.clone().unwrap_or_default(),
        taints: spec.taints.unwrap_or_default().iter().filter_map(taint).collect(),
        gpus: u32::try_from(capacity.gpus.max(allocatable.gpus)).unwrap_or(0),
        allocatable,
        is_spare: label(object, names::SPARE) == Some("true"),
        findings: conditions.iter().filter_map(finding).collect(),
        is_ready: conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        is_cordoned: spec.unschedulable == Some(true) || object.metadata.deletion_timestamp.is_some(),
    }
}

fn label<'a>(object: &'a core::Node, key: &str) -> Option<&'a str> {
    object.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Conditions by which others say that a node must not get anything new: ours, and that of Amazon's node monitoring agent.
const FINDINGS: [(&str, &str); 2] =
    [(names::FINDING_CONDITION, "True"), ("AcceleratedHardwareReady", "False")];

/// A condition that says what is wrong; ours names the action as its reason.
fn finding(condition: &core::NodeCondition) -> Option<NodeFinding> {
    let is_it = |(kind, status): &&(&str, &str)| condition.type_ == *kind && condition.status == *status;
    let (kind, _) = FINDINGS.iter().find(is_it)?;
    let reason = condition.reason.clone().unwrap_or_default();
    let action = Action::named(&reason).unwrap_or(Action::Drain);
    let summary = condition.message.clone().filter(|message| !message.is_empty()).unwrap_or(reason);
    Some(NodeFinding { rule: (*kind).to_owned(), summary, action })
}

fn taint(taint: &core::Taint) -> Option<Taint> {
    let (key, value) = (taint.key.clone(), taint.value.clone().unwrap_or_default());
    Some(Taint { key, value, effect: effect(&taint.effect)? })
}

pub(super) fn effect(text: &str) -> Option<Effect> {
    match text {
        "NoSchedule" => Some(Effect::NoSchedule),
        "PreferNoSchedule" => Some(Effect::PreferNoSchedule),
        "NoExecute" => Some(Effect::NoExecute),
        _ => None,
    }
}

/// A choice of terms; an operator that is not known is given back.
pub(crate) fn terms(selector: &core::NodeSelector) -> Result<Vec<Term>, String> {
    let term = |term: &core::NodeSelectorTerm| {
        let all = |list: &Option<Vec<core::NodeSelectorRequirement>>| {
            list.iter().flatten().map(requirement).collect::<Result<Vec<Requirement>, String>>()
        };
        Ok(Term { labels: all(&term.match_expressions)?, names: all(&term.match_fields)? })
    };
    selector.node_selector_terms.iter().map(term).collect()
}

fn requirement(requirement: &core::NodeSelectorRequirement) -> Result<Requirement, String> {
    let operator = match requirement.operator.as_str() {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => Operator::Gt,
        "Lt" => Operator::Lt,
        other => return Err(format!("the operator `{other}` of node affinity")),
    };
    let values = requirement.values.clone().unwrap_or_default();
    Ok(Requirement { key: requirement.key.clone(), operator, values })
}
