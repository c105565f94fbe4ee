//! The replay itself: events in virtual time, one decision after the other.
//!
//! At each moment, in this order: steps end, replicas become ready, KV arrives, requests arrive, the fleet is
//! scaled; and only when nothing more happens at that moment do idle replicas plan their next step. So a request
//! that arrives exactly at the end of a step is seen by the next one, and the order of replicas does not matter.
//!
//! A stretch of decode-only steps is one event. When a request is sent to a replica during a stretch, the stretch
//! ends with the current step, when an engine would poll its queue.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use bedplate_batching::{
    AdmitReason, BlockKeys, Load, OptionsFlaw, PrefixIndex, ReplicaCandidate, Request, RequestId, Route,
    Router, SequenceProgress, SequenceStart, TenantId,
};

use super::engine::{PER_NANOSECOND, Picoseconds};
use super::fleet::{Arrangement, Fleet, Pool};
use super::next::NextEnd;
use super::outcome::{Fate, Outcome, ReplayTally, RequestRecord};
use super::planned::Planned;
use super::replica::{ReplicaState, RunningStep, SimulatedReplica};
use super::scaling::{desired_replicas, replica_to_close};
use super::series::{StepSpan, WindowSeries};
use super::source::{RequestSource, Traffic};

/// Runs traffic through a fleet until every request has ended.
pub fn simulate(traffic: Traffic, fleet: &Fleet<'_>) -> Result<Outcome, OptionsFlaw> {
    let mut simulation = Simulation::new(traffic, fleet)?;
    while let Some(now) = simulation.next_time() {
        simulation.now = now;
        simulation.happen();
        simulation.start_steps();
    }
    Ok(simulation.into_outcome())
}

/// Index of the pool that takes requests, and of the one that decodes what was computed elsewhere.
const FRONT: usize = 0;
const DECODE: usize = 1;

struct Simulation<'a> {
    fleet: &'a Fleet<'a>,
    pools: Vec<&'a Pool<'a>>,
    now: Picoseconds,
    source: RequestSource,
    routers: Vec<Router>,
    replicas: Vec<SimulatedReplica>,
    next_end: NextEnd,
    /// Replicas that may be able to start a step.
    touched: Vec<usize>,
    /// KV on its way to the decode pool: arrival time, order of departure, request.
    transfers: BinaryHeap<Reverse<(Picoseconds, u64, u64)>>,
    sent: u64,
    /// Replicas that start, by when they are ready.
    starting: BinaryHeap<Reverse<(Picoseconds, usize)>>,
    /// When each pool's scaling is decided next.
    next_scaling: Vec<Option<Picoseconds>>,
    /// By pool: requests for which no replica is open.
    homeless: Vec<VecDeque<u64>>,
    planned: Vec<Planned>,
    /// By request: samples that have not finished.
    unfinished: Vec<u16>,
    records: Vec<RequestRecord>,
    underway: u64,
    /// When the last answer reached whoever had asked.
    answered: Picoseconds,
    /// By pool: what its router knows of every replica; those of other pools are closed.
    candidates: Vec<Vec<ReplicaCandidate>>,
    /// What replicas have cached, roughly.
    prefix_index: PrefixIndex,
    /// By replica: the most blocks of a prompt that it can have.
    bounds: Vec<u32>,
    progress: Vec<SequenceProgress>,
    series: WindowSeries,
    tally: ReplayTally,
}

