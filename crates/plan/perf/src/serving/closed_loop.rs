//! One replica under a constant number of users, each of whom sends a new request once the last answer has been delivered.
//!
//! A first-in-first-out engine in virtual time. A step that holds prompts is one event; a stretch of
//! decode-only steps up to the next completion or new request is one event too, because the time of
//! such steps is a sum along a line. Completions are in a heap by the decode step in which they
//! occur, so an event costs O(log n) in the running sequences.
//!
//! What a first token waits for outside the engine's steps is over when later ones come, so it delays the end of short answers only.
//! A user asks again when the whole answer has been delivered and always waits for exactly one, which is Little's law.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use bedplate_random::{STEP, fraction, mix};

use super::{KvReserve, PrefillDelay, PrefillStyle, Replica, StepShape};

/// The load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClosedLoop {
    pub concurrency: u32,
    /// Total requests; the first `concurrency` arrive at once.
    pub requests: u32,
    pub input: LengthSpread,
    pub output: LengthSpread,
    pub prefixes: Prefixes,
}

/// What prompts have in common and an engine has cached.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Prefixes {
    /// Share of each prompt that is cached when it arrives.
    pub cached_share: f64,
    /// Tokens of KV that are kept for all sequences together.
    pub kept: u64,
}

impl Prefixes {
    /// Tokens of a prompt that are cached; its last one is always computed.
    pub fn cached(&self, input: u32) -> u32 {
        ((f64::from(input) * self.cached_share) as u32).min(input.saturating_sub(1))
    }
}

/// Lengths spread evenly between a share of the longest and the longest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LengthSpread {
    pub longest: u32,
    /// 1 for equal lengths.
    pub shortest_share: f64,
}

impl LengthSpread {
    pub fn fixed(tokens: u32) -> Self {
        Self { longest: tokens, shortest_share: 1.0 }
    }

    pub fn mean(&self) -> f64 {
        f64::from(self.longest) * (1.0 + self.shortest_share) / 2.0
    }

    /// The length at a point between 0 and 1; at least one token.
    pub(super) fn at(&self, point: f64) -> u32 {
        let share = self.shortest_share + (1.0 - self.shortest_share) * point;
        ((f64::from(self.longest) * share).round() as u32).max(1)
    }
}

/// Means over all requests, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Latency {
    /// From sending a request to its first token.
    pub first_token: f64,
    /// Between tokens after the first: `(end - first token) / (tokens - 1)`.
    pub inter_token: f64,
    pub end_to_end: f64,
    /// Output tokens of all requests over the time from the first request to the delivery of the last answer.
    pub output_tokens_per_second: f64,
}

/// Simulates the load on a replica. `None` if not even one request fits into the cache.
pub fn closed_loop(replica: &Replica, load: &ClosedLoop) -> Option<Latency> {
    let mut engine = Simulated::new(replica, load)?;
    while engine.finished < load.requests {
        engine.advance();
    }
    let latency = engine.tally.means();
    Some(match replica.deployment().settings.stream_limit {
        Some(limit) => latency.streamed(load, limit),
        None => latency,
    })
}

impl Latency {
    /// The same behind a server that streams at most `limit` tokens per second.
    fn streamed(mut self, load: &ClosedLoop, limit: f64) -> Self {
        let least = f64::from(load.concurrency) * load.output.mean() / limit;
        let wait = (least - self.end_to_end).max(0.0);
        self.first_token += wait;
        self.end_to_end += wait;
        self.output_tokens_per_second = self.output_tokens_per_second.min(limit);
        self
    }
}

#[derive(Debug, Clone, Copy)]
struct Request {
    input: u32,
    output: u32,
    sent: f64,
    /// When its prompt has been made tokens.
    ready: f64,
    first_token: f64,
    /// The first step in which the engine sees it, once it has arrived.
    visible: u64,
}

/// The first request of the queue while its prompt is being processed.
#[derive(Debug, Clone, Copy)]
struct Partial {
    request: u32,
    done: u32,
}

#[derive(Debug, Default)]
pub(super) struct LoopTally {
    requests: f64,
    first_token: f64,
    inter_token: f64,
    end_to_end: f64,
    tokens: f64,
    /// When the last answer was delivered.
    last: f64,
}

