//! The whole run: failures, checkpoints, recovery, days and dollars.

use bedplate_catalog::{Catalog, Purchase};
use bedplate_goodput::{
    self as goodput, Assumptions, LONGEST_BLOCK, LimitVerdict, Machines, RunLimits, Unpriced, WholeRun, Work,
    checkpoint_bytes,
};
use bedplate_layout::Layout;
use bedplate_perf::PredictedStep;
use bedplate_terminal::present::Facts;
use bedplate_terminal::{CliError, choice};
use bedplate_units::{Bandwidth, Bytes, Count, Dollars, Seconds, Tokens};
use serde_json::{Value, json};

use super::question::Loaded;

/// Failures, checkpoints, prices and limits.
#[derive(clap::Args)]
pub(crate) struct RunArguments {
    /// Tokens of the whole run, for days and dollars
    #[arg(long)]
    pub(super) tokens: Option<Tokens>,
    /// How machines are bought [default: on-demand; for UltraServers capacity-block, which is how they are sold]
    #[arg(long, value_parser = choice(&Purchase::ALL))]
    pub(super) purchase: Option<Purchase>,
    /// Only prices of this region
    #[arg(long)]
    pub(super) region: Option<String>,
    /// Finish within this time
    #[arg(long, value_name = "TIME")]
    pub(super) deadline: Option<Seconds>,
    /// Spend no more than this
    #[arg(long, value_name = "DOLLARS")]
    pub(super) budget: Option<Dollars>,
    /// The published run whose failures and restarts are expected [default: the largest, llama3]
    #[arg(long, value_name = "RUN")]
    like: Option<String>,
    /// Interruptions per 1,000 nodes and day [default: as in that run]
    #[arg(long, value_name = "RATE")]
    failures: Option<f64>,
    /// Time from a failure until all ranks read the checkpoint [default: as published for that run, else 22.5 min]
    #[arg(long, value_name = "TIME")]
    restart_time: Option<Seconds>,
    /// Spot interruptions per 1,000 nodes and day; no figures are published
    #[arg(long, value_name = "RATE")]
    spot_interruptions: Option<f64>,
    /// Where checkpoints go: a shared or durable storage class of the catalog
    #[arg(long, value_name = "CLASS", default_value = "fsx-lustre-persistent-1000")]
    storage: String,
    /// Size of a shared file system [default: ten checkpoints, at least 1.2 TB]
    #[arg(long, value_name = "SIZE")]
    storage_size: Option<Bytes>,
    /// What a node moves to object storage [default: a published rate]
    #[arg(long, value_name = "BANDWIDTH")]
    object_bandwidth: Option<Bandwidth>,
    /// What happens after a failure
    #[arg(long, value_enum, default_value = "restart")]
    recovery: RecoveryKind,
    /// Work stalls this long for a checkpoint; the rest overlaps with it
    #[arg(long, value_name = "TIME", default_value = "5s")]
    stall: Seconds,
    /// Work between checkpoints [default: the best interval]
    #[arg(long, value_name = "TIME")]
    interval: Option<Seconds>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum RecoveryKind {
    /// From the last durable checkpoint, on a warm spare
    Restart,
    /// From copies in the memory of peers, made after every step (checkpointless)
    Peers,
    /// Continue without the lost copy of the model until its node is replaced
    Elastic,
}

impl RecoveryKind {
    fn kind(self) -> goodput::RecoveryKind {
        match self {
            RecoveryKind::Restart => goodput::RecoveryKind::Restart,
            RecoveryKind::Peers => goodput::RecoveryKind::Peers,
            RecoveryKind::Elastic => goodput::RecoveryKind::Elastic,
        }
    }
}

impl RunArguments {
    /// `None` where the length of the run was not given.
    pub(super) fn whole_run(
        &self,
        loaded: &Loaded,
        layout: &Layout,
        step: &PredictedStep,
        catalog: &Catalog,
    ) -> Result<Option<WholeRun>, CliError> {
        catalog.refuse_unknown_region(self.region.as_deref())?;
        let Some(tokens) = self.tokens else { return Ok(None) };
        let work = work(loaded, layout, step, tokens.get() / step.tokens);
        Ok(Some(self.assumptions().whole_run(&work, catalog)?))
    }

    /// What the machines cost in an hour, where their price is known.
    pub(super) fn hourly(
        &self,
        loaded: &Loaded,
        plan: (&Layout, &PredictedStep),
        catalog: &Catalog,
    ) -> Option<String> {
        let (hourly, purchase) = self.assumptions().hourly(&work(loaded, plan.0, plan.1, 1.0), catalog)?;
        Some(match purchase {
            Purchase::OnDemand => format!("{hourly}/h on demand"),
            purchase => format!("{hourly}/h, bought {}", purchase.name()),
        })
    }

