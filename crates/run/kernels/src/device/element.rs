//! The two number formats of activations and weights.
//!
//! `Bf16` is our own and not the `half` crate's: loops widen it by a plain shift, where `half` also looks for NaN, and its
//! functions are always inlined, as code that is compiled for a level needs.

use std::fmt;

use half::f16;

/// A brain float: the upper half of an `f32`.
#[derive(Clone, Copy, Default, PartialEq)]
#[repr(transparent)]
pub struct Bf16(u16);

impl Bf16 {
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// Rounds to nearest, ties to even; a NaN stays one.
    #[inline(always)]
    pub fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let quiet = (bits >> 16) | 0x40;
        // Both are computed and one is chosen, so that a loop over this becomes vector code.
        let is_nan = (bits & 0x7fff_ffff) > 0x7f80_0000;
        Self(if is_nan { quiet } else { rounded } as u16)
    }

    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

impl fmt::Debug for Bf16 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_f32(), f)
    }
}

/// What a buffer may hold; all bits are a valid value.
///
/// Weights in fp8 would be further values; those packed with scales, a value per block of elements. They would not be
/// an [`Element`]: operators that take such weights widen them while they pack. Operators take `f32`, [`Bf16`] and, for tokens,
/// positions and numbers of experts, `u32`; the others are for what ranks exchange.
pub trait BufferValue: Copy + Default + Send + Sync + PartialEq + fmt::Debug + Sealed + 'static {}

/// A format that activations and weights may have. Arithmetic is done in `f32` whatever the format.
pub trait Element: BufferValue + Formatted {
    /// Its name in configurations and safetensors, in lower case.
    const NAME: &'static str;

    fn widen(self) -> f32;

    /// Rounds to nearest.
    fn narrow(value: f32) -> Self;
}

/// Keeps [`BufferValue`] to the types that devices have memory for.
pub trait Sealed {}

macro_rules! values {
    ($($value:ty),*) => { $(impl BufferValue for $value {} impl Sealed for $value {})* };
}

values!(f32, f64, Bf16, f16, i8, u8, i32, u32, i64, u64);

/// Elements of either format.
#[derive(Debug, Clone, Copy)]
pub enum Elements<'a> {
    F32(&'a [f32]),
    Bf16(&'a [Bf16]),
}

/// Tells code that has a faster way for one format which one it has.
pub trait Formatted: Sized {
    fn elements(values: &[Self]) -> Elements<'_>;
}

impl Element for f32 {
    const NAME: &'static str = "f32";

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        value
    }
}

impl Formatted for f32 {
    fn elements(values: &[Self]) -> Elements<'_> {
        Elements::F32(values)
    }
}

impl Element for Bf16 {
    const NAME: &'static str = "bf16";

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl Formatted for Bf16 {
    fn elements(values: &[Self]) -> Elements<'_> {
        Elements::Bf16(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ties_round_to_even_and_nan_stays_nan() {
        assert_eq!(Bf16::from_f32(f32::from_bits(0x3f80_8000)).to_bits(), 0x3f80);
        assert_eq!(Bf16::from_f32(f32::from_bits(0x3f81_8000)).to_bits(), 0x3f82);
        assert_eq!(Bf16::from_f32(f32::INFINITY).to_f32(), f32::INFINITY);
        assert!(Bf16::from_f32(f32::from_bits(0x7f80_0001)).to_f32().is_nan());
    }

    proptest! {
        #[test]
        fn rounding_moves_a_number_by_at_most_half_a_unit(value in -1e30f32..1e30) {
            let rounded = Bf16::from_f32(value).to_f32();
            prop_assert!((rounded - value).abs() <= value.abs() / 256.0 + f32::MIN_POSITIVE);
        }
    }
}
