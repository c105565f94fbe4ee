//! The bound on every wait: whatever comes, in whatever order, a gang starts within `(1 + slack) × (R + W)` of its turn.
//!
//! A search for the worst sequence: arrivals are drawn, and then changed again and again where that brings a gang closer to its bound.
//! `BEDPLATE_SEQUENCES=1000000 cargo test --release -p bedplate-gangs --test bound` searches for longer than the usual run does.

mod fixture;

use std::collections::{BTreeMap, BTreeSet};

use bedplate_gangs::{
    Decision, Event, GangOutcome, GangRequest, JobId, RoleRequest, Scheduler, Settings, Span, Time, UserId,
};
use bedplate_random::Random;

const NODES: u32 = 4;
const GPUS: u16 = 4;
const MOST: usize = 24;
/// Sequences that are tried in every run of the tests.
const USUAL: usize = 600;

/// One arrival: after so many minutes, so many nodes and GPUs of each, a limit and a run time in minutes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Arrival {
    after: u64,
    nodes: u32,
    gpus: u16,
    limit: u64,
    runs: u64,
    user: u32,
}

fn arrival(random: &mut Random) -> Arrival {
    const LIMITS: [u64; 8] = [1, 5, 15, 60, 240, 720, 1440, 4320];
    const AFTER: [u64; 6] = [0, 0, 1, 7, 60, 400];
    let limit = LIMITS[random.below(LIMITS.len())];
    let runs = if random.chance(50) { limit } else { 1 + random.below(limit as usize) as u64 };
    let (nodes, gpus) = match random.below(4) {
        0 => (NODES, GPUS),
        1 => (1 + random.below(NODES as usize) as u32, GPUS),
        _ => (1, 1 + random.below(GPUS.into()) as u16),
    };
    let user = random.below(3) as u32;
    Arrival { after: AFTER[random.below(AFTER.len())], nodes, gpus, limit, runs, user }
}

/// What was known when the turn of a gang came.
struct Due {
    turn: Time,
    /// Until all that ran then is over, and the guarded gang must have started.
    rest: Span,
    ahead: Span,
}

/// The cluster under test, with clocks of its own.
struct Model {
    scheduler: Scheduler,
    now: Time,
    ends: BTreeSet<(Time, JobId)>,
    runs: BTreeMap<JobId, Span>,
    /// Waiting gangs whose turn has not come.
    turns: BTreeSet<(Time, JobId)>,
    due: BTreeMap<JobId, Due>,
    /// The largest part of its bound that any gang waited.
    worst: f64,
}

impl Model {
    fn new(settings: Settings) -> Self {
        let scheduler = Scheduler::new(fixture::cluster(NODES, u32::from(GPUS), 2, 1.0), settings);
        let (ends, runs, turns, due) = Default::default();
        Self { scheduler, now: Time::ZERO, ends, runs, turns, due, worst: 0.0 }
    }

    fn tell(&mut self, events: Vec<Event>) {
        for decision in self.scheduler.apply_all(events, self.now) {
            if let Decision::Start { job, .. } = decision {
                self.ends.insert((self.now + self.runs[&job], job));
                self.turns.retain(|(_, each)| *each != job);
                if let Some(due) = self.due.remove(&job) {
                    self.judge(job, &due);
                }
            }
        }
        self.note_turns();
    }

    fn judge(&mut self, job: JobId, due: &Due) {
        let slack = self.scheduler.settings().backfill.slack;
        let bound = (due.rest + due.ahead).times(1.0 + slack);
        let waited = self.now.since(due.turn);
        // Reservations count in whole minutes, and each gang ahead may round once.
        let rounding = Span::minutes(1 + MOST as u64);
        assert!(waited <= bound + rounding, "{job} waited {waited:?} after its turn, at most {bound:?}");
        self.worst = self.worst.max(waited.as_seconds() / (bound + rounding).as_seconds());
    }

