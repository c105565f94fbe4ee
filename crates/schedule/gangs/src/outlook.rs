//! When requests of one shape fit on every node beside what runs, kept from cycle to cycle.
//!
//! A cycle forgets all reservations, so each begins with what is booked. That changes on few nodes between two
//! cycles; all others keep their window, unless it has begun: an open window moves with the
//! time and is computed again.

use crate::Time;
use crate::fleet::NodeFleet;
use crate::view::{Eligible, NOWHERE, NodeNeed};

/// The next window of every node, reservations left aside.
#[derive(Debug, Clone)]
pub(crate) struct NodeOutlook {
    shape: NodeNeed,
    starts: Vec<Time>,
    latest: Vec<Time>,
    spare: Vec<u16>,
    /// How many of the fleet's bookings are accounted for.
    seen: usize,
    /// Whether the last cycle asked for it.
    pub(crate) is_used: bool,
}

impl NodeOutlook {
    pub(crate) fn new(shape: NodeNeed, fleet: &NodeFleet, eligible: &Eligible, now: Time) -> Self {
        let count = fleet.count() as usize;
        let mut outlook = Self {
            shape,
            starts: vec![Time::NEVER; count],
            latest: vec![Time::NEVER; count],
            spare: vec![0; count],
            seen: fleet.rebooked().len(),
            is_used: true,
        };
        for node in (0..count).filter(|node| eligible[*node]) {
            outlook.look(fleet, node, now);
        }
        outlook
    }

    /// Brings it to `now`.
    pub(crate) fn follow(&mut self, fleet: &NodeFleet, eligible: &Eligible, now: Time) {
        for node in 0..self.starts.len() {
            if self.starts[node] < now {
                self.look(fleet, node, now);
            }
        }
        for node in &fleet.rebooked()[self.seen..] {
            if eligible[*node as usize] {
                self.look(fleet, *node as usize, now);
            }
        }
        self.seen = fleet.rebooked().len();
        self.is_used = true;
    }

    /// Starts, latest starts and spare GPUs of all nodes.
    pub(crate) fn windows(&self) -> (&[Time], &[Time], &[u16]) {
        (&self.starts, &self.latest, &self.spare)
    }

    fn look(&mut self, fleet: &NodeFleet, node: usize, now: Time) {
        let need = self.shape.need_on(fleet.capacity(node as u32));
        let window =
            need.map_or(NOWHERE, |need| fleet.booked(node as u32).earliest(now, need, self.shape.length));
        self.starts[node] = window.start;
        self.latest[node] = window.latest;
        self.spare[node] = window.spare_gpus;
    }
}
