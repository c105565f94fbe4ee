//! What one scheduler knows is enough for another to go on.

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_topology::NodeId;

use super::random::Random;
use super::recount::recount;
use super::world::World;
use crate::jobs::GangRun;
use crate::{JobId, NodeState, Scheduler, Time};

/// Tells a new scheduler all that this one knows and lets both make their plans anew. Reservations are not carried
/// over, so the old one forgets its own first: a gang keeps reserved nodes where it starts no earlier, and who
/// stands on which nodes moves those behind it.
pub(super) fn decides_the_same_elsewhere(world: &World) {
    let now = world.now;
    let mut old = world.scheduler.clone();
    // How far a cycle has come is not told.
    Arc::make_mut(&mut old.settings).backfill.cycle_slice = usize::MAX;
    (old.rest, old.ranking) = (None, None);
    let mut new = Scheduler::new(old.cluster().clone(), old.settings().clone());
    let decided = new.apply_all(old.recall(), now);

    let reserved: Vec<JobId> = old.reservations().map(|reservation| reservation.job).collect();
    reserved.into_iter().for_each(|job| old.reservations.withdraw(job, &mut old.fleet));
    assert_eq!(old.replan(now), decided, "what is decided next");

    assert_eq!(runs(&old), runs(&new), "what runs and until when");
    assert!(old.reservations().eq(new.reservations()), "what is reserved");
    assert_eq!(old.usage(), new.usage(), "what was used");
    assert!(old.dependencies.outcomes().eq(new.dependencies.outcomes()), "what ended");
    assert_eq!(old.accounting.claims(), new.accounting.claims(), "what quota is kept for whom");
    assert_eq!(waiting(&old), waiting(&new), "who waits for what");
    assert_eq!(states(&old, now), states(&new, now), "the nodes");
    let mut rebuilt = World::new(new, Random::new(0));
    rebuilt.now = now;
    recount(&rebuilt);
}

fn runs(scheduler: &Scheduler) -> BTreeMap<JobId, String> {
    let told = |run: &GangRun| format!("{run:?}");
    scheduler.jobs.iter().filter_map(|(job, entry)| Some((job, told(entry.run()?)))).collect()
}

/// Everybody else, with what they wait for and where they stand.
fn waiting(scheduler: &Scheduler) -> Vec<String> {
    let others = scheduler.jobs.iter().filter(|(_, entry)| entry.run().is_none());
    let told = others.map(|(job, entry)| {
        let queued = entry.is_queued().then_some((entry.rank, entry.priority));
        format!("{job} {:?} {queued:?} {:?} {:?}", scheduler.wait_now(entry), entry.restarts, entry.victims)
    });
    told.collect()
}

fn states(scheduler: &Scheduler, now: Time) -> Vec<NodeState> {
    (0..scheduler.fleet.count()).map(|node| scheduler.node_state(NodeId(node), now)).collect()
}
