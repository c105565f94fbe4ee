//! Which experts a step touches, when tokens prefer some over others.
//!
//! An expert of popularity `p` is read by a step of `n` tokens with probability `1 - (1-p)^n`. Popularity
//! falls as a power of rank; an exponent of 0 makes all equal. Spread over ranks, a step waits for the rank
//! with the most experts to read. Where there are more places than experts, the most popular ones have a copy each that takes half
//! of their tokens.

/// Share of its experts that the busiest rank reads, by tokens of the step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Touched {
    /// Equally spaced in `ln(1 + n)`.
    table: Vec<f64>,
}

const ENTRIES: usize = 192;
/// `ln(1 + n)` of the last entry: 8.9 million tokens.
const REACH: f64 = 16.0;
/// Classes of equal size by which popularity is summed.
const CLASSES: usize = 32;

impl Touched {
    pub(crate) fn new(experts: f64, places: f64, per_token: f64, skew: f64, ranks: f64) -> Self {
        let popularity = popularity(experts, places, per_token, skew);
        let share = |entry: usize| {
            let tokens = (entry as f64 * REACH / (ENTRIES - 1) as f64).exp_m1();
            busiest(mean_share(&popularity, tokens), places, ranks)
        };
        Self { table: (0..ENTRIES).map(share).collect() }
    }

    pub(crate) fn share(&self, tokens: f64) -> f64 {
        let at = (tokens.max(0.0).ln_1p() * ((ENTRIES - 1) as f64 / REACH)).min((ENTRIES - 2) as f64);
        let index = at as usize;
        let (low, high) = (self.table[index], self.table[index + 1]);
        low + (high - low) * (at - index as f64)
    }
}

/// Places that tokens visit alike.
struct Class {
    /// Probability that a token visits one of them.
    chance: f64,
    places: f64,
}

/// Classes of experts of equal size from the most to the least popular; of the first ones, each expert has two places.
fn popularity(experts: f64, places: f64, per_token: f64, skew: f64) -> Vec<Class> {
    let rank = |class: usize| (class as f64 + 0.5) / CLASSES as f64 * experts + 0.5;
    let weights: Vec<f64> = (0..CLASSES).map(|class| rank(class).powf(-skew)).collect();
    let mean = weights.iter().sum::<f64>() / CLASSES as f64;
    let size = experts / CLASSES as f64;
    let mut copies = (places - experts).max(0.0);
    let classes = weights.into_iter().flat_map(|weight| {
        let chance = (per_token / experts * weight / mean).min(1.0);
        let copied = copies.min(size);
        copies -= copied;
        [Class { chance: chance / 2.0, places: 2.0 * copied }, Class { chance, places: size - copied }]
    });
    classes.filter(|class| class.places > 0.0).collect()
}

fn mean_share(popularity: &[Class], tokens: f64) -> f64 {
    let touched = popularity.iter().map(|class| class.places * (1.0 - (1.0 - class.chance).powf(tokens)));
    let places = popularity.iter().map(|class| class.places);
    touched.sum::<f64>() / places.sum::<f64>()
}

/// The largest of `ranks` binomial shares, as if they were normal.
fn busiest(mean: f64, experts: f64, ranks: f64) -> f64 {
    let deviation = (mean * (1.0 - mean).max(0.0) * ranks / experts).sqrt();
    (mean + largest_of(ranks) * deviation).min(1.0)
}

/// By how many standard deviations the largest of some normal variables is above their mean, on average; within 2 % up to 256 of them.
pub(super) fn largest_of(variables: f64) -> f64 {
    let logarithm = variables.max(1.0).ln();
    (2.0 * logarithm - 1.5 * (1.5 * logarithm).ln_1p()).max(0.0).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_routing_equals_the_closed_form() {
        let touched = Touched::new(256.0, 256.0, 8.0, 0.0, 1.0);
        for tokens in [1.0f64, 3.0, 17.0, 64.0, 333.0, 4096.0] {
            let exact = 1.0 - (1.0 - 8.0 / 256.0f64).powf(tokens);
            assert!((touched.share(tokens) / exact - 1.0).abs() < 2e-3, "{tokens}");
        }
        assert_eq!(touched.share(0.0), 0.0);
    }

    #[test]
    fn skew_touches_fewer_experts_and_spreading_more() {
        let even = Touched::new(128.0, 128.0, 4.0, 0.0, 1.0);
        let skewed = Touched::new(128.0, 128.0, 4.0, 0.8, 1.0);
        let spread = Touched::new(128.0, 128.0, 4.0, 0.0, 8.0);
        for tokens in [4.0, 32.0, 128.0] {
            assert!(skewed.share(tokens) < even.share(tokens));
            assert!(spread.share(tokens) > even.share(tokens));
        }
        assert!(spread.share(1e12) <= 1.0);
    }

    /// The mean of the largest, integrated: the chance that it is above `x`, less that it is below `-x`.
    #[test]
    fn the_largest_of_normal_variables_is_near_its_mean() {
        let below = |x: f64| {
            (0..4000).map(|step| (-(x - (f64::from(step) + 0.5) * 0.003).powi(2) / 2.0).exp()).sum::<f64>()
                * 0.003
                / std::f64::consts::TAU.sqrt()
        };
        for ranks in [2, 4, 8, 16, 64, 256] {
            let above = |x: f64| 1.0 - below(x).powi(ranks) - below(-x).powi(ranks);
            let mean = (0..600).map(|step| above((f64::from(step) + 0.5) * 0.01)).sum::<f64>() * 0.01;
            let found = largest_of(f64::from(ranks));
            assert!((found / mean - 1.0).abs() < 0.02, "{ranks}: {found} beside {mean}");
        }
        assert_eq!(largest_of(1.0), 0.0);
    }

    #[test]
    fn copies_are_read_less_each_and_more_in_all() {
        let (once, twice) =
            (Touched::new(256.0, 256.0, 8.0, 0.3, 1.0), Touched::new(256.0, 288.0, 8.0, 0.3, 1.0));
        for tokens in [4.0, 32.0, 128.0] {
            assert!(twice.share(tokens) < once.share(tokens), "{tokens}");
            assert!(twice.share(tokens) * 288.0 > once.share(tokens) * 256.0, "{tokens}");
        }
    }
}
