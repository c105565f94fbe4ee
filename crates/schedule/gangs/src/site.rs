//! The site's rules from a file: TOML in, [`Settings`] out, every complaint with its line and remedy.
//!
//! What a file does not say is as in [`Settings::default`]. Names of nodes, accounts, queues and qualities of service are
//! resolved here, so that a slip is found when the file is read and not when a gang needs it. `docs/site.md` describes
//! every key.

mod error;
mod tree;

use bedplate_diag::Source;
use bedplate_document::{DocumentError, Readable, Table};
use bedplate_topology::{Cluster, NodeId, expand_hostlist};
use bedplate_units::Seconds;

use crate::{
    ANY_GPU, Accounts, Backfill, ElasticRules, Grant, Packing, Partition, PreemptionRules, PriorityWeights,
    Qos, QosId, QueueOrder, Queues, Settings, SizesBy, Span,
};

pub use error::{PAGES, SettingsError};

/// More partitions, qualities of service or queues than any site has, and fewer than their ids can count.
const MOST_ENTRIES: usize = 10_000;

impl Settings {
    /// Reads the rules for a cluster. `source` is the file's name, for complaints.
    pub fn from_toml(text: &str, source: &str, cluster: &Cluster) -> Result<Self, SettingsError> {
        let file = Table::parse(Source::new(source, text))?;
        let default = Settings::default();
        let settings = Settings {
            seed: file.or("seed", default.seed)?,
            order: order(&file)?,
            packing: packing(&file)?,
            weights: weights(&section(&file, "weights")?)?,
            partitions: or_default(partitions(&file, cluster)?, default.partitions),
            qos: or_default(qualities(&file)?, default.qos),
            accounts: accounts(&file)?,
            queues: queues(&file, cluster)?,
            backfill: backfill(&section(&file, "backfill")?)?,
            preemption: preemption(&section(&file, "preemption")?)?,
            elastic: elastic(&section(&file, "elastic")?)?,
        };
        file.finish()?;
        Ok(settings)
    }
}

fn or_default<T>(read: Vec<T>, default: Vec<T>) -> Vec<T> {
    if read.is_empty() { default } else { read }
}

/// A table that may be left out as a whole.
fn section(file: &Table, key: &str) -> Result<Option<Table>, DocumentError> {
    Ok(file.table(key)?.map(|table| table.titled(format!("[{key}]"))))
}

/// The tables of `[[key]]`, each with its name, which no other has.
fn named_tables(file: &Table, key: &'static str) -> Result<Vec<(String, Table)>, SettingsError> {
    let mut named: Vec<(String, Table)> = Vec::new();
    let mut names = std::collections::BTreeSet::new();
    for table in file.tables(key)? {
        let table = table.titled(key);
        let name: String = table.required("name")?;
        let table = table.titled(format!("{key} `{name}`"));
        if name.trim().is_empty() {
            return Err(table.bad_value("name", "it is empty").into());
        }
        if !names.insert(name.clone()) {
            return Err(SettingsError::Duplicate { what: key, name, place: table.place_of("name") });
        }
        if named.len() == MOST_ENTRIES {
            return Err(SettingsError::TooMany { what: key, limit: MOST_ENTRIES, place: table.place() });
        }
        named.push((name, table));
    }
    Ok(named)
}

fn order(file: &Table) -> Result<QueueOrder, DocumentError> {
    if !file.has("order") {
        file.allow("order");
        return Ok(Settings::default().order);
    }
    file.choice("order", &[("arrival", QueueOrder::Arrival), ("smallest_first", QueueOrder::SmallestFirst)])
}

fn packing(file: &Table) -> Result<Packing, DocumentError> {
    if !file.has("packing") {
        file.allow("packing");
        return Ok(Settings::default().packing);
    }
    file.choice("packing", &[("topology", Packing::Topology), ("first_fit", Packing::FirstFit)])
}

