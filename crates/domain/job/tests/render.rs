//! Jobs become batch scripts that read back as the same jobs, except for what the remarks name.

mod arbitrary;

use bedplate_job::sbatch::{Rendered, render};
use bedplate_job::*;
use bedplate_units::Seconds;
use expect_test::{Expect, expect};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use serde_json::Value;

/// The script, then the remarks.
fn told(rendered: &Rendered) -> String {
    let remarks: Vec<String> = rendered.remarks.iter().map(|remark| format!("- {remark}\n")).collect();
    format!("{}{}", rendered.script, remarks.concat())
}

fn check(job: &str, expected: Expect) {
    let job = Job::from_toml(job, "job.toml").expect("the test writes a job file");
    assert_eq!(job.flaws(), []);
    expected.assert_eq(&told(&render(&job).expect("the job is rendered")));
}

fn refused(job: &str, expected: Expect) {
    let job = Job::from_toml(job, "job.toml").expect("the test writes a job file");
    expected.assert_eq(&render(&job).expect_err("the job is refused").to_string());
}

#[test]
fn a_command_becomes_a_script_that_tells_each_task_its_place() {
    check(
        r#"
        name = "llama-70b"
        command = ["python", "train.py", "--note", "it's 5 o'clock"]
        nodes = 16
        tasks_per_node = 8
        gpus_per_node = 8
        cpus_per_task = 12
        accelerator = "h100"
        exclusive = true
        partition = "batch"
        account = "llm"
        time_limit = "2d"
        checkpoint_signal = { signal = "USR1", before = "5min" }
        stdout = "logs/%x-%j.%t.out"
        stderr = "logs/%x-%j.err"
        prolog = ["mkdir", "-p", "/scratch/run"]
        epilog = ["rm", "-r", "/scratch/run"]
        array = "0-3%2"
        dependencies = ["afterok:17:18", "singleton"]
        retries = 3
        [placement]
        required = "leaf"
        avoid_nodes = "n[07-09]"
        features = ["efa", "nvme"]
        [environment]
        NCCL_DEBUG = "WARN"
        HOSTS = "a,b"
        "#,
        expect![[r##"
            #!/bin/bash
            #SBATCH --job-name=llama-70b
            #SBATCH --nodes=16
            #SBATCH --ntasks-per-node=8
            #SBATCH --gpus-per-node=h100:8
            #SBATCH --cpus-per-task=12
            #SBATCH --exclusive
            #SBATCH --mem=0
            #SBATCH --switches=1
            #SBATCH --constraint=efa&nvme
            #SBATCH --exclude=n[07-09]
            #SBATCH --partition=batch
            #SBATCH --account=llm
            #SBATCH --array=0-3%2
            #SBATCH --dependency=afterok:17:18,singleton
            #SBATCH --time=2-00:00:00
            #SBATCH --requeue
            #SBATCH --signal=USR1@300
            #SBATCH --error=logs/%x-%j.err
            #SBATCH --export=ALL,NCCL_DEBUG=WARN

            export SLURM_EXPORT_ENV=ALL
            export HOSTS=a,b
            trap 'srun --ntasks-per-node=1 --ntasks="$SLURM_JOB_NUM_NODES" rm -r /scratch/run' EXIT
            srun --ntasks-per-node=1 --ntasks="$SLURM_JOB_NUM_NODES" mkdir -p /scratch/run || exit
            export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
            export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
            srun --kill-on-bad-exit=1 --cpus-per-task=12 --output=logs/%x-%j.%t.out bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID NODE_RANK=$SLURM_NODEID WORLD_SIZE=$SLURM_NTASKS; exec "$@"' - \
                python train.py --note 'it'\''s 5 o'\''clock'
            - environment: HOSTS is set in the script itself, because `--export` cannot carry commas, quotations and line breaks
            - retries: Slurm does not bring back a job that failed by itself; `bedplate launch --retries` inside the job does
            - stdout: each task has a file of its own, and the command in the script that starts the tasks names it
            - prolog: `srun` in the script starts it once on each node
            - epilog: `srun` in the script starts it once on each node
        "##]],
    );
}

#[test]
fn spares_are_asked_for_and_the_job_outlives_a_node() {
    check(
        r#"
        name = "heals"
        command = ["python", "train.py"]
        nodes = 4
        tasks_per_node = 8
        gpus_per_node = 8
        retries = 2
        [health]
        spare_nodes = 1
        stuck_after = "20min"
        probe = ["check gpus"]
        "#,
        expect![[r#"
            #!/bin/bash
            #SBATCH --job-name=heals
            #SBATCH --nodes=5
            #SBATCH --ntasks-per-node=8
            #SBATCH --no-kill
            #SBATCH --gpus-per-node=8
            #SBATCH --cpus-per-task=1
            #SBATCH --requeue

            exec bedplate launch --spares 1 --ranks-per-node 8 --retries 2 --stuck-after 20min --check 'check gpus' -- \
                python train.py
            - health.spare_nodes: the job asks for 5 nodes and lives on when one is lost; `bedplate launch` keeps 1 as spares
        "#]],
    );
}

#[test]
fn a_script_stays_as_it_is_except_for_what_was_changed() {
    let script = "#!/bin/bash -l\n# Trains.\n#SBATCH -J run -N 2 --gres=gpu:h100:8,nvme:1\n#SBATCH --mail-type=END\n\
                  #SBATCH -p a,b\n#SBATCH --time=1:00:00 # an hour\n\nsrun train.sh\n";
    let imported = Job::from_sbatch(script, "run.sbatch").unwrap();
    assert_eq!(render(&imported.job).unwrap().script, script);
    let mut job = imported.job;
    job.policy.time_limit = Some(Seconds::new(7200.0));
    job.gang.roles[0].nodes = 4;
    expect![[r#"
        #!/bin/bash -l
        # Trains.
        #SBATCH --job-name=run
        #SBATCH --mail-type=END
        #SBATCH -p a,b
        #SBATCH --nodes=4
        #SBATCH --ntasks-per-node=1
        #SBATCH --gpus-per-node=h100:8
        #SBATCH --cpus-per-task=1
        #SBATCH --time=02:00:00
        #SBATCH --gres=nvme:1

        srun train.sh
    "#]]
    .assert_eq(&told(&render(&job).expect("the job is rendered")));
}

#[test]
fn a_script_without_a_name_gets_the_one_of_its_job() {
    let job = Job::from_sbatch("#!/bin/sh\ntrue\n", "scripts/nightly.sh").unwrap().job;
    assert_eq!(render(&job).unwrap().script, "#!/bin/sh\n#SBATCH --job-name=nightly.sh\ntrue\n");
}

#[test]
fn what_would_make_another_job_is_refused() {
    let smallest = "name = 'a'\ncommand = ['b']\n";
    refused(
        &format!("{smallest}[[role]]\nname = 'x'\n[[role]]\nname = 'y'\n"),
        expect![
            "`role` cannot be written for Slurm: a job of several roles is not written for Slurm; submit each role as a job of its own"
        ],
    );
    refused(
        &format!("{smallest}gpu_share = 0.5\n"),
        expect![
            "`gpu_share` cannot be written for Slurm: how GPUs are shared differs from site to site in Slurm; ask for whole GPUs"
        ],
    );
    refused(
        &format!("{smallest}[placement]\nonly_nodes = 'n[1-4]'\n"),
        expect![
            "`placement.only_nodes` cannot be written for Slurm: 4 nodes are listed for 1; Slurm takes all nodes of a list, so list exactly 1, or name the others under `avoid_nodes`"
        ],
    );
    refused(
        &format!("{smallest}nodes = 4\n[placement]\nrequired = 'spine'\n"),
        expect![
            "`placement.required` cannot be written for Slurm: Slurm has no option that keeps a job inside one spine; ask for `leaf`, or prefer it"
        ],
    );
    refused(
        &format!("{smallest}dependencies = ['afterok:first']\n"),
        expect!["`dependencies` cannot be written for Slurm: `first` is not the number of a job of Slurm"],
    );
    refused(
        &format!("{smallest}partition = \"a\\nb\"\n"),
        expect![
            "`partition` cannot be written for Slurm: it contains a line break or another control character, which no `#SBATCH` line can carry"
        ],
    );
    refused(
        "name = 'a'\nscript = \"#!/usr/bin/python3\\n\"\nprolog = ['true']\n",
        expect![
            "`prolog` cannot be written for Slurm: it would have to stand in the script, which is not one of a shell"
        ],
    );
}

/// Texts that stand on one line, and names as nodes, features and variables have them; what others get is a refusal.
fn tidied(job: &mut Job) {
    let on_one_line = |text: &mut String| *text = text.replace(|c: char| c.is_control() || c == ',', " ");
    let named = |text: &String| {
        let name: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
        format!("n{name}x")
    };
    let policy = &mut job.policy;
    let texts = [&mut policy.partition, &mut policy.account, &mut policy.qos, &mut job.working_directory];
    texts.into_iter().flatten().for_each(on_one_line);
    on_one_line(&mut job.name);
    job.labels.values_mut().for_each(on_one_line);
    let streams = &mut job.streams;
    for stream in [&mut streams.stdin, &mut streams.stdout, &mut streams.stderr] {
        stream.iter_mut().for_each(|text| *text = text.replace(|c: char| c.is_control() || c == '%', "%t"));
        *stream = stream.take().filter(|text| !text.is_empty());
    }
    for names in [&mut job.placement.avoid_nodes, &mut job.placement.features] {
        *names = names.iter().map(named).collect();
        names.sort();
        names.dedup();
    }
    job.environment.set =
        job.environment.set.iter().map(|(name, text)| (named(name), text.clone())).collect();
    if let Inherited::Only(names) = &mut job.environment.inherited {
        *names = names.iter().map(named).collect();
    }
    let kind = job.gang.roles[0].accelerator.as_mut();
    kind.into_iter().for_each(|kind| *kind = named(kind));
    if let Workload::Script { text } = &mut job.workload {
        *text = format!("#!/bin/sh\n: {}", text.replace("#SBATCH", ""));
    }
}

/// A job of a shape that Slurm can have, from one of any shape.
fn plausible(mut job: Job) -> Job {
    let mut role = job.gang.roles.pop().unwrap_or_else(|| Role::named(Role::ONLY));
    role.nodes = role.nodes % 1000 + 1;
    role.tasks_per_node = role.tasks_per_node.max(1);
    role.cpus_per_task = role.cpus_per_task.max(1);
    role.gpu_share = None;
    role.accelerator = role.accelerator.filter(|_| role.gpus_per_node > 0);
    role.elastic = None;
    job.health.spare_nodes %= 3;
    job.placement.only_nodes.clear();
    job.gang = Gang::of(role);
    if job.placement.closeness == Closeness::Any {
        job.placement.segment = None;
    }
    job.placement.segment = job.placement.segment.map(|segment| segment.max(1));
    job.policy.begin = job.policy.begin.filter(|begin| begin.unix_seconds(0.0) < 4e9);
    if job.policy.time_limit.is_some_and(|limit| limit.is_zero()) {
        job.policy.time_limit = None;
    }
    if let Some(signal) = &mut job.policy.checkpoint_signal {
        signal.signal = signal.signal.rem_euclid(64) + 1;
        signal.before = Seconds::new(signal.before.get() % 60_000.0);
    }
    if job.environment.inherited == Inherited::Only(Vec::new()) {
        job.environment.inherited = Inherited::Nothing;
    }
    tidied(&mut job);
    job
}

/// Takes a key away by its path, `health.probe`.
fn forget(value: &mut Value, path: &str) {
    match (path.split_once('.'), value) {
        (Some(("role", _)), Value::Object(object)) => drop(object.remove("role")),
        (Some((table, rest)), Value::Object(object)) => {
            let Some(inner) = object.get_mut(table) else { return };
            forget(inner, rest);
            if inner.as_object().is_some_and(|inner| inner.is_empty()) {
                object.remove(table);
            }
        }
        (None, Value::Object(object)) => drop(object.remove(path)),
        _ => {}
    }
}

/// The keys of a job without its workload and without those that remarks name.
fn comparable(job: &Job, remarks: &[Remark]) -> Value {
    let mut job = job.clone();
    job.workload = Workload::command(["…"]);
    job.gang.roles[0].name = Role::ONLY.to_owned();
    // Slurm has no pods.
    job.kubernetes = PodSettings::default();
    let mut value = job.to_json();
    for remark in remarks {
        forget(&mut value, &remark.option);
        match remark.option.as_str() {
            // They are nodes there, and the launcher on the others must not be killed.
            "health.spare_nodes" => ["nodes", "survive"].iter().for_each(|key| forget(&mut value, key)),
            "environment" => forget(&mut value, "inherit_environment"),
            // A segment lies in a level, and `preferred` comes back as what `--switches` says.
            "placement.segment" => forget(&mut value, "placement.required"),
            "labels" => forget(&mut value, "labels"),
            _ => {}
        }
    }
    if job.health.spare_nodes > 0 || remarks.iter().any(|remark| remark.option == "health.spare_nodes") {
        for key in ["retries", "health.stuck_after", "health.probe", "health.probe_every"] {
            forget(&mut value, key);
        }
    }
    if remarks.iter().any(|remark| remark.option == "health.probe") {
        forget(&mut value, "health.probe_every");
    }
    value
}

/// The script without its options and without what is written before the user's part.
fn ends_with_the_users_part(rendered: &str, job: &Job) {
    let Workload::Script { text } = &job.workload else { return };
    let body: Vec<&str> = text.lines().filter(|line| !line.starts_with("#!")).collect();
    let found: Vec<&str> = rendered.lines().collect();
    assert!(found.ends_with(&body), "{rendered:?} does not end with {body:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_rendered_job_reads_back_as_the_same_job(job in arbitrary::job()) {
        let job = plausible(job);
        let Ok(rendered) = render(&job) else { return Ok(()) };
        let back = Job::from_sbatch(&rendered.script, "job.sbatch").unwrap().job;
        prop_assert_eq!(comparable(&back, &rendered.remarks), comparable(&job, &rendered.remarks), "{}", told(&rendered));
        ends_with_the_users_part(&rendered.script, &job);
    }

    #[test]
    fn the_options_of_a_rendered_job_say_the_same_as_its_script(job in arbitrary::job()) {
        let Ok(rendered) = render(&plausible(job)) else { return Ok(()) };
        let from_script = Job::from_sbatch(&rendered.script, "job.sbatch").unwrap();
        let from_options = Job::from_options(&rendered.options, vec!["true".into()]).unwrap();
        let bare = |job: Job| Job { workload: Workload::command(["…"]), ..job };
        prop_assert_eq!(bare(from_script.job), bare(from_options.job));
    }

    #[test]
    fn rendering_never_panics_and_a_rendered_script_renders_to_itself(job in arbitrary::job()) {
        let Ok(rendered) = render(&job) else { return Ok(()) };
        let back = Job::from_sbatch(&rendered.script, "job.sbatch");
        if let Ok(back) = back && let Ok(again) = render(&back.job) {
            prop_assert_eq!(again.script, rendered.script);
        }
    }
}

#[test]
fn most_plausible_jobs_are_rendered() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut jobs = (0..500).map(|_| plausible(arbitrary::job().new_tree(&mut runner).unwrap().current()));
    let refusals: Vec<String> =
        jobs.by_ref().filter_map(|job| Some(render(&job).err()?.to_string())).collect();
    let is_level = |refusal: &&String| refusal.contains("`placement.required`");
    let others: Vec<&String> = refusals.iter().filter(|refusal| !is_level(refusal)).collect();
    assert!(others.is_empty(), "{others:#?}");
    assert!(refusals.len() < 200, "{}", refusals.len());
}
