//! The load of parallel machines as Lublin and Feitelson modelled it (J. Parallel Distrib. Comput. 63, 2003), which studies of schedulers use.
//!
//! A quarter of the jobs are of one processor; the logarithm of the others' sizes is uniform in two stages, rounded to a power of two more often than
//! not. The logarithm of run times comes from one of two gamma distributions, the longer one for large jobs. Gaps between
//! submissions are gamma distributed in their logarithm and stretched by the hour of the day. The parameters are those of the authors for loads without types of jobs.

use bedplate_gangs::{Span, Time};
use bedplate_random::Random;

use super::{Size, Trace, TraceJob};

/// What to generate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lublin {
    pub jobs: usize,
    /// Processors of the machine, each taken for a GPU.
    pub processors: u32,
    /// Work over capacity in the window of submissions.
    pub load: f64,
    pub seed: u64,
}

/// Separates these draws from others of the same seed.
const STREAM: u64 = 0x6c75_626c_696e_3939;

const SERIAL: f64 = 0.244;
const POWER_OF_TWO: f64 = 0.576;
/// Logarithms of the smallest parallel job, and of the distance of the border between stages from the largest.
const SMALLEST: f64 = 0.8;
const BELOW_LARGEST: f64 = 2.5;
const FIRST_STAGE: f64 = 0.86;

/// Shape and scale of the logarithm of run times, of short jobs and of long ones.
const RUNS: [[f64; 2]; 2] = [[4.2, 0.94], [312.0, 0.03]];
/// The share of short jobs, by processors.
const SHORT: [f64; 2] = [-0.0054, 0.78];
/// The logarithm of two days, beyond which run times are drawn again.
const LONGEST: f64 = 12.0;

/// Shape and scale of the logarithm of gaps in the busiest hours; the shape of those of all hours is larger by the third number.
const GAPS: [f64; 3] = [10.2303, 0.4871, 1.0225];
/// The logarithm of five days.
const LONGEST_GAP: f64 = 13.0;
/// Shape and scale of the half-hours in which jobs arrive, from the hour at which a day begins.
const ARRIVALS: [f64; 2] = [8.1737, 3.9631];
const DAY_BEGINS: usize = 11;
const HALF_HOURS: usize = 48;

impl Lublin {
    pub fn generate(&self) -> Trace {
        let mut random = Random::stream(self.seed ^ STREAM, 0);
        let mut trace = Trace::default();
        let mut clock = Clock::new();
        for number in 0..self.jobs {
            let processors = self.size(&mut random);
            let submit = clock.next(&mut random);
            let seconds = run_time(processors, &mut random);
            let mut job = TraceJob::new(submit, Span((seconds * 1000.0) as u64), Size::Gpus(processors));
            job.name = number.to_string();
            trace.jobs.push(job);
        }
        trace.finish().scaled_to_load(self.load, self.processors)
    }

    fn size(&self, random: &mut Random) -> u32 {
        if random.unit() <= SERIAL {
            return 1;
        }
        let largest = f64::from(self.processors.max(2)).log2();
        let border = (largest - BELOW_LARGEST).max(SMALLEST);
        let exponent = match random.unit() <= FIRST_STAGE {
            true => random.between(SMALLEST, border),
            false => random.between(border, largest),
        };
        let size = match random.unit() <= POWER_OF_TWO {
            true => exponent.round().exp2(),
            false => exponent.exp2().round(),
        };
        (size as u32).clamp(1, self.processors.max(1))
    }
}

fn run_time(processors: u32, random: &mut Random) -> f64 {
    let short = (SHORT[0] * f64::from(processors) + SHORT[1]).clamp(0.0, 1.0);
    loop {
        let [shape, scale] = RUNS[usize::from(random.unit() > short)];
        let logarithm = gamma(shape, scale, random);
        if logarithm <= LONGEST {
            return logarithm.exp().max(1.0);
        }
    }
}

/// When jobs arrive.
struct Clock {
    /// How fast the time to the next job passes in each half-hour; 1 on average.
    pace: [f64; HALF_HOURS],
    now: f64,
}

