//! Memory that the ranks of a host reach in place.

use std::borrow::{Borrow, BorrowMut};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bedplate_kernels::Buffer;

use crate::Number;
use crate::core::Core;
use crate::span::ByteSpan;
use crate::wire::Message;

/// A buffer that the ranks of this host reach in place.
pub struct Registered<E: Number> {
    pub(super) core: Arc<Core>,
    pub(super) buffer: Buffer<E>,
    pub(super) span: ByteSpan,
    /// None for a GPU's memory, which no peer maps.
    pub(super) id: Option<u64>,
}

impl<E: Number> Deref for Registered<E> {
    type Target = Buffer<E>;

    fn deref(&self) -> &Buffer<E> {
        &self.buffer
    }
}

impl<E: Number> DerefMut for Registered<E> {
    fn deref_mut(&mut self) -> &mut Buffer<E> {
        &mut self.buffer
    }
}

impl<E: Number> Borrow<Buffer<E>> for Registered<E> {
    fn borrow(&self) -> &Buffer<E> {
        &self.buffer
    }
}

impl<E: Number> BorrowMut<Buffer<E>> for Registered<E> {
    fn borrow_mut(&mut self) -> &mut Buffer<E> {
        &mut self.buffer
    }
}

impl<E: Number> Drop for Registered<E> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        self.core.windows.remove_own(self.span);
        // Peers that are gone have forgotten it.
        let _ = self.core.tell_host(&Message::Forget { id }, None);
    }
}
