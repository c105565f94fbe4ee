//! The nodes: what they have, which gangs are on them, and what is free on each from now on.
//!
//! Two timelines are kept per node. `booked` counts what runs and when the node is out of service; `plan`
//! counts reservations too.

mod service;

use std::sync::Arc;

use bedplate_topology::{Cluster, Health, Level, NodeId};

use crate::devices::DeviceGroups;
use crate::levels::{LevelSets, levels_of};
use crate::timeline::Timeline;
use crate::{Amount, JobId, Span, Time};

#[cfg(test)]
pub(crate) use service::JOINS;
pub(crate) use service::OUT_OF_SERVICE;

#[derive(Debug, Clone)]
pub(crate) struct NodeFleet {
    cluster: Arc<Cluster>,
    nodes: Vec<Arc<NodeEntry>>,
    kinds: Arc<[DeviceGroups]>,
    /// Sets of nodes by level, closest first: multi-node domains, then switches, then the cluster.
    levels: Arc<[LevelSets]>,
    /// Working GPUs of every node that are free. In a list of their own, because searches read all of them.
    free_devices: Vec<u64>,
    booked: Vec<Arc<Timeline>>,
    plan: Vec<Arc<Timeline>>,
    /// What happened to `plan`, in order, for results derived from it.
    changes: Vec<Change>,
    /// Whether `changes` holds every difference between `plan` and `booked`.
    is_traced: bool,
    /// Nodes of which `booked` changed, in order.
    rebooked: Vec<u32>,
}

#[derive(Debug, Clone)]
struct NodeEntry {
    capacity: Amount,
    kind: u16,
    condition: Condition,
    working_devices: u64,
    bookings: Vec<Booking>,
    shared: Vec<SharedGpu>,
    /// Times in which the node is out of service.
    closed: Vec<Closure>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Up,
    Draining,
    Down,
}

impl Condition {
    fn of(health: Health) -> Self {
        match health {
            Health::Healthy | Health::Degraded => Condition::Up,
            Health::Draining | Health::Drained | Health::Maintenance => Condition::Draining,
            Health::Down => Condition::Down,
        }
    }
}

/// What a gang holds on a node, and until when at the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Booking {
    pub(crate) job: JobId,
    pub(crate) amount: Amount,
    /// GPUs it uses; an exclusive gang may block more than that.
    pub(crate) gpus: u16,
    pub(crate) from: Time,
    pub(crate) until: Time,
    pub(crate) devices: u64,
    /// Thousandths of the one device it shares.
    pub(crate) share: Option<u16>,
}

/// A GPU that several gangs use. It is booked whole, until the last of them ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharedGpu {
    pub(crate) device: u64,
    pub(crate) used: u16,
    pub(crate) until: Time,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Closure {
    pub(crate) name: String,
    pub(crate) from: Time,
    pub(crate) until: Time,
}

/// A change of one node's plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change {
    pub(crate) node: u32,
    pub(crate) from: Time,
    pub(crate) until: Time,
    /// Something became free: windows may begin earlier.
    pub(crate) frees: bool,
}

impl NodeFleet {
    pub(crate) fn new(cluster: Cluster) -> Self {
        let levels = levels_of(&cluster).into();
        let nodes: Vec<Arc<NodeEntry>> =
            cluster.nodes().iter().map(|id| Arc::new(NodeEntry::new(&cluster, id))).collect();
        let booked: Vec<Arc<Timeline>> =
            nodes.iter().map(|node| Arc::new(Timeline::new(node.capacity))).collect();
        let mut fleet = Self {
            kinds: cluster.kinds().iter().map(DeviceGroups::of).collect(),
            free_devices: nodes.iter().map(|node| node.working_devices).collect(),
            plan: booked.clone(),
            booked,
            nodes,
            levels,
            cluster: Arc::new(cluster),
            changes: Vec::new(),
            is_traced: true,
            rebooked: Vec::new(),
        };
        for node in 0..fleet.count() {
            if fleet.nodes[node as usize].condition != Condition::Up {
                fleet.close(node, OUT_OF_SERVICE, Time::ZERO, Time::NEVER);
            }
        }
        fleet
    }

