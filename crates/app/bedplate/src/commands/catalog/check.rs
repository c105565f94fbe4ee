//! `bedplate catalog check FILE…`

use bedplate_catalog::Catalog;
use bedplate_diag::Source;
use bedplate_terminal::{CliError, Console, Context, files};
use serde_json::json;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate catalog check own.toml")]
pub(super) struct Arguments {
    /// Overlay files, applied in this order
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
}

pub(super) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let before = context.load_catalog()?;
    let paths: Vec<&String> = context.overlays.iter().chain(&arguments.files).collect();
    let texts = paths.iter().map(|path| files::read_text(path)).collect::<Result<Vec<_>, _>>()?;
    let sources: Vec<Source<'_>> =
        paths.iter().zip(&texts).map(|(path, text)| Source::new(path, text)).collect();
    let after = Catalog::with_overlays(&sources)?;

    let entries = entry_names(&after);
    let is_new = |entry: &&(&str, &str)| !entry_names(&before).contains(entry);
    let added: Vec<String> =
        entries.iter().filter(is_new).map(|(kind, name)| format!("{kind} {name}")).collect();
    let changed: Vec<String> = changed_entries(&before, &after);
    if console.is_json() {
        return console.json(&json!({ "is_valid": true, "added": added, "changed": changed }));
    }
    let listed = |names: &[String]| if names.is_empty() { "nothing".into() } else { names.join(", ") };
    console.line(&format!("valid; adds {}; changes {}", listed(&added), listed(&changed)))
}

fn entry_names(catalog: &Catalog) -> Vec<(&'static str, &str)> {
    let accelerators = catalog.accelerators.iter().map(|entry| ("accelerator", entry.name.as_str()));
    let instances = catalog.instances.iter().map(|entry| ("instance", entry.name.as_str()));
    let ultraservers = catalog.ultraservers.iter().map(|entry| ("ultraserver", entry.name.as_str()));
    let fabrics = catalog.fabrics.iter().map(|entry| ("fabric", entry.name.as_str()));
    let storage = catalog.storage.iter().map(|entry| ("storage", entry.name.as_str()));
    accelerators.chain(instances).chain(ultraservers).chain(fabrics).chain(storage).collect()
}

fn changed_entries(before: &Catalog, after: &Catalog) -> Vec<String> {
    fn changed<'a, T: PartialEq>(
        kind: &'static str,
        before: &'a [T],
        after: &'a [T],
        name: impl Fn(&T) -> &str + 'a,
    ) -> impl Iterator<Item = String> + 'a {
        let differs = move |entry: &&T| !before.contains(*entry);
        let names: Vec<String> = after
            .iter()
            .filter(differs)
            .filter(|entry| before.iter().any(|old| name(old) == name(entry)))
            .map(|entry| format!("{kind} {}", name(entry)))
            .collect();
        names.into_iter()
    }
    changed("accelerator", &before.accelerators, &after.accelerators, |entry| &entry.name)
        .chain(changed("instance", &before.instances, &after.instances, |entry| &entry.name))
        .chain(changed("ultraserver", &before.ultraservers, &after.ultraservers, |entry| &entry.name))
        .chain(changed("fabric", &before.fabrics, &after.fabrics, |entry| &entry.name))
        .chain(changed("storage", &before.storage, &after.storage, |entry| &entry.name))
        .collect()
}
