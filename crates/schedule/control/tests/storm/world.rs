//! The world around the state machines: time, network, the control plane. Processes of nodes are in `nodes`, who acts on it in `clients`, what must hold in `laws`.

mod abuse;
mod clients;
mod clock;
mod cuts;
mod laws;
mod nodes;
mod sensors;

use std::collections::{BTreeMap, BTreeSet};

use bedplate_catalog::Catalog;
use bedplate_control::agent::{Act, Agent, AgentRules, Happened, LinkLoss, Spent};
use bedplate_control::record::{JobState, Record};
use bedplate_control::wire::{
    Checkpoint, FromAgent, Hello, HostMachine, Launch, RankEnd, RunId, ToAgent, Unready,
};
use bedplate_control::{
    ClientOrder, Command, Control, ControlRules, LinkId, Output, Past, Submission, Unlinked,
};
use bedplate_gangs::{JobId, Qos, QosId, Settings, Span, Time};
use bedplate_job::{Dependency, DependencyKind, Elastic, Gang, Job, Preemption, Role, Workload};
use bedplate_report::Report;
use bedplate_topology::{Cluster, NodeId};

use crate::disk::Disk;
use crate::random::Random;
use abuse::Abuse;
use clock::ControlClock;
use cuts::{Cut, Way};
use sensors::{Findings, Sensor};

const NODES: usize = 5;
const GPUS: u32 = 8;
const STORM: u64 = 240_000;
const CALM: u64 = 1_500_000;
/// The hundreds of seeds in which clocks jump, in which the network is cut in other ways than node by node, in which the agent and the fork
/// server of a node stand still at the same time, in which a user does all that he may as fast as he can, and in which all of this happens.
pub(crate) const JUMPS: u64 = 2;
pub(crate) const PARTITIONS: u64 = 4;
pub(crate) const BOTH_FREEZE: u64 = 6;
pub(crate) const ABUSE: u64 = 8;
pub(crate) const EVERYTHING: u64 = 9;
/// How long into the calm the last broken node is repaired: a job that avoids others may need it.
const LAST_REPAIR: u64 = 300_000;

/// Mistakes put into the world on purpose, to see that the laws notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Clients are answered before the disk has synced.
    AnswersEarly,
    /// Agents that nobody hears keep their ranks.
    IgnoresLease,
    /// Nodes start their ranks as soon as they are ready themselves.
    StartsAlone,
    /// Fork servers do not end runs whose agent stands still.
    TrustsAgents,
    /// Nobody ends runs whose agent and run shims both stand still, and these obey late what they were told.
    TrustsBoth,
    /// Every finding takes its node out, whatever else is out.
    DrainsAll,
    /// A control plane that starts again does not know who was out of service.
    ForgetsDrains,
    /// Nor what an operator knew of when he put a node back.
    ForgetsTrust,
    /// Nor which jobs are held.
    ForgetsHolds,
    /// The control plane's time is the wall clock's.
    JumpsWithTheWall,
    /// A control plane that starts again waits until the wall clock shows what it had written.
    StandsStill,
    /// Jobs of one user are enough to accuse a node.
    BlamesForOne,
}

impl Bug {
    pub(crate) const ALL: [Bug; 12] = [
        Bug::AnswersEarly,
        Bug::IgnoresLease,
        Bug::StartsAlone,
        Bug::TrustsAgents,
        Bug::TrustsBoth,
        Bug::DrainsAll,
        Bug::ForgetsDrains,
        Bug::ForgetsTrust,
        Bug::ForgetsHolds,
        Bug::JumpsWithTheWall,
        Bug::StandsStill,
        Bug::BlamesForOne,
    ];
}

