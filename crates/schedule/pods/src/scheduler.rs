//! The state machine: what the API server says goes in, what shall be done there comes out.
//!
//! A decision reads from top to bottom: what is gone is forgotten, gangs that cannot become whole in time go, the scheduler
//! of gangs is told what is held and what waits, and what it decides becomes actions.

use std::collections::{BTreeMap, BTreeSet};

use bedplate_blame::BlamePolicy;
use bedplate_catalog::Catalog;
use bedplate_gangs::{
    Decision, JobId, NodeShare, Scheduler, Settings, SettingsError, Span, StopReason, Time, UsageRecord,
};
use bedplate_topology::{Health, NodeId, TopologyError};

use crate::action::{BindOutcome, PodAction, UNSCHEDULABLE, Waiting};
use crate::brief::{Brief, PodRules};
use crate::cluster::ClusterShape;
use crate::free_resources::{FreeResources, Ledger};
use crate::gang::{Assumed, GangProgress, Members, PodGang};
use crate::heal::Healing;
use crate::others::Allowed;
use crate::shape::{NodeChoice, NodeMatcher, RoleSplit};
use crate::words::{no_exact_fit, refused, waits};
use crate::{GangPolicy, Node, Pod, Resources, SchedulerRemark};

/// When a binding is asked for again of which nobody knows whether it was done.
const AGAIN: Span = Span::seconds(1);
/// A binding that was done or allowed and is not seen for this long was not made.
pub(crate) const UNSEEN: Span = Span::seconds(10);
/// How soon the words of a waiting pod may change while their reason stays.
const SAID_AGAIN: Span = Span::seconds(30);
/// Pods that have just been made are told nothing: most will be bound in a moment.
const SAID_AFTER: Span = Span::seconds(2);
/// A gang that was bound this recently gives way where a node has more pods than room, and may not have been seen by others.
pub(crate) const YOUNG: Span = Span::seconds(60);

/// The site's rules as a file has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteRules {
    pub text: String,
    /// The file's name, for complaints.
    pub source: String,
}

/// The scheduler of the pods that ask for it.
///
/// Tell it of all nodes and pods before the first decision; [`decide`](PodScheduler::decide) then follows every change,
/// and [`wakeup`](PodScheduler::wakeup) says when nothing but time makes a decision due.
pub struct PodScheduler {
    catalog: Catalog,
    site: Option<SiteRules>,
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) pods: BTreeMap<String, Pod>,
    /// Pods of ours by gang.
    pub(crate) members: BTreeMap<String, BTreeSet<String>>,
    pub(crate) gangs: BTreeMap<String, PodGang>,
    /// Places that other schedulers were allowed to take, by pod.
    pub(crate) allowed: BTreeMap<String, Allowed>,
    /// Whether somebody makes requests for nodes.
    pub(crate) asks_for_nodes: bool,
    shape: Option<ClusterShape>,
    /// When pods were told to go.
    pub(crate) evicted: BTreeMap<String, Time>,
    pub(crate) healing: Healing,
    usage: BTreeMap<(String, String), UsageRecord>,
    charged: Option<Time>,
    last_gang: u64,
    wakeup: Option<Time>,
    has_decided: bool,
}

/// What becomes of gangs in one decision.
#[derive(Default)]
struct Verdicts {
    /// Each with the places of its pods.
    starts: Vec<(String, Vec<(String, NodeId)>)>,
    stops: Vec<(JobId, StopReason)>,
    told: Vec<(String, Waiting)>,
}

/// A gang that may start now, and as what.
struct Candidate<'p> {
    gang: String,
    members: Vec<&'p Pod>,
    split: RoleSplit,
}

impl PodScheduler {
    pub fn new(catalog: Catalog, site: Option<SiteRules>) -> Self {
        Self {
            catalog,
            site,
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            members: BTreeMap::new(),
            gangs: BTreeMap::new(),
            allowed: BTreeMap::new(),
            asks_for_nodes: false,
            shape: None,
            evicted: BTreeMap::new(),
            healing: Healing::new(BlamePolicy::default()),
            usage: BTreeMap::new(),
            charged: None,
            last_gang: 0,
            wakeup: None,
            has_decided: false,
        }
    }

