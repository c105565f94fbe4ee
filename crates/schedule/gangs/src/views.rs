//! What is known of where gangs fit, shared by gangs of one class or shape.
//!
//! Three kinds of results are kept: the future for a class ([`View`], within one cycle), the present for a
//! shape ([`NowView`], from pass to pass) and the future beside what runs ([`NodeOutlook`], from cycle to cycle).

use std::collections::BTreeMap;

use crate::eligible::EligibleSets;
use crate::fleet::NodeFleet;
use crate::opening::{NowView, is_spread_enough};
use crate::outlook::NodeOutlook;
use crate::place::choose;
use crate::view::{Eligible, NodeNeed, RequestClass, View};
use crate::{Packing, Time};

/// Nodes by role.
pub(crate) type Placement = Vec<Vec<u32>>;

/// Where and when a gang fits.
#[derive(Debug, Clone)]
pub(crate) struct Fit {
    pub(crate) at: Time,
    pub(crate) nodes: Placement,
}

#[derive(Debug, Clone)]
pub(crate) struct Views {
    packing: Packing,
    pub(crate) eligible: EligibleSets,
    ahead: BTreeMap<RequestClass, View>,
    now: BTreeMap<NodeNeed, NowView>,
    /// What every class had gained when it was last tried.
    tried: BTreeMap<RequestClass, u64>,
    outlooks: BTreeMap<NodeNeed, NodeOutlook>,
}

impl Views {
    pub(crate) fn new(packing: Packing, eligible: EligibleSets) -> Self {
        Self {
            packing,
            eligible,
            ahead: BTreeMap::new(),
            now: BTreeMap::new(),
            tried: BTreeMap::new(),
            outlooks: BTreeMap::new(),
        }
    }

    /// The nodes that a class may use at all.
    pub(crate) fn eligible(&self, class: &RequestClass) -> &Eligible {
        self.eligible.get(class.eligible)
    }

    /// The first time at which a class fits.
    pub(crate) fn find(&mut self, class: &RequestClass, fleet: &NodeFleet, now: Time) -> Option<Fit> {
        if !self.ahead.contains_key(class) {
            let view = self.new_view(class, fleet, now);
            self.ahead.insert(*class, view);
        }
        let view = self.ahead.get_mut(class).expect("it was made");
        let at = view.find(fleet, self.eligible.get(class.eligible))?;
        let nodes = choose(fleet, class, &view.openings(), self.packing)?;
        Some(Fit { at, nodes: vec![nodes] })
    }

    fn new_view(&mut self, class: &RequestClass, fleet: &NodeFleet, now: Time) -> View {
        // To follow many changes takes longer than to look at every node.
        if fleet.is_near_bookings() {
            self.follow_outlook(class, fleet, now);
            let outlook = &self.outlooks[&class.shape()];
            View::from_outlook(*class, fleet, self.eligible(class), outlook, now)
        } else {
            View::new(*class, fleet, self.eligible(class), now)
        }
    }

    /// Where a class fits beside what runs, brought to `now`.
    pub(crate) fn follow_outlook(
        &mut self,
        class: &RequestClass,
        fleet: &NodeFleet,
        now: Time,
    ) -> &NodeOutlook {
        let shape = class.shape();
        let eligible = self.eligible.get(class.eligible);
        let new = || NodeOutlook::new(shape, fleet, eligible, now);
        let outlook = self.outlooks.entry(shape).or_insert_with(new);
        outlook.follow(fleet, eligible, now);
        outlook
    }

    /// Nodes on which a class can start at once.
    pub(crate) fn find_now(&mut self, class: &RequestClass, fleet: &NodeFleet, now: Time) -> Option<Fit> {
        if self.now_view(class, fleet, now).open() < class.nodes {
            return None;
        }
        let openings = self.now[&class.shape()].openings(now);
        if !is_spread_enough(class, fleet, self.eligible(class), &openings) {
            return None;
        }
        let nodes = choose(fleet, class, &openings, self.packing)?;
        Some(Fit { at: now, nodes: vec![nodes] })
    }