fn weights(table: &Option<Table>) -> Result<PriorityWeights, DocumentError> {
    let default = PriorityWeights::default();
    let Some(table) = table else { return Ok(default) };
    let weight = |key, default: i64| Ok(table.optional::<u32>(key)?.map_or(default, i64::from));
    let weights = PriorityWeights {
        age: weight("age", default.age)?,
        expansion: weight("expansion", default.expansion)?,
        fair_share: weight("fair_share", default.fair_share)?,
        qos: weight("qos", default.qos)?,
        job_size: weight("job_size", default.job_size)?,
        partition: weight("partition", default.partition)?,
        oldest: positive_span(table, "oldest")?.unwrap_or(default.oldest),
        ageing: positive(table, "ageing")?.unwrap_or(default.ageing),
        small_share: within(table, "small_share", default.small_share, 0.0, 1.0)?,
        tiny_share: within(table, "tiny_share", default.tiny_share, 0.0, 1.0)?,
        patience: positive_span(table, "patience")?.unwrap_or(default.patience),
        longest_wait: positive_span(table, "longest_wait")?.unwrap_or(default.longest_wait),
        half_life: half_life(table)?.unwrap_or(default.half_life),
        favours_small: table.or("favours_small", default.favours_small)?,
    };
    table.finish()?;
    Ok(weights)
}

/// A duration, or `"never"` where usage does not fade.
fn half_life(table: &Table) -> Result<Option<Span>, DocumentError> {
    if let Ok(Some(text)) = table.optional::<String>("half_life")
        && text == "never"
    {
        return Ok(Some(Span::FOREVER));
    }
    positive_span(table, "half_life")
}

fn span(table: &Table, key: &str) -> Result<Option<Span>, DocumentError> {
    Ok(table.optional::<Seconds>(key)?.map(Span::from))
}

fn positive_span(table: &Table, key: &str) -> Result<Option<Span>, DocumentError> {
    match span(table, key)? {
        Some(Span::ZERO) => Err(table.bad_value(key, "it must be longer than nothing")),
        other => Ok(other),
    }
}

/// A number that is not zero.
fn positive<T: Readable + Default + PartialEq>(table: &Table, key: &str) -> Result<Option<T>, DocumentError> {
    match table.optional::<T>(key)? {
        Some(zero) if zero == T::default() => Err(table.bad_value(key, "it must be at least 1")),
        other => Ok(other),
    }
}

fn partitions(file: &Table, cluster: &Cluster) -> Result<Vec<Partition>, SettingsError> {
    let tables = named_tables(file, "partition")?;
    tables.iter().map(|(name, table)| partition(name, table, cluster)).collect()
}

fn partition(name: &str, table: &Table, cluster: &Cluster) -> Result<Partition, SettingsError> {
    let default = Partition::named(name);
    let partition = Partition {
        nodes: nodes(table, cluster)?,
        longest: positive_span(table, "longest")?,
        most_nodes: positive(table, "most_nodes")?,
        priority: table.or("priority", default.priority)?,
        tier: tier(table, default.tier)?,
        is_up: table.or("up", default.is_up)?,
        ..default
    };
    table.finish()?;
    Ok(partition)
}

fn tier(table: &Table, default: u16) -> Result<u16, DocumentError> {
    let tier = table.or("tier", u64::from(default))?;
    u16::try_from(tier).map_err(|_| table.bad_value("tier", format!("{tier} is larger than {}", u16::MAX)))
}

/// Names and lists in Slurm's notation, in the order of the cluster; all nodes when there is no such key.
fn nodes(table: &Table, cluster: &Cluster) -> Result<Option<Vec<NodeId>>, SettingsError> {
    let Some(lists) = table.optional::<Vec<String>>("nodes")? else { return Ok(None) };
    let mut nodes: Vec<NodeId> = Vec::new();
    for list in &lists {
        let names = expand_hostlist(list).map_err(|error| table.bad_value("nodes", error.to_string()))?;
        for name in names {
            nodes.push(node(&name, table, cluster)?);
        }
    }
    if nodes.is_empty() {
        return Err(table.bad_value("nodes", "it is empty; leave it out for all nodes").into());
    }
    nodes.sort_unstable();
    nodes.dedup();
    Ok(Some(nodes))
}

