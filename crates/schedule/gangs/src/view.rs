//! Where and when requests of one class fit: for every node the next window, kept up to date.
//!
//! Most gangs ask for one of few shapes, so what is found for one of them serves the next. A
//! [`View`] looks ahead: its cursor only moves forward, because within a cycle bookings are only added. What
//! it begins with is a [`NodeOutlook`](crate::outlook::NodeOutlook), which lasts from cycle to cycle.

use crate::fleet::NodeFleet;
use crate::levels::LevelSets;
use crate::outlook::NodeOutlook;
use crate::timeline::StartWindow;
use crate::{Amount, Span, Time};

/// What makes two requests interchangeable for the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestClass {
    /// Index of the set of nodes that may be used at all.
    pub(crate) eligible: u32,
    pub(crate) nodes: u32,
    pub(crate) need: Amount,
    pub(crate) is_exclusive: bool,
    pub(crate) length: Span,
    pub(crate) rule: NodeSetRule,
}

/// The part of a class that decides on which nodes it fits one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeNeed {
    /// Index of the set of nodes that may be used at all.
    pub(crate) eligible: u32,
    need: Amount,
    is_exclusive: bool,
    pub(crate) length: Span,
}

impl NodeNeed {
    /// What it takes of a node; `None` when the node is too small.
    pub(crate) fn need_on(&self, capacity: Amount) -> Option<Amount> {
        let fits = capacity.covers(self.need);
        fits.then_some(if self.is_exclusive { capacity } else { self.need })
    }

    /// Whether the GPUs that it needs of a node are free. Cheaper to ask than the timeline, and needed too.
    pub(crate) fn has_devices(&self, fleet: &NodeFleet, node: u32) -> bool {
        let gpus = if self.is_exclusive { fleet.capacity(node).gpus } else { self.need.gpus };
        fleet.free_devices(node).count_ones() >= u32::from(gpus)
    }
}

/// Which nodes may be taken together. Levels are indices into the fleet's levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NodeSetRule {
    Anywhere,
    /// All in one set.
    OneSet {
        level: u8,
    },
    /// In blocks of `segment` nodes, each in one set.
    Segments {
        level: u8,
        segment: u32,
    },
    /// In as many sets as there are nodes, or as have nodes that will do.
    Spread {
        level: u8,
    },
}

impl RequestClass {
    pub(crate) fn shape(&self) -> NodeNeed {
        let Self { eligible, need, is_exclusive, length, .. } = *self;
        NodeNeed { eligible, need, is_exclusive, length }
    }

    /// What it takes of a node; `None` when the node is too small.
    pub(crate) fn need_on(&self, capacity: Amount) -> Option<Amount> {
        self.shape().need_on(capacity)
    }

    /// What it takes of a node that was chosen for it.
    pub(crate) fn need_on_chosen(&self, fleet: &NodeFleet, node: u32) -> Amount {
        self.need_on(fleet.capacity(node)).expect("the node was chosen for its size")
    }
}

/// Nodes that a class may use, one flag each.
pub(crate) type Eligible = Vec<bool>;

/// The next window of every node at or after the cursor.
#[derive(Debug, Clone)]
pub(crate) struct View {
    class: RequestClass,
    cursor: Time,
    starts: Vec<Time>,
    latest: Vec<Time>,
    spare: Vec<u16>,
    /// Before this no window closes.
    expires: Time,
    /// For a class that is spread: in how many sets of its level it could ever have a node.
    sets_to_use: usize,
    /// How many of the fleet's changes are accounted for.
    seen: usize,
}

pub(crate) const NOWHERE: StartWindow =
    StartWindow { start: Time::NEVER, latest: Time::NEVER, spare_gpus: 0 };

impl View {
    pub(crate) fn new(class: RequestClass, fleet: &NodeFleet, eligible: &Eligible, now: Time) -> Self {
        let count = fleet.count() as usize;
        let mut view = Self {
            class,
            cursor: now,
            starts: vec![Time::NEVER; count],
            latest: vec![Time::NEVER; count],
            spare: vec![0; count],
            expires: Time::NEVER,
            sets_to_use: sets_to_use(&class, fleet, eligible),
            seen: fleet.changes().len(),
        };
        for node in (0..count).filter(|node| eligible[*node]) {
            view.look(fleet, node, now);
        }
        view
    }

    /// Begins with what is known of the class on nodes where nothing is reserved.
    pub(crate) fn from_outlook(
        class: RequestClass,
        fleet: &NodeFleet,
        eligible: &Eligible,
        outlook: &NodeOutlook,
        now: Time,
    ) -> Self {
        let (starts, latest, spare) = outlook.windows();
        let expires = latest.iter().copied().min().unwrap_or(Time::NEVER);
        Self {
            class,
            cursor: now,
            starts: starts.to_vec(),
            latest: latest.to_vec(),
            spare: spare.to_vec(),
            expires,
            sets_to_use: sets_to_use(&class, fleet, eligible),
            seen: 0,
        }
    }

    /// The first time at which the class fits.
    pub(crate) fn find(&mut self, fleet: &NodeFleet, eligible: &Eligible) -> Option<Time> {
        self.follow(fleet, eligible);
        loop {
            self.expire(fleet);
            let next = self.next_chance(fleet)?;
            if next <= self.cursor {
                return Some(self.cursor);
            }
            self.cursor = next;
        }
    }

