//! The waiting sequences and their order.
//!
//! Each waiting sequence has one number, when it is *due*: its deadline, or its arrival plus the patience, less
//! a head start per level of priority, whichever is earlier. The earliest comes first. The number does not
//! change while it waits, so a late enough arrival goes behind, whatever its priority: nothing starves.
//!
//! With fairness on, each tenant has a queue and a count of the tokens served to it, divided by its weight
//! (virtual token counters: Sheng et al., OSDI 2024); the waiting tenant with the lowest count comes first. A
//! tenant that comes back after a pause starts at the lowest count of those present, so that a pause earns
//! no credit.

use std::collections::{BTreeMap, BTreeSet};

use crate::options::{Fairness, SchedulerOptions};
use crate::request::{Request, TenantId};

/// Place in a queue: when due, then order of arrival, then the sequence.
pub(crate) type QueuePlace = (i64, u64, u32);

/// Counts are in fractions of a token, so that division by weights rounds little.
const PARTS: u64 = 1 << 12;

#[derive(Debug, Clone)]
struct Tenant {
    weight: u64,
    served: u64,
    waiting: BTreeSet<QueuePlace>,
    decodes: u32,
    /// Sequences here, waiting or running.
    present: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct Queue {
    weights: Option<BTreeMap<TenantId, u32>>,
    numbers: BTreeMap<TenantId, u32>,
    tenants: Vec<Tenant>,
    waiting: u32,
}

impl Queue {
    pub(crate) fn new(fairness: &Fairness) -> Self {
        let weights = match fairness {
            Fairness::Off => None,
            Fairness::Tenants(weights) => Some(weights.clone()),
        };
        Self { weights, numbers: BTreeMap::new(), tenants: Vec::new(), waiting: 0 }
    }

    /// The queue that a tenant's sequences go to: one for all when fairness is off.
    pub(crate) fn enter(&mut self, tenant: TenantId) -> u32 {
        let (id, weight) = match &self.weights {
            None => (TenantId(0), 1),
            Some(weights) => (tenant, weights.get(&tenant).copied().unwrap_or(1)),
        };
        let next = self.tenants.len() as u32;
        let number = *self.numbers.entry(id).or_insert(next);
        if number == next {
            let weight = u64::from(weight);
            self.tenants.push(Tenant { weight, served: 0, waiting: BTreeSet::new(), decodes: 0, present: 0 });
        }
        if self.tenants[number as usize].present == 0 {
            let least = self.tenants.iter().filter(|each| each.present > 0).map(|each| each.served).min();
            let tenant = &mut self.tenants[number as usize];
            tenant.served = tenant.served.max(least.unwrap_or(0));
        }
        self.tenants[number as usize].present += 1;
        number
    }

    /// Counts another sequence of a present tenant.
    pub(crate) fn enter_again(&mut self, tenant: u32) {
        self.tenants[tenant as usize].present += 1;
    }

    pub(crate) fn leave(&mut self, tenant: u32) {
        self.tenants[tenant as usize].present -= 1;
    }

    pub(crate) fn push(&mut self, tenant: u32, place: QueuePlace) {
        self.tenants[tenant as usize].waiting.insert(place);
        self.waiting += 1;
    }

    pub(crate) fn remove(&mut self, tenant: u32, place: QueuePlace) {
        let was_there = self.tenants[tenant as usize].waiting.remove(&place);
        assert!(was_there, "only sequences that wait are removed");
        self.waiting -= 1;
    }

    pub(crate) fn len(&self) -> u32 {
        self.waiting
    }

    /// The sequence that comes next.
    pub(crate) fn first(&self) -> Option<u32> {
        if self.waiting == 0 {
            return None;
        }
        let waiting = self.tenants.iter().filter(|tenant| !tenant.waiting.is_empty());
        let tenant = waiting.min_by_key(|tenant| tenant.served)?;
        tenant.waiting.first().map(|(_, _, sequence)| *sequence)
    }

    /// Whether another sequence could become the first one merely because running ones continue.
    pub(crate) fn may_change_order(&self) -> bool {
        self.tenants.len() > 1 && self.tenants.iter().filter(|each| !each.waiting.is_empty()).count() > 1
    }

    /// Counts tokens served to a tenant at once.
    pub(crate) fn charge(&mut self, tenant: u32, tokens: u32) {
        if self.weights.is_some() {
            let tenant = &mut self.tenants[tenant as usize];
            tenant.served += u64::from(tokens) * PARTS / tenant.weight;
        }
    }

    pub(crate) fn decodes_change(&mut self, tenant: u32, is_joining: bool) {
        let decodes = &mut self.tenants[tenant as usize].decodes;
        *decodes = if is_joining { *decodes + 1 } else { *decodes - 1 };
    }

    /// Counts `steps` tokens for every sequence that decodes.
    pub(crate) fn charge_decodes(&mut self, steps: u32) {
        if self.weights.is_none() {
            return;
        }
        for tenant in self.tenants.iter_mut().filter(|tenant| tenant.decodes > 0) {
            // The same as step by step: rounding is per step.
            let per_step = u64::from(tenant.decodes) * PARTS / tenant.weight;
            tenant.served += per_step * u64::from(steps);
        }
    }
}

/// When a request is due, in nanoseconds.
pub(crate) fn due(request: &Request, now: u64, options: &SchedulerOptions) -> i64 {
    let by_patience = i128::from(now) + i128::from(options.patience)
        - i128::from(request.priority) * i128::from(options.priority_head_start);
    let by_deadline = request.deadline.map_or(i128::MAX, i128::from);
    by_patience.min(by_deadline).clamp(i64::MIN.into(), i64::MAX.into()) as i64
}
