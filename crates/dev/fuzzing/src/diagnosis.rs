//! Targets of what a diagnosis reads: logs, tables of formats and signatures, flight records.

use std::sync::LazyLock;

use bedplate_diag::Source;
use bedplate_diagnose::Record;
use bedplate_logs::{LiveLog, LogReader, Recognizer};

use crate::targets::tell;

pub(crate) const LOGS: &[&str] = &[
    "[2025-12-19 10:49:15] iteration       10/     100 | consumed samples: 1280 | elapsed time per iteration (ms): 2028.1 | global batch size: 128 | lm loss: 1.258695E+01 |\n",
    "[rank3]: Traceback (most recent call last):\n[rank3]:   File \"train.py\", line 12\n[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
    "\x1b[32m 12%|#1        | 12/100 [00:12<01:28,  1.01s/it]\r 13%|#3        | 13/100 [00:13<01:27,  1.00s/it]\r\n",
    "[rank0]:[E ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds\n",
    "iter 7: loss 3.1, time 410.5ms, mfu 37.1%\n",
];
pub(crate) const TABLES: &[&str] = &[
    "[[format]]\nname = \"mine\"\npattern = 'STEP (?<step>\\d+) took (?<seconds>[0-9.]+)s loss=(?<loss>\\S+)'\nsamples = [\"STEP 7 took 1.5s loss=2.0\"]\n",
    "[[signature]]\nname = \"mine\"\npattern = 'fabric (?<node>\\S+) lost'\ncause = \"network\"\nrole = \"cause\"\nsamples = [\"fabric n1 lost\"]\n",
];
pub(crate) const RECORDS: &[&str] = &[
    r#"{"version":"2.5","pg_config":{"0":{"name":"0","desc":"default_pg","ranks":"[0, 1]"}},"pg_status":{"0":{"last_enqueued_collective":7,"last_completed_collective":6}},"entries":[{"process_group":["0","default_pg"],"collective_seq_id":7,"p2p_seq_id":0,"profiling_name":"nccl:all_reduce","input_sizes":[[3,4]],"output_sizes":[[3,4]],"input_dtypes":["Float"],"state":"started","time_created_ns":1700000000000000000,"is_p2p":false,"frames":[{"name":"step","filename":"train.py","line":3}]}]}"#,
    r#"{"rank":1,"world":2,"epoch":1,"host":"h","fault":null,"groups":[],"calls":[{"group":0,"number":3,"operation":"all_reduce","elements":12,"state":"entered"}]}"#,
    "\u{80}\u{4}\u{95}}q\0(X\u{7}\0\0\0entriesq\u{1}]q\u{2}u.",
];

static BUILT_IN: LazyLock<Recognizer> = LazyLock::new(Recognizer::built_in);

/// A log at once, in pieces and as it comes. In pieces it may say less: a line that was wrapped is joined where both parts come together.
pub(crate) fn log_text(data: &[u8]) {
    let mut whole = LogReader::new(&BUILT_IN);
    whole.feed(data);
    let mut pieces = LogReader::new(&BUILT_IN);
    data.chunks(7).for_each(|piece| pieces.feed(piece));
    assert_eq!(whole.finish().bytes, pieces.finish().bytes);
    let mut live = LiveLog::new(&BUILT_IN);
    data.chunks(100).zip(1_u32..).for_each(|(piece, at)| drop(live.feed(piece, f64::from(at))));
}

/// A user's own table, and what it makes of its samples.
pub(crate) fn log_table(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let source = Source::new("own.toml", &text);
    match Recognizer::with_own(&[source]) {
        Ok(recognizer) => {
            let _ = recognizer.try_samples(source);
            LOGS.iter().for_each(|log| drop(recognizer.recognize(log.as_bytes())));
        }
        Err(error) => tell(&error),
    }
}

pub(crate) fn flight_record(data: &[u8]) {
    if let Ok(record) = Record::read("nccl_trace_rank_1", data) {
        assert!(record.calls.iter().all(|call| call.group < record.groups.len().max(1)));
    }
}
