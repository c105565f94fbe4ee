//! Traces of every format: what is read, what is refused with its line, which remarks are made.

use bedplate_catalog::Catalog;
use bedplate_diag::{Diagnostic, Source, render_text};
use bedplate_replay::jobs::{Trace, TraceFormat, detect, openb_cluster, read, write_jsonl};
use bedplate_topology::{ImportOptions, import_detected};
use expect_test::{Expect, expect};
use proptest::prelude::*;

const SWF: &str = "; Version: 2.2\n; MaxProcs: 128\n\
    1  100 -1 1451 128 -1 -1 -1 -1 -1 1 3 1 -1 0 -1 -1 -1\n\
    2   40 -1   60  -1 -1 -1 16 600 -1 0 4 1 -1 1 -1 -1 -1\n\
    3  200 -1   -1   8 -1 -1  8 600 -1 5 4 1 -1 1 -1 -1 -1\n";
const PHILLY: &str = "timestamp,duration,num_gpus,gpu_time,cluster\n\
    2017-10-09 07:01:55,66.0,1,66.0,11cb48\n2017-10-09 06:13:03,0,16,0,6214e9\n";
const PODS: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n\
    pod-0,12000,16384,1,1000,,LS,Running,0,100,5\n\
    pod-1,6500,12288,1,460,V100M16|V100M32,BE,Failed,20,100,\n\
    pod-2,1000,1024,0,0,,BE,Running,20,,\n";
const NODES: &str =
    "sn,cpu_milli,memory_mib,gpu,model\nnode-0,64000,262144,2,P100\nnode-1,96000,393216,8,V100M32\n";
const JSONL: &str = concat!(
    "{\"id\":\"a\",\"submit_s\":0,\"duration_s\":90.5,\"nodes\":4,\"gpus_per_node\":8,\"user\":\"ann\",\"qos\":\"high\",",
    "\"elastic\":{\"min\":2,\"max\":8,\"step\":2},\"scale_out_share\":0.2,\"within\":\"spine\",\"checkpoint_s\":1800}\n",
    "{\"submit_s\":5,\"duration_s\":60,\"gpus\":1,\"gpu_share\":0.25,\"accelerators\":\"h100\",\"outcome\":\"failed\"}\n"
);

/// As Slurm 22.05 printed it: `sacct --allusers --allocations --parsable2 --format=…`.
const SACCT: &str = "JobID|JobName|User|Account|Partition|QOS|State|Submit|Start|End|TimelimitRaw|NNodes|ReqTRES|AllocTRES|NodeList\n\
    4|wrap|root|root|main|normal|CANCELLED by 0|2026-11-16T06:04:35|None|2026-11-16T06:06:09|Partition_Limit|9|billing=9,cpu=9,mem=36000M,node=9||None assigned\n\
    2_0|wrap|root|root|main|normal|COMPLETED|2026-11-16T06:04:35|2026-11-16T06:04:36|2026-11-16T06:04:39|10|8|billing=8,cpu=8,gres/gpu=64,mem=32000M,node=8|billing=8,cpu=8,gres/gpu=64,node=8|n[1-8]\n\
    1013|a|b c|ada|lab|main|urgent|TIMEOUT|2026-11-16T06:10:19|2026-11-16T06:11:19|2026-11-16T06:21:19|10|2|billing=2,cpu=2,gres/gpu=3,mem=8000M,node=2|billing=2,cpu=2,gres/gpu=3,mem=8000M,node=2|n[1-2]\n\
    1013.batch|batch|||||FAILED|2026-11-16T06:11:19|2026-11-16T06:11:19|2026-11-16T06:21:19||1||cpu=1,node=1|n1\n\
    1014|sh|root|root|main|normal|RUNNING|2026-11-16T06:43:14|2026-11-16T06:43:14|Unknown|10|2|cpu=4,node=2|cpu=4,node=2|n[1-2]\n\
    1015|sh|root|root|main|normal|REQUEUED|2026-11-16T06:43:14|2026-11-16T06:43:14|2026-11-16T06:43:15|10|2|cpu=4,node=2|cpu=4,node=2|n[1-2]\n";

