//! What holds when a gang starts or shrinks.

use bedplate_topology::NodeId;

use crate::{Closeness, GangRequest, JobId, NodeShare, NodeState, Scheduler, Time};

pub(super) fn check_start(scheduler: &Scheduler, job: JobId, shares: &[NodeShare], now: Time) {
    let request = &scheduler.jobs[job].request;
    is_whole(request, shares);
    is_in_service(scheduler, request, shares, now);
    is_close(scheduler, request, shares);
}

/// A gang that shrinks is elastic, leaves nodes that it has, and keeps as many as it needs at least.
pub(super) fn check_shrink(scheduler: &Scheduler, job: JobId, leaves: &[NodeId]) {
    let entry = &scheduler.jobs[job];
    let elastic = entry.request.elastic().expect("only an elastic gang shrinks");
    let run = entry.run().expect("only a gang that runs shrinks");
    assert!(
        leaves.iter().all(|node| run.shares.iter().any(|share| share.node == *node)),
        "{job}: {leaves:?}"
    );
    let rest = run.nodes() - leaves.len() as u32;
    assert!(rest >= elastic.min, "{job} shrinks to {rest} of {elastic:?}");
}

fn is_whole(request: &GangRequest, shares: &[NodeShare]) {
    let job = request.id;
    if let Some(elastic) = request.elastic() {
        let is_allowed = elastic.sizes().any(|size| size as usize == shares.len());
        assert!(is_allowed, "{job} starts with {} nodes", shares.len());
    } else {
        for (role, asked) in request.roles.iter().enumerate() {
            let count = shares.iter().filter(|share| usize::from(share.role) == role).count();
            assert_eq!(count, asked.nodes as usize, "{job} starts without a part of role {role}");
        }
    }
    for share in shares {
        let asked = request.roles[usize::from(share.role)].per_node.gpus;
        assert_eq!(share.gpus(), u32::from(asked), "{job} has other GPUs on {:?} than asked", share.node);
    }
}

fn is_in_service(scheduler: &Scheduler, request: &GangRequest, shares: &[NodeShare], now: Time) {
    let partition = &scheduler.settings.partition(request);
    for node in shares.iter().map(|share| share.node) {
        let state = scheduler.node_state(node, now);
        assert_eq!(state, NodeState::Allocated, "{} starts on {node:?}", request.id);
        let is_inside = partition.nodes.as_ref().is_none_or(|nodes| nodes.contains(&node));
        assert!(is_inside, "{} starts on {node:?} outside its partition", request.id);
        assert!(!request.filter.avoid.contains(&node), "{} starts on a node that it avoids", request.id);
    }
}

/// Segments may lie apart from each other; everybody else's roles may not.
fn is_close(scheduler: &Scheduler, request: &GangRequest, shares: &[NodeShare]) {
    let (Closeness::Required(level), None) = (request.closeness, request.segment) else { return };
    let sets = scheduler.fleet.sets(level);
    for role in 0..request.roles.len() {
        let own = shares.iter().filter(|share| usize::from(share.role) == role);
        let mut found: Vec<u32> = own.map(|share| sets.of_node[share.node.0 as usize]).collect();
        found.dedup();
        assert!(found.len() <= 1, "{} starts across {found:?} of {level:?}", request.id);
    }
}