impl<'a> Simulation<'a> {
    fn new(traffic: Traffic, fleet: &'a Fleet<'a>) -> Result<Self, OptionsFlaw> {
        let pools = fleet.pools();
        let mut replicas = Vec::new();
        for (index, pool) in pools.iter().enumerate() {
            if pool.replicas == 0 {
                return Err(OptionsFlaw::Zero { what: "the number of replicas" });
            }
            for _ in 0..pool.replicas {
                replicas.push(SimulatedReplica::new(index, pool.new_scheduler()?, ReplicaState::Open, 0));
            }
        }
        let mut simulation = Self {
            fleet,
            now: 0,
            source: RequestSource::new(traffic),
            routers: pools.iter().map(|pool| Router::new(pool.router)).collect(),
            next_end: NextEnd::new(replicas.len()),
            replicas,
            touched: Vec::new(),
            transfers: BinaryHeap::new(),
            sent: 0,
            starting: BinaryHeap::new(),
            next_scaling: pools.iter().map(|pool| pool.scaling.map(|scaling| scaling.interval)).collect(),
            homeless: vec![VecDeque::new(); pools.len()],
            candidates: vec![Vec::new(); pools.len()],
            pools,
            planned: Vec::new(),
            unfinished: Vec::new(),
            records: Vec::new(),
            underway: 0,
            answered: 0,
            prefix_index: PrefixIndex::default(),
            bounds: Vec::new(),
            progress: Vec::new(),
            series: WindowSeries::default(),
            tally: ReplayTally::default(),
        };
        (0..simulation.replicas.len()).for_each(|index| simulation.show_router(index));
        Ok(simulation)
    }

    /// When something happens next. Scaling alone does not keep a finished replay going.
    fn next_time(&self) -> Option<Picoseconds> {
        let events = [
            self.next_end.time(),
            self.source.time(),
            self.transfers.peek().map(|Reverse((at, ..))| *at),
            self.starting.peek().map(|Reverse((at, _))| *at),
        ];
        let next = events.into_iter().flatten().min();
        let has_work = self.underway > 0 || self.source.time().is_some();
        let scaling = self.next_scaling.iter().flatten().copied().min().filter(|_| has_work);
        if !has_work {
            return None;
        }
        next.into_iter().chain(scaling).min()
    }

    /// Everything that happens now, until nothing is left.
    fn happen(&mut self) {
        loop {
            if self.next_end.time() == Some(self.now) {
                self.end_step(self.next_end.replica());
            } else if self.starting.peek().is_some_and(|Reverse((at, _))| *at == self.now) {
                self.open_replica();
            } else if self.transfers.peek().is_some_and(|Reverse((at, ..))| *at == self.now) {
                if let Some(Reverse((_, _, request))) = self.transfers.pop() {
                    self.route(DECODE, request);
                }
            } else if self.source.time() == Some(self.now) {
                self.arrive();
            } else if let Some(pool) = self.next_scaling.iter().position(|at| *at == Some(self.now)) {
                self.scale(pool);
            } else {
                return;
            }
        }
    }

    fn start_steps(&mut self) {
        while let Some(index) = self.touched.pop() {
            if self.replicas[index].running.is_none() {
                self.start_step(index);
            }
        }
    }

    fn start_step(&mut self, index: usize) {
        let replica = &mut self.replicas[index];
        let records = &self.records;
        let first_token = |request: u64| records[request as usize].first_token;
        let pool = self.pools[replica.pool];
        replica.start(self.now, self.fleet.horizon, pool, &self.fleet.swap, first_token);
        self.next_end.set(index, replica.running.as_ref().map(|running| running.ends));
        self.prefix_index.update(index, &mut replica.scheduler);
        self.show_router(index);
        let step = self.replicas[index].scheduler.last_step();
        self.tally.preemptions += step.preempted.len() as u64;
        for admitted in &step.admitted {
            if let AdmitReason::Turn { cached_tokens } = admitted.reason {
                let record = &mut self.records[admitted.request.0 as usize];
                record.cached_tokens = record.cached_tokens.max(cached_tokens);
            }
        }
        for at in 0..self.replicas[index].scheduler.last_step().dropped.len() {
            let request = self.replicas[index].scheduler.last_step().dropped[at].request.0;
            self.end_request(request, Fate::Dropped);
        }
    }

