//! What a replica does, step by step, and the reasons it gives.

use std::collections::BTreeMap;

use bedplate_batching::{
    BlockKey, BlockKeys, Fairness, LatePolicy, OptionsFlaw, PreemptionMode, PrefillMode, Request, Scheduler,
    SchedulerOptions, SequenceStart, TenantId,
};
use expect_test::{Expect, expect};

fn small() -> SchedulerOptions {
    SchedulerOptions {
        block_tokens: 4,
        blocks: 32,
        token_budget: 16,
        chunk_tokens: 16,
        max_seqs: 4,
        watermark_blocks: 0,
        ..SchedulerOptions::default()
    }
}

/// Runs all requests, submitted at once, one step per tick, and describes each step.
fn check(options: SchedulerOptions, requests: &[Request], expected: Expect) {
    let mut scheduler = Scheduler::new(options).expect("the settings are sound");
    for request in requests {
        scheduler.submit(request.clone(), 0).expect("it fits");
    }
    let mut told = String::new();
    for now in 0..200 {
        if scheduler.is_empty() {
            break;
        }
        told += &tell_step(&mut scheduler, now);
    }
    assert!(scheduler.is_empty(), "{told}");
    expected.assert_eq(&told);
}

fn tell_step(scheduler: &mut Scheduler, now: u64) -> String {
    let step = scheduler.step(now, 1).clone();
    let shape = step.shape;
    let mut told = format!("{now}: {}+{}", shape.prefill_tokens, shape.decodes);
    for dropped in &step.dropped {
        told += &format!("; drop {}: {dropped}", dropped.request.0);
    }
    for preempted in &step.preempted {
        told += &format!("; preempt {}: {}", preempted.request.0, preempted.reason);
    }
    for admitted in &step.admitted {
        told += &format!("; admit {}: {}", admitted.request.0, admitted.reason);
    }
    if let Some(wait) = step.wait {
        told += &format!("; {} waits: {}", wait.request.0, wait.reason);
    }
    if !step.is_idle() {
        for finished in &scheduler.complete(1).finished {
            told += &format!("; {} ends", finished.request.0);
        }
    }
    told + "\n"
}

fn keys(name: u64, count: u64) -> BlockKeys {
    (0..count).map(|at| BlockKey(name).then(at)).collect()
}

