//! Why a job waits, when it should start, and what would make that earlier.

use std::collections::VecDeque;
use std::sync::Arc;

use bedplate_topology::{Level, NodeId};
use serde::Serialize;

use crate::accounting::Accounting;
use crate::calendar::Calendar;
use crate::dependencies::Dependencies;
use crate::eligible::EligibleSets;
use crate::find::Horizon;
use crate::fleet::NodeFleet;
use crate::guard::Allowance;
use crate::jobs::{JobEntry, Jobs};
use crate::news::News;
use crate::reservations::Reservations;
use crate::resize::Targets;
use crate::scheduler::Scheduler;
use crate::victims::Eviction;
use crate::view::{NodeSetRule, RequestClass};
use crate::views::{Fit, Views};
use crate::{Guard, JobId, NodeTally, Priority, Settings, Span, Time, Wait};

/// All that can be said about a waiting job.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitExplanation {
    pub wait: Wait,
    pub priority: Priority,
    /// Gangs that are considered before it; absent while it is not in the queue.
    pub ahead: Option<usize>,
    /// When it starts if every gang uses all the time it asked for.
    pub expected_start: Option<Time>,
    /// Changes to the request with which it would start earlier, the smallest change first.
    pub remedies: Vec<Remedy>,
    /// Where the nodes are that it might use; absent where it does not wait for nodes.
    pub nodes: Option<NodeTally>,
}

/// A change to the request, and when the gang would then start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum Remedy {
    /// A time limit that fits into the gap before the next reservation.
    ShorterLimit {
        #[serde(rename = "limit_ms")]
        limit: Span,
        #[serde(rename = "start_ms")]
        start: Time,
    },
    FewerNodes {
        nodes: u32,
        #[serde(rename = "start_ms")]
        start: Time,
    },
    /// Nodes that need not share this level.
    FurtherApart {
        level: Level,
        #[serde(rename = "start_ms")]
        start: Time,
    },
    /// Not insisting on empty nodes.
    NotExclusive {
        #[serde(rename = "start_ms")]
        start: Time,
    },
}

/// All that is needed to explain why a job waits. Made in no time where others wait; the work is done elsewhere.
#[derive(Debug)]
pub struct Question {
    entry: JobEntry,
    ahead: Option<usize>,
    /// Other than resources.
    limit: Option<Wait>,
    settings: Arc<Settings>,
    fleet: NodeFleet,
    reservations: Reservations,
    guard: Option<Guard>,
    eligible: EligibleSets,
}

impl Question {
    /// Searches the plan, which takes time in proportion to what is planned.
    pub fn answer(self, now: Time) -> WaitExplanation {
        let Question { entry, ahead, limit, settings, fleet, reservations, guard, eligible } = self;
        let (job, priority, is_queued) = (entry.request.id, entry.priority, entry.is_queued());
        let scheduler =
            Scheduler { guard, ..Scheduler::alone(entry, settings, fleet, reservations, eligible) };
        let mut without = scheduler.clone();
        without.reservations.withdraw(job, &mut without.fleet);
        let expected_start = match scheduler.reservations.get(job) {
            Some(reservation) => Some(reservation.start),
            None if is_queued && limit.is_none() && scheduler.settings.backfill.overtakes => {
                without.find(job, Horizon::Ever, now).map(|fit| fit.at)
            }
            None => None,
        };
        let wait = scheduler.why_waiting(job, limit, expected_start, now);
        let remedies =
            if wait.is_for_resources() { without.remedies(job, expected_start, now) } else { Vec::new() };
        let nodes = wait.is_for_resources().then(|| scheduler.tally(job, now)).flatten();
        WaitExplanation { wait, priority, ahead, expected_start, remedies, nodes }
    }
}

impl Scheduler {
    /// Explains a job that waits; `None` when it runs, has ended or is unknown.
    pub fn explain(&self, job: JobId, now: Time) -> Option<WaitExplanation> {
        Some(self.question(job)?.answer(now))
    }

