//! Where and when one gang fits.

use crate::scheduler::Scheduler;
use crate::view::{NodeSetRule, RequestClass};
use crate::views::Fit;
use crate::{Amount, Closeness, JobId, Time};

/// How far ahead to search for a gang's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Horizon {
    Now,
    Ever,
}

impl Scheduler {
    /// The first time at which a gang fits, at the size asked for.
    pub(crate) fn find(&mut self, job: JobId, horizon: Horizon, now: Time) -> Option<Fit> {
        let entry = &self.jobs[job];
        if entry.request.roles.len() > 1 {
            return self.find_mixed(job, horizon, now);
        }
        let class = entry.classes[0];
        if let Some(node) = self.shared_room(job, now) {
            return Some(Fit { at: now, nodes: vec![vec![node]] });
        }
        if self.limited_by(job, self.jobs[job].request.gpus()).is_some() {
            return None;
        }
        let earliest = self.find_class(&class, horizon, now)?;
        if horizon == Horizon::Now {
            return Some(earliest);
        }
        Some(self.closer_and_done_earlier(job, &class, earliest, now))
    }

    pub(crate) fn find_class(&mut self, class: &RequestClass, horizon: Horizon, now: Time) -> Option<Fit> {
        match horizon {
            Horizon::Now => self.views.find_now(class, &self.fleet, now),
            Horizon::Ever => self.views.find(class, &self.fleet, now),
        }
    }

    /// A shared GPU that has room for the gang now.
    fn shared_room(&self, job: JobId, now: Time) -> Option<u32> {
        let entry = &self.jobs[job];
        let share = entry.request.roles[0].gpu_share?;
        let class = &entry.classes[0];
        let beside = Amount { gpus: 0, ..class.need };
        let eligible = self.views.eligible(class);
        let fits = |node: &u32| {
            eligible[*node as usize]
                && self.fleet.find_share(*node, share, now + entry.request.time_limit, now).is_some()
                && self.fleet.plan(*node).window_at(now, beside, class.length).is_some()
        };
        self.fleet.sharing_nodes().find(fits)
    }

    /// With a prediction, a start further off may end earlier: when the nodes are closer to each other.
    fn closer_and_done_earlier(&mut self, job: JobId, class: &RequestClass, earliest: Fit, now: Time) -> Fit {
        let request = &self.jobs[job].request;
        let free_choice =
            class.rule == NodeSetRule::Anywhere && class.nodes > 1 && request.closeness == Closeness::Any;
        let Some(expected) = request.expected.filter(|_| free_choice) else {
            return earliest;
        };
        let limit = request.time_limit;
        let slower = self.fleet.level_of(&earliest.nodes[0]).slower;
        let done = |fit: &Fit, slower: f64| fit.at + limit.times(expected.stretch(slower));
        let mut best = (done(&earliest, slower), earliest);
        let closer: Vec<(u8, f64)> =
            self.fleet.levels().iter().enumerate().map(|(at, sets)| (at as u8, sets.slower)).collect();
        for (level, slower) in closer.into_iter().filter(|(_, each)| *each < slower) {
            let class = RequestClass { rule: NodeSetRule::OneSet { level }, ..*class };
            let Some(fit) = self.find_class(&class, Horizon::Ever, now) else {
                continue;
            };
            let end = done(&fit, slower);
            if end < best.0 {
                best = (end, fit);
            }
        }
        best.1
    }

    /// Roles are placed one after the other at the same time; when one does not fit, all move on.
    fn find_mixed(&mut self, job: JobId, horizon: Horizon, now: Time) -> Option<Fit> {
        const TRIES: usize = 32;
        if self.limited_by(job, self.jobs[job].request.gpus()).is_some() {
            return None;
        }
        let classes = self.jobs[job].classes.clone();
        let mut at = now;
        for _ in 0..TRIES {
            match self.views.find_roles(&classes, &mut self.fleet, at) {
                Ok(nodes) => return Some(Fit { at, nodes }),
                Err(later) if horizon == Horizon::Ever && later < Time::NEVER => at = later,
                Err(_) => return None,
            }
        }
        None
    }
}
