//! Prefill and decode in separate pools, under a constant number of users.
//!
//! A request waits for a prompt worker, is prefilled, hands its cache over, and joins the decode worker with
//! the fewest tokens. Its first token counts when it has joined. Events are kept in order of virtual
//! nanoseconds; between events a decode worker's steps are a sum along a line, as in [`super::closed_loop`].

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::closed_loop::{LoopTally, spread};
use super::{ClosedLoop, KvLink, Latency, Replica, StepShape};

/// Two pools of equal workers each.
#[derive(Debug, Clone, Copy)]
pub struct Pools<'a> {
    pub prefill: &'a Replica,
    pub prefill_workers: u32,
    pub decode: &'a Replica,
    pub decode_workers: u32,
    pub link: KvLink,
    /// Seconds of routing, handshake and registration for each request.
    pub hand_off: f64,
}

impl Pools<'_> {
    pub fn gpus(&self) -> u32 {
        let prefill = self.prefill.deployment().parallel.gpus().saturating_mul(self.prefill_workers);
        let decode = self.decode.deployment().parallel.gpus().saturating_mul(self.decode_workers);
        prefill.saturating_add(decode)
    }
}

/// Simulates the load on the pools. `None` if a request fits into no decode worker, or a pool is empty.
pub fn disaggregated(pools: &Pools<'_>, load: &ClosedLoop) -> Option<Latency> {
    let longest = u64::from(load.input.longest) + u64::from(load.output.longest);
    let memory = pools.decode.memory();
    let is_empty = pools.prefill_workers == 0 || pools.decode_workers == 0 || load.concurrency == 0;
    let fits = memory.room.tokens().saturating_sub(load.prefixes.kept) >= memory.tokens_of(longest)
        && pools.prefill.memory().room.tokens() > u64::from(load.input.longest);
    if is_empty || !fits {
        return None;
    }
    let mut play = Play::new(pools, load);
    play.run();
    Some(play.tally.means())
}

#[derive(Debug, Clone, Copy)]
struct Request {
    input: u32,
    output: u32,
    sent: f64,
    first_token: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Sent {
        request: u32,
    },
    Prefilled {
        worker: u32,
    },
    Arrived {
        request: u32,
    },
    /// A decode worker's next completion, unless a request has joined it since.
    Ends {
        worker: u32,
        version: u32,
    },
}

#[derive(Debug, Default)]
struct Worker {
    now: f64,
    steps: u64,
    context: f64,
    reserved: u64,
    version: u32,
    running: BinaryHeap<Reverse<(u64, u32)>>,
}

struct Play<'a> {
    pools: &'a Pools<'a>,
    load: &'a ClosedLoop,
    now: f64,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    requests: Vec<Request>,
    prompts: VecDeque<u32>,
    /// The prompts that each prompt worker is processing.
    busy: Vec<Vec<u32>>,
    workers: Vec<Worker>,
    /// Requests with a cache but no room to decode.
    homeless: VecDeque<u32>,
    tally: LoopTally,
    answered: u32,
}

impl<'a> Play<'a> {
    fn new(pools: &'a Pools<'a>, load: &'a ClosedLoop) -> Self {
        let mut play = Self {
            pools,
            load,
            now: 0.0,
            events: BinaryHeap::new(),
            requests: Vec::with_capacity(load.requests as usize),
            prompts: VecDeque::new(),
            busy: vec![Vec::new(); pools.prefill_workers as usize],
            workers: (0..pools.decode_workers).map(|_| Worker::default()).collect(),
            homeless: VecDeque::new(),
            tally: LoopTally::default(),
            answered: 0,
        };
        for _ in 0..load.concurrency {
            play.send(0.0);
        }
        play
    }

    fn run(&mut self) {
        while self.answered < self.load.requests {
            let Some(Reverse((nanoseconds, event))) = self.events.pop() else { break };
            self.now = self.now.max(nanoseconds as f64 / 1e9);
            match event {
                Event::Sent { request } => self.prompts.push_back(request),
                Event::Prefilled { worker } => self.hand_over(worker),
                Event::Arrived { request } => self.homeless.push_back(request),
                Event::Ends { worker, version } => self.finish(worker, version),
            }
            self.start_prompts();
            self.join();
        }
    }

    fn schedule(&mut self, at: f64, event: Event) {
        self.events.push(Reverse(((at.max(0.0) * 1e9) as u64, event)));
    }

    /// A user sends its next request at that time, unless all have been sent.
    fn send(&mut self, at: f64) {
        let id = self.requests.len() as u32;
        if id >= self.load.requests {
            return;
        }
        let input = self.load.input.at(spread(id, 0));
        let output = self.load.output.at(spread(id, 1));
        self.requests.push(Request { input, output, sent: at, first_token: 0.0 });
        let on_its_way = self.pools.prefill.arrival().sent(input) + self.pools.hand_off;
        self.schedule(at + on_its_way, Event::Sent { request: id });
    }