    /// A node is there, or has changed; says whether that is news.
    pub fn node(&mut self, node: Node) -> bool {
        if self.nodes.get(&node.name) == Some(&node) {
            return false;
        }
        let is_as_before = self.nodes.get(&node.name).is_some_and(|known| known.has_shape_of(&node));
        if !is_as_before {
            self.shape = None;
        }
        self.nodes.insert(node.name.clone(), node);
        true
    }

    pub fn node_gone(&mut self, name: &str) {
        if self.nodes.remove(name).is_some() {
            self.shape = None;
        }
    }

    /// A pod is there, or has changed; says whether that is news.
    pub fn pod(&mut self, pod: Pod) -> bool {
        if self.pods.get(&pod.uid) == Some(&pod) {
            return false;
        }
        self.pod_gone(&pod.uid);
        if pod.is_ours {
            self.members.entry(pod.gang.clone()).or_default().insert(pod.uid.clone());
        }
        self.pods.insert(pod.uid.clone(), pod);
        true
    }

    pub fn pod_gone(&mut self, uid: &str) {
        let Some(pod) = self.pods.remove(uid) else { return };
        if let Some(members) = self.members.get_mut(&pod.gang) {
            members.remove(uid);
            if members.is_empty() {
                self.members.remove(&pod.gang);
            }
        }
    }

    /// The names of all nodes and the uids of all pods that it knows: what a new list of the server lacks is gone.
    pub fn known(&self) -> (Vec<String>, Vec<String>) {
        (self.nodes.keys().cloned().collect(), self.pods.keys().cloned().collect())
    }

    /// What came of binding a pod.
    pub fn bound(&mut self, uid: &str, outcome: BindOutcome, now: Time) {
        let Some(pod) = self.pods.get(uid) else { return };
        let Some(gang) = self.gangs.get_mut(&pod.gang) else { return };
        match (gang.assumed.get_mut(uid), outcome) {
            (Some(assumed), BindOutcome::Done) => assumed.progress = GangProgress::Done(now),
            (Some(assumed), BindOutcome::Unknown) => assumed.progress = GangProgress::Again(now + AGAIN),
            (Some(_), BindOutcome::Refused) => {
                gang.assumed.remove(uid);
                gang.not_before = now + AGAIN;
            }
            (None, _) => {}
        }
    }

    /// When a decision is due although nothing happens.
    pub fn wakeup(&self) -> Option<Time> {
        self.wakeup
    }

    /// Gangs that wait: how many, and how many pods they have.
    pub fn waiting(&self) -> (usize, usize) {
        let pending = |uids: &BTreeSet<String>| {
            uids.iter().filter(|uid| self.pods[*uid].node.is_none() && !self.pods[*uid].has_ended()).count()
        };
        let pending: Vec<usize> = self.members.values().map(pending).filter(|count| *count > 0).collect();
        (pending.len(), pending.iter().sum())
    }

    /// What whoever runs the cluster should look at; each is said once for every decision that it came up in.
    pub fn remarks(&mut self) -> Vec<SchedulerRemark> {
        self.healing.remarks()
    }

