//! `NodeName` and `DownNodes` lines of `slurm.conf`.

use bedplate_diag::{Source, nearest};
use bedplate_units::Bytes;

use super::assemble::At;
use super::line::{Line, Pair};
use super::topology::unknown_key;
use crate::draft::shown;
use crate::hostlist::Hostlist;
use crate::{Health, TopologyError};

/// Every key that Slurm knows on these lines, so that only typos are refused.
const KEYS: [&str; 34] = [
    "NodeName",
    "Gres",
    "CPUs",
    "Procs",
    "Boards",
    "Sockets",
    "SocketsPerBoard",
    "CoresPerSocket",
    "ThreadsPerCore",
    "RealMemory",
    "Feature",
    "Features",
    "State",
    "Reason",
    "NodeHostname",
    "NodeAddr",
    "BcastAddr",
    "CoreSpecCount",
    "CpuBind",
    "CpuSpecList",
    "MemSpecLimit",
    "Port",
    "TmpDisk",
    "Weight",
    "TRESWeights",
    "RestrictedCoresPerGPU",
    "Topology",
    "Parameters",
    "CpuAlloc",
    "DownNodes",
    "GpuSpec",
    "Arch",
    "OS",
    "Version",
];

/// The nodes of `slurm.conf` as written, before their kinds are resolved.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    defaults: Fields,
    pub(super) lines: Vec<NodeLine>,
    pub(super) down: Vec<DownLine>,
}

/// One `NodeName` line with the defaults filled in.
#[derive(Debug)]
pub(super) struct NodeLine {
    pub(super) names: String,
    pub(super) fields: Fields,
    pub(super) at: At,
}

#[derive(Debug)]
pub(super) struct DownLine {
    pub(super) names: String,
    pub(super) health: Health,
    pub(super) reason: Option<String>,
    pub(super) at: At,
}

/// What a line says about a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Fields {
    pub(super) gpus: Option<Gpus>,
    pub(super) cpus: Option<u32>,
    boards: Option<u32>,
    sockets: Option<u32>,
    sockets_per_board: Option<u32>,
    cores: Option<u32>,
    threads: Option<u32>,
    pub(super) memory_mib: Option<u64>,
    pub(super) features: Vec<String>,
    pub(super) health: Health,
    pub(super) reason: Option<String>,
}

/// The `gpu` part of a GRES list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Gpus {
    pub(super) kind: Option<String>,
    pub(super) count: u32,
}

impl Nodes {
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn add_line(
        &mut self,
        line: &Line<'_>,
        source: Source<'_>,
        at: At,
    ) -> Result<(), TopologyError> {
        let Some((names, fields)) = read_fields(self.defaults.clone(), line, source)? else { return Ok(()) };
        if names.eq_ignore_ascii_case("DEFAULT") {
            self.defaults = fields;
        } else {
            self.lines.push(NodeLine { names, fields, at });
        }
        Ok(())
    }

    pub(super) fn add_down_line(
        &mut self,
        line: &Line<'_>,
        source: Source<'_>,
        at: At,
    ) -> Result<(), TopologyError> {
        let down = Fields { health: Health::Down, ..Fields::default() };
        let Some((names, fields)) = read_fields(down, line, source)? else { return Ok(()) };
        self.down.push(DownLine { names, health: fields.health, reason: fields.reason, at });
        Ok(())
    }
}

impl Fields {
    /// `CPUs`, or the product that Slurm computes.
    pub(super) fn vcpus(&self) -> Option<u32> {
        let sockets = self.sockets.or_else(|| self.sockets_per_board?.checked_mul(self.boards.unwrap_or(1)));
        let product = || {
            let cores = sockets.unwrap_or(1).checked_mul(self.cores?)?;
            cores.checked_mul(self.threads.unwrap_or(1))
        };
        self.cpus.or_else(product)
    }

    pub(super) fn memory(&self) -> Option<Bytes> {
        self.memory_mib.map(|mebibytes| Bytes::new((mebibytes * 1_048_576) as f64))
    }
}

/// The names that a line begins with, and its settings on top of the given ones.
fn read_fields(
    mut fields: Fields,
    line: &Line<'_>,
    source: Source<'_>,
) -> Result<Option<(String, Fields)>, TopologyError> {
    let pairs = line.pairs(source)?;
    let Some((names, rest)) = pairs.split_first() else { return Ok(None) };
    for pair in rest {
        read_field(&mut fields, pair).map_err(|fault| fault.at(pair, line, source))?;
    }
    Ok(Some((names.value.to_owned(), fields)))
}

