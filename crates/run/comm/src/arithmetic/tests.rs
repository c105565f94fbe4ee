//! Sums of several sources against one number at a time. Runs under Miri too.

use super::*;

/// Combines in place into the first source and into a target apart.
fn combined<L: Copy + Default>(how: Combine, sources: &mut [Vec<L>]) -> (Vec<L>, Vec<L>) {
    let len = sources[0].len();
    let mut apart = vec![L::default(); len];
    let addresses: Vec<*mut u8> = sources.iter_mut().map(|source| source.as_mut_ptr().cast()).collect();
    let from: Vec<*const u8> = addresses.iter().map(|address| address.cast_const()).collect();
    let targets = [addresses[0], apart.as_mut_ptr().cast()];
    #[expect(unsafe_code, reason = "the function under test works on addresses")]
    // SAFETY: all vectors have `len` elements; the first target is the first source, the other overlaps nothing.
    unsafe {
        combine(how, &from, &targets, len);
    }
    (sources[0].clone(), apart)
}

fn check<L: Copy + Default + PartialEq + std::fmt::Debug>(
    format: ElementFormat,
    make: impl Fn(usize) -> L,
    reduce: impl Fn(Reduction, &[L]) -> L,
) {
    // Miri takes its time.
    let (lengths, most_ranks): (&[usize], _) = if cfg!(miri) {
        (&[0, 7, TILE + 1], 2)
    } else {
        (&[0, 1, 7, TILE - 1, TILE, TILE + 1, 2 * TILE + 5], 5)
    };
    for len in lengths.iter().copied() {
        for ranks in 1..=most_ranks {
            for by in Reduction::ALL {
                let mut sources: Vec<Vec<L>> =
                    (0..ranks).map(|rank| (0..len).map(|index| make(rank * 31 + index)).collect()).collect();
                let at = |index: usize| sources.iter().map(|source| source[index]).collect::<Vec<L>>();
                let expected: Vec<L> = (0..len).map(|index| reduce(by, &at(index))).collect();
                let how = Combine { format, by, divide_by: ranks as u32 };
                let (in_place, apart) = combined(how, &mut sources);
                assert_eq!((in_place, apart), (expected.clone(), expected), "{format} {by} of {ranks}");
            }
        }
    }
}

fn float(by: Reduction, all: &[f32]) -> f32 {
    let sum = || all[1..].iter().fold(all[0], |sum, number| sum + number);
    match by {
        Reduction::Sum => sum(),
        Reduction::Average => sum() / all.len() as f32,
        Reduction::Max => all.iter().copied().fold(f32::MIN, f32::max),
        Reduction::Min => all.iter().copied().fold(f32::MAX, f32::min),
    }
}

#[test]
fn numbers_of_all_sources_become_one_in_their_order() {
    let number = |index: usize| (index % 97) as f32 * 0.37 - 11.0;
    check(ElementFormat::F32, number, float);
    let widened = |by, all: &[Bf16]| {
        let all: Vec<f32> = all.iter().map(|number| number.to_f32()).collect();
        Bf16::from_f32(float(by, &all))
    };
    check(ElementFormat::Bf16, |index| Bf16::from_f32(number(index)), widened);
    let halves = |by, all: &[f16]| {
        let all: Vec<f32> = all.iter().map(|number| number.to_f32()).collect();
        f16::from_f32(float(by, &all))
    };
    check(ElementFormat::F16, |index| f16::from_f32(number(index)), halves);
}

#[test]
fn whole_numbers_wrap_and_averages_round_towards_zero() {
    let reduce = |by: Reduction, all: &[i8]| {
        let sum = all.iter().fold(0i8, |sum, number| sum.wrapping_add(*number));
        match by {
            Reduction::Sum => sum,
            Reduction::Average => (i32::from(sum) / all.len() as i32) as i8,
            Reduction::Max => all.iter().copied().max().unwrap(),
            Reduction::Min => all.iter().copied().min().unwrap(),
        }
    };
    check(ElementFormat::I8, |index| (index * 37) as i8, reduce);
    let reduce = |by: Reduction, all: &[u64]| {
        let sum = all.iter().fold(0u64, |sum, number| sum.wrapping_add(*number));
        match by {
            Reduction::Sum => sum,
            Reduction::Average => sum / all.len() as u64,
            Reduction::Max => all.iter().copied().max().unwrap(),
            Reduction::Min => all.iter().copied().min().unwrap(),
        }
    };
    check(ElementFormat::U64, |index| u64::MAX / 3 + index as u64, reduce);
}
