//! `bedplate catalog instances` and `catalog ultraservers`

use bedplate_catalog::{Bound, Catalog, Instance, Need, Prices, Purchase, refuse_unknown};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, choice};
use bedplate_units::{Bandwidth, Bytes, Dollars};
use serde_json::Value;

use super::{json, known};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate catalog instances --memory '>=141GB' --fabric efa
  bedplate catalog instances --accelerator h100 --purchase capacity-block
  bedplate catalog instances --scale-out '>=400GB/s' --price '<$100'

A bound is a value with >=, <=, >, < or = before it; a bare value means at least. An instance
whose figure is unknown does not meet a bound on it.")]
pub(super) struct Arguments {
    /// Memory of one accelerator, as sold
    #[arg(long, value_name = "BOUND")]
    memory: Option<Bound<Bytes>>,
    /// Memory of all accelerators together
    #[arg(long, value_name = "BOUND")]
    total_memory: Option<Bound<Bytes>>,
    /// Number of accelerators
    #[arg(long, value_name = "BOUND")]
    accelerators: Option<Bound<u32>>,
    /// Name or alias of the accelerator
    #[arg(long, value_name = "NAME")]
    accelerator: Option<String>,
    /// Name or family of a fabric: efa, efa-v3, infiniband, nvlink
    #[arg(long, value_name = "NAME")]
    fabric: Option<String>,
    /// Bandwidth to other machines, one way, over all cards
    #[arg(long, value_name = "BOUND")]
    scale_out: Option<Bound<Bandwidth>>,
    /// Who sells it: aws, nvidia, or your own
    #[arg(long)]
    provider: Option<String>,
    /// Dollars per hour, of the purchase and region shown
    #[arg(long, value_name = "BOUND")]
    price: Option<Bound<Dollars>>,
    /// Which price to show
    #[arg(long, value_parser = choice(&Purchase::ALL), default_value = "on-demand")]
    purchase: Purchase,
    /// Show prices of this region only
    #[arg(long)]
    region: Option<String>,
}

pub(super) fn run(arguments: Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    // Otherwise a misspelt name would just give an empty list.
    if let Some(name) = &arguments.accelerator {
        catalog.accelerator(name)?;
    }
    let fabrics = catalog.fabrics.iter().flat_map(|fabric| [&fabric.family, &fabric.name]);
    refuse_unknown("fabric", arguments.fabric.as_deref(), fabrics)?;
    refuse_unknown(
        "provider",
        arguments.provider.as_deref(),
        catalog.instances.iter().map(|entry| &entry.provider),
    )?;
    catalog.refuse_unknown_region(arguments.region.as_deref())?;
    let need = Need {
        memory: arguments.memory,
        total_memory: arguments.total_memory,
        accelerators: arguments.accelerators,
        accelerator: arguments.accelerator,
        fabric: arguments.fabric,
        scale_out: arguments.scale_out,
        provider: arguments.provider,
        price: arguments.price,
        purchase: arguments.purchase,
        region: arguments.region.clone(),
    };
    let chosen: Vec<&Instance> =
        catalog.instances.iter().filter(|instance| need.is_met_by(instance, catalog)).collect();
    if console.is_json() {
        let entries = chosen.into_iter().map(|instance| json::instance(instance, catalog));
        return console.json(&Value::Array(entries.collect()));
    }
    if chosen.is_empty() {
        console.say("no instance matches; loosen a bound, or see all with `bedplate catalog instances`");
        return Ok(());
    }
    let price = |prices: &Prices| shown_price(prices, arguments.purchase, arguments.region.as_deref());
    console.table(&instance_table(&chosen, catalog, price))
}

fn instance_table(chosen: &[&Instance], catalog: &Catalog, price: impl Fn(&Prices) -> ShownPrice) -> Table {
    let mut table = Table::new(vec![
        Column::left("NAME", 0),
        Column::left("ACCELERATORS", 0),
        Column::right("MEMORY", 0),
        Column::right("SCALE-UP", 2),
        Column::left("FABRIC", 3),
        Column::right("SCALE-OUT", 1),
        Column::right("VCPUS", 6),
        Column::right("HOST MEMORY", 5),
        Column::right("LOCAL DISK", 7),
        Column::right("PRICE", 0),
        Column::left("REGION", 4),
        Column::left("DATE", 4),
    ]);
    for instance in chosen {
        let accelerator = catalog.accelerator_of(instance);
        let price = price(&instance.prices);
        table.row(vec![
            instance.name.clone(),
            format!("{} x {}", instance.accelerators, accelerator.name),
            catalog.total_memory(instance).to_string(),
            known(instance.scale_up_bandwidth),
            known(instance.scale_out.as_ref()),
            known(instance.scale_out_bandwidth),
            known(instance.vcpus),
            known(instance.host_memory.map(|memory| format!("{memory:#}"))),
            known(instance.local_storage.as_ref().map(|disks| disks.capacity())),
            price.rate,
            price.region,
            price.date,
        ]);
    }
    table
}

/// A price as a list shows it; empty where none is known.
#[derive(Default)]
struct ShownPrice {
    rate: String,
    region: String,
    date: String,
}

/// The newest price of a kind.
fn shown_price(prices: &Prices, purchase: Purchase, region: Option<&str>) -> ShownPrice {
    prices.newest(purchase, region).map_or_else(ShownPrice::default, |price| ShownPrice {
        rate: price.per_hour.to_string(),
        region: price.region.clone(),
        date: price.date.clone(),
    })
}

pub(super) fn run_ultraservers(catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    if console.is_json() {
        return console.json(&Value::Array(catalog.ultraservers.iter().map(json::ultraserver).collect()));
    }
    let mut table = Table::new(vec![
        Column::left("NAME", 0),
        Column::right("ACCELERATORS", 0),
        Column::left("MADE OF", 2),
        Column::right("MEMORY", 0),
        Column::right("SCALE-UP", 1),
        Column::left("FABRIC", 3),
        Column::right("SCALE-OUT", 1),
        Column::right("CAPACITY BLOCK", 4),
    ]);
    for ultraserver in &catalog.ultraservers {
        table.row(vec![
            ultraserver.name.clone(),
            ultraserver.accelerators.to_string(),
            format!("{} x {}", ultraserver.instances, ultraserver.instance),
            known(ultraserver.accelerator_memory),
            known(ultraserver.scale_up_bandwidth),
            known(ultraserver.scale_out.as_ref()),
            known(ultraserver.scale_out_bandwidth),
            shown_price(&ultraserver.prices, Purchase::CapacityBlock, None).rate,
        ]);
    }
    console.table(&table)
}
