//! Where the time of operators goes, under the parts of a breakdown.

use std::cell::Cell;
use std::time::Instant;

use bedplate_breakdown::{Breakdown, Measured, Part, Span};
use bedplate_units::Seconds;

/// Adds up the time of operators until it is taken. Operators run one after the other, so all of it is exposed.
#[derive(Debug, Default)]
pub(super) struct Meter(Cell<Breakdown<Measured>>);

impl Meter {
    pub(crate) fn time<R>(&self, part: Part, work: impl FnOnce() -> R) -> R {
        let began = Instant::now();
        let result = work();
        let mut breakdown = self.0.get();
        breakdown[part] = breakdown[part] + Span::exposed(Seconds::new(began.elapsed().as_secs_f64()));
        self.0.set(breakdown);
        result
    }

    pub(crate) fn take(&self) -> Breakdown<Measured> {
        self.0.take()
    }
}