    /// Whether the site's rules can be read for the nodes as they are now.
    pub fn check_site(&self) -> Result<(), SettingsError> {
        match (&self.site, ClusterShape::of(&self.nodes, &self.catalog)) {
            (Some(site), Ok(shape)) => {
                Settings::from_toml(&site.text, &site.source, &shape.cluster).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Decides on what is known now. An error means that the nodes as they are make no cluster.
    pub fn decide(&mut self, now: Time) -> Result<Vec<PodAction>, TopologyError> {
        self.wakeup = None;
        self.forget_allowed(now);
        self.forget_what_is_gone(now);
        if self.shape.is_none() && !self.nodes.is_empty() {
            self.shape = Some(ClusterShape::of(&self.nodes, &self.catalog)?);
        }
        let mut actions = self.healing.judge(&self.nodes, &self.pods, now);
        actions.extend(self.evict_from_lost_nodes(now));
        self.wake_at(self.healing.deadline(now));
        let Some(shape) = self.shape.take() else {
            let waiting = Waiting { reason: UNSCHEDULABLE, message: "the cluster has no nodes".to_owned() };
            let gangs: Vec<String> = self.members.keys().cloned().collect();
            gangs.iter().for_each(|gang| actions.extend(self.tell(gang, &waiting, now)));
            actions.extend(self.ask_for_nodes(now));
            return Ok(actions);
        };
        let free_resources = self.free_resources(&shape);
        self.give_way(&shape, now);
        self.send_away_parts(now);
        actions.extend(self.evict_going(now));
        actions.extend(self.bind_again(now));
        match self.rules(&shape) {
            Ok(rules) => actions.extend(self.schedule(&shape, rules, free_resources, now)),
            Err(why) => actions.extend(self.wait_for_rules(&why, now)),
        }
        actions.extend(self.ask_for_nodes(now));
        self.shape = Some(shape);
        self.has_decided = true;
        Ok(actions)
    }

    fn forget_what_is_gone(&mut self, now: Time) {
        let pods = &self.pods;
        self.evicted.retain(|uid, _| pods.contains_key(uid));
        let members = &self.members;
        self.gangs.retain(|key, _| members.contains_key(key));
        for (key, uids) in members {
            let has_decided = self.has_decided;
            let gang = self.gangs.entry(key.clone()).or_insert_with(|| {
                self.last_gang += 1;
                PodGang::new(self.last_gang, !has_decided)
            });
            let is_open = |uid: &str| pods.get(uid).is_some_and(|pod| pod.node.is_none() && !pod.is_leaving);
            gang.assumed.retain(|uid, _| is_open(uid));
            gang.told_pods.retain(|uid| is_open(uid));
            let stands = |uid: &String| pods[uid].takes_resources();
            if gang.assumed.is_empty() && !uids.iter().any(stands) {
                gang.begin_anew();
            }
        }
        let going: BTreeSet<JobId> =
            self.gangs.values().filter(|gang| gang.goes.is_some()).map(PodGang::holds_as).collect();
        self.gangs.values_mut().for_each(|gang| gang.victims.retain(|victim| going.contains(victim)));
        self.wake_at(self.gangs.values().filter_map(PodGang::deadline).filter(|at| *at > now).min());
    }

    pub(crate) fn wake_at(&mut self, time: Option<Time>) {
        self.wakeup = [self.wakeup, time].into_iter().flatten().min();
    }

    pub(crate) fn members_of(&self, gang: &str) -> Members<'_> {
        Members::of(self.members.get(gang).into_iter().flatten().map(|uid| &self.pods[uid]))
    }

    /// What is free now, after all that stands on nodes and all that was given a place.
    fn free_resources(&self, shape: &ClusterShape) -> FreeResources {
        let mut free_resources = FreeResources::of(&self.nodes, shape);
        let nominated = self.nominated();
        for (node, needs) in self.taken().map(|(node, _, needs)| (node, needs)).chain(nominated) {
            if let Some(node) = shape.ids.get(node) {
                free_resources.take(*node, needs);
            }
        }
        free_resources
    }

    /// Binds again what may not have been bound.
    fn bind_again(&mut self, now: Time) -> Vec<PodAction> {
        let mut actions = Vec::new();
        let mut next: Option<Time> = None;
        for gang in self.gangs.values_mut().filter(|gang| gang.goes.is_none()) {
            for (uid, assumed) in &mut gang.assumed {
                let due = match assumed.progress {
                    GangProgress::Asked => continue,
                    GangProgress::Done(at) => at + UNSEEN,
                    GangProgress::Again(at) => at,
                };
                if due <= now {
                    assumed.progress = GangProgress::Asked;
                    actions.push(bind(&self.pods[uid], &assumed.node));
                } else {
                    next = Some(next.map_or(due, |next| next.min(due)));
                }
            }
        }
        self.wake_at(next);
        actions
    }

    /// Tells the scheduler of gangs how things stand, and makes actions of what it decides.
    fn schedule(
        &mut self,
        shape: &ClusterShape,
        mut rules: PodRules,
        mut free_resources: FreeResources,
        now: Time,
    ) -> Vec<PodAction> {
        self.charge(&rules, now);
        let mut scheduler = Scheduler::new(shape.cluster.clone(), rules.settings().clone());
        let used: Vec<UsageRecord> =
            self.usage.iter().map(|(who, record)| rules.usage_of(who, *record)).collect();
        let mut brief = Brief::new(&mut rules, now);
        brief.used(used.into_iter());
        self.tell_of_holdings(&mut brief, &scheduler, shape, &free_resources, now);
        let resting = self.gangs.values().map(|gang| gang.not_before).filter(|at| *at > now).min();
        self.wake_at(resting);
        let mut verdicts = Verdicts::default();
        let candidates = self.candidates(&mut brief, shape, &free_resources, &mut verdicts.told, now);
        for decision in scheduler.apply_all(brief.events(), now) {
            self.take_decision(decision, &candidates, shape, &mut free_resources, &mut verdicts);
        }
        self.explain_waits(&mut scheduler, &candidates, &mut verdicts, now);
        drop(candidates);
        self.wake_at(scheduler.wakeup().map(|at| at.max(now + Span::seconds(1))));
        let Verdicts { starts, stops, told } = verdicts;
        let mut actions = Vec::new();
        for (gang, places) in starts {
            actions.extend(self.start(&gang, places, shape));
        }
        for (job, why) in stops {
            actions.extend(self.stop(job, &why, now));
        }
        for (gang, waiting) in told {
            actions.extend(self.tell(&gang, &waiting, now));
        }
        actions
    }

    fn take_decision(
        &self,
        decision: Decision,
        candidates: &BTreeMap<JobId, Candidate<'_>>,
        shape: &ClusterShape,
        free_resources: &mut FreeResources,
        verdicts: &mut Verdicts,
    ) {
        match decision {
            Decision::Start { job, shares, .. } => {
                let Some(candidate) = candidates.get(&job) else { return };
                match self.places(candidate, &shares, shape, free_resources) {
                    Some(places) => verdicts.starts.push((candidate.gang.clone(), places)),
                    None => verdicts.told.push((candidate.gang.clone(), no_exact_fit())),
                }
            }
            Decision::Stop { job, why, .. } => verdicts.stops.push((job, why)),
            Decision::Reject { job, why } => {
                let refused = candidates.get(&job).map(|candidate| (candidate.gang.clone(), refused(&why)));
                verdicts.told.extend(refused);
            }
            _ => {}
        }
    }

    /// What gangs are told that neither start nor were refused. Reasons take time to find; they are found as often as they are told.
    fn explain_waits(
        &self,
        scheduler: &mut Scheduler,
        candidates: &BTreeMap<JobId, Candidate<'_>>,
        verdicts: &mut Verdicts,
        now: Time,
    ) {
        let started: BTreeSet<&String> = verdicts.starts.iter().map(|(gang, _)| gang).collect();
        let names = self.names();
        for (job, candidate) in candidates {
            if scheduler.request(*job).is_none() || started.contains(&candidate.gang) {
                continue;
            }
            let known = self.gangs.get(&candidate.gang).and_then(|gang| gang.told.as_ref());
            let said = match known {
                Some((at, said)) if now.since(*at) < SAID_AGAIN => said.for_all(),
                _ => waits(scheduler.explain(*job, now).map(|explanation| explanation.wait).as_ref(), &names),
            };
            verdicts.told.push((candidate.gang.clone(), said));
        }
    }

    /// The site's rules for the nodes as they are now: a node that they name may be gone.
    fn rules(&self, shape: &ClusterShape) -> Result<PodRules, SettingsError> {
        let read = |site: &SiteRules| Settings::from_toml(&site.text, &site.source, &shape.cluster);
        let settings = self.site.as_ref().map(read).transpose()?;
        let first_of = |uids: &BTreeSet<String>| uids.first().map(|uid| self.pods[uid].policy.priority);
        Ok(PodRules::new(settings, self.members.values().filter_map(first_of).collect()))
    }

    /// Without the site's rules nothing starts: quotas must not end because a node that they name is gone.
    fn wait_for_rules(&mut self, why: &SettingsError, now: Time) -> Vec<PodAction> {
        let message = format!("the site's rules do not fit the nodes as they are now: {why}");
        self.healing.remark(message.clone());
        let waiting = Waiting { reason: "SiteRules", message };
        let gangs: Vec<String> = self.members.keys().cloned().collect();
        gangs.iter().flat_map(|gang| self.tell(gang, &waiting, now)).collect()
    }

    /// GPU time since the last decision, to those who used it.
    fn charge(&mut self, rules: &PodRules, now: Time) {
        let Some(before) = self.charged.replace(now) else { return };
        let passed = now.since(before);
        let half_life = rules.settings().weights.half_life;
        let fades =
            if half_life >= Span::FOREVER { 1.0 } else { 0.5f64.powf(passed.0 as f64 / half_life.0 as f64) };
        for record in self.usage.values_mut() {
            (record.faded, record.at) = (record.faded * fades, now);
        }
        let running =
            self.pods.values().filter(|pod| pod.is_ours && pod.takes_resources() && pod.needs.gpus > 0);
        for pod in running {
            let account = pod.policy.account.clone().unwrap_or_default();
            let gpu_ms = pod.needs.gpus as u64 * passed.0;
            let empty = UsageRecord {
                account: Default::default(),
                user: Default::default(),
                gpu_ms: 0,
                faded: 0.0,
                at: now,
            };
            let record = self.usage.entry((account, pod.policy.user.clone())).or_insert(empty);
            record.gpu_ms += u128::from(gpu_ms);
            record.faded += gpu_ms as f64;
        }
    }

    /// Tells the scheduler of everything on nodes: our gangs, others' pods, and what nodes never give.
    fn tell_of_holdings(
        &self,
        brief: &mut Brief<'_>,
        scheduler: &Scheduler,
        shape: &ClusterShape,
        free_resources: &FreeResources,
        now: Time,
    ) {
        let mut ledger = Ledger::of(scheduler);
        let is_down = |node: NodeId| shape.cluster.health(node) == Health::Down;
        let on = |node: &str| shape.ids.get(node).copied().filter(|node| !is_down(*node));
        let mut others: BTreeMap<NodeId, Resources> = BTreeMap::new();
        let standing = self.pods.values().filter(|pod| pod.takes_resources() && !pod.is_ours);
        let standing = standing.filter_map(|pod| Some((pod.node.as_deref()?, &pod.needs)));
        let coming = self.allowed().map(|(node, _, needs)| (node, needs)).chain(self.nominated());
        for (node, needs) in standing.chain(coming) {
            if let Some(node) = on(node) {
                others.entry(node).or_default().add(needs);
            }
        }
        for (key, gang) in &self.gangs {
            let members = self.members_of(key);
            let Some(first) = members.first() else { continue };
            let mut held: BTreeMap<NodeId, Resources> = BTreeMap::new();
            let standing = members.bound.iter().chain(&members.leaving);
            let standing = standing.filter_map(|pod| Some((pod.node.as_deref().and_then(on)?, &pod.needs)));
            let assumed =
                gang.assumed.iter().filter_map(|(uid, it)| Some((on(&it.node)?, &self.pods[uid].needs)));
            for (node, needs) in standing.chain(assumed) {
                held.entry(node).or_default().add(needs);
            }
            let goes = gang.goes.is_some() || (members.bound.is_empty() && gang.assumed.is_empty());
            let held = ledger.enter(&held);
            let who = (key.as_str(), &first.policy);
            if goes {
                brief.goes(gang.holds_as(), who, held);
            } else {
                let started = members.bound.iter().filter_map(|pod| pod.bound_at).min().unwrap_or(now);
                brief.holds(gang.holds_as(), who, held, started.min(now));
            }
        }
        let others = ledger.enter(&others);
        brief.others_hold(others);
        let up = shape.cluster.nodes().iter().filter(|node| !is_down(*node));
        brief.never_free(ledger.enter_rest(free_resources, up));
    }

    /// Gangs that may start, each told to the scheduler; and what the others are told.
    fn candidates<'s>(
        &'s self,
        brief: &mut Brief<'_>,
        shape: &'s ClusterShape,
        free_resources: &FreeResources,
        told: &mut Vec<(String, Waiting)>,
        now: Time,
    ) -> BTreeMap<JobId, Candidate<'s>> {
        let mut matcher = NodeMatcher::new(shape, &self.nodes);
        let mut candidates = BTreeMap::new();
        for (key, gang) in &self.gangs {
            let members = self.members_of(key);
            let open = members.pending.iter().filter(|pod| !gang.assumed.contains_key(&pod.uid)).copied();
            let open: Vec<&Pod> = open.collect();
            if open.is_empty() || gang.not_before > now {
                continue;
            }
            let entered = self.may_start(gang, &members, now).and_then(|()| {
                let standing = members.bound.iter().filter_map(|pod| pod.node.as_deref());
                let standing = standing.chain(gang.assumed.values().map(|place| place.node.as_str()));
                let stands = !members.bound.is_empty() || !gang.assumed.is_empty();
                let job = open[0].job.as_str();
                let choice = NodeChoice {
                    takes_spares: stands || self.healing.was_struck(job),
                    avoided: self.healing.avoided(job),
                    standing: standing.collect(),
                };
                let split = matcher.split(&open, &choice, free_resources)?;
                let policy: &GangPolicy = &open[0].policy;
                if stands {
                    brief.completes(gang.waits_as(), (key, policy), &split)?;
                } else {
                    let since = open.iter().map(|pod| pod.created).max().unwrap_or_default();
                    brief.waits(gang.waits_as(), (key, policy), &split, since, &gang.victims)?;
                }
                Ok(split)
            });
            match entered {
                Ok(split) => {
                    let candidate = Candidate { gang: key.clone(), members: open, split };
                    candidates.insert(gang.waits_as(), candidate);
                }
                Err(waiting) => told.push((key.clone(), waiting)),
            }
        }
        candidates
    }

