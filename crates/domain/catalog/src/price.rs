//! What a machine costs per hour, by how it is bought.

use bedplate_units::DollarRate;

/// Prices by purchase option. An empty list means unknown, never free.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Prices {
    pub on_demand: Vec<Price>,
    pub reserved_1y: Vec<Price>,
    pub reserved_3y: Vec<Price>,
    pub capacity_block: Vec<Price>,
    pub spot: Vec<Price>,
}

/// One published price, at one place and time.
#[derive(Debug, Clone, PartialEq)]
pub struct Price {
    pub per_hour: DollarRate,
    pub region: String,
    /// `2025-06` or `2025-06-05`.
    pub date: String,
    pub source: String,
    pub note: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purchase {
    #[default]
    OnDemand,
    Reserved1y,
    Reserved3y,
    CapacityBlock,
    Spot,
}

impl Purchase {
    pub const ALL: [(&'static str, Purchase); 5] = [
        ("on-demand", Purchase::OnDemand),
        ("reserved-1y", Purchase::Reserved1y),
        ("reserved-3y", Purchase::Reserved3y),
        ("capacity-block", Purchase::CapacityBlock),
        ("spot", Purchase::Spot),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

impl Prices {
    pub fn of(&self, purchase: Purchase) -> &[Price] {
        match purchase {
            Purchase::OnDemand => &self.on_demand,
            Purchase::Reserved1y => &self.reserved_1y,
            Purchase::Reserved3y => &self.reserved_3y,
            Purchase::CapacityBlock => &self.capacity_block,
            Purchase::Spot => &self.spot,
        }
    }

    pub(crate) fn of_mut(&mut self, purchase: Purchase) -> &mut Vec<Price> {
        match purchase {
            Purchase::OnDemand => &mut self.on_demand,
            Purchase::Reserved1y => &mut self.reserved_1y,
            Purchase::Reserved3y => &mut self.reserved_3y,
            Purchase::CapacityBlock => &mut self.capacity_block,
            Purchase::Spot => &mut self.spot,
        }
    }

    /// The newest price of a kind, in `region` where given. On equal dates the cheaper one.
    pub fn newest(&self, purchase: Purchase, region: Option<&str>) -> Option<&Price> {
        self.of(purchase)
            .iter()
            .filter(|price| region.is_none_or(|wanted| price.region == wanted))
            .max_by(|a, b| a.date.cmp(&b.date).then(b.per_hour.cmp(&a.per_hour)))
    }
}
