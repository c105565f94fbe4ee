//! What each honoured option does. A setter returns the reason for which a value cannot be used.

use bedplate_topology::{Level, expand_hostlist};
use bedplate_units::Seconds;

use super::draft::{Draft, Memory};
use crate::begin::Calendar;
use crate::notation::{slurm_size, slurm_time};
use crate::{Begin, CheckpointSignal, Closeness, Inherited, NotationError, Receiver, Workload};

type Set = Result<(), String>;

fn number(text: &str) -> Result<u32, String> {
    let shown = NotationError::shown(text);
    text.trim().parse().map_err(|_| format!("`{shown}` is not a whole number up to {}", u32::MAX))
}

fn positive(text: &str) -> Result<u32, String> {
    match number(text)? {
        0 => Err("it must be at least 1".into()),
        number => Ok(number),
    }
}

fn text_of(error: NotationError) -> String {
    error.to_string()
}

pub(super) fn nodes(draft: &mut Draft, value: &str) -> Set {
    let least = positive(value.split(['-', ',', ':']).next().unwrap_or(value))?;
    draft.asked.nodes = Some(least);
    if value.contains(['-', ',', ':']) {
        let shown = NotationError::shown(value);
        draft.remark(format!("the choice of {shown} nodes is not honoured; the job gets {least}"));
    }
    Ok(())
}

pub(super) fn tasks(draft: &mut Draft, value: &str) -> Set {
    draft.asked.tasks = Some(positive(value)?);
    Ok(())
}

pub(super) fn tasks_per_node(draft: &mut Draft, value: &str) -> Set {
    draft.asked.tasks_per_node = Some(positive(value)?);
    Ok(())
}

pub(super) fn tasks_per_gpu(draft: &mut Draft, value: &str) -> Set {
    draft.asked.tasks_per_gpu = Some(positive(value)?);
    Ok(())
}

/// `8`, `h100:8`; what Slurm writes behind in brackets is about sockets.
fn gpu_count(draft: &mut Draft, value: &str) -> Result<u32, String> {
    let value = value.split('(').next().unwrap_or(value);
    if value.contains(',') {
        return Err(
            "GPUs of several kinds in one job are written as a job file with a `[[role]]` for each".into()
        );
    }
    match value.split_once(':') {
        Some((kind, count)) => {
            draft.asked.accelerator = Some(kind.to_owned());
            number(count)
        }
        None => number(value),
    }
}

pub(super) fn gpus(draft: &mut Draft, value: &str) -> Set {
    draft.asked.gpus = Some(gpu_count(draft, value)?);
    Ok(())
}

pub(super) fn gpus_per_node(draft: &mut Draft, value: &str) -> Set {
    draft.asked.gpus_per_node = Some(gpu_count(draft, value)?);
    Ok(())
}

pub(super) fn gpus_per_task(draft: &mut Draft, value: &str) -> Set {
    draft.asked.gpus_per_task = Some(gpu_count(draft, value)?);
    Ok(())
}

pub(super) fn gres(draft: &mut Draft, value: &str) -> Set {
    let mut gpus = None;
    for item in value.split(',').map(str::trim) {
        let item = item.strip_prefix("gres/").or_else(|| item.strip_prefix("gres:")).unwrap_or(item);
        match item.split_once([':', '=']) {
            None if item == "gpu" => gpus = Some(1),
            Some(("gpu", rest)) => {
                if gpus.is_some() {
                    return Err("GPUs of several kinds in one job are written as a job file with a `[[role]]` for each".into());
                }
                gpus = Some(gres_count(draft, rest)?);
            }
            _ if item == "none" || item.is_empty() => {}
            _ => {
                let shown = NotationError::shown(item);
                draft.remark(format!("`{shown}` is not honoured and left out; only GPUs are counted"));
            }
        }
    }
    draft.asked.gpus_per_node = gpus.or(draft.asked.gpus_per_node);
    Ok(())
}

/// What stands behind `gpu:`: a count, a type, or both.
fn gres_count(draft: &mut Draft, rest: &str) -> Result<u32, String> {
    if rest.contains(':') || rest.starts_with(|c: char| c.is_ascii_digit()) {
        return gpu_count(draft, rest);
    }
    draft.asked.accelerator = Some(rest.to_owned());
    Ok(1)
}

