//! Rounding to e4m3: a sign, four bits of exponent and three more of the number.
//!
//! A row has a power of two as scale, so that what stands for a number is a bf16 exactly.

use crate::cpu::Cpu;
use crate::{Bf16, Buffer, Element, Matrix};

/// The exponent of the largest number, 448, and its bits below the leading one.
const TOP: i32 = 8;
const TOP_FRACTION: u32 = 0x60_0000;
/// The exponent of the smallest number that has a leading one, and its bits below it.
const LEAST: i32 = -6;
const BITS: i32 = 3;

impl Cpu {
    pub(super) fn rounded_to_fp8<W: Element>(&self, weight: Matrix<'_, W>) -> Buffer<Bf16> {
        let (shape, weight) = (weight.shape(), self.rows(weight));
        let mut rounded = self.zeros::<Bf16>(shape.0 * shape.1);
        let to = self.rows_mut(rounded.view_mut().matrix(shape.0, shape.1));
        self.in_rows(shape, to, |row, to| {
            let scale = scale_of(weight.row(row).iter().map(|number| number.widen()));
            for (to, number) in to.iter_mut().zip(weight.row(row)) {
                *to = Bf16::narrow(nearest(number.widen() / scale) * scale);
            }
        });
        rounded
    }
}

/// The smallest power of two with which all numbers are at most 448; 1 for zeros.
fn scale_of(numbers: impl Iterator<Item = f32>) -> f32 {
    let most = numbers.fold(0.0f32, |most, number| most.max(number.abs()));
    if most == 0.0 {
        return 1.0;
    }
    let (exponent, fraction) = ((most.to_bits() >> 23) as i32 - 127, most.to_bits() & 0x7f_ffff);
    let exponent = exponent - TOP + i32::from(fraction > TOP_FRACTION);
    power(exponent.clamp(-100, 100))
}

/// The nearest number of e4m3, of two the even one; for numbers up to 448.
fn nearest(number: f32) -> f32 {
    let exponent = (number.to_bits() >> 23 & 0xff) as i32 - 127;
    let step = power(exponent.max(LEAST) - BITS);
    (number / step).round_ties_even() * step
}

fn power(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number of the format, by its definition.
    fn all() -> Vec<f32> {
        let value = |code: i32| match (code >> 3, code & 7) {
            (0, fraction) => fraction as f32 / 512.0,
            (exponent, fraction) => (1.0 + fraction as f32 / 8.0) * power(exponent - 7),
        };
        (0..0x7f).map(value).collect()
    }

    #[test]
    fn numbers_go_to_the_nearest_one_and_those_of_the_format_stay() {
        let all = all();
        assert_eq!(all.last(), Some(&448.0));
        for pair in all.windows(2) {
            let (low, high) = (pair[0], pair[1]);
            assert_eq!([low, high].map(nearest), [low, high]);
            assert_eq!([-low, -high].map(nearest), [-low, -high]);
            let middle = (low + high) / 2.0;
            assert_eq!([middle - 1e-6 * high, middle + 1e-6 * high].map(nearest), [low, high]);
        }
    }

    #[test]
    fn a_scale_uses_the_whole_range() {
        for (most, scale) in [(448.0, 1.0), (449.0, 2.0), (224.0, 0.5), (1.75, 1.0 / 256.0), (0.0, 1.0)] {
            assert_eq!(scale_of([0.1 * most, -most].into_iter()), scale, "{most}");
        }
    }
}
