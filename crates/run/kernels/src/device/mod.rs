//! The device: threads, instructions and scratch memory behind the operators.

mod buffer;
mod element;
mod heads;
mod meter;

use std::cell::RefCell;

use bedplate_breakdown::{Breakdown, Measured, Part};

use crate::cpu::level::{Level, has_tiles};
use crate::cpu::multiply::Scratch;
use crate::cpu::scratch::PartialSums;
use crate::cpu::team::Team;
pub use buffer::{Buffer, Matrix, MatrixMut, View, ViewMut};
pub use element::{Bf16, Element, Value};
pub use heads::Heads;
use meter::Meter;

/// The processor, with its threads. One thread calls its operators; they share the work out.
pub struct Device {
    pub(crate) level: Level,
    pub(crate) has_tiles: bool,
    pub(crate) team: Team,
    pub(crate) meter: Meter,
    pub(crate) scratch: RefCell<Scratch>,
    pub(crate) partial_sums: PartialSums,
}

impl Device {
    /// The processor with `threads` threads, at least one.
    pub fn cpu(threads: usize) -> Self {
        Self::at(Level::detect(), has_tiles(), threads)
    }

    /// The processor as if it could do no more than this, which must not be more than it can.
    pub(crate) fn at(level: Level, has_tiles: bool, threads: usize) -> Self {
        Self {
            level,
            has_tiles,
            team: Team::new(threads),
            meter: Meter::default(),
            scratch: RefCell::default(),
            partial_sums: PartialSums::default(),
        }
    }

    pub fn threads(&self) -> usize {
        self.team.size()
    }

    /// Whether bf16 products use the processor's tile unit (AMX).
    pub fn has_tiles(&self) -> bool {
        self.has_tiles
    }

    /// What the operators are compiled for, as people say it.
    pub fn instructions(&self) -> String {
        format!("{}{}", self.level.name(), if self.has_tiles { " with AMX" } else { "" })
    }

    /// The time of operators by part since this was last asked.
    pub fn take_measured(&self) -> Breakdown<Measured> {
        self.meter.take()
    }

    /// Books what `work` takes under a part; operators inside must not be booked again.
    pub(crate) fn time<R>(&self, part: Part, work: impl FnOnce() -> R) -> R {
        self.meter.time(part, work)
    }

    /// Copies numbers to the device. Panics when the lengths differ.
    pub fn write<E: Value>(&self, to: ViewMut<'_, E>, from: &[E]) {
        to.into_host().copy_from_slice(from);
    }

    /// Copies numbers from the device. Panics when the lengths differ.
    pub fn read<E: Value>(&self, from: View<'_, E>, to: &mut [E]) {
        to.copy_from_slice(from.host());
    }
}