#[test]
fn prompts_share_the_budget_with_decodes_in_chunks() {
    check(
        small(),
        &[Request::new(1, 6, 4), Request::new(2, 20, 2)],
        expect![[r#"
            0: 16+0; admit 1: its turn, 0 tokens cached; admit 2: its turn, 0 tokens cached
            1: 10+1
            2: 0+2; 2 ends
            3: 0+1; 1 ends
        "#]],
    );
}

#[test]
fn separate_prompts_stall_decodes() {
    check(
        SchedulerOptions { prefill: PrefillMode::Separate, ..small() },
        &[Request::new(1, 6, 4), Request::new(2, 20, 2)],
        expect![[r#"
            0: 16+0; admit 1: its turn, 0 tokens cached; admit 2: its turn, 0 tokens cached
            1: 10+0
            2: 0+2; 2 ends
            3: 0+1
            4: 0+1; 1 ends
        "#]],
    );
}

#[test]
fn a_prompt_that_was_computed_before_costs_its_last_block_only() {
    check(
        SchedulerOptions { max_seqs: 1, ..small() },
        &[
            Request { keys: keys(1, 4), ..Request::new(1, 16, 1) },
            Request { keys: keys(1, 4), ..Request::new(2, 16, 1) },
        ],
        expect![[r#"
            0: 16+0; admit 1: its turn, 0 tokens cached; 2 waits: the step's budget of 16 tokens is used up; 1 ends
            1: 4+0; admit 2: its turn, 12 tokens cached; 2 ends
        "#]],
    );
}

#[test]
fn the_least_urgent_leaves_when_blocks_run_out_and_comes_back() {
    check(
        SchedulerOptions { blocks: 6, ..small() },
        &[Request::new(1, 8, 10), Request::new(2, 8, 10)],
        expect![[r#"
            0: 16+0; admit 1: its turn, 0 tokens cached; admit 2: its turn, 0 tokens cached
            1: 0+2
            2: 0+2
            3: 0+2
            4: 0+2
            5: 0+1; preempt 2: 2 KV blocks were missing and it was the least urgent; 2 waits: running sequences were preempted in this step
            6: 0+1; 2 waits: 4 KV blocks are needed and 2 are available
            7: 0+1; 2 waits: 4 KV blocks are needed and 2 are available
            8: 0+1; 2 waits: 4 KV blocks are needed and 2 are available
            9: 0+1; 2 waits: 4 KV blocks are needed and 1 are available; 1 ends
            10: 13+0; admit 2: recomputed after preemption, 0 tokens cached
            11: 0+1
            12: 0+1
            13: 0+1
            14: 0+1; 2 ends
        "#]],
    );
}

#[test]
fn swapped_kv_comes_back_instead_of_being_computed() {
    check(
        SchedulerOptions { blocks: 6, preemption: PreemptionMode::Swap, host_blocks: 8, ..small() },
        &[Request::new(1, 8, 10), Request::new(2, 8, 10)],
        expect![[r#"
            0: 16+0; admit 1: its turn, 0 tokens cached; admit 2: its turn, 0 tokens cached
            1: 0+2
            2: 0+2
            3: 0+2
            4: 0+2
            5: 0+1; preempt 2: 2 KV blocks were missing and it was the least urgent; 2 waits: running sequences were preempted in this step
            6: 0+1; 2 waits: 4 KV blocks are needed and 2 are available
            7: 0+1; 2 waits: 4 KV blocks are needed and 2 are available
            8: 0+1; 2 waits: 4 KV blocks are needed and 2 are available
            9: 0+1; 2 waits: 4 KV blocks are needed and 1 are available; 1 ends
            10: 0+1; admit 2: 12 tokens back from host memory
            11: 0+1
            12: 0+1
            13: 0+1
            14: 0+1; 2 ends
        "#]],
    );
}

#[test]
fn samples_compute_their_prompt_once_and_copy_its_last_block() {
    let options = small();
    let mut scheduler = Scheduler::new(options).unwrap();
    scheduler.submit(Request { samples: 3, ..Request::new(1, 10, 3) }, 0).unwrap();
    assert_eq!(scheduler.step(0, 1).shape.prefill_tokens, 10);
    assert_eq!(scheduler.complete(1).started.len(), 3);
    let occupancy = scheduler.occupancy();
    assert_eq!((occupancy.shared, occupancy.private()), (2, 3));
    let tables: Vec<_> = scheduler.decoding().map(|sequence| scheduler.table(sequence)).collect();
    assert!(tables.iter().all(|table| table[..2] == tables[0][..2] && table.len() == 3));
    assert!(tables[0][2] != tables[1][2] && tables[1][2] != tables[2][2]);
    assert_eq!(scheduler.step(0, 9).repeats, 2);
    assert_eq!(scheduler.complete(2).finished.len(), 3);
}

#[test]
fn kv_from_another_replica_needs_no_prompt() {
    check(
        small(),
        &[Request { start: SequenceStart::Transferred, ..Request::new(1, 20, 3) }],
        expect![[r#"
            0: 0+1; admit 1: 20 tokens from another replica
            1: 0+1; 1 ends
        "#]],
    );
}

#[test]
fn priority_is_a_head_start_and_may_drive_others_out() {
    let urgent = Request { priority: 5, ..Request::new(3, 8, 2) };
    let options = SchedulerOptions { max_seqs: 2, preempts_for_priority: true, ..small() };
    let mut scheduler = Scheduler::new(options).unwrap();
    scheduler.submit(Request::new(1, 8, 4), 0).unwrap();
    scheduler.submit(Request::new(2, 8, 4), 0).unwrap();
    let mut told = tell_step(&mut scheduler, 0);
    scheduler.submit(urgent, 1).unwrap();
    told += &tell_step(&mut scheduler, 1);
    expect![[r#"
        0: 16+0; admit 1: its turn, 0 tokens cached; admit 2: its turn, 0 tokens cached
        1: 8+1; preempt 2: request 3 has a higher priority; admit 3: its turn, 0 tokens cached; 2 waits: 1 of 2 sequence slots are needed and fewer are free
    "#]]
    .assert_eq(&told);
}

#[test]
fn a_high_priority_waits_behind_a_much_earlier_request() {
    let mut scheduler = Scheduler::new(SchedulerOptions { max_seqs: 1, ..small() }).unwrap();
    let second = 1_000_000_000;
    scheduler.submit(Request::new(1, 4, 1), 0).unwrap();
    scheduler.submit(Request { priority: 3, ..Request::new(2, 4, 1) }, 4 * second).unwrap();
    scheduler.submit(Request { priority: 3, ..Request::new(3, 4, 1) }, 2 * second).unwrap();
    let mut order = Vec::new();
    while !scheduler.is_empty() {
        scheduler.step(5 * second, 1);
        order.extend(scheduler.complete(1).finished.iter().map(|finished| finished.request.0));
    }
    assert_eq!(order, [3, 1, 2]);
}

#[test]
fn the_nearest_deadline_comes_first_and_a_missed_one_is_dropped() {
    let requests = [
        Request::new(1, 16, 2),
        Request { deadline: Some(50), ..Request::new(2, 16, 2) },
        Request { deadline: Some(0), ..Request::new(3, 16, 2) },
        Request { deadline: Some(1), ..Request::new(4, 16, 2) },
    ];
    check(
        SchedulerOptions { max_seqs: 1, late: LatePolicy::Drop, ..small() },
        &requests,
        expect![[r#"
            0: 16+0; admit 3: its turn, 0 tokens cached; 4 waits: the step's budget of 16 tokens is used up
            1: 0+1; 4 waits: 1 of 1 sequence slots are needed and fewer are free; 3 ends
            2: 16+0; drop 4: its deadline passed 1 ns ago while it waited; admit 2: its turn, 0 tokens cached; 1 waits: the step's budget of 16 tokens is used up
            3: 0+1; 1 waits: 1 of 1 sequence slots are needed and fewer are free; 2 ends
            4: 16+0; admit 1: its turn, 0 tokens cached
            5: 0+1; 1 ends
        "#]],
    );
}

/// Two tenants that always have work get tokens by their weights, however uneven their requests.
#[test]
fn tenants_are_served_by_weight() {
    let weights = BTreeMap::from([(TenantId(1), 1), (TenantId(2), 3)]);
    let options =
        SchedulerOptions { fairness: Fairness::Tenants(weights), max_seqs: 2, blocks: 64, ..small() };
    let mut scheduler = Scheduler::new(options).unwrap();
    let mut served = BTreeMap::new();
    for id in 0..400 {
        // Tenant 1 asks first and for more.
        let tenant = TenantId(if id < 200 { 1 } else { 2 });
        scheduler.submit(Request { tenant, ..Request::new(id, 16, 8) }, id).unwrap();
    }
    for now in 0..800 {
        scheduler.step(now, 1);
        for finished in &scheduler.complete(1).finished {
            *served.entry(finished.request.0 / 200).or_insert(0u32) += 1;
        }
    }
    let (first, second) = (served[&0], served[&1]);
    assert!((2.6..3.4).contains(&(f64::from(second) / f64::from(first))), "{first} {second}");
}

#[test]
fn settings_that_make_no_scheduler_are_refused() {
    let flaw = |options: SchedulerOptions| Scheduler::new(options).err();
    assert_eq!(flaw(SchedulerOptions { blocks: 0, ..small() }), Some(OptionsFlaw::Zero { what: "blocks" }));
    let told = flaw(SchedulerOptions { max_seqs: 17, ..small() }).unwrap().to_string();
    assert_eq!(told, "a budget of 16 tokens per step cannot give 17 running sequences one each");
}

#[test]
fn what_never_fits_is_refused_at_once() {
    let mut scheduler = Scheduler::new(small()).unwrap();
    let mut refused = |request: Request| scheduler.submit(request, 0).unwrap_err().to_string();
    assert_eq!(refused(Request::new(1, 100, 30)), "it needs 33 KV blocks and the replica has 32");
    assert_eq!(
        refused(Request { samples: 5, ..Request::new(1, 4, 4) }),
        "5 samples run together and the replica has 4 sequence slots"
    );
    assert!(scheduler.is_empty());
}

#[test]
fn a_stopped_sequence_gives_its_blocks_back() {
    let mut scheduler = Scheduler::new(small()).unwrap();
    let first = scheduler.submit(Request::new(1, 8, 50), 0).unwrap();
    let second = scheduler.submit(Request::new(2, 8, 50), 0).unwrap();
    scheduler.step(0, 1);
    scheduler.complete(1);
    scheduler.stop(first);
    scheduler.stop(second);
    scheduler.stop(second);
    assert!(scheduler.is_empty());
    assert_eq!(scheduler.occupancy().free, 32);
    assert!(scheduler.step(1, 1).is_idle());
}