/// Something that will happen.
#[derive(Debug, Clone)]
enum Coming {
    /// A client does something.
    Client,
    Fault,
    /// The clock of the control plane's host is set.
    Jump,
    /// Some cannot hear each other.
    Partition,
    Cut {
        node: usize,
        way: Way,
        length: u64,
    },
    /// A user does harm.
    Abuse,
    ControlTick,
    ControlBack,
    ControlDies,
    Synced {
        epoch: u64,
    },
    AgentTick {
        node: usize,
    },
    AgentBack {
        node: usize,
    },
    Connect {
        node: usize,
    },
    ToControl {
        link: LinkId,
        message: Box<FromAgent>,
    },
    ToNode {
        link: LinkId,
        message: Box<ToAgent>,
    },
    ControlHearsClose {
        link: LinkId,
        how: Unlinked,
    },
    NodeHearsClose {
        link: LinkId,
    },
    Process {
        node: usize,
        incarnation: u64,
        happened: Happened,
    },
    /// An agent that stood still hears of something that its processes did meanwhile.
    Heard {
        node: usize,
        incarnation: u64,
        happened: Happened,
    },
    ForkServerBack {
        node: usize,
        fork_server: u64,
    },
    /// Processes of a dead agent are gone.
    Swept {
        node: usize,
        incarnation: u64,
    },
    /// Something breaks, is repaired, or is told again.
    Wear,
    /// A part of a node breaks.
    Breaks {
        node: usize,
        flaw: sensors::Flaw,
    },
    /// An agent that stood still tells what it finds.
    Tells {
        node: usize,
    },
    /// A new agent has read its node for the first time.
    Reads {
        node: usize,
        incarnation: u64,
    },
}

struct Node {
    name: String,
    agent: Option<Agent>,
    incarnation: u64,
    link: Option<LinkId>,
    /// What this node's clock shows more than the world's.
    skew: u64,
    launches: BTreeMap<RunId, Launch>,
    /// Ranks that are alive, with the incarnation that started them.
    alive: BTreeMap<RunId, (u64, BTreeSet<u32>)>,
    cut: Cut,
    /// Until then the agent stands still: it reads and says nothing, and its clock goes on.
    frozen_until: u64,
    fork_server: ForkServer,
    /// Stopped in place: they hold no devices meanwhile.
    suspended: BTreeSet<RunId>,
    sensor: Sensor,
}

/// The second process of a node: it starts and ends ranks, and ends all of them when the agent does not renew the lease.
#[derive(Default)]
struct ForkServer {
    /// Counts the fork servers of a node.
    number: u64,
    lease: Option<Time>,
    /// The lease as the agent last gave it, whether or not it was heard: who ends what outlives it does not stand still.
    given: Option<Time>,
    frozen_since: u64,
    frozen_until: u64,
    /// What it was told while it stood still.
    orders: Vec<Act>,
    /// What happened meanwhile and was not told to the agent.
    news: Vec<Happened>,
}

/// What a job does to its nodes and to itself on purpose; its environment says so.
const HOSTILE: [&str; 7] = ["prolog", "unready", "probe", "epilog", "hangs", "fails", "lies"];
const HOSTILITY: &str = "HOSTILITY";
/// How long an agent waits for a fork server that does not answer, and for one that shall end runs whose lease is over.
const FORK_SERVER_SILENCE: u64 = 5_000;
const FORK_SERVER_SILENCE_AFTER_LEASE: u64 = 400;
/// How long after the lease a run is ended whose agent stands still as well.
const OUTLIVES_LEASE: u64 = 250;

struct Link {
    node: usize,
    last_to_node: u64,
    last_to_control: u64,
}

/// What waits for a sync: answers to clients and commands to nodes.
struct Waiting {
    promised: Promised,
    commands: Vec<Command>,
}

/// What clients are told once it is on disk.
#[derive(Default)]
struct Promised {
    acknowledged: Vec<(JobId, String)>,
    cancelled: Vec<JobId>,
    /// Jobs that waited and are held.
    held: Vec<JobId>,
    /// Nodes that an operator put back, knowing of what they had found until then by their clocks.
    trusted: Vec<(usize, u64)>,
}

