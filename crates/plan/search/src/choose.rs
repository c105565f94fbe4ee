//! Which machines to use: the whole catalog under a deadline, a budget, or both.
//!
//! Every machine is tried in growing numbers, each with the best layout of a coarse space
//! ([`Axes::coarse`]); search the chosen number with all axes to get the last percent. A machine without a
//! price is listed and never ranked by cost; a price is never guessed.

use std::cmp::Ordering;

use bedplate_catalog::{Catalog, Purchase};
use bedplate_goodput::{GoodputError, Rent, RunLimits, checkpoint_bytes};
use bedplate_layout::ComputePrecision;
use bedplate_perf::{Constants, Hardware, Workload};
use bedplate_transformer::{FlopsConvention, Transformer};
use bedplate_units::{Dollars, Seconds, Tokens, grouped};

use crate::near_miss::near_misses;
use crate::{
    Axes, BatchSize, LayoutCandidate, Machine, NodesJob, Reliability, SearchError, Setup, Space, pareto,
};

/// What is to be trained, by when, for how much.
#[derive(Debug, Clone, Copy)]
pub struct TrainingNeed<'a> {
    pub model: &'a Transformer,
    pub tokens: Tokens,
    /// Its batch is that of no number of GPUs yet: see `batch`.
    pub workload: Workload,
    pub batch: BatchSize,
    pub constants: &'a Constants,
    pub limits: RunLimits,
    /// How machines are bought; `None`: on demand or as a capacity block, whichever is cheaper.
    pub purchase: Option<Purchase>,
    /// Only prices of this region.
    pub region: Option<&'a str>,
    pub precision: ComputePrecision,
    pub max_gpus: u32,
    /// Failures and checkpoints; without it nothing fails.
    pub reliability: Option<&'a Reliability>,
    /// Whether chips without training measurements may be chosen.
    pub uncalibrated: Uncalibrated,
}

/// What to do with chips whose predictions are not calibrated by training measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Uncalibrated {
    /// List them, never choose them.
    List,
    Choose,
}

/// A number of units of one machine, with the best layout.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    pub machine: String,
    /// Units of the machine.
    pub units: u32,
    pub gpus: u32,
    /// Sequences per optimizer step on these GPUs.
    pub global_batch: u64,
    pub candidate: LayoutCandidate,
    /// The whole run, failures included.
    pub time: Seconds,
    /// Share of the time that advances the run.
    pub goodput: f64,
    /// Machines for whole terms, and the storage of checkpoints; `None` when a price is not known.
    pub cost: Option<Dollars>,
    /// Of the cost, that of the machines.
    pub machines: Option<Dollars>,
    /// How the machines are bought at that cost.
    pub purchase: Option<Purchase>,
    /// Whether training measurements of such chips support the prediction.
    pub is_calibrated: bool,
}

/// Why a machine was not chosen.
#[derive(Debug, Clone, PartialEq)]
pub enum Objection {
    /// A figure that every prediction needs is missing.
    MissingFigure { what: String },
    /// No layout fits on any number up to the limit.
    FitsNowhere { up_to_gpus: u32 },
    /// Its fastest number is still this much later than the deadline.
    TooSlow { offer: Box<Offer>, by: Seconds },
    /// Its cheapest number that is in time costs this much more than the budget.
    OverBudget { offer: Box<Offer>, by: Dollars },
    /// It meets the limits, but no training measurement of such chips supports the prediction.
    Uncalibrated { offer: Box<Offer> },
    /// It meets all limits that can be judged, and has no price to be ranked by.
    UnknownPrice { offer: Box<Offer> },
    /// It meets the limits and another is better.
    Beaten { offer: Box<Offer> },
}

/// The chosen machine and the verdict on all others.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineChoice {
    pub best: Offer,
    /// Offers that no other beats in time, memory per GPU and cost, by rising cost.
    pub front: Vec<Offer>,
    /// Every other machine, in the order of the catalog.
    pub others: Vec<(String, Objection)>,
}