    fn may_start(&self, gang: &PodGang, members: &Members<'_>, now: Time) -> Result<(), Waiting> {
        let waiting = |reason, message: String| Err(Waiting { reason, message });
        if let Some(why) = &gang.goes {
            return waiting("GangStops", format!("its gang starts again once all of it has stopped: {why}"));
        }
        let stands = !members.bound.is_empty() || !gang.assumed.is_empty();
        let pause =
            members.pending.first().filter(|_| !stands).and_then(|pod| self.healing.pause(&pod.job, now));
        if let Some(pause) = pause {
            return Err(pause);
        }
        if members.pending.iter().any(|pod| pod.is_gated) {
            return waiting("SchedulingGated", "a pod of its gang has scheduling gates".to_owned());
        }
        if let Some(what) = members.pending.iter().find_map(|pod| pod.unsupported.as_ref()) {
            return waiting("NotSupported", format!("this scheduler does not honour {what}"));
        }
        match members.missing() {
            None => waiting("GangSizeUnknown", "nothing says how many pods its gang has".to_owned()),
            Some(0) => Ok(()),
            Some(missing) => {
                let size = members.size.unwrap_or(0);
                waiting(
                    "GangIncomplete",
                    format!("{missing} of the {size} pods of its gang have not been made yet"),
                )
            }
        }
    }

