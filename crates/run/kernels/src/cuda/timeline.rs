//! Where the GPU's time goes, by events on its stream.
//!
//! A mark is set where the part changes, and one where the host waits for the GPU; the time between two marks belongs to the part that began at
//! the first. Between the end of a wait and the next operator the GPU is idle, and that time belongs to none.

use std::cell::RefCell;

use bedplate_breakdown::{Breakdown, Measured, Part, Span};
use bedplate_units::Seconds;

use super::driver::CudaContext;

/// Marks that are kept before they are added up.
const MOST: usize = 4096;

#[derive(Default)]
pub(super) struct DeviceTimeline(RefCell<Marks>);

#[derive(Default)]
struct Marks {
    events: Vec<usize>,
    /// What begins at each event that is in use; none where the host waits.
    begun: Vec<Option<Part>>,
    sums: Breakdown<Measured>,
}

impl DeviceTimeline {
    /// An operator of a part follows.
    pub(super) fn enter(&self, context: &CudaContext, part: Part) {
        let mut marks = self.0.borrow_mut();
        if marks.begun.last() != Some(&Some(part)) {
            marks.mark(context, Some(part));
        }
    }

    /// The host waits for what was started.
    pub(super) fn pause(&self, context: &CudaContext) {
        let mut marks = self.0.borrow_mut();
        if marks.begun.last().is_some_and(Option::is_some) {
            marks.mark(context, None);
        }
    }

    pub(super) fn take(&self, context: &CudaContext) -> Breakdown<Measured> {
        self.pause(context);
        let mut marks = self.0.borrow_mut();
        marks.add_up(context);
        std::mem::take(&mut marks.sums)
    }
}

impl Marks {
    fn mark(&mut self, context: &CudaContext, begins: Option<Part>) {
        if self.begun.len() == MOST {
            self.add_up(context);
        }
        if self.events.len() == self.begun.len() {
            let mut event = 0;
            if !context.ask("make an event", |driver| driver.event_create(&mut event, 0)) {
                return;
            }
            self.events.push(event);
        }
        let event = self.events[self.begun.len()];
        if context.ask("record an event", |driver| driver.event_record(event, context.stream())) {
            self.begun.push(begins);
        }
    }

    fn add_up(&mut self, context: &CudaContext) {
        if self.begun.is_empty() {
            return;
        }
        context.synchronize();
        let pairs = self.events.windows(2).zip(self.begun.windows(2));
        for (events, begun) in pairs {
            let Some(part) = begun[0] else { continue };
            let mut milliseconds = 0.0;
            context.ask("tell the time between events", |driver| {
                driver.event_elapsed(&mut milliseconds, events[0], events[1])
            });
            self.sums[part] = self.sums[part] + Span::exposed(Seconds::new(f64::from(milliseconds) / 1000.0));
        }
        self.begun.clear();
    }
}
