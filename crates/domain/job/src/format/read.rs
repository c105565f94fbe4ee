//! From the keys of a job file to a job.

use std::collections::BTreeMap;

use bedplate_breakdown::{Breakdown, Part, Predicted, Span};
use bedplate_document::{DocumentError, Readable, Table};
use bedplate_topology::Level;
use bedplate_units::Seconds;

use super::read_kubernetes;
use super::values::{GpuShare, NodeNames, Plain, SignalNumber, StepSeconds, parsed};
use crate::notation::TimeLimit;
use crate::{
    CheckpointSignal, Closeness, Elastic, Environment, Gang, HealthPolicy, Hooks, Job, Placement, Policy,
    Preemption, Probe, Receiver, Role, Streams, Workload,
};

pub(super) type Read<T> = Result<T, DocumentError>;

pub(super) fn job(table: Table) -> Read<Job> {
    let table = table.titled("the job");
    let job = Job {
        name: table.required("name")?,
        workload: workload(&table)?,
        gang: gang(&table)?,
        placement: placement(&table)?,
        policy: policy(&table)?,
        working_directory: table.optional("working_directory")?,
        environment: environment(&table)?,
        streams: streams(&table)?,
        hooks: Hooks { prolog: list(&table, "prolog")?, epilog: list(&table, "epilog")? },
        health: health(&table)?,
        labels: plain_map(&table, "labels")?,
        kubernetes: read_kubernetes::settings(&table)?,
        expected: expected(&table)?,
    };
    table.finish()?;
    Ok(job)
}

pub(super) fn list<T: Readable>(table: &Table, key: &str) -> Read<Vec<T>> {
    table.or(key, Vec::new())
}

fn workload(table: &Table) -> Read<Workload> {
    let script: Option<String> = table.optional("script")?;
    let native: Option<String> = table.optional("native")?;
    let configuration: Option<String> = table.optional("configuration")?;
    if native.is_none() && configuration.is_some() {
        return Err(table.bad_value("configuration", "it belongs to `native`, which is not there"));
    }
    let both = |key: &str, other: &str| {
        Err(table.bad_value(key, format!("the job also has `{other}`; it runs one of the two")))
    };
    match (script, native) {
        (Some(_), Some(_)) => both("native", "script"),
        (Some(_), None) if table.has("command") => both("command", "script"),
        (None, Some(_)) if table.has("command") => both("command", "native"),
        (Some(text), None) => {
            table.allow("command");
            Ok(Workload::Script { text })
        }
        (None, Some(kind)) => {
            table.allow("command");
            Ok(Workload::Native { kind, configuration: configuration.unwrap_or_default() })
        }
        (None, None) => Ok(Workload::Command { arguments: table.required("command")? }),
    }
}

/// The keys of a role, which a job of one role has itself.
const ROLE_KEYS: [&str; 9] = [
    "nodes",
    "tasks_per_node",
    "gpus_per_node",
    "gpu_share",
    "accelerator",
    "cpus_per_task",
    "memory_per_node",
    "exclusive",
    "elastic",
];

fn gang(table: &Table) -> Read<Gang> {
    let tables = table.tables("role")?;
    if !table.has("role") {
        return Ok(Gang::of(role(table, Role::ONLY.to_owned())?));
    }
    for key in ROLE_KEYS {
        if table.has(key) {
            return Err(table.bad_value(key, "the job has roles; write it into the `[[role]]` it is about"));
        }
        table.allow(key);
    }
    let named = |table: Table| {
        let name: String = table.required("name")?;
        let table = table.titled(format!("role `{name}`"));
        let role = role(&table, name)?;
        table.finish()?;
        Ok(role)
    };
    Ok(Gang { roles: tables.into_iter().map(named).collect::<Read<Vec<Role>>>()? })
}

fn role(table: &Table, name: String) -> Read<Role> {
    let blank = Role::named(name);
    let gpu_share = table.optional("gpu_share")?.map(|GpuShare(thousandths)| thousandths);
    Ok(Role {
        nodes: table.or("nodes", blank.nodes)?,
        tasks_per_node: table.or("tasks_per_node", blank.tasks_per_node)?,
        gpus_per_node: table.or("gpus_per_node", u32::from(gpu_share.is_some()))?,
        gpu_share,
        accelerator: table.optional("accelerator")?,
        cpus_per_task: table.or("cpus_per_task", blank.cpus_per_task)?,
        memory_per_node: table.optional("memory_per_node")?,
        is_exclusive: table.or("exclusive", blank.is_exclusive)?,
        elastic: elastic(table)?,
        name: blank.name,
    })
}

fn elastic(table: &Table) -> Read<Option<Elastic>> {
    let Some(table) = table.table("elastic")? else { return Ok(None) };
    let elastic =
        Elastic { min: table.required("min")?, max: table.required("max")?, step: table.or("step", 1)? };
    table.finish()?;
    Ok(Some(elastic))
}

