//! The slow, obvious simulation: every step of every replica by itself, every token noted.
//!
//! It shares the scheduler and the router with the replay, and nothing else: no stretches, no event queue, no
//! sums. At each moment steps end, then requests arrive, then idle replicas start.

use std::collections::BTreeMap;

use bedplate_batching::{
    AdmitReason, BlockKeys, ReplicaCandidate, Request, Router, RoutingPolicy, Scheduler, TenantId,
};
use bedplate_replay::requests::{Picoseconds, Planned, Pool, StepTime};

/// What the reference knows of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Reference {
    pub(crate) first_token: Picoseconds,
    pub(crate) finished: Picoseconds,
    pub(crate) is_dropped: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Played {
    pub(crate) requests: Vec<Reference>,
    /// Gaps between tokens of one sequence: how many, and their sum.
    pub(crate) gaps: u64,
    pub(crate) gap_sum: u128,
}

struct Replica {
    scheduler: Scheduler,
    ends: Option<Picoseconds>,
    decodes: bool,
    /// When each sequence got its last token.
    last_token: BTreeMap<u32, Picoseconds>,
}

/// Plays a trace over one pool without swapping.
pub(crate) fn play(trace: &[Planned], pool: &Pool<'_>) -> Played {
    let mut trace: Vec<Planned> = trace.to_vec();
    trace.sort_by_key(|planned| planned.at);
    let mut replicas: Vec<Replica> = (0..pool.replicas)
        .map(|_| Replica {
            scheduler: Scheduler::new(pool.scheduler.clone()).expect("the settings are sound"),
            ends: None,
            decodes: false,
            last_token: BTreeMap::new(),
        })
        .collect();
    let mut router = Router::new(pool.router);
    let mut played = Played { requests: vec![Reference::default(); trace.len()], ..Played::default() };
    let mut left: Vec<u16> = trace.iter().map(|planned| planned.samples).collect();
    let mut arrived = 0;
    loop {
        let ends = replicas.iter().filter_map(|replica| replica.ends);
        let arrival = trace.get(arrived).map(|planned| planned.at);
        let Some(now) = ends.chain(arrival).min() else { return played };
        for replica in replicas.iter_mut().filter(|replica| replica.ends == Some(now)) {
            end_step(replica, now, &mut played, &mut left);
        }
        while let Some(planned) = trace.get(arrived).filter(|planned| planned.at == now) {
            arrive(arrived as u64, planned, pool, &mut router, &mut replicas, now);
            arrived += 1;
        }
        for replica in replicas.iter_mut().filter(|replica| replica.ends.is_none()) {
            start_step(replica, now, pool.engine, &mut played);
        }
    }
}

fn arrive(
    id: u64,
    planned: &Planned,
    pool: &Pool<'_>,
    router: &mut Router,
    replicas: &mut [Replica],
    now: Picoseconds,
) {
    let block_tokens = pool.scheduler.block_tokens;
    let keys = match pool.scheduler.keeps_prefixes {
        true => planned.prefix.keys(planned.prompt_tokens, planned.output_tokens, block_tokens),
        false => BlockKeys::default(),
    };
    let request = Request {
        tenant: TenantId(planned.tenant),
        priority: planned.priority,
        samples: planned.samples,
        deadline: planned.patience.map(|patience| (planned.at + patience) / 1000),
        keys,
        ..Request::new(id, planned.prompt_tokens, planned.output_tokens)
    };
    let candidates: Vec<ReplicaCandidate> = replicas
        .iter()
        .map(|replica| ReplicaCandidate {
            load: replica.scheduler.load(),
            cached_tokens: if pool.router.policy == RoutingPolicy::Prefix {
                replica.scheduler.cached_tokens(&request.keys, planned.prompt_tokens)
            } else {
                0
            },
            is_open: true,
        })
        .collect();
    let route = router.route(planned.prompt_tokens, &candidates).expect("all are open");
    replicas[route.replica].scheduler.submit(request, now / 1000).expect("it fits");
}

fn start_step(replica: &mut Replica, now: Picoseconds, engine: &dyn StepTime, played: &mut Played) {
    let step = replica.scheduler.step(now / 1000, 1);
    for dropped in &step.dropped {
        played.requests[dropped.request.0 as usize] =
            Reference { first_token: 0, finished: now, is_dropped: true };
    }
    for admitted in &step.admitted {
        if let AdmitReason::Turn { .. } = admitted.reason {
            replica.last_token.remove(&admitted.sequence.0);
        }
    }
    if step.is_idle() {
        return;
    }
    let duration = if step.shape.is_decode_only() {
        let time = engine.decode(step.shape.decodes);
        time.base + time.slope * step.shape.decode_context
    } else {
        engine.prefill(&step.shape)
    };
    replica.decodes = step.decodes;
    replica.ends = Some(now + duration);
}

fn end_step(replica: &mut Replica, now: Picoseconds, played: &mut Played, left: &mut [u16]) {
    replica.ends = None;
    if replica.decodes {
        for sequence in replica.scheduler.decoding() {
            note_token(&mut replica.last_token, sequence.0, now, played);
        }
    }
    let completion = replica.scheduler.complete(1);
    for started in &completion.started {
        if started.generated == 1 {
            replica.last_token.remove(&started.sequence.0);
            let request = &mut played.requests[started.request.0 as usize];
            if request.first_token == 0 {
                request.first_token = now;
            }
        }
        note_token(&mut replica.last_token, started.sequence.0, now, played);
    }
    for finished in &completion.finished {
        let request = finished.request.0 as usize;
        left[request] -= 1;
        if left[request] == 0 {
            played.requests[request].finished = now;
        }
    }
}

fn note_token(
    last_token: &mut BTreeMap<u32, Picoseconds>,
    sequence: u32,
    now: Picoseconds,
    played: &mut Played,
) {
    if let Some(last) = last_token.insert(sequence, now) {
        played.gaps += 1;
        played.gap_sum += u128::from(now - last);
    }
}