    fn arrive(&mut self) {
        let Some(planned) = self.source.take() else { return };
        let request = self.records.len() as u64;
        self.series.at(self.now).arrived += 1;
        self.records.push(RequestRecord {
            fate: Fate::Underway,
            arrived: self.now,
            first_token: self.now,
            finished: self.now,
            prompt_tokens: planned.prompt_tokens,
            generated_tokens: 0,
            longest_tokens: planned.output_tokens,
            cached_tokens: 0,
        });
        self.unfinished.push(planned.samples);
        self.planned.push(planned);
        self.underway += 1;
        let refusal = |pool: usize, asked: &Request| {
            let replica = self.replicas.iter().find(|replica| replica.pool == pool)?;
            replica.scheduler.refusal(asked)
        };
        let Some(asked) = self.request(FRONT, request) else { return };
        let at_decode = || refusal(DECODE, &self.request(DECODE, request)?);
        match refusal(FRONT, &asked).or_else(at_decode) {
            Some(refusal) => self.end_request(request, Fate::Refused(refusal)),
            None => self.send_to_pool(FRONT, request, asked),
        }
    }

    /// A pool's part of a request; none where the first pool does everything.
    fn request(&self, pool: usize, request: u64) -> Option<Request> {
        let planned = &self.planned[request as usize];
        let is_split = self.pools.len() > 1;
        // The first tokens of all samples are drawn where the prompt was computed.
        let has_more = planned.output_tokens > 1;
        let (output_tokens, samples, start) = match pool {
            DECODE if !has_more => return None,
            DECODE => (planned.output_tokens, planned.samples, SequenceStart::Transferred),
            _ if is_split && has_more => (1, planned.samples.min(1), SequenceStart::Prompt),
            _ => (planned.output_tokens, planned.samples, SequenceStart::Prompt),
        };
        let patience = planned.patience.filter(|_| pool == FRONT);
        Some(Request {
            id: RequestId(request),
            tenant: TenantId(planned.tenant),
            priority: planned.priority,
            prompt_tokens: planned.prompt_tokens,
            output_tokens,
            samples,
            deadline: patience.map(|patience| planned.at.saturating_add(patience) / PER_NANOSECOND),
            keys: BlockKeys::default(),
            computes_all: false,
            start,
        })
    }

    /// Sends a request to a replica of a pool.
    fn route(&mut self, pool: usize, request: u64) {
        if let Some(asked) = self.request(pool, request) {
            self.send_to_pool(pool, request, asked);
        }
    }

    fn send_to_pool(&mut self, pool: usize, request: u64, mut asked: Request) {
        let planned = &self.planned[request as usize];
        let block_tokens = self.pools[pool].scheduler.block_tokens;
        if self.pools[pool].scheduler.keeps_prefixes {
            asked.keys = planned.prefix.keys(planned.prompt_tokens, asked.output_tokens, block_tokens);
        }
        let Some(route) = self.choose(pool, &asked) else {
            self.homeless[pool].push_back(request);
            return;
        };
        let index = route.replica;
        self.replicas[index].settle(self.now);
        let submitted = self.replicas[index].scheduler.submit(asked, self.now / PER_NANOSECOND);
        submitted.expect("what can never run was refused on arrival");
        self.show_router(index);
        let ends = self.replicas[index].cut_short(self.now);
        match ends {
            Some(ends) => self.next_end.set(index, Some(ends)),
            None => self.touched.push(index),
        }
    }

    /// Lets the router of a pool choose a replica.
    fn choose(&mut self, pool: usize, asked: &Request) -> Option<Route> {
        let (router, candidates) = (&mut self.routers[pool], &self.candidates[pool]);
        if !self.pools[pool].has_prefix_index() || asked.keys.is_empty() {
            return router.route(asked.prompt_tokens, candidates);
        }
        let block_tokens = self.pools[pool].scheduler.block_tokens;
        let prompt_blocks = asked.prompt_tokens / block_tokens;
        self.prefix_index.bounds(&asked.keys, prompt_blocks, self.replicas.len(), &mut self.bounds);
        let most = |at: usize| self.bounds[at] * block_tokens;
        router.route_asking(asked.prompt_tokens, candidates, most, |at, most| {
            self.replicas[at].settle(self.now);
            self.replicas[at].scheduler.cached_tokens(&asked.keys, most)
        })
    }

