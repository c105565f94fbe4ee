//! `bedplate usage`: who used how many GPU-hours.

use bedplate_drivers::{UsageBy, UsageRow};
use bedplate_terminal::present::{Column, Table, bar, now_ms};
use bedplate_terminal::{CliError, Console, choice};
use bedplate_units::Seconds;
use serde_json::json;

use crate::connection::Connection;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate usage
  bedplate usage --by account --since 30d
  bedplate usage --by job --user ada --json")]
pub(crate) struct Arguments {
    /// What to group by
    #[arg(long, value_parser = choice(&UsageBy::ALL), default_value = "user")]
    by: UsageBy,
    /// Only usage in this time up to now, as 12h or 7d
    #[arg(long, value_name = "TIME")]
    since: Option<Seconds>,
    /// Only usage of this user
    #[arg(short, long)]
    user: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let since = arguments.since.map(|since| now_ms().saturating_sub((since.get() * 1000.0) as u64));
    let user = arguments.user.as_deref();
    let rows = match arguments.connection.slurm()? {
        Some(slurm) => slurm.usage(arguments.by, since, user)?,
        None => arguments.connection.local("usage")?.usage(arguments.by, since, user)?,
    };
    if console.is_json() {
        return console.json(&json!({ "by": arguments.by.name(), "since_ms": since, "usage": rows }));
    }
    if rows.is_empty() {
        console.say("nothing was used");
        return Ok(());
    }
    console.table(&table(arguments.by, &rows))
}

const BAR: usize = 24;

fn table(by: UsageBy, rows: &[UsageRow]) -> Table {
    let title = match by {
        UsageBy::User => "USER",
        UsageBy::Account => "ACCOUNT",
        UsageBy::Day => "DAY",
        UsageBy::Job => "JOB",
    };
    let mut table = Table::new(vec![
        Column::left(title, 0),
        Column::right("GPU-HOURS", 0),
        Column::right("RUNS", 1),
        Column::right("ENERGY", 2),
        Column::left("", 1),
    ]);
    let most = rows.iter().map(|row| row.gpu_hours).fold(0.0, f64::max);
    for row in rows {
        table.row(vec![
            row.key.clone(),
            format!("{:.2}", row.gpu_hours),
            row.runs.to_string(),
            row.energy_joules.map(|joules| format!("{:.2} kWh", joules / 3.6e6)).unwrap_or_default(),
            bar(if most > 0.0 { row.gpu_hours / most } else { 0.0 }, BAR),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn usage_is_shown_with_bars() {
        let row = |key: &str, gpu_hours, runs, energy_joules| UsageRow {
            key: key.into(),
            gpu_hours,
            runs,
            energy_joules,
        };
        let rows = [row("ada", 12.5, 3, Some(7.2e6)), row("grace", 3.125, 1, None)];
        expect![[r#"
            USER   GPU-HOURS  RUNS    ENERGY  
            ada        12.50     3  2.00 kWh  ████████████████████████
            grace       3.12     1         -  ██████░░░░░░░░░░░░░░░░░░
        "#]]
        .assert_eq(&table(UsageBy::User, &rows).fit(None).text.replace("ENERGY\n", "ENERGY  \n"));
    }
}
