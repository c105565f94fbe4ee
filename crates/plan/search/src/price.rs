//! Pricing: memory first, then time for the layouts that fit.

use std::ops::Range;

use bedplate_layout::Layout;
use bedplate_perf::Fit;
use bedplate_units::{Bytes, Seconds};

use crate::best::{Best, Front};
use crate::preference::{DoubtQuestion, handicap};
use crate::space::layout_of;
use crate::{LayoutCandidate, Space};

/// How many layouts were priced, and how many fit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LayoutCounts {
    /// All of them.
    pub priced: u64,
    /// With room to spare. These and the tight ones have a time.
    pub fits: u64,
    /// By less than the model's error.
    pub tight: u64,
    pub too_large: u64,
}

/// The result of a slice of a space. Slices merge in any order to the same result.
#[derive(Debug, Clone)]
pub struct Priced {
    pub counts: LayoutCounts,
    /// The layout that needs the least memory among those that do not fit.
    pub smallest_misfit: Option<LayoutCandidate>,
    best: Best,
    front: Front,
}

impl Priced {
    pub fn merge(mut self, other: Self) -> Self {
        self.counts.priced += other.counts.priced;
        self.counts.fits += other.counts.fits;
        self.counts.tight += other.counts.tight;
        self.counts.too_large += other.counts.too_large;
        self.smallest_misfit =
            self.smallest_misfit.into_iter().chain(other.smallest_misfit).min_by(by_memory);
        self.best.merge(other.best);
        self.front.merge(other.front);
        self
    }

    /// The best candidates in rank order, up to the requested number.
    pub fn best(&self) -> Vec<LayoutCandidate> {
        self.best.clone().into_vec()
    }

    /// The Pareto front: by rising time and falling memory.
    pub fn front(&self) -> Vec<LayoutCandidate> {
        self.front.clone().into_vec()
    }
}

fn by_memory(a: &LayoutCandidate, b: &LayoutCandidate) -> std::cmp::Ordering {
    a.memory.cmp(&b.memory).then_with(|| a.rank_order(b))
}

impl Space {
    /// Prices the families of a slice and keeps the `limit` best layouts, at least one, and the front.
    ///
    /// Nothing is allocated per layout. [`Space::whole`] and [`Space::slices`] give slices.
    pub fn price(&self, families: Range<usize>, limit: usize) -> Priced {
        let mut priced = Priced {
            counts: LayoutCounts::default(),
            smallest_misfit: None,
            best: Best::new(limit.max(1)),
            front: Front::default(),
        };
        self.visit(families, |visit| priced.take(self, visit));
        priced
    }

    /// How many fitting layouts of a slice rank before `candidate`.
    pub fn count_better(&self, families: Range<usize>, candidate: &LayoutCandidate) -> u64 {
        let mut better = 0;
        self.visit(families, |visit| {
            let Visit::Passed(seconds, memory, fit, layout) = visit else { return };
            if seconds <= candidate.weighted() {
                let other = self.candidate(layout(), seconds, memory, fit);
                better += u64::from(other.rank_order(candidate).is_lt());
            }
        });
        better
    }

    fn question(&self) -> DoubtQuestion<'_> {
        DoubtQuestion {
            workload: self.problem.workload(),
            domain: self.problem.hardware().domain,
            is_mixture: self.problem.is_mixture(),
        }
    }

    /// A priced layout with its handicap.
    pub(crate) fn candidate(
        &self,
        layout: Layout,
        seconds: Seconds,
        memory: Bytes,
        fit: Fit,
    ) -> LayoutCandidate {
        let handicap = handicap(&layout, fit, &self.question());
        LayoutCandidate { layout, seconds, memory, fit, handicap }
    }

    /// Whether any layout of the space fits. Prices no time.
    pub(crate) fn has_fit(&self) -> bool {
        self.families.iter().any(|family| {
            let costs = self.problem.layer_costs(family.key);
            let fits = |grid| self.problem.fit(&self.problem.memory(&costs, grid)).is_possible();
            self.grids_of(family).iter().any(fits)
        })
    }

    #[inline]
    fn visit(&self, families: Range<usize>, mut take: impl FnMut(Visit<'_>)) {
        for family in &self.families[families] {
            let costs = self.problem.layer_costs(family.key);
            for grid in self.grids_of(family) {
                let memory = self.problem.memory(&costs, grid);
                let fit = self.problem.fit(&memory);
                let layout = || layout_of(&family.key, grid);
                if fit.is_possible() {
                    let seconds = Seconds::new(self.problem.seconds(&costs, grid));
                    take(Visit::Passed(seconds, memory.total(), fit, &layout));
                } else {
                    take(Visit::Failed(memory.total(), fit, &layout));
                }
            }
        }
    }
}

/// One layout as it is priced; the layout itself is only built when it is kept.
enum Visit<'a> {
    Passed(Seconds, Bytes, Fit, &'a dyn Fn() -> Layout),
    Failed(Bytes, Fit, &'a dyn Fn() -> Layout),
}

impl Priced {
    #[inline]
    fn take(&mut self, space: &Space, visit: Visit<'_>) {
        self.counts.priced += 1;
        match visit {
            Visit::Passed(seconds, memory, fit, layout) => {
                if matches!(fit, Fit::Tight { .. }) {
                    self.counts.tight += 1;
                } else {
                    self.counts.fits += 1;
                }
                // A handicap is at least 1, so most layouts are passed over before it is computed.
                let may_enter = self.best.admits(seconds);
                let stands = self.front.admits(seconds, memory);
                if may_enter || stands {
                    let candidate = space.candidate(layout(), seconds, memory, fit);
                    if self.best.admits(candidate.weighted()) {
                        self.best.offer(candidate);
                    }
                    if stands {
                        self.front.offer(candidate);
                    }
                }
            }
            Visit::Failed(memory, fit, layout) => {
                self.counts.too_large += 1;
                if self.smallest_misfit.is_none_or(|smallest| memory <= smallest.memory) {
                    let misfit = space.candidate(layout(), Seconds::ZERO, memory, fit);
                    let kept = self.smallest_misfit.into_iter().chain([misfit]);
                    self.smallest_misfit = kept.min_by(by_memory);
                }
            }
        }
    }
}
