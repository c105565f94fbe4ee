//! Everything that is kept up to date, counted again from what runs.

use std::collections::BTreeSet;

use bedplate_topology::NodeId;

use super::nodes::recount_nodes;
use super::world::World;
use crate::fleet::{Booking, JOINS, OUT_OF_SERVICE};
use crate::jobs::{EntryState, GangRun, JobEntry};
use crate::limits::Ledger;
use crate::{JobId, QosId, QueueId, Reservation, Scheduler, Time, UserId};

pub(super) fn recount(world: &World) {
    let scheduler = &world.scheduler;
    for (job, entry) in scheduler.jobs.iter() {
        lists_agree(scheduler, job, entry);
        if let Some(run) = entry.run() {
            is_on_the_calendar(scheduler, job, run);
            run.shares.iter().for_each(|share| is_booked(scheduler, job, run, share.node));
            if run.stopping.is_none() {
                is_off_closed_nodes(scheduler, job, run, world.now);
            }
        }
    }
    assert_eq!(scheduler.jobs.ends().len(), scheduler.running().count(), "an end of nobody");
    recount_ledger(scheduler);
    recount_quotas(scheduler);
    limits_hold(scheduler);
    only_the_queue_has_reservations(scheduler);
    recount_nodes(scheduler, world.now);
    wakeup_lies_ahead(scheduler, world.now);
}

fn lists_agree(scheduler: &Scheduler, job: JobId, entry: &JobEntry) {
    let is_suspended = matches!(entry.state, EntryState::Suspended(_));
    assert_eq!(is_suspended, scheduler.jobs.suspended().contains(&job), "{job} among the suspended");
    assert_eq!(entry.is_queued(), scheduler.queue().any(|each| each == job), "{job} in the queue");
    let is_elastic = entry.run().is_some() && entry.request.elastic().is_some();
    assert_eq!(is_elastic, scheduler.jobs.elastic().contains(&job), "{job} among the elastic that run");
    assert!(scheduler.outcome(job).is_none(), "{job} lives and has ended");
}

fn is_on_the_calendar(scheduler: &Scheduler, job: JobId, run: &GangRun) {
    assert!(!run.shares.is_empty(), "{job} runs on nothing");
    assert!(scheduler.jobs.ends().contains(&(run.ends(), job)), "{job} has no end");
    let is_there = |node: &NodeId| run.shares.iter().any(|share| share.node == *node);
    assert!(run.leaving.iter().all(is_there), "{job} leaves a node where it is not");
    let has_date = scheduler.calendar.departures.contains(&job);
    assert!(run.leaving.is_empty() || has_date, "{job} may take forever to leave");
}

/// What a gang holds on a node is booked there once, until its end unless it leaves before.
fn is_booked(scheduler: &Scheduler, job: JobId, run: &GangRun, node: NodeId) {
    let bookings = scheduler.fleet.bookings(node.0).iter();
    let own: Vec<&Booking> = bookings.filter(|booking| booking.job == job).collect();
    let mut booked: Vec<u64> = own.iter().map(|booking| booking.devices).collect();
    let shares = run.shares.iter().filter(|share| share.node == node);
    let mut held: Vec<u64> = shares.map(|share| share.devices).collect();
    booked.sort_unstable();
    held.sort_unstable();
    assert_eq!(booked, held, "what {job} holds on {node:?}");
    let ends_in_time = own.iter().all(|booking| booking.until == run.ends());
    assert!(ends_in_time || run.leaving.contains(&node), "{job} is booked on {node:?} past its end");
}

/// A node that drains, or is announced although gangs run there, lets them finish; all else stops them.
fn is_off_closed_nodes(scheduler: &Scheduler, job: JobId, run: &GangRun, now: Time) {
    for node in run.node_ids() {
        let closures = scheduler.fleet.closures(node).iter();
        let mut windows = closures.filter(|each| each.name != OUT_OF_SERVICE && each.name != JOINS);
        let window = windows.find(|window| window.from <= now && now < window.until);
        assert!(window.is_none(), "{job} runs on node {node} in {window:?}");
    }
}

