//! The one table of sbatch's options.

use bedplate_diag::nearest;

use super::draft::Draft;
use super::setters::*;
use crate::{JobError, NotationError};

/// An option of sbatch, and what becomes of it.
#[derive(Debug, Clone, Copy)]
pub struct SbatchOption {
    pub name: &'static str,
    pub letter: Option<char>,
    pub takes: Takes,
    /// What it does here, or, where it is not honoured, what happens instead.
    pub meaning: &'static str,
    pub(super) effect: Effect,
}

impl SbatchOption {
    /// Whether it does anything, at least for some of its values.
    pub fn is_honoured(&self) -> bool {
        matches!(self.effect, Effect::Set(_))
    }
}

/// Whether an option has a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    Nothing,
    Value,
    /// Only behind an equals sign.
    Perhaps,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Effect {
    Set(fn(&mut Draft, &str) -> Result<(), String>),
    /// Known and not honoured: the meaning is the remark.
    Remark,
}

/// The option of a long name or a letter.
pub(super) fn find(name: &str) -> Result<&'static SbatchOption, JobError> {
    let mut characters = name.chars();
    let letter = characters.next().filter(|_| characters.next().is_none());
    let is_it = |row: &&SbatchOption| match letter {
        Some(letter) => row.letter == Some(letter),
        None => row.name == name,
    };
    OPTIONS
        .iter()
        .find(is_it)
        .ok_or_else(|| unknown(name, format!("{}{name}", if letter.is_some() { "-" } else { "--" })))
}

pub(super) fn unknown(name: &str, spelled: String) -> JobError {
    let near = nearest(name.trim_start_matches('-'), OPTIONS.iter().map(|row| row.name));
    let option = format!("`{}`", NotationError::shown(&spelled));
    JobError::UnknownOption { option, near: near.map(str::to_owned), place: None }
}

type Setter = fn(&mut Draft, &str) -> Result<(), String>;

const fn set(name: &'static str, letter: char, set: Setter, meaning: &'static str) -> SbatchOption {
    SbatchOption { letter: Some(letter), ..long(name, set, meaning) }
}

const fn long(name: &'static str, set: Setter, meaning: &'static str) -> SbatchOption {
    SbatchOption { name, letter: None, takes: Takes::Value, meaning, effect: Effect::Set(set) }
}

const fn flag(name: &'static str, set: Setter, meaning: &'static str) -> SbatchOption {
    SbatchOption { name, letter: None, takes: Takes::Nothing, meaning, effect: Effect::Set(set) }
}

const fn idle(name: &'static str, takes: Takes, meaning: &'static str) -> SbatchOption {
    SbatchOption { name, letter: None, takes, meaning, effect: Effect::Remark }
}

const fn with(letter: char, row: SbatchOption) -> SbatchOption {
    SbatchOption { letter: Some(letter), ..row }
}

const fn perhaps(row: SbatchOption) -> SbatchOption {
    SbatchOption { takes: Takes::Perhaps, ..row }
}

use Takes::{Nothing, Perhaps, Value};

const DEVICES: &str = "not honoured; a job gets its devices whole and its processes bind themselves";
const CHIP: &str = "not honoured; CPUs are counted and not chosen by socket, core or thread";
const MAIL: &str = "not honoured; no mail is sent, watch with `bedplate job show`";
const CLIENT: &str = "not honoured; it is about sbatch itself and changes nothing in the job";
const SITE: &str = "not honoured; it is left out, because this cluster has no such thing";
const CONTAINER: &str =
    "not honoured here, and passed on to Slurm with pyxis; start the container in the script";
const FOREVER: &str = "not honoured; it is left out, and the job waits for as long as it takes";

