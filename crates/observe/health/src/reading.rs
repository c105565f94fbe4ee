//! What is known about a node at one moment.

use bedplate_finding::Subject;

/// One value of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading<'a> {
    pub metric: &'a str,
    pub place: ReadingPlace<'a>,
    pub value: f64,
}

/// The part of the node that a reading is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadingPlace<'a> {
    Node,
    /// An accelerator by its index.
    Gpu(u32),
    Card(&'a str),
    /// A mounted file system or a disk.
    Mount(&'a str),
}

/// The same, kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OwnedPlace {
    Node,
    Gpu(u32),
    Card(String),
    Mount(String),
}

impl OwnedPlace {
    pub(crate) fn of(place: ReadingPlace<'_>) -> Self {
        match place {
            ReadingPlace::Node => OwnedPlace::Node,
            ReadingPlace::Gpu(index) => OwnedPlace::Gpu(index),
            ReadingPlace::Card(card) => OwnedPlace::Card(card.to_owned()),
            ReadingPlace::Mount(mount) => OwnedPlace::Mount(mount.to_owned()),
        }
    }

    pub(crate) fn subject(&self, node: &str) -> Subject {
        let node = node.to_owned();
        match self {
            OwnedPlace::Node => Subject::Node { node },
            OwnedPlace::Gpu(index) => Subject::Gpu { node, index: *index },
            OwnedPlace::Card(card) => Subject::NetworkCard { node, card: card.clone() },
            OwnedPlace::Mount(mount) => Subject::Storage { node, mount: mount.clone() },
        }
    }
}
