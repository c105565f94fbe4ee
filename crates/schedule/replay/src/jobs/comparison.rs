//! Policies side by side: means over seeds with their standard errors, ratios to the first policy, and winners.

use super::{ReplayPolicy, ReplaySummary};

/// What one policy did under one seed.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub policy: ReplayPolicy,
    pub seed: u64,
    pub summary: ReplaySummary,
}

/// Every policy under every seed, seed by seed; never empty.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison(Vec<Run>);

/// A figure over seeds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    pub mean: f64,
    pub standard_error: f64,
}

impl Mean {
    pub fn of(values: &[f64]) -> Self {
        let count = values.len().max(1) as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance =
            values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
        Self { mean, standard_error: (variance / count).sqrt() }
    }
}

/// A name, and what it measures.
type Measure = (&'static str, fn(&ReplaySummary) -> f64);

/// Policies whose mean is within this factor of the best one are as good.
const CLOSE: f64 = 1.05;

impl Comparison {
    /// `None` without any run.
    pub fn new(runs: Vec<Run>) -> Option<Self> {
        (!runs.is_empty()).then_some(Self(runs))
    }

    pub fn runs(&self) -> &[Run] {
        &self.0
    }

    /// Those of the first seed.
    pub fn first_runs(&self) -> impl Iterator<Item = &Run> {
        self.0.iter().filter(|run| run.seed == self.0[0].seed)
    }

    /// In the order of the runs.
    pub fn policies(&self) -> Vec<ReplayPolicy> {
        self.first_runs().map(|run| run.policy).collect()
    }

    pub fn seeds(&self) -> usize {
        self.0.len() / self.policies().len().max(1)
    }

    /// Work over capacity of the jobs that the cluster can run, which is the same for every policy.
    pub fn offered_load(&self) -> f64 {
        self.0[0].summary.load
    }

    /// Whether the cluster can run none of the jobs.
    pub fn is_hopeless(&self) -> bool {
        self.0.iter().all(|run| run.summary.rejected == run.summary.jobs)
    }

    pub fn summaries(&self, policy: ReplayPolicy) -> impl Iterator<Item = &ReplaySummary> {
        self.0.iter().filter(move |run| run.policy == policy).map(|run| &run.summary)
    }

    pub fn mean(&self, policy: ReplayPolicy, figure: impl Fn(&ReplaySummary) -> f64) -> Mean {
        Mean::of(&self.summaries(policy).map(figure).collect::<Vec<_>>())
    }

    /// Over the runs that know it; `None` where none does.
    pub fn fairness(&self, policy: ReplayPolicy) -> Option<Mean> {
        let known: Vec<f64> = self.summaries(policy).filter_map(|summary| summary.fairness).collect();
        (!known.is_empty()).then(|| Mean::of(&known))
    }

    /// A figure over that of the first policy, seed by seed.
    pub fn ratio(&self, policy: ReplayPolicy, figure: impl Fn(&ReplaySummary) -> f64) -> Mean {
        let base = self.summaries(self.0[0].policy);
        let ratios =
            self.summaries(policy).zip(base).map(|(own, base)| figure(own) / figure(base).max(1e-12));
        Mean::of(&ratios.collect::<Vec<_>>())
    }

    /// The best policies by each measure, by means over seeds, with those within a twentieth of the best.
    pub fn winners(&self) -> Vec<(&'static str, Vec<ReplayPolicy>)> {
        let measures: [Measure; 4] = [
            ("mean wait", |summary| summary.wait.mean.0 as f64),
            ("slowdown", |summary| summary.bounded_slowdown),
            ("longest wait", |summary| summary.wait.longest.0 as f64),
            // The less is idle, the better; so all four are better when smaller.
            ("utilisation", |summary| 1.0 / summary.utilisation.max(1e-9)),
        ];
        measures.map(|(name, measure)| (name, self.best_by(measure))).into()
    }

    fn best_by(&self, measure: fn(&ReplaySummary) -> f64) -> Vec<ReplayPolicy> {
        let means = self.policies().into_iter().map(|policy| (self.mean(policy, measure).mean, policy));
        let mut means: Vec<(f64, ReplayPolicy)> = means.collect();
        means.sort_by(|a, b| a.0.total_cmp(&b.0));
        let least = means[0].0;
        means.into_iter().take_while(|(mean, _)| *mean <= least * CLOSE).map(|(_, policy)| policy).collect()
    }

    /// Jobs that did not end as they should under a policy, in the first seed, by what became of them.
    pub fn unended(&self, policy: ReplayPolicy) -> Vec<(usize, &'static str)> {
        let Some(summary) = self.summaries(policy).next() else { return Vec::new() };
        let parts = [
            (summary.rejected, "can never run on this cluster"),
            (summary.timed_out, "reached their own time limits"),
            (summary.given_up, "were interrupted too often and given up"),
            (summary.open, "had not ended when the replay did"),
        ];
        parts.into_iter().filter(|(count, _)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use bedplate_gangs::Span;

    use super::*;

    fn run(name: &str, seed: u64, wait: u64, utilisation: f64) -> Run {
        let mut summary =
            ReplaySummary { bounded_slowdown: wait as f64, utilisation, ..ReplaySummary::default() };
        (summary.wait.mean, summary.wait.longest) = (Span(wait), Span(2 * wait));
        Run { policy: ReplayPolicy::find(name).unwrap(), seed, summary }
    }

    fn names(policies: &[ReplayPolicy]) -> Vec<&str> {
        policies.iter().map(|policy| policy.name).collect()
    }

    #[test]
    fn the_best_policy_wins_with_those_that_are_as_good() {
        let runs = vec![
            run("easy", 0, 100, 0.9),
            run("conservative", 0, 104, 0.9),
            run("ours", 0, 200, 0.7),
            run("easy", 1, 110, 0.9),
            run("conservative", 1, 106, 0.9),
            run("ours", 1, 220, 0.7),
        ];
        let comparison = Comparison::new(runs).unwrap();
        assert_eq!(names(&comparison.policies()), ["easy", "conservative", "ours"]);
        assert_eq!(comparison.seeds(), 2);
        for (measure, best) in comparison.winners() {
            let mut best = names(&best);
            best.sort_unstable();
            assert_eq!(best, ["conservative", "easy"], "{measure}");
        }
        let ours = ReplayPolicy::find("ours").unwrap();
        let ratio = comparison.ratio(ours, |summary| summary.bounded_slowdown);
        assert_eq!((ratio.mean, ratio.standard_error), (2.0, 0.0));
    }

    #[test]
    fn a_mean_knows_its_standard_error() {
        let mean = Mean::of(&[1.0, 3.0]);
        assert_eq!((mean.mean, mean.standard_error), (2.0, 1.0));
        assert_eq!(Mean::of(&[5.0]), Mean { mean: 5.0, standard_error: 0.0 });
        assert!(Comparison::new(Vec::new()).is_none());
    }
}
