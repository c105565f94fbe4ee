//! `bedplate health xid [CODE]`

use bedplate_diag::{Class, Diagnostic, Page};
use bedplate_health::{Decode, Profile, XidCatalog, XidEntry};
use bedplate_terminal::present::{Column, Facts, Table};
use bedplate_terminal::{CliError, Console};
use serde_json::{Value, json};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The number after `Xid` in the kernel log
    code: Option<u32>,
}

#[derive(Debug, thiserror::Error)]
#[error("the catalog has no XID {code}")]
struct UnknownXid {
    code: u32,
}

pub(super) static UNKNOWN_XID: Page = Page {
    code: "health/unknown-xid",
    class: Class::User,
    meaning: "The program's copy of NVIDIA's catalog of XIDs does not have that code. Drivers get new codes now and then; when a node reports one that is not known, it raises an alert.",
    remedy: "list the codes with `bedplate health xid`, and look the code up in NVIDIA's documentation of your driver's version",
};

impl Diagnostic for UnknownXid {
    fn page(&self) -> &'static Page {
        &UNKNOWN_XID
    }
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let catalog = XidCatalog::default();
    let Some(code) = arguments.code else { return list(&catalog, console) };
    let entry = catalog.entry(code).ok_or(UnknownXid { code })?;
    if console.is_json() {
        return console.json(&entry_json(entry));
    }
    console.text(&page(entry, console.width()))
}

fn list(catalog: &XidCatalog, console: &mut Console) -> Result<(), CliError> {
    if console.is_json() {
        return console.json(&Value::Array(catalog.entries().iter().map(entry_json).collect()));
    }
    let mut table = Table::new(vec![
        Column::right("XID", 0),
        Column::left("NVIDIA", 0),
        Column::left("AWS-EC2", 1),
        Column::left("STRICT", 1),
        Column::left("MEANING", 0),
    ]);
    for entry in catalog.entries() {
        let [nvidia, aws, strict] = Profile::ALL.map(|profile| entry.action(profile).to_string());
        table.row(vec![entry.xid.to_string(), nvidia, aws, strict, entry.meaning.clone()]);
    }
    console.table(&table)
}

fn page(entry: &XidEntry, width: Option<usize>) -> String {
    let mut facts = Facts::default();
    facts
        .add("meaning", entry.meaning.clone())
        .add("name", entry.mnemonic.clone())
        .add("NVIDIA says", entry.nvidia_says.clone())
        .add("layer", entry.layer.to_string());
    for profile in Profile::ALL {
        facts.add(profile.name(), entry.action(profile).to_string());
    }
    match entry.decode {
        Decode::Nothing => {}
        Decode::Severity => {
            facts.add("message", "a message that says `Nonfatal` is only watched");
        }
        Decode::Recovery => {
            facts.add("message", "the recovery action that the message names is followed");
        }
    }
    if entry.follows_another {
        facts.add("cause", "usually follows another XID of the same GPU; then that one counts");
    }
    facts.add("sources", entry.sources.clone());
    format!("XID {}\n{}", entry.xid, facts.render(width))
}

fn entry_json(entry: &XidEntry) -> Value {
    let actions: serde_json::Map<String, Value> =
        Profile::ALL.iter().map(|profile| (profile.to_string(), json!(entry.action(*profile)))).collect();
    json!({
        "xid": entry.xid,
        "mnemonic": entry.mnemonic,
        "meaning": entry.meaning,
        "nvidia_says": entry.nvidia_says,
        "layer": entry.layer,
        "actions": actions,
        "follows_another": entry.follows_another,
        "sources": entry.sources.split(' ').collect::<Vec<_>>(),
    })
}
