//! Batch scripts do the same on a cluster of ours as on a real Slurm.

#![allow(clippy::print_stdout, reason = "a test that is skipped says so")]

mod slurm_beside;

use std::collections::BTreeSet;

use slurm_beside::{Both, Facts, Told};

/// In the manner of public scripts, each named in its head with its commit.
const SCRIPTS: [(&str, &str); 11] = [
    ("megatron", include_str!("sbatch/megatron.sbatch")),
    ("megatron-fsdp", include_str!("sbatch/megatron-fsdp.sbatch")),
    ("torchtitan", include_str!("sbatch/torchtitan.sbatch")),
    ("nemo", include_str!("sbatch/nemo.sbatch")),
    ("axolotl", include_str!("sbatch/axolotl.sbatch")),
    ("deepspeed", include_str!("sbatch/deepspeed.sbatch")),
    ("nanotron", include_str!("sbatch/nanotron.sbatch")),
    ("accelerate", include_str!("sbatch/accelerate.sbatch")),
    ("srun-launcher", include_str!("sbatch/srun-launcher.sbatch")),
    ("array", include_str!("sbatch/array.sbatch")),
    ("gpt-neox", include_str!("sbatch/gpt-neox.sbatch")),
];

/// What ranks must find alike; the rest of the environment is the matter of the second test.
const ALIKE: [&str; 31] = [
    "arguments",
    "folder",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURMD_NODENAME",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NNODES",
    "SLURM_JOB_NUM_NODES",
    "SLURM_JOB_NODELIST",
    "SLURM_TASKS_PER_NODE",
    "SLURM_JOB_NAME",
    "SLURM_JOB_PARTITION",
    "SLURM_GTIDS",
    "SLURM_STEP_ID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_ARRAY_TASK_COUNT",
    "SLURM_ARRAY_TASK_MIN",
    "SLURM_ARRAY_TASK_MAX",
    "SLURM_ARRAY_TASK_STEP",
    "SLURM_GPUS_ON_NODE",
    "CUDA_VISIBLE_DEVICES",
    "NCCL_DEBUG",
    "TORCH_DIST_INIT_BARRIER",
    "GPUS_PER_NODE",
    "HEAD",
];

