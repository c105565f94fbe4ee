//! Elements of a call as addresses, so that another thread can carry the call out.

use bedplate_kernels::{Device, View, ViewMut};

use crate::Number;

/// Bytes that a call reads or writes. Whoever makes a call keeps them alive and untouched until it is over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ByteSpan {
    pub(crate) address: *mut u8,
    pub(crate) bytes: usize,
    /// Whether only a GPU reaches them.
    pub(crate) is_on_gpu: bool,
}

#[expect(unsafe_code, reason = "addresses go to the thread that carries calls out")]
// SAFETY: a span is an address; it is followed only while its owner waits for the call or has given its buffers to it.
unsafe impl Send for ByteSpan {}

#[expect(unsafe_code, reason = "an owner of memory that is shared knows its address")]
// SAFETY: a shared span gives nothing but its address and its length.
unsafe impl Sync for ByteSpan {}

impl ByteSpan {
    /// For members that give or get nothing.
    pub(crate) const NOTHING: Self =
        Self { address: std::ptr::without_provenance_mut(64), bytes: 0, is_on_gpu: false };

    pub(crate) fn over(bytes: &[u8]) -> Self {
        Self { address: bytes.as_ptr().cast_mut(), bytes: bytes.len(), is_on_gpu: false }
    }

    pub(crate) fn over_mut(bytes: &mut [u8]) -> Self {
        Self { address: bytes.as_mut_ptr(), bytes: bytes.len(), is_on_gpu: false }
    }

    pub(crate) fn of<E: Number>(device: &Device, view: View<'_, E>) -> Self {
        if let Some(address) = device.address_of(view) {
            return Self::on_gpu(address, view.len() * size_of::<E>());
        }
        let elements = device.lend(view).expect("the processor's memory is lent");
        Self { address: elements.as_ptr().cast_mut().cast(), bytes: size_of_val(elements), is_on_gpu: false }
    }

    pub(crate) fn of_mut<E: Number>(device: &Device, view: ViewMut<'_, E>) -> Self {
        if let Some(address) = device.address_of(view.view()) {
            return Self::on_gpu(address, view.len() * size_of::<E>());
        }
        let elements = device.lend_mut(view).expect("the processor's memory is lent");
        Self { address: elements.as_mut_ptr().cast(), bytes: size_of_val(elements), is_on_gpu: false }
    }

    fn on_gpu(address: u64, bytes: usize) -> Self {
        Self { address: std::ptr::without_provenance_mut(address as usize), bytes, is_on_gpu: true }
    }

    /// Panics when the bytes are not inside.
    pub(crate) fn part(self, offset: usize, bytes: usize) -> Self {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "{bytes} bytes at {offset} of {}",
            self.bytes
        );
        Self { address: self.address.wrapping_add(offset), bytes, ..self }
    }

    pub(crate) fn end(self) -> usize {
        self.address.addr() + self.bytes
    }

    /// # Safety
    ///
    /// The memory must be alive, and nothing may write to it while the slice lives.
    #[expect(unsafe_code, reason = "an address becomes a slice")]
    pub(crate) unsafe fn as_slice<'a>(self) -> &'a [u8] {
        // SAFETY: as the caller upholds; the address is never null.
        unsafe { std::slice::from_raw_parts(self.address, self.bytes) }
    }

    /// # Safety
    ///
    /// The memory must be alive, and nothing else may use it while the slice lives.
    #[expect(unsafe_code, reason = "an address becomes a slice")]
    pub(crate) unsafe fn as_slice_mut<'a>(self) -> &'a mut [u8] {
        // SAFETY: as the caller upholds; the address is never null.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.bytes) }
    }
}

/// Copies bytes unless source and target are the same.
///
/// # Safety
///
/// Both ranges must be alive, and either the same or without overlap.
#[expect(unsafe_code, reason = "copies between addresses")]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    if from != to.cast_const() {
        // SAFETY: as the caller upholds.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
    }
}