    /// The places of all its pods, if everything fits exactly; then they are taken.
    fn places(
        &self,
        candidate: &Candidate<'_>,
        shares: &[NodeShare],
        shape: &ClusterShape,
        free_resources: &mut FreeResources,
    ) -> Option<Vec<(String, NodeId)>> {
        let places = candidate.split.assign(shares);
        let mut needs: BTreeMap<NodeId, Resources> = BTreeMap::new();
        for pod in &candidate.members {
            let node = *places.get(&pod.uid)?;
            if !pod.constraints.allow(&self.nodes[shape.name(node)]) {
                return None;
            }
            needs.entry(node).or_default().add(&pod.needs);
        }
        free_resources.take_all(&needs).then(|| places.into_iter().collect())
    }

    fn start(&mut self, key: &str, places: Vec<(String, NodeId)>, shape: &ClusterShape) -> Vec<PodAction> {
        let Some(gang) = self.gangs.get_mut(key) else { return Vec::new() };
        gang.told = None;
        gang.victims.clear();
        let mut actions = Vec::new();
        for (uid, node) in places {
            let node = shape.name(node).to_owned();
            actions.push(bind(&self.pods[&uid], &node));
            gang.assumed.insert(uid, Assumed { node, progress: GangProgress::Asked });
        }
        actions
    }

