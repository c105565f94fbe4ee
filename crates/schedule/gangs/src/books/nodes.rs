//! Every node by itself: who holds its GPUs, and its timelines written anew.

use crate::fleet::{Booking, NodeFleet, SharedGpu};
use crate::jobs::EntryState;
use crate::timeline::Timeline;
use crate::{Amount, JobId, Scheduler, Time};

pub(super) fn recount_nodes(scheduler: &Scheduler, now: Time) {
    let fleet = &scheduler.fleet;
    for node in 0..fleet.count() {
        fleet.bookings(node).iter().for_each(|booking| has_a_place(scheduler, booking.job));
        shared_gpus_add_up(fleet, node);
        devices_have_one_holder(fleet, node);
        is_not_overfull(fleet, node);
        timelines_agree(scheduler, node, now);
    }
}

fn has_a_place(scheduler: &Scheduler, job: JobId) {
    let state = scheduler.jobs.get(job).map(|entry| &entry.state);
    let is_there = matches!(state, Some(EntryState::Running(_) | EntryState::Suspended(_)));
    assert!(is_there, "{job} is booked and does not run");
}

fn shared_gpus_add_up(fleet: &NodeFleet, node: u32) {
    let mut found: Vec<SharedGpu> = Vec::new();
    for booking in fleet.bookings(node) {
        let Some(share) = booking.share else { continue };
        match found.iter_mut().find(|gpu| gpu.device == booking.devices) {
            Some(gpu) => {
                *gpu = SharedGpu { used: gpu.used + share, until: gpu.until.max(booking.until), ..*gpu }
            }
            None => found.push(SharedGpu { device: booking.devices, used: share, until: booking.until }),
        }
    }
    let mut kept = fleet.shared_gpus(node).to_vec();
    found.sort_unstable_by_key(|gpu| gpu.device);
    kept.sort_unstable_by_key(|gpu| gpu.device);
    assert_eq!(found, kept, "the shared GPUs of node {node}");
    assert!(found.iter().all(|gpu| gpu.used <= 1000), "more than all of a GPU of node {node}: {found:?}");
}

fn devices_have_one_holder(fleet: &NodeFleet, node: u32) {
    let alone = whole(fleet, node).map(|booking| booking.devices);
    let shared = fleet.shared_gpus(node).iter().map(|gpu| gpu.device);
    let mut free = (1 << fleet.capacity(node).gpus) - 1;
    for devices in alone.chain(shared) {
        assert_eq!(free & devices, devices, "a GPU of node {node} is held twice");
        free &= !devices;
    }
    assert_eq!(free, fleet.free_devices(node), "the free GPUs of node {node}");
}

/// Bookings of GPUs that nobody shares.
fn whole(fleet: &NodeFleet, node: u32) -> impl Iterator<Item = &Booking> {
    fleet.bookings(node).iter().filter(|booking| booking.share.is_none())
}

fn is_not_overfull(fleet: &NodeFleet, node: u32) {
    let (bookings, capacity) = (fleet.bookings(node), fleet.capacity(node));
    let sum = |of: fn(&Amount) -> u64| bookings.iter().map(|booking| of(&booking.amount)).sum::<u64>();
    let shared = fleet.shared_gpus(node).len() as u64;
    let gpus = whole(fleet, node).map(|booking| u64::from(booking.amount.gpus)).sum::<u64>() + shared;
    assert!(gpus <= capacity.gpus.into(), "{gpus} GPUs of node {node} are taken");
    let cpus = sum(|amount| amount.cpus.into());
    assert!(cpus <= capacity.cpus.into(), "{cpus} cores of node {node} are taken");
    let memory_mib = sum(|amount| amount.memory_mib.into());
    assert!(memory_mib <= capacity.memory_mib.into(), "{memory_mib} MiB of node {node} are taken");
}

fn timelines_agree(scheduler: &Scheduler, node: u32, now: Time) {
    let fleet = &scheduler.fleet;
    let mut line = booked_line(fleet, node);
    assert_eq!(line.since(now), fleet.booked(node).since(now), "what is booked on node {node}");
    for reservation in scheduler.reservations() {
        for reserved in reservation.nodes.iter().filter(|reserved| reserved.node.0 == node) {
            line.take(reservation.start, reservation.until, reserved.amount);
        }
    }
    assert_eq!(line.since(now), fleet.plan(node).since(now), "what is planned on node {node}");
}

/// A shared GPU is booked whole until the last of its gangs ends; what else they need is booked for each.
fn booked_line(fleet: &NodeFleet, node: u32) -> Timeline {
    let capacity = fleet.capacity(node);
    let mut line = Timeline::new(capacity);
    for closure in fleet.closures(node) {
        line.take(closure.from, closure.until, capacity.plus(Amount::gpus(1)));
    }
    for booking in fleet.bookings(node) {
        let gpus = if booking.share.is_some() { 0 } else { booking.amount.gpus };
        line.take(booking.from, booking.until, Amount { gpus, ..booking.amount });
    }
    for gpu in fleet.shared_gpus(node) {
        line.take(Time::ZERO, gpu.until, Amount::gpus(1));
    }
    line
}
