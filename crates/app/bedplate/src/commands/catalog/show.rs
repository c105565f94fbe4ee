//! `bedplate catalog show NAME`: everything about one entry, with the source of each figure.

use bedplate_catalog::{Catalog, Price, Prices, Purchase, StoragePrice};
use bedplate_terminal::present::{Column, Facts, Table};
use bedplate_terminal::{CliError, Console};

use super::figures::{Entry, find};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate catalog show h200
  bedplate catalog show p5.48xlarge
  bedplate catalog show mountpoint-s3")]
pub(super) struct Arguments {
    /// An accelerator, instance, UltraServer, fabric or storage class
    name: String,
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let entry = find(&arguments.name, catalog)?;
    if console.is_json() {
        return console.json(&entry.json(catalog));
    }
    let title = entry.title().map(|title| format!(" ({title})")).unwrap_or_default();
    console.line(&format!("{}{title}", entry.name()))?;
    show_figures(&entry, catalog, console)?;
    match entry {
        Entry::Instance(instance) => show_prices(&instance.prices, console)?,
        Entry::UltraServer(ultraserver) => show_prices(&ultraserver.prices, console)?,
        Entry::Storage(class) => show_storage_prices(&class.prices, console)?,
        Entry::Accelerator(_) | Entry::Fabric(_) => {}
    }
    show_disagreements(&entry, console)?;
    show_sources(&entry, catalog, console)
}

fn show_figures(entry: &Entry<'_>, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let mut facts = Facts::default();
    for figure in entry.figures(catalog) {
        if let Some(source) = &figure.source {
            facts.add(&figure.label, format!("{} [{source}]", figure.text));
        }
    }
    facts.add_known("notes", entry.notes());
    console.text(&facts.render(console.width()))
}

fn show_prices(prices: &Prices, console: &mut Console) -> Result<(), CliError> {
    let mut table = Table::new(vec![
        Column::left("PRICE", 0),
        Column::right("PER HOUR", 0),
        Column::left("REGION", 0),
        Column::left("DATE", 0),
        Column::left("SOURCE", 1),
        Column::left("NOTE", 2),
    ]);
    for (name, purchase) in Purchase::ALL {
        for price in prices.of(purchase) {
            table.row(price_row(name, price));
        }
    }
    if table.is_empty() {
        return console.line("\nNo price is known; an overlay file can add yours.");
    }
    console.line("")?;
    console.table(&table)
}

fn price_row(name: &str, price: &Price) -> Vec<String> {
    vec![
        name.into(),
        price.per_hour.to_string(),
        price.region.clone(),
        price.date.clone(),
        price.source.clone(),
        price.note.clone().unwrap_or_default(),
    ]
}

fn show_storage_prices(prices: &[StoragePrice], console: &mut Console) -> Result<(), CliError> {
    if prices.is_empty() {
        return console.line("\nNo price is known; an overlay file can add yours.");
    }
    let mut facts = Facts::default();
    for price in prices {
        let doubt = price.doubtful.as_ref().map(|why| format!("; DOUBTFUL, not used: {why}"));
        let note = price.note.as_ref().map(|note| format!("; {note}"));
        let remarks = format!("{}{}", doubt.unwrap_or_default(), note.unwrap_or_default());
        let origin = format!("{}, {} [{}]", price.region, price.date, price.source);
        facts.add(&price.per_gb_month.to_string(), format!("{origin}{remarks}"));
    }
    console.text(&format!("\nPrice per GB and month:\n{}", facts.render(console.width())))
}

fn show_disagreements(entry: &Entry<'_>, console: &mut Console) -> Result<(), CliError> {
    let also = &entry.evidence().also;
    if also.is_empty() {
        return Ok(());
    }
    let mut facts = Facts::default();
    for other in also {
        let note = other.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        facts.add(&other.field, format!("{} [{}]{note}", other.value, other.source));
    }
    console.text(&format!("\nOther sources say, and are not used:\n{}", facts.render(console.width())))
}

/// The documents behind the keys in brackets.
fn show_sources(entry: &Entry<'_>, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let figures = entry.figures(catalog);
    let mut keys: Vec<&str> = figures.iter().filter_map(|figure| figure.source.as_deref()).collect();
    keys.extend(entry.evidence().also.iter().map(|other| other.source.as_str()));
    keys.sort_unstable();
    keys.dedup();
    let mut facts = Facts::default();
    for reference in keys.iter().filter_map(|key| catalog.reference(key)) {
        let date = reference.date.as_ref().map(|date| format!(", {date}")).unwrap_or_default();
        facts.add(&reference.key, format!("{} ({}{date})", reference.title, reference.kind.name()));
    }
    console.text(&format!("\nSources:\n{}", facts.render(console.width())))
}
