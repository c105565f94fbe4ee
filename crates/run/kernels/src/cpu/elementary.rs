//! Exponentials in plain arithmetic, so that loops over them become vector code.
//!
//! Polynomials are minimax fits of ours, evaluated with fused multiplication and addition: five times as fast here as without,
//! and slow only on processors that have no such instruction. Errors are a few units in the last place where a result is not tiny; results
//! below the smallest normal number become zero.

/// `e^x`: 0 below -87.3, infinite above 88.7, NaN for NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // x = n ln 2 + rest, with ln 2 in two parts so that the product of n and the first is exact.
    const LN_2_UPPER: f32 = 0.693_359_4;
    const LN_2_LOWER: f32 = -2.121_944_4e-4;
    // Adding this leaves the nearest whole number in the lowest bits.
    const ROUNDER: f32 = 12_582_912.0;
    let rounded = x.mul_add(std::f32::consts::LOG2_E, ROUNDER);
    let n = rounded - ROUNDER;
    let rest = n.mul_add(-LN_2_LOWER, n.mul_add(-LN_2_UPPER, x));
    // Relative error 2e-9 on the interval of half a ln 2 on both sides of 0.
    const TERMS: [f32; 5] = [0.001_383_58, 0.008_375_645, 0.041_668_29, 0.166_664_1, 0.5];
    let tail = polynomial(TERMS, rest);
    let mantissa = 1.0 + (rest * rest).mul_add(tail, rest);
    let power = f32::from_bits(mantissa.to_bits().wrapping_add(rounded.to_bits() << 23));
    let power = if x > 88.722_83 { f32::INFINITY } else { power };
    let power = if x < -87.336_54 { 0.0 } else { power };
    if x.is_nan() { x } else { power }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    // Cephes: near zero a polynomial in the square, elsewhere by an exponential.
    const TERMS: [f32; 5] = [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1];
    let size = x.abs();
    let square = x * x;
    let near = (polynomial(TERMS, square) * square).mul_add(x, x);
    let far = 1.0 - 2.0 / (exp(2.0 * size) + 1.0);
    if size < 0.625 { near } else { far.copysign(x) }
}

/// The standard normal distribution at one place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Normal {
    /// The share of the distribution below.
    pub(crate) share: f32,
    pub(crate) density: f32,
}

/// The share is `erfc(-x / sqrt 2) / 2`.
#[inline(always)]
pub(crate) fn normal(x: f32) -> Normal {
    const TERMS: [f32; 10] = [
        0.028_695_746,
        -0.074_748_88,
        -0.063_686_71,
        0.275_789,
        -0.068_567_514,
        0.268_638_06,
        0.177_416_19,
        0.231_355_17,
        0.225_082_57,
        2.640_531e-5,
    ];
    const ROOT_OF_TWO_PI: f32 = 2.506_628_3;
    let distance = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let bell = exp(-0.5 * x * x);
    // e^(z^2) erfc(z) is smooth in 1 / (1 + 0.4 z): relative error 3e-8 for z up to 10, beyond which `bell` is 0.
    let place = 1.0 / (1.0 + 0.4 * distance);
    let tail = 0.5 * bell * polynomial(TERMS, place);
    Normal { share: if x > 0.0 { 1.0 - tail } else { tail }, density: bell / ROOT_OF_TWO_PI }
}

/// The highest power first.
#[inline(always)]
fn polynomial<const N: usize>(terms: [f32; N], x: f32) -> f32 {
    let mut sum = terms[0];
    for term in &terms[1..] {
        sum = sum.mul_add(x, *term);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every 1,000th number of the format.
    fn numbers() -> impl Iterator<Item = f32> {
        (0..u32::MAX).step_by(1_009).map(f32::from_bits)
    }

    #[test]
    fn exp_is_within_two_units_of_the_last_place() {
        for x in numbers().filter(|x| x.is_finite()) {
            let exact = f64::from(x).exp();
            let found = exp(x);
            if exact > f64::from(f32::MAX) {
                assert!(found == f32::INFINITY || exact < f64::from(f32::MAX) * 1.0001, "{x}");
            } else if exact < f64::from(f32::MIN_POSITIVE) {
                assert!(f64::from(found) <= f64::from(f32::MIN_POSITIVE) * 1.0001, "{x} gives {found}");
            } else {
                let error = (f64::from(found) - exact).abs() / exact;
                assert!(error < 2.0 * f64::from(f32::EPSILON), "{x} gives {found}, exact is {exact}");
            }
        }
    }

    #[test]
    fn the_edges_of_exp_and_sigmoid_are_right() {
        assert_eq!([0.0, f32::INFINITY, f32::NEG_INFINITY].map(exp), [1.0, f32::INFINITY, 0.0]);
        assert!(exp(f32::NAN).is_nan());
        assert_eq!([0.0, 1000.0, -1000.0].map(sigmoid), [0.5, 1.0, 0.0]);
        assert_eq!([f32::INFINITY, f32::NEG_INFINITY].map(sigmoid), [1.0, 0.0]);
    }

    /// By the series around 0 and the continued fraction far out.
    fn exact_share(x: f64) -> f64 {
        let z = x.abs();
        let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let upper = if z < 3.0 {
            let mut term = z;
            let mut sum = z;
            for n in 1..200 {
                term *= z * z / f64::from(2 * n + 1);
                sum += term;
            }
            0.5 - density * sum
        } else {
            density / (1..200).rev().fold(z, |fraction, n| z + f64::from(n) / fraction)
        };
        if x > 0.0 { 1.0 - upper } else { upper }
    }

    #[test]
    fn the_normal_distribution_is_exact_to_rounding_even_in_its_tail() {
        for step in -1300..1300 {
            let x = step as f32 * 0.01;
            let (found, exact) = (f64::from(normal(x).share), exact_share(f64::from(x)));
            // The square in the exponent is rounded, which its exponential multiplies.
            let tolerance = f64::from(f32::EPSILON) * (3.0 + 0.5 * f64::from(x * x));
            assert!(
                (found - exact).abs() <= tolerance * exact + 1e-37,
                "{x} gives {found}, exact is {exact}"
            );
        }
        assert_eq!(normal(f32::INFINITY).share, 1.0);
        assert_eq!(normal(f32::NEG_INFINITY).share, 0.0);
        assert!(normal(f32::NAN).share.is_nan());
    }
}
