//! `bedplate health …`: the rules, the XID catalog, and a deep check of this machine.

mod check;
mod rules;
mod xid;

use bedplate_diag::Page;
use bedplate_terminal::{CliError, Console};

#[cfg(test)]
pub(crate) use rules::when;

pub(crate) const PAGES: &[&Page] = &[&xid::UNKNOWN_XID];

#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  bedplate health rules                     what each rule watches and calls for
  bedplate health rules --own site.toml     check rules of your own
  bedplate health xid 79                    what a code means, by profile
  bedplate health check                     check this machine in depth, when it is idle")]
pub(crate) enum Arguments {
    /// All rules, or one explained
    Rules(rules::Arguments),
    /// All XIDs, or one explained
    Xid(xid::Arguments),
    /// Work this machine hard and compare every result: for idle nodes
    Check(check::Arguments),
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    match arguments {
        Arguments::Rules(arguments) => rules::run(arguments, console),
        Arguments::Xid(arguments) => xid::run(arguments, console),
        Arguments::Check(arguments) => check::run(arguments, console),
    }
}
