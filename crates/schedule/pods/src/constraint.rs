//! On which nodes a pod may stand: selectors, required affinity, tolerations, the zones of its volumes.

use std::collections::BTreeMap;

use crate::{Effect, Node, Taint};

/// All that must hold of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Constraints {
    pub selector: BTreeMap<String, String>,
    /// Each is a choice of terms, one of which must hold: the pod's own affinity, and that of each of its volumes.
    pub affinity: Vec<Vec<Term>>,
    pub tolerations: Vec<Toleration>,
    /// Not on a node with another pod of its gang that asks for the same.
    pub is_apart: bool,
}

/// Requirements that must all hold. An empty term holds nowhere, as in Kubernetes.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Term {
    pub labels: Vec<Requirement>,
    pub names: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    pub values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Toleration {
    /// Any key when absent.
    pub key: Option<String>,
    /// Any value when absent.
    pub value: Option<String>,
    /// Any effect when absent.
    pub effect: Option<Effect>,
}

impl Constraints {
    pub(crate) fn allow(&self, node: &Node) -> bool {
        let is_selected = self.selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
        let is_tolerated = |taint: &Taint| {
            taint.effect == Effect::PreferNoSchedule
                || self.tolerations.iter().any(|each| each.tolerates(taint))
        };
        is_selected
            && self.affinity.iter().all(|terms| terms.iter().any(|term| term.holds(node)))
            && node.taints.iter().all(is_tolerated)
    }
}

impl Term {
    fn holds(&self, node: &Node) -> bool {
        let is_empty = self.labels.is_empty() && self.names.is_empty();
        let by_label = |each: &Requirement| each.holds(node.labels.get(&each.key).map(String::as_str));
        !is_empty
            && self.labels.iter().all(by_label)
            && self.names.iter().all(|each| each.holds(Some(&node.name)))
    }
}

impl Requirement {
    fn holds(&self, value: Option<&str>) -> bool {
        let is_listed = |value: &str| self.values.iter().any(|each| each == value);
        let number = |text: &str| text.parse::<i64>().ok();
        let bound = self.values.first().and_then(|text| number(text));
        match self.operator {
            Operator::In => value.is_some_and(is_listed),
            Operator::NotIn => !value.is_some_and(is_listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt => value.and_then(number).zip(bound).is_some_and(|(value, bound)| value > bound),
            Operator::Lt => value.and_then(number).zip(bound).is_some_and(|(value, bound)| value < bound),
        }
    }
}

impl Toleration {
    fn tolerates(&self, taint: &Taint) -> bool {
        self.key.as_ref().is_none_or(|key| *key == taint.key)
            && self.value.as_ref().is_none_or(|value| *value == taint.value)
            && self.effect.is_none_or(|effect| effect == taint.effect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Node {
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        Node {
            name: "a".into(),
            labels: BTreeMap::from([label("zone", "z1"), label("generation", "5")]),
            taints: vec![Taint { key: "gpu".into(), value: "yes".into(), effect: Effect::NoSchedule }],
            ..Node::default()
        }
    }

    fn tolerating() -> Constraints {
        let toleration = Toleration { key: Some("gpu".into()), value: None, effect: None };
        Constraints { tolerations: vec![toleration], ..Constraints::default() }
    }

    fn requiring(key: &str, operator: Operator, values: &[&str]) -> Constraints {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        let term =
            Term { labels: vec![Requirement { key: key.into(), operator, values }], names: Vec::new() };
        Constraints { affinity: vec![vec![term]], ..tolerating() }
    }

    #[test]
    fn a_taint_keeps_out_who_does_not_tolerate_it() {
        assert!(!Constraints::default().allow(&node()));
        assert!(tolerating().allow(&node()));
        let other_value = Toleration { key: Some("gpu".into()), value: Some("no".into()), effect: None };
        assert!(!Constraints { tolerations: vec![other_value], ..Constraints::default() }.allow(&node()));
    }

    #[test]
    fn requirements_hold_as_kubernetes_defines_them() {
        for (key, operator, values, holds) in [
            ("zone", Operator::In, &["z1", "z2"][..], true),
            ("zone", Operator::NotIn, &["z1"], false),
            ("rack", Operator::NotIn, &["r1"], true),
            ("zone", Operator::Exists, &[], true),
            ("rack", Operator::DoesNotExist, &[], true),
            ("generation", Operator::Gt, &["4"], true),
            ("generation", Operator::Lt, &["5"], false),
            ("zone", Operator::Gt, &["4"], false),
        ] {
            assert_eq!(
                requiring(key, operator, values).allow(&node()),
                holds,
                "{key} {operator:?} {values:?}"
            );
        }
    }

    #[test]
    fn an_empty_term_holds_nowhere_and_a_name_can_be_required() {
        assert!(!Constraints { affinity: vec![vec![Term::default()]], ..tolerating() }.allow(&node()));
        let named = |name: &str| {
            let values = vec![name.to_owned()];
            let names = vec![Requirement { key: "metadata.name".into(), operator: Operator::In, values }];
            Constraints { affinity: vec![vec![Term { labels: Vec::new(), names }]], ..tolerating() }
        };
        assert!(named("a").allow(&node()));
        assert!(!named("b").allow(&node()));
    }
}