    /// At the turn of a gang, what it may still have to wait for.
    fn note_turns(&mut self) {
        while let Some((turn, job)) = self.turns.first().copied().filter(|(turn, _)| *turn <= self.now) {
            self.turns.remove(&(turn, job));
            let rules = &self.scheduler.settings().backfill;
            let running = self.scheduler.running().filter_map(|(job, _)| self.scheduler.ends_at(job));
            let promised = self.scheduler.guarded().map(|guard| guard.latest);
            let rest = running.chain(promised).max().map_or(Span::ZERO, |end| end.since(self.now));
            let is_before = |other: &JobId| {
                *other != job
                    && self.scheduler.turn(*other).is_some_and(|each| (each, other.0) < (turn, job.0))
            };
            let ahead =
                self.scheduler.queue().filter(is_before).filter_map(|other| self.scheduler.request(other));
            let ahead = ahead.map(|request| rules.beside(request.time_limit).0).sum();
            self.due.insert(job, Due { turn: self.now, rest, ahead: Span(ahead) });
        }
    }

    fn next(&self) -> Option<Time> {
        let turn = self.turns.first().map(|(turn, _)| *turn);
        let end = self.ends.first().map(|(end, _)| *end);
        [turn, end, self.scheduler.wakeup()].into_iter().flatten().min()
    }

    /// Everything up to a time.
    fn go_on(&mut self, until: Time) {
        while let Some(next) = self.next().filter(|next| *next <= until) {
            self.now = next.max(self.now);
            let mut events = Vec::new();
            while let Some((end, job)) = self.ends.first().copied().filter(|(end, _)| *end <= self.now) {
                self.ends.remove(&(end, job));
                events.push(Event::Ended { job, outcome: GangOutcome::Succeeded });
            }
            events.push(Event::Tick);
            self.tell(events);
        }
        self.now = until.max(self.now);
    }

    fn submit(&mut self, number: usize, arrival: &Arrival) {
        let job = JobId(number as u64 + 1);
        let request = GangRequest {
            time_limit: Span::minutes(arrival.limit),
            user: UserId(arrival.user),
            ..GangRequest::new(job, RoleRequest::new(arrival.nodes, arrival.gpus))
        };
        self.runs.insert(job, Span::minutes(arrival.runs));
        let turn = self.now + self.scheduler.settings().backfill.until_turn(request.time_limit);
        self.turns.insert((turn, job));
        self.tell(vec![Event::Submit(Box::new(request))]);
    }
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    // Small gangs may pass far more often than by default, so that what bounds them is seen.
    settings.backfill.passing_share = 0.5;
    settings.weights.small_share = 0.7;
    settings
}

/// How near to its bound the worst gang of a sequence comes; fails where one is beyond it.
fn worst(sequence: &[Arrival]) -> f64 {
    let mut model = Model::new(settings());
    for (number, arrival) in sequence.iter().enumerate() {
        model.go_on(model.now + Span::minutes(arrival.after));
        model.submit(number, arrival);
    }
    model.go_on(Time::ZERO + Span::days(400));
    assert_eq!(model.scheduler.queue_length(), 0, "all have started");
    model.worst
}

fn changed(sequence: &[Arrival], random: &mut Random) -> Vec<Arrival> {
    let mut changed = sequence.to_vec();
    let place = random.below(changed.len());
    match random.below(4) {
        0 if changed.len() < MOST => changed.insert(place, arrival(random)),
        1 if changed.len() > 2 => drop(changed.remove(place)),
        2 => changed.swap(place, (place + 1) % sequence.len()),
        _ => changed[place] = arrival(random),
    }
    changed
}

#[test]
fn no_sequence_of_arrivals_keeps_a_gang_beyond_its_bound() {
    let asked = option_env!("BEDPLATE_SEQUENCES").and_then(|text| text.parse().ok());
    let sequences: usize = asked.unwrap_or(USUAL);
    let mut random = Random::scattered(35);
    let (mut tried, mut nearest) = (0, 0.0f64);
    while tried < sequences {
        let length = 3 + random.below(MOST - 3);
        let mut sequence: Vec<Arrival> = (0..length).map(|_| arrival(&mut random)).collect();
        let mut at = worst(&sequence);
        tried += 1;
        // Uphill for as long as that goes on.
        let mut in_vain = 0;
        while in_vain < 60 && tried < sequences {
            let other = changed(&sequence, &mut random);
            let reached = worst(&other);
            tried += 1;
            in_vain = if reached > at { 0 } else { in_vain + 1 };
            if reached >= at {
                (sequence, at) = (other, reached);
            }
        }
        nearest = nearest.max(at);
    }
    assert!(nearest > 0.5, "a search that comes nowhere near the bound proves little: {nearest:.2}");
}
