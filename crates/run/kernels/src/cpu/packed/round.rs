//! Rounding of neighbouring numbers to whole ones with a common scale.

use half::f16;

use super::layout::STEP;

/// What stands for some numbers: whole ones, each times the scale.
pub(super) struct Rounded {
    pub(super) scale: f16,
    pub(super) numbers: [i32; STEP],
}

/// What a scale makes of numbers, and how far the squares of the errors add up.
struct Fit {
    scale: f16,
    error: f32,
}

/// Whole numbers up to 127 to either side.
pub(super) fn to_8_bits(numbers: &[f32; STEP]) -> Rounded {
    let scale = f16::from_f32(farthest(numbers).abs() / 127.0);
    Rounded { scale, numbers: whole(numbers, scale.to_f32(), 127.0) }
}

/// Whole numbers from -8 to 7. The number farthest from zero may be put at -8 or anywhere short of it: where clipping it a
/// little makes the others more exact, the scale is smaller. Of some scales the one with the least sum of squared errors
/// is taken, after the scale that is best for its whole numbers has been found.
pub(super) fn to_4_bits(numbers: &[f32; STEP]) -> Rounded {
    /// Where the farthest number comes to lie.
    const PLACES: [f32; 9] = [-8.5, -8.0, -7.5, -7.0, -6.5, -6.0, 6.0, 6.8, 7.4];
    let farthest = farthest(numbers);
    let mut best = Fit { scale: f16::ZERO, error: f32::INFINITY };
    for place in PLACES {
        let scale = farthest / place;
        for scale in [scale, best_for(numbers, &whole(numbers, scale, 7.0))] {
            let fit = fit(numbers, f16::from_f32(scale));
            best = if fit.error < best.error { fit } else { best };
        }
    }
    Rounded { scale: best.scale, numbers: whole(numbers, best.scale.to_f32(), 7.0) }
}

/// The number of the largest size, with its sign.
#[inline(always)]
fn farthest(numbers: &[f32; STEP]) -> f32 {
    let mut farthest = 0.0f32;
    for number in numbers {
        farthest = if number.abs() > farthest.abs() { *number } else { farthest };
    }
    farthest
}

/// The nearest whole numbers, at most `most` and at least as far below zero; with 4 bits one farther.
#[inline(always)]
fn whole(numbers: &[f32; STEP], scale: f32, most: f32) -> [i32; STEP] {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let least = if most == 7.0 { -8.0 } else { -most };
    numbers.map(|number| nearest((number * inverse).clamp(least, most)))
}

/// Ties to even, for numbers far below 2^22.
#[inline(always)]
fn nearest(number: f32) -> i32 {
    /// Adding it leaves no room for a fraction.
    const ROUND: f32 = 12_582_912.0;
    (number + ROUND - ROUND) as i32
}

/// The scale with which whole numbers are closest to numbers: least squares.
#[inline(always)]
fn best_for(numbers: &[f32; STEP], whole: &[i32; STEP]) -> f32 {
    let (mut product, mut square) = (0.0, 0.0);
    for (number, whole) in numbers.iter().zip(whole) {
        let whole = *whole as f32;
        product += number * whole;
        square += whole * whole;
    }
    if square == 0.0 { 0.0 } else { product / square }
}

#[inline(always)]
fn fit(numbers: &[f32; STEP], scale: f16) -> Fit {
    let wide = scale.to_f32();
    let whole = whole(numbers, wide, 7.0);
    let distance = |number: &f32, whole: &i32| number - *whole as f32 * wide;
    let error = numbers.iter().zip(&whole).map(|(number, whole)| distance(number, whole).powi(2)).sum();
    Fit { scale, error }
}
