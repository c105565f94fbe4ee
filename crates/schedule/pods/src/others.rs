//! Bindings of other schedulers, judged before they are made.
//!
//! Kubernetes has no lock that two schedulers share. Where the API server asks before it binds, this is one: what was given to our
//! gangs counts from the decision on, and what another was allowed counts until it is seen.

use bedplate_gangs::Time;

use crate::scheduler::{PodScheduler, UNSEEN, YOUNG};
use crate::{Node, Pod, Resources};

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
    /// It may have failed elsewhere.
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
        if self.is_taken_by_us(node, pod, now) {
            let why = format!("{} has no room left beside what was given away a moment ago", asked.node);
            return Judged::Refused(why);
        }
        let uid = pod.uid.clone();
        self.allowed.insert(uid, Allowed { node: asked.node.clone(), until: now + UNSEEN });
        Judged::Fits
    }

    /// Whether a pod does not fit on a node because of what was given away so recently that others may not have seen it. What else
    /// keeps it from fitting is for its own scheduler to know.
    fn is_taken_by_us(&self, node: &Node, pod: &Pod, now: Time) -> bool {
        let mut free = node.allocatable.clone();
        let mut recent = Resources::default();
        for (_, uid, needs) in self.taken().filter(|(name, uid, _)| *name == node.name && *uid != pod.uid) {
            free.take(needs);
            let taker = &self.pods[uid];
            let is_young = taker.bound_at.is_some_and(|at| now.since(at) < YOUNG);
            if taker.node.is_none() || (taker.is_ours && is_young) {
                recent.add(needs);
            }
        }
        let fits = free.covers(&pod.needs);
        free.add(&recent);
        !fits && free.covers(&pod.needs)
    }

    /// Everything that takes room: what stands on nodes, what our gangs were given, what others were allowed to take.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (&str, &str, &Resources)> {
        let standing = self.pods.values().filter(|pod| pod.takes_resources());
        let standing = standing.filter_map(|pod| Some((pod.node.as_deref()?, pod.uid.as_str(), &pod.needs)));
        // Between decisions a pod that was given a place may be gone, or be seen on it.
        let given = self.gangs.values().flat_map(|gang| &gang.assumed).filter_map(|(uid, given)| {
            let pod = self.pods.get(uid).filter(|pod| pod.node.is_none())?;
            Some((given.node.as_str(), uid.as_str(), &pod.needs))
        });
        standing.chain(given).chain(self.allowed())
    }

    /// What others were allowed to take and is not seen on its node yet.
    pub(crate) fn allowed(&self) -> impl Iterator<Item = (&str, &str, &Resources)> {
        self.allowed.iter().filter_map(|(uid, allowed)| {
            let pod = self.pods.get(uid).filter(|pod| pod.node.is_none())?;
            Some((allowed.node.as_str(), uid.as_str(), &pod.needs))
        })
    }

    /// Room that other schedulers have made for pods of theirs: they may need a moment to take it.
    pub(crate) fn nominated(&self) -> impl Iterator<Item = (&str, &Resources)> {
        let waiting = self.pods.values().filter(|pod| !pod.is_ours && pod.node.is_none() && !pod.has_ended());
        let waiting = waiting.filter(|pod| !pod.is_leaving && !self.allowed.contains_key(&pod.uid));
        waiting.filter_map(|pod| Some((pod.nominated.as_deref()?, &pod.needs)))
    }

    /// Forgets what has been seen since, or was not done.
    pub(crate) fn forget_allowed(&mut self, now: Time) {
        let pods = &self.pods;
        let is_open = |uid: &str| pods.get(uid).is_some_and(|pod| pod.node.is_none() && !pod.has_ended());
        self.allowed.retain(|uid, allowed| allowed.until > now && is_open(uid));
    }
}
