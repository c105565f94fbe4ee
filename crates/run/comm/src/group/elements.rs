//! What a started call may keep until it is over.

use std::borrow::BorrowMut;

use bedplate_kernels::{Buffer, View, ViewMut};

use crate::{Number, Registered};

/// Elements that a started call may keep: a buffer of a device, registered or not.
pub trait Elements<E: Number>: Send + 'static {
    fn view(&self) -> View<'_, E>;
    fn view_mut(&mut self) -> ViewMut<'_, E>;
}

impl<E: Number> Elements<E> for Buffer<E> {
    fn view(&self) -> View<'_, E> {
        Buffer::view(self)
    }

    fn view_mut(&mut self) -> ViewMut<'_, E> {
        Buffer::view_mut(self)
    }
}

impl<E: Number> Elements<E> for Registered<E> {
    fn view(&self) -> View<'_, E> {
        Buffer::view(self)
    }

    fn view_mut(&mut self) -> ViewMut<'_, E> {
        Buffer::view_mut(self)
    }
}

/// A buffer of either kind.
impl<E: Number> Elements<E> for Box<dyn BorrowMut<Buffer<E>> + Send + Sync> {
    fn view(&self) -> View<'_, E> {
        let buffer: &Buffer<E> = (**self).borrow();
        buffer.view()
    }

    fn view_mut(&mut self) -> ViewMut<'_, E> {
        (**self).borrow_mut().view_mut()
    }
}
