//! The order in which gangs are considered, as a sum whose terms can be shown.

use std::cmp::Reverse;

use crate::experience::{Bounds, gpu_seconds};
use crate::{GangRequest, PriorityWeights, QueueOrder, Score, Settings, Span, Time};

/// The terms of a gang's priority. The sum decides; ties go to who came first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Priority {
    pub site: i64,
    pub age: i64,
    pub expansion: i64,
    pub fair_share: i64,
    pub qos: i64,
    pub job_size: i64,
    pub partition: i64,
    /// Subtracted.
    pub nice: i64,
}

impl Priority {
    pub fn total(&self) -> i64 {
        let factors = self.age + self.expansion + self.fair_share + self.qos + self.job_size + self.partition;
        self.site.saturating_add(factors).saturating_sub(self.nice)
    }

    /// Each term under its name, the subtracted one negative.
    pub fn terms(&self) -> [(&'static str, i64); 8] {
        [
            ("site", self.site),
            ("age", self.age),
            ("expansion", self.expansion),
            ("fair share", self.fair_share),
            ("qos", self.qos),
            ("job size", self.job_size),
            ("partition", self.partition),
            ("nice", self.nice.saturating_neg()),
        ]
    }
}

/// The largest of every configured priority, by which factors are normalised.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scales {
    qos: u32,
    partition: u32,
    nodes: u32,
}

impl Scales {
    pub(crate) fn new(settings: &Settings, nodes: u32) -> Self {
        let largest = |values: &mut dyn Iterator<Item = u32>| values.max().unwrap_or(0).max(1);
        Self {
            qos: largest(&mut settings.qos.iter().map(|qos| qos.priority)),
            partition: largest(&mut settings.partitions.iter().map(|partition| partition.priority)),
            nodes: nodes.max(1),
        }
    }
}

/// The priority of a gang that was submitted at `submitted`.
pub(crate) fn priority(
    request: &GangRequest,
    settings: &Settings,
    scales: Scales,
    fair_share: f64,
    submitted: Time,
    now: Time,
) -> Priority {
    let weights: &PriorityWeights = &settings.weights;
    let points = |weight: i64, factor: f64| (weight as f64 * factor.clamp(0.0, 1.0)) as i64;
    let qos = settings.qos(request);
    let partition = settings.partition(request);
    let size = f64::from(request.nodes()) / f64::from(scales.nodes);
    let waited = now.since(submitted.max(request.begin)).0 as f64;
    let age = waited / weights.oldest.0.max(1) as f64;
    let expansion = waited / (waited + request.time_limit.0 as f64).max(1.0);
    Priority {
        site: request.site_priority,
        age: points(weights.age, age),
        expansion: points(weights.expansion, expansion),
        fair_share: points(weights.fair_share, fair_share),
        qos: points(weights.qos, f64::from(qos.priority) / f64::from(scales.qos)),
        job_size: points(weights.job_size, if weights.favours_small { 1.0 - size } else { size }),
        partition: points(weights.partition, f64::from(partition.priority) / f64::from(scales.partition)),
        nice: request.nice,
    }
}

/// Where a gang stands in the queue: tiers first, then the tiny ones, then points, then the small ones, then size, then arrival, then a seeded tie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    tier: Reverse<u16>,
    /// Passes gangs of more points: tiny, or has waited for as long as any may.
    is_tiny: Reverse<bool>,
    points: Reverse<i64>,
    is_small: Reverse<bool>,
    /// Of GPU time, on a scale of its own; 0 where it does not matter.
    size: u64,
    submitted: Time,
    tie: u64,
    turn: Time,
}

/// Where a gang stands by tier, points and turn, whatever its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    tier: Reverse<u16>,
    points: Reverse<i64>,
    comes: Time,
    tie: u64,
}

impl Turn {
    pub(crate) fn comes(&self) -> Time {
        self.comes
    }

    /// Whether points put neither of the two before the other.
    #[cfg(test)]
    pub(crate) fn is_level_with(&self, other: &Self) -> bool {
        (self.tier, self.points) == (other.tier, other.points)
    }

    /// Whether it has a higher tier or more points.
    pub(crate) fn is_above(&self, other: &Self) -> bool {
        (self.tier, self.points) < (other.tier, other.points)
    }
}