    /// Whether nodes opened for a class since it was last asked about.
    pub(crate) fn has_gained(&mut self, class: &RequestClass, fleet: &NodeFleet, now: Time) -> bool {
        let view = self.now_view(class, fleet, now);
        let (gains, open) = (view.gains, view.open());
        let has_gained = self.tried.insert(*class, gains).is_none_or(|before| before < gains);
        has_gained && open >= class.nodes || class.need.gpus == 1 && class.nodes == 1
    }

    fn now_view(&mut self, class: &RequestClass, fleet: &NodeFleet, now: Time) -> &NowView {
        let eligible = self.eligible.get(class.eligible);
        let shape = class.shape();
        let view = self.now.entry(shape).or_insert_with(|| NowView::new(shape, fleet, eligible, now));
        view.follow(fleet, eligible, now);
        view
    }

    /// On how many nodes a class can start at once.
    pub(crate) fn open_now(&mut self, class: &RequestClass, fleet: &NodeFleet, now: Time) -> u32 {
        self.now_view(class, fleet, now).open()
    }

    /// Whether a class can start at once, node by node.
    pub(crate) fn are_open_now(&mut self, class: &RequestClass, fleet: &NodeFleet, now: Time) -> Vec<bool> {
        let openings = self.now_view(class, fleet, now).openings(now);
        (0..fleet.count()).map(|node| openings.is_open(node)).collect()
    }

    /// Free nodes for a class of which some may not be used, beside everything that is planned.
    pub(crate) fn choose_now(
        &self,
        class: &RequestClass,
        fleet: &NodeFleet,
        may_use: impl Fn(u32) -> bool,
        now: Time,
    ) -> Option<Vec<u32>> {
        let mut eligible = self.eligible(class).clone();
        (0u32..).zip(&mut eligible).for_each(|(node, flag)| *flag &= may_use(node));
        // A gang that ends at this very instant may not have been reported yet and still holds GPUs: the view
        // counts only free ones.
        let view = NowView::new(class.shape(), fleet, &eligible, now);
        let fits = view.open() >= class.nodes;
        fits.then(|| choose(fleet, class, &view.openings(now), self.packing)).flatten()
    }

    /// Nodes for all roles at one time, or the time at which the first role that failed might fit. The role
    /// with the smallest choice of nodes comes first, so that another does not take them.
    pub(crate) fn find_roles(
        &self,
        classes: &[RequestClass],
        fleet: &mut NodeFleet,
        at: Time,
    ) -> Result<Placement, Time> {
        let choice = |class: &RequestClass| {
            let eligible = self.eligible(class).iter().filter(|flag| **flag).count();
            (eligible, std::cmp::Reverse(class.need.gpus))
        };
        let mut order: Vec<usize> = (0..classes.len()).collect();
        order.sort_by_key(|role| choice(&classes[*role]));
        let mut nodes: Placement = vec![Vec::new(); classes.len()];
        let mut outcome = Ok(());
        for role in order {
            let class = &classes[role];
            let eligible = self.eligible(class);
            let mut view = View::new(*class, fleet, eligible, at);
            let found = view.find(fleet, eligible);
            let chosen =
                (found == Some(at)).then(|| choose(fleet, class, &view.openings(), self.packing)).flatten();
            let Some(chosen) = chosen else {
                let later = found.unwrap_or(Time::NEVER);
                outcome = Err(if later > at { later } else { Time::NEVER });
                break;
            };
            for node in &chosen {
                fleet.reserve(*node, at, at + class.length, class.need_on_chosen(fleet, *node));
            }
            nodes[role] = chosen;
        }
        for (class, chosen) in classes.iter().zip(&nodes) {
            for node in chosen {
                fleet.unreserve(*node, at, at + class.length, class.need_on_chosen(fleet, *node));
            }
        }
        outcome.map(|()| nodes)
    }

    /// Forgets the future: reservations were withdrawn.
    pub(crate) fn forget_ahead(&mut self) {
        self.ahead.clear();
    }

    /// Forgets the present: what is open is computed again.
    pub(crate) fn forget_now(&mut self) {
        self.now.clear();
        self.tried.clear();
    }

    /// Forgets outlooks that the cycle did not ask for, or all when there is too much to follow.
    pub(crate) fn tidy_outlooks(&mut self, fleet: &mut NodeFleet) {
        if fleet.forgets_rebooked() {
            self.outlooks.clear();
        }
        self.outlooks.retain(|_, outlook| std::mem::take(&mut outlook.is_used));
    }
}
