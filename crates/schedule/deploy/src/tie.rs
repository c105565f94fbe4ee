//! Which of the plans that hold is taken.
//!
//! Costs that differ by less than predictions of two deployments differ wrongly say little: such plans are near ties. Of the cheapest
//! plan and its near ties the one with the widest formats is taken, because what narrow ones cost in quality is not modelled; of
//! these the safest, if its limits hold with less than 80 % confidence; of these the fastest, and of those nearly as fast the simplest. More replicas of the same layouts are no tie: fewer hold as well.

use std::cmp::Ordering;
use std::fmt;

use bedplate_perf::serving::{Parallel, WeightFormat};
use bedplate_replay::requests::seconds;
use bedplate_transformer::Precision;

use crate::{HeldPlan, Plan, ServingLayout, Supply};

/// What a plan costs: the dollars of its machines, or GPUs where no price is known; at the same price the one that leaves more GPUs of them
/// free. Plans with a price come first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cost {
    is_unpriced: bool,
    amount: f64,
    gpus: f64,
}

impl Cost {
    pub(crate) fn of(plan: &Plan, supply: &Supply) -> Self {
        let dollars = supply.dollars_of(plan);
        let gpus = f64::from(plan.gpus());
        Self { is_unpriced: dollars.is_none(), amount: dollars.unwrap_or(gpus), gpus }
    }

    pub(crate) fn order(&self, other: &Self) -> Ordering {
        let by_amount = self.is_unpriced.cmp(&other.is_unpriced).then(self.amount.total_cmp(&other.amount));
        by_amount.then(self.gpus.total_cmp(&other.gpus))
    }

    /// Whether it is more than a share above another, in price or, on machines of the same price, in GPUs.
    pub(crate) fn exceeds(&self, cheapest: &Self, near: f64) -> bool {
        let is_above = |one: f64, other: f64| one > other * (1.0 + near);
        let is_more = is_above(self.amount, cheapest.amount)
            || (self.amount >= cheapest.amount && is_above(self.gpus, cheapest.gpus));
        self.is_unpriced.cmp(&cheapest.is_unpriced).then(is_more.cmp(&false)).is_gt()
    }
}

/// What the chosen plan is ahead in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    Cheaper,
    WiderFormats,
    Safer,
    Faster,
    Simpler,
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Edge::Cheaper => "is cheaper",
            Edge::WiderFormats => "has wider formats",
            Edge::Safer => "is safer",
            Edge::Faster => "is faster",
            Edge::Simpler => "is simpler",
        })
    }
}

/// Weights, then KV; 0 is the widest.
pub(crate) fn formats(plan: &Plan) -> (u8, u8) {
    let layout = plan.decoders().layout;
    let weights = match layout.weights {
        WeightFormat::Bf16 => 0,
        WeightFormat::Fp8 => 1,
        WeightFormat::Fp4 => 2,
        WeightFormat::Int4 => 3,
    };
    (weights, u8::from(layout.kv != Precision::Bf16))
}

/// Pools, then kinds of parallelism, then GPUs of a replica; fewer are simpler.
pub(crate) fn simplicity(plan: &Plan) -> (u8, usize, u32) {
    let kinds = |layout: &ServingLayout| {
        let Parallel { tensor, pipeline, expert, attention_data } = layout.parallel;
        [tensor, pipeline, expert, attention_data].iter().filter(|degree| **degree > 1).count()
    };
    match plan {
        Plan::Aggregated(both) => (1, kinds(&both.layout), both.layout.gpus()),
        Plan::Disaggregated { prefill, decode } => (
            2,
            kinds(&prefill.layout) + kinds(&decode.layout),
            prefill.layout.gpus().saturating_add(decode.layout.gpus()),
        ),
    }
}

/// Beyond this confidence, in percent, plans are equally safe.
const SAFE: f64 = 80.0;

/// A plan that holds, as far as the choice depends on it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Contender {
    cost: Cost,
    formats: (u8, u8),
    /// Percent with which its limits hold, up to what is safe enough.
    confidence: u8,
    /// Mean seconds of a request.
    latency: f64,
    simplicity: (u8, usize, u32),
    /// The supply and the layouts, whatever their replicas.
    kind: (usize, ServingLayout, Option<ServingLayout>),
}

impl Contender {
    pub(crate) fn of(held: &HeldPlan, supplies: &[Supply]) -> Self {
        let kind = match &held.plan {
            Plan::Aggregated(both) => (held.supply, both.layout, None),
            Plan::Disaggregated { prefill, decode } => (held.supply, prefill.layout, Some(decode.layout)),
        };
        Self {
            cost: Cost::of(&held.plan, &supplies[held.supply]),
            formats: formats(&held.plan),
            confidence: (held.confidence.unwrap_or(1.0) * 100.0).round().min(SAFE) as u8,
            latency: seconds(held.shown.outcome.end_to_end.mean),
            simplicity: simplicity(&held.plan),
            kind,
        }
    }

    /// Everything that decides between equals, in turn.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        self.cost
            .order(&other.cost)
            .then(self.formats.cmp(&other.formats))
            .then(other.confidence.cmp(&self.confidence))
            .then(self.latency.total_cmp(&other.latency))
            .then(self.simplicity.cmp(&other.simplicity))
    }
}