fn recount_ledger(scheduler: &Scheduler) {
    let mut ledger = Ledger::default();
    for (_, entry) in scheduler.jobs.iter() {
        if let Some(run) = entry.run() {
            ledger.start(&entry.request, run.gpus());
        }
    }
    assert_eq!(
        ledger.without_zeros(),
        scheduler.accounting.ledger().clone().without_zeros(),
        "the ledger of limits"
    );
}

fn recount_quotas(scheduler: &Scheduler) {
    let mut queues = scheduler.settings.queues.clone();
    for (_, entry) in scheduler.jobs.iter() {
        if let (Some(run), Some(asked)) = (entry.run(), scheduler.accounting.asked(&entry.request)) {
            queues.take(asked.queue, &asked.kind, run.gpus());
        }
    }
    let kept = scheduler.queues();
    for queue in (0..queues.names().count() as u16).map(QueueId) {
        for kind in [crate::ANY_GPU, "h100"] {
            assert_eq!(queues.used(queue, kind), kept.used(queue, kind), "{kind} of {}", kept.name(queue));
        }
    }
    assert!(kept.is_within_bounds(), "a quota is exceeded");
}

fn limits_hold(scheduler: &Scheduler) {
    for (index, qos) in scheduler.settings.qos.iter().enumerate() {
        let held = held_under(scheduler, QosId(index as u16));
        let all: u64 = held.iter().map(|(_, gpus)| gpus).sum();
        assert!(qos.most_gpus.is_none_or(|most| all <= most), "{} has {all} GPUs", qos.name);
        for (user, _) in &held {
            let own: Vec<u64> =
                held.iter().filter(|(other, _)| other == user).map(|(_, gpus)| *gpus).collect();
            let gpus: u64 = own.iter().sum();
            assert!(qos.most_gpus_per_user.is_none_or(|most| gpus <= most), "{user:?} has {gpus} GPUs");
            let jobs = own.len() as u32;
            assert!(qos.most_jobs_per_user.is_none_or(|most| jobs <= most), "{user:?} runs {jobs} jobs");
        }
    }
}

/// The user and the GPUs of every gang that runs under a QOS.
fn held_under(scheduler: &Scheduler, qos: QosId) -> Vec<(UserId, u64)> {
    let entries = scheduler.jobs.iter().filter(|(_, entry)| entry.request.qos == qos);
    entries.filter_map(|(_, entry)| Some((entry.request.user, entry.run()?.gpus()))).collect()
}

fn only_the_queue_has_reservations(scheduler: &Scheduler) {
    let waits = |job: &JobId| scheduler.jobs.get(*job).is_some_and(JobEntry::is_queued);
    for job in scheduler.accounting.claims().keys() {
        assert!(waits(job), "{job} claims quota and does not wait");
    }
    let mut reserved = BTreeSet::new();
    for Reservation { job, start, nodes, .. } in scheduler.reservations() {
        assert!(waits(job), "{job} has a reservation and does not wait");
        reserved.extend(nodes.iter().map(|reserved| (reserved.node, *start, *job)));
    }
    let nodes = (0..scheduler.fleet.count()).map(NodeId);
    let listed =
        nodes.flat_map(|node| scheduler.reservations.on_node(node).map(move |(at, job)| (node, at, job)));
    assert_eq!(reserved, listed.collect(), "the nodes that are reserved");
}

/// Only a plan that is to be made anew may be overdue, which waits for the next event, and a cycle that is under way.
fn wakeup_lies_ahead(scheduler: &Scheduler, now: Time) {
    let wakeup = scheduler.wakeup();
    let is_ahead = wakeup.is_none_or(|wakeup| wakeup > now);
    assert!(
        is_ahead
            || scheduler.rest.is_some()
            || scheduler.ranking.is_some()
            || scheduler.news.next_cycle(&scheduler.settings.backfill).is_some(),
        "the next wakeup {wakeup:?} is not after {now:?}"
    );
}
