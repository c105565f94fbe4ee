//! The learning rate of each step.

/// How the learning rate changes after its warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decay {
    Constant,
    Linear,
    Cosine,
    /// Constant, and linear over the last part of the run.
    WarmupStableDecay,
}

impl Decay {
    pub const ALL: [(&'static str, Decay); 4] = [
        ("constant", Decay::Constant),
        ("linear", Decay::Linear),
        ("cosine", Decay::Cosine),
        ("warmup-stable-decay", Decay::WarmupStableDecay),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, decay)| *decay == self).map_or("", |(name, _)| name)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRate {
    pub peak: f64,
    pub decay: Decay,
    /// Steps in which it rises from zero.
    pub warmup: u64,
    /// The last rate, as a share of the peak.
    pub final_share: f64,
    /// Last share of the run in which a warmup-stable-decay schedule falls.
    pub decay_share: f64,
    /// Steps of the whole run.
    pub steps: u64,
}

impl LearningRate {
    /// The rate of a step, counted from 0. The first step of a warm-up is not at zero, the last is at the peak.
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.peak * (step + 1) as f64 / self.warmup as f64;
        }
        let falling = match self.decay {
            Decay::Constant => 0.0,
            Decay::Linear | Decay::Cosine => fraction(step, self.warmup, self.steps),
            Decay::WarmupStableDecay => {
                let last = (self.steps as f64 * self.decay_share).round() as u64;
                fraction(step, self.steps.saturating_sub(last).max(self.warmup), self.steps)
            }
        };
        let kept = match self.decay {
            Decay::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * falling).cos()),
            _ => 1.0 - falling,
        };
        self.peak * (self.final_share + (1.0 - self.final_share) * kept)
    }
}

/// How far a step is from `from` to the last step before `to`.
fn fraction(step: u64, from: u64, to: u64) -> f64 {
    let whole = to.saturating_sub(from + 1).max(1) as f64;
    (step.saturating_sub(from) as f64 / whole).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(decay: Decay) -> Vec<f64> {
        let rate = LearningRate { peak: 1.0, decay, warmup: 2, final_share: 0.1, decay_share: 0.4, steps: 7 };
        (0..8).map(|step| (rate.at(step) * 1000.0).round() / 1000.0).collect()
    }

    #[test]
    fn every_schedule_warms_up_and_ends_where_it_should() {
        assert_eq!(rates(Decay::Constant), [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!(rates(Decay::Linear), [0.5, 1.0, 1.0, 0.775, 0.55, 0.325, 0.1, 0.1]);
        assert_eq!(rates(Decay::Cosine), [0.5, 1.0, 1.0, 0.868, 0.55, 0.232, 0.1, 0.1]);
        assert_eq!(rates(Decay::WarmupStableDecay), [0.5, 1.0, 1.0, 1.0, 1.0, 0.55, 0.1, 0.1]);
    }
}