    pub(super) fn assumptions(&self) -> Assumptions {
        let each = |per_thousand: Option<f64>| per_thousand.map(|nodes| nodes / 1000.0);
        Assumptions {
            like: self.like.clone(),
            failures_per_node_day: each(self.failures),
            spot_per_node_day: each(self.spot_interruptions),
            restart_time: self.restart_time,
            recovery: self.recovery.kind(),
            storage: self.storage.clone(),
            storage_size: self.storage_size,
            object_bandwidth: self.object_bandwidth,
            stall: self.stall,
            interval: self.interval,
            purchase: self.purchase,
            region: self.region.clone(),
            limits: RunLimits { deadline: self.deadline, budget: self.budget },
        }
    }
}

fn work(loaded: &Loaded, layout: &Layout, step: &PredictedStep, steps: f64) -> Work {
    let kinds = loaded.cluster.kinds().iter().zip(loaded.cluster.count_by_kind());
    Work {
        step: step.seconds(),
        steps,
        gpus: step.gpus,
        copies: layout.data,
        checkpoint: checkpoint_bytes(&loaded.model, loaded.workload.optimizer),
        machines: kinds
            .map(|(kind, count)| Machines { instance: kind.instance.clone(), nodes: count.nodes })
            .collect(),
        domain: loaded.hardware.domain,
    }
}

pub(super) fn facts(run: &WholeRun) -> Facts {
    let outlook = &run.outlook;
    let losses = &outlook.losses;
    let percent = |share: f64| format!("{:.1}%", share * 100.0);
    let dollars =
        |cost: Option<Dollars>| cost.map_or("unknown, no price".to_owned(), |cost| cost.to_string());
    let mut facts = Facts::default();
    facts
        .add("takes", format!("{} ({} if nothing failed)", outlook.expected, outlook.ideal))
        .add("GPU-hours", Count(outlook.gpu_hours as u64).to_string())
        .add(
            "interruptions",
            format!(
                "{:.0}, one every {:.3}, at {:.2} per 1,000 node-days",
                outlook.interruptions,
                outlook.mtbf,
                run.failures_per_node_day * 1000.0
            ),
        )
        .add("checkpoint every", format!("{:.3}, to {}", outlook.interval, run.store))
        .add(
            "goodput",
            format!(
                "{}; lost to stalls {}, rework {}, recovery {}, missing nodes {}",
                percent(outlook.goodput),
                percent(losses.stalls),
                percent(losses.rework),
                percent(losses.recovery),
                percent(losses.shrunk)
            ),
        )
        .add("restart", restart_text(run))
        .add("machines cost", machines_text(run))
        .add("storage costs", dollars(run.bill.storage))
        .add("together", dollars(run.bill.total()));
    if let Some(verdict) = run.judgement.deadline {
        facts.add("deadline", verdict_text(verdict));
    }
    if let Some(verdict) = run.judgement.budget {
        facts.add("budget", verdict_text(verdict));
    }
    facts
}

fn restart_text(run: &WholeRun) -> String {
    let recovery = &run.restart.recovery;
    let reading = match recovery.includes_reading {
        true => "reading the checkpoint included".to_owned(),
        false => format!("and {:.3} to read the checkpoint", run.restore),
    };
    format!("{:.3}, {reading} ({})", recovery.downtime, run.restart.source)
}

/// The cost, how the machines are bought where that is not on demand, and what of it is paid for time after the run.
fn machines_text(run: &WholeRun) -> String {
    let unknown = match run.unpriced {
        Some(Unpriced::BlockTooShort) => {
            format!("unknown: a capacity block lasts at most {} days", LONGEST_BLOCK.as_days())
        }
        _ => "unknown, no price".to_owned(),
    };
    let Some(cost) = run.bill.machines else { return unknown };
    let unused = run.unused.filter(|unused| unused.get() >= 0.5);
    let rest = unused.map_or(String::new(), |unused| format!(", {unused} of it for time after the run"));
    match run.purchase {
        Some(Purchase::OnDemand) | None => format!("{cost}{rest}"),
        Some(purchase) => format!("{cost}, bought {}{rest}", purchase.name()),
    }
}

pub(super) fn json(run: &WholeRun) -> Value {
    let outlook = &run.outlook;
    json!({
        "expected_s": outlook.expected.get(),
        "ideal_s": outlook.ideal.get(),
        "days": outlook.expected.as_days(),
        "gpu_hours": outlook.gpu_hours,
        "goodput": outlook.goodput,
        "losses": {
            "stalls": outlook.losses.stalls,
            "rework": outlook.losses.rework,
            "recovery": outlook.losses.recovery,
            "missing_nodes": outlook.losses.shrunk,
        },
        "interruptions": outlook.interruptions,
        "failures_per_node_day": run.failures_per_node_day,
        "checkpoint_interval_s": outlook.interval.get(),
        "checkpoint_interval_young_s": outlook.young_interval.get(),
        "checkpoint_interval_daly_s": outlook.daly_interval.get(),
        "restart_s": run.restart.recovery.until_restored(run.restore).get(),
        "restart_source": run.restart.source,
        "purchase": run.purchase.map(Purchase::name),
        "machines_usd": run.bill.machines.map(Dollars::get),
        "unused_usd": run.unused.map(Dollars::get),
        "storage_usd": run.bill.storage.map(Dollars::get),
        "total_usd": run.bill.total().map(Dollars::get),
        "is_within_limits": run.judgement.is_met(),
    })
}

fn verdict_text<T: std::fmt::Display>(verdict: LimitVerdict<T>) -> String {
    match verdict {
        LimitVerdict::Met { spare } => format!("met, {spare} to spare"),
        LimitVerdict::Missed { by } => format!("MISSED by {by}"),
        LimitVerdict::Unknown => "cannot be judged: a price is unknown".into(),
    }
}