    /// Shows the router of a replica's pool what became of the replica.
    fn show_router(&mut self, index: usize) {
        let replica = &self.replicas[index];
        let closed = ReplicaCandidate { load: Load::default(), cached_tokens: 0, is_open: false };
        for candidates in &mut self.candidates {
            candidates.resize(self.replicas.len(), closed);
        }
        self.candidates[replica.pool][index] =
            ReplicaCandidate { load: replica.scheduler.load(), cached_tokens: 0, is_open: replica.is_open() };
    }

    fn end_step(&mut self, index: usize) {
        let replica = &mut self.replicas[index];
        let running = replica.running.take().expect("a step that ends was running");
        self.next_end.set(index, None);
        self.touched.push(index);
        replica.count_gaps(&running, &mut self.tally);
        let completion = replica.scheduler.complete(running.steps);
        self.progress.clear();
        self.progress.extend_from_slice(&completion.started);
        let started = self.progress.len();
        self.progress.extend_from_slice(&completion.finished);
        self.prefix_index.update(index, &mut replica.scheduler);
        self.show_router(index);
        self.account(index, &running, started);
        for at in 0..self.progress.len() {
            let progress = self.progress[at];
            if at < started {
                self.note_start(index, progress);
            } else {
                self.finish_sequence(index, progress);
            }
        }
        // Where nothing decoded, the finished ones are among those that started.
        let joined = started.saturating_sub(self.progress.len() - started) as u32;
        self.replicas[index].note_tokens(self.now, running.shape.decodes > 0, joined);
        self.close_if_drained(index);
    }

    /// Adds a completed step to the sums and to the series.
    fn account(&mut self, index: usize, running: &RunningStep, started: usize) {
        let replica = &self.replicas[index];
        let occupancy = replica.scheduler.occupancy();
        let blocks = f64::from(running.blocks_used.max(occupancy.used()));
        let span = StepSpan {
            output_tokens: u64::from(running.shape.decodes) * u64::from(running.steps) + started as u64,
            prompt_tokens: running.shape.prefill_tokens,
            kv: f64::from(running.blocks_used) / f64::from(occupancy.total),
            waiting: running.waiting,
        };
        let elapsed = running.ends - running.began;
        self.tally.steps += u64::from(running.steps);
        self.tally.events += 1;
        self.tally.busy += u128::from(elapsed);
        self.tally.kv_integral += span.kv * elapsed as f64;
        self.tally.kv_highest = self.tally.kv_highest.max(blocks / f64::from(occupancy.total));
        self.series.spread(running.began, running.ends, &span);
    }

    fn note_start(&mut self, index: usize, progress: SequenceProgress) {
        if progress.generated > 1 {
            self.replicas[index].count_pause(progress.sequence.0, self.now, &mut self.tally);
            return;
        }
        let record = &mut self.records[progress.request.0 as usize];
        if record.first_token == record.arrived {
            record.first_token = self.now;
            let window = self.series.at(self.now);
            window.first_tokens += 1;
            let ttft = (self.now - record.arrived).saturating_add(self.fleet.way);
            window.ttft_seconds += super::engine::seconds(ttft);
        }
    }

    fn finish_sequence(&mut self, index: usize, progress: SequenceProgress) {
        let request = progress.request.0;
        let at = request as usize;
        let pool = self.replicas[index].pool;
        if self.pools.len() > 1 && pool == FRONT && self.request(DECODE, request).is_some() {
            self.send(index, request);
            return;
        }
        self.records[at].generated_tokens += progress.generated;
        self.unfinished[at] -= 1;
        if self.unfinished[at] == 0 {
            self.end_request(request, Fate::Finished);
        }
    }

    /// Sends the KV of a computed prompt to the decode pool, after what the replica is still sending.
    fn send(&mut self, index: usize, request: u64) {
        let Arrangement::Disaggregated(split) = &self.fleet.arrangement else { return };
        // Of the first tokens, the step has counted one.
        let more = self.planned[request as usize].samples.saturating_sub(1);
        self.series.at(self.now).output_tokens += f64::from(more);
        let tokens = u64::from(self.planned[request as usize].prompt_tokens);
        let replica = &mut self.replicas[index];
        let arrives = replica.link_free.max(self.now).saturating_add(split.transfer.time(tokens));
        replica.link_free = arrives;
        self.transfers.push(Reverse((arrives, self.sent, request)));
        self.sent += 1;
    }

