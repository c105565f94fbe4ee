//! An API server with nodes and pods. What happens there is told to the scheduler later, and what the scheduler wants is done later.

use std::collections::{BTreeMap, VecDeque};

use bedplate_catalog::Catalog;
use bedplate_gangs::{Span, Time};
use bedplate_pods::{
    BindOutcome, GangPolicy, Node, Pod, PodAction, PodPhase, PodScheduler, Resources, Waiting,
};

pub(crate) const GPUS: i64 = 8;
pub(crate) const CORES: i64 = 16;

/// Something that the server tells those who watch.
enum Told {
    Node(String),
    Pod(String),
}

pub(crate) struct Server {
    pub(crate) now: Time,
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) pods: BTreeMap<String, Pod>,
    pub(crate) scheduler: PodScheduler,
    told: VecDeque<(Time, Told)>,
    pub(crate) wanted: VecDeque<(Time, PodAction)>,
    /// When pods that were told to go are gone.
    pub(crate) leaving: BTreeMap<String, Time>,
    pub(crate) words: BTreeMap<String, Waiting>,
    /// Nodes that were taken out of service, and why.
    pub(crate) taken_out: BTreeMap<String, String>,
    /// What gangs have asked for: the names of equal pods together.
    pub(crate) asked: BTreeMap<String, Vec<Vec<String>>>,
    pub(crate) binds: usize,
    last_uid: u64,
}

impl Server {
    pub(crate) fn new(nodes: u32) -> Self {
        let mut server = Self {
            now: Time::seconds(1_000_000_000),
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            scheduler: PodScheduler::new(Catalog::builtin(), None),
            told: VecDeque::new(),
            wanted: VecDeque::new(),
            leaving: BTreeMap::new(),
            words: BTreeMap::new(),
            taken_out: BTreeMap::new(),
            asked: BTreeMap::new(),
            binds: 0,
            last_uid: 0,
        };
        (0..nodes).for_each(|index| server.add_node(&format!("n{index}")));
        server
    }

    pub(crate) fn add_node(&mut self, name: &str) {
        let allocatable = Resources {
            gpus: GPUS,
            cpu_milli: CORES * 1000,
            memory_bytes: 256 << 30,
            pods: 20,
            others: BTreeMap::new(),
        };
        let node =
            Node { name: name.to_owned(), gpus: GPUS as u32, allocatable, is_ready: true, ..Node::default() };
        self.nodes.insert(name.to_owned(), node);
        self.told.push_back((self.now, Told::Node(name.to_owned())));
    }

    pub(crate) fn change_node(&mut self, name: &str, change: impl FnOnce(&mut Node)) {
        if let Some(node) = self.nodes.get_mut(name) {
            change(node);
        }
        self.told.push_back((self.now, Told::Node(name.to_owned())));
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
        self.told.push_back((self.now, Told::Node(name.to_owned())));
    }

    pub(crate) fn add_pod(&mut self, pod: Pod) -> String {
        self.last_uid += 1;
        let uid = format!("u{:06}", self.last_uid);
        let pod = Pod { uid: uid.clone(), created: self.now, ..pod };
        self.pods.insert(uid.clone(), pod);
        self.told.push_back((self.now, Told::Pod(uid.clone())));
        uid
    }

    pub(crate) fn change_pod(&mut self, uid: &str, change: impl FnOnce(&mut Pod)) {
        if let Some(pod) = self.pods.get_mut(uid) {
            change(pod);
            self.told.push_back((self.now, Told::Pod(uid.to_owned())));
        }
    }

    pub(crate) fn remove_pod(&mut self, uid: &str) {
        self.pods.remove(uid);
        self.leaving.remove(uid);
        self.told.push_back((self.now, Told::Pod(uid.to_owned())));
    }

    /// Tells the scheduler the oldest things that it has not heard.
    pub(crate) fn tell(&mut self, most: usize) {
        for _ in 0..most {
            match self.told.pop_front() {
                None => return,
                Some((_, Told::Node(name))) => match self.nodes.get(&name) {
                    Some(node) => _ = self.scheduler.node(node.clone()),
                    None => self.scheduler.node_gone(&name),
                },
                Some((_, Told::Pod(uid))) => match self.pods.get(&uid) {
                    Some(pod) => _ = self.scheduler.pod(pod.clone()),
                    None => self.scheduler.pod_gone(&uid),
                },
            }
        }
    }

    /// Nothing takes longer than this to be told, or to be done.
    pub(crate) fn hurry(&mut self, longest: Span) {
        let before = self.now - longest;
        let late = self.told.iter().take_while(|(at, _)| *at < before).count();
        self.tell(late);
        while self.wanted.front().is_some_and(|(at, _)| *at < before) {
            self.carry_out(0, true);
        }
    }

    pub(crate) fn decide(&mut self) {
        let actions = self.scheduler.decide(self.now).expect("the nodes make a cluster");
        let now = self.now;
        self.wanted.extend(actions.into_iter().map(|action| (now, action)));
    }

