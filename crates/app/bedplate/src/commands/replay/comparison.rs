//! Policies side by side: one row each, means over seeds, and JSON with every run.

use bedplate_gangs::Span;
use bedplate_replay::jobs::{Distribution, Estimates, Policy, Summary, Trace};
use bedplate_terminal::present::{Column, Table, wrap};
use bedplate_terminal::{CliError, Console};
use bedplate_topology::Cluster;
use bedplate_units::grouped;
use serde_json::{Value, json};

use super::load::Load;

pub(super) struct Comparison<'a> {
    pub(super) load: &'a Load,
    /// Of the first seed.
    pub(super) trace: &'a Trace,
    pub(super) cluster: &'a Cluster,
    pub(super) estimates: Estimates,
    pub(super) runs: Vec<Run>,
}

pub(super) struct Run {
    pub(super) policy: Policy,
    pub(super) seed: u64,
    pub(super) summary: Summary,
}

/// A figure over seeds.
struct Mean {
    mean: f64,
    /// Standard error of the mean.
    error: f64,
}

impl Mean {
    fn of(values: &[f64]) -> Self {
        let count = values.len().max(1) as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance =
            values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
        Self { mean, error: (variance / count).sqrt() }
    }
}

/// A name, and what it measures.
type Measure = (&'static str, fn(&Summary) -> f64);

const GPU_HOUR: f64 = 3_600_000.0;

impl Comparison<'_> {
    pub(super) fn title(&self) -> String {
        let failures = self.load.failures_key().map_or(String::new(), |key| format!(", failures as {key}"));
        format!(
            "{}: {} jobs in {} on {} ({} nodes, {} GPUs), load {:.2}, {} estimates{failures}",
            self.load.title(),
            grouped(self.trace.jobs.len() as u64),
            self.trace.window(),
            self.cluster.name(),
            grouped(self.cluster.node_count().into()),
            grouped(self.cluster.gpu_count().into()),
            self.offered(),
            self.estimates.name()
        )
    }

    /// Work over capacity of the jobs that the cluster can run, which is the same for every policy.
    fn offered(&self) -> f64 {
        self.runs[0].summary.load
    }

    /// Whether the cluster can run none of the jobs.
    pub(super) fn is_hopeless(&self) -> bool {
        self.runs.iter().all(|run| run.summary.rejected == run.summary.jobs)
    }

    pub(super) fn show(&self, console: &mut Console) -> Result<(), CliError> {
        console.line(&wrap(&self.title(), console.width().unwrap_or(usize::MAX)).join("\n"))?;
        console.line("")?;
        console.table(&self.table())?;
        if self.policies().len() > 1 {
            let all = self.winners().into_iter().map(|(name, best)| {
                let names: Vec<&str> = best.iter().map(|policy| policy.name).collect();
                format!("{name}: {}", names.join(", "))
            });
            let line = format!("best, or within 5 % of it: {}", all.collect::<Vec<_>>().join("; "));
            console.line(&wrap(&line, console.width().unwrap_or(usize::MAX)).join("\n"))?;
        }
        let of_seed = if self.seeds() > 1 { " (the first seed)" } else { "" };
        console.line(&format!("\nMean wait, and mean bounded slowdown, by GPUs{of_seed}"))?;
        console.table(&self.by_size())?;
        if self.seeds() > 1 {
            console.line(&format!("\nOver {} seeds, against {}", self.seeds(), self.policies()[0].name))?;
            console.table(&self.ratios())?;
        }
        self.remarks().iter().for_each(|remark| console.say(remark));
        Ok(())
    }

    /// In the requested order.
    pub(super) fn policies(&self) -> Vec<Policy> {
        let first = self.runs[0].seed;
        self.runs.iter().filter(|run| run.seed == first).map(|run| run.policy).collect()
    }

    fn seeds(&self) -> usize {
        self.runs.len() / self.policies().len().max(1)
    }

    fn summaries(&self, policy: Policy) -> impl Iterator<Item = &Summary> {
        self.runs.iter().filter(move |run| run.policy == policy).map(|run| &run.summary)
    }

    fn mean(&self, policy: Policy, figure: impl Fn(&Summary) -> f64) -> Mean {
        Mean::of(&self.summaries(policy).map(figure).collect::<Vec<_>>())
    }

    fn mean_span(&self, policy: Policy, figure: impl Fn(&Summary) -> Span) -> String {
        Span(self.mean(policy, |summary| figure(summary).0 as f64).mean as u64).to_string()
    }

    pub(super) fn table(&self) -> Table {
        let mut table = Table::new(vec![
            Column::left("POLICY", 0),
            Column::right("SLOWDOWN", 0),
            Column::right("MEAN WAIT", 0),
            Column::right("P50", 2),
            Column::right("P99", 2),
            Column::right("LONGEST", 1),
            Column::right("UTILISATION", 0),
            Column::right("GOODPUT", 1),
            Column::right("DELIVERED", 1),
            Column::right("FRAGMENTED", 3),
            Column::right("FAIRNESS", 3),
            Column::right("PREEMPTED", 4),
            Column::right("REQUEUED", 4),
            Column::right("SWAPS", 4),
            Column::right("LOST GPU-H", 2),
            Column::right("MAKESPAN", 4),
        ]);
        for policy in self.policies() {
            let percent =
                |figure: fn(&Summary) -> f64| format!("{:.1}%", self.mean(policy, figure).mean * 100.0);
            let count = |figure: fn(&Summary) -> f64| format!("{:.0}", self.mean(policy, figure).mean);
            table.row(vec![
                policy.name.into(),
                format!("{:.2}", self.mean(policy, |summary| summary.bounded_slowdown).mean),
                self.mean_span(policy, |summary| summary.wait.mean),
                self.mean_span(policy, |summary| summary.wait.p50),
                self.mean_span(policy, |summary| summary.wait.p99),
                self.mean_span(policy, |summary| summary.wait.longest),
                percent(|summary| summary.utilisation),
                percent(|summary| summary.goodput),
                percent(|summary| summary.delivered),
                percent(|summary| summary.fragmentation),
                self.fairness(policy),
                count(|summary| summary.preemptions as f64),
                count(|summary| summary.requeues as f64),
                count(|summary| summary.swaps as f64),
                count(|summary| {
                    (summary.gpu_time.lost_to_failures + summary.gpu_time.lost_to_preemption) / GPU_HOUR
                }),
                self.mean_span(policy, |summary| summary.makespan),
            ]);
        }
        table
    }

    fn fairness(&self, policy: Policy) -> String {
        let known: Vec<f64> = self.summaries(policy).filter_map(|summary| summary.fairness).collect();
        if known.is_empty() { "-".to_owned() } else { format!("{:.2}", Mean::of(&known).mean) }
    }

    /// Who is best at what, by means over seeds, with those within a twentieth of it.
    pub(super) fn winners(&self) -> Vec<(&'static str, Vec<Policy>)> {
        const CLOSE: f64 = 1.05;
        let measures: [Measure; 4] = [
            ("mean wait", |summary| summary.wait.mean.0 as f64),
            ("slowdown", |summary| summary.bounded_slowdown),
            ("longest wait", |summary| summary.wait.longest.0 as f64),
            // The less is idle, the better; so all four are better when smaller.
            ("utilisation", |summary| 1.0 / summary.utilisation.max(1e-9)),
        ];
        let best = |(name, measure): Measure| {
            let mut means: Vec<(f64, Policy)> =
                self.policies().into_iter().map(|policy| (self.mean(policy, measure).mean, policy)).collect();
            means.sort_by(|a, b| a.0.total_cmp(&b.0));
            let least = means[0].0;
            let close = means.into_iter().take_while(|(mean, _)| *mean <= least * CLOSE);
            (name, close.map(|(_, policy)| policy).collect())
        };
        measures.map(best).into()
    }

    pub(super) fn by_size(&self) -> Table {
        let mut table = Table::new(vec![
            Column::left("POLICY", 0),
            Column::right("GPUS", 0),
            Column::right("JOBS", 0),
            Column::right("MEAN WAIT", 0),
            Column::right("P50", 1),
            Column::right("P90", 1),
            Column::right("P99", 1),
            Column::right("SLOWDOWN", 0),
        ]);
        let first = self.runs[0].seed;
        for run in self.runs.iter().filter(|run| run.seed == first) {
            for class in &run.summary.by_size {
                table.row(vec![
                    run.policy.name.into(),
                    class.class.name.into(),
                    grouped(class.jobs as u64),
                    class.wait.mean.to_string(),
                    class.wait.p50.to_string(),
                    class.wait.p90.to_string(),
                    class.wait.p99.to_string(),
                    format!("{:.2}", class.bounded_slowdown),
                ]);
            }
        }
        table
    }

    /// Slowdown and utilisation over those of the first policy, seed by seed.
    fn ratios(&self) -> Table {
        let mut table = Table::new(vec![
            Column::left("POLICY", 0),
            Column::right("SLOWDOWN", 0),
            Column::right("RATIO", 0),
            Column::right("UTILISATION", 0),
            Column::right("RATIO", 0),
            Column::right("DELIVERED", 1),
            Column::right("ITS RATIO", 1),
        ]);
        let shown = |mean: &Mean, digits: usize| format!("{:.digits$} ± {:.digits$}", mean.mean, mean.error);
        for policy in self.policies() {
            let slowdowns = self.ratios_of(policy, |summary| summary.bounded_slowdown);
            let utilisation = self.ratios_of(policy, |summary| summary.utilisation);
            table.row(vec![
                policy.name.into(),
                shown(&self.mean(policy, |summary| summary.bounded_slowdown), 2),
                shown(&Mean::of(&slowdowns), 3),
                shown(&self.mean(policy, |summary| summary.utilisation * 100.0), 1),
                shown(&Mean::of(&utilisation), 3),
                shown(&self.mean(policy, |summary| summary.delivered * 100.0), 1),
                shown(&Mean::of(&self.ratios_of(policy, |summary| summary.delivered)), 3),
            ]);
        }
        table
    }

    fn ratios_of(&self, policy: Policy, figure: impl Fn(&Summary) -> f64) -> Vec<f64> {
        let base = self.summaries(self.policies()[0]);
        self.summaries(policy).zip(base).map(|(own, base)| figure(own) / figure(base).max(1e-12)).collect()
    }

    /// What did not end as it should.
    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        for policy in self.policies() {
            let Some(summary) = self.summaries(policy).next() else { continue };
            let parts = [
                (summary.rejected, "can never run on this cluster"),
                (summary.timed_out, "reached their own time limits"),
                (summary.given_up, "were interrupted too often and given up"),
                (summary.open, "had not ended when the replay did"),
            ];
            for (count, what) in parts.into_iter().filter(|(count, _)| *count > 0) {
                remarks.push(format!("{}: {} jobs {what}", policy.name, grouped(count as u64)));
            }
        }
        remarks
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "cluster": {
                "name": self.cluster.name(),
                "nodes": self.cluster.node_count(),
                "gpus": self.cluster.gpu_count(),
            },
            "trace": {
                "name": self.load.title(),
                "jobs": self.trace.jobs.len(),
                "window_s": self.trace.window().as_seconds(),
                "load": self.offered(),
                "remarks": self.trace.remarks.iter()
                    .map(|remark| json!({"what": remark.what, "count": remark.count})).collect::<Vec<_>>(),
            },
            "estimates": self.estimates.name(),
            "failures": self.load.failures_key(),
            "best": self.winners().into_iter().map(|(name, best)| json!({
                "measure": name,
                "policies": best.iter().map(|policy| policy.name).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
            "runs": self.runs.iter().map(run_json).collect::<Vec<_>>(),
            "comparison": self.policies().into_iter().map(|policy| self.policy_json(policy)).collect::<Vec<_>>(),
        })
    }

    fn policy_json(&self, policy: Policy) -> Value {
        let mean = |mean: Mean| json!({"mean": mean.mean, "standard_error": mean.error});
        json!({
            "policy": policy.name,
            "about": policy.about,
            "bounded_slowdown": mean(self.mean(policy, |summary| summary.bounded_slowdown)),
            "bounded_slowdown_ratio": mean(Mean::of(&self.ratios_of(policy, |summary| summary.bounded_slowdown))),
            "utilisation": mean(self.mean(policy, |summary| summary.utilisation)),
            "utilisation_ratio": mean(Mean::of(&self.ratios_of(policy, |summary| summary.utilisation))),
            "goodput": mean(self.mean(policy, |summary| summary.goodput)),
            "delivered": mean(self.mean(policy, |summary| summary.delivered)),
            "delivered_ratio": mean(Mean::of(&self.ratios_of(policy, |summary| summary.delivered))),
        })
    }
}