    /// What explains a job that waits. Nothing is copied but its own entry; what is planned is shared.
    pub fn question(&self, job: JobId) -> Option<Question> {
        let entry = self.jobs.get(job).filter(|entry| entry.run().is_none())?;
        Some(Question {
            ahead: entry.is_queued().then(|| self.jobs.queue().before(entry.rank, job)),
            limit: entry.is_queued().then(|| self.limited_by(job, entry.request.gpus())).flatten(),
            entry: JobEntry { wait: self.wait_now(entry), ..entry.clone() },
            settings: Arc::clone(&self.settings),
            fleet: self.fleet.snapshot(),
            reservations: self.reservations.snapshot(job),
            guard: self.guard,
            eligible: self.views.eligible.snapshot(),
        })
    }

    /// A scheduler that knows one waiting job, and what is planned for others.
    fn alone(
        entry: JobEntry,
        settings: Arc<Settings>,
        fleet: NodeFleet,
        reservations: Reservations,
        eligible: EligibleSets,
    ) -> Self {
        Self {
            accounting: Accounting::new(&settings, fleet.cluster()),
            views: Views::new(settings.packing, eligible),
            settings,
            fleet,
            jobs: Jobs::alone(entry),
            dependencies: Dependencies::default(),
            reservations,
            guard: None,
            allowance: Allowance::default(),
            calendar: Calendar::default(),
            eviction: Eviction::default(),
            news: News::default(),
            rest: None,
            ranking: None,
            borrow_order: None,
            is_ranked: false,
            targets: Targets::default(),
            admitting: VecDeque::new(),
            admitted: Time::ZERO,
            decisions: Vec::new(),
        }
    }

    fn why_waiting(&self, job: JobId, limit: Option<Wait>, start: Option<Time>, now: Time) -> Wait {
        let entry = &self.jobs[job];
        if !entry.is_queued() {
            return entry.wait.clone();
        }
        if let Some(wait) = limit {
            return wait;
        }
        match &entry.wait {
            Wait::Preempting { .. } | Wait::InOrder { .. } => entry.wait.clone(),
            _ => self.missing_resources(job, start, now),
        }
    }

    fn missing_resources(&self, job: JobId, start: Option<Time>, now: Time) -> Wait {
        let entry = &self.jobs[job];
        let class = entry.classes.iter().max_by_key(|class| class.nodes).expect("a gang has roles");
        let free = self.nodes_free(class, Span(1), now);
        let needed = class.nodes;
        let free_gpus = self.fleet.free_gpus(now);
        if (free.len() as u32) < needed {
            let enough_gpus = free_gpus >= entry.request.gpus() && entry.request.gpus() > 0;
            return if enough_gpus {
                Wait::Fragmented { free_gpus, level: None, largest: free.len() as u32, needed }
            } else {
                Wait::Resources { nodes_free: free.len() as u32, needed, until: self.ends_last(job, start) }
            };
        }
        if let Some(wait) = self.scattered(class, &free, free_gpus) {
            return wait;
        }
        let lasting = self.nodes_free(class, class.length, now);
        if (lasting.len() as u32) < needed {
            let closes = free.iter().filter_map(|node| self.fleet.closes_after(*node, now)).min();
            return match closes {
                Some(from) => Wait::BeforeMaintenance { from },
                None => Wait::Resources { nodes_free: lasting.len() as u32, needed, until: None },
            };
        }
        let on_them = lasting.iter().flat_map(|node| self.reservations.on_node(NodeId(*node)));
        match on_them.filter(|(_, of)| *of != job).min() {
            Some((from, of)) => Wait::BehindReservation { of, from },
            None => {
                let guarded = self.waits_for_guarded(job, now);
                guarded.or_else(|| self.waits_for_neighbours(job)).unwrap_or(Wait::NotTriedYet)
            }
        }
    }

    fn waits_for_neighbours(&self, job: JobId) -> Option<Wait> {
        self.jobs[job].request.expected?;
        let nodes = self.reservations.get(job)?.nodes.iter().map(|reserved| reserved.node.0);
        let level = self.fleet.level_of(&nodes.collect::<Vec<u32>>()).level;
        Some(Wait::ForNeighbours { level })
    }

    /// Of the role with the most nodes.
    fn tally(&self, job: JobId, now: Time) -> Option<NodeTally> {
        let entry = &self.jobs[job];
        let class = entry.classes.iter().max_by_key(|class| class.nodes)?;
        let (request, eligible) = (&entry.request, self.views.eligible(class));
        Some(NodeTally::of(&self.fleet, request, self.settings.partition(request), class, eligible, now))
    }

