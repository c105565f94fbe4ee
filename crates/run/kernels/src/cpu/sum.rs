//! Sums over the numbers of a row, in lanes, so that they become vector code.
//!
//! Which numbers meet in which order depends on the length alone.

/// Four vectors of the widest kind: enough to hide how long an addition takes.
const LANES: usize = 64;

#[inline(always)]
pub(crate) fn sum<A: Copy>(a: &[A], term: impl Fn(A) -> f32) -> f32 {
    inlined!(sum3(a, a, a, |a, _, _| term(a)))
}

#[inline(always)]
pub(crate) fn sum2<A: Copy, B: Copy>(a: &[A], b: &[B], term: impl Fn(A, B) -> f32) -> f32 {
    inlined!(sum3(a, b, b, |a, b, _| term(a, b)))
}

/// The sum of `term` over three slices of one length.
#[inline(always)]
pub(crate) fn sum3<A: Copy, B: Copy, C: Copy>(
    a: &[A],
    b: &[B],
    c: &[C],
    term: impl Fn(A, B, C) -> f32,
) -> f32 {
    let mut lanes = [0.0; LANES];
    let whole = a.len() / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        let (a, b, c) = (&a[start..][..LANES], &b[start..][..LANES], &c[start..][..LANES]);
        for lane in 0..LANES {
            lanes[lane] += term(a[lane], b[lane], c[lane]);
        }
    }
    for (((lane, a), b), c) in lanes.iter_mut().zip(&a[whole..]).zip(&b[whole..]).zip(&c[whole..]) {
        *lane += term(*a, *b, *c);
    }
    fold(lanes, |a, b| a + b)
}

/// Replaces every number by what `new` makes of it, and gives their sum.
#[inline(always)]
pub(crate) fn replace_and_sum(numbers: &mut [f32], new: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (whole, rest) = numbers.as_chunks_mut::<LANES>();
    for numbers in whole {
        for (lane, number) in lanes.iter_mut().zip(numbers) {
            *number = new(*number);
            *lane += *number;
        }
    }
    for (lane, number) in lanes.iter_mut().zip(rest) {
        *number = new(*number);
        *lane += *number;
    }
    fold(lanes, |a, b| a + b)
}

/// The largest number; the lowest of the format where there is none. A NaN may be passed over.
#[inline(always)]
pub(crate) fn largest(numbers: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let whole = numbers.len() / LANES * LANES;
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    for start in (0..whole).step_by(LANES) {
        let numbers = &numbers[start..][..LANES];
        for lane in 0..LANES {
            lanes[lane] = larger(lanes[lane], numbers[lane]);
        }
    }
    for (lane, number) in lanes.iter_mut().zip(&numbers[whole..]) {
        *lane = larger(*lane, *number);
    }
    fold(lanes, larger)
}

/// Joins lanes, as many as a power of two, always in the same order.
#[inline(always)]
pub(crate) fn fold<const LANES: usize>(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = join(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_counted_once_whatever_the_length() {
        for len in 0..300 {
            let numbers: Vec<f32> = (0..len).map(|number| number as f32).collect();
            assert_eq!(sum(&numbers, |number| number), (len * (len.max(1) - 1) / 2) as f32);
            let mut doubled = numbers.clone();
            assert_eq!(
                replace_and_sum(&mut doubled, |number| 2.0 * number),
                2.0 * sum(&numbers, |number| number)
            );
            assert!(doubled.iter().zip(&numbers).all(|(doubled, number)| *doubled == 2.0 * number));
            assert_eq!(sum2(&numbers, &numbers, |a, b| a - b + 1.0), len as f32);
            assert_eq!(largest(&numbers), if len == 0 { f32::NEG_INFINITY } else { len as f32 - 1.0 });
        }
    }
}
