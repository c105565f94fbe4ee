//! The scheduler's counters checked against a naive recount after every move of random loads.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use crate::sequence::{Resume, SequencePhase};
use crate::*;

impl Scheduler {
    /// Recounts every running sum, block by block and sequence by sequence.
    pub(crate) fn audit(&self) {
        let occupancy = self.cache.occupancy();
        let mut private = BTreeSet::new();
        let mut shared = BTreeSet::new();
        let (mut outstanding, mut context, mut slots, mut pending, mut host) = (0, 0, 0, 0, 0);
        for sequence in self.sequences.iter() {
            pending += u64::from(sequence.pending());
            outstanding += sequence.outstanding();
            let is_running = matches!(sequence.phase, SequencePhase::Prefilling | SequencePhase::Decoding);
            slots += if is_running { sequence.samples } else { 0 };
            if let SequencePhase::Waiting(Resume::SwapIn { host_blocks }) = sequence.phase {
                host += host_blocks;
            }
            assert!(is_running || sequence.blocks() == 0, "a waiting sequence has no blocks");
            let (held, own) = sequence.table.split_at(sequence.held.blocks as usize);
            for block in own {
                assert!(private.insert(*block), "{block:?} belongs to two sequences");
            }
            let mut in_tree = Vec::new();
            self.cache.list(sequence.held, &mut in_tree);
            assert_eq!(held, in_tree);
            shared.extend(in_tree);
        }
        for slot in &self.decoding {
            context += u64::from(self.context(*slot));
            let has = self.sequences[*slot].blocks();
            let needs = self.options.blocks_for(self.context(*slot));
            assert!(has >= needs && has <= needs + 1, "{has} blocks for {needs}");
        }
        assert!(private.is_disjoint(&shared), "a block is private and shared");
        assert_eq!(private.len() as u32, occupancy.private(), "blocks leaked");
        assert_eq!(shared.len() as u32, occupancy.shared);
        assert_eq!(
            (outstanding, context, slots, pending, host),
            (
                self.outstanding,
                self.decode_context,
                self.slots_taken,
                self.load.pending_tokens,
                self.host_blocks_used
            )
        );
        assert_eq!(self.sequences.iter().count() as u32, self.load.sequences);
    }
}

/// A request of a random load.
#[derive(Debug, Clone)]
struct Planned {
    gap: u8,
    prompt: u8,
    output: u8,
    samples: u8,
    tenant: u8,
    priority: i8,
    deadline: Option<u8>,
    family: u8,
    is_transferred: bool,
    computes_all: bool,
}

fn planned() -> impl Strategy<Value = Planned> {
    let flags = (prop::bool::weighted(0.1), prop::bool::weighted(0.1));
    let who = (0u8..3, -1i8..3, prop::option::weighted(0.2, 0u8..40), 0u8..4, flags);
    let what = (0u8..4, 1u8..60, 1u8..25, prop_oneof![4 => Just(1u8), 1 => 2u8..4]);
    (what, who).prop_map(|((gap, prompt, output, samples), (tenant, priority, deadline, family, flags))| {
        Planned {
            gap,
            prompt,
            output,
            samples,
            tenant,
            priority,
            deadline,
            family,
            is_transferred: flags.0 && output > 1,
            computes_all: flags.1,
        }
    })
}

fn options() -> impl Strategy<Value = SchedulerOptions> {
    let sizes = (1u32..6, 20u32..60, 4u32..40, 1u32..20, 3u32..6);
    let modes = (any::<[bool; 6]>(), 0u32..3, 0u32..3);
    (sizes, modes).prop_map(
        |((block_tokens, blocks, budget, chunk, max_seqs), (flags, reserve, watermark))| SchedulerOptions {
            block_tokens,
            blocks: blocks.max(84 / block_tokens + 1),
            token_budget: budget.max(max_seqs),
            chunk_tokens: chunk,
            max_seqs,
            prefill: if flags[0] { PrefillMode::Mixed } else { PrefillMode::Separate },
            preemption: if flags[1] { PreemptionMode::Swap } else { PreemptionMode::Recompute },
            host_blocks: 20,
            reserve_percent: reserve * 50,
            watermark_blocks: watermark,
            keeps_prefixes: flags[2],
            fairness: if flags[3] {
                Fairness::Tenants(BTreeMap::from([(TenantId(1), 2)]))
            } else {
                Fairness::Off
            },
            priority_head_start: 5,
            patience: 10,
            preempts_for_priority: flags[4],
            late: if flags[5] { LatePolicy::Drop } else { LatePolicy::Serve },
            ..SchedulerOptions::default()
        },
    )
}

