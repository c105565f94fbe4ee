//! The whole run: failures, checkpoints, recovery, days and dollars.

use bedplate_catalog::{Catalog, Purchase, StorageTier, UltraServer};
use bedplate_goodput::{
    Bill, Checkpoint, Judgement, Limits, Outlook, Published, PublishedRate, Recovery, Rent, Run, Store,
    Verdict, checkpoint_bytes, interruptions,
};
use bedplate_layout::Layout;
use bedplate_perf::Step;
use bedplate_search::Reliability;
use bedplate_terminal::present::Facts;
use bedplate_terminal::{CliError, choice};
use bedplate_units::{Bandwidth, Bytes, Count, Dollars, Seconds, Tokens};
use serde_json::{Value, json};

use super::question::Loaded;
use crate::commands::catalog::{refuse_unknown, regions};

/// Failures, checkpoints, prices and limits.
#[derive(clap::Args)]
pub(super) struct RunArguments {
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
    /// From a failure until all ranks read the checkpoint [default: as published for that run, else 22.5 min]
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

/// The smallest FSx for Lustre file system.
const SMALLEST_FILE_SYSTEM: Bytes = Bytes::tb(1.2);

/// The expected run.
pub(super) struct WholeRun {
    pub(super) outlook: Outlook,
    pub(super) bill: Bill,
    judgement: Judgement,
    failures_per_node_day: f64,
    store: String,
    restart: Restart,
    restore: Seconds,
    /// How the machines are bought at that cost.
    purchase: Option<Purchase>,
}

/// What a restart takes, and who says so.
struct Restart {
    recovery: Recovery,
    source: String,
}

impl RunArguments {
    /// `None` where the length of the run was not given.
    pub(super) fn whole_run(
        &self,
        loaded: &Loaded,
        layout: &Layout,
        step: &Step,
        catalog: &Catalog,
    ) -> Result<Option<WholeRun>, CliError> {
        self.refuse_unknown_region(catalog)?;
        let Some(tokens) = self.tokens else { return Ok(None) };
        let published = Published::builtin();
        let machine = loaded.cluster.kinds().first().and_then(|kind| kind.instance.as_deref());
        let nodes = loaded.cluster.node_count();
        let bytes = checkpoint_bytes(&loaded.model, loaded.workload.optimizer);
        let store = self.store(bytes, catalog, &published)?;
        let usual = self.example(&published)?.map_or(0.0, |rate| rate.per_node_day);
        let failures = self.failures.map_or(usual, |per_thousand| per_thousand / 1000.0);
        let taken = self.spot_interruptions.map(|per_thousand| per_thousand / 1000.0);
        let purchase = self.purchase.unwrap_or(Purchase::OnDemand);
        let failures = interruptions(failures, purchase, taken, machine.unwrap_or("this machine"))?;
        let restart = self.restart(&published)?;
        let run = Run {
            step: step.seconds(),
            steps: tokens.get() / step.tokens,
            nodes,
            gpus_per_node: (step.gpus / u64::from(nodes.max(1))) as u32,
            failures_per_node_day: failures,
            checkpoint: Checkpoint::asynchronous(bytes, &store, nodes, self.stall)?,
            recovery: self.recovery(layout, step, nodes, &restart, &published),
            interval: self.interval,
        };
        let outlook = run.outlook()?;
        let rents = self.rents(loaded, catalog, outlook.expected);
        let bill = Bill {
            machines: rents.as_ref().map(|rents| rents.iter().map(|rent| rent.cost(outlook.expected)).sum()),
            // The last checkpoint and the one being written.
            storage: store.cost(bytes * 2.0, outlook.expected),
        };
        let limits = Limits { deadline: self.deadline, budget: self.budget };
        let judgement = limits.judge(&outlook, &bill);
        Ok(Some(WholeRun {
            outlook,
            bill,
            judgement,
            failures_per_node_day: failures,
            store: store.name,
            restart,
            restore: run.checkpoint.restore,
            purchase: rents.and_then(|rents| rents.first().map(|rent| rent.purchase)),
        }))
    }

