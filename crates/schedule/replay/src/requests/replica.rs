//! One replica during a replay: its scheduler, the step it runs, and when its sequences got their tokens.

use bedplate_batching::{AdmitReason, CountedBlocks, Scheduler, StepShape};

use super::engine::{DecodeTimes, PER_NANOSECOND, Picoseconds};
use super::fleet::{Pool, Transfer};
use super::outcome::ReplayTally;
use super::stretch::Stretch;

/// A step, or a stretch of them, in progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunningStep {
    /// Steps after which it is completed.
    pub(crate) steps: u32,
    pub(crate) began: Picoseconds,
    pub(crate) ends: Picoseconds,
    /// The times of the following decode-only steps.
    pub(crate) stretch: Option<Stretch>,
    pub(crate) shape: StepShape,
    pub(crate) blocks_used: u32,
    pub(crate) waiting: u32,
}

/// Whether a replica takes requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplicaState {
    Starting {
        ready: Picoseconds,
    },
    Open,
    /// Finishes what it has, then ends.
    Draining,
    Gone,
}

/// Sequences that got their last token at the same time.
#[derive(Debug, Clone, Copy)]
struct Cohort {
    at: Picoseconds,
    sequences: u32,
}

#[derive(Debug)]
pub(crate) struct SimulatedReplica {
    /// Index of its pool.
    pub(crate) pool: usize,
    pub(crate) scheduler: Scheduler<CountedBlocks>,
    pub(crate) state: ReplicaState,
    pub(crate) running: Option<RunningStep>,
    /// Since when it is paid for.
    pub(crate) since: Picoseconds,
    /// When its link to the decode pool is free.
    pub(crate) link_free: Picoseconds,
    decode_times: DecodeTimes,
    cohorts: Vec<Cohort>,
    /// By sequence: when it got its last token before it was preempted.
    paused: Vec<Picoseconds>,
}

impl SimulatedReplica {
    pub(crate) fn new(
        pool: usize,
        scheduler: Scheduler<CountedBlocks>,
        state: ReplicaState,
        since: Picoseconds,
    ) -> Self {
        Self {
            pool,
            scheduler,
            state,
            running: None,
            since,
            link_free: 0,
            decode_times: DecodeTimes::default(),
            cohorts: Vec::new(),
            paused: Vec::new(),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state == ReplicaState::Open
    }

    /// Plans and starts the next step. `first_token` is the time at which a request that was transferred here got its first token.
    pub(crate) fn start(
        &mut self,
        now: Picoseconds,
        horizon: u32,
        pool: &Pool<'_>,
        swap: &Transfer,
        first_token: impl Fn(u64) -> Picoseconds,
    ) {
        let waiting = self.scheduler.load().waiting;
        let step = self.scheduler.step(now / PER_NANOSECOND, horizon);
        let (shape, steps) = (step.shape, step.repeats);
        let swapped = step.swapped_in_tokens + step.swapped_out_tokens;
        for preempted in step.preempted.iter().filter(|preempted| preempted.was_decoding) {
            pause(&mut self.cohorts, &mut self.paused, preempted.sequence.0);
        }
        for admitted in &step.admitted {
            let at = match admitted.reason {
                AdmitReason::SwapIn { .. } => self.paused[admitted.sequence.0 as usize],
                AdmitReason::Transferred { .. } => first_token(admitted.request.0),
                AdmitReason::Turn { .. } | AdmitReason::Recompute { .. } => continue,
            };
            self.cohorts.push(Cohort { at, sequences: 1 });
        }
        if shape.is_empty() {
            return;
        }
        let extra = if swapped > 0 { swap.time(swapped) } else { 0 };
        let began = now.saturating_add(extra);
        let stretch = shape.is_decode_only().then(|| Stretch {
            began,
            time: self.decode_times.get(pool.engine, shape.decodes),
            decodes: shape.decodes,
            context: shape.decode_context,
        });
        let ends = match &stretch {
            Some(stretch) => stretch.end(steps),
            None => began.saturating_add(pool.engine.prefill(&shape)),
        };
        let blocks_used = self.scheduler.occupancy().used();
        self.running = Some(RunningStep { steps, began: now, ends, stretch, shape, blocks_used, waiting });
    }

    /// Ends a stretch after the step during which a request arrived. Returns that time.
    pub(crate) fn cut_short(&mut self, now: Picoseconds) -> Option<Picoseconds> {
        let running = self.running.as_mut()?;
        let stretch = running.stretch.as_ref()?;
        if running.steps > 1 {
            running.steps = stretch.steps_begun(now, running.steps).max(1);
            running.ends = stretch.end(running.steps);
        }
        Some(running.ends)
    }

    /// Brings the scheduler to its state at `now`, in the middle of a stretch.
    pub(crate) fn settle(&mut self, now: Picoseconds) {
        if let Some(RunningStep { steps, stretch: Some(stretch), .. }) = &self.running
            && *steps > 1
        {
            let begun = stretch.steps_begun(now, *steps).max(1);
            let done = if stretch.end(begun) <= now { begun } else { begun - 1 };
            self.scheduler.settle(begun, done);
        }
    }

    /// Counts the gaps between tokens that a completed step made.
    pub(crate) fn count_gaps(&mut self, running: &RunningStep, tally: &mut ReplayTally) {
        if running.shape.decodes == 0 {
            return;
        }
        let first_end = running.stretch.as_ref().map_or(running.ends, |stretch| stretch.end(1));
        for cohort in self.cohorts.drain(..) {
            tally.gaps.add(first_end - cohort.at, cohort.sequences.into());
        }
        if let Some(stretch) = &running.stretch {
            tally.gaps.add_stretch(stretch, 1, running.steps);
        }
    }

    /// Counts the gap of a sequence that continued after a recomputation.
    pub(crate) fn count_pause(&mut self, sequence: u32, now: Picoseconds, tally: &mut ReplayTally) {
        tally.gaps.add(now - self.paused[sequence as usize], 1);
    }

    /// Notes that the decoding sequences have their tokens: all of them now, or those that joined now.
    pub(crate) fn note_tokens(&mut self, now: Picoseconds, decoded: bool, joined: u32) {
        let decoding = self.scheduler.decoding().len() as u32;
        let sequences = if decoded { decoding } else { joined.min(decoding) };
        if sequences > 0 {
            self.cohorts.push(Cohort { at: now, sequences });
        }
    }
}

/// Takes a preempted sequence out of the cohort that got its token last: the latest arrival is preempted first.
fn pause(cohorts: &mut [Cohort], paused: &mut Vec<Picoseconds>, sequence: u32) {
    if paused.len() <= sequence as usize {
        paused.resize(sequence as usize + 1, 0);
    }
    if let Some(cohort) = cohorts.iter_mut().rev().find(|cohort| cohort.sequences > 0) {
        cohort.sequences -= 1;
        paused[sequence as usize] = cohort.at;
    }
}
