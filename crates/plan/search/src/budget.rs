//! Which model for the money: compute-optimal sizes by published scaling laws.
//!
//! `C = 6 N D`: training computation from parameters and tokens (Kaplan et al. 2020). Each law splits `C`
//! between the two; the laws disagree, so all are given with their names and constants.

use bedplate_units::{DollarRate, Dollars, FlopRate, Flops, Seconds, Tokens};

use crate::SearchError;

/// A published law of how to split computation between parameters and tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Law {
    /// `L = E + A/N^a + B/D^b`, approach 3 of Hoffmann et al. 2022.
    Chinchilla,
    /// The same form, refitted to the data of the paper's figure by Besiroglu et al. 2024.
    ChinchillaRefitted,
    /// Twenty tokens per parameter: approaches 1 and 2 of the same paper, as a rule of thumb.
    TwentyTokens,
    /// `N = 1.3e9 C^0.73`, `C` in PF-days: Kaplan et al. 2020. Counts no embeddings.
    Kaplan,
}

/// The constants of `L(N, D) = floor + A / N^alpha + B / D^beta`.
struct Parametric {
    floor: f64,
    a: f64,
    b: f64,
    alpha: f64,
    beta: f64,
}

/// Hoffmann et al., arXiv:2203.15556, equation 10.
const CHINCHILLA: Parametric = Parametric { floor: 1.69, a: 406.4, b: 410.7, alpha: 0.34, beta: 0.28 };
/// Besiroglu et al., arXiv:2404.10102, table 1.
const REFITTED: Parametric = Parametric { floor: 1.8172, a: 482.01, b: 2085.43, alpha: 0.3478, beta: 0.3658 };
/// Kaplan et al., arXiv:2001.08361, appendix A, table 6.
const KAPLAN_PARAMETERS: f64 = 1.3e9;
const KAPLAN_EXPONENT: f64 = 0.73;
const PF_DAY: f64 = 1e15 * 86_400.0;
const FLOPS_PER_PARAMETER_AND_TOKEN: f64 = 6.0;
const TOKENS_PER_PARAMETER: f64 = 20.0;

/// What a law recommends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Optimum {
    pub law: Law,
    pub parameters: f64,
    pub tokens: Tokens,
    /// Loss in nats per token on the law's own data, where the law gives one.
    pub loss: Option<f64>,
}

impl Law {
    pub const ALL: [Law; 4] = [Law::Chinchilla, Law::ChinchillaRefitted, Law::TwentyTokens, Law::Kaplan];

    pub fn name(self) -> &'static str {
        match self {
            Law::Chinchilla => "Chinchilla, approach 3",
            Law::ChinchillaRefitted => "Chinchilla, refitted",
            Law::TwentyTokens => "20 tokens per parameter",
            Law::Kaplan => "Kaplan",
        }
    }

    /// The paper and the constants.
    pub fn source(self) -> &'static str {
        match self {
            Law::Chinchilla => {
                "Hoffmann et al. 2022, arXiv:2203.15556, eq. 10: E 1.69, A 406.4, B 410.7, alpha 0.34, beta 0.28"
            }
            Law::ChinchillaRefitted => {
                "Besiroglu et al. 2024, arXiv:2404.10102: E 1.8172, A 482.01, B 2085.43, alpha 0.3478, beta 0.3658"
            }
            Law::TwentyTokens => {
                "Hoffmann et al. 2022, arXiv:2203.15556, approaches 1 and 2, as a rule of thumb"
            }
            Law::Kaplan => {
                "Kaplan et al. 2020, arXiv:2001.08361, table 6: N = 1.3e9 C^0.73 with C in PF-days"
            }
        }
    }

    pub fn optimum(self, compute: Flops) -> Optimum {
        let product = compute.get() / FLOPS_PER_PARAMETER_AND_TOKEN;
        let parameters = match self {
            Law::Chinchilla => CHINCHILLA.parameters(product),
            Law::ChinchillaRefitted => REFITTED.parameters(product),
            Law::TwentyTokens => (product / TOKENS_PER_PARAMETER).sqrt(),
            Law::Kaplan => KAPLAN_PARAMETERS * (compute.get() / PF_DAY).powf(KAPLAN_EXPONENT),
        };
        let tokens = product / parameters;
        let loss = match self {
            Law::Chinchilla => Some(CHINCHILLA.loss(parameters, tokens)),
            Law::ChinchillaRefitted => Some(REFITTED.loss(parameters, tokens)),
            Law::TwentyTokens | Law::Kaplan => None,
        };
        Optimum { law: self, parameters, tokens: Tokens::new(tokens), loss }
    }
}

