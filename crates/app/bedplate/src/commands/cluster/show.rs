//! `bedplate cluster show CLUSTER`

use bedplate_catalog::Catalog;
use bedplate_terminal::present::{Column, Facts, Table};
use bedplate_terminal::{CliError, Console};
use bedplate_topology::{Cluster, Health, Level, NodeRange, PathStage, Summary, compress_hostlist};
use bedplate_units::grouped;
use serde_json::{Value, json};

use crate::clusters::slurm;
use crate::clusters::{Reading, load_all};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate cluster show p5.48xlarge:64
  bedplate cluster show u-p6e-gb200x72:4
  bedplate cluster show p5.48xlarge:64+p5en.48xlarge:8
  bedplate cluster show cluster.toml --json
  bedplate cluster show context:site

For a Slurm (context:NAME) it shows partitions, QOS and fair shares too.")]
pub(crate) struct Arguments {
    /// INSTANCE:COUNT, several joined by `+`, context:NAME, or the files of one description
    #[arg(required = true, value_name = "CLUSTER")]
    cluster: Vec<String>,
    #[command(flatten)]
    reading: Reading,
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let cluster = load_all(&arguments.cluster, &arguments.reading, catalog)?;
    let summary = cluster.summary();
    let slurm = match arguments.cluster.as_slice() {
        [only] => slurm::named(only)?,
        _ => None,
    };
    if console.is_json() {
        let mut json = cluster_json(&cluster, &summary);
        if let Some(slurm) = &slurm {
            json["slurm"] = slurm::site_json(slurm)?;
        }
        return console.json(&json);
    }
    let mut facts = Facts::default();
    facts.add("nodes", grouped(summary.nodes.into())).add(
        "GPUs",
        format!("{} ({} usable)", grouped(summary.gpus.into()), grouped(summary.usable_gpus.into())),
    );
    let health: Vec<String> =
        summary.health.iter().map(|count| format!("{} {}", count.nodes, count.health)).collect();
    facts.add("health", health.join(", "));
    for storage in &summary.storage {
        facts.add("storage", format!("{}, {}", storage.class, storage.capacity));
    }
    facts.add_known("domains", domain_text(&summary)).add_known("scale-out", scale_out_text(&cluster));
    console.text(&format!("{}\n{}", summary.name, facts.render(console.width())))?;
    console.line("")?;
    console.table(&kind_table(&cluster, &summary))?;
    console.line("")?;
    console.table(&level_table(&summary))?;
    slurm.map_or(Ok(()), |slurm| slurm::show_site(&slurm, console))
}

/// The sizes of scale-up domains; their bandwidth is in the table of kinds.
fn domain_text(summary: &Summary) -> Option<String> {
    let domains = summary.levels.iter().find(|count| count.level == Level::Domain)?;
    let size = match domains.smallest == domains.largest {
        true => domains.largest.to_string(),
        false => format!("{} to {}", domains.smallest, domains.largest),
    };
    Some(format!("{} scale-up domains of {size} GPUs", grouped(domains.sets.into())))
}

/// What every GPU can send to the rest of the cluster when all send, and the bottleneck.
fn scale_out_text(cluster: &Cluster) -> Option<String> {
    if cluster.node_count() < 2 {
        return None;
    }
    let network = cluster.scale_out_bandwidth(cluster.gpus())?;
    let narrowest = match network.narrowest {
        PathStage::Cards(_) => "the nodes' network cards".to_owned(),
        PathStage::Uplinks(switch) => format!("the uplinks of switch {}", cluster.switch(switch).name()),
    };
    Some(format!("{} per GPU one way when all send; {narrowest} are the bottleneck", network.per_gpu))
}