    /// A gang must make room, or its time is up.
    fn stop(&mut self, job: JobId, why: &StopReason, now: Time) -> Vec<PodAction> {
        let names = self.names();
        let name = |job: &JobId| names.get(job).cloned().unwrap_or_else(|| "another gang".to_owned());
        let words = match why {
            StopReason::PreemptedBy(by) => format!("it makes room for {}", name(by)),
            StopReason::TimeLimit => "its time limit has passed".to_owned(),
            StopReason::NodeLeaves(_) | StopReason::NodeLost(_) => "a node of its gang leaves".to_owned(),
            StopReason::Cancelled | StopReason::Requeued | StopReason::GivenUp => "it was stopped".to_owned(),
        };
        let Some(victim) = self.gangs.values_mut().find(|gang| gang.holds_as() == job) else {
            return Vec::new();
        };
        victim.goes.get_or_insert(words);
        if let StopReason::PreemptedBy(by) = why
            && let Some(gang) = self.gangs.values_mut().find(|gang| gang.waits_as() == *by)
        {
            gang.victims.push(job);
        }
        self.evict_going(now)
    }

    fn names(&self) -> BTreeMap<JobId, String> {
        let both = |(key, gang): (&String, &PodGang)| {
            [(gang.holds_as(), key.clone()), (gang.waits_as(), key.clone())]
        };
        self.gangs.iter().flat_map(both).collect()
    }

