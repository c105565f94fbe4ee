//! A whole run as it is expected: what was given of it, and what is published where nothing was given.

use bedplate_catalog::{Catalog, Purchase, StorageTier, UltraServer};
use bedplate_units::{Bandwidth, Bytes, Dollars, Seconds};

use crate::{
    Bill, CheckpointCost, CheckpointStore, GoodputError, Judgement, Published, PublishedRate, Recovery, Rent,
    RunLimits, RunOutlook, RunSpec, interruptions,
};

/// What is given of failures, checkpoints, prices and limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Assumptions {
    /// The published run whose failures and restarts are expected; the largest one without a name.
    pub like: Option<String>,
    pub failures_per_node_day: Option<f64>,
    /// How often a provider takes a spot machine away.
    pub spot_per_node_day: Option<f64>,
    /// From a failure until all ranks read the checkpoint.
    pub restart_time: Option<Seconds>,
    pub recovery: RecoveryKind,
    /// A storage class of the catalog.
    pub storage: String,
    /// Of a shared file system; ten checkpoints where it is not given.
    pub storage_size: Option<Bytes>,
    /// What a node moves to object storage.
    pub object_bandwidth: Option<Bandwidth>,
    /// Work stalls this long for a checkpoint; the rest overlaps with it.
    pub stall: Seconds,
    /// Work between checkpoints; the best interval where it is not given.
    pub interval: Option<Seconds>,
    pub purchase: Option<Purchase>,
    pub region: Option<String>,
    pub limits: RunLimits,
}

/// What happens after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryKind {
    /// From the last durable checkpoint, on a warm spare.
    Restart,
    /// From copies in the memory of peers, made after every step.
    Peers,
    /// Without the lost copy of the model until its node is replaced.
    Elastic,
}

/// The work of a run and the machines that do it.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// One step when nothing fails.
    pub step: Seconds,
    pub steps: f64,
    pub gpus: u64,
    /// Data-parallel copies of the model.
    pub copies: u32,
    /// The bytes of a checkpoint.
    pub checkpoint: Bytes,
    /// Nodes by their kind.
    pub machines: Vec<Machines>,
    /// GPUs of a scale-up domain.
    pub domain: u32,
}

/// Nodes of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machines {
    /// In the catalog, where it is known there.
    pub instance: Option<String>,
    pub nodes: u32,
}

/// The expected run.
#[derive(Debug, Clone, PartialEq)]
pub struct WholeRun {
    pub outlook: RunOutlook,
    pub bill: Bill,
    pub judgement: Judgement,
    pub failures_per_node_day: f64,
    /// The name of the store.
    pub store: String,
    pub restart: Restart,
    /// Reading a checkpoint.
    pub restore: Seconds,
    /// How the machines are bought at that cost.
    pub purchase: Option<Purchase>,
    /// Of the price of the machines, what is paid for time after the run: machines are sold for whole terms.
    pub unused: Option<Dollars>,
    /// Why the machines have no price.
    pub unpriced: Option<Unpriced>,
}

/// Why it is not known what machines cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unpriced {
    NoPrice,
    /// The run takes longer than the longest capacity block.
    BlockTooShort,
}

/// What a restart takes, and the source of that figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Restart {
    pub recovery: Recovery,
    pub source: String,
}

/// The smallest FSx for Lustre file system.
const SMALLEST_FILE_SYSTEM: Bytes = Bytes::tb(1.2);

impl Assumptions {
    pub fn whole_run(&self, work: &Work, catalog: &Catalog) -> Result<WholeRun, GoodputError> {
        let published = Published::builtin();
        let nodes = work.machines.iter().map(|machines| machines.nodes).sum::<u32>();
        let store = self.store(work.checkpoint, catalog, &published)?;
        let failures = self.interruptions(work, &published)?;
        let restart = self.restart(&published)?;
        let run = RunSpec {
            step: work.step,
            steps: work.steps,
            nodes,
            gpus_per_node: (work.gpus / u64::from(nodes.max(1))) as u32,
            failures_per_node_day: failures,
            checkpoint: CheckpointCost::asynchronous(work.checkpoint, &store, nodes, self.stall)?,
            recovery: self.recovery_of(work, nodes, restart.recovery, &published),
            interval: self.interval,
        };
        let outlook = run.outlook()?;
        let rents = self.rents(work, catalog, outlook.expected);
        let bill = Bill {
            machines: rents.as_ref().ok().and_then(|rents| sum(rents, |rent| rent.cost(outlook.expected))),
            // The last checkpoint and the one being written.
            storage: store.cost(work.checkpoint * 2.0, outlook.expected),
        };
        Ok(WholeRun {
            outlook,
            bill,
            judgement: self.limits.judge(&outlook, &bill),
            failures_per_node_day: failures,
            store: store.name,
            restart,
            restore: run.checkpoint.restore,
            unused: rents.as_ref().ok().and_then(|rents| sum(rents, |rent| rent.unused(outlook.expected))),
            purchase: rents.as_ref().ok().and_then(|rents| rents.first().map(|rent| rent.purchase)),
            unpriced: match rents {
                Err(unpriced) => Some(unpriced),
                Ok(_) => bill.machines.is_none().then_some(Unpriced::BlockTooShort),
            },
        })
    }

