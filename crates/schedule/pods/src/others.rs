//! Bindings of other schedulers, judged before they are made.
//!
//! Kubernetes has no lock that two schedulers share. Where the API server asks before it binds, this is one: what was given to our
//! gangs counts from the decision on, and what another was allowed counts until it is seen.

use bedplate_gangs::{Span, Time};

use crate::scheduler::PodScheduler;
use crate::{Node, Resources};

/// How long an allowed binding counts that is not seen: it may have failed elsewhere.
const UNSEEN: Span = Span::seconds(10);

/// A binding that somebody is about to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskedBinding {
    pub namespace: String,
    pub pod: String,
    /// Of the pod, where whoever binds it says so.
    pub uid: Option<String>,
    pub node: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judged {
    Fits,
    /// Its pod or node has not been heard of yet.
    Unknown,
    /// Why it may not be made.
    Refused(String),
}

/// A place that another scheduler was allowed to take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub(crate) node: String,
    until: Time,
}

impl PodScheduler {
    /// Whether a binding fits beside everything that was given away. One that does is counted from now on.
    pub fn judge(&mut self, asked: &AskedBinding, now: Time) -> Judged {
        let pod = match &asked.uid {
            Some(uid) => self.pods.get(uid),
            None => {
                let mut pods = self.pods.values();
                pods.find(|pod| (&pod.namespace, &pod.name) == (&asked.namespace, &asked.pod))
            }
        };
        let (Some(pod), Some(node)) = (pod, self.nodes.get(&asked.node)) else { return Judged::Unknown };
        if pod.is_ours {
            let given = self.gangs.get(&pod.gang).and_then(|gang| gang.assumed.get(&pod.uid));
            return match given {
                Some(given) if given.node == asked.node => Judged::Fits,
                _ => Judged::Refused("its gang was not given that node".to_owned()),
            };
        }
        let free = self.free_on(node, &pod.uid);
        if !free.covers(&pod.needs) {
            let why = format!(
                "{} has no room left for it beside what was bound or given away a moment ago",
                asked.node
            );
            return Judged::Refused(why);
        }
        let uid = pod.uid.clone();
        self.allowed.insert(uid, Allowed { node: asked.node.clone(), until: now + UNSEEN });
        Judged::Fits
    }

    /// What a node has for a pod.
    fn free_on(&self, node: &Node, uid: &str) -> Resources {
        let mut free = node.allocatable.clone();
        let others = self.taken().filter(|(name, of, _)| *name == node.name && *of != uid);
        others.for_each(|(_, _, needs)| free.take(needs));
        free
    }

    /// Everything that takes room: what stands on nodes, what our gangs were given, what others were allowed to take.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (&str, &str, &Resources)> {
        let standing = self.pods.values().filter(|pod| pod.takes_room());
        let standing = standing.filter_map(|pod| Some((pod.node.as_deref()?, pod.uid.as_str(), &pod.needs)));
        let given = self.gangs.values().flat_map(|gang| &gang.assumed);
        let given = given.map(|(uid, given)| (given.node.as_str(), uid.as_str(), &self.pods[uid].needs));
        standing.chain(given).chain(self.allowed())
    }

    /// What others were allowed to take and is not seen on its node yet.
    pub(crate) fn allowed(&self) -> impl Iterator<Item = (&str, &str, &Resources)> {
        self.allowed.iter().filter_map(|(uid, allowed)| {
            let pod = self.pods.get(uid).filter(|pod| pod.node.is_none())?;
            Some((allowed.node.as_str(), uid.as_str(), &pod.needs))
        })
    }

    /// Forgets what has been seen since, or was not done.
    pub(crate) fn forget_allowed(&mut self, now: Time) {
        let pods = &self.pods;
        let is_open = |uid: &str| pods.get(uid).is_some_and(|pod| pod.node.is_none() && !pod.has_ended());
        self.allowed.retain(|uid, allowed| allowed.until > now && is_open(uid));
    }
}
