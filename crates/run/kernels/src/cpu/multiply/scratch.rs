//! Memory that products need for the time of one operator; it grows on first use and is then kept.

use crate::{Buffer, Value};

use super::cut::Cut;

#[derive(Default)]
pub(crate) struct Scratch {
    /// Packed panels, shared by the team.
    pub(crate) panels: Grown<f32>,
    /// Sums of tiles and the like, a part for each member.
    pub(crate) sums: Grown<f32>,
    pub(crate) cuts: Vec<Cut>,
}

/// A buffer that is replaced by a longer one when that is asked for.
pub(crate) struct Grown<E>(Buffer<E>);

impl<E: Value> Default for Grown<E> {
    fn default() -> Self {
        Self(Buffer::zeros(0))
    }
}

impl<E: Value> Grown<E> {
    /// The first `len` numbers; what they hold is left from earlier use.
    pub(crate) fn first(&mut self, len: usize) -> &mut [E] {
        if self.0.len() < len {
            self.0 = Buffer::zeros(len);
        }
        &mut self.0.host_mut()[..len]
    }
}