fn node(name: &str, table: &Table, cluster: &Cluster) -> Result<NodeId, SettingsError> {
    cluster.find_node(name).ok_or_else(|| {
        let known = cluster.nodes().into_iter().map(|id| cluster.node(id).name());
        SettingsError::undefined("node", name, known, table.place_of("nodes"))
    })
}

fn qualities(file: &Table) -> Result<Vec<Qos>, SettingsError> {
    let tables = named_tables(file, "qos")?;
    let names: Vec<&str> = tables.iter().map(|(name, _)| name.as_str()).collect();
    tables.iter().map(|(name, table)| quality(name, table, &names)).collect()
}

fn quality(name: &str, table: &Table, names: &[&str]) -> Result<Qos, SettingsError> {
    let default = Qos::named(name);
    let qos = Qos {
        priority: table.or("priority", default.priority)?,
        longest: positive_span(table, "longest")?,
        most_gpus_per_job: table.optional("most_gpus_per_job")?,
        most_gpus_per_user: table.optional("most_gpus_per_user")?,
        most_jobs_per_user: table.optional("most_jobs_per_user")?,
        most_gpus: table.optional("most_gpus")?,
        preempts: preempted(table, names)?,
        ..default
    };
    table.finish()?;
    Ok(qos)
}

fn preempted(table: &Table, names: &[&str]) -> Result<Vec<QosId>, SettingsError> {
    let wanted: Vec<String> = table.or("preempts", Vec::new())?;
    let find = |name: &String| match names.iter().position(|known| known == name) {
        Some(at) => Ok(QosId(at as u16)),
        None => {
            let known = names.iter().copied();
            Err(SettingsError::undefined("qos", name, known, table.place_of("preempts")))
        }
    };
    wanted.iter().map(find).collect()
}

fn accounts(file: &Table) -> Result<Accounts, SettingsError> {
    let mut accounts = Accounts::default();
    for branch in tree::sorted("account", named_tables(file, "account")?, Some("root"))? {
        let shares = positive(&branch.table, "shares")?.unwrap_or(1);
        branch.table.finish()?;
        let parent = branch.parent.and_then(|name| accounts.find(&name)).unwrap_or(Accounts::ROOT);
        accounts.add(branch.name, parent, shares);
    }
    Ok(accounts)
}

fn queues(file: &Table, cluster: &Cluster) -> Result<Queues, SettingsError> {
    let mut queues = Queues::default();
    for branch in tree::sorted("queue", named_tables(file, "queue")?, None)? {
        let weight = table_weight(&branch.table)?;
        let parent = branch.parent.and_then(|name| queues.find(&name));
        let queue = queues.add(branch.name, parent, weight);
        for table in branch.table.tables("grant")? {
            let table = table.titled(format!("a grant of {}", branch.table.title()));
            let kind = gpu_kind(&table, cluster)?;
            queues.grant(queue, kind, grant(&table)?);
        }
        branch.table.finish()?;
    }
    Ok(queues)
}

fn table_weight(table: &Table) -> Result<f64, DocumentError> {
    let weight = table.or("weight", 1.0)?;
    if weight > 0.0 { Ok(weight) } else { Err(table.bad_value("weight", "it must be larger than 0")) }
}

/// An accelerator of the cluster, or `gpu` where types are not told apart.
fn gpu_kind(table: &Table, cluster: &Cluster) -> Result<String, SettingsError> {
    let kind: String = table.or("gpu", ANY_GPU.to_owned())?;
    let there = cluster.kinds().iter().filter_map(|kind| kind.accelerator.as_deref());
    if kind == ANY_GPU || there.clone().any(|known| known == kind) {
        return Ok(kind);
    }
    Err(SettingsError::undefined("GPU type", &kind, there.chain([ANY_GPU]), table.place_of("gpu")))
}

