//! Cases as people bring them, and what they come to.

use bedplate_diagnose::{
    Case, Cause, Culprit, Diagnosis, Held, NamedLog, ProblemKind, Record, diagnose, waits,
};
use bedplate_logs::{LogReader, Origin, Recognizer};
use bedplate_report::Expectation;
use serde_json::{Value, json};

fn case(logs: &[(&str, String)]) -> Case {
    let recognizer = Recognizer::built_in();
    let read = |(name, text): &(&str, String)| {
        let mut reader = LogReader::new(&recognizer).of(Origin::of_path(name)).in_year(2026);
        reader.feed(text.as_bytes());
        NamedLog { name: (*name).to_owned(), log: reader.finish() }
    };
    Case { logs: logs.iter().map(read).collect(), ..Case::default() }
}

fn judged(logs: &[(&str, String)]) -> Diagnosis {
    diagnose(&case(logs), &Recognizer::built_in())
}

/// Steps of Megatron, one a line, ten milliseconds apart from each other by a fixed pattern.
fn steps(from: u32, to: u32, ms: f64) -> String {
    (from..to)
        .map(|step| {
            let noise = f64::from(step * 7919 % 11) * 0.002 * ms;
            format!(" iteration {step:8}/  100000 | elapsed time per iteration (ms): {:.1} | lm loss: 2.5E+00 |\n", ms + noise)
        })
        .collect()
}

#[test]
fn healthy_runs_have_no_verdict() {
    let text = [
        steps(1, 60, 500.0),
        "saving checkpoint at iteration 60 to /x\n".into(),
        steps(60, 61, 9000.0),
        steps(61, 200, 500.0),
        "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n".into(),
        "NCCL INFO Using network Socket\n".into(),
    ];
    assert_eq!(judged(&[("job.log", text.concat())]).verdicts, []);
}

#[test]
fn a_slowdown_is_dated_and_priced() {
    let diagnosis = judged(&[("job.log", [steps(1, 150, 500.0), steps(150, 300, 560.0)].concat())]);
    let verdict = &diagnosis.verdicts[0];
    assert_eq!((verdict.kind, verdict.cause), (ProblemKind::SlowSince, Cause::Unknown));
    let since = verdict.since.step.unwrap();
    assert!((147..=153).contains(&since), "{since}");
    let factor = verdict.cost.unwrap().factor;
    assert!((1.10..1.14).contains(&factor), "{factor}");
}

#[test]
fn the_first_root_is_the_cause_and_cascades_are_not() {
    let stamp = |second: u32| format!("[2026-03-01 10:00:{second:02}]");
    let log = [
        steps(1, 20, 500.0),
        format!("{} [rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n", stamp(1)),
        (0..8)
            .filter(|rank| *rank != 5)
            .map(|rank| {
                format!(
                    "[rank{rank}]:{} ncclRemoteError: remote process exited or there was a network error\n",
                    stamp(3)
                )
            })
            .collect(),
        format!("{} Sending process 77 closing signal SIGTERM\n", stamp(5)),
    ];
    let verdict = judged(&[("job.log", log.concat())]).verdicts.remove(0);
    assert_eq!((verdict.kind, verdict.cause), (ProblemKind::Crashed, Cause::Hardware));
    assert!(verdict.confidence > 0.8);
    assert!(verdict.evidence[0].what.contains("ECC"));
}

#[test]
fn a_bare_kill_is_unknown_until_the_kernel_confirms_it() {
    let killed = (
        "job.log",
        "failed (exitcode: -9) local_rank: 3 (pid: 812) of binary: python\nexitcode: -9\n".to_owned(),
    );
    assert_eq!(judged(std::slice::from_ref(&killed)).verdicts[0].cause, Cause::Unknown);
    let kernel = ("node04/dmesg.txt", "[12345.678901] oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid=812\n[12345.700001] Memory cgroup out of memory: Killed process 812 (python)\n".to_owned());
    let verdict = judged(&[killed, kernel]).verdicts.remove(0);
    assert_eq!(verdict.cause, Cause::OutOfMemory);
}

#[test]
fn the_rank_that_prints_no_timeout_is_absent() {
    let line = |rank: u32| {
        format!(
            "[rank{rank}]:[E513 13:25:57.714 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=19, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600002 milliseconds before timing out.\n"
        )
    };
    let text: String = (0..8).filter(|rank| *rank != 6).map(line).collect();
    let verdict = judged(&[("job.log", text)]).verdicts.remove(0);
    assert_eq!((verdict.kind, verdict.culprits), (ProblemKind::Stall, vec![Culprit::Rank(6)]));
    assert_eq!(verdict.cause, Cause::Unknown, "who is absent does not say why");
}

#[test]
fn ranks_and_files_in_another_order_give_the_same_verdict() {
    let error =
        ("rank_3.log", "[2026-03-01 10:00:01] OSError: [Errno 28] No space left on device\n".to_owned());
    let others: Vec<(String, String)> = (0..3)
        .map(|rank| {
            (
                format!("rank_{rank}.log"),
                "[2026-03-01 10:00:09] ncclRemoteError: remote process exited\n".to_owned(),
            )
        })
        .collect();
    let mut logs: Vec<(&str, String)> =
        others.iter().map(|(name, text)| (name.as_str(), text.clone())).collect();
    logs.push(error);
    let one = judged(&logs).verdicts;
    logs.reverse();
    let other = judged(&logs).verdicts;
    assert_eq!((one[0].cause, &one[0].culprits), (other[0].cause, &other[0].culprits));
    assert_eq!((one[0].cause, one[0].culprits[0].clone()), (Cause::Storage, Culprit::Rank(3)));
}