impl Clock {
    fn new() -> Self {
        let mut pace = [0.0; HALF_HOURS];
        for at in DAY_BEGINS..DAY_BEGINS + HALF_HOURS {
            let [low, high] =
                [at as f64 - 0.5, at as f64 + 0.5].map(|until| share_below(until / ARRIVALS[1], ARRIVALS[0]));
            pace[at % HALF_HOURS] = high - low;
        }
        let mean = pace.iter().sum::<f64>() / HALF_HOURS as f64;
        Self { pace: pace.map(|pace| pace / mean), now: 0.0 }
    }

    fn next(&mut self, random: &mut Random) -> Time {
        const HALF_HOUR: f64 = 1800.0;
        let [shape, scale, all_hours] = GAPS;
        let mut left = loop {
            let logarithm = gamma(shape * all_hours, scale, random);
            if logarithm <= LONGEST_GAP {
                break logarithm.exp();
            }
        };
        loop {
            let place = (self.now / HALF_HOUR).floor();
            let pace = self.pace[place as usize % HALF_HOURS].max(1e-6);
            let rest = (place + 1.0) * HALF_HOUR - self.now;
            if left <= rest * pace {
                self.now += left / pace;
                return Time((self.now * 1000.0) as u64);
            }
            left -= rest * pace;
            self.now = (place + 1.0) * HALF_HOUR;
        }
    }
}

/// A number with the gamma distribution (Marsaglia and Tsang, 2000), for shapes of at least 1.
fn gamma(shape: f64, scale: f64, random: &mut Random) -> f64 {
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = random.normal();
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && random.unit().ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return scale * d * v;
        }
    }
}

/// The share of the gamma distribution with scale 1 below a number, by its series.
fn share_below(number: f64, shape: f64) -> f64 {
    if number <= 0.0 {
        return 0.0;
    }
    // The logarithm of the first term: e^-x x^a / Γ(a + 1).
    let mut term = (shape * number.ln() - number - log_factorial(shape)).exp();
    let (mut sum, mut at) = (term, shape);
    while term > sum * 1e-12 {
        at += 1.0;
        term *= number / at;
        sum += term;
    }
    sum.min(1.0)
}

/// ln Γ(a + 1), by Stirling's series well above a.
fn log_factorial(a: f64) -> f64 {
    let (mut x, mut below) = (a + 1.0, 0.0);
    while x < 20.0 {
        below += x.ln();
        x += 1.0;
    }
    (x - 0.5) * x.ln() - x + 0.5 * std::f64::consts::TAU.ln() + 1.0 / (12.0 * x)
        - 1.0 / (360.0 * x.powi(3))
        - below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_the_gamma_distribution_are_those_of_the_tables() {
        // A shape of 1 is the exponential distribution, of 4 a sum of four.
        for x in [0.1, 1.0, 3.0] {
            assert!((share_below(x, 1.0) - (1.0 - (-x).exp())).abs() < 1e-9);
            let four = 1.0 - (-x).exp() * (1.0 + x + x * x / 2.0 + x * x * x / 6.0);
            assert!((share_below(x, 4.0) - four).abs() < 1e-9);
        }
    }

    #[test]
    fn a_load_has_the_sizes_run_times_and_hours_of_the_model() {
        let trace = Lublin { jobs: 20_000, processors: 256, load: 0.7, seed: 3 }.generate();
        let share = |is_so: fn(&TraceJob) -> bool| {
            trace.jobs.iter().filter(|job| is_so(job)).count() as f64 / trace.jobs.len() as f64
        };
        assert!((share(|job| job.gpus() == 1.0) - SERIAL).abs() < 0.02);
        let powers = share(|job| (job.gpus() as u32).is_power_of_two());
        assert!((0.6..0.85).contains(&powers), "{powers}");
        assert!(share(|job| job.gpus() > 45.0) < 0.2 && share(|job| job.gpus() > 45.0) > 0.05);
        assert!((trace.load(256) - 0.7).abs() < 0.01);
        let short = share(|job| job.duration < Span::minutes(10));
        assert!((0.4..0.8).contains(&short), "{short}");
        assert!(share(|job| job.duration > Span::days(2)) < 1e-4);
        assert_eq!(trace, Lublin { jobs: 20_000, processors: 256, load: 0.7, seed: 3 }.generate());
    }
}