impl Rank {
    /// `points` is the sum of its priority; `prospect` what is known of run times and of the queue.
    pub(crate) fn new(
        request: &GangRequest,
        settings: &Settings,
        points: i64,
        prospect: Prospect,
        submitted: Time,
        now: Time,
    ) -> Self {
        let waited = now.since(submitted.max(request.begin));
        let plain = Self {
            tier: Reverse(settings.partition(request).tier),
            is_tiny: Reverse(false),
            points: Reverse(points),
            is_small: Reverse(false),
            size: 0,
            submitted,
            tie: scramble(settings.seed, request.id.0),
            turn: submitted.max(request.begin) + settings.backfill.until_turn(request.time_limit),
        };
        match settings.order {
            QueueOrder::Arrival => plain,
            QueueOrder::Published(score) => {
                Self { points: Reverse(score.points(request, waited, submitted)), ..plain }
            }
            QueueOrder::SmallestFirst => {
                let (size, bounds) =
                    (aged_size(request, prospect, waited, &settings.weights), prospect.bounds);
                let work = gpu_seconds(request, prospect.run);
                let small = bounds.small.max(bounds.tiny);
                let has_waited = waited >= settings.weights.longest_wait;
                // It will be booked for all that it asks for, however short its kind was before.
                let asks_little = gpu_seconds(request, request.time_limit) < small;
                Self {
                    is_tiny: Reverse((work < bounds.tiny && asks_little) || has_waited),
                    is_small: Reverse(work < small || has_waited),
                    size,
                    ..plain
                }
            }
        }
    }

    /// Whether it passes the gangs with its points because it is small, or has waited for as long as any may.
    pub(crate) fn is_small(&self) -> bool {
        self.is_small.0
    }

    pub(crate) fn turn(&self) -> Turn {
        Turn { tier: self.tier, points: self.points, comes: self.turn, tie: self.tie }
    }
}

/// The logarithm of the GPU time that a gang will likely take, less the cube of its age: nothing for one that just came, the logarithm of
/// [`PriorityWeights::ageing`] for the one that waits longest; in millionths, from 1 on. A gang that has waited for as long as any may is in front of all, at 0.
fn aged_size(request: &GangRequest, prospect: Prospect, waited: Span, weights: &PriorityWeights) -> u64 {
    const STEPS: f64 = 1e6;
    // More than the logarithm of any ageing.
    const ABOVE: f64 = 100.0;
    if waited >= weights.longest_wait {
        return 0;
    }
    let work = gpu_seconds(request, prospect.run);
    let oldest = prospect.longest_wait.max(weights.patience).0.max(1) as f64;
    let age = (waited.0 as f64 / oldest).min(1.0);
    ((work.ln() - f64::from(weights.ageing.max(1)).ln() * age.powi(3) + ABOVE) * STEPS) as u64
}

/// What an order by size needs to know besides the request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prospect {
    /// How long the gang will likely run.
    pub(crate) run: Span,
    /// How long the oldest waiting gang has waited.
    pub(crate) longest_wait: Span,
    /// Which gangs are small.
    pub(crate) bounds: Bounds,
}

impl Score {
    /// The higher, the earlier.
    fn points(self, request: &GangRequest, waited: Span, submitted: Time) -> i64 {
        const STEPS: f64 = 1e6;
        let (limit, gpus) = (request.time_limit.as_seconds().max(1.0), request.gpus().max(1) as f64);
        let score = match self {
            Score::Shortest => -limit,
            Score::SmallestArea => -limit * gpus,
            Score::WaitCubed => gpus * (waited.as_seconds() / limit).powi(3),
            Score::Fitted => {
                let submitted = submitted.since(Time::ZERO).as_seconds().max(1.0);
                -(limit.log10() * gpus + 870.0 * submitted.log10())
            }
        };
        (score * STEPS) as i64
    }
}

