//! Drawing the next token from logits.

use bedplate_random::Random;

/// How tokens are sampled. Temperature 0 takes the most likely one.
#[derive(Debug, Clone)]
pub struct Sampler {
    temperature: f64,
    /// Only tokens that together hold this share of the probability are sampled from.
    top_share: f64,
    random: Random,
}

impl Sampler {
    pub fn new(temperature: f64, top_share: f64, seed: u64) -> Self {
        Self { temperature, top_share, random: Random::new(seed) }
    }

    /// Samples a token. Logits must not be empty.
    pub fn sample(&mut self, logits: &[f32]) -> u32 {
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
        if self.temperature <= 0.0 {
            return order[0];
        }
        let most = f64::from(logits[order[0] as usize]);
        let temperature = self.temperature;
        let weight = |token: &u32| ((f64::from(logits[*token as usize]) - most) / temperature).exp();
        let whole: f64 = order.iter().map(weight).sum();
        let mut kept = 0.0;
        let nucleus = order.iter().take_while(|token| {
            let is_inside = kept < self.top_share * whole;
            kept += weight(token);
            is_inside
        });
        let nucleus: Vec<u32> = nucleus.copied().collect();
        let mut left = self.random.uniform() * nucleus.iter().map(weight).sum::<f64>();
        let sampled = nucleus.iter().find(|token| {
            left -= weight(token);
            left < 0.0
        });
        *sampled.or(nucleus.last()).unwrap_or(&order[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cold_takes_the_most_likely_and_a_nucleus_leaves_out_the_tail() {
        let logits = [0.0, 3.0, 1.0, -2.0];
        assert_eq!(Sampler::new(0.0, 1.0, 0).sample(&logits), 1);
        let mut sampler = Sampler::new(1.0, 0.9, 7);
        let sampled: Vec<u32> = (0..200).map(|_| sampler.sample(&logits)).collect();
        assert!(sampled.iter().all(|token| *token == 1 || *token == 2));
        assert!(sampled.contains(&2));
    }

    #[test]
    fn shares_follow_the_probabilities() {
        let mut sampler = Sampler::new(1.0, 1.0, 3);
        let ones = (0..10_000).filter(|_| sampler.sample(&[0.0, 1.0]) == 1).count();
        assert!((ones as f64 / 10_000.0 - 0.731).abs() < 0.02, "{ones}");
    }
}
