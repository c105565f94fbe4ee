//! The policies that a replay compares, each a row of one table.

use bedplate_gangs::{Backfill, Expected, Packing, QueueOrder, Rates, Score, Settings, SizesBy};

/// A way to schedule, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayPolicy {
    pub name: &'static str,
    pub about: &'static str,
    backfill: BackfillKind,
    has_topology: bool,
    sizes: Sizes,
    preempts: bool,
}

/// What becomes of elastic gangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sizes {
    /// They keep the size they asked for.
    Fixed,
    Elastic(SizesBy),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BackfillKind {
    Fifo,
    Easy,
    /// EASY's backfill in another order than that of arrival.
    Ordered(Score),
    /// As Slurm's backfill: whole nodes are reserved, for as many jobs as large sites let it test.
    Slurm,
    Ours,
}

const fn policy(
    name: &'static str,
    about: &'static str,
    backfill: BackfillKind,
    [has_topology, is_elastic, preempts]: [bool; 3],
) -> ReplayPolicy {
    let sizes = if is_elastic { Sizes::Elastic(SizesBy::Request) } else { Sizes::Fixed };
    ReplayPolicy { name, about, backfill, has_topology, sizes, preempts }
}

/// Reservations that a large Slurm site keeps (`bf_max_job_test`).
const SLURM_RESERVED: usize = 1_000;

impl ReplayPolicy {
    /// Backfill as most compare with.
    pub(crate) const EASY: ReplayPolicy = policy(
        "easy",
        "backfill behind one reservation in order of arrival, first nodes that fit",
        BackfillKind::Easy,
        [false, false, false],
    );

    /// Sizes by predicted throughput, as Pollux and Sia have them.
    const GOODPUT: ReplayPolicy = ReplayPolicy {
        sizes: Sizes::Elastic(SizesBy::Goodput),
        ..policy(
            "goodput",
            "ours, but sizes of elastic gangs by predicted throughput, shared out among all that run and wait",
            BackfillKind::Ours,
            [true, true, true],
        )
    };

    pub const ALL: [ReplayPolicy; 13] = [
        policy(
            "fifo",
            "strict order of arrival, first nodes that fit",
            BackfillKind::Fifo,
            [false, false, false],
        ),
        Self::EASY,
        policy(
            "sjf",
            "EASY's backfill, the shortest limit first, first nodes that fit",
            BackfillKind::Ordered(Score::Shortest),
            [false, false, false],
        ),
        policy(
            "saf",
            "EASY's backfill, the smallest product of limit and GPUs first, first nodes that fit",
            BackfillKind::Ordered(Score::SmallestArea),
            [false, false, false],
        ),
        policy(
            "wfp3",
            "EASY's backfill, by GPUs and the cube of the time waited over the limit, first nodes that fit",
            BackfillKind::Ordered(Score::WaitCubed),
            [false, false, false],
        ),
        policy(
            "f1",
            "EASY's backfill, by GPUs, limit and submission as learned from simulations, first nodes that fit",
            BackfillKind::Ordered(Score::Fitted),
            [false, false, false],
        ),
        policy(
            "conservative",
            "Slurm-like: backfill behind 1,000 reservations of whole nodes in order of arrival, first nodes that fit",
            BackfillKind::Slurm,
            [false, false, false],
        ),
        policy(
            "ours",
            "QOS first, then the smallest by learned run times, which age; backfill behind the small and the oldest; nodes by topology, elastic sizes, preemption",
            BackfillKind::Ours,
            [true, true, true],
        ),
        Self::GOODPUT,
        policy(
            "ours-no-topology",
            "ours, but the first nodes that fit",
            BackfillKind::Ours,
            [false, true, true],
        ),
        policy(
            "ours-rigid",
            "ours, but elastic gangs keep their requested size",
            BackfillKind::Ours,
            [true, false, true],
        ),
        policy("ours-no-preemption", "ours, but without preemption", BackfillKind::Ours, [true, true, false]),
        policy(
            "ours-plain",
            "ours without topology, elastic sizes and preemption",
            BackfillKind::Ours,
            [false, false, false],
        ),
    ];

    /// The rules of a site, which come from its file.
    pub const SITE: ReplayPolicy =
        policy("site", "the rules of the site's file", BackfillKind::Ours, [true, true, true]);

    /// Those compared by default.
    pub const USUAL: [&'static str; 3] = ["easy", "conservative", "ours"];

    pub fn find(name: &str) -> Option<ReplayPolicy> {
        Self::ALL.into_iter().find(|policy| policy.name == name)
    }

    /// The scheduler's settings; partitions, QOS and accounts come from the trace. Reservations are renewed as often as the daemon renews them.
    pub fn settings(&self) -> Settings {
        let backfill = match self.backfill {
            BackfillKind::Fifo => Backfill::fifo(),
            BackfillKind::Easy | BackfillKind::Ordered(_) => Backfill::easy(),
            BackfillKind::Slurm => {
                Backfill { reserved: SLURM_RESERVED, whole_nodes: true, ..Backfill::default() }
            }
            BackfillKind::Ours => Backfill::default(),
        };
        let mut settings = Settings { backfill, ..Settings::default() };
        match self.backfill {
            BackfillKind::Ours => {}
            BackfillKind::Ordered(score) => settings.order = QueueOrder::Published(score),
            BackfillKind::Fifo | BackfillKind::Easy | BackfillKind::Slurm => {
                settings.order = QueueOrder::Arrival
            }
        }
        settings.packing = if self.has_topology { Packing::Topology } else { Packing::FirstFit };
        settings.elastic.is_allowed = self.is_elastic();
        if let Sizes::Elastic(by) = self.sizes {
            settings.elastic.by = by;
        }
        settings.preemption.is_allowed = self.preempts;
        settings
    }

    fn is_elastic(&self) -> bool {
        self.sizes != Sizes::Fixed
    }

    /// The part of a job's prediction that the scheduler gets. One without topology is not told what
    /// messages cost; one that is not elastic either gets nothing.
    pub(crate) fn told(&self, expected: Option<Expected>) -> Option<Expected> {
        match (self.has_topology, self.is_elastic()) {
            (true, _) => expected,
            (false, true) => expected.map(|expected| Expected { scale_out_share: 0.0, ..expected }),
            (false, false) => None,
        }
    }

    /// A scheduler that changes no sizes is not told what they are worth.
    pub(crate) fn told_rates(&self, rates: Option<Rates>) -> Option<Rates> {
        rates.filter(|_| self.is_elastic())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_is_the_scheduler_as_it_comes() {
        assert_eq!(ReplayPolicy::find("ours").unwrap().settings(), Settings::default());
        assert!(ReplayPolicy::USUAL.iter().all(|name| ReplayPolicy::find(name).is_some()));
    }
}