pub(super) fn cpus_per_task(draft: &mut Draft, value: &str) -> Set {
    draft.asked.cpus_per_task = Some(positive(value)?);
    Ok(())
}

pub(super) fn cpus_per_gpu(draft: &mut Draft, value: &str) -> Set {
    draft.asked.cpus_per_gpu = Some(positive(value)?);
    Ok(())
}

pub(super) fn memory(draft: &mut Draft, value: &str) -> Set {
    let size = slurm_size(value).map_err(text_of)?;
    draft.asked.memory = Some(if size.is_zero() { Memory::Whole } else { Memory::PerNode(size) });
    Ok(())
}

pub(super) fn memory_per_cpu(draft: &mut Draft, value: &str) -> Set {
    draft.asked.memory = Some(Memory::PerCpu(slurm_size(value).map_err(text_of)?));
    Ok(())
}

pub(super) fn memory_per_gpu(draft: &mut Draft, value: &str) -> Set {
    draft.asked.memory = Some(Memory::PerGpu(slurm_size(value).map_err(text_of)?));
    Ok(())
}

pub(super) fn exclusive(draft: &mut Draft, value: &str) -> Set {
    match value {
        "" => {}
        "user" | "mcs" | "topo" => {
            draft.remark(format!("`{value}` is not honoured; the nodes are exclusive to this job"));
        }
        _ => return Err(format!("`{}` is not user, mcs or topo", NotationError::shown(value))),
    }
    draft.asked.is_exclusive = true;
    Ok(())
}

pub(super) fn time(draft: &mut Draft, value: &str) -> Set {
    let is_endless = ["unlimited", "infinite"].contains(&value.to_ascii_lowercase().as_str());
    let limit = if is_endless { Seconds::ZERO } else { slurm_time(value).map_err(text_of)? };
    draft.job.policy.time_limit = (!limit.is_zero()).then_some(limit);
    if limit.is_zero() {
        draft.remark("a job without a time limit is not honoured; it gets the default limit of the cluster");
    }
    Ok(())
}

pub(super) fn partition(draft: &mut Draft, value: &str) -> Set {
    let mut names = value.split(',');
    let first = names.next().unwrap_or(value);
    if names.next().is_some() {
        draft.remark(format!(
            "a choice of partitions is not honoured; the job waits in `{}`",
            NotationError::shown(first)
        ));
    }
    draft.job.policy.partition = Some(first.to_owned());
    Ok(())
}

pub(super) fn account(draft: &mut Draft, value: &str) -> Set {
    draft.job.policy.account = Some(value.to_owned());
    Ok(())
}

pub(super) fn qos(draft: &mut Draft, value: &str) -> Set {
    draft.job.policy.qos = Some(value.to_owned());
    Ok(())
}

pub(super) fn priority(draft: &mut Draft, value: &str) -> Set {
    if value.eq_ignore_ascii_case("top") {
        draft.remark("TOP is not honoured; give a number");
        return Ok(());
    }
    draft.job.policy.priority = number(value)?.into();
    Ok(())
}

pub(super) fn nice(draft: &mut Draft, value: &str) -> Set {
    let shown = NotationError::shown(value);
    draft.job.policy.nice = match value {
        "" => 100,
        _ => value.parse().map_err(|_| format!("`{shown}` is not a whole number"))?,
    };
    Ok(())
}

pub(super) fn hold(draft: &mut Draft, _: &str) -> Set {
    draft.job.policy.is_held = true;
    Ok(())
}

pub(super) fn begin(draft: &mut Draft, value: &str) -> Set {
    let begin = match value.strip_prefix("now") {
        Some("") => None,
        Some(wait) => Some(Begin::After(wait_after_now(wait)?)),
        None if value.starts_with("uts") => Some(Begin::At { unix_seconds: seconds_since_1970(value)? }),
        None => {
            let shown = NotationError::shown(value);
            let Calendar { begin, has_zone } = Begin::from_calendar(value).ok_or_else(|| {
                format!("`{shown}` is neither `now+2hours` nor a date such as `2026-11-16T02:00:00`")
            })?;
            if !has_zone {
                draft.remark(format!("the time has no zone and is taken as {begin}, in UTC"));
            }
            Some(begin)
        }
    };
    draft.job.policy.begin = begin;
    Ok(())
}

