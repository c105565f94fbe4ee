//! Job files are read, refused with a remedy, and written so that they read the same.

mod arbitrary;

use bedplate_breakdown::Part;
use bedplate_diag::render_text;
use bedplate_job::*;
use bedplate_topology::Level;
use bedplate_units::{Bytes, Seconds};
use expect_test::{Expect, expect};
use proptest::prelude::*;

fn read(text: &str) -> Job {
    Job::from_toml(text, "job.toml").unwrap_or_else(|error| panic!("{}", render_text(&error)))
}

fn check_refused(text: &str, expected: Expect) {
    let error = Job::from_toml(text, "job.toml").expect_err("the file is wrong");
    expected.assert_eq(&render_text(&error));
}

#[test]
fn a_small_job_is_three_lines() {
    let job = read("name = 'hello'\ncommand = ['python', 'train.py']\ngpus_per_node = 8\n");
    let role = Role { gpus_per_node: 8, ..Role::named("main") };
    assert_eq!(job, Job::new("hello", Workload::command(["python", "train.py"]), Gang::of(role)));
    assert_eq!(job.to_toml(), "name = \"hello\"\ncommand = [\"python\", \"train.py\"]\ngpus_per_node = 8\n");
}

const EVERYTHING: &str = r#"name = "pretrain"
script = '''
#!/bin/bash
srun python train.py
'''
working_directory = "/fsx/ada"
partition = "gpu"
account = "llm"
qos = "high"
priority = 1000
nice = -5
time_limit = "36h"
grace = "2min"
retries = 3
requeue = false
hold = true
begin = "2026-11-16T02:30:00Z"
dependencies = ["afterok:17:18", "singleton"]
array = "0-7,20%4"
checkpoint_signal = { signal = "USR1", before = "5min", to = "script" }
preemption = "shrink"
minimum_run_time = "1h"
stdin = "in.txt"
stdout = "logs/%x-%j.out"
stderr = "logs/%x-%j.err"
append = true
prolog = ["/opt/prolog", "--check"]
epilog = ["/opt/epilog"]
inherit_environment = ["HOME", "PATH"]

[[role]]
name = "trainer"
nodes = 16
tasks_per_node = 8
gpus_per_node = 8
accelerator = "h100"
cpus_per_task = 12
memory_per_node = "1 TiB"
exclusive = true
elastic = { min = 8, max = 32, step = 4 }

[[role]]
name = "reward"
gpu_share = 0.25

[placement]
required = "leaf"
segment = 4
spread = "spine"
only_nodes = ["n1", "n2"]
avoid_nodes = ["n9"]
features = ["efa"]

[health]
stuck_after = "10min"
probe = ["/opt/probe"]
probe_every = "30s"

[environment]
NCCL_DEBUG = "INFO"

[labels]
"team name" = "pretraining"

[expected]
compute = "1.25s"
scale_out = "0.125s"

[expected.hidden]
scale_up = "0.5s"
"#;

#[test]
fn every_key_is_read_and_written_in_its_place() {
    let job = read(EVERYTHING);
    assert_eq!(job.to_toml(), EVERYTHING);
    let [trainer, reward] = &job.gang.roles[..] else { panic!("two roles") };
    assert_eq!(trainer.memory_per_node, Some(Bytes::gib(1024.0)));
    assert_eq!(trainer.elastic, Some(Elastic { min: 8, max: 32, step: 4 }));
    assert_eq!((reward.gpus_per_node, reward.gpu_share), (1, Some(250)));
    assert_eq!(job.placement.closeness, Closeness::Required(Level::LEAF));
    assert_eq!(job.policy.begin, Some(Begin::At { unix_seconds: 1_794_796_200 }));
    assert_eq!(job.policy.checkpoint_signal.unwrap().receiver, Receiver::Script);
    assert_eq!(job.expected.unwrap()[Part::ScaleUp].hidden, Seconds::new(0.5));
    assert_eq!(job.environment.inherited, Inherited::Only(vec!["HOME".into(), "PATH".into()]));
    let json = job.to_json();
    assert_eq!(json["role"][1]["gpu_share"], 0.25);
    assert_eq!(Job::from_json(&json.to_string(), "job.json").unwrap(), job);
}

