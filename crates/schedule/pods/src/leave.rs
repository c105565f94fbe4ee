//! What leaves nodes: pods of lost nodes, gangs that give way to others, gangs that cannot become whole.

use bedplate_gangs::{Span, Time};

use crate::cluster::ClusterShape;
use crate::free_resources::FreeResources;
use crate::gang::{Assumed, GangProgress, Members, PodGang};
use crate::scheduler::{PodScheduler, UNSEEN, YOUNG};
use crate::{Pod, PodAction};

/// When a pod is deleted again that is still there.
const EVICTED_AGAIN: Span = Span::seconds(10);

impl PodScheduler {
    /// What is on a node that no longer exists will not end by itself; what is on one that is lost or broken goes with time to end.
    pub(crate) fn evict_from_lost_nodes(&mut self, now: Time) -> Vec<PodAction> {
        let count = self.nodes.len();
        let lost = |pod: &Pod| match self.nodes.get(pod.node.as_ref()?) {
            None => Some((Some(Span::ZERO), "its node is gone from the cluster".to_owned())),
            Some(_) if pod.is_leaving => None,
            Some(node) => Some((None, self.healing.strikes(node, count, now)?)),
        };
        let standing = self.pods.values().filter(|pod| pod.is_ours && pod.takes_resources());
        let lost = standing.filter_map(|pod| Some((pod.uid.clone(), pod.job.clone(), lost(pod)?)));
        let lost: Vec<(String, String, (Option<Span>, String))> = lost.collect();
        let mut actions = Vec::new();
        for (uid, job, (grace, why)) in lost {
            self.healing.struck(&job, now);
            actions.extend(self.evict(&uid, grace, &why, now));
        }
        actions
    }

    fn evict(&mut self, uid: &str, grace: Option<Span>, why: &str, now: Time) -> Option<PodAction> {
        let was = self.evicted.get(uid).copied();
        if was.is_some_and(|at| now.since(at) < EVICTED_AGAIN) {
            self.wake_at(was.map(|at| at + EVICTED_AGAIN));
            return None;
        }
        self.evicted.insert(uid.to_owned(), now);
        self.wake_at(Some(now + EVICTED_AGAIN));
        let pod = &self.pods[uid];
        let (namespace, name) = (pod.namespace.clone(), pod.name.clone());
        Some(PodAction::Evict { uid: uid.to_owned(), namespace, pod: name, grace, why: why.to_owned() })
    }

    /// Where another scheduler bound in the same moment, the youngest of our gangs on the node goes back.
    pub(crate) fn give_way(&mut self, shape: &ClusterShape, now: Time) {
        let free_resources = self.free_without_leaving(shape);
        for node in free_resources.overdrawn() {
            let name = shape.name(node);
            let is_young = |pod: &&Pod| {
                let since = pod.bound_at.unwrap_or(now);
                pod.is_ours
                    && pod.takes_resources()
                    && !pod.is_leaving
                    && pod.node.as_deref() == Some(name)
                    && now.since(since) < YOUNG
            };
            let bound = self
                .pods
                .values()
                .filter(is_young)
                .map(|pod| (pod.bound_at.unwrap_or(now), pod.gang.clone()));
            let assumes =
                |gang: &(&String, &PodGang)| gang.1.assumed.values().any(|assumed| assumed.node == name);
            let assumed = self.gangs.iter().filter(assumes).map(|(key, _)| (now, key.clone()));
            let youngest = bound.chain(assumed).max();
            if let Some(gang) = youngest.and_then(|(_, key)| self.gangs.get_mut(&key)) {
                let why = format!(
                    "another scheduler bound pods to {name} at the same time, and not all of them fit"
                );
                gang.goes.get_or_insert(why);
            }
        }
    }

    /// What is free once all that leaves has left: who has given way need not do so again, and nobody else for him.
    fn free_without_leaving(&self, shape: &ClusterShape) -> FreeResources {
        let goes = |pod: &Pod| {
            let is_going = self.gangs.get(&pod.gang).is_some_and(|gang| gang.goes.is_some());
            pod.is_leaving || self.evicted.contains_key(&pod.uid) || (pod.is_ours && is_going)
        };
        let mut free_resources = FreeResources::of(&self.nodes, shape);
        let staying = self.pods.values().filter(|pod| pod.takes_resources() && !goes(pod));
        let staying = staying.filter_map(|pod| Some((pod.node.as_deref()?, &pod.needs)));
        let stays = |gang: &&PodGang| gang.goes.is_none();
        let given = self.gangs.values().filter(stays).flat_map(|gang| &gang.assumed);
        let given = given.filter_map(|(uid, given)| Some((given.node.as_str(), &self.pods.get(uid)?.needs)));
        for (node, needs) in staying.chain(given) {
            if let Some(node) = shape.ids.get(node) {
                free_resources.take(*node, needs);
            }
        }
        free_resources
    }

    /// Gangs that have been bound in part for too long go back as a whole.
    pub(crate) fn send_away_parts(&mut self, now: Time) {
        for (key, uids) in &self.members {
            let members = Members::of(uids.iter().map(|uid| &self.pods[uid]));
            let Some(gang) = self.gangs.get_mut(key) else { continue };
            if members.is_whole()
                && members.bound.iter().all(|pod| !self.evicted.contains_key(&pod.uid))
                && let Some(first) = members.first()
            {
                self.healing.is_whole(&first.job);
            }
            if gang.watch_parts(&members, now) {
                let why = "some pods of its gang are not on nodes, and all run or none";
                gang.goes.get_or_insert_with(|| why.to_owned());
            }
        }
        self.wake_at(self.gangs.values().filter_map(PodGang::deadline).filter(|at| *at > now).min());
    }

    /// Deletes what stands of gangs that go. What is being bound is deleted once it is seen.
    pub(crate) fn evict_going(&mut self, now: Time) -> Vec<PodAction> {
        // What may have been bound keeps its place until the news of it must have come.
        let is_open =
            |assumed: &Assumed| !matches!(assumed.progress, GangProgress::Again(at) if at + UNSEEN <= now);
        let going = self.gangs.iter_mut().filter_map(|(key, gang)| {
            let why = gang.goes.clone()?;
            gang.assumed.retain(|_, assumed| is_open(assumed));
            Some((key.clone(), why))
        });
        let going: Vec<(String, String)> = going.collect();
        if !going.is_empty() {
            self.wake_at(Some(now + Span::seconds(1)));
        }
        let mut actions = Vec::new();
        for (key, why) in going {
            let standing: Vec<String> =
                self.members_of(&key).bound.iter().map(|pod| pod.uid.clone()).collect();
            actions.extend(standing.iter().filter_map(|uid| self.evict(uid, None, &why, now)));
        }
        actions
    }
}
