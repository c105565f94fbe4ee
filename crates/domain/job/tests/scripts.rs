//! Batch scripts as people write them become jobs, and what is not honoured is said.

use bedplate_diag::render_text;
use bedplate_job::sbatch::{Draft, OPTIONS, apply};
use bedplate_job::*;
use expect_test::{Expect, expect};
use proptest::prelude::*;

/// The job without its script, then the remarks.
fn told(imported: &Imported) -> String {
    let job = Job { workload: Workload::command(["…"]), ..imported.job.clone() };
    let remarks: Vec<String> = imported.remarks.iter().map(|remark| format!("\n- {remark}")).collect();
    format!("{}{}", job.to_toml(), remarks.concat())
}

fn check(script: &str, expected: Expect) {
    let imported =
        Job::from_sbatch(script, "scripts/job.sbatch").expect("sbatch takes the script, and so do we");
    assert_eq!(imported.job.workload, Workload::Script { text: script.to_owned() });
    assert_eq!(imported.job.flaws(), []);
    expected.assert_eq(&told(&imported));
}

#[test]
fn torchrun_on_sixteen_nodes() {
    check(
        include_str!("scripts/torchrun.sbatch"),
        expect![[r#"
            name = "llama-70b"
            command = ["…"]
            nodes = 16
            gpus_per_node = 8
            cpus_per_task = 96
            exclusive = true
            partition = "h100"
            account = "llm"
            time_limit = "2d"
            checkpoint_signal = { signal = "USR1", before = "5min", to = "script" }
            stdout = "logs/%x-%j.out"
            stderr = "logs/%x-%j.err"
            append = true
        "#]],
    );
}

#[test]
fn megatron_with_short_options_and_a_line_too_late() {
    check(
        include_str!("scripts/megatron.sbatch"),
        expect![[r#"
        name = "megatron-gpt3"
        command = ["…"]
        nodes = 32
        tasks_per_node = 8
        gpus_per_node = 8
        accelerator = "h100"
        cpus_per_task = 12
        partition = "batch"
        account = "foundation models"
        time_limit = "1d"
        dependencies = ["afterany:8123"]

        [placement]
        required = "leaf"
        features = ["efa", "nvme"]

        - line 8: --partition: a choice of partitions is not honoured; the job waits in `batch`
        - line 12: --mail-type: not honoured; no mail is sent, watch with `bedplate job show`
        - line 13: --mail-user: not honoured; no mail is sent, watch with `bedplate job show`
        - line 17: #SBATCH: the line follows a command, so it is a comment, as for sbatch"#]],
    );
}

#[test]
fn deepspeed_sized_by_tasks() {
    check(
        include_str!("scripts/deepspeed.sbatch"),
        expect![[r#"
        name = "job.sbatch"
        command = ["…"]
        working_directory = "/fsx/ada/ds"
        nodes = 4
        tasks_per_node = 8
        gpus_per_node = 8
        cpus_per_task = 10
        memory_per_node = "800 GiB"
        nice = 100
        inherit_environment = ["WANDB_API_KEY"]

        [environment]
        HF_HOME = "/fsx/hf"

        [labels]
        comment = "second try"
    "#]],
    );
}

#[test]
fn a_sweep_as_an_array() {
    let script = include_str!("scripts/sweep.sbatch");
    check(
        script,
        expect![[r#"
        name = "job.sbatch"
        command = ["…"]
        gpus_per_node = 1
        time_limit = "90min"
        requeue = false
        dependencies = ["singleton"]
        array = "0-99:10,7,13%4"
        stdout = "sweep/%A_%a.out"
    "#]],
    );
    let indices = Job::from_sbatch(script, "s").unwrap().job.array_indices().unwrap();
    assert_eq!(indices, [0, 7, 10, 13, 20, 30, 40, 50, 60, 70, 80, 90]);
}

#[test]
fn letters_with_their_values_attached() {
    check(
        include_str!("scripts/serve.sbatch"),
        expect![[r#"
        name = "job.sbatch"
        command = ["…"]
        nodes = 3
        tasks_per_node = 2
        gpus_per_node = 6
        hold = true
        begin = "2026-11-16T02:00:00Z"

        [placement]
        only_nodes = ["n1", "n2", "n3"]
        avoid_nodes = ["n9"]

        - line 2: --time: a job without a time limit is not honoured; it gets the default limit of the cluster
        - line 4: --begin: the time has no zone and is taken as 2026-11-16T02:00:00Z, in UTC
        - line 5: --licenses: not honoured; it is left out, because this cluster has no such thing
        - line 6: #SBATCH: the line is indented, so it is a comment, as for sbatch
        - --ntasks: 4 tasks do not divide over 3 nodes; each gets 2, because nodes of a gang are equal
        - --gpus: 16 GPUs do not divide over 3 nodes; each gets 6, because nodes of a gang are equal"#]],
    );
}

/// The job and remarks of a script with these options.
fn with(options: &str) -> Imported {
    let script = format!("#!/bin/sh\n#SBATCH {options}\ntrue\n");
    Job::from_sbatch(&script, "job.sh").unwrap_or_else(|error| panic!("{}", render_text(&error)))
}

#[test]
fn the_gang_is_worked_out_from_whatever_is_given() {
    // nodes, tasks per node, GPUs per node, CPUs per task, remarks
    for (options, shape) in [
        ("", (1, 1, 0, 1, 0)),
        ("-N4", (4, 1, 0, 1, 0)),
        ("-N4 -n32", (4, 8, 0, 1, 0)),
        ("-N4 -n30", (4, 8, 0, 1, 1)),
        ("-n32 --ntasks-per-node=8", (4, 8, 0, 1, 0)),
        ("-n32", (1, 32, 0, 1, 0)),
        ("--gpus=8", (1, 1, 8, 1, 0)),
        ("--gpus=16", (2, 1, 8, 1, 1)),
        ("--gpus=16 -N4", (4, 1, 4, 1, 0)),
        ("--gpus=h100:16 --gpus-per-node=4", (4, 1, 4, 1, 0)),
        ("--gpus=10 -N4 --gpus-per-node=4", (4, 1, 4, 1, 1)),
        ("-n16 --gpus-per-task=1", (2, 8, 8, 1, 1)),
        ("-N2 --gpus-per-node=8 --ntasks-per-gpu=1", (2, 8, 8, 1, 0)),
        ("-N2 --gpus=16 --gpus-per-task=2", (2, 4, 8, 1, 0)),
        ("-N2 --gres=gpu:8 --cpus-per-gpu=12 --ntasks-per-node=8", (2, 8, 8, 12, 0)),
        ("-N2 --gres=gpu:8 --cpus-per-gpu=12", (2, 1, 8, 96, 0)),
        ("--gres=gpu", (1, 1, 1, 1, 0)),
        ("--gres=gpu:a100,nvme:1", (1, 1, 1, 1, 1)),
        ("--gres=gpu:a100:4(S:0-1)", (1, 1, 4, 1, 0)),
        ("-N2-4", (2, 1, 0, 1, 1)),
        ("-w n[1-3]", (3, 1, 0, 1, 0)),
        ("-w n1 -N2", (2, 1, 0, 1, 1)),
    ] {
        let Imported { job, remarks } = with(options);
        let role = &job.gang.roles[0];
        let found = (role.nodes, role.tasks_per_node, role.gpus_per_node, role.cpus_per_task, remarks.len());
        assert_eq!(found, shape, "{options}: {remarks:?}");
    }
}

#[test]
fn values_are_read_as_slurm_reads_them() {
    let seconds = |options: &str| with(options).job.policy.time_limit.unwrap().get();
    assert_eq!(seconds("-t 90"), 5400.0);
    assert_eq!(seconds("-t 90:30"), 5430.0);
    assert_eq!(seconds("-t 1:30:00"), 5400.0);
    assert_eq!(seconds("-t 1-6"), 108_000.0);
    assert_eq!(seconds("-t 1-6:30"), 109_800.0);
    let gib =
        |options: &str| with(options).job.gang.roles[0].memory_per_node.unwrap().get() / 1_073_741_824.0;
    assert_eq!(gib("--mem=2048"), 2.0);
    assert_eq!(gib("--mem=64G"), 64.0);
    assert_eq!(gib("--mem-per-cpu=4G -c 8 --ntasks-per-node=2"), 64.0);
    assert_eq!(gib("--mem-per-gpu=100G --gres=gpu:8"), 800.0);
    let signal = |options: &str| with(options).job.policy.checkpoint_signal.unwrap();
    assert_eq!((signal("--signal=USR1").signal, signal("--signal=USR1").before.get()), (10, 60.0));
    assert_eq!(signal("--signal=BR:12@90").receiver, Receiver::Script);
    assert_eq!(signal("--signal=SIGTERM@90").receiver, Receiver::Tasks);
    let environment = |options: &str| with(options).job.environment;
    assert_eq!(environment("--export=ALL,A=1").inherited, Inherited::All);
    assert_eq!(environment("--export=NONE").inherited, Inherited::Nothing);
    assert_eq!(environment("--export=HOME,A=1").inherited, Inherited::Only(vec!["HOME".into()]));
    assert_eq!(environment("\"--export=A='x,y',B=2\"").set["A"], "x,y");
    let dependencies = with("-d afterok:1:2,afternotok:3_4").job.policy.dependencies;
    assert_eq!(
        dependencies.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["afterok:1:2", "afternotok:3_4"]
    );
    assert_eq!(with("--begin=now+2hours").job.policy.begin.unwrap().to_string(), "2h");
    assert_eq!(with("--begin=now+90").job.policy.begin.unwrap().to_string(), "90s");
}

#[test]
fn what_is_not_honoured_says_what_happens_instead() {
    let remarks = |options: &str| {
        with(options).remarks.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n") + "\n"
    };
    expect![[r#"
        line 2: --time-min: not honoured; the job gets its whole `--time`
        line 2: --dependency: `?` is not honoured; the job waits for all of its dependencies and not for any one
        line 2: --constraint: the choice `a|b` is not honoured and left out; any node will do
        line 2: --switches: the longest wait is not honoured; one leaf is preferred, and the job does not wait for it
        line 2: --switches: at most 3 switches are not honoured; nodes under one spine are preferred
        line 2: --exclusive: `user` is not honoured; the nodes are exclusive to this job
        line 2: --signal: `R:` is not honoured; there are no reservations that a signal could announce
        line 2: --reservation: not honoured; it is left out, because this cluster has no such thing
        line 2: --dependency: `aftercorr` is not honoured; every task waits for all tasks of the other array, as `afterok` does
    "#]].assert_eq(
        &[
            "--time-min=10",
            "-d afterok:1?afterok:2",
            "-C a|b",
            "--switches=1@10",
            "--switches=3",
            "--exclusive=user",
            "--signal=R:USR1",
            "--reservation=x",
            "-d aftercorr:4",
        ]
        .map(remarks)
        .concat(),
    );
}

fn check_refused(options: &str, expected: Expect) {
    let script = format!("#!/bin/sh\n# my job\n#SBATCH {options}\ntrue\n");
    let error = Job::from_sbatch(&script, "job.sh").expect_err("the options are wrong");
    expected.assert_eq(&render_text(&error));
}

#[test]
fn wrong_options_name_the_line_and_the_nearest_option() {
    check_refused(
        "--gpu-per-node=8",
        expect![[r#"
        error[job/unknown-option]: `--gpu-per-node` is not an option of sbatch
          in   job.sh:3: #SBATCH --gpu-per-node=8
        help:  did you mean `--gpus-per-node`?
    "#]],
    );
    check_refused(
        "-Z",
        expect![[r#"
        error[job/unknown-option]: `-Z` is not an option of sbatch
          in   job.sh:3: #SBATCH -Z
        help:  correct the spelling or remove the option; docs/job.md lists all options
    "#]],
    );
    check_refused(
        "nodes=2",
        expect![[r#"
        error[job/unknown-option]: `nodes=2` is not an option of sbatch
          in   job.sh:3: #SBATCH nodes=2
        help:  did you mean `--nodes`?
    "#]],
    );
    check_refused(
        "--nodes=two",
        expect![[r#"
        error[job/bad-option]: --nodes cannot be used: `two` is not a whole number up to 4294967295
          in   job.sh:3: #SBATCH --nodes=two
        help:  change the option as the message says; docs/job.md lists all options
    "#]],
    );
    check_refused(
        "--nodes",
        expect![[r#"
        error[job/bad-option]: --nodes cannot be used: it needs a value
          in   job.sh:3: #SBATCH --nodes
        help:  change the option as the message says; docs/job.md lists all options
    "#]],
    );
    check_refused(
        "--requeue=yes",
        expect![[r#"
        error[job/bad-option]: --requeue cannot be used: it takes no value
          in   job.sh:3: #SBATCH --requeue=yes
        help:  change the option as the message says; docs/job.md lists all options
    "#]],
    );
    check_refused(
        "--time=1:2:3:4",
        expect![[r#"
        error[job/bad-option]: --time cannot be used: `1:2:3:4` is not a time such as `90` (minutes), `4h`, `01:30:00` or `1-12:00:00`: it has too many parts
          in   job.sh:3: #SBATCH --time=1:2:3:4
        help:  change the option as the message says; docs/job.md lists all options
    "#]],
    );
    check_refused(
        "--job-name=\"a b",
        expect![[r#"
        error[job/open-quote]: a quotation mark is never closed
          in   job.sh:3: #SBATCH --job-name="a b
        help:  close the quotation on the same line
    "#]],
    );
    check_refused(
        "--dependency=after:17",
        expect![[r#"
        error[job/bad-option]: --dependency cannot be used: `after` waits for the start of a job, which is not honoured; wait for its end with `afterany`
          in   job.sh:3: #SBATCH --dependency=after:17
        help:  change the option as the message says; docs/job.md lists all options
    "#]],
    );
    check_refused(
        "--output=%q.out",
        expect![[r#"
        error[job/bad-option]: --output cannot be used: `%q` stands for nothing; the letters are %j job, %A array, %a index, %x name, %u user, %N host, %n node, %t task, %s step, %J job.step, %% per cent
          in   job.sh:3: #SBATCH --output=%q.out
        help:  change the option as the message says; docs/job.md lists all options
    "#]],
    );
    check_refused(
        "hetjob",
        expect![[r#"
            error[job/bad-option]: hetjob cannot be used: a job of several unequal parts (a heterogeneous job) is written as a job file with a `[[role]]` for each part
              in   job.sh:3: #SBATCH hetjob
            help:  change the option as the message says; docs/job.md lists all options
        "#]],
    );
    let no_script = Job::from_sbatch("name = 'a'\n", "job.toml").unwrap_err();
    expect![[r#"
        error[job/not-a-script]: this is not a batch script: its first line does not begin with `#!`
          in   job.toml:1: name = 'a'
        help:  begin the script with `#!/bin/bash`, or check that this is the file you meant
    "#]]
    .assert_eq(&render_text(&no_script));
}

#[test]
fn the_command_line_means_the_same() {
    let options = |text: &str| -> Vec<(String, Option<String>)> {
        let pair = |word: &str| match word.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (word.to_owned(), None),
        };
        text.split_whitespace().map(pair).collect()
    };
    let arguments = vec!["/usr/bin/torchrun".to_owned(), "train.py".to_owned()];
    let Imported { job, .. } =
        Job::from_options(&options("nodes=2 gpus-per-node=8 t=30 exclusive"), arguments.clone()).unwrap();
    assert_eq!((&job.name[..], job.gang.gpus()), ("torchrun", 16));
    assert_eq!(job.workload, Workload::Command { arguments });
    assert!(job.gang.roles[0].is_exclusive);
    let wrapped = Job::from_options(&options("wrap=hostname N=3"), vec![]).unwrap().job;
    assert_eq!(wrapped.workload, Workload::Script { text: "#!/bin/sh\nhostname\n".into() });
    assert_eq!((&wrapped.name[..], wrapped.gang.nodes()), ("wrap", 3));
    let error = Job::from_options(&options("node=2"), vec!["a".into()]).unwrap_err();
    assert_eq!(bedplate_diag::Diagnostic::help(&error).unwrap(), "did you mean `--nodes`?");
}

#[test]
fn options_beside_a_script_win_over_its_own() {
    let mut draft = Draft::from_script("#!/bin/sh\n#SBATCH -N 4 --gres=gpu:8\ntrue\n", "job.sh").unwrap();
    apply(&mut draft, "--nodes", Some("2")).unwrap();
    assert_eq!(draft.finish().unwrap().job.gang.gpus(), 16);
}

#[test]
fn names_and_letters_are_unique() {
    for (at, row) in OPTIONS.iter().enumerate() {
        for earlier in &OPTIONS[..at] {
            assert_ne!(row.name, earlier.name);
            assert!(row.letter.is_none() || row.letter != earlier.letter, "-{:?}", row.letter);
        }
    }
}

proptest! {
    #[test]
    fn no_script_makes_the_reader_panic(
        lines in prop::collection::vec("#SBATCH( --?[a-zA-Z-]{1,12}[= ]?[\"'a-z0-9:,%@\\[\\]-]{0,12}){0,3}|\\PC{0,20}", 0..8)
    ) {
        let _ = Job::from_sbatch(&format!("#!/bin/sh\n{}", lines.join("\n")), "job.sh");
    }

    #[test]
    fn no_value_makes_an_option_panic(
        at in 0..OPTIONS.len(), value in prop::option::of("[0-9]{0,12}[-:,@%+?a-zA-Z\\[\\]=|]{0,3}[0-9]{0,9}|\\PC{0,12}")
    ) {
        let mut draft = Draft::new("x", Workload::command(["x"]));
        let _ = draft.apply(OPTIONS[at].name, value.as_deref());
        if let Ok(imported) = draft.finish() {
            let _ = imported.job.flaws();
            let toml = imported.job.to_toml();
            let again = Job::from_toml(&toml, "again");
            prop_assert_eq!(again.as_ref(), Ok(&imported.job), "{}", toml);
        }
    }
}
