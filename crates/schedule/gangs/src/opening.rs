//! Where requests of one shape can start at one time, kept up to date.
//!
//! [`NowView`] knows the present only and follows every change of the plan, freed nodes included. How many nodes
//! a class needs, and how close to each other, is asked of what is open.

use crate::Time;
use crate::fleet::NodeFleet;
use crate::view::{Eligible, NodeNeed, NodeSetRule, Openings, RequestClass, sets_to_use};

/// Which nodes a shape can start on right now, and until when that holds.
#[derive(Debug, Clone)]
pub(crate) struct NowView {
    shape: NodeNeed,
    /// Some time not after now where it can start, [`Time::NEVER`] where it cannot.
    starts: Vec<Time>,
    latest: Vec<Time>,
    spare: Vec<u16>,
    open: u32,
    /// Before this nothing closes by time alone.
    expires: Time,
    seen: usize,
    /// How often a node opened.
    pub(crate) gains: u64,
}

impl NowView {
    pub(crate) fn new(shape: NodeNeed, fleet: &NodeFleet, eligible: &Eligible, now: Time) -> Self {
        let count = fleet.count() as usize;
        let mut view = Self {
            shape,
            starts: vec![Time::NEVER; count],
            latest: vec![Time::ZERO; count],
            spare: vec![0; count],
            open: 0,
            expires: Time::NEVER,
            seen: fleet.changes().len(),
            gains: 1,
        };
        for node in (0..count).filter(|node| eligible[*node]) {
            view.look(fleet, node, now);
        }
        view
    }

    /// Brings the view to `now`.
    pub(crate) fn follow(&mut self, fleet: &NodeFleet, eligible: &Eligible, now: Time) {
        if self.expires < now {
            self.expire(now);
        }
        for change in &fleet.changes()[self.seen..] {
            if eligible[change.node as usize] {
                self.look(fleet, change.node as usize, now);
            }
        }
        self.seen = fleet.changes().len();
    }

    /// How many nodes the shape can start on.
    pub(crate) fn open(&self) -> u32 {
        self.open
    }

    pub(crate) fn openings(&self, now: Time) -> Openings<'_> {
        Openings { at: now, starts: &self.starts, spare: &self.spare }
    }

    fn expire(&mut self, now: Time) {
        self.expires = Time::NEVER;
        for node in 0..self.starts.len() {
            if self.starts[node] == Time::NEVER {
                continue;
            }
            if self.latest[node] < now {
                self.starts[node] = Time::NEVER;
                self.open -= 1;
            } else {
                self.expires = self.expires.min(self.latest[node]);
            }
        }
    }

    fn look(&mut self, fleet: &NodeFleet, node: usize, now: Time) {
        let was_open = self.starts[node] != Time::NEVER;
        let window = (self.shape.has_devices(fleet, node as u32))
            .then(|| self.shape.need_on(fleet.capacity(node as u32)))
            .flatten()
            .and_then(|need| fleet.plan(node as u32).window_at(now, need, self.shape.length));
        match window {
            Some(window) => {
                self.starts[node] = now;
                self.latest[node] = window.latest;
                self.spare[node] = window.spare_gpus;
                self.expires = self.expires.min(window.latest);
                self.open += u32::from(!was_open);
                self.gains += u64::from(!was_open);
            }
            None => {
                self.starts[node] = Time::NEVER;
                self.open -= u32::from(was_open);
            }
        }
    }
}

/// Whether a class that is spread finds nodes in as many sets as it should. The choice of nodes keeps the other
/// rules.
pub(crate) fn is_spread_enough(
    class: &RequestClass,
    fleet: &NodeFleet,
    eligible: &Eligible,
    open: &Openings<'_>,
) -> bool {
    let NodeSetRule::Spread { level } = class.rule else {
        return true;
    };
    let sets = &fleet.levels()[usize::from(level)].sets;
    let usable = sets.iter().filter(|set| open.count((*set).clone()) > 0).count();
    usable >= (class.nodes as usize).min(sets_to_use(class, fleet, eligible))
}