    /// Does one thing that the scheduler wants; the answer may be lost.
    pub(crate) fn carry_out(&mut self, index: usize, is_answered: bool) {
        let Some((_, action)) = self.wanted.remove(index) else { return };
        match action {
            PodAction::Bind { uid, node, .. } => {
                let outcome = self.bind(&uid, &node);
                let heard = if is_answered { outcome } else { BindOutcome::Unknown };
                self.scheduler.bound(&uid, heard, self.now);
            }
            PodAction::Evict { uid, grace, .. } => self.evict(&uid, grace),
            PodAction::TakeOut { node, why } => {
                self.taken_out.insert(node.clone(), why);
                self.change_node(&node, |node| node.is_cordoned = true);
            }
            PodAction::AskForNodes { gang, kinds, .. } => drop(self.asked.insert(gang, kinds)),
            PodAction::AskNoMore { gang, .. } => drop(self.asked.remove(&gang)),
            PodAction::Tell { uid, waiting, .. } => drop(self.words.insert(uid, waiting)),
        }
    }

    fn bind(&mut self, uid: &str, node: &str) -> BindOutcome {
        match self.pods.get(uid) {
            None => return BindOutcome::Refused,
            // A conflict, which may be with an earlier binding of the same pod to the same node.
            Some(pod) if pod.node.is_some() || pod.is_leaving => return BindOutcome::Unknown,
            Some(_) => {}
        }
        self.binds += 1;
        let now = self.now;
        self.change_pod(uid, |pod| {
            (pod.node, pod.bound_at, pod.phase) = (Some(node.to_owned()), Some(now), PodPhase::Running);
        });
        BindOutcome::Done
    }

    pub(crate) fn evict(&mut self, uid: &str, grace: Option<Span>) {
        let Some(pod) = self.pods.get(uid) else { return };
        if pod.node.is_none() || grace == Some(Span::ZERO) {
            return self.remove_pod(uid);
        }
        let gone = self.now + Span::seconds(2);
        self.leaving.entry(uid.to_owned()).or_insert(gone);
        self.change_pod(uid, |pod| pod.is_leaving = true);
    }

    /// Time passes; what was told to go goes.
    pub(crate) fn pass(&mut self, span: Span) {
        self.now = self.now + span;
        let now = self.now;
        let gone: Vec<String> =
            self.leaving.iter().filter(|(_, at)| **at <= now).map(|(uid, _)| uid.clone()).collect();
        gone.iter().for_each(|uid| self.remove_pod(uid));
    }

    /// Everything is told and done until nothing more comes of it.
    pub(crate) fn settle(&mut self) {
        for _ in 0..50 {
            self.tell(usize::MAX);
            self.decide();
            if self.wanted.is_empty() && self.told.is_empty() {
                return;
            }
            while !self.wanted.is_empty() {
                self.carry_out(0, true);
            }
        }
        panic!("it never settles");
    }

    /// The scheduler dies; another is started, which knows what the server knows.
    pub(crate) fn restart(&mut self) {
        self.restart_as(PodScheduler::new(Catalog::builtin(), None));
    }

    pub(crate) fn restart_as(&mut self, scheduler: PodScheduler) {
        self.wanted.clear();
        self.told.clear();
        self.scheduler = scheduler;
        for node in self.nodes.values() {
            self.scheduler.node(node.clone());
        }
        for pod in self.pods.values() {
            self.scheduler.pod(pod.clone());
        }
    }

    /// What pods take of a node.
    pub(crate) fn free(&self, node: &str) -> Resources {
        let mut free = self.nodes[node].allocatable.clone();
        let on_it = |pod: &&Pod| {
            pod.node.as_deref() == Some(node) && matches!(pod.phase, PodPhase::Pending | PodPhase::Running)
        };
        self.pods.values().filter(on_it).for_each(|pod| free.take(&pod.needs));
        free
    }

    pub(crate) fn of_gang(&self, gang: &str) -> Vec<&Pod> {
        self.pods.values().filter(|pod| pod.gang == gang).collect()
    }

    /// How many pods of a gang stand on nodes.
    pub(crate) fn standing(&self, gang: &str) -> usize {
        self.of_gang(gang)
            .iter()
            .filter(|pod| pod.node.is_some() && !pod.is_leaving && pod.phase == PodPhase::Running)
            .count()
    }

    /// What the pods of a gang were last told.
    pub(crate) fn words_of(&self, gang: &str) -> Vec<&Waiting> {
        self.of_gang(gang).iter().filter_map(|pod| self.words.get(&pod.uid)).collect()
    }

    pub(crate) fn gang(&mut self, gang: &str, pods: u32, change: impl Fn(&mut Pod)) {
        (0..pods).for_each(|index| self.member(gang, pods, index, &change));
    }

    pub(crate) fn member(&mut self, gang: &str, size: u32, index: u32, change: impl Fn(&mut Pod)) {
        let mut member = pod(gang, size, index, GPUS);
        change(&mut member);
        self.add_pod(member);
    }
}

pub(crate) fn pod(gang: &str, size: u32, index: u32, gpus: i64) -> Pod {
    Pod {
        namespace: "default".into(),
        name: format!("{gang}-{index}"),
        is_ours: true,
        gang: gang.to_owned(),
        job: gang.split('/').next().unwrap_or_default().to_owned(),
        gang_size: Some(size),
        rank: (0, index),
        needs: Resources { gpus, cpu_milli: 1000, memory_bytes: 1 << 30, pods: 1, others: BTreeMap::new() },
        policy: GangPolicy { user: "someone".into(), grace: Span::seconds(2), ..GangPolicy::default() },
        ..Pod::default()
    }
}

/// A pod of another scheduler.
pub(crate) fn stranger(index: u64, gpus: i64) -> Pod {
    Pod {
        is_ours: false,
        gang: String::new(),
        gang_size: None,
        name: format!("other-{index}"),
        ..pod("", 1, 0, gpus)
    }
}
