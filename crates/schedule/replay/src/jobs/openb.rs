//! Alibaba's GPU cluster trace of 2023 (openb): a list of pods, and a list of nodes as a cluster.
//!
//! A pod runs from its scheduling, or where that is unknown its creation, to its deletion. `gpu_milli` below
//! 1000 is a shared GPU; `gpu_spec` names the models that will do, joined by `|`. The QOS class is the QOS.

use bedplate_diag::Source;
use bedplate_gangs::{Span, Time};

use super::lines::{JobLine, columns, number, whole};
use super::{Ending, Size, Trace, TraceError, TraceJob};

pub(crate) const COLUMNS: [&str; 11] = [
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "qos",
    "pod_phase",
    "creation_time",
    "deletion_time",
    "scheduled_time",
];
pub(crate) const NODE_COLUMNS: [&str; 5] = ["sn", "cpu_milli", "memory_mib", "gpu", "model"];

pub(crate) fn read(source: Source<'_>) -> Result<Trace, TraceError> {
    let mut trace = Trace::default();
    let mut endless = 0;
    for row in columns(source, COLUMNS)? {
        let (line, fields) = row?;
        match pod(line, fields.each_ref().map(|field| &**field), &mut trace)? {
            Some(job) => trace.jobs.push(job),
            None => endless += 1,
        }
    }
    trace.remark("pods have no deletion time and are left out", endless);
    Ok(trace)
}

fn pod(line: JobLine<'_>, fields: [&str; 11], trace: &mut Trace) -> Result<Option<TraceJob>, TraceError> {
    let [name, cpus, memory, gpus, milli, spec, qos, phase, created, deleted, scheduled] = fields;
    if deleted.is_empty() {
        return Ok(None);
    }
    let created = number(line, created, "creation time")?;
    let scheduled = if scheduled.is_empty() { created } else { number(line, scheduled, "scheduled time")? };
    let seconds = (number(line, deleted, "deletion time")? - scheduled).max(0.0);
    let gpus = whole(line, gpus, "number of GPUs", 64)? as u16;
    let size = Size::Nodes { nodes: 1, gpus_per_node: gpus };
    let duration = Span((seconds * 1000.0) as u64);
    let mut job = TraceJob::new(Time((created * 1000.0) as u64), duration, size);
    let milli = if milli.is_empty() { 1000 } else { whole(line, milli, "gpu_milli", 1000)? as u16 };
    job.name = name.to_owned();
    job.gpu_share = (gpus == 1 && (1..1000).contains(&milli)).then_some(milli);
    job.cpus_per_node = whole(line, cpus, "cpu_milli", 60_000_000)?.div_ceil(1000) as u16;
    job.memory_mib_per_node = whole(line, memory, "memory_mib", u32::MAX)?;
    job.accelerators = spec.split('|').filter(|each| !each.is_empty()).map(str::to_owned).collect();
    job.qos = trace.qos.place(qos);
    job.ending = if phase == "Failed" { Ending::Failed } else { Ending::Completed };
    Ok(Some(job))
}

/// The node list as a cluster.toml: a flat fabric, nodes by model and number of GPUs.
///
/// The catalog has none of these models; `accelerator` stands in for all of them, and jobs find theirs by
/// the name of the kind (`V100M16-x8`). Speeds do not matter: run times come from the trace.
pub fn openb_cluster(source: Source<'_>, accelerator: &str) -> Result<String, TraceError> {
    if source.text.trim().is_empty() {
        return Err(TraceError::Empty { place: source.whole() });
    }
    let mut kinds: Vec<(String, String)> = Vec::new();
    let mut groups = String::new();
    for row in columns(source, NODE_COLUMNS)? {
        let (line, fields) = row?;
        let [name, cpus, memory, gpus, model] = fields.each_ref().map(|field| &**field);
        let gpus = whole(line, gpus, "number of GPUs", 64)?;
        let cpus = whole(line, cpus, "cpu_milli", 60_000_000)? / 1000;
        let memory = whole(line, memory, "memory_mib", u32::MAX)?;
        let is_plain = |text: &str| {
            !text.is_empty() && text.chars().all(|each| each.is_ascii_alphanumeric() || "-_.".contains(each))
        };
        if !is_plain(name) || !is_plain(model) {
            return Err(line.bad("names of nodes and models are letters, digits, `-`, `_` and `.`"));
        }
        let hardware = format!("vcpus = {cpus}\nmemory = \"{memory} MiB\"");
        let same = |kind: &String| kind.starts_with(&format!("{model}-x{gpus}"));
        let kind = match kinds.iter().find(|(kind, text)| same(kind) && text.contains(&hardware)) {
            Some((kind, _)) => kind.clone(),
            None => {
                let alike = kinds.iter().filter(|(kind, _)| same(kind)).count();
                let suffix = if alike == 0 { String::new() } else { format!("-{}", alike + 1) };
                let kind = format!("{model}-x{gpus}{suffix}");
                let domains = vec![1; gpus as usize];
                let devices = if gpus == 0 {
                    String::new()
                } else {
                    format!("accelerator = \"{accelerator}\"\ndomains = {domains:?}\n")
                };
                kinds.push((kind.clone(), format!("[[kind]]\nname = \"{kind}\"\n{devices}{hardware}\n\n")));
                kind
            }
        };
        groups += &format!("[[group]]\nkind = \"{kind}\"\nnodes = \"{name}\"\n\n");
    }
    Ok(kinds.into_iter().map(|(_, text)| text).collect::<String>() + &groups)
}