impl LoopTally {
    /// Counts a request whose tokens the engine made by these times, and returns when its user has all of them; `way` is what
    /// the first one takes outside the engine's steps.
    pub(super) fn deliver(&mut self, sent: f64, first: f64, end: f64, tokens: u32, way: f64) -> f64 {
        let first = first + way;
        let end = end.max(first);
        self.requests += 1.0;
        self.first_token += first - sent;
        self.end_to_end += end - sent;
        self.inter_token += if tokens > 1 { (end - first) / f64::from(tokens - 1) } else { 0.0 };
        self.tokens += f64::from(tokens);
        self.last = self.last.max(end);
        end
    }

    pub(super) fn means(&self) -> Latency {
        let count = self.requests.max(1.0);
        Latency {
            first_token: self.first_token / count,
            inter_token: self.inter_token / count,
            end_to_end: self.end_to_end / count,
            output_tokens_per_second: self.tokens / self.last.max(1e-12),
        }
    }
}

struct Simulated<'a> {
    replica: &'a Replica,
    load: &'a ClosedLoop,
    requests: Vec<Request>,
    /// Requests that users will have sent, as tokens, when their last answers have been delivered, the earliest first.
    coming: VecDeque<u32>,
    /// Requests that have arrived and wait for the engine to poll its queue.
    arrived: VecDeque<u32>,
    /// Decode steps since it did.
    unpolled: u64,
    waiting: VecDeque<u32>,
    partial: Option<Partial>,
    /// Completions by decode step.
    running: BinaryHeap<Reverse<(u64, u32)>>,
    now: f64,
    steps: u64,
    decode_steps: u64,
    context: f64,
    reserved: u64,
    capacity: u64,
    finished: u32,
    tally: LoopTally,
    /// Requests whose prompt ends in the current step.
    ending: Vec<u32>,
}

impl<'a> Simulated<'a> {
    fn new(replica: &'a Replica, load: &'a ClosedLoop) -> Option<Self> {
        let longest = load.input.longest.saturating_add(load.output.longest);
        let memory = replica.memory();
        let capacity = memory.room.tokens().saturating_sub(load.prefixes.kept);
        if capacity < memory.tokens_of(u64::from(longest)) || load.concurrency == 0 {
            return None;
        }
        let mut engine = Self {
            replica,
            load,
            requests: Vec::with_capacity(load.requests as usize),
            coming: VecDeque::new(),
            arrived: VecDeque::new(),
            unpolled: 0,
            waiting: VecDeque::new(),
            partial: None,
            running: BinaryHeap::new(),
            now: 0.0,
            steps: 0,
            decode_steps: 0,
            context: 0.0,
            reserved: 0,
            capacity,
            finished: 0,
            tally: LoopTally::default(),
            ending: Vec::new(),
        };
        for _ in 0..load.concurrency {
            engine.send(0.0);
        }
        // The engine is idle, so it sees them as soon as they are there, all at once.
        while let Some(id) = engine.coming.pop_front() {
            engine.now = engine.request(id).ready;
            engine.waiting.push_back(id);
        }
        Some(engine)
    }

    /// A user sends its next request at a time from now on, unless all have been sent.
    fn send(&mut self, at: f64) {
        let id = self.requests.len() as u32;
        if id >= self.load.requests {
            return;
        }
        let input = self.load.input.at(spread(id, 0));
        let ready = at + self.replica.arrival().sent(input);
        self.requests.push(Request {
            input,
            output: self.load.output.at(spread(id, 1)),
            sent: at,
            ready,
            first_token: 0.0,
            visible: 0,
        });
        let place = self.coming.partition_point(|other| self.requests[*other as usize].ready <= ready);
        self.coming.insert(place, id);
    }

    /// Requests that were sent by now arrive; the engine sees them some steps after it has polled its queue.
    fn receive(&mut self) {
        while let Some(id) = self.coming.front().copied().filter(|id| self.request(*id).ready <= self.now) {
            self.coming.pop_front();
            self.arrived.push_back(id);
        }
        if self.unpolled >= self.interval() || self.interval() == 1 {
            self.poll();
        }
    }

