//! Asking for memory before it is needed.

/// Asks for a cache line that will soon be read, into the second-level cache. The address need not be valid.
#[inline(always)]
pub(crate) fn to_read<E>(address: *const E) {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "an instruction that takes an address")]
    // SAFETY: it changes nothing but what the cache holds, and ignores addresses that are not valid.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks for the cache lines of some elements that will be written. The address need not be valid.
#[inline(always)]
pub(crate) fn to_write<E>(address: *const E, count: usize) {
    #[cfg(target_arch = "x86_64")]
    for start in (0..count * size_of::<E>()).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        #[expect(unsafe_code, reason = "an instruction that takes an address")]
        // SAFETY: it changes nothing but what the cache holds, and ignores addresses that are not valid.
        unsafe {
            _mm_prefetch::<_MM_HINT_ET0>(address.cast::<i8>().wrapping_add(start));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, count);
}
