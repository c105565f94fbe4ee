//! `bedplate token add|list|revoke`: who may do what on a cluster.

use bedplate_terminal::present::{Column, Table, moment};
use bedplate_terminal::{CliError, Console};
use bedplate_units::Seconds;
use serde_json::{Value, json};

use crate::connection::Connection;

#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  bedplate token add ada
  bedplate token add grafana --role reader --expires 365d
  bedplate token list
  bedplate token revoke 3

Others use a token with BEDPLATE_SERVER and BEDPLATE_TOKEN in their
environment. Roles: a reader looks, a user submits and owns jobs, an operator
has all jobs and nodes, an admin makes tokens.")]
pub(crate) enum Arguments {
    /// Make a token; its text is shown this once
    Add {
        /// Whose token it is
        user: String,
        /// What it may do
        #[arg(long, value_parser = ["reader", "user", "operator", "admin", "agent"], default_value = "user")]
        role: String,
        /// How long it is valid, as 12h or 30d [default: for ever]
        #[arg(long, value_name = "TIME")]
        expires: Option<Seconds>,
        #[command(flatten)]
        connection: Connection,
    },
    /// All tokens, without their texts
    List {
        #[command(flatten)]
        connection: Connection,
    },
    /// Make a token worthless
    Revoke {
        /// As `token list` names it
        id: String,
        #[command(flatten)]
        connection: Connection,
    },
}

const ONE_USER: &str =
    "on nodes whose agent is not root all jobs run as one user, and roles protect little from a job";

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    match arguments {
        Arguments::Add { user, role, expires, connection } => {
            let seconds = expires.map(|expires| expires.get() as u64);
            let cluster = connection.local("tokens")?;
            let made = cluster.make_token(user, role, seconds)?;
            if console.is_json() {
                return console.json(&json!(made));
            }
            console.say(&format!("a {role} token of {user}; it is not shown again"));
            console.say(ONE_USER);
            let (url, fingerprint) = (cluster.place().url(), cluster.place().fingerprint.as_deref());
            let fingerprint = fingerprint.unwrap_or_default();
            console
                .say(&format!("it goes with BEDPLATE_SERVER={url} and BEDPLATE_FINGERPRINT={fingerprint}"));
            console.line(&made.token)
        }
        Arguments::List { connection } => list(connection, console),
        Arguments::Revoke { id, connection } => {
            connection.local("tokens")?.revoke_token(id)?;
            console.say(&format!("token {id} is worthless now"));
            if console.is_json() { console.json(&json!({ "revoked": id })) } else { Ok(()) }
        }
    }
}

fn list(connection: &Connection, console: &mut Console) -> Result<(), CliError> {
    let tokens = connection.local("tokens")?.tokens()?;
    if console.is_json() {
        return console.json(&json!({ "tokens": tokens }));
    }
    let mut table = Table::new(vec![
        Column::right("ID", 0),
        Column::left("USER", 0),
        Column::left("ROLE", 0),
        Column::left("EXPIRES (UTC)", 1),
    ]);
    for token in tokens {
        let id = match &token.id {
            Value::String(id) => id.clone(),
            other => other.to_string(),
        };
        table.row(vec![id, token.user, token.role, token.expires_ms.map(moment).unwrap_or_default()]);
    }
    console.table(&table)
}
