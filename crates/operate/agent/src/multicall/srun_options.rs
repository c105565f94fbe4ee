//! The command line of `srun`: what training scripts pass, which of it has an effect here, and what is refused.

use bedplate_diag::nearest;

/// What an `srun` was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SrunOptions {
    pub(super) nodes: Option<u32>,
    pub(super) tasks: Option<u32>,
    pub(super) tasks_per_node: Option<u32>,
    pub(super) node_list: Option<String>,
    pub(super) labels: bool,
    pub(super) kill_on_bad_exit: bool,
    pub(super) export: Option<String>,
    pub(super) directory: Option<String>,
    pub(super) output: Option<String>,
    pub(super) error: Option<String>,
    pub(super) command: Vec<String>,
}

/// An option as Slurm spells it: its letter, its word, whether a value follows, and what becomes of it.
struct Known(Option<char>, &'static str, Value, Fate);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    None,
    Required,
    /// Only behind `=`, or right behind the letter.
    Optional,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Honoured,
    /// Said by the lease already, or of no effect on what a task does.
    Passed,
    Refused(&'static str),
}

use Fate::{Honoured, Passed, Refused};
use Value::{None as Nothing, Optional, Required};

const CONTAINERS: &str =
    "tasks run as the job does; start the container in the command itself (docker, enroot, apptainer)";

const KNOWN: &[Known] = &[
    Known(Some('N'), "nodes", Required, Honoured),
    Known(Some('n'), "ntasks", Required, Honoured),
    Known(None, "ntasks-per-node", Required, Honoured),
    Known(Some('w'), "nodelist", Required, Honoured),
    Known(Some('l'), "label", Nothing, Honoured),
    Known(Some('K'), "kill-on-bad-exit", Optional, Honoured),
    Known(None, "export", Required, Honoured),
    Known(Some('D'), "chdir", Required, Honoured),
    Known(Some('o'), "output", Required, Honoured),
    Known(Some('e'), "error", Required, Honoured),
    Known(Some('c'), "cpus-per-task", Required, Passed),
    Known(Some('G'), "gpus", Required, Passed),
    Known(None, "gpus-per-node", Required, Passed),
    Known(None, "gpus-per-task", Required, Passed),
    Known(None, "gpus-per-socket", Required, Passed),
    Known(None, "gpu-bind", Required, Passed),
    Known(None, "gres", Required, Passed),
    Known(None, "gres-flags", Required, Passed),
    Known(None, "tres-per-task", Required, Passed),
    Known(None, "cpu-bind", Required, Passed),
    Known(None, "cpu_bind", Required, Passed),
    Known(None, "mem-bind", Required, Passed),
    Known(None, "accel-bind", Required, Passed),
    Known(None, "mpi", Required, Passed),
    Known(None, "mem", Required, Passed),
    Known(None, "mem-per-cpu", Required, Passed),
    Known(None, "mem-per-gpu", Required, Passed),
    Known(Some('t'), "time", Required, Passed),
    Known(Some('J'), "job-name", Required, Passed),
    Known(Some('p'), "partition", Required, Passed),
    Known(Some('A'), "account", Required, Passed),
    Known(Some('q'), "qos", Required, Passed),
    Known(Some('C'), "constraint", Required, Passed),
    Known(Some('m'), "distribution", Required, Passed),
    Known(Some('B'), "extra-node-info", Required, Passed),
    Known(None, "hint", Required, Passed),
    Known(None, "threads-per-core", Required, Passed),
    Known(None, "cores-per-socket", Required, Passed),
    Known(None, "sockets-per-node", Required, Passed),
    Known(None, "network", Required, Passed),
    Known(None, "comment", Required, Passed),
    Known(Some('W'), "wait", Required, Passed),
    Known(None, "slurmd-debug", Required, Passed),
    Known(None, "jobid", Required, Passed),
    Known(None, "open-mode", Required, Passed),
    Known(None, "profile", Required, Passed),
    Known(None, "propagate", Optional, Passed),
    Known(None, "exclusive", Optional, Passed),
    Known(None, "exact", Nothing, Passed),
    Known(None, "overlap", Nothing, Passed),
    Known(Some('O'), "overcommit", Nothing, Passed),
    Known(Some('s'), "oversubscribe", Nothing, Passed),
    Known(Some('u'), "unbuffered", Nothing, Passed),
    Known(Some('k'), "no-kill", Optional, Passed),
    Known(Some('E'), "preserve-env", Nothing, Passed),
    Known(Some('v'), "verbose", Nothing, Passed),
    Known(Some('Q'), "quiet", Nothing, Passed),
    Known(Some('X'), "disable-status", Nothing, Passed),
    Known(None, "treewidth", Required, Passed),
    Known(None, "cpu-freq", Required, Passed),
    Known(None, "container", Required, Refused(CONTAINERS)),
    Known(None, "container-image", Required, Refused(CONTAINERS)),
    Known(None, "container-name", Required, Refused(CONTAINERS)),
    Known(None, "container-mounts", Required, Refused(CONTAINERS)),
    Known(None, "container-workdir", Required, Refused(CONTAINERS)),
    Known(None, "container-env", Required, Refused(CONTAINERS)),
    Known(None, "container-save", Required, Refused(CONTAINERS)),
    Known(None, "container-writable", Nothing, Refused(CONTAINERS)),
    Known(None, "container-readonly", Nothing, Refused(CONTAINERS)),
    Known(None, "container-remap-root", Nothing, Refused(CONTAINERS)),
    Known(None, "no-container-remap-root", Nothing, Refused(CONTAINERS)),
    Known(None, "container-mount-home", Nothing, Refused(CONTAINERS)),
    Known(None, "no-container-mount-home", Nothing, Refused(CONTAINERS)),
    Known(None, "container-entrypoint", Nothing, Refused(CONTAINERS)),
    Known(None, "no-container-entrypoint", Nothing, Refused(CONTAINERS)),
    Known(None, "pty", Optional, Refused("tasks have no terminal; use `bedplate job attach`")),
    Known(None, "multi-prog", Nothing, Refused("all tasks of a step run the same command")),
    Known(None, "het-group", Required, Refused("a job has one gang")),
    Known(Some('x'), "exclude", Required, Refused("name the nodes that are wanted with -w")),
    Known(Some('r'), "relative", Required, Refused("name the nodes that are wanted with -w")),
    Known(
        Some('i'),
        "input",
        Required,
        Refused("tasks have no standard input; let the command read the file"),
    ),
    Known(Some('d'), "dependency", Required, Refused("steps run when they are called")),
];

/// Reads the words behind `srun`.
pub(super) fn parse(words: &[String]) -> Result<SrunOptions, String> {
    let mut options = SrunOptions::default();
    let mut rest = words;
    while let [word, behind @ ..] = rest {
        if word == "--" {
            rest = behind;
            break;
        }
        if !word.starts_with('-') || word == "-" {
            break;
        }
        let found = match word.strip_prefix("--") {
            Some(long) => read_long(long, behind)?,
            None => read_short(&word[1..], behind)?,
        };
        for (name, value) in &found.settings {
            set(&mut options, name, value)?;
        }
        rest = &behind[found.words..];
    }
    options.command = rest.to_vec();
    if options.command.is_empty() {
        return Err("no command was given".to_owned());
    }
    Ok(options)
}

/// Options of one word, and how many words behind it they took.
struct Found {
    settings: Vec<(&'static str, String)>,
    words: usize,
}

fn read_long(long: &str, behind: &[String]) -> Result<Found, String> {
    let (name, attached) = match long.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (long, None),
    };
    let Some(known) = KNOWN.iter().find(|known| known.1 == name) else {
        let near = nearest(name, KNOWN.iter().map(|known| known.1));
        let hint = near.map_or(String::new(), |near| format!("; did you mean `--{near}`?"));
        return Err(format!("unknown option `--{name}`{hint}"));
    };
    refuse(known)?;
    let takes_next = known.2 == Required && attached.is_none();
    let value = match takes_next {
        true => behind.first().cloned().ok_or_else(|| format!("`--{name}` needs a value"))?,
        false => attached.unwrap_or_default(),
    };
    Ok(Found { settings: vec![(known.1, value)], words: usize::from(takes_next) })
}

/// Letters without values may stand together: `-lu`.
fn read_short(letters: &str, behind: &[String]) -> Result<Found, String> {
    let mut settings = Vec::new();
    for (at, letter) in letters.char_indices() {
        let known = KNOWN.iter().find(|known| known.0 == Some(letter));
        let known = known.ok_or_else(|| format!("unknown option `-{letter}`"))?;
        refuse(known)?;
        let attached = letters[at + letter.len_utf8()..].trim_start_matches('=');
        match known.2 {
            Nothing => settings.push((known.1, String::new())),
            Required if attached.is_empty() => {
                let value = behind.first().cloned().ok_or_else(|| format!("`-{letter}` needs a value"))?;
                settings.push((known.1, value));
                return Ok(Found { settings, words: 1 });
            }
            Required | Optional => {
                settings.push((known.1, attached.to_owned()));
                return Ok(Found { settings, words: 0 });
            }
        }
    }
    Ok(Found { settings, words: 0 })
}

fn refuse(known: &Known) -> Result<(), String> {
    match known.3 {
        Refused(why) => Err(format!("`--{}` cannot be honoured: {why}", known.1)),
        Honoured | Passed => Ok(()),
    }
}

fn set(options: &mut SrunOptions, name: &str, value: &str) -> Result<(), String> {
    let count = || count(name, value).map(Some);
    match name {
        "nodes" => options.nodes = count()?,
        "ntasks" => options.tasks = count()?,
        "ntasks-per-node" => options.tasks_per_node = count()?,
        "nodelist" => options.node_list = Some(value.to_owned()),
        "label" => options.labels = true,
        "kill-on-bad-exit" => options.kill_on_bad_exit = value != "0",
        "export" => options.export = Some(value.to_owned()),
        "chdir" => options.directory = Some(value.to_owned()),
        "output" => options.output = Some(value.to_owned()),
        "error" => options.error = Some(value.to_owned()),
        _ => {}
    }
    Ok(())
}

/// Of a range `2-4` of nodes the least is taken: the size of the gang is already fixed.
fn count(name: &str, value: &str) -> Result<u32, String> {
    let first = value.split('-').next().unwrap_or(value);
    let number = first.parse().ok().filter(|count| *count > 0);
    number.ok_or_else(|| format!("`--{name}` needs a count, not `{value}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<SrunOptions, String> {
        parse(&line.split(' ').map(str::to_owned).collect::<Vec<String>>())
    }

    #[test]
    fn what_training_scripts_pass_is_understood() {
        let command = vec!["torchrun".to_owned(), "--nnodes".to_owned(), "2".to_owned()];
        let plain = SrunOptions { command: command.clone(), ..SrunOptions::default() };
        for (line, expected) in [
            ("torchrun --nnodes 2", plain.clone()),
            (
                "-N2 -n 16 torchrun --nnodes 2",
                SrunOptions { nodes: Some(2), tasks: Some(16), ..plain.clone() },
            ),
            (
                "--nodes=1 --ntasks=1 -w n1 torchrun --nnodes 2",
                SrunOptions {
                    nodes: Some(1),
                    tasks: Some(1),
                    node_list: Some("n1".to_owned()),
                    ..plain.clone()
                },
            ),
            (
                "-lu -K1 --ntasks-per-node 8 -- torchrun --nnodes 2",
                SrunOptions {
                    labels: true,
                    kill_on_bad_exit: true,
                    tasks_per_node: Some(8),
                    ..plain.clone()
                },
            ),
            (
                "--kill-on-bad-exit=0 --export=ALL,A=b --chdir /x -o out-%t torchrun --nnodes 2",
                SrunOptions {
                    export: Some("ALL,A=b".to_owned()),
                    directory: Some("/x".to_owned()),
                    output: Some("out-%t".to_owned()),
                    ..plain.clone()
                },
            ),
            (
                "--cpu-bind=none --mpi=pmix --gres=gpu:8 --exclusive --overlap --mem=0 -c 12 -G8 torchrun --nnodes 2",
                plain.clone(),
            ),
        ] {
            assert_eq!(read(line), Ok(expected), "{line}");
        }
    }

    #[test]
    fn what_cannot_be_honoured_is_named() {
        for (line, told) in [
            (
                "--container-image=nvcr.io/x python",
                "`--container-image` cannot be honoured: tasks run as the job does",
            ),
            ("--pty bash", "`--pty` cannot be honoured"),
            ("--nodez=2 a", "unknown option `--nodez`; did you mean `--nodes`?"),
            ("-Z a", "unknown option `-Z`"),
            ("-n x a", "`--ntasks` needs a count, not `x`"),
            ("-n", "`-n` needs a value"),
            ("-l", "no command was given"),
        ] {
            let complaint = read(line).unwrap_err();
            assert!(complaint.starts_with(told), "{line}: {complaint}");
        }
    }
}
