//! A cluster as its Slurm tells of it: `context:NAME` where a cluster is named.

use std::collections::BTreeSet;

use bedplate_catalog::Catalog;
use bedplate_diag::Source;
use bedplate_drivers::{Driver, NodeId, Slurm};
use bedplate_terminal::present::{Column, Table, clock};
use bedplate_terminal::{CliError, Console, ProgramError};
use bedplate_topology::{Cluster, Format, ImportOptions, import};
use serde_json::Value;

use crate::connection::Connection;

const PREFIX: &str = "context:";

/// The Slurm that `context:NAME` names; nothing for any other text.
pub(crate) fn named(text: &str) -> Result<Option<Slurm>, CliError> {
    let Some(name) = text.strip_prefix(PREFIX) else { return Ok(None) };
    match Connection::named(name).slurm()? {
        Some(slurm) => Ok(Some(slurm)),
        None => {
            let message = format!(
                "context `{name}` is no Slurm, and only a Slurm tells what its nodes and switches are"
            );
            Err(ProgramError::Usage { message }.into())
        }
    }
}

/// The whole cluster, or the part of these nodes.
pub(crate) fn load(
    slurm: &Slurm,
    only: &[NodeId],
    options: ImportOptions,
    catalog: &Catalog,
) -> Result<Cluster, CliError> {
    let topology = slurm.topology()?;
    let only: BTreeSet<String> = only.iter().map(NodeId::to_string).collect();
    let nodes = topology.slurm_conf(&only);
    let switches = topology.topology_conf(&only);
    let mut sources = vec![Source::new("the nodes that Slurm tells of", &nodes)];
    if let Some(switches) = &switches {
        sources.push(Source::new("the switches that Slurm tells of", switches));
    }
    let name = options.name.or_else(|| slurm.cluster().ok().map(|view| view.name));
    Ok(import(Format::Slurm, &sources, &ImportOptions { name, ..options }, catalog)?)
}

/// Partitions, QOS and shares, below the cluster itself.
pub(crate) fn show_site(slurm: &Slurm, console: &mut Console) -> Result<(), CliError> {
    let view = slurm.cluster()?;
    for (key, table) in
        [("partitions", partitions as fn(&[Value]) -> Table), ("qos", qos), ("shares", shares)]
    {
        if let Some(rows) = view.rest.get(key).and_then(Value::as_array).filter(|rows| !rows.is_empty()) {
            console.line("")?;
            console.table(&table(rows))?;
        }
    }
    console.say_notes(slurm.remarks());
    Ok(())
}

/// The same as one value, beside the description of the cluster.
pub(crate) fn site_json(slurm: &Slurm) -> Result<Value, CliError> {
    let view = slurm.cluster()?;
    let keys = ["version", "partitions", "qos", "shares"];
    let entries = keys.into_iter().filter_map(|key| Some((key.to_owned(), view.rest.get(key)?.clone())));
    Ok(Value::Object(entries.collect()))
}

fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Array(list) => list.iter().map(word).collect::<Vec<_>>().join(", "),
        Value::Number(number) if number.is_f64() => format!("{:.3}", number.as_f64().unwrap_or(0.0)),
        other => other.to_string(),
    }
}

fn partitions(rows: &[Value]) -> Table {
    let mut table = Table::new(vec![
        Column::left("PARTITION", 0),
        Column::left("STATE", 0),
        Column::right("NODES", 0),
        Column::left("LONGEST", 0),
        Column::right("MOST NODES", 1),
        Column::right("TIER", 2),
        Column::left("ACCOUNTS", 2),
        Column::left("QOS", 2),
    ]);
    for row in rows {
        let mark = if row["is_default"] == true { " (default)" } else { "" };
        let longest = row["longest_min"].as_u64().map_or("any".to_owned(), |minutes| clock(minutes * 60_000));
        table.row(vec![
            format!("{}{mark}", word(&row["name"])),
            if row["is_up"] == true { "up" } else { "down" }.to_owned(),
            word(&row["node_count"]),
            longest,
            word(&row["most_nodes"]),
            word(&row["tier"]),
            word(&row["accounts"]),
            word(&row["qos"]),
        ]);
    }
    table
}

fn qos(rows: &[Value]) -> Table {
    let mut table =
        Table::new(vec![Column::left("QOS", 0), Column::right("PRIORITY", 0), Column::left("LIMITS", 1)]);
    for row in rows {
        table.row(vec![word(&row["name"]), word(&row["priority"]), word(&row["limits"])]);
    }
    table
}

fn shares(rows: &[Value]) -> Table {
    let mut table = Table::new(vec![
        Column::left("ACCOUNT", 0),
        Column::left("USER", 0),
        Column::right("SHARE", 0),
        Column::right("USED", 0),
        Column::right("FAIR SHARE", 0),
    ]);
    for row in rows {
        table.row(["account", "user", "shares", "usage", "fair_share"].map(|key| word(&row[key])).to_vec());
    }
    table
}