fn source(text: &str) -> Source<'_> {
    Source::new("trace", text)
}

fn shown(trace: &Trace) -> String {
    let mut text = write_jsonl(trace);
    for remark in &trace.remarks {
        text += &format!("{} {}\n", remark.count, remark.what);
    }
    text
}

fn check(text: &str, expected: Expect) {
    let result = match read(source(text), None) {
        Ok(trace) => shown(&trace),
        Err(error) => render_text(&error),
    };
    expected.assert_eq(&result);
}

#[test]
fn the_history_of_a_slurm_has_what_ran_and_counts_what_did_not() {
    check(
        SACCT,
        expect![[r#"
        {"id":"2_0","submit_s":0,"duration_s":3,"nodes":8,"gpus_per_node":8,"cpus_per_node":1,"time_limit_s":600,"user":"root","account":"root","qos":"normal","partition":"main"}
        {"id":"1013","submit_s":344,"duration_s":600,"gpus":3,"cpus_per_node":1,"memory_gib_per_node":3.90625,"time_limit_s":600,"user":"ada","account":"lab","qos":"urgent","partition":"main","outcome":"failed"}
        1 jobs never started and are left out
        1 jobs have not ended yet and are left out
        1 runs were put back into the queue and are left out; the last run of a job counts
    "#]],
    );
}

#[test]
fn moments_in_seconds_and_limits_as_clocks_are_read_too() {
    let text = "JobID|State|Submit|Start|End|Timelimit|NNodes\n7|FAILED|100|200|260|1-00:00:00|2\n";
    check(
        text,
        expect![[r#"
        {"id":"7","submit_s":0,"duration_s":60,"nodes":2,"gpus_per_node":0,"time_limit_s":86400,"outcome":"failed"}
    "#]],
    );
}

#[test]
fn a_history_that_cannot_be_says_where() {
    let header = "JobID|State|Submit|Start|End|AllocTRES\n";
    for row in [
        "7|COMPLETED|100|200",
        "7|COMPLETED|soon|200|260|node=1",
        "7|COMPLETED|1|9|5|node=1",
        "7|COMPLETED|1|2|5|node=x",
        "7|COMPLETED|1|2|5|node=9999999999",
    ] {
        let text = format!("{header}{row}\n");
        let error = read(source(&text), None).unwrap_err();
        assert!(error.place().is_some_and(|place| place.to_string().contains(":2")), "{row}: {error}");
    }
    assert!(read(source("JobID|State|Submit|Start\n"), Some(TraceFormat::Sacct)).is_err());
}

#[test]
fn swf_jobs_count_processors_as_gpus_and_those_that_never_ran_are_left_out() {
    check(
        SWF,
        expect![[r#"
        {"id":"2","submit_s":0,"duration_s":60,"gpus":16,"time_limit_s":600,"user":"user4","account":"group1","qos":"queue1","outcome":"failed"}
        {"id":"1","submit_s":60,"duration_s":1451,"gpus":128,"user":"user3","account":"group1","qos":"queue0"}
        1 jobs have no run time or no processors: they never ran and are left out
        1 rows are not in the order of submission; they were sorted
    "#]],
    );
}

#[test]
fn philly_jobs_belong_to_virtual_clusters() {
    check(
        PHILLY,
        expect![[r#"
        {"id":"3","submit_s":0,"duration_s":1,"gpus":16,"account":"6214e9"}
        {"id":"2","submit_s":2932,"duration_s":66,"gpus":1,"account":"11cb48"}
        1 rows are not in the order of submission; they were sorted
        1 jobs run for no time; they count one second
    "#]],
    );
}

#[test]
fn pods_may_share_a_gpu_and_name_models() {
    check(
        PODS,
        expect![[r#"
        {"id":"pod-0","submit_s":0,"duration_s":95,"nodes":1,"gpus_per_node":1,"cpus_per_node":12,"memory_gib_per_node":16.0,"qos":"LS"}
        {"id":"pod-1","submit_s":20,"duration_s":80,"nodes":1,"gpus_per_node":1,"cpus_per_node":7,"memory_gib_per_node":12.0,"gpu_share":0.46,"accelerators":["V100M16","V100M32"],"qos":"BE","outcome":"failed"}
        1 pods have no deletion time and are left out
    "#]],
    );
}

#[test]
fn json_lines_are_read_as_they_are_written() {
    check(
        JSONL,
        expect![[r#"
        {"id":"a","submit_s":0,"duration_s":90.5,"nodes":4,"gpus_per_node":8,"user":"ann","qos":"high","elastic":{"min":2,"max":8,"step":2},"within":"spine","scale_out_share":0.2,"checkpoint_s":1800}
        {"id":"2","submit_s":5,"duration_s":60,"gpus":1,"gpu_share":0.25,"accelerators":["h100"],"outcome":"failed"}
    "#]],
    );
    let trace = read(source(JSONL), None).expect("the fixture is right");
    assert_eq!(read(source(&write_jsonl(&trace)), None).expect("the fixture is right"), trace);
}

#[test]
fn bad_lines_are_errors_with_their_line() {
    let cases = [
        "",
        "hello\nworld\n",
        "; only a comment\n",
        "1 2 3\n; later\n",
        "; swf\n1 0 -1 10 8 -1 -1 -1 -1 -1 1 3 1 -1 0 -1 -1\n",
        "; swf\n1 0 -1 ten 8 -1 -1 -1 -1 -1 1 3 1 -1 0 -1 -1 -1\n",
        "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09,66.0,1,66.0,a\n",
        "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,-66.0,1,66.0,a\n",
        "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,0,66.0,a\n",
        "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1\n",
        "{\"submit_s\": 0}\n",
        "{\"submit_s\": 0, \"duration_s\": 5, \"gpus\": 1, \"qoss\": \"high\"}\n",
        "{\"submit_s\": 0, \"duration_s\": 5, \"gpus\": 1, \"nodes\": 2}\n",
        "{\"submit_s\": 0, \"duration_s\": 5, \"gpus\": 1, \"outcome\": \"fail\"}\n",
        "{\"submit_s\": 0, \"duration_s\": 5, \"nodes\": 3, \"gpus_per_node\": 8, \"elastic\": {\"min\": 2, \"max\": 4, \"step\": 2}}\n",
        "{\"submit_s\": 0, \"duration_s\": 5, \"gpus\": 1, \"within\": \"rack\"}\n",
        "{\"submit_s\": 0, \"duration_s\"\n",
    ];
    let mut text = String::new();
    for case in cases {
        let error = read(source(case), None).expect_err("it is wrong");
        assert!(error.place().is_some());
        text += &render_text(&error);
    }
    expect![[r#"
        error[replay/empty-job-trace]: the trace has no jobs
          in   trace
        help:  check that this is the file you meant
        error[replay/unknown-job-trace]: this is not a known trace of jobs
          in   trace:1: hello
        help:  say which with --format, or convert the trace to the JSON lines of docs/replay.md; unpack compressed traces first
        error[replay/empty-job-trace]: the trace has no jobs
          in   trace
        help:  check that this is the file you meant
        error[replay/unknown-job-trace]: this is not a known trace of jobs
          in   trace:1: 1 2 3
        help:  say which with --format, or convert the trace to the JSON lines of docs/replay.md; unpack compressed traces first
        error[replay/malformed-job]: this line cannot be read: it has 17 fields instead of 18
          in   trace:2: 1 0 -1 10 8 -1 -1 -1 -1 -1 1 3 1 -1 0 -1 -1
        help:  correct or remove the line; docs/replay.md lists the fields
        error[replay/malformed-job]: this line cannot be read: `ten` is not a number
          in   trace:2: 1 0 -1 ten 8 -1 -1 -1 -1 -1 1 3 1 -1 0 -1 -1 -1
        help:  correct or remove the line; docs/replay.md lists the fields
        error[replay/malformed-job]: this line cannot be read: `2017-10-09` is not a time like 2017-10-09 07:01:55
          in   trace:2: 2017-10-09,66.0,1,66.0,a
        help:  correct or remove the line; docs/replay.md lists the fields
        error[replay/malformed-job]: this line cannot be read: the duration `-66.0` is not a number of 0 or more
          in   trace:2: 2017-10-09 07:01:55,-66.0,1,66.0,a
        help:  correct or remove the line; docs/replay.md lists the fields
        error[replay/malformed-job]: this line cannot be read: the job has no GPUs
          in   trace:2: 2017-10-09 07:01:55,66.0,0,66.0,a
        help:  correct or remove the line; docs/replay.md lists the fields
        error[replay/malformed-job]: this line cannot be read: it has 3 fields and the header 5
          in   trace:2: 2017-10-09 07:01:55,66.0,1
        help:  correct or remove the line; docs/replay.md lists the fields
        error[replay/malformed-job]: this line cannot be read: it lacks `duration_s`
          in   trace:1: {"submit_s": 0}
        help:  correct or remove the line; docs/replay.md lists the fields
        error[replay/malformed-job]: this line cannot be read: `qoss` is not a field
          in   trace:1: {"submit_s": 0, "duration_s": 5, "gpus": 1, "qoss": "high"}
        help:  did you mean `qos`?
        error[replay/malformed-job]: this line cannot be read: the size is either `gpus`, or `nodes` with `gpus_per_node`
          in   trace:1: {"submit_s": 0, "duration_s": 5, "gpus": 1, "nodes": 2}
        help:  correct or remove the line; docs/replay.md lists the fields
        error[replay/malformed-job]: this line cannot be read: `outcome` must be one of completed, cancelled, failed
          in   trace:1: {"submit_s": 0, "duration_s": 5, "gpus": 1, "outcome": "fail"}
        help:  did you mean `failed`?
        error[replay/malformed-job]: this line cannot be read: `nodes` is not one of the sizes that `elastic` allows
          in   trace:1: {"submit_s": 0, "duration_s": 5, "nodes": 3, "gpus_per_node": 8, "elastic": {"min": 2, "max": 4, "step": 2}}
        help:  correct or remove the line; docs/replay.md lists the fields
        error[replay/malformed-job]: this line cannot be read: `within` is not a level of a cluster, such as leaf or spine
          in   trace:1: {"submit_s": 0, "duration_s": 5, "gpus": 1, "within": "rack"}
        help:  correct or remove the line; docs/replay.md lists the fields
        error[replay/malformed-job]: this line cannot be read: it is not a JSON object: EOF while parsing an object at line 1 column 28
          in   trace:1: {"submit_s": 0, "duration_s"
        help:  correct or remove the line; docs/replay.md lists the fields
    "#]].assert_eq(&text);
}

#[test]
fn predicted_throughput_reads_back_and_what_is_no_curve_is_refused() {
    let line = |more: &str| {
        format!("{{\"id\":\"a\",\"submit_s\":0,\"duration_s\":60,\"nodes\":2,\"gpus_per_node\":8,{more}}}\n")
    };
    let elastic = "\"elastic\":{\"min\":1,\"max\":4,\"step\":1}";
    let good = line(&format!("{elastic},\"rates\":[[1,0.56],[2,1.0],[4,1.625]]"));
    let trace = read(source(&good), None).expect("the fixture is right");
    assert_eq!(write_jsonl(&trace), good);
    let rates = trace.jobs[0].rates.as_ref().expect("it has them");
    assert_eq!(rates.points(), [(1, 0.56), (2, 1.0), (4, 1.625)]);
    let mut text = String::new();
    for rates in [
        "[]",
        "[[2,1],[1,2]]",
        "[[1,0]]",
        "[[1,1e308],[2,1.7e308]]",
        "[[1,5e-324]]",
        "[[1,2,3]]",
        "{\"1\":2}",
    ] {
        let bad = line(&format!("{elastic},\"rates\":{rates}"));
        let error = read(source(&bad), None).expect_err("it is wrong").to_string();
        text += &format!("{rates}: {}\n", error.trim_start_matches("this line cannot be read: "));
    }
    let fixed = line("\"rates\":[[1,1]]");
    text += &read(source(&fixed), None).expect_err("it is wrong").to_string();
    expect![[r#"
        []: `rates`: there are no points
        [[2,1],[1,2]]: `rates`: the nodes do not ascend: 1 comes after 2
        [[1,0]]: `rates`: the rate at 1 nodes is 0, which is not a positive number
        [[1,1e308],[2,1.7e308]]: `rates`: the rate at 1 nodes is 1e308, and rates are from 1e-9 to 1e12
        [[1,5e-324]]: `rates`: the rate at 1 nodes is 5e-324, and rates are from 1e-9 to 1e12
        [[1,2,3]]: `rates` is a list of pairs of nodes and throughput, such as [[2, 1.0], [4, 1.8]]
        {"1":2}: `rates` is a list of pairs of nodes and throughput, such as [[2, 1.0], [4, 1.8]]
        this line cannot be read: `rates` says how fast an elastic job is, and this one is not `elastic`"#]]
    .assert_eq(&text);
}

#[test]
fn the_content_tells_the_format() {
    let found = [SWF, PHILLY, PODS, JSONL, NODES, "x,y\n1,2\n", ""].map(|text| detect(source(text)));
    let expected = [
        Some(TraceFormat::Swf),
        Some(TraceFormat::Philly),
        Some(TraceFormat::Openb),
        Some(TraceFormat::Jsonl),
        None,
        None,
        None,
    ];
    assert_eq!(found, expected);
}

#[test]
fn the_node_list_becomes_a_cluster() {
    let toml = openb_cluster(source(NODES), "a100-40gb").expect("the fixture is right");
    let cluster =
        import_detected(&[Source::new("openb.toml", &toml)], &ImportOptions::default(), &Catalog::builtin());
    let cluster = cluster.expect("the fixture is right");
    assert_eq!((cluster.node_count(), cluster.gpu_count()), (2, 10));
    assert_eq!(cluster.kinds()[1].name, "V100M32-x8");
}

/// Pieces for texts that resemble the formats.
fn near_a_trace() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        SWF,
        PHILLY,
        PODS,
        JSONL,
        "; x\n",
        "1 ",
        "-1 ",
        "{\"submit_s\":",
        "1e300",
        "\"gpus\":",
        "}",
        ",",
        "\n",
        "-5",
        "\u{feff}",
        "2017-10-09 07:01:55",
        "é",
        "18446744073709551616",
        "nan",
        "{",
        "\"nodes\":3",
    ]);
    (prop::collection::vec(piece, 0..12), any::<prop::sample::Index>()).prop_map(|(pieces, cut)| {
        let text = pieces.concat();
        let mut at = cut.index(text.len() + 1);
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        format!("{}{}", &text[at..], &text[..at])
    })
}

proptest! {
    #[test]
    fn no_text_makes_a_parser_panic(text in near_a_trace(), which in 0usize..5) {
        let format = TraceFormat::ALL.get(which).map(|(_, format)| *format);
        if let Ok(trace) = read(source(&text), format) {
            let written = write_jsonl(&trace);
            let again = read(source(&written), Some(TraceFormat::Jsonl));
            prop_assert!(again.is_ok(), "{again:?} of {written}");
            prop_assert_eq!(write_jsonl(&again.expect("the fixture is right")), written);
        }
        let _ = openb_cluster(source(&text), "h100");
    }
}
