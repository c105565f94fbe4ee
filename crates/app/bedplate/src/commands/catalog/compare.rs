//! `bedplate catalog compare A B …`

use bedplate_catalog::Catalog;
use bedplate_diag::{Class, Diagnostic, Page};
use bedplate_terminal::present::{Column, Facts, Table};
use bedplate_terminal::{CliError, Console};
use serde_json::Value;

use super::figures::{Entry, Figure, find};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate catalog compare p5.48xlarge p6-b200.48xlarge
  bedplate catalog compare h100 h200 b200
  bedplate catalog compare fsx-lustre-scratch s3-express")]
pub(super) struct Arguments {
    /// Two or more entries of one kind
    #[arg(required = true, num_args = 2.., value_name = "NAME")]
    names: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
#[error("`{first}` ({first_kind}) and `{second}` ({second_kind}) cannot be compared")]
struct DifferentKinds {
    first: String,
    first_kind: &'static str,
    second: String,
    second_kind: &'static str,
}

pub(super) static DIFFERENT_KINDS: Page = Page {
    code: "catalog/different-kinds",
    class: Class::User,
    meaning: "Entries can be compared only if they are of one kind, because only then do they have the same figures.",
    remedy: "name two accelerators, two machines, two fabrics or two storage classes",
};

impl Diagnostic for DifferentKinds {
    fn page(&self) -> &'static Page {
        &DIFFERENT_KINDS
    }
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let entries = arguments.names.iter().map(|name| find(name, catalog)).collect::<Result<Vec<_>, _>>()?;
    if let Some(odd) = entries.iter().find(|entry| entry.kind() != entries[0].kind()) {
        return Err(DifferentKinds {
            first: entries[0].name().to_owned(),
            first_kind: entries[0].kind(),
            second: odd.name().to_owned(),
            second_kind: odd.kind(),
        }
        .into());
    }
    if console.is_json() {
        return console.json(&Value::Array(entries.iter().map(|entry| entry.json(catalog)).collect()));
    }
    console.text(&render(&entries, catalog, console.width()))
}

/// Figures as rows, entries as columns, and the ratio where there are two.
fn render(entries: &[Entry<'_>], catalog: &Catalog, width: Option<usize>) -> String {
    let figures: Vec<Vec<Figure>> = entries.iter().map(|entry| entry.figures(catalog)).collect();
    let labels = merged_labels(&figures);
    let mut columns = vec![Column::left("", 0)];
    columns.extend(entries.iter().map(|_| Column::right("", 0)));
    columns.push(Column::right("", 1));
    let mut table = Table::new(columns);
    let ratio_title = if entries.len() == 2 { "RATIO" } else { " " };
    let names = entries.iter().map(|entry| entry.name().to_owned());
    table.row([" ".to_owned()].into_iter().chain(names).chain([ratio_title.to_owned()]).collect());
    for label in labels {
        let row: Vec<Option<&Figure>> =
            figures.iter().map(|list| list.iter().find(|figure| figure.label == label)).collect();
        let cells = row.iter().map(|figure| figure.map_or_else(String::new, |figure| figure.text.clone()));
        table.row([label.to_owned()].into_iter().chain(cells).chain([ratio(&row)]).collect());
    }
    // The titles are a separate row, because they are names and not fixed texts.
    let text = table.fit(width).text;
    let text = text.split_once('\n').map_or(text.clone(), |(_, rows)| rows.to_owned());
    let is_too_wide = width.is_some_and(|width| text.lines().any(|line| line.chars().count() > width));
    if is_too_wide { stacked(entries, &figures, width) } else { text }
}

/// For narrow terminals: each figure followed by its values, one per line.
fn stacked(entries: &[Entry<'_>], figures: &[Vec<Figure>], width: Option<usize>) -> String {
    let mut text = String::new();
    for label in merged_labels(figures) {
        let mut facts = Facts::default();
        for (entry, list) in entries.iter().zip(figures) {
            let figure = list.iter().find(|figure| figure.label == label);
            facts.add(entry.name(), figure.map_or("-", |figure| &figure.text));
        }
        text += &format!("{label}\n{}", facts.render(width));
    }
    text
}

/// The labels of all lists; one that only a later list has comes after its neighbour there.
fn merged_labels(figures: &[Vec<Figure>]) -> Vec<&str> {
    let mut labels: Vec<&str> = Vec::new();
    for list in figures {
        let mut next = 0;
        // Long lists of spellings belong to `show`.
        for label in list.iter().map(|figure| figure.label.as_str()).filter(|label| *label != "also called") {
            next = match labels.iter().position(|known| *known == label) {
                Some(at) => at + 1,
                None => {
                    labels.insert(next, label);
                    next + 1
                }
            };
        }
    }
    labels
}

/// The second figure over the first, if there are just two and both are numbers.
fn ratio(row: &[Option<&Figure>]) -> String {
    let numbers: Vec<f64> = row.iter().filter_map(|figure| figure.and_then(|figure| figure.number)).collect();
    match (row.len(), numbers.as_slice()) {
        (2, [first, second]) if *first > 0.0 => format!("{:.2}x", second / first),
        _ => " ".into(),
    }
}