    /// The engine takes what has arrived.
    fn poll(&mut self) {
        let after = self.replica.arrival().visible_after;
        self.unpolled = 0;
        while let Some(id) = self.arrived.pop_front() {
            self.requests[id as usize].visible = self.steps + (after + spread(id, 2)).floor() as u64;
            self.waiting.push_back(id);
        }
    }

    /// Decode steps from one poll of the queue to the next.
    fn interval(&self) -> u64 {
        u64::from(self.replica.deployment().settings.receive_interval.max(1))
    }

    fn advance(&mut self) {
        self.receive();
        let mut shape = self.compose();
        if shape.prefill_tokens > 0 {
            self.prompt_step(&mut shape);
        } else if self.running.is_empty() {
            self.idle();
        } else {
            self.decode_stretch();
        }
    }

    /// With nothing to do the engine sees the next request as soon as it is there.
    fn idle(&mut self) {
        match (self.waiting.front(), self.coming.front()) {
            (Some(id), _) => self.steps = self.steps.max(self.request(*id).visible),
            (None, _) if !self.arrived.is_empty() => self.poll(),
            (None, Some(id)) => {
                self.now = self.now.max(self.request(*id).ready);
                self.receive();
                self.poll();
            }
            (None, None) => {}
        }
    }

    fn request(&self, id: u32) -> &Request {
        &self.requests[id as usize]
    }

    /// The prompt tokens of the next step, admitting requests in their order.
    fn compose(&mut self) -> StepShape {
        let settings = &self.replica.deployment().settings;
        let ranks = self.replica.deployment().parallel.attention_data;
        let mut budget = u64::from(settings.chunk) * u64::from(ranks);
        // Decodes that share the step count too.
        if settings.prefill != PrefillStyle::Separate {
            budget = budget.saturating_sub(self.running.len() as u64).max(1);
        }
        let whole = settings.prefill == PrefillStyle::Whole;
        // A step that goes on with a prompt takes others along.
        let waits = self.partial.is_none() && self.prompts_wait_until().is_some();
        let mut shape = StepShape::default();
        while budget > 0 {
            let next = self.partial.or_else(|| if waits { None } else { self.admit() });
            let Some(Partial { request, done }) = next else { break };
            let left = u64::from(self.request(request).input - done);
            let fits = left <= budget;
            if whole && !fits && shape.prefill_tokens > 0 {
                self.partial = Some(Partial { request, done });
                break;
            }
            let take = if whole { left } else { left.min(budget) };
            shape.add_prefill(u64::from(done), take);
            budget = budget.saturating_sub(take);
            if take == left {
                self.partial = None;
                self.ending.push(request);
            } else {
                self.partial = Some(Partial { request, done: done + take as u32 });
            }
        }
        shape
    }

    /// The step in which prompts that wait for others stop doing so; `None` if they do not wait now.
    fn prompts_wait_until(&self) -> Option<u64> {
        let PrefillDelay { longest, prompts, tokens, ranks } = self.replica.arrival().prefill_delay?;
        let first = *self.waiting.front()?;
        let ends = self.request(first).visible + u64::from(longest);
        // What comes at first, all at once, is spread evenly.
        let is_first_burst = first < self.load.concurrency;
        if is_first_burst || self.running.len() < ranks as usize || ends <= self.steps {
            return None;
        }
        let seen =
            self.waiting.iter().map(|id| self.request(*id)).filter(|request| request.visible <= self.steps);
        let (mut count, mut sum) = (0, 0);
        for request in seen {
            (count, sum) = (count + 1, sum + u64::from(request.input));
            if count >= prompts || sum >= tokens {
                return None;
            }
        }
        Some(ends)
    }

    /// Steps until the engine sees another waiting request, or stops waiting for more of them.
    fn seen_in(&self) -> Option<u64> {
        let ends = self.prompts_wait_until();
        let unseen = match ends {
            Some(_) => {
                self.waiting.iter().map(|id| self.request(*id).visible).find(|seen| *seen > self.steps)
            }
            None => self.waiting.front().map(|id| self.request(*id).visible),
        };
        let steps = unseen.into_iter().chain(ends).min()?.saturating_sub(self.steps);
        (steps > 0).then_some(steps)
    }