    /// Idle prompt workers take whole prompts up to a step's tokens, at least one.
    fn start_prompts(&mut self) {
        for worker in 0..self.busy.len() {
            if self.prompts.is_empty() {
                return;
            }
            if !self.busy[worker].is_empty() {
                continue;
            }
            let deployment = self.pools.prefill.deployment();
            let budget = u64::from(deployment.settings.chunk) * u64::from(deployment.parallel.attention_data);
            let mut shape = StepShape::default();
            while let Some(id) = self.prompts.front() {
                let input = self.requests[*id as usize].input;
                let cached = self.load.prefixes.cached(input);
                let tokens = u64::from(input - cached);
                if shape.prefill_tokens > 0 && shape.prefill_tokens + tokens > budget {
                    break;
                }
                shape.add_prefill(cached.into(), tokens);
                self.busy[worker].push(*id);
                self.prompts.pop_front();
            }
            let end = self.now + self.pools.prefill.timer().seconds(&shape);
            self.schedule(end, Event::Prefilled { worker: worker as u32 });
        }
    }

    fn hand_over(&mut self, worker: u32) {
        for request in std::mem::take(&mut self.busy[worker as usize]) {
            let tokens = u64::from(self.requests[request as usize].input);
            let transfer =
                self.pools.prefill.kv_transfer_to(self.pools.decode, tokens, self.pools.link).get();
            self.schedule(self.now + transfer, Event::Arrived { request });
        }
    }

    /// Places waiting requests on the decode worker with the fewest reserved tokens, while one has room.
    fn join(&mut self) {
        let memory = self.pools.decode.memory();
        while let Some(id) = self.homeless.front().copied() {
            let request = self.requests[id as usize];
            let need = self.need(&request);
            let worker = (0..self.workers.len()).min_by_key(|worker| self.workers[*worker].reserved);
            let Some(worker) = worker else { return };
            if self.workers[worker].reserved + need
                > memory.room.tokens().saturating_sub(self.load.prefixes.kept)
            {
                return;
            }
            self.homeless.pop_front();
            self.catch_up(worker);
            let tokens_per_step = self.pools.decode.deployment().tokens_per_step();
            let steps = (f64::from(request.output - 1) / tokens_per_step).ceil() as u64;
            let state = &mut self.workers[worker];
            self.requests[id as usize].first_token = state.now;
            state.context += f64::from(request.input);
            state.reserved += need;
            state.running.push(Reverse((state.steps + steps, id)));
            self.schedule_end(worker);
        }
    }

    /// Tokens of cache that a request takes of a decode worker beyond what is kept for all.
    fn need(&self, request: &Request) -> u64 {
        let own = request.input - self.load.prefixes.cached(request.input);
        self.pools.decode.memory().tokens_of(u64::from(own) + u64::from(request.output))
    }

    /// Whole steps until now: a request joins at the start of the next step.
    fn catch_up(&mut self, worker: usize) {
        let each = self.pools.decode.deployment().tokens_per_step();
        let state = &mut self.workers[worker];
        if state.running.is_empty() || state.now >= self.now {
            state.now = state.now.max(self.now);
            return;
        }
        let decodes = state.running.len() as u32;
        let left = state.running.peek().map_or(0, |Reverse((step, _))| step - state.steps);
        let growth = f64::from(decodes) * each;
        let timer = self.pools.decode.timer();
        let first = timer.decode_seconds(decodes, state.context as u64, growth as u64, 1).max(1e-9);
        let steps = (((self.now - state.now) / first).ceil() as u64).clamp(1, left.max(1));
        state.now += timer.decode_seconds(decodes, state.context as u64, growth as u64, steps);
        state.steps += steps;
        state.context += growth * steps as f64;
    }

    fn schedule_end(&mut self, worker: usize) {
        let each = self.pools.decode.deployment().tokens_per_step();
        let state = &mut self.workers[worker];
        state.version += 1;
        let Some(Reverse((step, _))) = state.running.peek() else { return };
        let decodes = state.running.len() as u32;
        let growth = (f64::from(decodes) * each) as u64;
        let steps = step - state.steps;
        let seconds = self.pools.decode.timer().decode_seconds(decodes, state.context as u64, growth, steps);
        let (at, version) = (state.now + seconds, state.version);
        self.schedule(at, Event::Ends { worker: worker as u32, version });
    }

    fn finish(&mut self, worker: u32, version: u32) {
        let worker = worker as usize;
        if self.workers[worker].version != version {
            return;
        }
        let each = self.pools.decode.deployment().tokens_per_step();
        let state = &mut self.workers[worker];
        let Some(Reverse((step, _))) = state.running.peek().copied() else { return };
        state.context += state.running.len() as f64 * each * (step - state.steps) as f64;
        state.steps = step;
        state.now = state.now.max(self.now);
        while let Some(Reverse((end, id))) = self.workers[worker].running.peek().copied() {
            if end > step {
                break;
            }
            self.workers[worker].running.pop();
            self.answer(worker, id);
        }
        self.schedule_end(worker);
    }

    fn answer(&mut self, worker: usize, id: u32) {
        let request = self.requests[id as usize];
        let each = self.pools.decode.deployment().tokens_per_step();
        let steps = (f64::from(request.output - 1) / each).ceil();
        let need = self.need(&request);
        let state = &mut self.workers[worker];
        state.context = (state.context - f64::from(request.input) - steps * each).max(0.0);
        state.reserved -= need;
        let way = self.pools.decode.arrival().first_token;
        let end = state.now;
        let delivered = self.tally.deliver(request.sent, request.first_token, end, request.output, way);
        self.answered += 1;
        self.send(delivered);
    }
}
