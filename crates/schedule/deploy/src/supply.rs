//! GPUs that a deployment may use, and what they cost.

use std::cmp::Reverse;

use bedplate_catalog::{Catalog, Prices, Purchase};
use bedplate_perf::{Hardware, PerfError};
use bedplate_search::Machine;
use bedplate_topology::Cluster;
use bedplate_units::Watts;

use crate::{Plan, Workers};

/// GPUs of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Supply {
    /// The instance or UltraServer, else the cluster.
    pub name: String,
    pub accelerator: String,
    /// `hardware.gpus` is how many there are.
    pub hardware: Hardware,
    /// GPUs of one rented unit.
    pub gpus_per_unit: u32,
    /// GPUs of one host; an UltraServer has many.
    pub gpus_per_node: u32,
    /// `None` where no price is known.
    pub dollars_per_gpu_hour: Option<f64>,
    /// The most power that a GPU draws, where it is known.
    pub watts_per_gpu: Option<Watts>,
    /// Other GPUs on which prompts are computed; then these decode only.
    pub prompts: Option<Box<Supply>>,
}

impl Supply {
    /// The usable GPUs of a cluster. A mixed one counts as its slowest kind, at the price of the most expensive.
    pub fn of_cluster(
        cluster: &Cluster,
        catalog: &Catalog,
        purchase: Purchase,
        region: Option<&str>,
    ) -> Result<Self, PerfError> {
        let hardware = Hardware::from_cluster(cluster, catalog)?;
        let kinds = || cluster.kinds().iter().filter(|kind| kind.accelerators > 0);
        let price = |kind: &bedplate_topology::NodeKind| {
            let instance = catalog.instance(kind.instance.as_deref()?).ok()?;
            let hourly = hourly(&instance.prices, purchase, region)?;
            Some(hourly / f64::from(instance.accelerators.max(1)))
        };
        let prices: Option<Vec<f64>> = kinds().map(price).collect();
        let mut names: Vec<&str> =
            kinds().map(|kind| kind.instance.as_deref().unwrap_or(&kind.name)).collect();
        names.dedup();
        Ok(Self {
            name: names.join("+"),
            accelerator: kinds().find_map(|kind| kind.accelerator.clone()).unwrap_or_default(),
            gpus_per_unit: kinds().map(|kind| kind.accelerators).min().unwrap_or(1).max(1),
            gpus_per_node: kinds().map(|kind| kind.accelerators).min().unwrap_or(1).max(1),
            hardware,
            dollars_per_gpu_hour: prices.and_then(|prices| prices.into_iter().reduce(f64::max)),
            watts_per_gpu: kinds()
                .map(|kind| catalog.accelerator(kind.accelerator.as_deref()?).ok()?.power)
                .reduce(|one, other| Some(Watts::new(one?.get().max(other?.get()))))
                .flatten(),
            prompts: None,
        })
    }

    /// Every machine of the catalog whose price is known, up to a number of GPUs. Not all have chips of which serving was measured.
    pub fn of_catalog(
        catalog: &Catalog,
        purchase: Purchase,
        region: Option<&str>,
        most_gpus: u32,
    ) -> Vec<Self> {
        let supply = |machine: Machine| {
            let hardware = machine.hardware.ok()?;
            let units = most_gpus / machine.gpus.max(1);
            let price = hourly(&machine.prices, purchase, region)?;
            let instance = catalog.instance(&machine.name).ok()?;
            let accelerator = instance.accelerator.clone();
            (units > 0).then(|| Self {
                name: machine.name,
                accelerator,
                hardware: Hardware { gpus: units * machine.gpus, ..hardware },
                gpus_per_unit: machine.gpus,
                gpus_per_node: instance.accelerators.max(1),
                dollars_per_gpu_hour: Some(price / f64::from(machine.gpus)),
                watts_per_gpu: catalog.accelerator_of(instance).power,
                prompts: None,
            })
        };
        Machine::of_catalog(catalog).into_iter().filter_map(supply).collect()
    }

    /// Prompts on GPUs of one kind, decodes on those of another, with a network between them.
    pub fn apart(prompts: Supply, decodes: Supply) -> Self {
        Self { prompts: Some(Box::new(prompts)), ..decodes }
    }

    /// The GPUs on which prompts are computed.
    pub fn of_prompts(&self) -> &Supply {
        self.prompts.as_deref().unwrap_or(self)
    }

    /// Every kind of GPU, those of prompts first.
    pub fn kinds(&self) -> impl Iterator<Item = &Supply> {
        self.prompts.as_deref().into_iter().chain([self])
    }