/// What is wrong with one pair.
enum Fault {
    Value(&'static str),
    Key,
}

impl Fault {
    fn at(self, pair: &Pair<'_>, line: &Line<'_>, source: Source<'_>) -> TopologyError {
        let place = source.line(line.number);
        match self {
            Fault::Key => unknown_key("a NodeName line", pair.key, &KEYS, place),
            Fault::Value(expected) => {
                let reason = format!("`{}={}`", shown(pair.key), shown(pair.value));
                TopologyError::Malformed { expected, reason, place }
            }
        }
    }
}

fn read_field(fields: &mut Fields, pair: &Pair<'_>) -> Result<(), Fault> {
    let value = pair.value;
    let number = || value.parse::<u32>().map(Some).map_err(|_| Fault::Value("a whole number"));
    match pair.key.to_ascii_lowercase().as_str() {
        "gres" => fields.gpus = gpus(value)?,
        "cpus" | "procs" => fields.cpus = number()?,
        "boards" => fields.boards = number()?,
        "sockets" => fields.sockets = number()?,
        "socketsperboard" => fields.sockets_per_board = number()?,
        "corespersocket" => fields.cores = number()?,
        "threadspercore" => fields.threads = number()?,
        "realmemory" => fields.memory_mib = Some(mebibytes(value)?),
        "feature" | "features" => fields.features = features(value),
        "state" => fields.health = health(value)?,
        "reason" => fields.reason = Some(value.to_owned()),
        key => return check_other_key(key),
    }
    Ok(())
}

fn features(value: &str) -> Vec<String> {
    value.split(',').map(str::trim).filter(|feature| !feature.is_empty()).map(str::to_owned).collect()
}

/// Keys that Slurm knows but Bedplate does not need are accepted, and so are new ones; typos are not.
fn check_other_key(key: &str) -> Result<(), Fault> {
    let is_known = KEYS.iter().any(|known| known.eq_ignore_ascii_case(key));
    if is_known || nearest(key, KEYS.iter().copied()).is_none() { Ok(()) } else { Err(Fault::Key) }
}

/// `RealMemory` counts MiB; a suffix of K, M, G or T is allowed.
fn mebibytes(value: &str) -> Result<u64, Fault> {
    let fault = || Fault::Value("an amount of memory in MiB");
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| fault())?;
    let mebibytes = match value[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "M" | "MB" => Some(number),
        "K" | "KB" => Some(number / 1024),
        "G" | "GB" => number.checked_mul(1024),
        "T" | "TB" => number.checked_mul(1024 * 1024),
        _ => None,
    };
    // Beyond this an `f64` of bytes is not exact, and no machine has an exbibyte.
    mebibytes.filter(|amount| *amount < 1 << 32).ok_or_else(fault)
}

/// The GPUs of `gpu:h100:8(S:0-1),craynetwork:4`.
fn gpus(gres: &str) -> Result<Option<Gpus>, Fault> {
    let mut found: Option<Gpus> = None;
    for item in split_outside_parentheses(gres) {
        let item = item.split('(').next().unwrap_or(item).trim();
        let mut parts = item.split(':').filter(|part| *part != "no_consume" && *part != "shared");
        if !parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gpu")) {
            continue;
        }
        let more = gpus_of(parts)?;
        found = Some(match found {
            None => more,
            Some(first) if first.kind == more.kind => {
                Gpus { count: first.count.saturating_add(more.count), ..first }
            }
            Some(_) => return Err(Fault::Value("GPUs of one type per node")),
        });
    }
    Ok(found.filter(|gpus| gpus.count > 0))
}

/// The parts after `gpu`: nothing, a count, a type, or type and count.
fn gpus_of<'a>(parts: impl Iterator<Item = &'a str>) -> Result<Gpus, Fault> {
    let fault = || Fault::Value("GRES such as `gpu:h100:8`");
    let mut gpus = Gpus { kind: None, count: 1 };
    for (index, part) in parts.enumerate() {
        match part.parse::<u32>() {
            Ok(count) => gpus.count = count,
            Err(_) if index == 0 && !part.is_empty() => gpus.kind = Some(part.to_owned()),
            Err(_) => return Err(fault()),
        }
        if index > 1 {
            return Err(fault());
        }
    }
    Ok(gpus)
}

fn split_outside_parentheses(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0usize;
    text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
}

/// The health for a state such as `DOWN`, `IDLE+DRAIN` or `UNKNOWN`; the worst word counts.
fn health(state: &str) -> Result<Health, Fault> {
    let words = state.split('+').map(|word| word.trim().trim_end_matches(|c: char| !c.is_ascii_alphabetic()));
    let healths: Result<Vec<Health>, Fault> = words.map(health_of_word).collect();
    let rank = |health: &Health| match health {
        Health::Healthy => 0,
        Health::Degraded => 1,
        Health::Draining => 2,
        Health::Drained => 3,
        Health::Maintenance => 4,
        Health::Down => 5,
    };
    Ok(healths?.into_iter().max_by_key(rank).unwrap_or_default())
}

fn health_of_word(word: &str) -> Result<Health, Fault> {
    Ok(match word.to_ascii_uppercase().as_str() {
        "UNKNOWN" | "IDLE" | "CLOUD" | "ALLOCATED" | "ALLOC" | "MIXED" | "MIX" | "COMPLETING" | "PLANNED"
        | "RESERVED" | "RESUME" | "POWERED_DOWN" | "POWERING_UP" | "POWERING_DOWN" | "DYNAMIC_NORM"
        | "DYNAMIC_FUTURE" | "UNDRAIN" => Health::Healthy,
        "DRAIN" | "DRAINED" | "FAIL" => Health::Drained,
        "DRAINING" | "FAILING" => Health::Draining,
        "DOWN" | "FUTURE" | "NOT_RESPONDING" | "ERROR" | "INVAL" => Health::Down,
        "MAINT" | "REBOOT" | "REBOOT_ISSUED" | "REBOOT_REQUESTED" | "BLOCKED" => Health::Maintenance,
        _ => return Err(Fault::Value("a node state of Slurm")),
    })
}

/// Parses a list of node names at its line.
pub(super) fn hostlist<'a>(
    names: &'a str,
    source: Source<'_>,
    at: At,
) -> Result<Hostlist<'a>, TopologyError> {
    Hostlist::parse(names).map_err(|error| error.with_place(names, source.line(at.line)))
}
