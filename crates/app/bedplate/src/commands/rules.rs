//! `bedplate rules`: recording and alerting rules for Prometheus, and their unit tests.

use std::path::PathBuf;

use bedplate_prometheus::{RuleOptions, rules_file, tests_file};
use bedplate_terminal::{CliError, Console};
use serde_json::json;

use crate::health_rules::{self, ProfileName};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate rules > rules.yml
  bedplate rules --tests > rules_test.yml
  promtool check rules rules.yml && promtool test rules rules_test.yml
  bedplate rules --profile aws-ec2 --health-rules own.toml --interval 2

Alerts on nodes are the health rules of `bedplate export`, translated; there
are also alerts on training, serving and the scheduler. For Prometheus 2.42 and
later.")]
pub(crate) struct Arguments {
    /// Print unit tests for promtool instead of the rules
    #[arg(long)]
    tests: bool,
    /// Whose advice about XIDs to follow
    #[arg(long, value_name = "PROFILE")]
    profile: Option<ProfileName>,
    /// Rules of your own, added to the built-in ones
    #[arg(long, value_name = "FILE")]
    health_rules: Option<PathBuf>,
    /// The label that carries the node's name
    #[arg(long, value_name = "LABEL", default_value = "Hostname", value_parser = ["Hostname", "hostname"])]
    hostname_label: String,
    /// Seconds between evaluations; Prometheus's own setting where absent
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: Option<u64>,
    /// What the unit tests call the rule file
    #[arg(long, value_name = "FILE", default_value = "rules.yml", requires = "tests")]
    rule_file: String,
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let options = RuleOptions {
        rules: health_rules::rules(arguments.profile, arguments.health_rules.as_deref())?,
        hostname: arguments.hostname_label.clone(),
        interval_s: arguments.interval,
    };
    let text = match arguments.tests {
        true => tests_file(&options, &arguments.rule_file),
        false => rules_file(&options),
    };
    if console.is_json() { console.json(&json!({ "yaml": text })) } else { console.text(&text) }
}