    /// Failures of a GPU in a day, for runs whose number of nodes is still open.
    pub fn failures_per_gpu_day(&self, published: &Published) -> Result<f64, GoodputError> {
        let usual = self.example(published)?.map_or(0.0, PublishedRate::per_gpu_day);
        // Published rates are those of nodes with eight GPUs.
        Ok(self.failures_per_node_day.map_or(usual, |per_node| per_node / 8.0))
    }

    /// What happens after a failure in a run whose steps and layout are still open; copies are made every `step`.
    pub fn open_recovery(&self, step: Seconds, published: &Published) -> Result<Recovery, GoodputError> {
        let restart = self.restart(published)?.recovery;
        Ok(match self.recovery {
            RecoveryKind::Restart => restart,
            RecoveryKind::Peers | RecoveryKind::Elastic => from_peers(restart, step, published),
        })
    }

    /// Where checkpoints of `bytes` go.
    pub fn store(
        &self,
        bytes: Bytes,
        catalog: &Catalog,
        published: &Published,
    ) -> Result<CheckpointStore, GoodputError> {
        let class = catalog.storage_class(&self.storage)?;
        Ok(match class.tier {
            StorageTier::Durable => CheckpointStore::objects(class, self.object_bandwidth, published),
            StorageTier::Shared | StorageTier::Local => {
                let size = self.storage_size.unwrap_or_else(|| (bytes * 10.0).max(SMALLEST_FILE_SYSTEM));
                CheckpointStore::shared(class, size)
            }
        })
    }

    fn interruptions(&self, work: &Work, published: &Published) -> Result<f64, GoodputError> {
        let usual = self.example(published)?.map_or(0.0, |rate| rate.per_node_day);
        let failures = self.failures_per_node_day.unwrap_or(usual);
        let purchase = self.purchase.unwrap_or(Purchase::OnDemand);
        let machine = work.machines.first().and_then(|machines| machines.instance.as_deref());
        interruptions(failures, purchase, self.spot_per_node_day, machine.unwrap_or("this machine"))
    }

    /// The published run that this one is expected to be like.
    fn example<'a>(&self, published: &'a Published) -> Result<Option<&'a PublishedRate>, GoodputError> {
        match &self.like {
            Some(key) => published.rate(key).map(Some),
            None => Ok(published.usual_rate()),
        }
    }

    /// The given time of a restart, else that of the operator of the published run.
    fn restart(&self, published: &Published) -> Result<Restart, GoodputError> {
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

    fn recovery_of(&self, work: &Work, nodes: u32, restart: Recovery, published: &Published) -> Recovery {
        match self.recovery {
            RecoveryKind::Restart => restart,
            RecoveryKind::Peers => from_peers(restart, work.step, published),
            RecoveryKind::Elastic => {
                let copies = f64::from(work.copies).max(1.0);
                from_peers(restart, work.step, published)
                    .with_elastic(f64::from(nodes) / copies, restart.downtime)
            }
        }
    }

    /// What the machines cost in an hour, and how they are bought then.
    pub fn hourly(&self, work: &Work, catalog: &Catalog) -> Option<(Dollars, Purchase)> {
        let rents = self.rents(work, catalog, Seconds::hours(1.0)).ok()?;
        let hourly =
            rents.iter().map(|rent| rent.per_node * Seconds::hours(1.0) * f64::from(rent.nodes)).sum();
        Some((hourly, rents.first()?.purchase))
    }

    /// How all kinds of nodes are rented.
    fn rents(&self, work: &Work, catalog: &Catalog, time: Seconds) -> Result<Vec<Rent>, Unpriced> {
        let rent = |Machines { instance, nodes }: &Machines| {
            let instance = catalog.instance(instance.as_deref()?).ok()?;
            let region = self.region.as_deref();
            let rent = Rent::offered(&instance.name, &instance.prices, self.purchase, region, *nodes).ok();
            rent.or_else(|| self.rented_racks(&instance.name, *nodes, work.domain, catalog, time))
        };
        work.machines.iter().map(|machines| rent(machines).ok_or(Unpriced::NoPrice)).collect()
    }

    /// Nodes that are sold only as parts of UltraServers are rented as whole ones: those of the cluster's NVLink
    /// domain, else the cheapest that hold them.
    fn rented_racks(
        &self,
        instance: &str,
        nodes: u32,
        domain: u32,
        catalog: &Catalog,
        time: Seconds,
    ) -> Option<Rent> {
        let racks = catalog.ultraservers.iter().filter(|rack| rack.instance == instance);
        let (same, other): (Vec<&UltraServer>, Vec<&UltraServer>) =
            racks.partition(|rack| rack.accelerators == domain);
        let racks = if same.is_empty() { other } else { same };
        let rents = racks.into_iter().filter_map(|rack| {
            let count = nodes.div_ceil(rack.instances.max(1));
            Rent::offered(&rack.name, &rack.prices, self.purchase, self.region.as_deref(), count).ok()
        });
        let cost = |rent: &Rent| rent.cost(time).map_or(f64::INFINITY, Dollars::get);
        rents.min_by(|a, b| cost(a).total_cmp(&cost(b)))
    }
}