#[test]
fn people_may_write_values_in_other_ways() {
    let minimal = "name = 'a'\ncommand = ['b']\n";
    let with = |line: &str| read(&format!("{minimal}{line}\n"));
    for (line, seconds) in [
        ("time_limit = '90min'", 5400.0),
        ("time_limit = '1-00:00:00'", 86_400.0),
        ("time_limit = '2-12'", 216_000.0),
        ("time_limit = '01:30:00'", 5400.0),
    ] {
        assert_eq!(with(line).policy.time_limit, Some(Seconds::new(seconds)), "{line}");
    }
    assert_eq!(with("[placement]\nonly_nodes = 'n[08-10]'").placement.only_nodes, ["n08", "n09", "n10"]);
    assert_eq!(with("[environment]\nOMP_NUM_THREADS = 8").environment.set["OMP_NUM_THREADS"], "8");
    assert_eq!(with("[expected]\ncompute = 0.5").expected.unwrap().total(), Seconds::new(0.5));
    assert_eq!(with("begin = '90min'").policy.begin, Some(Begin::After(Seconds::new(5400.0))));
    let zoned = with("begin = '2026-11-16T03:30:00+01:00'").policy.begin;
    assert_eq!(zoned, Some(Begin::At { unix_seconds: 1_794_796_200 }));
    assert_eq!(with("checkpoint_signal = { signal = 10 }").policy.checkpoint_signal.unwrap().signal, 10);
    assert_eq!(with("inherit_environment = 'none'").environment.inherited, Inherited::Nothing);
    let null = r#"{"name": "a", "command": ["b"], "time_limit": null, "role": null}"#;
    assert_eq!(Job::from_json(null, "job.json").unwrap(), read(minimal));
}

