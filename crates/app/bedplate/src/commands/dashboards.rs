//! `bedplate dashboards`: dashboards for Grafana.

use bedplate_diag::{Class, Diagnostic, Page, nearest};
use bedplate_prometheus::dashboards;
use bedplate_prometheus::grafana::Dashboard;
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, files};
use serde_json::{Value, json};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate dashboards
  bedplate dashboards gpu-health-cluster > board.json
  bedplate dashboards --output /var/lib/grafana/dashboards

Without a name it lists them. Grafana 10.4 and later imports the JSON, or reads the folder by its
provisioning. Queries use metrics of `bedplate export`, `bedplate train`, the daemon and vLLM.")]
pub(crate) struct Arguments {
    /// A name from the list; its JSON goes to standard output
    name: Option<String>,
    /// Write every dashboard into this folder
    #[arg(long, value_name = "DIR", conflicts_with = "name")]
    output: Option<String>,
    /// The label that carries the node's name
    #[arg(long, value_name = "LABEL", default_value = "Hostname", value_parser = ["Hostname", "hostname"])]
    hostname_label: String,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DashboardError {
    #[error("no dashboard is called `{name}`")]
    Unknown { name: String },
}

pub(crate) const PAGES: &[&Page] = &[&UNKNOWN];

static UNKNOWN: Page = Page {
    code: "dashboards/unknown-name",
    class: Class::User,
    meaning: "The program has no dashboard of that name.",
    remedy: "list them with `bedplate dashboards`",
};

impl Diagnostic for DashboardError {
    fn page(&self) -> &'static Page {
        match self {
            DashboardError::Unknown { .. } => &UNKNOWN,
        }
    }

    fn help(&self) -> Option<String> {
        let DashboardError::Unknown { name } = self;
        let boards = dashboards::all();
        nearest(name, boards.iter().map(|(file, _)| *file)).map(|name| format!("did you mean `{name}`?"))
    }
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let boards = dashboards::all();
    if let Some(name) = &arguments.name {
        let found = boards.iter().find(|(file, _)| file == name);
        let (_, board) = found.ok_or_else(|| DashboardError::Unknown { name: name.clone() })?;
        return console.json(&board.to_json(&arguments.hostname_label));
    }
    if let Some(folder) = &arguments.output {
        for (file, board) in &boards {
            let text = format!("{:#}\n", board.to_json(&arguments.hostname_label));
            files::write_text(&format!("{folder}/{file}.json"), &text)?;
        }
        console.say(&format!("wrote {} dashboards into {folder}", boards.len()));
        return Ok(());
    }
    list(&boards, console)
}

fn list(boards: &[(&'static str, Dashboard)], console: &mut Console) -> Result<(), CliError> {
    if console.is_json() {
        let one = |(file, board): &(&str, Dashboard)| json!({ "name": file, "title": board.title, "uid": board.uid, "panels": board.panels().count(), "queries": board.queries().count() });
        return console.json(&Value::Array(boards.iter().map(one).collect()));
    }
    let mut table = Table::new(vec![
        Column::left("NAME", 0),
        Column::left("TITLE", 0),
        Column::right("PANELS", 1),
        Column::left("SHOWS", 2),
    ]);
    for (file, board) in boards {
        let panels = board.panels().count().to_string();
        table.row(vec![(*file).to_owned(), board.title.to_owned(), panels, board.description.to_owned()]);
    }
    console.table(&table)
}
