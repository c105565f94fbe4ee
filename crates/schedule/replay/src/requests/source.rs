//! What arrives next: recorded requests, generated ones, and follow-ups.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::engine::Picoseconds;
use super::load::{GeneratedLoad, Generator};
use super::planned::Planned;

/// The requests to be replayed.
#[derive(Debug, Clone, PartialEq)]
pub enum Traffic {
    /// As recorded; in any order.
    Trace(Vec<Planned>),
    Generated(GeneratedLoad),
}

#[derive(Debug)]
pub(crate) struct RequestSource {
    recorded: std::vec::IntoIter<Planned>,
    generator: Option<Generator>,
    /// The next independent request.
    next: Option<Planned>,
    /// Requests that follow answers: when, in which order drawn, and where in `later`.
    following: BinaryHeap<Reverse<(Picoseconds, u64, u32)>>,
    later: Vec<Option<Planned>>,
    vacant: Vec<u32>,
    drawn: u64,
}

impl RequestSource {
    pub(crate) fn new(traffic: Traffic) -> Self {
        let (mut recorded, generator) = match traffic {
            Traffic::Trace(requests) => (requests, None),
            Traffic::Generated(load) => (Vec::new(), Some(Generator::new(load))),
        };
        // Stable: requests of the same moment stay in the order of the file.
        recorded.sort_by_key(|planned| planned.at);
        let mut source = Self {
            recorded: recorded.into_iter(),
            generator,
            next: None,
            following: BinaryHeap::new(),
            later: Vec::new(),
            vacant: Vec::new(),
            drawn: 0,
        };
        source.next = source.draw();
        source
    }

    pub(crate) fn time(&self) -> Option<Picoseconds> {
        let next = self.next.as_ref().map(|planned| planned.at);
        let following = self.following.peek().map(|Reverse((at, ..))| *at);
        match (next, following) {
            (Some(next), Some(following)) => Some(next.min(following)),
            (next, following) => next.or(following),
        }
    }

    /// The request that arrives at `time`.
    pub(crate) fn take(&mut self) -> Option<Planned> {
        let following = self.following.peek().map(|Reverse((at, ..))| *at);
        if let Some(at) = following
            && self.next.as_ref().is_none_or(|next| at < next.at)
        {
            let Reverse((_, _, place)) = self.following.pop()?;
            self.vacant.push(place);
            return self.later[place as usize].take();
        }
        let next = self.draw();
        std::mem::replace(&mut self.next, next)
    }

    /// Reports that a request was answered, which may trigger a follow-up.
    pub(crate) fn answered(&mut self, planned: &Planned, now: Picoseconds) {
        let Some(generator) = &mut self.generator else { return };
        let Some(follower) = generator.after(planned, now) else { return };
        let place = self.vacant.pop().unwrap_or(self.later.len() as u32);
        if place as usize == self.later.len() {
            self.later.push(None);
        }
        self.following.push(Reverse((follower.at, self.drawn, place)));
        self.drawn += 1;
        self.later[place as usize] = Some(follower);
    }

    fn draw(&mut self) -> Option<Planned> {
        match &mut self.generator {
            Some(generator) => generator.arrival(),
            None => self.recorded.next(),
        }
    }
}
