//! The search itself: all layouts of a setup, the best of them, or why there is none.

use crate::nearest::{nearest_fit, nearest_legal};
use crate::{
    Axes, Doubt, LayoutCandidate, LayoutCounts, Priced, Refusals, SearchError, Setup, Space, doubts,
};

/// The best layouts, the front of time against memory, and a count of everything examined.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchAnswer {
    /// In rank order, never empty.
    pub best: Vec<LayoutCandidate>,
    /// By rising time and falling memory, never empty.
    pub front: Vec<LayoutCandidate>,
    pub counts: LayoutCounts,
    pub refusals: Refusals,
}

/// Enumerates, prices and ranks every legal layout on one thread, keeping the `limit` best.
///
/// To use several threads, make a [`Space`], price its [`Space::slices`], merge, and ask
/// [`Space::answer`]: the result is the same.
pub fn search(setup: &Setup<'_>, axes: &Axes, limit: usize) -> Result<SearchAnswer, SearchError> {
    let space = Space::new(setup, axes)?;
    let priced = space.price(space.whole(), limit);
    space.answer(setup, axes, priced)
}

/// The fastest prediction where another layout is preferred, and why it is not.
#[derive(Debug, Clone, PartialEq)]
pub struct Tipped {
    pub fastest: LayoutCandidate,
    /// What is held against it and not, or less often, against the best one.
    pub doubts: Vec<Doubt>,
}

impl SearchAnswer {
    /// What tipped the choice; `None` where the fastest layout is the best.
    pub fn tipped(&self, setup: &Setup<'_>) -> Option<Tipped> {
        let (best, fastest) = (self.best.first()?, self.front.first()?);
        if fastest.seconds >= best.seconds {
            return None;
        }
        let question = setup.question();
        let mut doubts = doubts(&fastest.layout, fastest.fit, &question);
        for shared in crate::doubts(&best.layout, best.fit, &question) {
            if let Some(at) = doubts.iter().position(|each| *each == shared) {
                doubts.remove(at);
            }
        }
        Some(Tipped { fastest: *fastest, doubts })
    }
}

impl Space {
    /// Turns the priced space into an answer, or into a refusal with the nearest option that works.
    ///
    /// `setup` and `axes` are those the space was made from.
    pub fn answer(
        &self,
        setup: &Setup<'_>,
        axes: &Axes,
        priced: Priced,
    ) -> Result<SearchAnswer, SearchError> {
        let best = priced.best();
        if !best.is_empty() {
            let (front, counts) = (priced.front(), priced.counts);
            return Ok(SearchAnswer { best, front, counts, refusals: self.refusals().clone() });
        }
        Err(match priced.smallest_misfit {
            Some(smallest) => SearchError::DoesNotFit {
                model: setup.model.name.clone(),
                gpus: setup.gpus(),
                layouts: self.len(),
                layout: Box::new(smallest.layout),
                needed: smallest.memory,
                available: bedplate_units::Bytes::new(setup.hardware.memory),
                nearest: nearest_fit(setup, axes, smallest.memory),
            },
            None => self.no_layout(setup, axes),
        })
    }

    fn no_layout(&self, setup: &Setup<'_>, axes: &Axes) -> SearchError {
        let worst = self.refusals().first();
        let reason = match worst {
            Some(worst) => format!("{}, for example: {}", worst.example, worst.refusal),
            None => "the requested degrees do not multiply to the number of GPUs".to_owned(),
        };
        SearchError::NoLayout {
            model: setup.model.name.clone(),
            gpus: setup.gpus(),
            global_batch: setup.workload.global_batch,
            sequence: setup.workload.sequence,
            reason,
            nearest: nearest_legal(setup, axes, worst.map(|worst| &worst.refusal)),
        }
    }
}