fn run_json(run: &Run) -> Value {
    let summary = &run.summary;
    let gpu_time = &summary.gpu_time;
    json!({
        "policy": run.policy.name,
        "seed": run.seed,
        "jobs": {
            "all": summary.jobs,
            "ended": summary.ended,
            "timed_out": summary.timed_out,
            "given_up": summary.given_up,
            "rejected": summary.rejected,
            "open": summary.open,
        },
        "wait_s": distribution_json(&summary.wait),
        "bounded_slowdown": summary.bounded_slowdown,
        "by_gpus": summary.by_size.iter().map(|class| json!({
            "gpus": class.class.name,
            "jobs": class.jobs,
            "wait_s": distribution_json(&class.wait),
            "bounded_slowdown": class.bounded_slowdown,
        })).collect::<Vec<_>>(),
        "utilisation": summary.utilisation,
        "goodput": summary.goodput,
        "delivered": summary.delivered,
        "fragmentation": summary.fragmentation,
        "fairness": summary.fairness,
        "gpu_hours": {
            "held": gpu_time.held / GPU_HOUR,
            "useful": gpu_time.useful / GPU_HOUR,
            "work": gpu_time.work / GPU_HOUR,
            "lost_to_failures": gpu_time.lost_to_failures / GPU_HOUR,
            "lost_to_preemption": gpu_time.lost_to_preemption / GPU_HOUR,
            "lost_to_resizing": gpu_time.lost_to_resizing / GPU_HOUR,
            "slowed": gpu_time.slowed() / GPU_HOUR,
        },
        "preemptions": summary.preemptions,
        "swaps": summary.swaps,
        "requeues": summary.requeues,
        "resizes": summary.resizes,
        "node_failures": summary.node_failures,
        "makespan_s": summary.makespan.as_seconds(),
    })
}

fn distribution_json(distribution: &Distribution) -> Value {
    json!({
        "mean": distribution.mean.as_seconds(),
        "p50": distribution.p50.as_seconds(),
        "p90": distribution.p90.as_seconds(),
        "p99": distribution.p99.as_seconds(),
        "longest": distribution.longest.as_seconds(),
    })
}
