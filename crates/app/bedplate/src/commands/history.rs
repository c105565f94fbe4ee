//! `bedplate history prune`: old jobs leave the journal.

use bedplate_terminal::present::moment;
use bedplate_terminal::{CliError, Console};
use bedplate_units::{Seconds, grouped};
use serde_json::json;

use crate::connection::Connection;

#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  bedplate history prune --dry-run
  bedplate history prune --older-than 90d
  bedplate history prune --keep 100000 --json

Removes only ended jobs, with their runs, notes and keys; usage counts the
rest. Without --older-than and --keep the site's limits apply, which the daemon
also applies by itself ([retention] in docs/site.md).")]
pub(crate) enum Arguments {
    /// Remove jobs that ended long ago
    Prune(Prune),
}

#[derive(clap::Args)]
pub(crate) struct Prune {
    /// Jobs that ended longer ago than this, as 90d
    #[arg(long, value_name = "TIME")]
    older_than: Option<Seconds>,
    /// All but this many of the newest
    #[arg(long, value_name = "COUNT")]
    keep: Option<u64>,
    /// Only count what would be removed
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let Arguments::Prune(prune) = arguments;
    let older_than_s = prune.older_than.map(|time| time.get() as u64);
    let pruned = prune.connection.local("history")?.prune(older_than_s, prune.keep, prune.dry_run)?;
    if console.is_json() {
        return console.json(&json!(pruned));
    }
    let would = if prune.dry_run { "would be removed" } else { "removed" };
    let counts = [(pruned.jobs, "jobs"), (pruned.runs, "runs"), (pruned.notes, "notes")];
    let counts: Vec<String> = counts.map(|(count, what)| format!("{} {what}", grouped(count))).into();
    console.line(&format!("{would}: {}, up to {} UTC", counts.join(", "), moment(pruned.before_ms)))
}
