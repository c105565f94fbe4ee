//! What is known about a node at one moment.

use bedplate_finding::Subject;

/// One value of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading<'a> {
    pub metric: &'a str,
    pub place: Place<'a>,
    pub value: f64,
}

/// The part of the node that a reading is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place<'a> {
    Node,
    /// An accelerator by its index.
    Gpu(u32),
    Card(&'a str),
    /// A mounted file system or a disk.
    Mount(&'a str),
}

/// The same, kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Node,
    Gpu(u32),
    Card(String),
    Mount(String),
}

impl Part {
    pub(crate) fn of(place: Place<'_>) -> Self {
        match place {
            Place::Node => Part::Node,
            Place::Gpu(index) => Part::Gpu(index),
            Place::Card(card) => Part::Card(card.to_owned()),
            Place::Mount(mount) => Part::Mount(mount.to_owned()),
        }
    }

    pub(crate) fn subject(&self, node: &str) -> Subject {
        let node = node.to_owned();
        match self {
            Part::Node => Subject::Node { node },
            Part::Gpu(index) => Subject::Gpu { node, index: *index },
            Part::Card(card) => Subject::NetworkCard { node, card: card.clone() },
            Part::Mount(mount) => Subject::Storage { node, mount: mount.clone() },
        }
    }
}