/// The cheapest offer that meets the deadline; without a deadline, the fastest within the budget; without
/// either, the cheapest.
pub fn choose(need: &TrainingNeed<'_>, catalog: &Catalog) -> Result<MachineChoice, SearchError> {
    select(need, catalog).map_err(|others| need.no_machine(others, catalog))
}

/// The choice, or why each machine was not chosen.
pub(crate) fn select(
    need: &TrainingNeed<'_>,
    catalog: &Catalog,
) -> Result<MachineChoice, Vec<(String, Objection)>> {
    let machines = Machine::of_catalog(catalog);
    let mut finalists: Vec<Offer> = Vec::new();
    let mut offers: Vec<Offer> = Vec::new();
    let mut others: Vec<(String, Objection)> = Vec::new();
    for machine in &machines {
        match audition(need, machine) {
            Ok(found) => {
                offers.extend(found.iter().cloned());
                match need.pick(&found) {
                    Ok(offer) if !need.may_choose(machine) => {
                        others
                            .push((machine.name.clone(), Objection::Uncalibrated { offer: Box::new(offer) }));
                    }
                    Ok(offer) => finalists.push(offer),
                    Err(objection) => others.push((machine.name.clone(), objection)),
                }
            }
            Err(objection) => others.push((machine.name.clone(), objection)),
        }
    }
    let Some(best) = finalists.iter().min_by(|a, b| need.order(a, b)).cloned() else {
        return Err(others);
    };
    let beaten = finalists.into_iter().filter(|offer| offer.machine != best.machine);
    others.extend(beaten.map(|offer| (offer.machine.clone(), Objection::Beaten { offer: Box::new(offer) })));
    let place = |name: &String| machines.iter().position(|machine| machine.name == *name);
    others.sort_by_key(|(name, _)| place(name));
    Ok(MachineChoice { front: front(offers), best, others })
}

/// The offers of one machine for all numbers that can matter.
fn audition(need: &TrainingNeed<'_>, machine: &Machine) -> Result<Vec<Offer>, Objection> {
    let hardware =
        machine.hardware.clone().map_err(|error| Objection::MissingFigure { what: error.to_string() })?;
    let axes = Axes { precision: vec![need.precision], ..Axes::coarse(hardware.domain) };
    let mut offers = Vec::new();
    let mut in_time = 0;
    for units in unit_counts(need.max_gpus / machine.gpus.max(1)) {
        // A few numbers beyond the first that is in time show where cost begins to rise.
        if in_time > EXTRA {
            break;
        }
        let Some(offer) = offer(need, machine, hardware, units, &axes)? else { continue };
        if need.limits.deadline.is_some_and(|deadline| offer.time <= deadline) {
            in_time += 1;
        }
        offers.push(offer);
    }
    if offers.is_empty() { Err(Objection::FitsNowhere { up_to_gpus: need.max_gpus }) } else { Ok(offers) }
}

/// How many numbers of a machine are tried after one is in time.
const EXTRA: u32 = 2;

/// 1, 2, 3, 4, 6, 8, 12, …: powers of two and one and a half times them.
fn unit_counts(limit: u32) -> impl Iterator<Item = u32> {
    let powers = (0..31).map(|power| 1u32 << power);
    let counts = powers.flat_map(|power| [Some(power), (power >= 2).then(|| power / 2 * 3)]).flatten();
    counts.take_while(move |count| *count <= limit)
}