fn grant(table: &Table) -> Result<Grant, DocumentError> {
    let grant = Grant {
        nominal: gpus(table, "nominal")?.unwrap_or(0),
        borrowing: gpus(table, "borrowing")?,
        lending: gpus(table, "lending")?,
    };
    table.finish()?;
    Ok(grant)
}

/// No more than sums over all queues can hold.
fn gpus(table: &Table, key: &str) -> Result<Option<u64>, DocumentError> {
    Ok(table.optional::<u32>(key)?.map(u64::from))
}

fn backfill(table: &Option<Table>) -> Result<Backfill, DocumentError> {
    let default = Backfill::default();
    let Some(table) = table else { return Ok(default) };
    let backfill = Backfill {
        reserved: positive::<u32>(table, "reserved")?.map_or(default.reserved, |count| count as usize),
        turn_within: span(table, "turn_within")?.unwrap_or(default.turn_within),
        slack: within(table, "slack", default.slack, 0.0, 100.0)?,
        passing_share: within(table, "passing_share", default.passing_share, 0.0, 1.0)?,
        overtakes: table.or("overtakes", default.overtakes)?,
        whole_nodes: table.or("whole_nodes", default.whole_nodes)?,
        resolution: span(table, "resolution")?.unwrap_or(default.resolution),
        replan_percent: table.or("replan_percent", default.replan_percent)?,
        replan_after: positive_span(table, "replan_after")?.unwrap_or(default.replan_after),
        cycle_slice: default.cycle_slice,
    };
    table.finish()?;
    Ok(backfill)
}

fn preemption(table: &Option<Table>) -> Result<PreemptionRules, DocumentError> {
    let default = PreemptionRules::default();
    let Some(table) = table else { return Ok(default) };
    let rules = PreemptionRules {
        is_allowed: table.or("allowed", default.is_allowed)?,
        most_waste: within(table, "most_waste", default.most_waste, 1.0, 1e6)?,
        most_victims: positive::<u32>(table, "most_victims")?
            .map_or(default.most_victims, |most| most as usize),
        damping: span(table, "damping")?.unwrap_or(default.damping),
        restart_cost: span(table, "restart_cost")?.unwrap_or(default.restart_cost),
    };
    table.finish()?;
    Ok(rules)
}

fn elastic(table: &Option<Table>) -> Result<ElasticRules, DocumentError> {
    let default = ElasticRules::default();
    let Some(table) = table else { return Ok(default) };
    let rules = ElasticRules {
        is_allowed: table.or("allowed", default.is_allowed)?,
        by: sizes_by(table)?,
        least_gain: within(table, "least_gain", default.least_gain, 0.0, 1.0)?,
        leave_within: span(table, "leave_within")?.unwrap_or(default.leave_within),
        settle: span(table, "settle")?.unwrap_or(default.settle),
        pause: span(table, "pause")?.unwrap_or(default.pause),
        power: within(table, "power", default.power, -4.0, 1.0)?,
    };
    table.finish()?;
    Ok(rules)
}

fn sizes_by(table: &Table) -> Result<SizesBy, DocumentError> {
    if !table.has("by") {
        table.allow("by");
        return Ok(ElasticRules::default().by);
    }
    table.choice("by", &[("request", SizesBy::Request), ("goodput", SizesBy::Goodput)])
}

fn within(table: &Table, key: &str, default: f64, least: f64, most: f64) -> Result<f64, DocumentError> {
    let number = table.or(key, default)?;
    if (least..=most).contains(&number) {
        return Ok(number);
    }
    Err(table.bad_value(key, format!("{number} is not between {least} and {most}")))
}
