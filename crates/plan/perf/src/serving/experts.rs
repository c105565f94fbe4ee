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

/// The largest of `ranks` binomial shares, by the usual bound on a maximum of normal variables.
fn busiest(mean: f64, experts: f64, ranks: f64) -> f64 {
    if ranks <= 1.0 {
        return mean;
    }
    let deviation = (mean * (1.0 - mean).max(0.0) * ranks / experts).sqrt();
    (mean + (2.0 * ranks.ln()).sqrt() * deviation).min(1.0)
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
