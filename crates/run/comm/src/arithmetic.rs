//! Adding up the elements of several ranks, in the order in which they are given.
//!
//! Elements are taken in tiles that stay in the first cache: a tile is widened from the first source, the others are
//! accumulated, and the result goes to every target. A target may be one of the sources.

#[cfg(test)]
mod tests;

use bedplate_kernels::Bf16;
use half::f16;

use crate::{ElementFormat, Reduction};

/// Elements of a tile.
const TILE: usize = 1024;

/// What a format is accumulated in.
trait Lane: Copy {
    type Sum: Copy + Default;

    fn widen(self) -> Self::Sum;
    fn narrow(sum: Self::Sum) -> Self;
    fn add(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn larger(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn smaller(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn divided(sum: Self::Sum, ranks: u32) -> Self::Sum;
}

macro_rules! floating {
    ($lane:ty, $sum:ty, |$value:ident| $widen:expr, |$total:ident| $narrow:expr) => {
        impl Lane for $lane {
            type Sum = $sum;

            #[inline(always)]
            fn widen(self) -> $sum {
                let $value = self;
                $widen
            }

            #[inline(always)]
            fn narrow($total: $sum) -> Self {
                $narrow
            }

            #[inline(always)]
            fn add(a: $sum, b: $sum) -> $sum {
                a + b
            }

            #[inline(always)]
            fn larger(a: $sum, b: $sum) -> $sum {
                if a > b || a.is_nan() { a } else { b }
            }

            #[inline(always)]
            fn smaller(a: $sum, b: $sum) -> $sum {
                if a < b || a.is_nan() { a } else { b }
            }

            #[inline(always)]
            fn divided(sum: $sum, ranks: u32) -> $sum {
                sum / ranks as $sum
            }
        }
    };
}

floating!(f32, f32, |value| value, |sum| sum);
floating!(f64, f64, |value| value, |sum| sum);
floating!(Bf16, f32, |value| value.to_f32(), |sum| Bf16::from_f32(sum));
floating!(f16, f32, |value| value.to_f32(), |sum| f16::from_f32(sum));

macro_rules! whole {
    ($($lane:ty),*) => {
        $(impl Lane for $lane {
            type Sum = $lane;

            #[inline(always)]
            fn widen(self) -> $lane {
                self
            }

            #[inline(always)]
            fn narrow(sum: $lane) -> $lane {
                sum
            }

            #[inline(always)]
            fn add(a: $lane, b: $lane) -> $lane {
                a.wrapping_add(b)
            }

            #[inline(always)]
            fn larger(a: $lane, b: $lane) -> $lane {
                a.max(b)
            }

            #[inline(always)]
            fn smaller(a: $lane, b: $lane) -> $lane {
                a.min(b)
            }

            #[inline(always)]
            fn divided(sum: $lane, ranks: u32) -> $lane {
                // In a wider type: the number of ranks need not fit in eight bits.
                (i128::from(sum) / i128::from(ranks)) as $lane
            }
        })*
    };
}

whole!(i8, u8, i32, u32, i64, u64);

/// How to combine, and by how many to divide at the end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Combine {
    pub(crate) format: ElementFormat,
    pub(crate) by: Reduction,
    /// Ranks that an average is over; 0 when partial results are combined and the division comes later.
    pub(crate) divide_by: u32,
}

/// Combines `len` elements of each source into every target.
///
/// # Safety
///
/// Sources must be readable and targets writable for `len` elements of the format and aligned for it. A target either is one
/// of the sources or overlaps none. No other thread or process may write to any of them meanwhile.
#[expect(unsafe_code, reason = "sources and targets lie in other processes' memory")]
pub(crate) unsafe fn combine(how: Combine, sources: &[*const u8], targets: &[*mut u8], len: usize) {
    // SAFETY: as the caller upholds; the type has the format's size and alignment.
    unsafe {
        match how.format {
            ElementFormat::F32 => wide::<f32>(how, sources, targets, len),
            ElementFormat::F64 => wide::<f64>(how, sources, targets, len),
            ElementFormat::Bf16 => wide::<Bf16>(how, sources, targets, len),
            ElementFormat::F16 => wide::<f16>(how, sources, targets, len),
            ElementFormat::I8 => wide::<i8>(how, sources, targets, len),
            ElementFormat::U8 => wide::<u8>(how, sources, targets, len),
            ElementFormat::I32 => wide::<i32>(how, sources, targets, len),
            ElementFormat::U32 => wide::<u32>(how, sources, targets, len),
            ElementFormat::I64 => wide::<i64>(how, sources, targets, len),
            ElementFormat::U64 => wide::<u64>(how, sources, targets, len),
        }
    }
}

/// # Safety
///
/// As for [`combine`].
#[expect(unsafe_code, reason = "as above")]
unsafe fn wide<L: Lane>(how: Combine, sources: &[*const u8], targets: &[*mut u8], len: usize) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has these instructions; the rest is as the caller upholds.
        return unsafe { with_avx2::<L>(how, sources, targets, len) };
    }
    // SAFETY: as the caller upholds.
    unsafe { tiles::<L>(how, sources, targets, len) }
}

/// # Safety
///
/// As for [`combine`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[expect(unsafe_code, reason = "as above")]
unsafe fn with_avx2<L: Lane>(how: Combine, sources: &[*const u8], targets: &[*mut u8], len: usize) {
    // SAFETY: as the caller upholds.
    unsafe { tiles::<L>(how, sources, targets, len) }
}

/// # Safety
///
/// As for [`combine`].
#[inline(always)]
#[expect(unsafe_code, reason = "as above")]
unsafe fn tiles<L: Lane>(how: Combine, sources: &[*const u8], targets: &[*mut u8], len: usize) {
    let mut tile = [L::Sum::default(); TILE];
    let mut at = 0;
    while at < len {
        let count = TILE.min(len - at);
        let sums = &mut tile[..count];
        for (index, source) in sources.iter().enumerate() {
            // SAFETY: the elements from `at` on are inside the source; nothing writes to them while this slice lives.
            let elements = unsafe { std::slice::from_raw_parts(source.cast::<L>().add(at), count) };
            accumulate(sums, elements, how.by, index == 0);
        }
        if how.by == Reduction::Average && how.divide_by > 0 {
            sums.iter_mut().for_each(|sum| *sum = L::divided(*sum, how.divide_by));
        }
        for target in targets {
            // SAFETY: as above, and no slice of a source is alive.
            let elements = unsafe { std::slice::from_raw_parts_mut(target.cast::<L>().add(at), count) };
            elements.iter_mut().zip(&*sums).for_each(|(number, sum)| *number = L::narrow(*sum));
        }
        at += count;
    }
}

#[inline(always)]
fn accumulate<L: Lane>(sums: &mut [L::Sum], elements: &[L], by: Reduction, is_first: bool) {
    let both = sums.iter_mut().zip(elements);
    if is_first {
        return both.for_each(|(sum, number)| *sum = number.widen());
    }
    match by {
        Reduction::Sum | Reduction::Average => {
            both.for_each(|(sum, number)| *sum = L::add(*sum, number.widen()));
        }
        Reduction::Max => both.for_each(|(sum, number)| *sum = L::larger(*sum, number.widen())),
        Reduction::Min => both.for_each(|(sum, number)| *sum = L::smaller(*sum, number.widen())),
    }
}