    /// Tells all waiting pods of a gang the same, unless they have just been told.
    fn tell(&mut self, key: &str, waiting: &Waiting, now: Time) -> Vec<PodAction> {
        let waiting = &self.for_autoscalers(key, waiting);
        let pending = self.members_of(key).pending;
        let made = pending.iter().map(|pod| pod.created).max().unwrap_or_default();
        let open: Vec<String> = pending.iter().map(|pod| pod.uid.clone()).collect();
        if now.since(made) < SAID_AFTER {
            self.wake_at(Some(made + SAID_AFTER));
            return Vec::new();
        }
        let Some(gang) = self.gangs.get_mut(key) else { return Vec::new() };
        let is_news = gang.told.as_ref().is_none_or(|(at, said)| {
            said.reason != waiting.reason || (said.message != waiting.message && now.since(*at) >= SAID_AGAIN)
        });
        if is_news {
            gang.told = Some((now, waiting.clone()));
            gang.told_pods.clear();
        }
        let said = gang.told.as_ref().map_or_else(|| waiting.clone(), |(_, said)| said.clone());
        let untold = open
            .into_iter()
            .filter(|uid| !gang.assumed.contains_key(uid) && gang.told_pods.insert(uid.clone()));
        let untold: Vec<String> = untold.collect();
        let tell = |uid: String| {
            let pod = &self.pods[&uid];
            let (namespace, name) = (pod.namespace.clone(), pod.name.clone());
            PodAction::Tell { uid, namespace, pod: name, waiting: said.clone() }
        };
        untold.into_iter().map(tell).collect()
    }
}

fn bind(pod: &Pod, node: &str) -> PodAction {
    PodAction::Bind {
        uid: pod.uid.clone(),
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        node: node.to_owned(),
    }
}