pub(crate) struct World {
    random: Random,
    bug: Option<Bug>,
    now: u64,
    serial: u64,
    coming: BTreeMap<(u64, u64), Coming>,
    control: Option<Control>,
    /// Counts the lives of the control plane: what was under way dies with it.
    epoch: u64,
    clock: ControlClock,
    disk: Disk,
    waiting: std::collections::VecDeque<Waiting>,
    nodes: Vec<Node>,
    links: BTreeMap<LinkId, Link>,
    next_link: u64,
    /// Jobs whose submission was acknowledged, with the mark that tells each from others of its number.
    acknowledged: BTreeMap<JobId, String>,
    marks: u64,
    cancelled: BTreeSet<JobId>,
    /// Ranks that ended by themselves and well.
    done: BTreeMap<RunId, BTreeSet<u32>>,
    world_sizes: BTreeMap<RunId, u32>,
    /// Jobs whose ranks go on without nodes that are lost.
    survivors: BTreeSet<JobId>,
    /// Runs that each node said it was ready for.
    prepared: BTreeSet<(RunId, usize)>,
    is_stormy: bool,
    /// Messages overtake each other and come twice.
    is_wild: bool,
    /// Some of the users mean harm.
    is_hostile: bool,
    /// Agents and fork servers stand still now and then.
    freezes: bool,
    /// Of one node at the same time.
    both_freeze: bool,
    findings: Findings,
    abuse: Abuse,
    /// A job that was acknowledged and that the disk does not have.
    lost: Option<JobId>,
    hash: u64,
    pub(crate) is_told: bool,
}

