//! What the processor's arithmetic could do at most, which shares of a limit are shares of.

use std::hint::black_box;
use std::time::Instant;

use super::{Cpu, Level};

/// Sums that are independent of each other: enough to fill the pipelines of two multiply-add units.
const SUMS: usize = 12;
/// Multiply-adds that each number goes through in a round.
const ROUND: usize = 100_000;

/// FLOPs that a tile unit does in a cycle in bf16 over those of two wide vector units in f32: 1024 over 64 (Intel 64 and
/// IA-32 Architectures Optimization Reference Manual, chapter on AMX).
const TILES: f64 = 16.0;
/// Products of bf16 that tiles compute for one of f32.
const SPLIT: f64 = 6.0;

impl Cpu {
    pub(crate) fn arithmetic_limit(&self) -> f64 {
        let level = self.level;
        let round = || {
            let began = Instant::now();
            self.pool.run(self.threads(), &|_, _| {
                black_box(multiply_add(level, black_box(0.999)));
            });
            began.elapsed().as_secs_f64()
        };
        // The first rounds wake the processor up; the fastest of the others was disturbed least.
        let fastest = (0..200).map(|_| round()).skip(20).fold(f64::INFINITY, f64::min);
        let of_vectors = (2 * SUMS * lanes(level) * ROUND * self.threads()) as f64 / fastest;
        if self.has_tiles { TILES / SPLIT * of_vectors } else { of_vectors }
    }

    pub(crate) fn arithmetic_limit_bf16(&self, of_f32: f64) -> f64 {
        if self.has_tiles { SPLIT * of_f32 } else { of_f32 }
    }
}

/// Elements of a vector.
fn lanes(level: Level) -> usize {
    match level {
        Level::Avx512 => 16,
        Level::Avx2 => 8,
        Level::Portable => 4,
    }
}

fn multiply_add(level: Level, factor: f32) -> f32 {
    match level {
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "calls code for instructions that the processor has")]
        // SAFETY: `Level::detect` gives this level only where the processor has these instructions.
        Level::Avx512 => unsafe { multiply_add_512(factor) },
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "calls code for instructions that the processor has")]
        // SAFETY: as above.
        Level::Avx2 => unsafe { multiply_add_256(factor) },
        _ => portable(factor),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn multiply_add_512(factor: f32) -> f32 {
    use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_reduce_add_ps, _mm512_set1_ps};
    let (factor, more) = (_mm512_set1_ps(factor), _mm512_set1_ps(0.001));
    let mut sums = [more; SUMS];
    for _ in 0..ROUND {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, factor, more);
        }
    }
    let mut total = 0.0;
    for sum in sums {
        total += _mm512_reduce_add_ps(sum);
    }
    total
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx,fma")]
fn multiply_add_256(factor: f32) -> f32 {
    use std::arch::x86_64::{_mm256_cvtss_f32, _mm256_fmadd_ps, _mm256_set1_ps};
    let (factor, more) = (_mm256_set1_ps(factor), _mm256_set1_ps(0.001));
    let mut sums = [more; SUMS];
    for _ in 0..ROUND {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, factor, more);
        }
    }
    let mut total = 0.0;
    for sum in sums {
        total += _mm256_cvtss_f32(sum);
    }
    total
}

/// Products and sums one after the other, where they cannot be fused.
fn portable(factor: f32) -> f32 {
    let mut sums = [[1.0f32; 4]; SUMS];
    for _ in 0..ROUND {
        for sum in &mut sums {
            *sum = sum.map(|number| number * factor + 0.001);
        }
    }
    sums.iter().flatten().sum()
}

#[cfg(test)]
mod tests {
    use crate::Device;

    #[test]
    fn the_limit_is_a_number_of_plausible_size_and_tiles_raise_that_of_bf16() {
        let device = Device::cpu(1);
        let limit = device.arithmetic_limit();
        assert!((1e8..1e12).contains(&limit), "{limit}");
        assert_eq!(device.arithmetic_limit_bf16(limit) > limit, device.has_tiles());
    }
}