fn request(id: usize, planned: &Planned, now: u64, block_tokens: u32) -> Request {
    let tokens = u32::from(planned.prompt) + u32::from(planned.output);
    let mut last = BlockKey(u64::from(planned.family));
    let keys = (0..tokens / block_tokens).map(|_| {
        last = last.then(u64::from(planned.family));
        last
    });
    Request {
        tenant: TenantId(planned.tenant.into()),
        priority: planned.priority,
        samples: planned.samples.into(),
        deadline: planned.deadline.map(|after| now + u64::from(after)),
        keys: if planned.family == 3 { BlockKeys::default() } else { keys.collect() },
        computes_all: planned.computes_all,
        start: if planned.is_transferred { SequenceStart::Transferred } else { SequenceStart::Prompt },
        ..Request::new(id as u64, planned.prompt.into(), planned.output.into())
    }
}

/// The result of each request: tokens per finished sample, or dropped.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    finished: BTreeMap<u64, Vec<(u64, u32)>>,
    dropped: BTreeSet<u64>,
}

/// Runs a load to its end, a step per tick and at most `horizon` steps as one, audited after every move.
fn run(load: &[Planned], options: &SchedulerOptions, horizon: u32) -> Outcome {
    play(load, Scheduler::new(options.clone()).unwrap(), horizon, Scheduler::audit)
}

fn play<B: BlockList>(
    load: &[Planned],
    mut scheduler: Scheduler<B>,
    horizon: u32,
    audit: impl Fn(&Scheduler<B>),
) -> Outcome {
    let options = scheduler.options().clone();
    let mut outcome = Outcome::default();
    let mut arrivals = load.iter().enumerate().peekable();
    let (mut now, mut next) = (0, u64::from(load.first().map_or(0, |first| first.gap)));
    while arrivals.peek().is_some() || !scheduler.is_empty() {
        while let Some((id, planned)) = arrivals.next_if(|_| next <= now) {
            scheduler.submit(request(id, planned, now, options.block_tokens), now).unwrap();
            next += arrivals.peek().map_or(0, |(_, later)| u64::from(later.gap));
            audit(&scheduler);
        }
        // An arrival ends a stretch.
        let visible =
            if arrivals.peek().is_some() { (next - now).min(horizon.into()) as u32 } else { horizon };
        let step = scheduler.step(now, visible);
        outcome.dropped.extend(step.dropped.iter().map(|dropped| dropped.request.0));
        let (is_idle, repeats) = (step.is_idle(), step.repeats);
        assert!(step.shape.prefill_tokens + u64::from(step.shape.decodes) <= options.token_budget.into());
        audit(&scheduler);
        if is_idle {
            assert!(arrivals.peek().is_some() || scheduler.is_empty(), "work is left and nothing runs");
            now = now.max(next);
            continue;
        }
        now += u64::from(repeats);
        for done in scheduler.complete(repeats).finished.clone() {
            outcome.finished.entry(done.request.0).or_default().push((now, done.generated));
        }
        audit(&scheduler);
        assert!(now < 100_000, "a request starves");
    }
    assert_eq!(scheduler.occupancy().used(), 0, "blocks leaked");
    outcome
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    #[test]
    fn books_balance_tokens_are_conserved_and_everybody_ends(
        load in prop::collection::vec(planned(), 1..40),
        options in options(),
    ) {
        let outcome = run(&load, &options, 1);
        for (id, planned) in load.iter().enumerate() {
            let id = id as u64;
            if outcome.dropped.contains(&id) {
                prop_assert!(options.late == LatePolicy::Drop && !outcome.finished.contains_key(&id));
                continue;
            }
            let finished = &outcome.finished[&id];
            prop_assert_eq!(finished.len(), usize::from(planned.samples));
            prop_assert!(finished.iter().all(|(_, tokens)| *tokens == u32::from(planned.output)));
        }
    }

    #[test]
    fn a_stretch_planned_as_one_step_ends_like_its_steps_one_by_one(
        load in prop::collection::vec(planned(), 1..40),
        options in options(),
        horizon in 2u32..200,
    ) {
        prop_assert_eq!(run(&load, &options, horizon), run(&load, &options, 1));
    }

    #[test]
    fn blocks_that_are_counted_lead_to_the_same_decisions(
        load in prop::collection::vec(planned(), 1..40),
        options in options(),
    ) {
        let counting = Scheduler::counting(options.clone()).unwrap();
        prop_assert_eq!(play(&load, counting, 1, |_| {}), run(&load, &options, 1));
    }

    #[test]
    fn with_whole_outputs_reserved_nothing_is_preempted_for_blocks(
        load in prop::collection::vec(planned(), 1..40),
        options in options(),
    ) {
        let options = SchedulerOptions { reserve_percent: 100, preempts_for_priority: false, ..options };
        let mut scheduler = Scheduler::new(options.clone()).unwrap();
        for (id, planned) in load.iter().enumerate() {
            let planned = Planned { samples: 1, ..planned.clone() };
            scheduler.submit(request(id, &planned, 0, options.block_tokens), 0).unwrap();
        }
        while !scheduler.is_empty() {
            prop_assert!(scheduler.step(0, 8).preempted.is_empty());
            let repeats = scheduler.step.repeats;
            if repeats > 0 {
                scheduler.complete(repeats);
            }
        }
    }
}