impl World {
    pub(crate) fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut random = Random::new(seed);
        let node = |at: usize, random: &mut Random| Node {
            name: String::new(),
            agent: None,
            incarnation: at as u64 * 1000,
            link: None,
            skew: random.between(0, 5_000_000),
            launches: BTreeMap::new(),
            alive: BTreeMap::new(),
            cut: Cut::default(),
            frozen_until: 0,
            fork_server: ForkServer::default(),
            suspended: BTreeSet::new(),
            sensor: Sensor::default(),
        };
        let nodes = (0..NODES).map(|at| node(at, &mut random)).collect();
        let is_wild = random.percent(30);
        // Not drawn, so that the stories of plain seeds stay as they were.
        let is_hostile = matches!(seed % 8, 0 | 2 | 3 | 6);
        let freezes = matches!(seed % 8, 1 | 2 | 3 | 7);
        let wears = matches!(seed % 16, 1 | 4 | 6 | 7 | 11 | 14 | 15);
        let mut world = Self {
            random,
            bug,
            now: 0,
            serial: 0,
            coming: BTreeMap::new(),
            control: None,
            epoch: 0,
            clock: ControlClock::new(bug),
            disk: Disk::default(),
            waiting: std::collections::VecDeque::new(),
            nodes,
            links: BTreeMap::new(),
            next_link: 1,
            acknowledged: BTreeMap::new(),
            marks: 0,
            cancelled: BTreeSet::new(),
            done: BTreeMap::new(),
            world_sizes: BTreeMap::new(),
            survivors: BTreeSet::new(),
            prepared: BTreeSet::new(),
            is_stormy: true,
            is_wild,
            is_hostile,
            freezes: freezes || seed / 100 % 10 == BOTH_FREEZE,
            both_freeze: seed / 100 % 10 == BOTH_FREEZE,
            findings: Findings::default(),
            abuse: Abuse::default(),
            lost: None,
            hash: 0,
            is_told: false,
        };
        let cluster = cluster();
        for (at, node) in world.nodes.iter_mut().enumerate() {
            node.name = cluster.node(NodeId(at as u32)).name().to_string();
        }
        world.start_control();
        (0..NODES).for_each(|at| world.start_agent(at));
        world.after(100, Coming::Client);
        world.after(3_000, Coming::Fault);
        if wears {
            world.after(2_000, Coming::Wear);
        }
        // Only in some hundreds, so that the stories of other seeds stay as they were.
        let hundred = seed / 100 % 10;
        if matches!(hundred, JUMPS | EVERYTHING) {
            world.after(1_000, Coming::Jump);
        }
        if matches!(hundred, PARTITIONS | EVERYTHING) {
            world.after(1_500, Coming::Partition);
        }
        if matches!(hundred, ABUSE | EVERYTHING) {
            world.abuse.is_on = true;
            world.after(500, Coming::Abuse);
        }
        world
    }

    pub(crate) fn storm(&mut self) -> Result<(), String> {
        while self.now < STORM {
            self.step()?;
        }
        Ok(())
    }

    /// Faults stop; everything must come to its end.
    pub(crate) fn calm(&mut self) -> Result<(), String> {
        self.is_stormy = false;
        self.tell("calm");
        for node in &mut self.nodes {
            node.cut = Cut::default();
            node.frozen_until = node.frozen_until.min(self.now);
        }
        self.repair_most();
        let mut resumed = 0;
        while self.now < STORM + CALM && !(self.is_over() && resumed >= STORM + 60_000) {
            // Somebody puts nodes back that were taken out, and lets go what was held.
            if self.now > resumed + 30_000 && self.control.is_some() {
                resumed = self.now;
                self.releases_all();
                self.with_control(|control, now| {
                    // What still finds something grave is left to those who repair it.
                    let well =
                        control.nodes(now).into_iter().filter(|node| !sensors::is_grave(&node.findings));
                    for node in well.map(|node| node.name) {
                        drop(control.order(ClientOrder::Resume { node }, "calm", now));
                    }
                    for job in control.jobs(&Default::default()) {
                        drop(control.order(ClientOrder::Release(JobId(job.id)), "calm", now));
                    }
                });
            }
            if self.now > STORM + LAST_REPAIR {
                self.repair_last()?;
            }
            self.step()?;
        }
        self.check_end()
    }

    pub(crate) fn trace(&self) -> u64 {
        self.hash
    }

    fn step(&mut self) -> Result<(), String> {
        let ((at, _), coming) = self.coming.pop_first().expect("something always comes");
        self.now = at;
        self.clock.advance(at);
        self.hash = (self.hash ^ at).wrapping_mul(0x0100_0000_01B3).rotate_left(7) ^ name_of(&coming);
        self.happen(coming);
        self.check()
    }

    fn after(&mut self, delay: u64, coming: Coming) {
        self.serial += 1;
        self.coming.insert((self.now + delay.max(1), self.serial), coming);
    }

    #[expect(clippy::print_stderr, reason = "the story of one seed is for the screen")]
    fn tell(&self, what: &str) {
        if self.is_told {
            eprintln!("{:>9.3} {what}", self.now as f64 / 1000.0);
        }
    }

    fn happen(&mut self, coming: Coming) {
        if self.is_told && !matches!(coming, Coming::AgentTick { .. } | Coming::ControlTick) {
            let quiet = match &coming {
                Coming::ToControl { message, .. } => matches!(**message, FromAgent::Heartbeat { .. }),
                Coming::ToNode { message, .. } => matches!(**message, ToAgent::Alive { .. }),
                Coming::Synced { .. } => true,
                _ => false,
            };
            if !quiet {
                let mut text = format!("{coming:?}");
                text.truncate(220);
                self.tell(&text);
            }
        }
        match coming {
            Coming::Client => self.client(),
            Coming::Fault => self.fault(),
            Coming::Jump => self.jump(),
            Coming::Partition => self.partition(),
            Coming::Cut { node, way, length } => self.cut(node, way, length),
            Coming::Abuse => self.abuse(),
            Coming::ControlTick => {
                self.with_control(|control, now| {
                    control.take_in(now);
                    control.tick(now);
                });
                self.after(50, Coming::ControlTick);
            }
            Coming::ControlBack => self.start_control(),
            Coming::ControlDies => self.crash_control(),
            Coming::Synced { epoch } => self.synced(epoch),
            Coming::AgentTick { node } => {
                if !self.is_frozen(node) {
                    self.with_agent(node, |agent, now| agent.tick(now));
                    self.watch_fork_server(node);
                }
                self.end_what_outlives_its_lease(node);
                self.enforce_lease(node);
                self.after(50, Coming::AgentTick { node });
            }
            Coming::AgentBack { node } => self.start_agent(node),
            Coming::Connect { node } if self.is_frozen(node) => {
                self.when_thawed(node, Coming::Connect { node });
            }
            Coming::Connect { node } => self.connect(node),
            Coming::ToControl { link, message } => self.control_hears(link, *message),
            Coming::ToNode { link, message } => self.node_hears(link, *message),
            Coming::ControlHearsClose { link, how } => {
                self.with_control(|control, now| control.unlinked(link, how, now))
            }
            Coming::NodeHearsClose { link } => self.lose_link(link),
            Coming::Process { node, incarnation, happened } => self.process(node, incarnation, happened),
            Coming::Heard { node, incarnation, happened } => self.hear(node, incarnation, happened),
            Coming::ForkServerBack { node, fork_server } => self.thaw_fork_server(node, fork_server),
            Coming::Swept { node, incarnation } => {
                self.nodes[node].alive.retain(|_, (owner, _)| *owner != incarnation);
            }
            Coming::Wear => self.wear(),
            Coming::Breaks { node, flaw } => self.breaks(node, flaw),
            Coming::Tells { node } => self.tell_findings(node),
            Coming::Reads { node, incarnation } => self.reads(node, incarnation),
        }
    }

    // The control plane and its disk.

    fn start_control(&mut self) {
        self.epoch += 1;
        if self.is_stormy {
            // The clock was set meanwhile.
            let off = self.random.between(0, 20_000).cast_signed();
            self.clock.set(off);
        }
        self.clock.start(self.now, self.disk.restored().latest);
        let now = self.clock.now();
        let (control, unreadable) =
            Control::restore(cluster(), settings(), rules(self.bug), self.remembered(), now);
        assert_eq!(unreadable, []);
        self.check_restored(&control, now);
        self.lost =
            self.acknowledged.iter().find(|(job, mark)| !self.disk.holds(**job, mark)).map(|(job, _)| *job);
        let is_first = self.control.is_none() && self.epoch == 1;
        self.control = Some(control);
        self.with_control(|control, now| control.tick(now));
        if is_first {
            self.after(50, Coming::ControlTick);
        }
    }

    fn crash_control(&mut self) {
        if self.control.take().is_none() {
            return;
        }
        self.disk.crash(&mut self.random);
        self.waiting.clear();
        for (link, _) in std::mem::take(&mut self.links) {
            let delay = self.random.between(1, 20);
            self.after(delay, Coming::NodeHearsClose { link });
        }
        let away = self.random.between(50, 20_000);
        self.after(away, Coming::ControlBack);
    }

    fn with_control(&mut self, act: impl FnOnce(&mut Control, Time)) {
        let now = self.clock.now();
        if let Some(control) = &mut self.control {
            act(control, now);
            self.carry_out(Promised::default());
        }
    }

    /// Writes the records, sends what is urgent, and keeps the rest until they are synced.
    fn carry_out(&mut self, promised: Promised) {
        let output = self.control.as_mut().expect("callers checked").take_output();
        self.check_output(&output);
        self.check_abuse(&output);
        output.urgent.into_iter().for_each(|command| self.command(command));
        let is_idle = output.records.is_empty() && output.commands.is_empty();
        if is_idle && promised.acknowledged.is_empty() && promised.cancelled.is_empty() {
            return;
        }
        self.disk.write(output.records);
        let mut waiting = Waiting { promised, commands: output.commands };
        if self.bug == Some(Bug::AnswersEarly) {
            self.acknowledge(&mut waiting.promised);
        }
        self.waiting.push_back(waiting);
        let slow = self.is_stormy && self.random.percent(2);
        let delay = if slow { self.random.between(100, 2_000) } else { self.random.between(1, 5) };
        let epoch = self.epoch;
        self.after(delay, Coming::Synced { epoch });
    }

    fn synced(&mut self, epoch: u64) {
        if epoch != self.epoch || self.control.is_none() {
            return;
        }
        self.disk.sync();
        let mut waiting = self.waiting.pop_front().expect("each write waits for one sync");
        self.acknowledge(&mut waiting.promised);
        waiting.commands.into_iter().for_each(|command| self.command(command));
    }

    fn acknowledge(&mut self, promised: &mut Promised) {
        let Promised { acknowledged, cancelled, held, trusted } = std::mem::take(promised);
        self.acknowledged.extend(acknowledged);
        self.cancelled.extend(cancelled);
        self.abuse.hold(held);
        for (node, until_ms) in trusted {
            self.findings.trust(node, until_ms);
        }
    }

    // The network.

    fn connect(&mut self, node: usize) {
        if self.nodes[node].agent.is_none() || self.nodes[node].link.is_some() {
            return;
        }
        let is_cut = self.now < self.nodes[node].cut.until(Way::Both);
        if is_cut || self.control.is_none() {
            let how = if is_cut { LinkLoss::Gone } else { LinkLoss::Refused };
            self.with_agent(node, |agent, now| agent.link_lost(how, now));
            return self.after(200, Coming::Connect { node });
        }
        let link = LinkId(self.next_link);
        self.next_link += 1;
        self.nodes[node].link = Some(link);
        self.links.insert(link, Link { node, last_to_node: self.now, last_to_control: self.now });
        let now = self.agent_time(node);
        let held = self.nodes[node].agent.as_mut().expect("checked above").greet(now);
        let hello = Hello {
            node: self.nodes[node].name.clone(),
            address: "127.0.0.1".into(),
            incarnation: self.nodes[node].incarnation,
            held,
            host: HostMachine::default(),
        };
        self.send_to_control(link, FromAgent::Hello(hello));
    }

    fn send_to_control(&mut self, link: LinkId, message: FromAgent) {
        if let Some((at, copies)) = self.arrival(link, true) {
            for _ in 0..copies {
                let message = Box::new(message.clone());
                self.after(at - self.now, Coming::ToControl { link, message });
            }
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Send { link, message } => {
                if let Some((at, copies)) = self.arrival(link, false) {
                    for _ in 0..copies {
                        self.after(
                            at - self.now,
                            Coming::ToNode { link, message: Box::new(message.clone()) },
                        );
                    }
                }
            }
            Command::Close { link } => {
                if self.links.contains_key(&link) {
                    let delay = self.random.between(1, 20);
                    self.after(delay, Coming::NodeHearsClose { link });
                }
            }
        }
    }

    /// When a message arrives, and how often. Links keep the order, except where the world is wild.
    fn arrival(&mut self, link: LinkId, is_to_control: bool) -> Option<(u64, usize)> {
        let node = self.links.get(&link)?.node;
        let mut at = self.now + self.random.between(1, 10);
        // What was sent during a cut comes after it, as TCP repeats it.
        let way = if is_to_control { Way::ToControl } else { Way::ToNode };
        let cut_until = self.nodes[node].cut.until(way);
        if self.now < cut_until {
            at = cut_until + self.random.between(1, 300);
        }
        let entry = self.links.get_mut(&link).expect("looked up above");
        let last = if is_to_control { &mut entry.last_to_control } else { &mut entry.last_to_node };
        let wild = self.is_wild && self.is_stormy;
        if wild && self.random.percent(3) {
            return Some((at + self.random.between(1, 400), 1));
        }
        at = at.max(*last);
        *last = at;
        let copies = if wild && self.random.percent(3) { 2 } else { 1 };
        Some((at, copies))
    }

    fn control_hears(&mut self, link: LinkId, message: FromAgent) {
        if !self.links.contains_key(&link) {
            return;
        }
        self.with_control(|control, now| match message {
            FromAgent::Hello(hello) => control.linked(link, hello, now),
            message => control.heard(link, message, now),
        });
    }

    fn node_hears(&mut self, link: LinkId, message: ToAgent) {
        let Some(node) = self.links.get(&link).map(|link| link.node) else {
            return;
        };
        if self.nodes[node].link != Some(link) {
            return;
        }
        if self.is_frozen(node) {
            return self.when_thawed(node, Coming::ToNode { link, message: Box::new(message) });
        }
        if let ToAgent::Acknowledge { until_ms } = message {
            return self.is_acknowledged(node, until_ms);
        }
        self.with_agent(node, |agent, now| agent.told(message, now));
    }

    fn lose_link(&mut self, link: LinkId) {
        let known = self.links.get(&link).map(|link| link.node);
        let node = known.or_else(|| self.nodes.iter().position(|node| node.link == Some(link)));
        if let Some(node) = node.filter(|node| self.is_frozen(*node)) {
            return self.when_thawed(node, Coming::NodeHearsClose { link });
        }
        self.links.remove(&link);
        let Some(node) = node.filter(|node| self.nodes[*node].link == Some(link)) else {
            return;
        };
        self.nodes[node].link = None;
        self.with_agent(node, |agent, now| agent.link_lost(LinkLoss::Gone, now));
        self.after(100, Coming::Connect { node });
    }

    // Nodes and their processes.
}