    pub(super) fn refuse_unknown_region(&self, catalog: &Catalog) -> Result<(), CliError> {
        Ok(refuse_unknown("region", &self.region, regions(catalog))?)
    }

    /// The published run that this one is expected to be like.
    fn example<'a>(&self, published: &'a Published) -> Result<Option<&'a PublishedRate>, CliError> {
        Ok(match &self.like {
            Some(key) => Some(published.rate(key)?),
            None => published.usual_rate(),
        })
    }

    /// The given time of a restart, else that of the operator of the published run.
    fn restart(&self, published: &Published) -> Result<Restart, CliError> {
        if let Some(downtime) = self.restart_time {
            return Ok(Restart { recovery: Recovery::restart_in(downtime), source: "as given".into() });
        }
        Ok(match self.example(published)?.and_then(|rate| published.restart_of(rate)) {
            Some(downtime) => Restart {
                recovery: Recovery::restart_as(downtime),
                source: downtime.provenance.source.clone(),
            },
            None => Restart { recovery: Recovery::restart(published), source: "as usual".into() },
        })
    }

    /// How all kinds of nodes are rented; `None` where the price of one is unknown.
    fn rents(&self, loaded: &Loaded, catalog: &Catalog, time: Seconds) -> Option<Vec<Rent>> {
        let kinds = loaded.cluster.kinds().iter().zip(loaded.cluster.count_by_kind());
        let rents = kinds.map(|(kind, count)| {
            let instance = catalog.instance(kind.instance.as_deref()?).ok()?;
            let region = self.region.as_deref();
            let rent =
                Rent::offered(&instance.name, &instance.prices, self.purchase, region, count.nodes).ok();
            rent.or_else(|| self.rented_racks(&instance.name, count.nodes, loaded, catalog, time))
        });
        rents.collect()
    }

    /// Nodes that are sold only as parts of UltraServers are rented as whole ones: those of the cluster's NVLink
    /// domain, else the cheapest that hold them.
    fn rented_racks(
        &self,
        instance: &str,
        nodes: u32,
        loaded: &Loaded,
        catalog: &Catalog,
        time: Seconds,
    ) -> Option<Rent> {
        let racks = catalog.ultraservers.iter().filter(|rack| rack.instance == instance);
        let (same, other): (Vec<&UltraServer>, Vec<&UltraServer>) =
            racks.partition(|rack| rack.accelerators == loaded.hardware.domain);
        let racks = if same.is_empty() { other } else { same };
        let rents = racks.into_iter().filter_map(|rack| {
            let count = nodes.div_ceil(rack.instances.max(1));
            Rent::offered(&rack.name, &rack.prices, self.purchase, self.region.as_deref(), count).ok()
        });
        rents.min_by_key(|rent| rent.cost(time))
    }

    /// Failures and checkpoints for runs whose number of nodes is still open.
    pub(super) fn reliability(&self, bytes: Bytes, catalog: &Catalog) -> Result<Reliability, CliError> {
        let published = Published::builtin();
        let usual = self.example(&published)?.map_or(0.0, PublishedRate::per_gpu_day);
        let restart = self.restart(&published)?.recovery;
        Ok(Reliability {
            // Published rates are those of nodes with eight GPUs.
            failures_per_gpu_day: self.failures.map_or(usual, |per_thousand| per_thousand / 8000.0),
            store: self.store(bytes, catalog, &published)?,
            stall: self.stall,
            recovery: match self.recovery {
                RecoveryKind::Restart => restart,
                RecoveryKind::Peers | RecoveryKind::Elastic => {
                    from_peers(restart, Seconds::new(10.0), &published)
                }
            },
        })
    }

    fn store(&self, bytes: Bytes, catalog: &Catalog, published: &Published) -> Result<Store, CliError> {
        let class = catalog.storage_class(&self.storage)?;
        Ok(match class.tier {
            StorageTier::Durable => Store::objects(class, self.object_bandwidth, published),
            StorageTier::Shared | StorageTier::Local => {
                let size = self.storage_size.unwrap_or_else(|| (bytes * 10.0).max(SMALLEST_FILE_SYSTEM));
                Store::shared(class, size)
            }
        })
    }

    fn recovery(
        &self,
        layout: &Layout,
        step: &Step,
        nodes: u32,
        restart: &Restart,
        published: &Published,
    ) -> Recovery {
        let restart = restart.recovery;
        match self.recovery {
            RecoveryKind::Restart => restart,
            RecoveryKind::Peers => from_peers(restart, step.seconds(), published),
            RecoveryKind::Elastic => {
                let copies = f64::from(layout.data).max(1.0);
                from_peers(restart, step.seconds(), published)
                    .with_elastic(f64::from(nodes) / copies, restart.downtime)
            }
        }
    }
}