    /// The first waiting request, if the engine sees it and the cache has room.
    fn admit(&mut self) -> Option<Partial> {
        let id = *self.waiting.front()?;
        let settings = &self.replica.deployment().settings;
        let ranks = self.replica.deployment().parallel.attention_data;
        let request = self.request(id);
        let limit = settings.max_sequences as usize * ranks as usize;
        let need = self.need(request);
        let has_room = self.reserved + need <= self.capacity || self.reserved == 0;
        let is_full = self.running.len() + self.ending.len() >= limit;
        if request.visible > self.steps || !has_room || is_full {
            return None;
        }
        self.reserved += need;
        self.waiting.pop_front();
        Some(Partial { request: id, done: self.load.prefixes.cached(self.request(id).input) })
    }

    fn need(&self, request: &Request) -> u64 {
        let answer = match self.replica.deployment().settings.reserve {
            KvReserve::HalfAnswer => request.output / 2,
            KvReserve::WholeAnswer => request.output,
        };
        let own = request.input - self.load.prefixes.cached(request.input);
        self.replica.memory().tokens_of(u64::from(own) + u64::from(answer))
    }

    /// A step with prompts: decodes share it or pause.
    fn prompt_step(&mut self, shape: &mut StepShape) {
        let rides = self.replica.deployment().settings.prefill != PrefillStyle::Separate;
        if rides {
            shape.decodes = self.running.len() as u32;
            shape.decode_context = self.context as u64;
        }
        self.now += self.replica.timer().seconds(shape);
        self.steps += 1;
        self.unpolled = self.interval();
        if rides {
            self.grow(1);
        }
        self.start_answers();
        self.finish_answers();
    }

    fn start_answers(&mut self) {
        let tokens_per_step = self.replica.deployment().tokens_per_step();
        while let Some(id) = self.ending.pop() {
            self.requests[id as usize].first_token = self.now;
            let request = self.request(id);
            let steps = (f64::from(request.output - 1) / tokens_per_step).ceil() as u64;
            self.context += f64::from(request.input);
            self.running.push(Reverse((self.decode_steps + steps, id)));
        }
    }

    fn decode_stretch(&mut self) {
        let next_end = self.running.peek().map_or(0, |Reverse((step, _))| step - self.decode_steps);
        let mut steps = self.seen_in().map_or(next_end, |seen_in| next_end.min(seen_in)).max(1);
        let decodes = self.running.len() as u32;
        let (timer, context) = (self.replica.timer(), self.context as u64);
        let growth = (f64::from(decodes) * self.replica.deployment().tokens_per_step()).round() as u64;
        if !self.arrived.is_empty() {
            steps = steps.min(self.interval().saturating_sub(self.unpolled).max(1));
        }
        if let Some(id) = self.coming.front() {
            let until = self.request(*id).ready - self.now;
            let each = timer.decode_seconds(decodes, context, growth, 1).max(1e-12);
            steps = steps.min((until / each).ceil().max(1.0) as u64);
        }
        self.now += timer.decode_seconds(decodes, context, growth, steps);
        self.steps += steps;
        self.unpolled += steps;
        if self.arrived.is_empty() {
            // Polls that found nothing.
            self.unpolled %= self.interval();
        }
        self.grow(steps);
        self.finish_answers();
    }

    fn grow(&mut self, steps: u64) {
        let each = self.replica.deployment().tokens_per_step();
        self.decode_steps += steps;
        self.context += self.running.len() as f64 * each * steps as f64;
    }

    fn finish_answers(&mut self) {
        while let Some(Reverse((step, id))) = self.running.peek().copied() {
            if step > self.decode_steps {
                break;
            }
            self.running.pop();
            let request = *self.request(id);
            let each = self.replica.deployment().tokens_per_step();
            let steps = (f64::from(request.output - 1) / each).ceil();
            self.context = (self.context - f64::from(request.input) - steps * each).max(0.0);
            self.reserved -= self.need(&request);
            let way = self.replica.arrival().first_token;
            let delivered =
                self.tally.deliver(request.sent, request.first_token, self.now, request.output, way);
            self.finished += 1;
            self.send(delivered);
        }
    }
}

/// A number in [0, 1) that depends on a request and a purpose only.
pub(super) fn spread(request: u32, purpose: u64) -> f64 {
    fraction(mix((u64::from(request) + 1).wrapping_mul(STEP) ^ (purpose << 56)))
}