impl Parametric {
    /// `N = G (C/6)^(beta/(alpha+beta))` with `G = (alpha A / (beta B))^(1/(alpha+beta))`: where the loss is
    /// minimal under `N D = C/6`.
    fn parameters(&self, product: f64) -> f64 {
        let sum = self.alpha + self.beta;
        let scale = (self.alpha * self.a / (self.beta * self.b)).powf(1.0 / sum);
        scale * product.powf(self.beta / sum)
    }

    fn loss(&self, parameters: f64, tokens: f64) -> f64 {
        self.floor + self.a / parameters.powf(self.alpha) + self.b / tokens.powf(self.beta)
    }
}

/// The budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Means {
    /// GPU time, added over GPUs.
    GpuTime(Seconds),
    /// Money, at the price of one GPU.
    Money { dollars: Dollars, per_gpu: DollarRate },
}

/// What the budget buys, and each law's recommendation.
#[derive(Debug, Clone, PartialEq)]
pub struct BudgetPlan {
    pub gpu_time: Seconds,
    pub compute: Flops,
    /// In the order of [`Law::ALL`].
    pub optima: Vec<Optimum>,
}

/// Compute-optimal sizes for a budget, at the FLOP/s that one GPU delivers: its peak times the model FLOPs
/// utilisation, such as that of a searched layout.
pub fn budget(means: Means, delivered: FlopRate) -> Result<BudgetPlan, SearchError> {
    let gpu_time = match means {
        Means::GpuTime(time) => time,
        Means::Money { dollars, per_gpu } => dollars / per_gpu,
    };
    let compute = delivered * gpu_time;
    if !compute.get().is_finite() || compute.get() <= 0.0 {
        let dollars = match means {
            Means::Money { dollars, .. } => Some(dollars),
            Means::GpuTime(_) => None,
        };
        return Err(SearchError::EmptyBudget { dollars, gpu_time: Some(gpu_time) });
    }
    Ok(BudgetPlan { gpu_time, compute, optima: Law::ALL.map(|law| law.optimum(compute)).to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The computation of Gopher and Chinchilla: 5.76e23 (paper, section 3).
    const GOPHER: Flops = Flops::new(5.76e23);

    #[test]
    fn the_laws_give_what_their_papers_print() {
        let billions = |law: Law| law.optimum(GOPHER).parameters / 1e9;
        // Table 3: 63B by approach 2, 40B by approach 3, 67B by approach 1.
        assert!((billions(Law::TwentyTokens) - 69.3).abs() < 0.1, "{}", billions(Law::TwentyTokens));
        assert!((30.0..45.0).contains(&billions(Law::Chinchilla)), "{}", billions(Law::Chinchilla));
        assert!(
            (60.0..80.0).contains(&billions(Law::ChinchillaRefitted)),
            "{}",
            billions(Law::ChinchillaRefitted)
        );
        // Kaplan's law recommends a far larger model and fewer tokens.
        assert!(billions(Law::Kaplan) > 300.0, "{}", billions(Law::Kaplan));
    }

    #[test]
    fn money_becomes_gpu_time() {
        let means =
            Means::Money { dollars: Dollars::new(2000.0), per_gpu: DollarRate::per_hour(Dollars::new(2.0)) };
        let plan = budget(means, FlopRate::tflops(400.0)).unwrap();
        assert!((plan.gpu_time.as_hours() - 1000.0).abs() < 1e-9);
        assert!((plan.compute.get() / 1.44e21 - 1.0).abs() < 1e-9);
        assert!(budget(Means::GpuTime(Seconds::ZERO), FlopRate::tflops(1.0)).is_err());
    }

    proptest! {
        #[test]
        fn every_law_spends_all_and_the_parametric_ones_are_least(exponent in 18.0..27.0f64, factor in 0.2..5.0f64) {
            let compute = Flops::new(10f64.powf(exponent));
            for law in Law::ALL {
                let optimum = law.optimum(compute);
                let spent = 6.0 * optimum.parameters * optimum.tokens.get();
                prop_assert!((spent / compute.get() - 1.0).abs() < 1e-9);
            }
            for parametric in [CHINCHILLA, REFITTED] {
                let product = compute.get() / 6.0;
                let best = parametric.parameters(product);
                let other = best * factor;
                prop_assert!(parametric.loss(best, product / best) <= parametric.loss(other, product / other) + 1e-12);
            }
        }
    }
}