/// `uts1794794400`: seconds since 1970, the one notation of sbatch that no time zone changes.
fn seconds_since_1970(text: &str) -> Result<u64, String> {
    let shown = NotationError::shown(text);
    text.trim_start_matches("uts")
        .parse()
        .map_err(|_| format!("`{shown}` is not `uts` and seconds since 1970"))
}

/// `+60`, in seconds, or `+2hours`.
fn wait_after_now(text: &str) -> Result<Seconds, String> {
    let shown = NotationError::shown(text);
    let wait = text
        .strip_prefix('+')
        .ok_or_else(|| format!("`now` is followed by `+2hours` or the like, not by `{shown}`"))?;
    if wait.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(Seconds::new(number(wait)?.into()));
    }
    wait.parse().map_err(|error: bedplate_units::UnitError| error.to_string())
}

pub(super) fn array(draft: &mut Draft, value: &str) -> Set {
    draft.job.policy.array = Some(value.parse().map_err(text_of)?);
    Ok(())
}

pub(super) fn dependency(draft: &mut Draft, value: &str) -> Set {
    let mut dependencies = Vec::new();
    for part in value.split([',', '?']) {
        let part = part.trim();
        if part == "after" || part.starts_with("after:") {
            return Err("`after` waits for the start of a job, which is not honoured; wait for its end with `afterany`".into());
        }
        match part.strip_prefix("aftercorr:") {
            None => dependencies.push(part.parse().map_err(text_of)?),
            Some(jobs) => {
                draft.remark("`aftercorr` is not honoured; every task waits for all tasks of the other array, as `afterok` does");
                dependencies.push(format!("afterok:{jobs}").parse().map_err(text_of)?);
            }
        }
    }
    if value.contains('?') {
        draft.remark("`?` is not honoured; the job waits for all of its dependencies and not for any one");
    }
    draft.job.policy.dependencies = dependencies;
    Ok(())
}

pub(super) fn constraint(draft: &mut Draft, value: &str) -> Set {
    if value.contains(['|', '[', '*', '(']) {
        let shown = NotationError::shown(value);
        draft.remark(format!("the choice `{shown}` is not honoured and left out; any node will do"));
        return Ok(());
    }
    let features = value.split(['&', ',']).map(|name| name.trim().to_owned());
    draft.job.placement.features = features.filter(|name| !name.is_empty()).collect();
    Ok(())
}

pub(super) fn switches(draft: &mut Draft, value: &str) -> Set {
    let (count, wait) = match value.split_once('@') {
        Some((count, wait)) => (count, Some(slurm_time(wait).map_err(text_of)?)),
        None => (value, None),
    };
    draft.job.placement.closeness = match (positive(count)?, wait) {
        (1, None) => Closeness::Required(Level::LEAF),
        (1, Some(_)) => {
            draft.remark(
                "the longest wait is not honoured; one leaf is preferred, and the job does not wait for it",
            );
            Closeness::Preferred(Level::LEAF)
        }
        (count, _) => {
            draft.remark(format!(
                "at most {count} switches are not honoured; nodes under one spine are preferred"
            ));
            Closeness::Preferred(Level::SPINE)
        }
    };
    Ok(())
}

pub(super) fn segment(draft: &mut Draft, value: &str) -> Set {
    let placement = &mut draft.job.placement;
    placement.segment = Some(positive(value)?);
    if placement.closeness == Closeness::Any {
        placement.closeness = Closeness::Required(Level::Domain);
    }
    Ok(())
}

fn names(value: &str) -> Result<Vec<String>, String> {
    if value.contains('/') {
        return Err("files of node names are not read; list the nodes".into());
    }
    expand_hostlist(value).map_err(|error| error.to_string())
}

pub(super) fn nodelist(draft: &mut Draft, value: &str) -> Set {
    draft.job.placement.only_nodes = names(value)?;
    Ok(())
}

pub(super) fn exclude(draft: &mut Draft, value: &str) -> Set {
    draft.job.placement.avoid_nodes = names(value)?;
    Ok(())
}

pub(super) fn spread(draft: &mut Draft, _: &str) -> Set {
    draft.job.placement.spread = Some(Level::LEAF);
    Ok(())
}

pub(super) fn requeue(draft: &mut Draft, _: &str) -> Set {
    draft.job.policy.is_requeued = true;
    Ok(())
}

pub(super) fn no_requeue(draft: &mut Draft, _: &str) -> Set {
    draft.job.policy.is_requeued = false;
    Ok(())
}