fn alike(told: &Told) -> Told {
    let keep = |facts: &Facts| -> Facts {
        let kept =
            facts.iter().filter(|(name, value)| ALIKE.contains(&name.as_str()) && !is_nothing(name, value));
        kept.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let processes = told.processes.iter().map(|(name, facts)| (name.clone(), keep(facts))).collect();
    Told { processes, order: told.order.clone() }
}

/// Without GPUs we say so, and Slurm says nothing.
fn is_nothing(name: &str, value: &str) -> bool {
    matches!((name, value), ("CUDA_VISIBLE_DEVICES", "") | ("SLURM_GPUS_ON_NODE", "0"))
}

#[test]
fn twelve_public_scripts_give_the_same_ranks_environment_and_order_as_on_slurm() {
    let Some(both) = Both::start() else { return };
    let mut differences = Vec::new();
    for (name, script) in SCRIPTS {
        // One of them waits for another job.
        let first = "#!/bin/sh\n#SBATCH -t 5\nsleep 0.3\necho first >> \"$FACTS/order\"\n";
        let before = (name == "gpt-neox").then_some(first);
        let mut ours = alike(&both.on_ours(name, script, before));
        let mut slurm = alike(&both.on_slurm(name, script, before));
        if name == "array" {
            // A member may start while the node of the one before it is still being tidied.
            forget_nodes(&mut ours);
            forget_nodes(&mut slurm);
        }
        assert!(!slurm.processes.is_empty(), "{name} ran nothing");
        differences.extend(compare(name, &ours, &slurm));
    }
    assert!(differences.is_empty(), "\n{}", differences.join("\n"));
    let refusal = both.refusal_of_ours("heterogeneous", include_str!("sbatch/heterogeneous.sbatch"));
    assert!(refusal.contains("heterogeneous job") && refusal.contains("job.sbatch:4"), "{refusal}");
}

fn forget_nodes(told: &mut Told) {
    for facts in told.processes.values_mut() {
        facts.retain(|name, _| !["SLURMD_NODENAME", "SLURM_JOB_NODELIST"].contains(&name.as_str()));
    }
}

fn compare(name: &str, ours: &Told, slurm: &Told) -> Vec<String> {
    let mut found = Vec::new();
    let keys: BTreeSet<&String> = ours.processes.keys().chain(slurm.processes.keys()).collect();
    for process in keys {
        let none = Facts::new();
        let (left, right) = (ours.processes.get(process), slurm.processes.get(process));
        if left.is_none() || right.is_none() {
            let who = if left.is_some() { "only ours" } else { "only Slurm" };
            found.push(format!("{name} {process}: {who} has it"));
            continue;
        }
        let (left, right) = (left.unwrap_or(&none), right.unwrap_or(&none));
        let names: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
        for variable in names.into_iter().filter(|variable| left.get(*variable) != right.get(*variable)) {
            let (left, right) = (left.get(variable), right.get(variable));
            found.push(format!("{name} {process}: {variable} is {left:?} here and {right:?} on Slurm"));
        }
    }
    if ours.order != slurm.order {
        found.push(format!("{name}: the order is {:?} here and {:?} on Slurm", ours.order, slurm.order));
    }
    found
}

/// What slurmd sets and a cluster of ours does not, and why.
const LEFT_TO_SLURM: [(&str, &str); 16] = [
    ("GPU_DEVICE_ORDINAL", "it is for GPUs of AMD, which a cluster of ours does not lease"),
    ("ROCR_VISIBLE_DEVICES", "it is for GPUs of AMD, which a cluster of ours does not lease"),
    ("ZE_AFFINITY_MASK", "it is for GPUs of Intel, which a cluster of ours does not lease"),
    ("SLURM_CONF", "there is no slurm.conf"),
    ("SLURM_NODE_ALIASES", "it is for nodes that Slurm rents by itself"),
    ("SLURM_SUBMIT_HOST", "a job may come over HTTP from anywhere"),
    ("SLURM_TASK_PID", "it is known once the process exists; `$$` says it"),
    ("SLURM_TOPOLOGY_ADDR", "`bedplate node show` tells where a node stands"),
    ("SLURM_TOPOLOGY_ADDR_PATTERN", "`bedplate node show` tells where a node stands"),
    ("SLURM_WORKING_CLUSTER", "it is the address of slurmctld"),
    ("SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0", "it is for heterogeneous jobs"),
    ("SLURM_SRUN_COMM_HOST", "it is a port of Slurm's own srun"),
    ("SLURM_SRUN_COMM_PORT", "it is a port of Slurm's own srun"),
    ("SLURM_STEP_LAUNCHER_PORT", "it is a port of Slurm's own srun"),
    ("SLURM_UMASK", "the mask of the submitter does not travel"),
    ("SRUN_DEBUG", "it is about Slurm's own srun"),
];

/// What a cluster of ours sets where this version of slurmd does not, and why.
const BEYOND_SLURM: [(&str, &str); 7] = [
    ("WORLD_SIZE", "torch.distributed reads it, and scripts for Slurm set it themselves"),
    ("SLURM_JOB_ACCOUNT", "a Slurm with accounting sets it"),
    ("SLURM_JOB_QOS", "a Slurm with accounting sets it"),
    ("SLURM_JOB_START_TIME", "Slurm sets it from version 23.02 on"),
    ("SLURM_JOB_END_TIME", "Slurm sets it from version 23.02 on"),
    ("SLURM_RESTART_COUNT", "Slurm sets it from the first restart on"),
    ("SLURM_LAUNCH_NODE_IPADDR", "Slurm sets it in steps only"),
];

/// What both set, with other values, and why.
const OTHER_VALUES: [(&str, &str); 5] = [
    ("SLURM_JOB_ID", "each counts its own jobs"),
    ("SLURM_JOBID", "each counts its own jobs"),
    ("SLURM_CLUSTER_NAME", "each has its own name"),
    ("SLURM_LAUNCH_NODE_IPADDR", "nodes of ours have addresses of their own on one machine"),
    ("SLURM_SUBMIT_DIR", "each job has a folder of its own"),
];

#[test]
fn the_environment_is_that_of_a_real_slurmd_except_for_what_is_named_here() {
    let Some(both) = Both::start() else { return };
    let script = "#!/bin/bash\n#SBATCH -N 4 --ntasks-per-node=2 --gpus-per-node=h100:2 -c 2 --array=3-9:3%1 --mem=1000 -t 10\n\
                  #SBATCH -J environment -p main\n\"$TRAINER\" batch\nsrun \"$TRAINER\" task\n";
    let ours = both.on_ours("environment", script, None);
    let slurm = both.on_slurm("environment", script, None);
    assert_eq!(ours.processes.len(), 27, "three of the array, each with a script and eight tasks");
    assert!(ours.processes.keys().eq(slurm.processes.keys()));
    let mut found = BTreeSet::new();
    for (process, theirs) in &slurm.processes {
        found.extend(differences(&ours.processes[process], theirs));
    }
    assert!(found.is_empty(), "{found:#?}");
    let names = LEFT_TO_SLURM.iter().chain(&BEYOND_SLURM).chain(&OTHER_VALUES).map(|(name, _)| *name);
    let differs = |name: &str| {
        slurm.processes.iter().any(|(process, facts)| facts.get(name) != ours.processes[process].get(name))
    };
    let idle: Vec<&str> = names.filter(|name| !differs(name)).collect();
    assert!(idle.is_empty(), "these are no exceptions any more: {idle:?}");
}

fn differences(ours: &Facts, slurm: &Facts) -> BTreeSet<String> {
    let is_in = |list: &[(&str, &str)], name: &str| list.iter().any(|(known, _)| *known == name);
    let mut found = BTreeSet::new();
    for (name, value) in slurm {
        match ours.get(name) {
            None if !is_in(&LEFT_TO_SLURM, name) => {
                found.insert(format!("Slurm alone sets {name}={value}"));
            }
            Some(own) if own != value && !is_in(&OTHER_VALUES, name) => {
                found.insert(format!("{name} is `{own}` here and `{value}` on Slurm"));
            }
            _ => {}
        }
    }
    for name in ours.keys().filter(|name| !slurm.contains_key(*name) && !is_in(&BEYOND_SLURM, name)) {
        found.insert(format!("a cluster of ours alone sets {name}"));
    }
    found
}

/// A job of every kind of option that Slurm can be given.
const JOB: &str = r#"
name = "it's one name"
command = ["sh", "-c", "RANK_SEEN=$RANK exec $TRAINER train --rank $RANK --local $LOCAL_RANK --world $WORLD_SIZE --hosts a,b"]
nodes = 2
tasks_per_node = 2
gpus_per_node = 4
accelerator = "h100"
cpus_per_task = 2
memory_per_node = "1 GiB"
exclusive = true
time_limit = "10min"
partition = "main"
nice = 5
begin = "2020-01-01T00:00:00Z"
dependencies = ["singleton"]
checkpoint_signal = { signal = "USR1", before = "2min" }
stdout = "out-%j.%t"
append = true
prolog = ["mkdir", "-p", "made"]
epilog = ["sh", "-c", "echo $SLURM_JOB_NUM_NODES > after"]
[placement]
preferred = "leaf"
avoid_nodes = ["n4"]
[environment]
NCCL_DEBUG = "WARN"
HEAD = "a,'b' \\ c"
[labels]
comment = "a word about it"
"#;

#[test]
fn a_rendered_job_file_gives_the_same_ranks_on_slurm_as_on_a_cluster_of_ours() {
    let Some(both) = Both::start() else { return };
    let mut ours = alike(&both.on_ours("rendered", JOB, None));
    let script = both.rendered(JOB);
    let mut slurm = alike(&both.on_slurm("rendered", &script, None));
    assert_eq!(slurm.processes.len(), 4, "{script}");
    // Here ranks are no step; on Slurm the prolog is step 0 and the ranks are step 1.
    for told in [&mut ours, &mut slurm] {
        let rank = |name: &String| name.rsplit('.').next().unwrap_or("").to_owned();
        let processes = std::mem::take(&mut told.processes);
        told.processes =
            processes.into_iter().map(|(name, facts)| (rank(&name), without_steps(facts))).collect();
    }
    let differences = compare("rendered", &ours, &slurm);
    assert!(differences.is_empty(), "{}\n{script}", differences.join("\n"));
}

fn without_steps(mut facts: Facts) -> Facts {
    facts.retain(|name, _| !name.starts_with("SLURM_STEP"));
    facts
}
