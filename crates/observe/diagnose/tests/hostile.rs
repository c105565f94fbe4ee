//! Everything that ranks, servers and tools wrote may be damaged or meant to harm: it is read or refused, and never ends the program.

use bedplate_diagnose::{Case, NamedLog, ProcessStack, Ras, Record, diagnose};
use bedplate_logs::{LogReader, Recognizer};
use bedplate_testkit::Mutator;

const RAS: &str = r#"{"communicators":[{"hash":"0x1","size":3,"ranks":[{"rank":0,"host":"n","pid":1,"cuda_dev":0,"collective_counts":{"AllReduce":9}},{"rank":1,"host":"n","pid":2,"cuda_dev":1,"collective_counts":{"AllReduce":8}}],"missing_ranks":[{"rank":2,"host":"n","pid":3,"cuda_dev":2}]}]}"#;
const RAS_TEXT: &str = "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING  MISMATCH
#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 6650
  Rank 5 has launched up to operation 6649 -- GPU 1 managed by process 3487984 on node 172.16.64.213
#0-0 (27a079b828ff1a75) INCOMPLETE
  Rank 3 -- GPU 3 managed by process 9 on node 172.16.64.212
";
const STACK: &str = "Process 7: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 7 (idle): \"MainThread\"
    load (train.py:40)
    <module> (train.py:80)
";
const RECORD: &str = r#"{"version":"2.10","pg_config":{"":{"desc":"","name":"","ranks":"[0, 1]"}},"pg_status":{"0":{"last_enqueued_collective":"4","last_completed_collective":"3"}},"entries":[{"pg_id":0,"process_group":["0","default_pg"],"collective_seq_id":4,"p2p_seq_id":0,"is_p2p":false,"profiling_name":"gloo:all_reduce","state":"scheduled","retired":false,"input_sizes":[[4]],"input_dtypes":["Float"],"time_created_ns":5}]}"#;
const STALLED: &str = r#"bedplate: no step for 4.0 s {"rank":0,"groups":[{"name":"default_pg","ranks":"0-3","number":7,"done":6,"call":"all_reduce","waits":true}],"stack":["step (train.py:31)"]}
[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered
bedplate: rank 0 goes on after 9.9 s
"#;

/// Everything at once, whatever of it is still understood.
fn take(ras: &[u8], stack: &[u8], record: &[u8], log: &[u8], recognizer: &Recognizer) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut reader = LogReader::new(recognizer);
    reader.feed(log);
    let mut case =
        Case { logs: vec![NamedLog { name: "log".into(), log: reader.finish() }], ..Case::default() };
    case.records.extend(Ras::read(&text(ras)).iter().flat_map(Ras::records));
    case.records.extend(Record::read("record_1", record));
    case.stacks.extend(ProcessStack::read("stack_1", &text(stack)));
    diagnose(&case, recognizer);
}

#[test]
fn damaged_evidence_is_read_or_refused() {
    let recognizer = Recognizer::built_in();
    let numbers =
        ["9223372036854775807", "-9223372036854775808", "18446744073709551616", "1e999", "4294967295"];
    for number in numbers {
        let with = |text: &str| text.replace("4", number).replace("9", number).replace("6650", number);
        let [ras, ras_text, stack, record, log] = [RAS, RAS_TEXT, STACK, RECORD, STALLED].map(with);
        take(ras.as_bytes(), stack.as_bytes(), record.as_bytes(), log.as_bytes(), &recognizer);
        take(ras_text.as_bytes(), b"", b"", b"", &recognizer);
    }
    for seed in 0..400 {
        let mut mutator = Mutator::new(seed);
        let ras = if seed % 2 == 0 { RAS } else { RAS_TEXT };
        let [ras, stack, record, log] =
            [ras, STACK, RECORD, STALLED].map(|text| mutator.mutate(text.as_bytes()));
        take(&ras, &stack, &record, &log, &recognizer);
    }
}