    /// What it is called in an answer.
    pub fn label(&self) -> String {
        match &self.prompts {
            Some(prompts) => format!("{} for prompts, {} for decodes", prompts.name, self.name),
            None => self.name.clone(),
        }
    }

    /// Those that decode, where prompts have others.
    pub fn gpus(&self) -> u32 {
        self.hardware.gpus
    }

    /// Whether there are enough GPUs for a plan.
    pub fn holds(&self, plan: &Plan) -> bool {
        match (&self.prompts, plan) {
            (Some(prompts), Plan::Disaggregated { prefill, decode }) => {
                prefill.gpus() <= prompts.gpus() && decode.gpus() <= self.gpus()
            }
            _ => plan.gpus() <= self.gpus(),
        }
    }

    /// What a plan costs: the whole units that it uses, also where it leaves some of their GPUs idle.
    pub fn dollars_of(&self, plan: &Plan) -> Option<f64> {
        match (&self.prompts, plan) {
            (Some(prompts), Plan::Disaggregated { prefill, decode }) => {
                let of_prompts = prompts.dollars_of_units(prompts.units_with(&[prefill]))?;
                Some(of_prompts + self.dollars_of_units(self.units_with(&[decode]))?)
            }
            _ => self.dollars_of_units(self.units_of(plan)),
        }
    }

    /// The units that a plan uses; of two kinds of GPUs those that decode.
    pub fn units_of(&self, plan: &Plan) -> u32 {
        match plan {
            Plan::Disaggregated { decode, .. } if self.prompts.is_some() => self.units_with(&[decode]),
            Plan::Disaggregated { prefill, decode } => self.units_with(&[prefill, decode]),
            Plan::Aggregated(workers) => self.units_with(&[workers]),
        }
    }

    /// The units that hold these replicas, of which none that fits into one unit is spread over two. The larger replicas are placed
    /// first, the smaller ones into the room that they leave.
    fn units_with(&self, pools: &[&Workers]) -> u32 {
        let mut pools = pools.to_vec();
        pools.sort_by_key(|workers| Reverse(workers.layout.gpus()));
        let mut units = 0;
        // Units with the same number of free GPUs.
        let mut rooms: Vec<Room> = Vec::new();
        for workers in pools {
            let gpus = workers.layout.gpus().max(1);
            let mut left = workers.replicas;
            for room in &mut rooms {
                left = left.saturating_sub(room.units.saturating_mul(room.free / gpus));
            }
            let (added, opened) = self.opened_for(gpus, left);
            units += added;
            rooms.extend(opened);
        }
        units
    }

    /// New units for replicas of so many GPUs, and the room that is left in them.
    fn opened_for(&self, gpus: u32, replicas: u32) -> (u32, [Room; 2]) {
        let unit = self.gpus_per_unit.max(1);
        if gpus > unit {
            let units = gpus.div_ceil(unit).saturating_mul(replicas);
            let free = gpus.div_ceil(unit) * unit - gpus;
            return (units, [Room { units: replicas, free }, Room::default()]);
        }
        let each = unit / gpus;
        let (full, rest) = (replicas / each, replicas % each);
        let last = Room { units: rest.min(1), free: unit - rest * gpus };
        (full + rest.min(1), [Room { units: full, free: unit - each * gpus }, last])
    }

    /// The price of whole units for an hour.
    pub fn dollars_of_units(&self, units: u32) -> Option<f64> {
        Some(self.dollars_per_gpu_hour? * f64::from(self.gpus_per_unit) * f64::from(units))
    }

    /// Units that hold this many GPUs.
    pub fn units(&self, gpus: u32) -> u32 {
        gpus.div_ceil(self.gpus_per_unit.max(1))
    }

    /// The price of so many GPUs for an hour, in whole units.
    pub fn dollars_per_hour(&self, gpus: u32) -> Option<f64> {
        self.dollars_of_units(self.units(gpus))
    }

    /// The plan with as many replicas as its units hold: the price is the same, and a replica that is paid for may as well answer. Of two
    /// pools the one that decodes grows.
    pub fn filled(&self, plan: Plan) -> Plan {
        let units = |plan: &Plan| (self.of_prompts().units_of(plan), self.units_of(plan));
        let paid = units(&plan);
        let mut filled = plan;
        loop {
            let more = filled.with_one_decoder_more();
            if units(&more) != paid || !self.holds(&more) {
                return filled;
            }
            filled = more;
        }
    }
}

/// Units that are alike, and the GPUs that each has left.
#[derive(Debug, Clone, Copy, Default)]
struct Room {
    units: u32,
    free: u32,
}

fn hourly(prices: &Prices, purchase: Purchase, region: Option<&str>) -> Option<f64> {
    Some(prices.newest(purchase, region)?.per_hour.hourly().get())
}