#[test]
fn silence_is_a_stall_only_for_a_job_that_should_run() {
    let stamped: String = (0..60)
        .map(|step| format!("[2026-03-01 10:00:{step:02}] iteration {step}/1000 | elapsed time per iteration (ms): 1000.0 | lm loss: 2.5E+00 |\n"))
        .collect();
    let mut case = case(&[("job.log", stamped)]);
    let recognizer = Recognizer::built_in();
    assert_eq!(diagnose(&case, &recognizer).verdicts, []);
    let last = case.logs[0].log.last_stamp.unwrap().seconds;
    case.now = Some(last + 5.0);
    assert_eq!(diagnose(&case, &recognizer).verdicts, []);
    case.now = Some(last + 120.0);
    let verdict = diagnose(&case, &recognizer).verdicts.remove(0);
    assert_eq!((verdict.kind, verdict.since.step), (ProblemKind::Stall, Some(59)));
}

#[test]
fn slower_than_predicted_from_the_start() {
    let mut case = case(&[("job.log", steps(1, 100, 600.0))]);
    case.expected = Some(Expectation::said(0.45, "the plan"));
    let verdict = diagnose(&case, &Recognizer::built_in()).verdicts.remove(0);
    assert_eq!(verdict.kind, ProblemKind::SlowerThanPredicted);
}

#[test]
fn a_rank_with_slow_work_is_named() {
    let logs: Vec<(String, String)> = (0..8)
        .map(|rank| (format!("rank_{rank}.log"), steps(1, 60, if rank == 2 { 600.0 } else { 500.0 })))
        .collect();
    let logs: Vec<(&str, String)> = logs.iter().map(|(name, text)| (name.as_str(), text.clone())).collect();
    let verdict = judged(&logs).verdicts.remove(0);
    assert_eq!(verdict.culprits, [Culprit::Rank(2)]);
}

/// A dump of PyTorch's flight recorder.
fn dump(rank: u32, groups: Value, calls: &[(&str, i64, &str, &str)]) -> Record {
    let entries: Vec<Value> = calls
        .iter()
        .enumerate()
        .map(|(at, (group, number, what, state))| {
            json!({"process_group": [group, group], "collective_seq_id": number, "profiling_name": format!("nccl:{what}"), "state": state, "is_p2p": false, "time_created_ns": at, "input_sizes": [[4]], "frames": [{"name": "forward", "filename": "model.py", "line": 7}]})
        })
        .collect();
    let text =
        json!({"version": "2.9", "pg_config": groups, "pg_status": {}, "entries": entries}).to_string();
    Record::read(&format!("nccl_trace_rank_{rank}"), text.as_bytes()).expect("a dump of the usual form")
}

#[test]
fn waiting_is_followed_to_the_rank_that_waits_for_nobody() {
    let groups = || json!({"data": {"desc": "data", "ranks": "[0, 1]"}, "tensor": {"desc": "tensor", "ranks": "[1, 2]"}});
    // Rank 0 waits for 1 in one group, 1 for 2 in another, and 2 waits nowhere.
    let records = [
        dump(
            0,
            json!({"data": {"desc": "data", "ranks": "[0, 1]"}}),
            &[("data", 1, "all_reduce", "completed"), ("data", 2, "all_reduce", "started")],
        ),
        dump(
            1,
            groups(),
            &[
                ("data", 1, "all_reduce", "completed"),
                ("tensor", 1, "all_gather", "completed"),
                ("tensor", 2, "all_gather", "scheduled"),
            ],
        ),
        dump(
            2,
            json!({"tensor": {"desc": "tensor", "ranks": "[1, 2]"}}),
            &[("tensor", 1, "all_gather", "completed")],
        ),
    ];
    let found = waits(&records, None);
    assert_eq!(
        found.holders.iter().map(|holder| (holder.rank, holder.why)).collect::<Vec<_>>(),
        [(2, Held::HostStuck)]
    );
    assert_eq!(found.holders[0].waiting, 2);
    assert_eq!(found.holders[0].frames, ["forward (model.py:7)"]);
}

#[test]
fn ranks_that_make_other_calls_or_leave_no_record_are_named() {
    let groups = || json!({"0": {"desc": "default_pg", "ranks": "[0, 1, 2, 3]"}});
    let call = |what: &'static str| [("0", 1, "all_reduce", "completed"), ("0", 2, what, "started")];
    let odd: Vec<Record> = (0..4)
        .map(|rank| dump(rank, groups(), &call(if rank == 3 { "broadcast" } else { "all_reduce" })))
        .collect();
    let found = waits(&odd, None);
    assert_eq!((found.holders.len(), found.holders[0].rank, found.holders[0].why), (1, 3, Held::OtherCall));

    let lacking: Vec<Record> = (0..3).map(|rank| dump(rank, groups(), &call("all_reduce"))).collect();
    let found = waits(&lacking, None);
    assert_eq!((found.holders[0].rank, found.holders[0].why), (3, Held::NoRecord));
}
