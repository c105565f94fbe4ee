//! Policies side by side: one row each, means over seeds, and JSON with every run.

use bedplate_gangs::Span;
use bedplate_replay::jobs::{
    Comparison, Distribution, Estimates, Mean, ReplayPolicy, ReplaySummary, Run, Trace,
};
use bedplate_terminal::present::{Column, Table, wrap};
use bedplate_terminal::{CliError, Console};
use bedplate_topology::Cluster;
use bedplate_units::grouped;
use serde_json::{Value, json};

use super::load::Load;

pub(super) struct Shown<'a> {
    pub(super) load: &'a Load,
    /// Of the first seed.
    pub(super) trace: &'a Trace,
    pub(super) cluster: &'a Cluster,
    pub(super) estimates: Estimates,
    pub(super) compared: Comparison,
}

const GPU_HOUR: f64 = 3_600_000.0;

impl Shown<'_> {
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
            self.compared.offered_load(),
            self.estimates.name()
        )
    }

    pub(super) fn show(&self, console: &mut Console) -> Result<(), CliError> {
        console.line(&wrap(&self.title(), console.width().unwrap_or(usize::MAX)).join("\n"))?;
        console.line("")?;
        console.table(&self.table())?;
        if self.compared.policies().len() > 1 {
            let all = self.compared.winners().into_iter().map(|(name, best)| {
                let names: Vec<&str> = best.iter().map(|policy| policy.name).collect();
                format!("{name}: {}", names.join(", "))
            });
            let line = format!("best, or within 5 % of it: {}", all.collect::<Vec<_>>().join("; "));
            console.line(&wrap(&line, console.width().unwrap_or(usize::MAX)).join("\n"))?;
        }
        let of_seed = if self.compared.seeds() > 1 { " (the first seed)" } else { "" };
        console.line(&format!("\nMean wait, and mean bounded slowdown, by GPUs{of_seed}"))?;
        console.table(&self.by_size())?;
        if self.compared.seeds() > 1 {
            console.line(&format!(
                "\nOver {} seeds, against {}",
                self.compared.seeds(),
                self.compared.policies()[0].name
            ))?;
            console.table(&self.ratios())?;
        }
        self.remarks().iter().for_each(|remark| console.say(remark));
        Ok(())
    }

    fn mean_span(&self, policy: ReplayPolicy, figure: impl Fn(&ReplaySummary) -> Span) -> String {
        Span(self.compared.mean(policy, |summary| figure(summary).0 as f64).mean as u64).to_string()
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
        for policy in self.compared.policies() {
            let percent = |figure: fn(&ReplaySummary) -> f64| {
                format!("{:.1}%", self.compared.mean(policy, figure).mean * 100.0)
            };
            let count =
                |figure: fn(&ReplaySummary) -> f64| format!("{:.0}", self.compared.mean(policy, figure).mean);
            table.row(vec![
                policy.name.into(),
                format!("{:.2}", self.compared.mean(policy, |summary| summary.bounded_slowdown).mean),
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

    fn fairness(&self, policy: ReplayPolicy) -> String {
        self.compared.fairness(policy).map_or("-".to_owned(), |fairness| format!("{:.2}", fairness.mean))
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
        for run in self.compared.first_runs() {
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
        let shown =
            |mean: &Mean, digits: usize| format!("{:.digits$} ± {:.digits$}", mean.mean, mean.standard_error);
        for policy in self.compared.policies() {
            table.row(vec![
                policy.name.into(),
                shown(&self.compared.mean(policy, |summary| summary.bounded_slowdown), 2),
                shown(&self.compared.ratio(policy, |summary| summary.bounded_slowdown), 3),
                shown(&self.compared.mean(policy, |summary| summary.utilisation * 100.0), 1),
                shown(&self.compared.ratio(policy, |summary| summary.utilisation), 3),
                shown(&self.compared.mean(policy, |summary| summary.delivered * 100.0), 1),
                shown(&self.compared.ratio(policy, |summary| summary.delivered), 3),
            ]);
        }
        table
    }

    /// What did not end as it should.
    fn remarks(&self) -> Vec<String> {
        let remark = |policy: ReplayPolicy| {
            let unended = self.compared.unended(policy).into_iter();
            unended
                .map(move |(count, what)| format!("{}: {} jobs {what}", policy.name, grouped(count as u64)))
        };
        self.compared.policies().into_iter().flat_map(remark).collect()
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
                "load": self.compared.offered_load(),
                "remarks": self.trace.remarks.iter()
                    .map(|remark| json!({"what": remark.what, "count": remark.count})).collect::<Vec<_>>(),
            },
            "estimates": self.estimates.name(),
            "failures": self.load.failures_key(),
            "best": self.compared.winners().into_iter().map(|(name, best)| json!({
                "measure": name,
                "policies": best.iter().map(|policy| policy.name).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
            "runs": self.compared.runs().iter().map(run_json).collect::<Vec<_>>(),
            "comparison": self.compared.policies().into_iter().map(|policy| self.policy_json(policy)).collect::<Vec<_>>(),
        })
    }

    fn policy_json(&self, policy: ReplayPolicy) -> Value {
        let mean = |mean: Mean| json!({"mean": mean.mean, "standard_error": mean.standard_error});
        json!({
            "policy": policy.name,
            "about": policy.about,
            "bounded_slowdown": mean(self.compared.mean(policy, |summary| summary.bounded_slowdown)),
            "bounded_slowdown_ratio": mean(self.compared.ratio(policy, |summary| summary.bounded_slowdown)),
            "utilisation": mean(self.compared.mean(policy, |summary| summary.utilisation)),
            "utilisation_ratio": mean(self.compared.ratio(policy, |summary| summary.utilisation)),
            "goodput": mean(self.compared.mean(policy, |summary| summary.goodput)),
            "delivered": mean(self.compared.mean(policy, |summary| summary.delivered)),
            "delivered_ratio": mean(self.compared.ratio(policy, |summary| summary.delivered)),
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