/// The index of the one that is taken.
pub(crate) fn choose(contenders: &[Contender], near: f64) -> Option<usize> {
    let cheapest = contenders.iter().map(|each| each.cost).min_by(Cost::order)?;
    let is_fewest = |each: &Contender| {
        !contenders.iter().any(|other| other.kind == each.kind && other.cost.order(&each.cost).is_lt())
    };
    let mut left: Vec<usize> = (0..contenders.len())
        .filter(|index| !contenders[*index].cost.exceeds(&cheapest, near) && is_fewest(&contenders[*index]))
        .collect();
    let widest = left.iter().map(|index| contenders[*index].formats).min()?;
    left.retain(|index| contenders[*index].formats == widest);
    let safest = left.iter().map(|index| contenders[*index].confidence).max()?;
    left.retain(|index| contenders[*index].confidence == safest);
    let fastest = left.iter().map(|index| contenders[*index].latency).min_by(f64::total_cmp)?;
    left.retain(|index| contenders[*index].latency <= fastest * (1.0 + near));
    left.into_iter().min_by(|a, b| {
        let (a, b) = (&contenders[*a], &contenders[*b]);
        a.simplicity.cmp(&b.simplicity).then(a.order(b))
    })
}

/// What the chosen one is ahead of another in.
pub(crate) fn edge(chosen: &Contender, other: &Contender, cheapest: &Cost, near: f64) -> Edge {
    if other.cost.exceeds(cheapest, near) || other.kind == chosen.kind {
        Edge::Cheaper
    } else if other.formats != chosen.formats {
        Edge::WiderFormats
    } else if other.confidence < chosen.confidence {
        Edge::Safer
    } else if other.latency > chosen.latency * (1.0 + near) {
        Edge::Faster
    } else if other.simplicity > chosen.simplicity {
        Edge::Simpler
    } else if other.cost.order(&chosen.cost).is_gt() {
        Edge::Cheaper
    } else {
        Edge::Faster
    }
}

#[cfg(test)]
mod tests {
    use bedplate_perf::serving::Parallel;
    use proptest::prelude::*;

    use super::*;

    fn contender(amount: f64, weights: u8, latency: f64, pools: u8, tensor: u32) -> Contender {
        let layout = ServingLayout {
            parallel: Parallel::tensor(tensor),
            weights: WeightFormat::Bf16,
            kv: Precision::Bf16,
            chunk: u32::from(pools) * 100 + u32::from(weights),
        };
        Contender {
            cost: Cost { is_unpriced: false, amount, gpus: amount },
            formats: (weights, 0),
            confidence: 80,
            latency,
            simplicity: (pools, usize::from(tensor > 1), tensor),
            kind: (0, layout, None),
        }
    }

    fn taken(contenders: &[Contender]) -> (usize, Vec<String>) {
        let chosen = choose(contenders, 0.1).expect("there is one");
        let cheapest = contenders.iter().map(|each| each.cost).min_by(Cost::order).expect("there is one");
        let others = (0..contenders.len()).filter(|index| *index != chosen);
        let edges = others
            .map(|index| edge(&contenders[chosen], &contenders[index], &cheapest, 0.1).to_string())
            .collect();
        (chosen, edges)
    }

    #[test]
    fn near_ties_go_to_wider_formats_then_speed_then_simplicity() {
        let dear = contender(120.0, 0, 1.0, 1, 1);
        let narrow = contender(100.0, 1, 5.0, 1, 1);
        let wide = contender(109.0, 0, 5.0, 2, 4);
        assert_eq!(taken(&[dear.clone(), narrow.clone()]).0, 1);
        let (chosen, edges) = taken(&[narrow, wide.clone(), dear]);
        assert_eq!((chosen, edges), (1, vec!["has wider formats".to_owned(), "is cheaper".to_owned()]));
        let fast = contender(105.0, 0, 4.0, 2, 8);
        assert_eq!(taken(&[wide, fast.clone()]), (1, vec!["is faster".to_owned()]));
        let simple = contender(108.0, 0, 4.3, 1, 2);
        assert_eq!(taken(&[fast, simple]), (1, vec!["is simpler".to_owned()]));
    }

    #[test]
    fn more_replicas_of_the_same_cut_are_no_tie() {
        let fewer = contender(100.0, 0, 9.0, 1, 2);
        let more = contender(106.0, 0, 5.0, 1, 2);
        assert_eq!(taken(&[more, fewer]), (1, vec!["is cheaper".to_owned()]));
    }

    #[test]
    fn of_the_same_price_and_formats_the_safer_is_taken() {
        let risky = Contender { confidence: 47, ..contender(100.0, 0, 1.0, 1, 1) };
        let safe = Contender { confidence: 80, ..contender(100.0, 0, 3.0, 2, 4) };
        assert_eq!(taken(&[risky, safe]), (1, vec!["is safer".to_owned()]));
    }

    fn any_contender() -> impl Strategy<Value = Contender> {
        (1u32..200, 0u8..3, 1u32..100, 1u8..3, 0u32..4).prop_map(
            |(amount, weights, latency, pools, power)| {
                contender(f64::from(amount), weights, f64::from(latency), pools, 1 << power)
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_taken_is_a_near_tie_of_the_cheapest_whatever_their_order(
            contenders in prop::collection::vec(any_contender(), 1..12), near in 0.0f64..0.3,
        ) {
            let chosen = &contenders[choose(&contenders, near).expect("there is one")];
            let cheapest = contenders.iter().map(|each| each.cost.amount).fold(f64::INFINITY, f64::min);
            prop_assert!(chosen.cost.amount <= cheapest * (1.0 + near));
            let mut turned = contenders.clone();
            turned.reverse();
            prop_assert_eq!(&turned[choose(&turned, near).expect("there is one")], chosen);
        }
    }
}