    /// The fleet as it is now, for questions about the future. It shares the lines of all nodes until they change, and knows
    /// nothing of how the plan came about.
    pub(crate) fn snapshot(&self) -> Self {
        Self {
            cluster: Arc::clone(&self.cluster),
            nodes: self.nodes.clone(),
            kinds: Arc::clone(&self.kinds),
            levels: Arc::clone(&self.levels),
            free_devices: self.free_devices.clone(),
            booked: self.booked.clone(),
            plan: self.plan.clone(),
            changes: Vec::new(),
            is_traced: false,
            rebooked: Vec::new(),
        }
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// What is free on a node beside what runs and what is reserved.
    pub(crate) fn plan(&self, node: u32) -> &Timeline {
        &self.plan[node as usize]
    }

    /// What is free on a node beside what runs.
    pub(crate) fn booked(&self, node: u32) -> &Timeline {
        &self.booked[node as usize]
    }

    /// What happened to the plan, in order.
    pub(crate) fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Nodes of which the bookings changed, in order.
    pub(crate) fn rebooked(&self) -> &[u32] {
        &self.rebooked
    }

    /// Whether the plan differs from what is booked by few changes, all of them known.
    pub(crate) fn is_near_bookings(&self) -> bool {
        self.is_traced && self.changes.len() <= 2 * self.nodes.len()
    }

    /// Looks at a cluster where nothing runs, nothing is reserved and every node serves.
    pub(crate) fn while_empty<T>(&mut self, look: impl FnOnce(&mut Self) -> T) -> T {
        let empty = self.nodes.iter().map(|node| Arc::new(Timeline::new(node.capacity))).collect();
        let plan = std::mem::replace(&mut self.plan, empty);
        let changes = std::mem::take(&mut self.changes);
        let seen = look(self);
        (self.plan, self.changes) = (plan, changes);
        seen
    }

    /// Looks at a node as if these amounts, each taken until a time, were free there from `at` on.
    pub(crate) fn while_lent<I: Iterator<Item = (Time, Amount)>>(
        &mut self,
        node: u32,
        at: Time,
        lent: impl Fn() -> I,
        look: impl FnOnce(&Self),
    ) {
        for (until, amount) in lent() {
            Arc::make_mut(&mut self.plan[node as usize]).give(at, until, amount);
        }
        look(self);
        for (until, amount) in lent() {
            Arc::make_mut(&mut self.plan[node as usize]).take(at, until, amount);
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.nodes.len() as u32
    }

    pub(crate) fn capacity(&self, node: u32) -> Amount {
        self.nodes[node as usize].capacity
    }

    pub(crate) fn kind(&self, node: u32) -> u16 {
        self.nodes[node as usize].kind
    }

    pub(crate) fn levels(&self) -> &[LevelSets] {
        &self.levels
    }

    /// The sets of a level; those of the next wider level the cluster has, where it lacks this one.
    pub(crate) fn sets(&self, level: Level) -> &LevelSets {
        let wide_enough = self.levels.iter().find(|sets| sets.level >= level);
        wide_enough.unwrap_or_else(|| self.levels.last().expect("the cluster itself is a level"))
    }

    /// The closest level that holds all these nodes.
    pub(crate) fn level_of(&self, nodes: &[u32]) -> &LevelSets {
        let (first, last) =
            nodes.iter().fold((u32::MAX, 0), |(low, high), node| (low.min(*node), high.max(*node)));
        let joins = |sets: &&LevelSets| sets.of_node[first as usize] == sets.of_node[last as usize];
        self.levels.iter().find(joins).unwrap_or_else(|| self.levels.last().expect("never empty"))
    }

    pub(crate) fn bookings(&self, node: u32) -> &[Booking] {
        &self.nodes[node as usize].bookings
    }

    /// Free GPUs on nodes that are in service.
    pub(crate) fn free_gpus(&self, now: Time) -> u64 {
        let is_closed = |closure: &Closure| closure.from <= now && now < closure.until;
        let serves = |(node, _): &(&Arc<NodeEntry>, &u64)| !node.closed.iter().any(is_closed);
        let serving = self.nodes.iter().zip(&self.free_devices).filter(serves);
        serving.map(|(_, free)| u64::from(free.count_ones())).sum()
    }

    pub(crate) fn free_devices(&self, node: u32) -> u64 {
        self.free_devices[node as usize]
    }

    /// Chooses devices and books them; what is booked must be free in the plan from `from` on.
    pub(crate) fn book(&mut self, node: u32, mut booking: Booking) -> u64 {
        let entry = Arc::make_mut(&mut self.nodes[node as usize]);
        let groups = &self.kinds[usize::from(entry.kind)];
        match booking.share {
            Some(share) => return self.book_share(node, booking, share),
            None => {
                let chosen = groups.choose(self.free_devices[node as usize], u32::from(booking.gpus));
                booking.devices = chosen.expect("as many devices are free as the timeline says");
            }
        }
        self.book_devices(node, booking);
        booking.devices
    }

    /// Books the very devices that the booking names; they must be free.
    pub(crate) fn book_devices(&mut self, node: u32, booking: Booking) {
        let free = &mut self.free_devices[node as usize];
        assert!(*free & booking.devices == booking.devices, "a GPU is held once");
        *free &= !booking.devices;
        Arc::make_mut(&mut self.nodes[node as usize]).bookings.push(booking);
        self.take_both(node, booking.from, booking.until, booking.amount);
    }

    /// Books the very devices that the booking names, shared ones too; it must be free for it.
    pub(crate) fn book_exactly(&mut self, node: u32, booking: Booking) {
        let Some(share) = booking.share else {
            return self.book_devices(node, booking);
        };
        let open = self.nodes[node as usize].shared.iter().position(|gpu| gpu.device == booking.devices);
        self.share_device(node, booking, share, open);
    }

    /// Whether what the booking names is free, whatever the node's state is.
    pub(crate) fn is_free_for(&self, node: u32, booking: &Booking) -> bool {
        let entry = &self.nodes[node as usize];
        let shared = entry.shared.iter().find(|gpu| gpu.device == booking.devices);
        let devices_free = match (booking.share, shared) {
            (Some(share), Some(gpu)) => gpu.used + share <= 1000,
            _ => self.free_devices(node) & booking.devices == booking.devices,
        };
        let bookings = || entry.bookings.iter().chain([booking]);
        let fits = |of: fn(&Amount) -> u64| {
            bookings().map(|each| of(&each.amount)).sum::<u64>() <= of(&entry.capacity)
        };
        let alone = bookings().filter(|each| each.share.is_none());
        let shared_gpus = entry.shared.len() + usize::from(booking.share.is_some() && shared.is_none());
        let gpus = alone.map(|each| u64::from(each.amount.gpus)).sum::<u64>() + shared_gpus as u64;
        devices_free
            && gpus <= entry.capacity.gpus.into()
            && fits(|amount| amount.cpus.into())
            && fits(|amount| amount.memory_mib.into())
    }

    pub(crate) fn has_devices(&self, node: u32, devices: u64) -> bool {
        self.nodes[node as usize].working_devices & devices == devices
    }

    /// Puts a gang on a GPU that is shared already and has room for as long as it runs, or opens one.
    fn book_share(&mut self, node: u32, mut booking: Booking, share: u16) -> u64 {
        let open = self.find_share(node, share, booking.until, booking.from);
        let entry = &self.nodes[node as usize];
        booking.devices = match open {
            Some(index) => entry.shared[index].device,
            None => {
                let groups = &self.kinds[usize::from(entry.kind)];
                groups.choose(self.free_devices(node), 1).expect("a device is free: the window said so")
            }
        };
        self.share_device(node, booking, share, open);
        booking.devices
    }

    /// Books a part of a device: of one that is shared already, by its place in the list, or of a free one.
    fn share_device(&mut self, node: u32, booking: Booking, share: u16, open: Option<usize>) {
        let beside = Amount { gpus: 0, ..booking.amount };
        match open {
            Some(index) => {
                let gpu = &mut Arc::make_mut(&mut self.nodes[node as usize]).shared[index];
                gpu.used += share;
                let (end, until) = (gpu.until, gpu.until.max(booking.until));
                gpu.until = until;
                self.take_both(node, end, until, Amount::gpus(1));
            }
            None => {
                self.free_devices[node as usize] &= !booking.devices;
                Arc::make_mut(&mut self.nodes[node as usize]).shared.push(SharedGpu {
                    device: booking.devices,
                    used: share,
                    until: booking.until,
                });
                self.take_both(node, booking.from, booking.until, Amount::gpus(1));
            }
        }
        self.take_both(node, booking.from, booking.until, beside);
        Arc::make_mut(&mut self.nodes[node as usize]).bookings.push(booking);
    }

    /// A GPU of the node that is shared already and can take `share` more until `until`.
    pub(crate) fn find_share(&self, node: u32, share: u16, until: Time, now: Time) -> Option<usize> {
        let entry = &self.nodes[node as usize];
        if entry.condition != Condition::Up {
            return None;
        }
        let lasts = |gpu: &SharedGpu| {
            let longer = until.since(gpu.until);
            longer == Span::ZERO
                || self.plan[node as usize].window_at(gpu.until.max(now), Amount::gpus(1), longer).is_some()
        };
        let fits = |gpu: &SharedGpu| gpu.used + share <= 1000 && gpu.until > now && lasts(gpu);
        let fitting = entry.shared.iter().enumerate().filter(|(_, gpu)| fits(gpu));
        let fullest = fitting.max_by_key(|(_, gpu)| (gpu.used, gpu.device));
        fullest.map(|(index, _)| index)
    }

    /// Nodes that have a shared GPU, ascending.
    pub(crate) fn sharing_nodes(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.count()).filter(|node| !self.nodes[*node as usize].shared.is_empty())
    }

    /// Frees what a gang holds on a node.
    pub(crate) fn release(&mut self, node: u32, job: JobId, now: Time) {
        let entry = Arc::make_mut(&mut self.nodes[node as usize]);
        let Some(at) = entry.bookings.iter().position(|booking| booking.job == job) else {
            return;
        };
        let booking = entry.bookings.swap_remove(at);
        match booking.share {
            None => {
                self.free_devices[node as usize] |= booking.devices & entry.working_devices;
                self.give_both(node, booking.from.max(now), booking.until, booking.amount);
            }
            Some(share) => self.release_share(node, booking, share, now),
        }
    }

    fn release_share(&mut self, node: u32, booking: Booking, share: u16, now: Time) {
        let beside = Amount { gpus: 0, ..booking.amount };
        self.give_both(node, now, booking.until, beside);
        let entry = Arc::make_mut(&mut self.nodes[node as usize]);
        let at = entry.shared.iter().position(|gpu| gpu.device == booking.devices).expect("it was shared");
        entry.shared[at].used -= share;
        let rest = entry.bookings.iter().filter(|other| other.devices == booking.devices);
        let until = rest.map(|other| other.until).max();
        let end = entry.shared[at].until;
        match until {
            Some(until) => entry.shared[at].until = until,
            None => {
                self.free_devices[node as usize] |= booking.devices & entry.working_devices;
                entry.shared.remove(at);
            }
        }
        self.give_both(node, until.unwrap_or(now).max(now), end, Amount::gpus(1));
    }

    /// Changes until when a gang holds what it holds on a node.
    pub(crate) fn rebook_until(&mut self, node: u32, job: JobId, until: Time, now: Time) {
        for index in 0..self.nodes[node as usize].bookings.len() {
            if self.nodes[node as usize].bookings[index].job == job {
                self.rebook_one(node, index, until, now);
            }
        }
    }

    fn rebook_one(&mut self, node: u32, index: usize, until: Time, now: Time) {
        let booking = &mut Arc::make_mut(&mut self.nodes[node as usize]).bookings[index];
        let before = std::mem::replace(&mut booking.until, until);
        let booking = *booking;
        if booking.share.is_none() {
            return self.change_end(node, before, until, booking.amount, now);
        }
        let entry = Arc::make_mut(&mut self.nodes[node as usize]);
        let sharers = entry.bookings.iter().filter(|other| other.devices == booking.devices);
        let last = sharers.map(|other| other.until).max().expect("the booking itself");
        let gpu = entry.shared.iter_mut().find(|gpu| gpu.device == booking.devices).expect("it is shared");
        let end = std::mem::replace(&mut gpu.until, last);
        self.change_end(node, end, last, Amount::gpus(1), now);
        self.change_end(node, before, until, Amount { gpus: 0, ..booking.amount }, now);
    }

    /// What was taken until `before` is taken until `until`.
    fn change_end(&mut self, node: u32, before: Time, until: Time, amount: Amount, now: Time) {
        if until < before {
            self.give_both(node, until.max(now), before, amount);
        } else {
            self.take_both(node, before.max(now), until, amount);
        }
    }

    fn take_both(&mut self, node: u32, from: Time, until: Time, amount: Amount) {
        Arc::make_mut(&mut self.booked[node as usize]).take(from, until, amount);
        Arc::make_mut(&mut self.plan[node as usize]).take(from, until, amount);
        self.changes.push(Change { node, from, until, frees: false });
        self.rebooked.push(node);
    }

    fn give_both(&mut self, node: u32, from: Time, until: Time, amount: Amount) {
        Arc::make_mut(&mut self.booked[node as usize]).give(from, until, amount);
        Arc::make_mut(&mut self.plan[node as usize]).give(from, until, amount);
        self.changes.push(Change { node, from, until, frees: true });
        self.rebooked.push(node);
    }

    pub(crate) fn reserve(&mut self, node: u32, from: Time, until: Time, amount: Amount) {
        Arc::make_mut(&mut self.plan[node as usize]).take(from, until, amount);
        self.changes.push(Change { node, from, until, frees: false });
    }

    pub(crate) fn unreserve(&mut self, node: u32, from: Time, until: Time, amount: Amount) {
        Arc::make_mut(&mut self.plan[node as usize]).give(from, until, amount);
        self.changes.push(Change { node, from, until, frees: true });
    }

    /// Forgets all reservations.
    pub(crate) fn reset_plan(&mut self, now: Time) {
        // A line that the plan shares with the bookings would be copied for the change.
        let none = Arc::new(Timeline::default());
        for (plan, booked) in self.plan.iter_mut().zip(&mut self.booked) {
            plan.clone_from(&none);
            Arc::make_mut(booked).forget_before(now);
            plan.clone_from(booked);
        }
        self.changes.clear();
        self.is_traced = true;
    }

    /// Keeps the list of changes short; when it is forgotten, results derived from it must be too.
    pub(crate) fn forgets_changes(&mut self) -> bool {
        let forgets = self.changes.len() > self.longest_list();
        if forgets {
            self.changes.clear();
            self.is_traced = false;
        }
        forgets
    }

    /// Likewise for the list of nodes whose bookings changed.
    pub(crate) fn forgets_rebooked(&mut self) -> bool {
        let forgets = self.rebooked.len() > self.longest_list();
        if forgets {
            self.rebooked.clear();
        }
        forgets
    }

    fn longest_list(&self) -> usize {
        8 * self.nodes.len() + 65_536
    }

    #[cfg(test)]
    pub(crate) fn shared_gpus(&self, node: u32) -> &[SharedGpu] {
        &self.nodes[node as usize].shared
    }
}

impl NodeEntry {
    fn new(cluster: &Cluster, id: NodeId) -> Self {
        let node = cluster.node(id);
        let kind = node.kind();
        let failed = |local: u32| cluster.gpu(id, local).is_some_and(|gpu| cluster.has_failed(gpu));
        let working = (0..kind.accelerators.min(64))
            .filter(|local| !failed(*local))
            .fold(0, |mask, bit| mask | 1 << bit);
        let memory = kind.reported_memory.or(kind.memory);
        let capacity = Amount {
            gpus: u64::count_ones(working) as u16,
            cpus: kind.vcpus.map_or(u16::MAX, |cpus| cpus.min(u32::from(u16::MAX)) as u16),
            memory_mib: memory
                .map_or(u32::MAX, |bytes| (bytes.get() / 1_048_576.0).min(f64::from(u32::MAX)) as u32),
        };
        let kind = cluster.kinds().iter().position(|each| each.name == kind.name).unwrap_or(0) as u16;
        Self {
            capacity,
            kind,
            condition: Condition::of(cluster.health(id)),
            working_devices: working,
            bookings: Vec::new(),
            shared: Vec::new(),
            closed: Vec::new(),
        }
    }
}
