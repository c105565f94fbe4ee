//! How many nodes each elastic gang should have: predicted throughput, shared out fairly.
//!
//! A gang's *speed* is its throughput over that at the size it asked for. What a size is *worth* is a power mean's term
//! of the speed: with a power below 1 the slow gangs count more, as in Pollux (−1) and Sia (−½). Throughput is concave in the nodes and worth concave in
//! throughput, so the step that brings most for each node is the right one to take next; a curve that is not concave is climbed
//! along its upper hull. Unequal steps are a knapsack, which is solved exactly while it is small; with many gangs and nodes one step too few does not
//! matter. Nothing here knows nodes by name, time or quotas.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::Span;

/// A gang that takes part: the sizes it can have, the smallest first.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Claim {
    choices: Vec<Choice>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Choice {
    nodes: u32,
    worth: f64,
}

impl Claim {
    /// Sizes with their speeds, in ascending order.
    pub(crate) fn new(sizes: impl IntoIterator<Item = (u32, f64)>, power: f64) -> Self {
        let choice = |(nodes, speed): (u32, f64)| Choice { nodes, worth: worth(speed, power) };
        let choices: Vec<Choice> = sizes.into_iter().map(choice).collect();
        debug_assert!(choices.is_sorted_by(|a, b| a.nodes < b.nodes) && !choices.is_empty());
        Self { choices }
    }

    /// What each node of the step from one choice to a larger one brings.
    fn density(&self, from: usize, to: usize) -> f64 {
        let (from, to) = (self.choices[from], self.choices[to]);
        (to.worth - from.worth) / f64::from(to.nodes - from.nodes)
    }

    /// For every choice from `first` on the next one of the upper hull: the step that brings most for each of its nodes, of steps that end
    /// at most `left` nodes after the first choice. The last has none.
    fn hull(&self, first: usize, left: u32) -> Hull {
        let most = self.choices[first].nodes.saturating_add(left);
        let end = first + self.choices[first..].partition_point(|choice| choice.nodes <= most);
        let mut next = vec![usize::MAX; end - first];
        // The hull of the choices looked at so far, the smallest last.
        let mut hull: Vec<usize> = Vec::new();
        for from in (first..end).rev() {
            while let [.., beyond, nearest] = hull[..]
                && self.density(from, nearest) < self.density(from, beyond)
            {
                hull.pop();
            }
            next[from - first] = hull.last().copied().unwrap_or(usize::MAX);
            hull.push(from);
        }
        Hull { first, next }
    }
}

/// The best steps of a claim, from a choice on.
#[derive(Debug, Clone)]
struct Hull {
    first: usize,
    next: Vec<usize>,
}

impl Hull {
    fn after(&self, from: usize) -> Option<usize> {
        self.next.get(from.checked_sub(self.first)?).copied().filter(|next| *next != usize::MAX)
    }
}

impl Claim {
    /// What other claims are worth with every number of nodes beyond the smallest sizes, with this one too, and which choice it then has.
    fn added_to(&self, others: &[f64]) -> (Vec<f64>, Vec<usize>) {
        let smallest = self.choices[0];
        let mut worth: Vec<f64> = others.iter().map(|others| others + smallest.worth).collect();
        let mut chosen = vec![0; others.len()];
        for (place, choice) in self.choices.iter().enumerate().skip(1) {
            let more = (choice.nodes - smallest.nodes) as usize;
            for nodes in more..others.len() {
                let with = others[nodes - more] + choice.worth;
                // Of equals the smaller: nodes that bring nothing are left alone.
                if with > worth[nodes] + 1e-12 {
                    (worth[nodes], chosen[nodes]) = (with, place);
                }
            }
        }
        (worth, chosen)
    }
}

/// Increasing and concave in the speed for every power up to 1.
fn worth(speed: f64, power: f64) -> f64 {
    let speed = speed.max(1e-6);
    match power {
        0.0 => speed.ln(),
        _ => power.signum() * speed.powf(power),
    }
}

/// Nodes for each claim, in the same order; 0 for those that get none.
///
/// Claims come in order of rank: each gets its smallest size while there are nodes for it, and only then do any get more.
pub(crate) fn share_out(claims: &[Claim], nodes: u32) -> Vec<u32> {
    let mut shares = Shares::smallest(claims, nodes);
    let choices: u64 = claims.iter().map(|claim| claim.choices.len() as u64).sum();
    if choices * u64::from(nodes) <= MOST_TO_SOLVE {
        shares.solve();
    } else {
        shares.climb();
    }
    shares.nodes()
}