fn kind_table(cluster: &Cluster, summary: &Summary) -> Table {
    let mut table = Table::new(vec![
        Column::left("KIND", 0),
        Column::right("NODES", 0),
        Column::right("GPUS", 0),
        Column::left("ACCELERATOR", 0),
        Column::right("SCALE-UP", 1),
        Column::left("FABRIC", 2),
        Column::right("SCALE-OUT", 1),
        Column::right("CARDS", 2),
        Column::right("VCPUS", 3),
    ]);
    let text = |value: Option<String>| value.unwrap_or_default();
    for (count, kind) in summary.kinds.iter().zip(cluster.kinds()) {
        table.row(vec![
            count.kind.clone(),
            grouped(count.nodes.into()),
            grouped(count.gpus.into()),
            text(kind.accelerator.clone()),
            text(kind.scale_up_bandwidth.map(|rate| rate.to_string())),
            text(kind.scale_out.clone()),
            text(kind.scale_out_bandwidth.map(|rate| rate.to_string())),
            text(kind.network_cards.map(|count| count.to_string())),
            text(kind.vcpus.map(|count| count.to_string())),
        ]);
    }
    table
}

fn level_table(summary: &Summary) -> Table {
    let mut table =
        Table::new(vec![Column::left("LEVEL", 0), Column::right("SETS", 0), Column::right("GPUS EACH", 0)]);
    for level in &summary.levels {
        let each = match level.smallest == level.largest {
            true => grouped(level.largest.into()),
            false => format!("{} to {}", grouped(level.smallest.into()), grouped(level.largest.into())),
        };
        table.row(vec![level.level.to_string(), grouped(level.sets.into()), each]);
    }
    table
}

pub(super) fn cluster_json(cluster: &Cluster, summary: &Summary) -> Value {
    let kind = |(count, kind): (&bedplate_topology::KindCount, &bedplate_topology::NodeKind)| {
        json!({
            "kind": count.kind,
            "instance": kind.instance,
            "accelerator": kind.accelerator,
            "nodes": count.nodes,
            "gpus": count.gpus,
            "gpus_per_node": kind.accelerators,
            "scale_up_domains_per_node": kind.domain_sizes,
            "scale_up_one_way_bytes_per_s_per_gpu": kind.scale_up_bandwidth.map(|rate| rate.get()),
            "scale_out": kind.scale_out,
            "scale_out_one_way_bytes_per_s_per_node": kind.scale_out_bandwidth.map(|rate| rate.get()),
            "network_cards": kind.network_cards,
            "vcpus": kind.vcpus,
            "memory_bytes": kind.memory.map(|size| size.get().round() as u64),
        })
    };
    let levels = summary.levels.iter().map(|level| {
        json!({
            "level": level.level.to_string(),
            "sets": level.sets,
            "gpus_smallest": level.smallest,
            "gpus_largest": level.largest,
        })
    });
    let health = summary.health.iter().map(|count| (count.health.name().to_owned(), json!(count.nodes)));
    let storage = summary
        .storage
        .iter()
        .map(|storage| json!({ "class": storage.class, "capacity_bytes": storage.capacity.get() }));
    let network = cluster.scale_out_bandwidth(cluster.gpus());
    let names = |nodes: NodeRange| compress_hostlist(nodes.into_iter().map(|node| cluster.node(node).name()));
    let switches = cluster.switches().map(|switch| {
        json!({
            "name": switch.name(),
            "level": switch.level().to_string(),
            "parent": switch.parent().map(|parent| parent.name()),
            "nodes": names(switch.nodes()),
            "oversubscription": switch.oversubscription(),
        })
    });
    let unhealthy = cluster.nodes().into_iter().filter(|node| cluster.health(*node) != Health::Healthy);
    let unhealthy = unhealthy.map(|node| {
        json!({
            "node": cluster.node(node).name(),
            "health": cluster.health(node).name(),
            "reason": cluster.reason(node),
        })
    });
    json!({
        "name": summary.name,
        "nodes": summary.nodes,
        "gpus": summary.gpus,
        "usable_gpus": summary.usable_gpus,
        "kinds": summary.kinds.iter().zip(cluster.kinds()).map(kind).collect::<Vec<_>>(),
        "levels": levels.collect::<Vec<_>>(),
        "health": Value::Object(health.collect()),
        "storage": storage.collect::<Vec<_>>(),
        "node_names": names(cluster.nodes()),
        "switches": switches.collect::<Vec<_>>(),
        "unhealthy": unhealthy.collect::<Vec<_>>(),
        "scale_out_one_way_bytes_per_s_per_gpu": network.map(|network| network.per_gpu.get()),
    })
}