    fn end_request(&mut self, request: u64, fate: Fate) {
        let record = &mut self.records[request as usize];
        record.fate = fate;
        record.finished = self.now;
        if fate == Fate::Finished {
            record.first_token = record.first_token.saturating_add(self.fleet.way);
            record.finished = record.finished.saturating_add(self.fleet.way);
        }
        // Who asked learns of it then, and only then asks again.
        let answered = record.finished;
        self.answered = self.answered.max(answered);
        self.underway -= 1;
        let window = self.series.at(self.now);
        window.finished += u32::from(fate == Fate::Finished);
        window.good += u32::from(record.is_good(&self.fleet.objectives));
        self.source.answered(&self.planned[request as usize], answered);
    }

    fn open_replica(&mut self) {
        let Some(Reverse((_, index))) = self.starting.pop() else { return };
        if matches!(self.replicas[index].state, ReplicaState::Starting { .. }) {
            self.replicas[index].state = ReplicaState::Open;
            self.show_router(index);
        }
        let pool = self.replicas[index].pool;
        for request in std::mem::take(&mut self.homeless[pool]) {
            self.route(pool, request);
        }
    }

    fn scale(&mut self, pool: usize) {
        let Some(scaling) = self.pools[pool].scaling else { return };
        self.next_scaling[pool] = Some(self.now.saturating_add(scaling.interval.max(1)));
        let desired = desired_replicas(&scaling, pool, &self.replicas) as usize;
        let counted = |replica: &SimulatedReplica| {
            replica.pool == pool
                && matches!(replica.state, ReplicaState::Open | ReplicaState::Starting { .. })
        };
        let present = self.replicas.iter().filter(|replica| counted(replica)).count();
        for _ in present..desired {
            let scheduler = self.pools[pool].new_scheduler();
            let scheduler = scheduler.expect("the same settings made the first replicas");
            let ready = self.now.saturating_add(scaling.cold_start);
            self.starting.push(Reverse((ready, self.replicas.len())));
            self.replicas.push(SimulatedReplica::new(
                pool,
                scheduler,
                ReplicaState::Starting { ready },
                self.now,
            ));
            self.show_router(self.replicas.len() - 1);
        }
        if desired < present {
            self.drain_one(pool);
        }
    }

    /// Closes the open replica with the fewest sequences, the newest among equals. One at a time.
    fn drain_one(&mut self, pool: usize) {
        let open = self.replicas.iter().enumerate();
        let open = open.filter(|(_, replica)| replica.pool == pool && replica.is_open());
        let loads = open.map(|(index, replica)| (index, replica.scheduler.load().sequences));
        let Some(index) = replica_to_close(loads) else { return };
        self.replicas[index].state = ReplicaState::Draining;
        self.show_router(index);
        self.close_if_drained(index);
    }

    fn close_if_drained(&mut self, index: usize) {
        let replica = &mut self.replicas[index];
        let is_drained = replica.state == ReplicaState::Draining && replica.scheduler.is_empty();
        if is_drained && replica.link_free <= self.now {
            replica.state = ReplicaState::Gone;
            self.pay(index);
        }
    }

    /// Counts the lifetime of a replica.
    fn pay(&mut self, index: usize) {
        let replica = &self.replicas[index];
        let time = self.now.saturating_sub(replica.since);
        self.tally.replica_time += u128::from(time);
        let hours = super::engine::seconds(time) / 3600.0;
        self.tally.dollars += hours * self.pools[replica.pool].dollars_per_hour;
    }

    fn into_outcome(mut self) -> Outcome {
        let staying =
            (0..self.replicas.len()).filter(|index| self.replicas[*index].state != ReplicaState::Gone);
        for index in staying.collect::<Vec<_>>() {
            self.pay(index);
        }
        Outcome::new(
            self.records,
            self.series,
            &self.tally,
            &self.fleet.objectives,
            self.now.max(self.answered),
        )
    }
}
