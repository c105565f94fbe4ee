//! Storms: pods, nodes, other schedulers, lost answers and restarts by chance; then calm, in which everything must end.

use std::collections::{BTreeMap, VecDeque};

use bedplate_gangs::{Span, Time};
use bedplate_pods::{AskedBinding, Judged, Pod, PodPhase};
use bedplate_random::Random;

use super::server::{Server, pod, stranger};

/// A gang may be bound in part for as long as its patience, the way of the news and of the eviction.
const HALF_ALIVE: Span = Span::seconds(45);
/// A node may have too many pods until the younger gang has left it.
const OVERDRAWN: Span = Span::seconds(30);

/// News and actions take no longer than this.
const LATE: Span = Span::seconds(3);

struct Gang {
    size: u32,
    gpus: i64,
    /// It still waits for pods.
    made: u32,
    lasts: Span,
}

struct Storm {
    random: Random,
    server: Server,
    gangs: BTreeMap<String, Gang>,
    /// Pods of other schedulers that came, and whether any do.
    others: Option<u64>,
    /// Other schedulers ask before they bind; what they were allowed is done a little later.
    asks_first: bool,
    wanted_by_others: Vec<(String, String)>,
    allowed: VecDeque<(Time, String, String)>,
    in_parts: BTreeMap<String, Time>,
    overdrawn: BTreeMap<String, Time>,
    nodes: u32,
    is_calm: bool,
    /// When the scheduler was last started.
    started: Time,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let nodes = random.whole(3, 8);
        let others = random.chance(50).then_some(0);
        let asks_first = seed % 2 == 1;
        Self {
            server: Server::new(nodes),
            random,
            gangs: BTreeMap::new(),
            others,
            asks_first,
            wanted_by_others: Vec::new(),
            allowed: VecDeque::new(),
            in_parts: BTreeMap::new(),
            overdrawn: BTreeMap::new(),
            nodes,
            is_calm: false,
            started: Time::ZERO,
        }
    }

    fn play(&mut self) {
        for _ in 0..150 {
            self.trouble();
            self.step();
        }
        self.is_calm = true;
        (0..self.nodes).for_each(|index| {
            let name = format!("n{index}");
            match self.server.nodes.contains_key(&name) {
                true => self.server.change_node(&name, |node| node.is_cordoned = false),
                false => self.server.add_node(&name),
            }
        });
        let unfinished: Vec<String> = self.gangs.keys().cloned().collect();
        unfinished.iter().for_each(|gang| self.make(gang));
        for _ in 0..3000 {
            self.step();
            if self.server.pods.values().all(|pod| pod.phase == PodPhase::Succeeded) {
                return;
            }
        }
        let left: Vec<&Pod> =
            self.server.pods.values().filter(|pod| pod.phase != PodPhase::Succeeded).take(6).collect();
        let words: Vec<_> =
            left.iter().map(|pod| (&pod.name, &pod.node, self.server.words.get(&pod.uid))).collect();
        panic!("not everything ends: {words:?}");
    }

    fn trouble(&mut self) {
        match self.random.below(12) {
            0 | 1 => self.submit(),
            4 => {
                let gang = self.any_gang();
                gang.iter().for_each(|gang| self.make(gang));
            }
            5 | 6 => self.other_binds(),
            7 => {
                let pods: Vec<String> = self.server.pods.keys().cloned().collect();
                if !pods.is_empty() {
                    let uid = &pods[self.random.below(pods.len())];
                    self.server.evict(uid, None);
                }
            }
            8 => {
                let name = format!("n{}", self.random.below(self.nodes as usize));
                match self.server.nodes.contains_key(&name) {
                    true if self.random.chance(30) => self.server.remove_node(&name),
                    true => self.server.change_node(&name, |node| node.is_cordoned = !node.is_cordoned),
                    false => self.server.add_node(&name),
                }
            }
            9 => self.restart(),
            _ => {}
        }
    }

    fn submit(&mut self) {
        let name = format!("g{:03}", self.gangs.len());
        let size = self.random.whole(1, self.nodes * 2);
        let most = i64::from(self.nodes) * 8 / i64::from(size);
        let fitting: Vec<i64> = [1, 2, 4, 8].into_iter().filter(|gpus| *gpus <= most).collect();
        let gpus = self.random.pick(&fitting);
        let made = if self.random.chance(80) { size } else { self.random.whole(0, size) };
        let lasts = Span::seconds(u64::from(self.random.whole(5, 40)));
        for index in 0..made {
            self.server.add_pod(pod(&name, size, index, gpus));
        }
        self.gangs.insert(name, Gang { size, gpus, made, lasts });
    }

    fn any_gang(&mut self) -> Option<String> {
        let names: Vec<String> = self.gangs.keys().cloned().collect();
        (!names.is_empty()).then(|| names[self.random.below(names.len())].clone())
    }

    /// The rest of the gang's pods is made.
    fn make(&mut self, name: &str) {
        let gang = self.gangs.get_mut(name).expect("it was submitted");
        gang.made = gang.size;
    }

    /// What controls a gang's pods makes those again that are gone.
    fn control(&mut self) {
        for (name, gang) in &self.gangs {
            let here: Vec<u32> = self.server.of_gang(name).iter().map(|pod| pod.rank.1).collect();
            let missing = (0..gang.made).filter(|index| !here.contains(index));
            let missing: Vec<u32> = missing.collect();
            for index in missing {
                self.server.add_pod(pod(name, gang.size, index, gang.gpus));
            }
        }
    }

    /// Another scheduler binds where there is room now.
    fn other_binds(&mut self) {
        let Some(count) = &mut self.others else { return };
        *count += 1;
        let (index, gpus) = (*count, i64::from(self.random.whole(1, 4)));
        let names: Vec<String> = self.server.nodes.keys().cloned().collect();
        let stranger = stranger(index, gpus);
        // It knows what it has chosen itself, and of others' what it sees.
        let chosen = self.wanted_by_others.iter().map(|(uid, node)| (uid, node));
        let chosen: Vec<(&String, &String)> =
            chosen.chain(self.allowed.iter().map(|(_, uid, node)| (uid, node))).collect();
        let free = |node: &String| {
            let mut free = self.server.free(node);
            let own =
                chosen.iter().filter(|(_, of)| *of == node).filter_map(|(uid, _)| self.server.pods.get(*uid));
            own.for_each(|pod| free.take(&pod.needs));
            free
        };
        let with_room = names.into_iter().find(|node| free(node).covers(&stranger.needs));
        let Some(node) = with_room else { return };
        let uid = self.server.add_pod(stranger);
        match self.asks_first {
            true => self.wanted_by_others.push((uid, node)),
            false => self.bind_stranger(&uid, node),
        }
    }

    fn bind_stranger(&mut self, uid: &str, node: String) {
        let now = self.server.now;
        self.server.change_pod(uid, |pod| {
            (pod.node, pod.phase, pod.bound_at) = (Some(node), PodPhase::Running, Some(now))
        });
    }

    /// Asks for what other schedulers want to bind, and binds what they were allowed a while ago.
    fn others_ask(&mut self) {
        let now = self.server.now;
        for (uid, node) in std::mem::take(&mut self.wanted_by_others) {
            let (namespace, pod) = (String::new(), String::new());
            let asked = AskedBinding { namespace, pod, uid: Some(uid.clone()), node: node.clone() };
            match self.server.scheduler.judge(&asked, now) {
                Judged::Fits => self.allowed.push_back((now, uid, node)),
                Judged::Unknown => self.wanted_by_others.push((uid, node)),
                Judged::Refused(_) => self.server.remove_pod(&uid),
            }
        }
        let is_prompt = self.is_calm || self.random.chance(30);
        while let Some((at, ..)) = self.allowed.front()
            && (is_prompt || now.since(*at) >= LATE)
            && let Some((_, uid, node)) = self.allowed.pop_front()
        {
            match self.server.nodes.contains_key(&node) {
                true => self.bind_stranger(&uid, node),
                false => self.server.remove_pod(&uid),
            }
        }
    }

    /// What the old scheduler had begun is done or not before the new one begins.
    fn restart(&mut self) {
        if self.server.now.since(self.started) < Span::seconds(10) {
            return;
        }
        self.started = self.server.now;
        while !self.server.wanted.is_empty() {
            if self.random.chance(50) {
                self.server.carry_out(0, false);
            } else {
                self.server.wanted.pop_front();
            }
        }
        for (_, uid, node) in std::mem::take(&mut self.allowed) {
            self.bind_stranger(&uid, node);
        }
        self.server.restart();
    }

    fn step(&mut self) {
        let passes = self.random.pick(&[0, 100, 500, 1000, 1000, 3000]);
        self.server.pass(Span(passes));
        self.end_what_is_over();
        self.control();
        let heard = if self.is_calm { usize::MAX } else { self.random.below(20) };
        self.server.tell(heard);
        self.server.hurry(LATE);
        self.others_ask();
        if self.is_calm || self.random.chance(80) {
            self.server.decide();
        }
        let most = if self.is_calm { usize::MAX } else { self.random.below(20) };
        for _ in 0..self.server.wanted.len().min(most) {
            let index = self.random.below(self.server.wanted.len());
            let is_answered = self.is_calm || self.random.chance(90);
            self.server.carry_out(index, is_answered);
            self.check();
        }
        self.check();
    }

    fn end_what_is_over(&mut self) {
        let now = self.server.now;
        let lasts = |pod: &Pod| self.gangs.get(&pod.gang).map_or(Span::seconds(60), |gang| gang.lasts);
        let is_whole = |pod: &Pod| match self.gangs.get(&pod.gang) {
            None => true,
            Some(gang) => {
                let of_gang = self.server.of_gang(&pod.gang);
                let on = of_gang
                    .iter()
                    .filter(|pod| pod.node.is_some() || pod.phase == PodPhase::Succeeded)
                    .count();
                on >= gang.size as usize
            }
        };
        let is_over = |pod: &&Pod| {
            let since = pod.bound_at.map(|at| now.since(at));
            pod.phase == PodPhase::Running
                && !pod.is_leaving
                && since.is_some_and(|since| since >= lasts(pod))
                && is_whole(pod)
        };
        let over: Vec<String> =
            self.server.pods.values().filter(is_over).map(|pod| pod.uid.clone()).collect();
        for uid in over {
            self.server.change_pod(&uid, |pod| pod.phase = PodPhase::Succeeded);
        }
    }

    fn check(&mut self) {
        let now = self.server.now;
        for name in self.server.nodes.keys() {
            if !self.server.free(name).is_overdrawn() {
                self.overdrawn.remove(name);
                continue;
            }
            let is_alone = self.others.is_none() || self.asks_first;
            let there = || self.server.pods.values().filter(|pod| pod.node.as_ref() == Some(name));
            let there = || {
                there().map(|pod| {
                    (&pod.name, pod.needs.gpus, pod.phase, pod.is_leaving, pod.bound_at, pod.created)
                })
            };
            assert!(
                !is_alone,
                "{name} has more pods than room, and nobody else binds unasked: {:?}",
                there().collect::<Vec<_>>()
            );
            let since = *self.overdrawn.entry(name.clone()).or_insert(now);
            assert!(now.since(since) < OVERDRAWN, "{name} has had more pods than room since {since:?}");
        }
        for (name, gang) in &self.gangs {
            let standing = self.server.standing(name);
            let of_gang = self.server.of_gang(name);
            let ended = of_gang.iter().filter(|pod| pod.phase == PodPhase::Succeeded).count();
            if standing == 0 || standing + ended >= gang.size as usize {
                self.in_parts.remove(name);
                continue;
            }
            let since = *self.in_parts.entry(name.clone()).or_insert(now);
            assert!(
                now.since(since) < HALF_ALIVE,
                "{standing} of {} pods of {name} stand since {since:?}, now {now:?}: {:?}",
                gang.size,
                of_gang
                    .iter()
                    .map(|pod| (
                        &pod.name,
                        &pod.node,
                        pod.phase,
                        pod.is_leaving,
                        pod.bound_at,
                        pod.created,
                        self.server.words.get(&pod.uid).map(|words| &words.message)
                    ))
                    .collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn storms_leave_no_gang_half_alive_and_no_node_overdrawn() {
    let first: u64 = std::env::var("BEDPLATE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let seeds = std::env::var("BEDPLATE_STORMS").ok().and_then(|text| text.parse().ok()).unwrap_or(24);
    for seed in first..first + seeds {
        let mut storm = Storm::new(seed);
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| storm.play()));
        assert!(played.is_ok(), "seed {seed} at {:?}", storm.server.now);
        assert!(storm.server.binds > 0 || storm.gangs.is_empty(), "seed {seed}: nothing was bound");
    }
}