    /// Nodes that have enough free for `length` if reservations are left aside.
    fn nodes_free(&self, class: &RequestClass, length: Span, now: Time) -> Vec<u32> {
        let eligible = self.views.eligible(class);
        let is_free = |node: &u32| {
            let need = class.need_on(self.fleet.capacity(*node));
            let line = self.fleet.booked(*node);
            eligible[*node as usize] && need.is_some_and(|need| line.window_at(now, need, length).is_some())
        };
        (0..self.fleet.count()).filter(is_free).collect()
    }

    /// Enough nodes are free, but not in one set of the level that is required.
    fn scattered(&self, class: &RequestClass, free: &[u32], free_gpus: u64) -> Option<Wait> {
        let NodeSetRule::OneSet { level } = class.rule else {
            return None;
        };
        let sets = &self.fleet.levels()[usize::from(level)];
        let mut counts = vec![0u32; sets.sets.len()];
        free.iter().for_each(|node| counts[sets.of_node[*node as usize] as usize] += 1);
        let largest = counts.into_iter().max().unwrap_or(0);
        let level = Some(sets.level);
        (largest < class.nodes).then_some(Wait::Fragmented { free_gpus, level, largest, needed: class.nodes })
    }

    /// Of the gangs on the nodes it will get, one whose end its start waits for.
    fn ends_last(&self, job: JobId, start: Option<Time>) -> Option<JobId> {
        let nodes = &self.reservations.get(job)?.nodes;
        let bookings = nodes.iter().flat_map(|reserved| self.fleet.bookings(reserved.node.0));
        bookings.filter(|booking| Some(booking.until) == start).map(|booking| booking.job).min()
    }

    /// Tries changed requests on the plan without the job's own reservation.
    fn remedies(&mut self, job: JobId, start: Option<Time>, now: Time) -> Vec<Remedy> {
        let entry = &self.jobs[job];
        let [class] = entry.classes[..] else {
            return Vec::new();
        };
        let start = start.unwrap_or(Time::NEVER);
        let earlier = |fit: Option<Fit>| fit.map(|fit| fit.at).filter(|at| *at < start);
        let mut remedies = Vec::new();
        if let NodeSetRule::OneSet { level } = class.rule {
            let level = self.fleet.levels()[usize::from(level)].level;
            let looser = RequestClass { rule: NodeSetRule::Anywhere, ..class };
            let at = earlier(self.find_class(&looser, Horizon::Ever, now));
            remedies.extend(at.map(|start| Remedy::FurtherApart { level, start }));
        }
        if class.is_exclusive {
            let at =
                earlier(self.find_class(&RequestClass { is_exclusive: false, ..class }, Horizon::Ever, now));
            remedies.extend(at.map(|start| Remedy::NotExclusive { start }));
        }
        remedies.extend(self.shorter_limit(&class, now));
        remedies.extend(self.fewer_nodes(&class, now));
        remedies
    }

    /// The longest of the usual limits with which it would start now.
    fn shorter_limit(&mut self, class: &RequestClass, now: Time) -> Option<Remedy> {
        const USUAL_MINUTES: [u64; 12] = [10_080, 4_320, 2_880, 1_440, 720, 480, 240, 120, 60, 30, 15, 5];
        let lengths = USUAL_MINUTES.into_iter().map(Span::minutes).filter(|length| *length < class.length);
        let lengths: Vec<Span> = lengths.collect();
        let fits = |length: &Span| {
            self.find_class(&RequestClass { length: *length, ..*class }, Horizon::Now, now).is_some()
        };
        let limit = lengths.into_iter().find(fits)?;
        Some(Remedy::ShorterLimit { limit, start: now })
    }

    /// The largest number of nodes with which it would start now.
    fn fewer_nodes(&mut self, class: &RequestClass, now: Time) -> Option<Remedy> {
        let (mut fits, mut too_many) = (0, class.nodes);
        while too_many - fits > 1 {
            let nodes = (fits + too_many) / 2;
            let smaller = RequestClass { nodes, ..*class };
            let found = !matches!(class.rule, NodeSetRule::Segments { .. })
                && self.find_class(&smaller, Horizon::Now, now).is_some();
            if found { fits = nodes } else { too_many = nodes }
        }
        (fits > 0).then_some(Remedy::FewerNodes { nodes: fits, start: now })
    }
}