/// The offer for one number of units; none where it cannot be in time or no layout fits.
fn offer(
    need: &TrainingNeed<'_>,
    machine: &Machine,
    hardware: Hardware,
    units: u32,
    axes: &Axes,
) -> Result<Option<Offer>, Objection> {
    let gpus = machine.gpus * units;
    let workload = need.workload_on(gpus);
    let setup = Setup {
        model: need.model,
        hardware: Hardware { gpus, ..hardware },
        workload,
        constants: need.constants,
    };
    if need.is_hopeless(&hardware, gpus) {
        return Ok(None);
    }
    let Some(candidate) = search_quietly(&setup, axes) else { return Ok(None) };
    let steps = need.tokens.get() / workload.tokens();
    let goodput = need.goodput(&candidate, machine, units, steps);
    let goodput = goodput.map_err(|error| Objection::MissingFigure { what: error.to_string() })?;
    let time = candidate.seconds * (steps / goodput);
    let rent = Rent::cheapest(&machine.name, &machine.prices, need.purchase, need.region, units, time);
    let machines = rent.and_then(|rent| rent.cost(time));
    Ok(Some(Offer {
        machine: machine.name.clone(),
        units,
        gpus,
        global_batch: workload.global_batch,
        candidate,
        time,
        goodput,
        cost: machines.zip(need.storage_cost(time)).map(|(machines, storage)| machines + storage),
        machines,
        purchase: rent.map(|rent| rent.purchase),
        is_calibrated: hardware.generation.is_fitted(),
    }))
}

/// The best candidate, without the costly search for alternatives.
fn search_quietly(setup: &Setup<'_>, axes: &Axes) -> Option<LayoutCandidate> {
    let space = Space::new(setup, axes).ok()?;
    space.price(space.whole(), 1).best().first().copied()
}

