//! Seconds by part, and their arithmetic.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Add, AddAssign, Index, IndexMut, Mul};

use bedplate_units::Seconds;

use crate::Part;

/// The time of one part: exposed, and hidden behind other work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    pub exposed: Seconds,
    pub hidden: Seconds,
}

impl Span {
    pub fn exposed(exposed: Seconds) -> Self {
        Self { exposed, hidden: Seconds::ZERO }
    }

    pub fn hidden(hidden: Seconds) -> Self {
        Self { exposed: Seconds::ZERO, hidden }
    }

    /// Exposed and hidden together.
    pub fn busy(self) -> Seconds {
        self.exposed + self.hidden
    }
}

impl Add for Span {
    type Output = Span;
    fn add(self, other: Span) -> Span {
        Span { exposed: self.exposed + other.exposed, hidden: self.hidden + other.hidden }
    }
}

impl Mul<f64> for Span {
    type Output = Span;
    fn mul(self, factor: f64) -> Span {
        Span { exposed: self.exposed * factor, hidden: self.hidden * factor }
    }
}

/// Marks a breakdown that a model computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Predicted {}

/// Marks a breakdown that clocks measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measured {}

/// The time of a step or request by part. Breakdowns of different origin cannot be added.
pub struct Breakdown<Origin> {
    spans: [Span; Part::ALL.len()],
    origin: PhantomData<Origin>,
}

impl<Origin> Breakdown<Origin> {
    /// The whole: exposed seconds of all parts.
    pub fn total(&self) -> Seconds {
        self.spans.iter().map(|span| span.exposed).sum()
    }

    /// The same with one part replaced.
    pub fn with(mut self, part: Part, span: Span) -> Self {
        self[part] = span;
        self
    }

    pub fn parts(&self) -> impl Iterator<Item = (Part, Span)> {
        Part::ALL.into_iter().zip(self.spans)
    }

    /// Exposed share of the whole, 0 when nothing took any time.
    pub fn share(&self, part: Part) -> f64 {
        let total = self.total();
        if total.is_zero() { 0.0 } else { self[part].exposed / total }
    }

    /// The part with the most exposed time: what limits the run.
    pub fn limit(&self) -> Option<Part> {
        let most = self.parts().max_by_key(|(part, span)| (span.exposed, std::cmp::Reverse(*part)))?;
        (!most.1.exposed.is_zero()).then_some(most.0)
    }
}

impl Breakdown<Measured> {
    /// What was measured in one stretch of a run, as what is expected of the rest.
    pub fn as_expected(&self) -> Breakdown<Predicted> {
        Breakdown { spans: self.spans, origin: PhantomData }
    }
}

impl<Origin> Index<Part> for Breakdown<Origin> {
    type Output = Span;
    fn index(&self, part: Part) -> &Span {
        &self.spans[part as usize]
    }
}

impl<Origin> IndexMut<Part> for Breakdown<Origin> {
    fn index_mut(&mut self, part: Part) -> &mut Span {
        &mut self.spans[part as usize]
    }
}

impl<Origin> AddAssign for Breakdown<Origin> {
    fn add_assign(&mut self, other: Self) {
        for (span, more) in self.spans.iter_mut().zip(other.spans) {
            *span = *span + more;
        }
    }
}

impl<Origin> Add for Breakdown<Origin> {
    type Output = Self;
    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl<Origin> Mul<f64> for Breakdown<Origin> {
    type Output = Self;
    fn mul(mut self, factor: f64) -> Self {
        self.spans = self.spans.map(|span| span * factor);
        self
    }
}

// Written out, because a derive would put the same bound on the marker types.
impl<Origin> Default for Breakdown<Origin> {
    fn default() -> Self {
        Self { spans: Default::default(), origin: PhantomData }
    }
}

impl<Origin> Clone for Breakdown<Origin> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Origin> Copy for Breakdown<Origin> {}

impl<Origin> PartialEq for Breakdown<Origin> {
    fn eq(&self, other: &Self) -> bool {
        self.spans == other.spans
    }
}

impl<Origin> fmt::Debug for Breakdown<Origin> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.parts().filter(|(_, span)| !span.busy().is_zero());
        f.debug_map().entries(used.map(|(part, span)| (part.name(), span))).finish()
    }
}
