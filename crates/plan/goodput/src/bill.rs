//! What a run costs, by how its machines are bought, and whether it stays within limits.

use bedplate_catalog::{Prices, Purchase};
use bedplate_units::{Bytes, DollarRate, Dollars, Seconds};

use crate::{CheckpointStore, GoodputError, RunOutlook};

/// Machines as they are paid for: whole ones, for the terms they are sold for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rent {
    pub purchase: Purchase,
    /// One node.
    pub per_node: DollarRate,
    /// Nodes that are paid for, spares included.
    pub nodes: u32,
}

impl Rent {
    /// The newest known price, in `region` where one is named.
    pub fn from_prices(
        machine: &str,
        prices: &Prices,
        purchase: Purchase,
        region: Option<&str>,
        nodes: u32,
    ) -> Result<Self, GoodputError> {
        let unknown =
            || GoodputError::UnknownPrice { machine: machine.to_owned(), purchase: purchase.name() };
        let price = prices.newest(purchase, region).ok_or_else(unknown)?;
        Ok(Self { purchase, per_node: price.per_hour, nodes })
    }

    /// The same for machines bought in a named way; without one, on demand where that has a price, else as a
    /// capacity block: UltraServers are sold in no other way.
    pub fn offered(
        machine: &str,
        prices: &Prices,
        purchase: Option<Purchase>,
        region: Option<&str>,
        nodes: u32,
    ) -> Result<Self, GoodputError> {
        let wanted = purchase.unwrap_or(Purchase::OnDemand);
        let rent = Self::from_prices(machine, prices, wanted, region, nodes);
        match (rent, purchase) {
            (Err(unknown), None) => {
                let block = Self::from_prices(machine, prices, Purchase::CapacityBlock, region, nodes);
                block.map_err(|_| unknown)
            }
            (rent, _) => rent,
        }
    }

    /// The cheapest way to have machines for a time: the named purchase, else on demand or as a capacity block.
    pub fn cheapest(
        machine: &str,
        prices: &Prices,
        purchase: Option<Purchase>,
        region: Option<&str>,
        nodes: u32,
        time: Seconds,
    ) -> Option<Self> {
        let usual = [Purchase::OnDemand, Purchase::CapacityBlock];
        let ways = purchase.map_or(usual.to_vec(), |named| vec![named]);
        let rents =
            ways.into_iter().filter_map(|way| Self::from_prices(machine, prices, way, region, nodes).ok());
        rents
            .filter_map(|rent| Some((rent.cost(time)?, rent)))
            .min_by_key(|(cost, _)| *cost)
            .map(|(_, rent)| rent)
    }

    /// Dollars for a time, the rest of its last term included; `None` where machines are not sold for so long.
    pub fn cost(&self, time: Seconds) -> Option<Dollars> {
        Some(self.per_node * billed(self.purchase, time)? * f64::from(self.nodes))
    }

    /// What is paid beyond the time itself: the rest of a block's days, or of a reservation's term.
    pub fn unused(&self, time: Seconds) -> Option<Dollars> {
        Some(self.per_node * (billed(self.purchase, time)? - time) * f64::from(self.nodes))
    }
}

/// The longest capacity block that is sold.
pub const LONGEST_BLOCK: Seconds = Seconds::days(182.0);

/// The time that is paid for machines that are used for another. Capacity blocks are sold for 1 to 14 days and then for whole weeks up to
/// 182 days (AWS, "Capacity Blocks for ML", EC2 user guide); reservations for whole terms of one or three years.
fn billed(purchase: Purchase, time: Seconds) -> Option<Seconds> {
    let whole = |term: f64| Seconds::days((time.as_days() / term).ceil().max(1.0) * term);
    match purchase {
        Purchase::OnDemand | Purchase::Spot => Some(time),
        Purchase::CapacityBlock if time <= Seconds::days(14.0) => Some(whole(1.0)),
        Purchase::CapacityBlock => (time <= LONGEST_BLOCK).then(|| whole(7.0)),
        Purchase::Reserved1y => Some(whole(365.0)),
        Purchase::Reserved3y => Some(whole(3.0 * 365.0)),
    }
}

/// Interruptions per node and day: failures, and for spot machines reclaims by the provider.
///
/// No rate for spot accelerators is published, so one must be given.
pub fn interruptions(
    failures: f64,
    purchase: Purchase,
    spot_per_node_day: Option<f64>,
    machine: &str,
) -> Result<f64, GoodputError> {
    match (purchase, spot_per_node_day) {
        (Purchase::Spot, Some(taken)) => Ok(failures + taken),
        (Purchase::Spot, None) => Err(GoodputError::UnknownSpotRate { machine: machine.to_owned() }),
        _ => Ok(failures),
    }
}

/// The price of a run. A part that is not known leaves the total unknown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bill {
    pub machines: Option<Dollars>,
    pub storage: Option<Dollars>,
}

impl Bill {
    pub fn total(&self) -> Option<Dollars> {
        Some(self.machines? + self.storage?)
    }
}

/// What a run costs from its first step to its last: its machines, and the storage kept meanwhile.
pub fn bill(outlook: &RunOutlook, rent: Option<&Rent>, kept: &[(&CheckpointStore, Bytes)]) -> Bill {
    let mut storage = Some(Dollars::ZERO);
    for (store, bytes) in kept {
        let cost = store.cost(*bytes, outlook.expected);
        storage = storage.zip(cost).map(|(sum, cost)| sum + cost);
    }
    Bill { machines: rent.and_then(|rent| rent.cost(outlook.expected)), storage }
}

/// Limits on a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RunLimits {
    pub deadline: Option<Seconds>,
    pub budget: Option<Dollars>,
}

/// Whether one limit is met.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LimitVerdict<T> {
    Met {
        spare: T,
    },
    Missed {
        by: T,
    },
    /// A price is missing, so it is unknown.
    Unknown,
}

impl<T> LimitVerdict<T> {
    pub fn is_met(&self) -> bool {
        matches!(self, LimitVerdict::Met { .. })
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judgement {
    pub deadline: Option<LimitVerdict<Seconds>>,
    pub budget: Option<LimitVerdict<Dollars>>,
}

impl Judgement {
    /// Whether every limit that was set is met.
    pub fn is_met(&self) -> bool {
        self.deadline.is_none_or(|verdict| verdict.is_met())
            && self.budget.is_none_or(|verdict| verdict.is_met())
    }
}

impl RunLimits {
    pub fn judge(&self, outlook: &RunOutlook, bill: &Bill) -> Judgement {
        let deadline = self.deadline.map(|limit| match outlook.expected {
            time if time <= limit => LimitVerdict::Met { spare: limit - time },
            time => LimitVerdict::Missed { by: time - limit },
        });
        let budget = self.budget.map(|limit| match bill.total() {
            None => LimitVerdict::Unknown,
            Some(cost) if cost <= limit => LimitVerdict::Met { spare: limit - cost },
            Some(cost) => LimitVerdict::Missed { by: cost - limit },
        });
        Judgement { deadline, budget }
    }
}