#[test]
fn what_is_wrong_with_a_file_names_line_key_and_remedy() {
    check_refused(
        "name = 'a'\n",
        expect![[r#"
            error[document/missing-key]: the job lacks the key `command`
              in   job.toml:1:1: name = 'a'
            help:  add `command = …`, a list in brackets
        "#]],
    );
    check_refused(
        "name = 'a'\ncommand = ['b']\ngpu_per_node = 8\n",
        expect![[r#"
            error[document/unknown-key]: the job has the unknown key `gpu_per_node`
              in   job.toml:3:1: gpu_per_node = 8
            help:  did you mean `gpus_per_node`?
        "#]],
    );
    check_refused(
        "name = 'a'\ncommand = ['b']\nscript = '#!/bin/sh'\n",
        expect![[r#"
            error[document/bad-value]: `command` of the job cannot be used: the job also has `script`; it runs one of the two
              in   job.toml:2:11: command = ['b']
            help:  change the value as the message says
        "#]],
    );
    check_refused(
        "name = 'a'\ncommand = ['b']\nnodes = 2\n[[role]]\nname = 'x'\n",
        expect![[r#"
            error[document/bad-value]: `nodes` of the job cannot be used: the job has roles; write it into the `[[role]]` it is about
              in   job.toml:3:9: nodes = 2
            help:  change the value as the message says
        "#]],
    );
    check_refused(
        "name = 'a'\ncommand = ['b']\ntime_limit = '90'\n",
        expect![[r#"
            error[document/bad-value]: `time_limit` of the job cannot be used: `90` is not a time limit such as `36h` or `1-12:00:00`: `90` has no unit; a duration reads like `600ms`
              in   job.toml:3:14: time_limit = '90'
            help:  change the value as the message says
        "#]],
    );
    check_refused(
        "name = 'a'\ncommand = ['b']\ndependencies = ['afterokay:3']\n",
        expect![[r#"
            error[document/bad-value]: `dependencies` of the job cannot be used: `afterokay:3` is not a dependency such as `afterok:17:18`: did you mean `afterok`?
              in   job.toml:3:16: dependencies = ['afterokay:3']
            help:  change the value as the message says
        "#]],
    );
    check_refused(
        "name = 'a'\ncommand = ['b']\narray = '9-1'\n",
        expect![[r#"
            error[document/bad-value]: `array` of the job cannot be used: `9-1` is not an array such as `0-15%4`: 9 comes after 1
              in   job.toml:3:9: array = '9-1'
            help:  change the value as the message says
        "#]],
    );
    check_refused(
        "name = 'a'\ncommand = ['b']\nbegin = '2026-11-16'\n",
        expect![[r#"
            error[document/bad-value]: `begin` of the job cannot be used: `2026-11-16` is not a start such as `2h` or `2026-11-16T02:00:00Z`: it has no time zone; end it with `Z` for UTC or with `+01:00`
              in   job.toml:3:9: begin = '2026-11-16'
            help:  change the value as the message says
        "#]],
    );
    check_refused(
        "name = 'a'\ncommand = ['b']\n[placement]\nrequired = 'rack'\n",
        expect![[r#"
        error[document/bad-value]: `required` of placement cannot be used: `rack` is not a level of a cluster
          in   job.toml:4:12: required = 'rack'
        help:  change the value as the message says
    "#]],
    );
    check_refused(
        "name = 'a'\ncommand = ['b']\n[expected]\ncompute = '1s'\nnetwork = '1s'\n",
        expect![[r#"
            error[document/unknown-key]: expected has the unknown key `network`
              in   job.toml:5:1: network = '1s'
            help:  the keys here are bubble, compute, hidden, host, memory, optimizer, other, queue, scale_out, scale_up, storage
        "#]],
    );
}

#[test]
fn json_is_refused_in_the_same_words() {
    let error = |text: &str| render_text(&Job::from_json(text, "body").unwrap_err());
    expect![[r#"
        error[document/unknown-key]: the job has the unknown key `node`
          in   body
        help:  did you mean `nodes`?
    "#]]
    .assert_eq(&error("{\"name\": \"a\",\n \"command\": [\"b\"], \"node\": 2}"));
    expect![[r#"
        error[document/syntax]: this is not valid JSON: trailing comma at line 2 column 19
          in   body:2:19: "command": ["b"],}
        help:  check quotes, brackets and `key = value` around the place shown
    "#]]
    .assert_eq(&error("{\"name\": \"a\",\n \"command\": [\"b\"],}"));
    expect![[r#"
        error[document/syntax]: this is not valid JSON: invalid type: sequence, expected a map at line 1 column 0
          in   body:1:1: []
        help:  check quotes, brackets and `key = value` around the place shown
    "#]].assert_eq(&error("[]"));
}

#[test]
fn hostile_files_are_refused() {
    let minimal = "name = 'a'\ncommand = ['b']\n";
    for line in [
        "array = '0-99999999999'",
        "nodes = 99999999999",
        "gpu_share = 1e300",
        "time_limit = '1e40 h'",
        "[placement]\nonly_nodes = 'n[1-60000][1-60000]'",
    ] {
        assert!(Job::from_toml(&format!("{minimal}{line}\n"), "job.toml").is_err(), "{line}");
    }
    let many = format!("{minimal}array = '1{}'\n", ",1".repeat(100_000));
    assert!(Job::from_toml(&many, "job.toml").is_err());
    let deep = format!("{{\"name\": {}", "[".repeat(100_000));
    assert!(Job::from_json(&deep, "body").is_err());
}

/// Checking must not cost the product of the two lists, which are short texts.
#[test]
fn long_lists_of_nodes_are_checked_quickly() {
    let text = "name = 'a'\ncommand = ['b']\n[placement]\nonly_nodes = 'n[1-60000]'\navoid_nodes = 'n[60000-99999]'\n";
    let flaws = read(text).flaws();
    assert_eq!(flaws, [Flaw::NodeWantedAndAvoided { node: "n60000".into() }]);
}

proptest! {
    #[test]
    fn every_job_reads_back_as_itself(job in arbitrary::job()) {
        let toml = job.to_toml();
        let again = Job::from_toml(&toml, "job.toml");
        prop_assert_eq!(again.as_ref(), Ok(&job), "{}", toml);
        let json = job.to_json().to_string();
        let from_json = Job::from_json(&json, "job.json");
        prop_assert_eq!(from_json.as_ref(), Ok(&job), "{}", json);
        prop_assert_eq!(again.expect("it was read").to_toml(), toml);
    }

    #[test]
    fn no_text_makes_the_readers_panic(text in "(name|command|role|array|[\\[\\]={}'\":a-z0-9.,# \n]|\\PC){0,60}") {
        let _ = Job::from_toml(&text, "job.toml");
        let _ = Job::from_json(&text, "job.json");
    }
}
