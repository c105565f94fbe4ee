//! `scontrol show hostnames`, the one thing scripts ask it for inside jobs.

use std::io::{self, Write};

use bedplate_topology::expand_hostlist;

use super::addresses::Addresses;

/// Prints one name a line. Everything else is refused with what to use instead.
pub(super) fn run(arguments: &[String]) -> Result<u8, String> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let list = match words.as_slice() {
        ["show", "hostnames" | "hostname"] => std::env::var("SLURM_JOB_NODELIST")
            .map_err(|_| "no node list was given and SLURM_JOB_NODELIST is not set".to_owned())?,
        ["show", "hostnames" | "hostname", list] => (*list).to_owned(),
        ["show", "job" | "jobs", ..] => return Err("use `bedplate job show` instead".to_owned()),
        ["show", "node" | "nodes", ..] => return Err("use `bedplate node show` instead".to_owned()),
        _ => {
            let asked = arguments.join(" ");
            return Err(format!(
                "inside Bedplate only `scontrol show hostnames [LIST]` is there, not `{asked}`"
            ));
        }
    };
    let names = expand_hostlist(&list).map_err(|error| error.to_string())?;
    let addresses = Addresses::of_environment();
    let lines: String = names.iter().map(|name| addresses.reachable(name) + "\n").collect();
    io::stdout().write_all(lines.as_bytes()).map_err(|error| error.to_string())?;
    Ok(0)
}