fn placement(table: &Table) -> Read<Placement> {
    let Some(table) = table.table("placement")? else { return Ok(Placement::default()) };
    let closeness = match (parsed::<Level>(&table, "required")?, parsed::<Level>(&table, "preferred")?) {
        (None, None) => Closeness::Any,
        (Some(level), None) => Closeness::Required(level),
        (None, Some(level)) => Closeness::Preferred(level),
        (Some(_), Some(_)) => {
            return Err(table.bad_value("preferred", "a level is required or preferred, not both"));
        }
    };
    let names = |key: &str| -> Read<Vec<String>> {
        Ok(table.optional(key)?.map(|NodeNames(names)| names).unwrap_or_default())
    };
    let placement = Placement {
        closeness,
        segment: table.optional("segment")?,
        spread: parsed(&table, "spread")?,
        only_nodes: names("only_nodes")?,
        avoid_nodes: names("avoid_nodes")?,
        features: list(&table, "features")?,
    };
    table.finish()?;
    Ok(placement)
}

fn policy(table: &Table) -> Read<Policy> {
    let usual = Policy::default();
    Ok(Policy {
        partition: table.optional("partition")?,
        account: table.optional("account")?,
        qos: table.optional("qos")?,
        priority: table.or("priority", usual.priority)?,
        nice: table.or("nice", usual.nice)?,
        time_limit: parsed(table, "time_limit")?.map(|TimeLimit(limit)| limit),
        grace: table.or("grace", usual.grace)?,
        retries: table.or("retries", usual.retries)?,
        is_requeued: table.or("requeue", usual.is_requeued)?,
        survives: table.or("survive", usual.survives)?,
        is_held: table.or("hold", usual.is_held)?,
        begin: parsed(table, "begin")?,
        dependencies: dependencies(table)?,
        array: parsed(table, "array")?,
        checkpoint_signal: checkpoint_signal(table)?,
        preemption: choice(
            table,
            "preemption",
            Preemption::ALL.map(|each| (each.name(), each)),
            usual.preemption,
        )?,
        minimum_run_time: table.or("minimum_run_time", usual.minimum_run_time)?,
    })
}

fn choice<T: Copy, const N: usize>(table: &Table, key: &str, choices: [(&str, T); N], usual: T) -> Read<T> {
    table.allow(key);
    if table.has(key) { table.choice(key, &choices) } else { Ok(usual) }
}

fn dependencies<T: std::str::FromStr>(table: &Table) -> Read<Vec<T>>
where
    T::Err: std::fmt::Display,
{
    let texts: Vec<String> = list(table, "dependencies")?;
    let read = |text: &String| {
        text.parse().map_err(|error: T::Err| table.bad_value("dependencies", error.to_string()))
    };
    texts.iter().map(read).collect()
}

fn checkpoint_signal(table: &Table) -> Read<Option<CheckpointSignal>> {
    let Some(table) = table.table("checkpoint_signal")? else { return Ok(None) };
    let SignalNumber(signal) = table.required("signal")?;
    let receivers = [("tasks", Receiver::Tasks), ("script", Receiver::Script)];
    let signal = CheckpointSignal {
        signal,
        before: table.or("before", Seconds::new(60.0))?,
        receiver: choice(&table, "to", receivers, Receiver::Tasks)?,
    };
    table.finish()?;
    Ok(Some(signal))
}

fn environment(table: &Table) -> Read<Environment> {
    Ok(Environment {
        inherited: table.optional("inherit_environment")?.unwrap_or_default(),
        set: plain_map(table, "environment")?,
    })
}

/// A table of texts under keys of the user's own.
pub(super) fn plain_map(table: &Table, key: &str) -> Read<BTreeMap<String, String>> {
    let Some(table) = table.table(key)? else { return Ok(BTreeMap::new()) };
    let text = |key: &str| {
        let Plain(text) = table.required(key)?;
        Ok((key.to_owned(), text))
    };
    table.keys().map(text).collect()
}

fn streams(table: &Table) -> Read<Streams> {
    Ok(Streams {
        stdin: table.optional("stdin")?,
        stdout: table.optional("stdout")?,
        stderr: table.optional("stderr")?,
        is_appended: table.or("append", false)?,
    })
}

fn health(table: &Table) -> Read<HealthPolicy> {
    let Some(table) = table.table("health")? else { return Ok(HealthPolicy::default()) };
    let command: Option<Vec<String>> = table.optional("probe")?;
    let every: Option<Seconds> = table.optional("probe_every")?;
    if command.is_none() && every.is_some() {
        return Err(table.bad_value("probe_every", "there is no `probe` to run"));
    }
    let probe = command.map(|command| Probe { command, every: every.unwrap_or(Probe::EVERY) });
    let health = HealthPolicy {
        stuck_after: table.optional("stuck_after")?,
        probe,
        spare_nodes: table.or("spare_nodes", 0)?,
    };
    table.finish()?;
    Ok(health)
}

fn expected(table: &Table) -> Read<Option<Breakdown<Predicted>>> {
    let Some(table) = table.table("expected")? else { return Ok(None) };
    let hidden = table.table("hidden")?.map(|hidden| hidden.titled("expected.hidden"));
    let mut step = Breakdown::default();
    for part in Part::ALL {
        let exposed = part_time(&table, part)?;
        let hidden = hidden.as_ref().map_or(Ok(Seconds::ZERO), |table| part_time(table, part))?;
        step = step.with(part, Span { exposed, hidden });
    }
    table.finish()?;
    hidden.map_or(Ok(()), |hidden| hidden.finish())?;
    Ok(Some(step))
}

fn part_time(table: &Table, part: Part) -> Read<Seconds> {
    Ok(table.optional(part.name())?.map_or(Seconds::ZERO, |StepSeconds(time)| time))
}