/// Every option, honoured ones first.
pub const OPTIONS: &[SbatchOption] = &[
    set("nodes", 'N', nodes, "`nodes`; of a range the smaller number, with a remark"),
    set("ntasks", 'n', tasks, "tasks of all nodes together; `tasks_per_node` after division"),
    long("ntasks-per-node", tasks_per_node, "`tasks_per_node`"),
    long("ntasks-per-gpu", tasks_per_gpu, "`tasks_per_node` as a multiple of the GPUs"),
    set(
        "gpus",
        'G',
        gpus,
        "GPUs of all nodes together; `gpus_per_node` after division; without `--nodes` 8 on each node",
    ),
    long("gpus-per-node", gpus_per_node, "`gpus_per_node` and `accelerator`"),
    long("gpus-per-task", gpus_per_task, "`gpus_per_node` as a multiple of the tasks"),
    long("gres", gres, "`gpu:N` and `gpu:TYPE:N` as `--gpus-per-node`; others are left out with a remark"),
    set("cpus-per-task", 'c', cpus_per_task, "`cpus_per_task`"),
    long("cpus-per-gpu", cpus_per_gpu, "`cpus_per_task` as a share of those of the GPUs"),
    long(
        "mem",
        memory,
        "`memory_per_node`; 0, all memory of the node, only with `--exclusive`, otherwise a remark",
    ),
    long("mem-per-cpu", memory_per_cpu, "`memory_per_node` as a multiple of the CPUs"),
    long("mem-per-gpu", memory_per_gpu, "`memory_per_node` as a multiple of the GPUs"),
    perhaps(flag("exclusive", exclusive, "`exclusive`; `user`, `mcs` and `topo` with a remark")),
    set("time", 't', time, "`time_limit`; 0 and UNLIMITED leave it to the site, with a remark"),
    set("partition", 'p', partition, "`partition`; the first of several, with a remark"),
    set("account", 'A', account, "`account`"),
    set("qos", 'q', qos, "`qos`"),
    long("priority", priority, "`priority`; TOP with a remark"),
    perhaps(flag("nice", nice, "`nice`; 100 without a value")),
    with('H', flag("hold", hold, "`hold`")),
    set(
        "begin",
        'b',
        begin,
        "`begin`: `now+2hours`, or a date and time, which is UTC unless it says otherwise",
    ),
    set("array", 'a', array, "`array`"),
    set(
        "dependency",
        'd',
        dependency,
        "`dependencies`; `?` (any of them) is taken as all of them, and `aftercorr` as `afterok`, with a remark; `after` is an error",
    ),
    set(
        "constraint",
        'C',
        constraint,
        "`features`; with `|`, `[]`, `*` or `()` it is left out with a remark",
    ),
    long(
        "switches",
        switches,
        "`required = \"leaf\"`; `preferred` with a time; more than 1 is `preferred = \"spine\"`, with a remark",
    ),
    long("segment", segment, "`segment`, with `required = \"domain\"` unless another level is asked for"),
    set(
        "nodelist",
        'w',
        nodelist,
        "`only_nodes`; left out with a remark where it lists fewer nodes than are asked for",
    ),
    set("exclude", 'x', exclude, "`avoid_nodes`"),
    flag("spread-job", spread, "`spread = \"leaf\"`"),
    flag("requeue", requeue, "`requeue = true`"),
    flag("no-requeue", no_requeue, "`requeue = false`"),
    with('k', perhaps(flag("no-kill", no_kill, "`survive = true`; with `off` `survive = false`"))),
    long(
        "signal",
        signal,
        "`checkpoint_signal`; `B:` sends it to the script; `R:` is left out with a remark",
    ),
    set("input", 'i', input, "`stdin`"),
    set("output", 'o', output, "`stdout`"),
    set("error", 'e', error, "`stderr`"),
    long("open-mode", open_mode, "`append`"),
    set("chdir", 'D', chdir, "`working_directory`"),
    long("export", export, "`inherit_environment` and `environment`"),
    set("job-name", 'J', job_name, "`name`"),
    long("comment", comment, "the label `comment`"),
    long("wrap", wrap, "a script of this one line; not inside a script"),
    idle("mail-type", Value, MAIL),
    idle("mail-user", Value, MAIL),
    idle("time-min", Value, "not honoured; the job gets its whole `--time`"),
    idle("deadline", Value, FOREVER),
    idle("reservation", Value, SITE),
    with('L', idle("licenses", Value, SITE)),
    idle("wckey", Value, SITE),
    with('M', idle("clusters", Value, SITE)),
    idle("cluster-constraint", Value, SITE),
    idle("bb", Value, SITE),
    idle("bbf", Value, SITE),
    idle("mcs-label", Value, SITE),
    idle("power", Value, SITE),
    idle("network", Value, SITE),
    idle("prefer", Value, "not honoured; the features are not preferred, any node will do"),
    with(
        's',
        perhaps(idle("oversubscribe", Perhaps, "not honoured; CPUs and GPUs are not shared with other jobs")),
    ),
    with('O', idle("overcommit", Nothing, "not honoured; every task gets its CPUs")),
    idle(
        "kill-on-invalid-dep",
        Value,
        "not honoured; a job that can never start stays in the queue and says so",
    ),
    idle("contiguous", Nothing, "not honoured; nodes are chosen by their switches, see `--switches`"),
    idle("use-min-nodes", Nothing, "not needed; the number of nodes is fixed"),
    idle("tmp", Value, "not honoured; free disk space is not looked at"),
    idle("reboot", Nothing, "not honoured; nodes are not rebooted"),
    idle("delay-boot", Value, "not honoured; nodes are not rebooted"),
    idle("x11", Perhaps, "not honoured; no display is forwarded"),
    idle("container", Value, "not honoured; start the container in the script"),
    idle("container-id", Value, "not honoured; start the container in the script"),
    idle("container-image", Value, CONTAINER),
    idle("container-mounts", Value, CONTAINER),
    idle("container-workdir", Value, CONTAINER),
    idle("container-name", Value, CONTAINER),
    idle("container-save", Value, CONTAINER),
    idle("container-env", Value, CONTAINER),
    idle("container-mount-home", Nothing, CONTAINER),
    idle("no-container-mount-home", Nothing, CONTAINER),
    idle("container-remap-root", Nothing, CONTAINER),
    idle("no-container-remap-root", Nothing, CONTAINER),
    idle("container-entrypoint", Nothing, CONTAINER),
    idle("no-container-entrypoint", Nothing, CONTAINER),
    idle("container-entrypoint-log", Nothing, CONTAINER),
    idle("container-writable", Nothing, CONTAINER),
    idle("container-readonly", Nothing, CONTAINER),
    idle("get-user-env", Perhaps, "not honoured; the variables are those of the submission"),
    idle("export-file", Value, "not honoured; name the variables with `--export`"),
    idle("propagate", Perhaps, "not honoured; the limits are those of the agent"),
    idle("acctg-freq", Value, "not honoured; usage is sampled as the cluster does"),
    idle("profile", Value, "not honoured; usage is sampled as the cluster does"),
    idle("gpu-bind", Value, DEVICES),
    idle("gpu-freq", Value, DEVICES),
    idle("gres-flags", Value, DEVICES),
    idle("gpus-per-socket", Value, "not honoured; use `--gpus-per-node`"),
    idle("tres-bind", Value, DEVICES),
    idle("tres-per-task", Value, "not honoured; use `--gpus-per-task` and `--cpus-per-task`"),
    with('B', idle("extra-node-info", Value, CHIP)),
    with('S', idle("core-spec", Value, CHIP)),
    idle("thread-spec", Value, CHIP),
    idle("sockets-per-node", Value, CHIP),
    idle("cores-per-socket", Value, CHIP),
    idle("threads-per-core", Value, CHIP),
    idle("ntasks-per-core", Value, CHIP),
    idle("ntasks-per-socket", Value, CHIP),
    idle("mincpus", Value, CHIP),
    idle("hint", Value, CHIP),
    idle("cpu-freq", Value, CHIP),
    idle("mem-bind", Value, CHIP),
    with('m', idle("distribution", Value, "not honoured; tasks are numbered node by node, as `block` does")),
    with('F', idle("nodefile", Value, "not honoured; list the nodes with `--nodelist`")),
    idle("oom-kill-step", Perhaps, "not honoured; a task that is out of memory ends its job"),
    idle("resv-ports", Perhaps, SITE),
    idle("stepmgr", Nothing, CLIENT),
    idle("extra", Value, CLIENT),
    idle("gid", Value, "not honoured; the agent decides whose rights a job has"),
    idle("uid", Value, "not honoured; the agent decides whose rights a job has"),
    idle("ignore-pbs", Nothing, CLIENT),
    idle("parsable", Nothing, CLIENT),
    with('Q', idle("quiet", Nothing, CLIENT)),
    with('v', idle("verbose", Nothing, CLIENT)),
    with('W', idle("wait", Nothing, "not honoured in a script; use `bedplate submit --wait`")),
    idle("test-only", Nothing, "not honoured; the job is submitted"),
];