/// A restart that is needed only where the peers' copies are lost too. A copy is sent during the next step, which
/// hides it.
fn from_peers(restart: Recovery, every: Seconds, published: &Published) -> Recovery {
    Recovery { copies: Recovery::from_peers(published, every, Seconds::ZERO).copies, ..restart }
}

impl WholeRun {
    pub(super) fn facts(&self) -> Facts {
        let outlook = &self.outlook;
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
                    self.failures_per_node_day * 1000.0
                ),
            )
            .add("checkpoint every", format!("{:.3}, to {}", outlook.interval, self.store))
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
            .add("restart", self.restart_text())
            .add("machines cost", self.machines_text())
            .add("storage costs", dollars(self.bill.storage));
        if let Some(verdict) = self.judgement.deadline {
            facts.add("deadline", verdict_text(verdict));
        }
        if let Some(verdict) = self.judgement.budget {
            facts.add("budget", verdict_text(verdict));
        }
        facts
    }

    fn restart_text(&self) -> String {
        let recovery = &self.restart.recovery;
        let reading = match recovery.includes_reading {
            true => "reading the checkpoint included".to_owned(),
            false => format!("and {:.3} to read the checkpoint", self.restore),
        };
        format!("{:.3}, {reading} ({})", recovery.downtime, self.restart.source)
    }

    /// The cost, and how the machines are bought where that is not on demand.
    fn machines_text(&self) -> String {
        match (self.bill.machines, self.purchase) {
            (Some(cost), Some(Purchase::OnDemand) | None) => cost.to_string(),
            (Some(cost), Some(purchase)) => format!("{cost}, bought {}", purchase.name()),
            (None, _) => "unknown, no price".into(),
        }
    }

    /// Whether every limit that was set is met.
    pub(super) fn is_within_limits(&self) -> bool {
        self.judgement.is_met()
    }

    pub(super) fn json(&self) -> Value {
        let outlook = &self.outlook;
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
            "failures_per_node_day": self.failures_per_node_day,
            "checkpoint_interval_s": outlook.interval.get(),
            "checkpoint_interval_young_s": outlook.young_interval.get(),
            "checkpoint_interval_daly_s": outlook.daly_interval.get(),
            "restart_s": self.restart.recovery.until_restored(self.restore).get(),
            "restart_source": self.restart.source,
            "purchase": self.purchase.map(Purchase::name),
            "machines_usd": self.bill.machines.map(Dollars::get),
            "storage_usd": self.bill.storage.map(Dollars::get),
            "total_usd": self.bill.total().map(Dollars::get),
            "is_within_limits": self.is_within_limits(),
        })
    }
}

fn verdict_text<T: std::fmt::Display>(verdict: Verdict<T>) -> String {
    match verdict {
        Verdict::Met { spare } => format!("met, {spare} to spare"),
        Verdict::Missed { by } => format!("MISSED by {by}"),
        Verdict::Unknown => "cannot be judged: a price is unknown".into(),
    }
}
