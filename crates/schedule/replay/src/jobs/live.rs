//! A gang while it holds nodes: how fast it works, what it has saved, what it loses.
//!
//! Work is counted in milliseconds of the job's own run time. A gang does `rate` work per millisecond, after
//! an overhead (a restart, a change of size) in which it does none.

use bedplate_gangs::{NodeShare, Span, Then, Time};

use super::JobRecord;

/// Why GPU time was wasted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WasteCause {
    Failure,
    Preemption,
    Resize,
}

#[derive(Debug, Clone)]
pub(crate) struct LiveJob {
    pub(crate) shares: Vec<NodeShare>,
    /// GPUs held; a shared one counts by its share.
    pub(crate) gpus: f64,
    /// GPUs per node of the gang.
    pub(crate) gpus_per_node: f64,
    pub(crate) pace: GangPace,
    /// Milliseconds before work continues, and why.
    overhead: f64,
    cause: WasteCause,
    /// The cost of work since it began, in order: sizes and places change.
    pieces: Vec<Piece>,
    /// Accounted for up to this time.
    since: Time,
    pub(crate) phase: JobPhase,
    /// Later orders invalidate scheduled ends.
    pub(crate) epoch: u32,
}

/// How fast a gang works with the nodes it has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GangPace {
    /// Work per millisecond.
    pub(crate) rate: f64,
    /// GPU milliseconds for each millisecond of work that count as useful: what it takes with nodes close
    /// together, and never more than at the requested size.
    pub(crate) worth: f64,
}

/// Work done at one cost, up to the next piece.
#[derive(Debug, Clone, Copy)]
struct Piece {
    /// Work done before it.
    from: f64,
    /// GPU milliseconds for each millisecond of work.
    cost: Cost,
}

/// GPU milliseconds, and those of them that are useful.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Cost {
    held: f64,
    useful: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobPhase {
    Running,
    Stopping(Then),
    Suspended,
}

impl LiveJob {
    pub(crate) fn new(
        shares: Vec<NodeShare>,
        gpu_share: Option<u16>,
        pace: GangPace,
        now: Time,
        epoch: u32,
    ) -> Self {
        let whole = shares.first().map_or(0, NodeShare::gpus);
        let gpus_per_node = gpu_share.map_or(f64::from(whole), |share| f64::from(share) / 1000.0);
        let gpus = gpus_per_node * shares.len() as f64;
        let (overhead, cause) = (0.0, WasteCause::Failure);
        Self {
            shares,
            gpus,
            gpus_per_node,
            pace,
            overhead,
            cause,
            pieces: Vec::new(),
            since: now,
            phase: JobPhase::Running,
            epoch,
        }
    }

    /// Updates the record to `now`.
    pub(crate) fn advance(&mut self, record: &mut JobRecord, now: Time) {
        let passed = now.since(self.since).0 as f64;
        self.since = now;
        if self.phase == JobPhase::Suspended {
            return;
        }
        record.held += passed * self.gpus;
        if self.phase != JobPhase::Running {
            return;
        }
        let idle = passed.min(self.overhead);
        self.overhead -= idle;
        record.lose(self.cause, idle * self.gpus);
        if passed > idle && self.pace.rate > 0.0 {
            self.note_cost(record.done);
        }
        let work = (passed - idle) * self.pace.rate;
        record.done += work;
        record.useful += work * self.pace.worth;
    }

    /// From here on work has the current cost.
    fn note_cost(&mut self, from: f64) {
        let cost = Cost { held: self.gpus / self.pace.rate, useful: self.pace.worth };
        if self.pieces.last().is_none_or(|piece| piece.cost != cost) {
            self.pieces.push(Piece { from, cost });
        }
    }

    /// GPU time of the work beyond `saved`, whose pieces are removed.
    fn take_cost_beyond(&mut self, saved: f64, done: f64) -> Cost {
        let (mut end, mut cost) = (done, Cost::default());
        while let Some(piece) = self.pieces.last().copied().filter(|_| end > saved) {
            let work = (end - piece.from.max(saved)).max(0.0);
            cost.held += work * piece.cost.held;
            cost.useful += work * piece.cost.useful;
            end = piece.from;
            if piece.from < saved {
                break;
            }
            self.pieces.pop();
        }
        cost
    }

    /// Adds time in which the gang does no work.
    pub(crate) fn pause(&mut self, length: Span, cause: WasteCause) {
        self.overhead += length.0 as f64;
        self.cause = cause;
    }

    /// Falls back to the newest checkpoint; later work is lost.
    pub(crate) fn fall_back(&mut self, record: &mut JobRecord, every: Option<Span>, cause: WasteCause) {
        let saved = every.map_or(0.0, |every| (record.done / every.0 as f64).floor() * every.0 as f64);
        let lost = self.take_cost_beyond(saved, record.done);
        record.lose(cause, lost.held);
        record.useful -= lost.useful;
        record.done = saved.min(record.done);
    }

    /// When the work will be done if nothing changes.
    pub(crate) fn ends(&self, record: &JobRecord, duration: Span) -> Time {
        self.reaches(record, duration.0 as f64)
    }

    /// When this much work will be done.
    pub(crate) fn reaches(&self, record: &JobRecord, work: f64) -> Time {
        let left = (work - record.done).max(0.0);
        self.since + Span(1).times(self.overhead + left / self.pace.rate.max(1e-9)).max(Span(1))
    }

    pub(crate) fn set_shares(&mut self, shares: Vec<NodeShare>) {
        self.gpus = self.gpus_per_node * shares.len() as f64;
        self.shares = shares;
    }
}