pub(super) fn no_kill(draft: &mut Draft, value: &str) -> Set {
    draft.job.policy.survives = value != "off";
    Ok(())
}

/// `[B:|R:]signal[@seconds]`; sent a minute before the end where no time is given.
pub(super) fn signal(draft: &mut Draft, value: &str) -> Set {
    let (prefix, rest) = value.rsplit_once(':').unwrap_or(("", value));
    let (name, before) = match rest.split_once('@') {
        Some((name, seconds)) => (name, number(seconds)?),
        None => (rest, 60),
    };
    if prefix.chars().any(|c| !matches!(c, 'B' | 'R')) {
        return Err(format!("`{}` before the colon is neither B nor R", NotationError::shown(prefix)));
    }
    if prefix.contains('R') {
        draft.remark("`R:` is not honoured; there are no reservations that a signal could announce");
    }
    let shown = NotationError::shown(name);
    let signal = CheckpointSignal::number_of(name).ok_or_else(|| format!("there is no signal `{shown}`"))?;
    let receiver = if prefix.contains('B') { Receiver::Script } else { Receiver::Tasks };
    draft.job.policy.checkpoint_signal =
        Some(CheckpointSignal { signal, before: Seconds::new(before.into()), receiver });
    Ok(())
}

fn pattern(value: &str) -> Result<Option<String>, String> {
    match crate::pattern::fault_of(value) {
        Some(reason) => Err(reason),
        None => Ok(Some(value.to_owned())),
    }
}

pub(super) fn input(draft: &mut Draft, value: &str) -> Set {
    draft.job.streams.stdin = pattern(value)?;
    Ok(())
}

pub(super) fn output(draft: &mut Draft, value: &str) -> Set {
    draft.job.streams.stdout = pattern(value)?;
    Ok(())
}

pub(super) fn error(draft: &mut Draft, value: &str) -> Set {
    draft.job.streams.stderr = pattern(value)?;
    Ok(())
}

pub(super) fn open_mode(draft: &mut Draft, value: &str) -> Set {
    draft.job.streams.is_appended = match value {
        "append" => true,
        "truncate" => false,
        _ => return Err(format!("`{}` is neither append nor truncate", NotationError::shown(value))),
    };
    Ok(())
}

pub(super) fn chdir(draft: &mut Draft, value: &str) -> Set {
    draft.job.working_directory = Some(value.to_owned());
    Ok(())
}

/// `ALL`, `NONE`, names to inherit, `NAME=value` to set; commas inside quotations do not separate.
pub(super) fn export(draft: &mut Draft, value: &str) -> Set {
    let environment = &mut draft.job.environment;
    let mut is_all = false;
    let mut inherited = Vec::new();
    environment.set.clear();
    for item in unquoted_items(value) {
        match item.split_once('=') {
            Some((name, text)) => {
                environment.set.insert(name.to_owned(), text.to_owned());
            }
            None if item.eq_ignore_ascii_case("all") => is_all = true,
            None if ["none", "nil", ""].contains(&item.to_ascii_lowercase().as_str()) => {}
            None => inherited.push(item),
        }
    }
    environment.inherited = match (is_all, inherited.is_empty()) {
        (true, _) => Inherited::All,
        (false, true) => Inherited::Nothing,
        (false, false) => Inherited::Only(inherited),
    };
    Ok(())
}

fn unquoted_items(value: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut quote = None;
    for c in value.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, ',') => items.push(String::new()),
            _ => items.last_mut().expect("the list begins with one item").push(c),
        }
    }
    items
}

pub(super) fn job_name(draft: &mut Draft, value: &str) -> Set {
    draft.job.name = value.to_owned();
    Ok(())
}

pub(super) fn comment(draft: &mut Draft, value: &str) -> Set {
    draft.job.labels.insert("comment".to_owned(), value.to_owned());
    Ok(())
}

pub(super) fn wrap(draft: &mut Draft, value: &str) -> Set {
    match &draft.job.workload {
        Workload::Command { arguments } if arguments.is_empty() => {
            draft.job.workload = Workload::Script { text: format!("#!/bin/sh\n{value}\n") };
            if draft.job.name.is_empty() {
                draft.job.name = "wrap".to_owned();
            }
            Ok(())
        }
        _ => Err("there already is a script or a command to run".into()),
    }
}