fn name_of(coming: &Coming) -> u64 {
    match coming {
        Coming::Client => 1,
        Coming::Fault => 2,
        Coming::ControlTick => 3,
        Coming::ControlBack => 4,
        Coming::Synced { epoch } => 5 + epoch,
        Coming::AgentTick { node } => 100 + *node as u64,
        Coming::AgentBack { node } => 200 + *node as u64,
        Coming::Connect { node } => 300 + *node as u64,
        Coming::ToControl { link, .. } => 1000 + link.0,
        Coming::ToNode { link, .. } => 100_000 + link.0,
        Coming::ControlHearsClose { link, .. } => 200_000 + link.0,
        Coming::NodeHearsClose { link } => 300_000 + link.0,
        Coming::Process { node, .. } => 400 + *node as u64,
        Coming::Swept { node, .. } => 500 + *node as u64,
        Coming::Heard { node, .. } => 600 + *node as u64,
        Coming::ForkServerBack { node, .. } => 700 + *node as u64,
        Coming::Wear => 800,
        Coming::ControlDies => 801,
        Coming::Jump => 802,
        Coming::Partition => 803,
        Coming::Abuse => 804,
        Coming::Cut { node, .. } => 840 + *node as u64,
        Coming::Breaks { node, .. } => 810 + *node as u64,
        Coming::Reads { node, .. } => 820 + *node as u64,
        Coming::Tells { node } => 830 + *node as u64,
    }
}

fn cluster() -> Cluster {
    Cluster::from_spec(&format!("p5.48xlarge:{NODES}"), &Catalog::builtin()).expect("the fixture is right")
}

/// Urgent jobs move others out of the way.
fn settings() -> Settings {
    let mut settings = Settings::default();
    let preempts = vec![QosId(0)];
    settings.qos.push(Qos { priority: 10, preempts, ..Qos::named("urgent") });
    settings
}

/// Nodes that take too long are given up within the storm.
fn rules(bug: Option<Bug>) -> ControlRules {
    let mut rules = ControlRules {
        prepare_within: Span::seconds(20),
        array_slice: 3,
        cycle_slice: 1,
        ..ControlRules::default()
    };
    if bug == Some(Bug::BlamesForOne) {
        rules.blame.most_witnesses = 1;
    }
    if bug == Some(Bug::DrainsAll) {
        (rules.blame.most_proven, rules.blame.most_accused) = (1.0, 2.0);
    }
    rules
}
