//! What would have to change for a machine to meet limits that none meets.
//!
//! Each change is made alone, and only those are named with which the question then has an answer.

use std::fmt;

use bedplate_catalog::Catalog;
use bedplate_goodput::RunLimits;
use bedplate_layout::ComputePrecision;
use bedplate_units::{Dollars, Seconds, Tokens};

use crate::choose::select;
use crate::{Objection, Offer, TrainingNeed, Uncalibrated};

/// One change, and the machines that meet the limits then.
#[derive(Debug, Clone, PartialEq)]
pub struct NearMiss {
    pub change: QuestionChange,
    pub offer: Box<Offer>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum QuestionChange {
    Budget(Dollars),
    Deadline(Seconds),
    Tokens(Tokens),
    Fp8,
    AnyChip,
    /// A price that the catalog does not know.
    OwnPrice,
}

impl fmt::Display for NearMiss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.change {
            QuestionChange::Budget(dollars) => {
                write!(f, "--budget '{}'", dollars.to_string().replace(',', ""))
            }
            QuestionChange::Deadline(time) => write!(f, "--deadline {}d", time.as_days()),
            QuestionChange::Tokens(tokens) => {
                write!(f, "--tokens {}", tokens.to_string().replace(" tokens", "").replace(' ', ""))
            }
            QuestionChange::Fp8 => write!(f, "--precision fp8"),
            QuestionChange::AnyChip => write!(f, "--any-chip"),
            QuestionChange::OwnPrice => write!(f, "a price of your own in a catalog overlay"),
        }?;
        let Offer { units, machine, time, cost, .. } = &*self.offer;
        write!(f, " ({units} x {machine}: {time:.3}")?;
        if let Some(cost) = cost {
            write!(f, ", {cost}")?;
        }
        write!(f, ")")
    }
}

/// The changes that help, each alone.
pub(crate) fn near_misses(
    need: &TrainingNeed<'_>,
    others: &[(String, Objection)],
    catalog: &Catalog,
) -> Vec<NearMiss> {
    let mut found = Vec::new();
    let mut tries = |change: Option<QuestionChange>| {
        let found_now = change.and_then(|change| answer(need, change, catalog));
        found.extend(found_now);
    };
    tries((need.precision == ComputePrecision::Bf16).then_some(QuestionChange::Fp8));
    tries((need.uncalibrated == Uncalibrated::List).then_some(QuestionChange::AnyChip));
    let others: Vec<&Objection> = others
        .iter()
        .map(|(_, objection)| objection)
        .filter(|objection| need.may_answer(objection))
        .collect();
    tries(budget(&others).map(QuestionChange::Budget));
    tries(deadline(&others).map(QuestionChange::Deadline));
    tries(tokens(need, &others).map(QuestionChange::Tokens));
    found.extend(unpriced(&others));
    found
}

/// The machines that are chosen after the change.
fn answer(need: &TrainingNeed<'_>, change: QuestionChange, catalog: &Catalog) -> Option<NearMiss> {
    let limits = need.limits;
    let changed = match change {
        QuestionChange::Budget(budget) => {
            TrainingNeed { limits: RunLimits { budget: Some(budget), ..limits }, ..*need }
        }
        QuestionChange::Deadline(deadline) => {
            TrainingNeed { limits: RunLimits { deadline: Some(deadline), ..limits }, ..*need }
        }
        QuestionChange::Tokens(tokens) => TrainingNeed { tokens, ..*need },
        QuestionChange::Fp8 => TrainingNeed { precision: ComputePrecision::Fp8, ..*need },
        QuestionChange::AnyChip => TrainingNeed { uncalibrated: Uncalibrated::Choose, ..*need },
        QuestionChange::OwnPrice => return None,
    };
    let choice = select(&changed, catalog).ok()?;
    Some(NearMiss { change, offer: Box::new(choice.best) })
}

/// What the cheapest offer costs that is in time, rounded up to two digits.
fn budget(others: &[&Objection]) -> Option<Dollars> {
    let costs = others.iter().filter_map(|objection| match objection {
        Objection::OverBudget { offer, .. } => offer.cost,
        _ => None,
    });
    costs.min().map(|cost| Dollars::new(two_digits(cost.get(), f64::ceil)))
}

/// How long the fastest offer takes, in whole days.
fn deadline(others: &[&Objection]) -> Option<Seconds> {
    let times = others.iter().filter_map(|objection| match objection {
        Objection::TooSlow { offer, .. } => Some(offer.time),
        _ => None,
    });
    times.min().map(|time| Seconds::days(time.as_days().ceil()))
}

/// The tokens that fit into the limits on the machine that comes nearest, rounded down to two digits.
fn tokens(need: &TrainingNeed<'_>, others: &[&Objection]) -> Option<Tokens> {
    let shares = others.iter().filter_map(|objection| match objection {
        Objection::TooSlow { offer, .. } | Objection::OverBudget { offer, .. } => Some(need.share_of(offer)),
        _ => None,
    });
    let share = shares.max_by(f64::total_cmp).filter(|share| *share > 0.0)?;
    Some(Tokens::new(two_digits(need.tokens.get() * share, f64::floor)))
}

impl TrainingNeed<'_> {
    /// Whether these machines may be chosen at all.
    fn may_answer(&self, objection: &Objection) -> bool {
        let may_be_chosen = |offer: &Offer| offer.is_calibrated || self.uncalibrated == Uncalibrated::Choose;
        match objection {
            Objection::TooSlow { offer, .. } => may_be_chosen(offer) && offer.cost.is_some(),
            Objection::OverBudget { offer, .. } | Objection::UnknownPrice { offer } => may_be_chosen(offer),
            _ => false,
        }
    }

    /// The share of an offer's run that the limits have room for.
    fn share_of(&self, offer: &Offer) -> f64 {
        let in_time = self.limits.deadline.map(|deadline| deadline / offer.time);
        let for_money = self.limits.budget.map(|budget| offer.cost.map_or(0.0, |cost| budget / cost));
        in_time.unwrap_or(1.0).min(for_money.unwrap_or(1.0))
    }
}

fn two_digits(value: f64, round: fn(f64) -> f64) -> f64 {
    let unit = 10f64.powf(value.log10().floor() - 1.0);
    round(value / unit) * unit
}

/// The fastest that is in time and has no price.
fn unpriced(others: &[&Objection]) -> Option<NearMiss> {
    let offers = others.iter().filter_map(|objection| match objection {
        Objection::UnknownPrice { offer } => Some(offer),
        _ => None,
    });
    let offer = offers.min_by_key(|offer| offer.time)?;
    Some(NearMiss { change: QuestionChange::OwnPrice, offer: offer.clone() })
}