/// A number that looks random but follows from the seed; without a seed, jobs keep their own order.
fn scramble(seed: u64, id: u64) -> u64 {
    if seed == 0 {
        return id;
    }
    let mut mixed = (id ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^= mixed >> 32;
    mixed = mixed.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    mixed ^ (mixed >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{JobId, RoleRequest};

    /// Numbers of gangs in the order of their ranks, each with nodes of eight GPUs, hours asked for and hours waited. The oldest of the queue has
    /// waited for a day.
    fn sorted(order: QueueOrder, gangs: [(u32, u64, u64); 3]) -> Vec<u64> {
        let mut settings = Settings { order, ..Settings::default() };
        settings.weights.ageing = 100;
        let now = Time::ZERO + Span::hours(1000);
        let rank = |(number, (nodes, limit, waited)): (u64, (u32, u64, u64))| {
            let request = GangRequest {
                time_limit: Span::hours(limit),
                ..GangRequest::new(JobId(number), RoleRequest::new(nodes, 8))
            };
            let submitted = Time::ZERO + Span::hours(1000 - waited);
            let prospect =
                Prospect { run: request.time_limit, longest_wait: Span::days(1), bounds: Bounds::default() };
            (Rank::new(&request, &settings, 0, prospect, submitted, now), number)
        };
        let mut ranks: Vec<(Rank, u64)> = (0..).zip(gangs).map(rank).collect();
        ranks.sort();
        ranks.into_iter().map(|(_, number)| number).collect()
    }

    #[test]
    fn orders_sort_as_their_formulas_say() {
        // A large one that has waited for ten hours, a long small one, and a short one in between. They ask for 256, 192 and 64 GPU-hours, which
        // count as 184, 190 and 64 after that time of waiting.
        let gangs = [(8, 4, 10), (1, 24, 3), (4, 2, 2)];
        let by = |score| sorted(QueueOrder::Published(score), gangs);
        assert_eq!(sorted(QueueOrder::Arrival, gangs), [0, 1, 2]);
        assert_eq!(by(Score::Shortest), [2, 0, 1]);
        assert_eq!(by(Score::SmallestArea), [2, 1, 0]);
        assert_eq!(by(Score::WaitCubed), [0, 2, 1]);
        assert_eq!(sorted(QueueOrder::SmallestFirst, gangs), [2, 0, 1]);
    }

    #[test]
    fn the_gang_that_waits_longest_counts_a_hundred_times_smaller() {
        // A new gang of one node is a little less, or a little more.
        assert_eq!(sorted(QueueOrder::SmallestFirst, [(100, 10, 24), (1, 9, 0), (1, 11, 0)]), [1, 0, 2]);
        // One that has waited half as long, 1.78 times: the eighth root.
        assert_eq!(sorted(QueueOrder::SmallestFirst, [(10, 10, 12), (1, 56, 0), (1, 57, 0)]), [1, 0, 2]);
    }

    #[test]
    fn small_gangs_pass_those_with_their_points_and_tiny_ones_those_with_any() {
        let settings = Settings::default();
        let bounds = Bounds { small: 3600.0, tiny: 60.0 };
        let asking = |seconds: u64, points: i64, time_limit: Span, waited: Span| {
            let request =
                GangRequest { time_limit, ..GangRequest::new(JobId(seconds), RoleRequest::new(1, 1)) };
            let prospect = Prospect { run: Span::seconds(seconds), longest_wait: Span::ZERO, bounds };
            Rank::new(&request, &settings, points, prospect, Time::ZERO, Time::ZERO + waited)
        };
        let rank = |seconds, points| asking(seconds, points, Span::minutes(59), Span::ZERO);
        assert!(rank(59, 0) < rank(100_000, 9), "tiny");
        assert!(rank(60, 0) > rank(100_000, 9), "small, but not tiny");
        assert!(asking(59, 0, Span::days(1), Span::ZERO) > rank(100_000, 9), "asks for much");
        assert!(asking(100_000, 0, Span::days(2), settings.weights.longest_wait) < rank(100_000, 9), "old");
        assert!(rank(3599, 9) < rank(3601, 9) && rank(3599, 9).is_small() && !rank(3601, 9).is_small());
        assert!(rank(59, 0).is_small() && rank(59, 0).turn().is_level_with(&rank(3601, 0).turn()));
    }

    #[test]
    fn no_gang_is_passed_once_it_has_waited_for_as_long_as_any_may() {
        let bound = PriorityWeights::default().longest_wait.0 / 3_600_000;
        assert_eq!(
            sorted(QueueOrder::SmallestFirst, [(100_000, 700, bound), (1, 1, bound - 1), (1, 1, 0)]),
            [0, 1, 2]
        );
    }
}
