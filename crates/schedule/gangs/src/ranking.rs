//! The priorities of all that waits, worked out anew for a full cycle; those of a long queue in slices, between which other events are decided.
//!
//! First it is surveyed who waits and since when, on which all priorities depend, then each gang gets its new place, and where queues share
//! quotas, the order between those that borrow is worked out. Meanwhile places of two
//! times stand side by side; they differ by what priorities change in the moments between.

use std::collections::BTreeSet;

use crate::borrow_order::BorrowOrder;
use crate::jobs::JobEntry;
use crate::scheduler::Scheduler;
use crate::{AccountId, JobId, Span, Time, UserId};

/// Priorities that are being worked out.
#[derive(Debug, Clone)]
pub(crate) struct Ranking {
    stage: Stage,
    /// The last job that was looked at in this stage.
    after: Option<JobId>,
    /// The time that priorities are of.
    pub(crate) since: Time,
}

#[derive(Debug, Clone)]
enum Stage {
    Survey(Survey),
    Place,
    Order(BorrowOrder),
}

/// What the priority of one gang depends on besides itself.
#[derive(Debug, Clone, Default)]
struct Survey {
    oldest: Option<Time>,
    users: BTreeSet<(AccountId, UserId)>,
}

impl Survey {
    fn see(&mut self, entry: &JobEntry) {
        let since = entry.submitted.max(entry.request.begin);
        self.oldest = Some(self.oldest.map_or(since, |oldest| oldest.min(since)));
        self.users.insert((entry.request.account, entry.request.user));
    }
}

impl Scheduler {
    /// A full cycle whose priorities are of this time: at once, or as soon as those of a long queue have been worked out. True when it was at once.
    pub(crate) fn begin_cycle(&mut self, now: Time) -> bool {
        let is_long = self.jobs.count() > self.slice();
        if !is_long || !self.is_ranked {
            self.refresh_ranks(now);
            self.cycle(now);
            return true;
        }
        if !self.news.is_urgent() {
            self.ranking = Some(Ranking { stage: Stage::Survey(Survey::default()), after: None, since: now });
            return false;
        }
        // What is planned is wrong, and cannot wait for priorities to be made anew.
        self.cycle(now);
        self.news.plan_is_stale();
        true
    }

    /// The next slice of priorities; true when it was the last.
    pub(crate) fn rank_some(&mut self) -> bool {
        let Some(mut ranking) = self.ranking.take() else { return false };
        if let Stage::Order(mut order) = ranking.stage {
            let is_done = order.go_on(&self.accounting, &self.jobs, &self.settings, self.slice());
            if is_done {
                self.borrow_order = Some(self.accounting.take_order(order).into());
            } else {
                self.ranking = Some(Ranking { stage: Stage::Order(order), ..ranking });
            }
            return is_done;
        }
        let jobs = self.jobs.after(ranking.after).take(self.slice());
        let slice: Vec<JobId> = jobs.map(|(job, _)| job).collect();
        let is_last = slice.len() < self.slice();
        ranking.after = slice.last().copied();
        let queued = slice.into_iter().filter(|job| self.jobs[*job].is_queued()).collect::<Vec<JobId>>();
        match &mut ranking.stage {
            Stage::Survey(survey) => {
                queued.iter().for_each(|job| survey.see(&self.jobs[*job]));
                if is_last {
                    self.conclude(survey, ranking.since);
                    (ranking.stage, ranking.after) = (Stage::Place, None);
                }
            }
            Stage::Place => {
                let (accounting, settings) = (&self.accounting, &self.settings);
                let rank = |entry: &JobEntry| {
                    accounting.rank(&entry.request, entry.submitted, settings, ranking.since)
                };
                queued.into_iter().for_each(|job| self.jobs.place_anew(job, rank));
                if is_last && !self.accounting.reorders() {
                    return true;
                }
                if is_last {
                    ranking.stage = Stage::Order(BorrowOrder::new(self.accounting.queues()));
                }
            }
            Stage::Order(_) => {}
        }
        self.ranking = Some(ranking);
        false
    }

    /// How many jobs one turn looks at.
    pub(crate) fn slice(&self) -> usize {
        let rules = &self.settings.backfill;
        rules.cycle_slice.max(rules.reserved.saturating_mul(2))
    }

    /// Works out priorities at this time and puts the queue in their order.
    fn refresh_ranks(&mut self, now: Time) {
        let mut survey = Survey::default();
        self.jobs.queue().iter().for_each(|job| survey.see(&self.jobs[job]));
        self.conclude(&survey, now);
        let (accounting, settings) = (&self.accounting, &self.settings);
        self.jobs.reorder(|entry| accounting.rank(&entry.request, entry.submitted, settings, now));
        (self.is_ranked, self.ranking) = (true, None);
    }

    fn conclude(&mut self, survey: &Survey, now: Time) {
        if self.settings.weights.fair_share != 0 {
            let running: Vec<JobId> = self.jobs.ends().iter().map(|(_, job)| *job).collect();
            running.into_iter().for_each(|job| self.charge(job, now));
            self.accounting.rank_users(survey.users.iter().copied(), &self.settings, now);
        }
        let longest_wait = survey.oldest.map_or(Span::ZERO, |begin| now.since(begin));
        self.accounting.look_around(longest_wait, &self.settings.weights);
    }
}