/// Choices times nodes up to which the best way is worked out: a few milliseconds.
const MOST_TO_SOLVE: u64 = 2_000_000;

/// One choice for each claim, and what is left.
#[derive(Debug, Clone)]
struct Shares<'a> {
    claims: &'a [Claim],
    /// `None` for a claim that gets nothing.
    chosen: Vec<Option<usize>>,
    left: u32,
}

impl<'a> Shares<'a> {
    fn smallest(claims: &'a [Claim], nodes: u32) -> Self {
        let mut left = nodes;
        let mut admit = |claim: &Claim| {
            left = left.checked_sub(claim.choices[0].nodes)?;
            Some(0)
        };
        let chosen = claims.iter().map(&mut admit).collect();
        Self { claims, chosen, left }
    }

    /// Takes the best step that fits until none is left.
    fn climb(&mut self) {
        let left = self.left;
        let mut hulls: Vec<Hull> = self.claims.iter().map(|claim| claim.hull(0, left)).collect();
        let mut steps: BinaryHeap<Step> =
            hulls.iter_mut().enumerate().filter_map(|(claim, hull)| self.step(claim, hull)).collect();
        while let Some(step) = steps.pop() {
            let needed = self.size_of(step.claim, step.to) - self.size(step.claim);
            if needed <= self.left {
                self.left -= needed;
                self.chosen[step.claim] = Some(step.to);
            }
            // What is left only shrinks, so a step that does not fit now never will.
            steps.extend(self.step(step.claim, &mut hulls[step.claim]));
        }
    }

    /// The best step of a claim with what is left. A hull with a step that is too large is made anew from there.
    fn step(&self, claim: usize, hull: &mut Hull) -> Option<Step> {
        let from = self.chosen[claim]?;
        let needed = |to: usize| self.size_of(claim, to) - self.size_of(claim, from);
        if hull.after(from).is_some_and(|to| needed(to) > self.left) {
            *hull = self.claims[claim].hull(from, self.left);
        }
        let to = hull.after(from)?;
        let density = self.claims[claim].density(from, to);
        (density > 0.0).then_some(Step { density, claim, to })
    }

    /// The best way to use what is left, claim after claim: for every number of nodes the most that the claims so far
    /// are worth with them.
    fn solve(&mut self) {
        let most = self.left as usize;
        let mut worth = vec![0.0; most + 1];
        let mut choices: Vec<(usize, Vec<usize>)> = Vec::new();
        let admitted: Vec<usize> =
            (0..self.claims.len()).filter(|claim| self.chosen[*claim].is_some()).collect();
        for claim in admitted {
            let (with, chosen) = self.claims[claim].added_to(&worth);
            worth = with;
            choices.push((claim, chosen));
        }
        let mut left = most;
        for (claim, chosen) in choices.into_iter().rev() {
            let choice = chosen[left];
            self.chosen[claim] = Some(choice);
            left -= (self.size_of(claim, choice) - self.size_of(claim, 0)) as usize;
        }
        self.left = left as u32;
    }

    fn size_of(&self, claim: usize, choice: usize) -> u32 {
        self.claims[claim].choices[choice].nodes
    }

    fn size(&self, claim: usize) -> u32 {
        self.chosen[claim].map_or(0, |choice| self.size_of(claim, choice))
    }

    fn nodes(&self) -> Vec<u32> {
        (0..self.claims.len()).map(|claim| self.size(claim)).collect()
    }
}

/// A larger choice for a claim.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Step {
    /// What each node of it brings.
    density: f64,
    claim: usize,
    to: usize,
}

impl Eq for Step {}

impl Ord for Step {
    /// The densest is the greatest; of equals the first claim.
    fn cmp(&self, other: &Self) -> Ordering {
        self.density.total_cmp(&other.density).then(other.claim.cmp(&self.claim))
    }
}

impl PartialOrd for Step {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A running gang that may change from one speed to another, and stands still for a while when it does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Change {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) pause: Span,
}