    pub(crate) fn openings(&self) -> Openings<'_> {
        Openings { at: self.cursor, starts: &self.starts, spare: &self.spare }
    }

    /// Accounts for what happened to the plan since.
    fn follow(&mut self, fleet: &NodeFleet, eligible: &Eligible) {
        for change in &fleet.changes()[self.seen..] {
            let node = change.node as usize;
            if !eligible[node] || self.starts[node] == Time::NEVER && !change.frees {
                continue;
            }
            let touches =
                change.from < self.latest[node] + self.class.length && self.starts[node] < change.until;
            if change.frees || touches {
                let after = if change.frees { self.cursor } else { self.starts[node].max(self.cursor) };
                self.look(fleet, node, after);
            }
        }
        self.seen = fleet.changes().len();
    }

    /// Moves on from windows that the cursor has passed.
    fn expire(&mut self, fleet: &NodeFleet) {
        let cursor = self.cursor;
        if cursor <= self.expires {
            return;
        }
        self.expires =
            self.latest.iter().copied().filter(|latest| *latest >= cursor).min().unwrap_or(Time::NEVER);
        for node in 0..self.latest.len() {
            if self.latest[node] < cursor {
                self.look(fleet, node, cursor);
            }
        }
    }

    fn look(&mut self, fleet: &NodeFleet, node: usize, after: Time) {
        let need = self.class.need_on(fleet.capacity(node as u32));
        let window =
            need.map_or(NOWHERE, |need| fleet.plan(node as u32).earliest(after, need, self.class.length));
        self.starts[node] = window.start;
        self.latest[node] = window.latest;
        self.spare[node] = window.spare_gpus;
        self.expires = self.expires.min(window.latest);
    }

    /// The first time at which enough windows have begun, if none of them closes before.
    fn next_chance(&self, fleet: &NodeFleet) -> Option<Time> {
        let count = self.class.nodes as usize;
        let chance = match self.class.rule {
            // Most often enough have begun, and counting is much cheaper than finding when they do.
            NodeSetRule::Anywhere if self.openings().count(0..fleet.count()) as usize >= count => {
                Some(self.cursor)
            }
            NodeSetRule::Anywhere => nth_start(&self.starts, count),
            NodeSetRule::OneSet { level } => {
                let sets = &fleet.levels()[usize::from(level)].sets;
                let of_set = |set: &std::ops::Range<u32>| {
                    nth_start(&self.starts[set.start as usize..set.end as usize], count)
                };
                sets.iter().filter_map(of_set).min()
            }
            NodeSetRule::Spread { level } => {
                let sets = &fleet.levels()[usize::from(level)].sets;
                let first = |set: &std::ops::Range<u32>| {
                    self.starts[set.start as usize..set.end as usize].iter().copied().min()
                };
                let mut firsts: Vec<Time> = sets.iter().filter_map(first).collect();
                let apart = nth_of(&mut firsts, count.min(self.sets_to_use));
                apart.max(nth_start(&self.starts, count))
            }
            NodeSetRule::Segments { level, segment } => {
                self.first_with_segments(&fleet.levels()[usize::from(level)], segment)
            }
        };
        chance.filter(|time| *time < Time::NEVER)
    }

    fn first_with_segments(&self, sets: &LevelSets, segment: u32) -> Option<Time> {
        let mut times: Vec<Time> = self.starts.iter().copied().filter(|time| *time < Time::NEVER).collect();
        times.sort_unstable();
        times.dedup();
        let enough = |at: &Time| {
            let open = |set: &std::ops::Range<u32>| {
                self.starts[set.start as usize..set.end as usize].iter().filter(|start| *start <= at).count()
                    as u32
            };
            sets.sets.iter().map(|set| open(set) / segment).sum::<u32>() >= self.class.nodes / segment
        };
        let first = times.partition_point(|time| !enough(time));
        times.get(first).copied()
    }
}

pub(crate) fn sets_to_use(class: &RequestClass, fleet: &NodeFleet, eligible: &Eligible) -> usize {
    let NodeSetRule::Spread { level } = class.rule else {
        return 0;
    };
    let will_do = |node: u32| eligible[node as usize] && class.need_on(fleet.capacity(node)).is_some();
    let sets = &fleet.levels()[usize::from(level)].sets;
    sets.iter().filter(|set| (**set).clone().any(will_do)).count()
}

/// The nodes on which a class can start at one time.
pub(crate) struct Openings<'a> {
    pub(crate) at: Time,
    pub(crate) starts: &'a [Time],
    pub(crate) spare: &'a [u16],
}

impl Openings<'_> {
    pub(crate) fn is_open(&self, node: u32) -> bool {
        self.starts[node as usize] <= self.at
    }

    pub(crate) fn count(&self, nodes: std::ops::Range<u32>) -> u32 {
        let starts = &self.starts[nodes.start as usize..nodes.end as usize];
        starts.iter().filter(|start| **start <= self.at).count() as u32
    }

    /// GPUs left over on the node beside the class.
    pub(crate) fn spare(&self, node: u32) -> u16 {
        self.spare[node as usize]
    }
}

/// The time from which `count` windows have begun.
fn nth_start(starts: &[Time], count: usize) -> Option<Time> {
    if count == 0 || starts.len() < count {
        return None;
    }
    if count == 1 {
        return starts.iter().copied().min();
    }
    let mut times = starts.to_vec();
    nth_of(&mut times, count)
}

fn nth_of(times: &mut [Time], count: usize) -> Option<Time> {
    if count == 0 || times.len() < count {
        return None;
    }
    Some(*times.select_nth_unstable(count - 1).1)
}