impl TrainingNeed<'_> {
    fn may_choose(&self, machine: &Machine) -> bool {
        let is_calibrated = machine.hardware.as_ref().is_ok_and(|it| it.generation.is_fitted());
        is_calibrated || self.uncalibrated == Uncalibrated::Choose
    }

    /// The goodput on this many units.
    fn goodput(
        &self,
        candidate: &LayoutCandidate,
        machine: &Machine,
        units: u32,
        steps: f64,
    ) -> Result<f64, GoodputError> {
        let Some(reliability) = self.reliability else { return Ok(1.0) };
        let job = NodesJob {
            model: self.model,
            optimizer: self.workload.optimizer,
            step: candidate.seconds,
            steps,
            nodes: machine.nodes.saturating_mul(units),
            gpus_per_node: machine.gpus / machine.nodes.max(1),
        };
        Ok(reliability.outlook(&job)?.goodput)
    }

    /// What keeping checkpoints costs for a time; nothing where nothing fails.
    fn storage_cost(&self, time: Seconds) -> Option<Dollars> {
        let Some(reliability) = self.reliability else { return Some(Dollars::ZERO) };
        let bytes = checkpoint_bytes(self.model, self.workload.optimizer);
        // The last checkpoint and the one being written.
        reliability.store.cost(bytes * 2.0, time)
    }

    /// The workload with the batch that a plan for this many GPUs would have.
    fn workload_on(&self, gpus: u32) -> Workload {
        let global_batch = self.batch.sequences(self.workload.sequence, gpus);
        Workload { global_batch, ..self.workload }
    }

    /// Whether the deadline is missed even at the chips' peak: then nothing needs to be searched.
    fn is_hopeless(&self, hardware: &Hardware, gpus: u32) -> bool {
        let Some(deadline) = self.limits.deadline else { return false };
        let per_token = self.model.flops_per_token(self.workload.sequence, FlopsConvention::default());
        let peak = hardware.peak_bf16.max(hardware.peak_fp8).max(hardware.peak_fp4);
        // Frozen weights save a third.
        let least = per_token.training().get() * 2.0 / 3.0;
        let fastest = self.tokens.get() * least / (peak * f64::from(gpus));
        // The smallest numbers are kept, so that the verdict can say by how much a machine is too slow.
        fastest > deadline.get() && u64::from(gpus) * 4 <= u64::from(self.max_gpus)
    }

    /// The best of one machine's offers, or the verdict against all of them.
    fn pick(&self, offers: &[Offer]) -> Result<Offer, Objection> {
        let is_in_time = |offer: &&Offer| self.limits.deadline.is_none_or(|deadline| offer.time <= deadline);
        let in_time: Vec<&Offer> = offers.iter().filter(is_in_time).collect();
        let Some(deadline) = self.limits.deadline.filter(|_| in_time.is_empty()) else {
            return self.pick_affordable(&in_time);
        };
        let fastest =
            offers.iter().min_by_key(|offer| offer.time).expect("an audition gives at least one offer");
        Err(Objection::TooSlow { by: fastest.time - deadline, offer: Box::new(fastest.clone()) })
    }

    fn pick_affordable(&self, offers: &[&Offer]) -> Result<Offer, Objection> {
        let best =
            |offers: &[&Offer]| offers.iter().min_by(|a, b| self.order(a, b)).map(|offer| (*offer).clone());
        let is_affordable = |offer: &&&Offer| match (self.limits.budget, offer.cost) {
            (None, Some(_)) => true,
            (Some(budget), Some(cost)) => cost <= budget,
            (_, None) => false,
        };
        let affordable: Vec<&Offer> = offers.iter().filter(is_affordable).copied().collect();
        if let Some(offer) = best(&affordable) {
            return Ok(offer);
        }
        let priced = offers.iter().filter_map(|offer| Some((offer.cost?, *offer)));
        Err(match priced.min_by_key(|(cost, _)| *cost) {
            Some((cost, offer)) => {
                let by = cost.saturating_sub(self.limits.budget.unwrap_or(cost));
                Objection::OverBudget { offer: Box::new(offer.clone()), by }
            }
            None => {
                let offer = best(offers).expect("some offer is in time");
                Objection::UnknownPrice { offer: Box::new(offer) }
            }
        })
    }

    /// Which of two offers is better. Names break ties, so that the order of the catalog does not matter.
    fn order(&self, a: &Offer, b: &Offer) -> Ordering {
        let by_cost = |a: &Offer, b: &Offer| match (a.cost, b.cost) {
            (Some(a), Some(b)) => a.cmp(&b),
            (None, None) => a.gpus.cmp(&b.gpus),
            (known, _) => {
                if known.is_some() {
                    Ordering::Less
                } else {
                    Ordering::Greater
                }
            }
        };
        let by_time = a.time.cmp(&b.time);
        let is_for_speed = self.limits.deadline.is_none() && self.limits.budget.is_some();
        let order =
            if is_for_speed { by_time.then_with(|| by_cost(a, b)) } else { by_cost(a, b).then(by_time) };
        order.then_with(|| a.machine.cmp(&b.machine)).then_with(|| a.units.cmp(&b.units))
    }

    fn no_machine(&self, others: Vec<(String, Objection)>, catalog: &Catalog) -> SearchError {
        let limits = match (self.limits.deadline, self.limits.budget) {
            (Some(deadline), Some(budget)) => format!("within {deadline} and {budget}"),
            (Some(deadline), None) => format!("within {deadline}"),
            (None, Some(budget)) => format!("for {budget}"),
            (None, None) => format!("on up to {} GPUs", grouped(self.max_gpus.into())),
        };
        SearchError::NoMachine {
            model: self.model.name.clone(),
            tokens: self.tokens.to_string().replace(" tokens", ""),
            limits,
            ways: near_misses(self, &others, catalog),
            others,
        }
    }
}

fn front(offers: Vec<Offer>) -> Vec<Offer> {
    let priced: Vec<Offer> = offers.into_iter().filter(|offer| offer.cost.is_some()).collect();
    let point = |offer: &Offer| {
        [offer.time.get(), offer.candidate.memory.get(), offer.cost.map_or(f64::INFINITY, Dollars::get)]
    };
    let points: Vec<[f64; 3]> = priced.iter().map(point).collect();
    let mut front: Vec<Offer> = pareto(&points).into_iter().map(|index| priced[index].clone()).collect();
    front.sort_by(|a, b| {
        a.cost.cmp(&b.cost).then(a.time.cmp(&b.time)).then_with(|| a.machine.cmp(&b.machine))
    });
    front
}