impl Change {
    /// How long the gang must still run for the gain to make up for the pause twice; for ever where there is none.
    ///
    /// A gang is expected to run on for as long as it ran, so a change waits until it has run this long, and is not made when its limit
    /// is nearer: the younger a gang, the more a change must bring (Sia weighs restarts by age too).
    pub(crate) fn pays_back_after(&self) -> Span {
        // (time - 2 pauses) × to = time × from
        let time = 2.0 * self.pause.0 as f64 * self.to / (self.to - self.from);
        if self.to > self.from && time < Span::FOREVER.0 as f64 {
            Span(time.ceil() as u64)
        } else {
            Span::FOREVER
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The best of all ways to share out, where the same claims get something.
    fn exhaustive(claims: &[Claim], admitted: &[bool], left: u32) -> f64 {
        let Some((first, rest)) = claims.split_first() else { return 0.0 };
        if !admitted[0] {
            return exhaustive(rest, &admitted[1..], left);
        }
        let fitting = first.choices.iter().filter(|choice| choice.nodes <= left);
        let totals =
            fitting.map(|choice| choice.worth + exhaustive(rest, &admitted[1..], left - choice.nodes));
        totals.fold(f64::NEG_INFINITY, f64::max)
    }

    fn total(claims: &[Claim], sizes: &[u32]) -> f64 {
        let worth = |(claim, size): (&Claim, &u32)| {
            Some(claim.choices.iter().find(|choice| choice.nodes == *size)?.worth)
        };
        claims.iter().zip(sizes).filter_map(worth).sum()
    }

    /// Sizes of a gang with messages that take `share` of a step at two nodes.
    fn amdahl(min: u32, step: u32, count: u32, share: f64) -> Vec<(u32, f64)> {
        let rate = |nodes: u32| 1.0 / ((1.0 - share) / f64::from(nodes) + share / 2.0);
        let asked = min + step * (count / 2);
        (0..count).map(|place| min + place * step).map(|nodes| (nodes, rate(nodes) / rate(asked))).collect()
    }

    fn gang() -> impl Strategy<Value = Vec<(u32, f64)>> {
        (1u32..4, 1u32..4, 1u32..6, 0.0f64..0.6)
            .prop_map(|(min, step, count, share)| amdahl(min, step, count, share))
    }

    /// Any curve at all, such as a wrong prediction gives.
    fn wild_gang() -> impl Strategy<Value = Vec<(u32, f64)>> {
        (1u32..4, 1u32..4, prop::collection::vec(0.05f64..3.0, 1..6)).prop_map(|(min, step, speeds)| {
            (0u32..).zip(speeds).map(|(place, speed)| (min + place * step, speed)).collect()
        })
    }

    fn power() -> impl Strategy<Value = f64> {
        prop::sample::select(vec![-1.0, -0.5, 0.0, 0.5])
    }

    fn check_ranges(claims: &[Claim], nodes: u32) -> Vec<u32> {
        let sizes = share_out(claims, nodes);
        assert!(sizes.iter().sum::<u32>() <= nodes, "{sizes:?} of {nodes}");
        for (claim, size) in claims.iter().zip(&sizes) {
            assert!(
                *size == 0 || claim.choices.iter().any(|choice| choice.nodes == *size),
                "{claim:?} {size}"
            );
        }
        assert_eq!(sizes, share_out(claims, nodes), "the same twice");
        sizes
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

        #[test]
        fn no_more_nodes_than_there_are_and_only_sizes_that_gangs_can_have(
            gangs in prop::collection::vec(wild_gang(), 0..12), nodes in 0u32..60, power in power()
        ) {
            let claims: Vec<Claim> = gangs.into_iter().map(|sizes| Claim::new(sizes, power)).collect();
            check_ranges(&claims, nodes);
        }

        #[test]
        fn no_way_to_share_out_is_better_whatever_the_curves(
            gangs in prop::collection::vec(wild_gang(), 1..6), nodes in 1u32..30, power in power()
        ) {
            let claims: Vec<Claim> = gangs.into_iter().map(|sizes| Claim::new(sizes, power)).collect();
            let sizes = check_ranges(&claims, nodes);
            let (found, best) = (total(&claims, &sizes), exhaustive(&claims, &admitted(&sizes), nodes));
            prop_assert!(found >= best - 1e-6, "{} against {}: {:?}", found, best, sizes);
        }

        #[test]
        fn the_hull_has_the_best_step_from_every_choice(sizes in wild_gang(), left in 0u32..20, power in power()) {
            let claim = Claim::new(sizes, power);
            let first = claim.choices[0].nodes;
            let places: Vec<usize> =
                (0..claim.choices.len()).filter(|place| claim.choices[*place].nodes <= first + left).collect();
            let hull = claim.hull(0, left);
            for from in places.iter().copied() {
                let steps = places.iter().filter(|to| **to > from).map(|to| claim.density(from, *to));
                let (found, best) = (hull.after(from).map(|to| claim.density(from, to)), steps.max_by(f64::total_cmp));
                let is_best = found.zip(best).map_or(found == best, |(found, best)| found >= best - 1e-9);
                prop_assert!(is_best, "{:?} against {:?} from {} of {:?}", found, best, from, &claim);
            }
        }

        /// What large clusters do. Equal steps and concave curves: the best step each time is the best in all.
        #[test]
        fn climbing_with_steps_of_one_node_is_as_good(
            gangs in prop::collection::vec((1u32..4, 1u32..6, 0.0f64..0.6), 1..5), nodes in 1u32..20, power in power()
        ) {
            let claims: Vec<Claim> =
                gangs.into_iter().map(|(min, count, share)| Claim::new(amdahl(min, 1, count, share), power)).collect();
            let (found, best, _) = climbed(&claims, nodes);
            prop_assert!(found >= best - 1e-9, "{} against {}", found, best);
        }

        /// Unequal steps: what is missing is less than one step brings.
        #[test]
        fn climbing_with_other_steps_misses_less_than_one_step(
            gangs in prop::collection::vec(gang(), 1..6), nodes in 1u32..30, power in power()
        ) {
            let claims: Vec<Claim> = gangs.into_iter().map(|sizes| Claim::new(sizes, power)).collect();
            let (found, best, step) = climbed(&claims, nodes);
            prop_assert!(found >= best - step - 1e-9, "{} against {}, step {}", found, best, step);
        }
    }

    fn admitted(sizes: &[u32]) -> Vec<bool> {
        sizes.iter().map(|size| *size > 0).collect()
    }

    /// What climbing finds, the best there is, and the most that a single step of any claim brings.
    fn climbed(claims: &[Claim], nodes: u32) -> (f64, f64, f64) {
        let mut shares = Shares::smallest(claims, nodes);
        shares.climb();
        let sizes = shares.nodes();
        assert!(sizes.iter().sum::<u32>() <= nodes, "{sizes:?} of {nodes}");
        let steps = claims
            .iter()
            .flat_map(|claim| claim.choices.windows(2))
            .map(|pair| pair[1].worth - pair[0].worth);
        let best = exhaustive(claims, &admitted(&sizes), nodes);
        (total(claims, &sizes), best, steps.fold(0.0, f64::max))
    }

    #[test]
    fn the_first_claims_are_served_first_and_slow_gangs_get_more() {
        let claim = |sizes: &[(u32, f64)]| Claim::new(sizes.iter().copied(), -0.5);
        let halves = claim(&[(1, 0.5), (2, 0.9), (4, 1.5)]);
        let fixed = claim(&[(4, 1.0)]);
        let check = |claims: &[&Claim], nodes, expected: &[u32]| {
            let claims: Vec<Claim> = claims.iter().map(|claim| (*claim).clone()).collect();
            assert_eq!(share_out(&claims, nodes), expected, "{nodes} nodes");
        };
        check(&[&halves, &halves], 1, &[1, 0]);
        check(&[&halves, &halves], 4, &[2, 2]);
        check(&[&halves, &fixed], 5, &[1, 4]);
        check(&[&halves, &fixed], 4, &[4, 0]);
        check(&[&fixed, &halves, &halves], 8, &[4, 2, 2]);
        check(&[&halves, &halves], 80, &[4, 4]);
        // More nodes that make a gang slower are left alone.
        check(&[&claim(&[(1, 1.0), (2, 0.8), (3, 0.9)])], 9, &[1]);
        check(&[], 9, &[]);
    }

    #[test]
    fn a_change_must_pay_back_its_pause_twice() {
        let change = |from, to, pause| Change { from, to, pause: Span::minutes(pause) }.pays_back_after();
        let table = [
            (change(0.5, 1.0, 1), Span::minutes(4), "twice as fast: half of the time may be lost"),
            (change(1.0, 1.5, 1), Span::minutes(6), "half as fast again"),
            (change(1.0, 1.5, 2), Span::minutes(12), "both gangs of an exchange stand still"),
            (change(1.0, 1.01, 1), Span::minutes(202), "a little for long"),
            (change(1.0, 1.5, 0), Span::ZERO, "what costs nothing pays at once"),
            (change(1.0, 1.0, 1), Span::FOREVER, "no gain"),
            (change(1.0, 0.9, 1), Span::FOREVER, "a loss"),
        ];
        for (found, expected, why) in table {
            assert!(found.0.abs_diff(expected.0) <= 1, "{why}: {found:?}");
        }
    }
}