/// The sum over all kinds of machines; none where one is unknown.
fn sum(rents: &[Rent], of: impl Fn(&Rent) -> Option<Dollars>) -> Option<Dollars> {
    rents.iter().map(of).sum()
}

/// A restart that is needed only where the peers' copies are lost too. A copy is sent during the next step, which
/// hides it.
fn from_peers(restart: Recovery, every: Seconds, published: &Published) -> Recovery {
    Recovery { copies: Recovery::from_peers(published, every, Seconds::ZERO).copies, ..restart }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assumptions() -> Assumptions {
        Assumptions {
            like: None,
            failures_per_node_day: None,
            spot_per_node_day: None,
            restart_time: None,
            recovery: RecoveryKind::Restart,
            storage: "fsx-lustre-persistent-1000".into(),
            storage_size: None,
            object_bandwidth: None,
            stall: Seconds::new(5.0),
            interval: None,
            purchase: None,
            region: None,
            limits: RunLimits::default(),
        }
    }

    fn work(instance: &str, nodes: u32) -> Work {
        Work {
            step: Seconds::new(20.0),
            steps: 100_000.0,
            gpus: u64::from(nodes) * 8,
            copies: nodes,
            checkpoint: Bytes::tb(1.0),
            machines: vec![Machines { instance: Some(instance.into()), nodes }],
            domain: 8,
        }
    }

    #[test]
    fn copies_in_peers_and_fewer_nodes_lose_less_than_restarts() {
        let catalog = Catalog::builtin();
        let goodput = |recovery| {
            let run = Assumptions { recovery, ..assumptions() };
            run.whole_run(&work("p5.48xlarge", 512), &catalog).unwrap().outlook.goodput
        };
        let [restart, peers, elastic] =
            [RecoveryKind::Restart, RecoveryKind::Peers, RecoveryKind::Elastic].map(goodput);
        assert!(restart < peers && restart < elastic, "{restart} {peers} {elastic}");
    }

    #[test]
    fn what_is_given_wins_over_what_is_published() {
        let given = Assumptions {
            failures_per_node_day: Some(0.008),
            restart_time: Some(Seconds::new(60.0)),
            ..assumptions()
        };
        let run = given.whole_run(&work("p5.48xlarge", 16), &Catalog::builtin()).unwrap();
        assert_eq!((run.failures_per_node_day, run.restart.source.as_str()), (0.008, "as given"));
        assert_eq!(given.failures_per_gpu_day(&Published::builtin()).unwrap(), 0.001);
        assert!(run.bill.total().is_some());
    }

    #[test]
    fn nodes_of_ultraservers_are_paid_as_whole_ultraservers() {
        let catalog = Catalog::builtin();
        let instance = catalog.ultraservers.iter().find(|rack| rack.instances > 1).unwrap();
        let (name, domain) = (instance.instance.clone(), instance.accelerators);
        let cost = |nodes: u32| {
            let work = Work { domain, ..work(&name, nodes) };
            assumptions().rents(&work, &catalog, Seconds::days(10.0)).map(|rents| rents[0].nodes)
        };
        assert_eq!((cost(1), cost(instance.instances + 1)), (Ok(1), Ok(2)));
    }

    #[test]
    fn a_run_longer_than_any_block_has_no_price_as_a_block_and_says_why() {
        let days = |days: f64| {
            let block = Assumptions {
                purchase: Some(Purchase::CapacityBlock),
                failures_per_node_day: Some(0.0),
                ..assumptions()
            };
            let work = Work { steps: days * 86_400.0 / 20.0, ..work("p5.48xlarge", 2) };
            block.whole_run(&work, &Catalog::builtin()).unwrap()
        };
        assert_eq!(days(300.0).unpriced, Some(Unpriced::BlockTooShort));
        let short = days(20.5);
        assert_eq!(short.unpriced, None);
        // Three weeks are paid.
        let (paid, unused) = (short.bill.machines.unwrap(), short.unused.unwrap());
        let used = short.outlook.expected.as_days() / 21.0;
        assert!((unused.get() / paid.get() - (1.0 - used)).abs() < 1e-9, "{unused} of {paid}, {used}");
    }
}
