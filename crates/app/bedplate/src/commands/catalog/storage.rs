//! `bedplate catalog storage`

use bedplate_catalog::{Catalog, StorageClass, StoragePrice, StorageTier};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, choice};
use serde_json::Value;

use super::{json, known};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate catalog storage --tier shared
  bedplate catalog show mountpoint-s3     what it cannot do")]
pub(super) struct Arguments {
    /// Only this tier: local, shared, durable
    #[arg(long, value_parser = choice(&StorageTier::ALL))]
    tier: Option<StorageTier>,
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let is_wanted = |class: &&StorageClass| arguments.tier.is_none_or(|tier| tier == class.tier);
    let chosen: Vec<&StorageClass> = catalog.storage.iter().filter(is_wanted).collect();
    if console.is_json() {
        return console.json(&Value::Array(chosen.into_iter().map(json::storage).collect()));
    }
    let mut table = Table::new(vec![
        Column::left("NAME", 0),
        Column::left("TIER", 0),
        Column::left("POSIX", 2),
        Column::left("DURABLE", 3),
        Column::right("PER TIB", 1),
        Column::right("PER CLIENT", 1),
        Column::right("$/GB-MONTH", 0),
        Column::left("REGION", 3),
        Column::left("DATE", 3),
        Column::left("CANNOT", 4),
    ]);
    for class in chosen {
        let price = believed_price(class);
        table.row(vec![
            class.name.clone(),
            class.tier.name().into(),
            yes_no(class.is_posix),
            yes_no(class.is_durable),
            known(class.throughput_per_tib),
            known(class.throughput_per_client),
            known(price.map(|price| price.per_gb_month)),
            known(price.map(|price| &price.region)),
            known(price.map(|price| &price.date)),
            class.cannot.join("; "),
        ]);
    }
    console.table(&table)
}

fn yes_no(answer: bool) -> String {
    if answer { "yes" } else { "no" }.into()
}

/// The newest trusted price.
fn believed_price(class: &StorageClass) -> Option<&StoragePrice> {
    class.prices.iter().filter(|price| price.doubtful.is_none()).max_by_key(|price| &price.date)
}
