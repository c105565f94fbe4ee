//! The rules of ARCHITECTURE.md, checked by a test.
//!
//! A crate imports only lower layers, or crates listed before it in its own layer. Pure crates import
//! only pure packages and touch neither files, network, environment, threads nor clocks. Tests may use the
//! `dev` layer; code may not. A type's name tells which crate it is of, or one other at most.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::{ArchitectureMap, Dependency, Package, Use, Workspace};

/// Layers in which every crate is pure.
const PURE_LAYERS: [&str; 4] = ["base", "domain", "plan", "schedule"];
/// Pure crates in other layers.
const PURE_CRATES: [(&str, &str); 3] = [("observe", "health"), ("observe", "logs"), ("observe", "diagnose")];
/// Packages from outside that a pure crate may import: they parse, print or derive, and do no I/O.
const PURE_PACKAGES: [&str; 11] = [
    "serde",
    "serde_json",
    "serde-saphyr",
    "thiserror",
    "toml",
    "strsim",
    "csv-core",
    "libm",
    "regex",
    "aho-corasick",
    "memchr",
];
/// What pure code may not name, and what to do instead.
const IMPURE_NAMES: [(&str, &str); 8] = [
    ("std::fs", "take the text as an argument"),
    ("std::net", "take the message as an argument"),
    ("std::env", "take the setting as an argument"),
    ("std::process", "return the command as a decision"),
    ("std::thread", "return the work as a decision"),
    ("Instant::now", "take `now` as an argument"),
    ("SystemTime", "take `now` as an argument"),
    ("std::io", "take the text as an argument"),
];
/// Layers whose decisions must not depend on hash order. Elsewhere hashes are for lookups, and a
/// lint forbids iterating over them.
const ORDERED_LAYERS: [&str; 2] = ["plan", "schedule"];
const UNORDERED_NAMES: [(&str, &str); 2] = [
    ("HashMap", "use BTreeMap, whose order is the same everywhere"),
    ("HashSet", "use BTreeSet, whose order is the same everywhere"),
];
/// The layer for tests.
const DEV: &str = "dev";

/// How large the workspace is. Who adds more raises these in the commit that adds it, and says there what for.
const MOST_CRATES: usize = 60;
const MOST_RUST_LINES: usize = 330_000;

/// Everything in the workspace that breaks a rule, as sentences.
pub fn violations(workspace: &Workspace, map: &ArchitectureMap) -> Vec<String> {
    let mut found = Vec::new();
    for package in &workspace.packages {
        found.extend(misplacement(package, map));
        for dependency in package.dependencies.iter().filter(|each| each.used != Use::Tests) {
            found.extend(forbidden_import(package, dependency, workspace, map));
        }
    }
    found.extend(phantoms(workspace, map));
    found
}

fn misplacement(package: &Package, map: &ArchitectureMap) -> Option<String> {
    let Package { package: cargo_name, layer, name, .. } = package;
    let expected = if name == "bedplate" { name.clone() } else { format!("bedplate-{name}") };
    if *cargo_name != expected {
        return Some(format!("{cargo_name} is in {layer}/{name} and should be called {expected}"));
    }
    map.position(layer, name)
        .is_none()
        .then(|| format!("{layer}/{name} is not on the map in ARCHITECTURE.md; add it to its layer"))
}

/// Crates on the map that do not exist.
fn phantoms(workspace: &Workspace, map: &ArchitectureMap) -> Vec<String> {
    let exists = |layer: &str, name: &str| {
        workspace.packages.iter().any(|package| package.layer == layer && package.name == name)
    };
    let listed = map.layers.iter().flat_map(|layer| layer.crates.iter().map(|name| (&layer.name, name)));
    let missing = listed.filter(|(layer, name)| !exists(layer, name));
    missing.map(|(layer, name)| format!("{layer}/{name} is on the map but does not exist")).collect()
}

fn forbidden_import(
    package: &Package,
    dependency: &Dependency,
    workspace: &Workspace,
    map: &ArchitectureMap,
) -> Option<String> {
    let importer = format!("{}/{}", package.layer, package.name);
    let Some(imported) = workspace.package(&dependency.package) else {
        let is_allowed = !is_pure(package) || PURE_PACKAGES.contains(&dependency.package.as_str());
        return (!is_allowed).then(|| format!("{importer} is pure and imports {}", dependency.package));
    };
    let target = format!("{}/{}", imported.layer, imported.name);
    if imported.layer == DEV {
        return (package.layer != DEV).then(|| format!("{importer} imports {target}, which is for tests"));
    }
    let from = map.position(&package.layer, &package.name)?;
    let to = map.position(&imported.layer, &imported.name)?;
    if to.layer > from.layer {
        return Some(format!("{importer} imports {target} from a higher layer"));
    }
    (to.layer == from.layer && to.place > from.place)
        .then(|| format!("{importer} imports {target}, which comes after it in the layer"))
}

fn is_pure(package: &Package) -> bool {
    PURE_LAYERS.contains(&package.layer.as_str())
        || PURE_CRATES.contains(&(package.layer.as_str(), package.name.as_str()))
}

/// Impure lines of pure crates, and files that do not say what they are for.
pub fn violations_in_sources(workspace: &Workspace) -> Vec<String> {
    let mut found = Vec::new();
    for package in &workspace.packages {
        for path in rust_files(&package.folder.join("src")) {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let shown = path.strip_prefix(crate::root()).unwrap_or(&path).display().to_string();
            if !text.starts_with("//!") {
                found.push(format!("{shown} does not open with what it is for (`//! …`)"));
            }
            let mut banned: Vec<(&str, &str)> = Vec::new();
            if is_pure(package) {
                banned.extend(IMPURE_NAMES);
            }
            if ORDERED_LAYERS.contains(&package.layer.as_str()) {
                banned.extend(UNORDERED_NAMES);
            }
            found.extend(lines_naming(&text, &banned).into_iter().map(|remark| format!("{shown}:{remark}")));
        }
    }
    found
}

/// Where each command of the program has its module.
const COMMANDS: &str = "app/bedplate/src/commands";
/// Lines of the program outside of tests: it parses, calls and prints.
const MOST_LINES: usize = 21_500;

/// Growth that nobody has spoken of.
pub fn growth(workspace: &Workspace) -> Vec<String> {
    let files = rust_files(&crate::root().join("crates"));
    let lines: usize =
        files.iter().map(|path| fs::read_to_string(path).unwrap_or_default().lines().count()).sum();
    let counted =
        [("crates", workspace.packages.len(), MOST_CRATES), ("lines of Rust", lines, MOST_RUST_LINES)];
    let grown = counted.into_iter().filter(|(_, count, most)| count > most);
    grown
        .map(|(what, count, most)| format!("{count} {what}, more than {most} (dev/testkit/src/tidy.rs)"))
        .collect()
}

/// Commands that import another command's module, and a command line that has grown too long.
pub fn violations_of_the_command_line() -> Vec<String> {
    let folder = crate::root().join("crates").join(COMMANDS);
    let commands = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let names: BTreeSet<String> =
        commands.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect();
    let mut found = Vec::new();
    for path in rust_files(&folder) {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let below = path.strip_prefix(&folder).unwrap_or(&path).with_extension("");
        found.extend(imports_of_commands(&text, &below, &names).map(|remark| {
            format!("{COMMANDS}/{}.rs:{remark}; put what both need beside the commands", below.display())
        }));
    }
    let lines: usize = rust_files(folder.parent().unwrap_or(&folder))
        .iter()
        .map(|path| lines_before_tests(&fs::read_to_string(path).unwrap_or_default()))
        .sum();
    if lines > MOST_LINES {
        found.push(format!("app/bedplate has {lines} lines outside of tests, more than {MOST_LINES}"));
    }
    found
}

/// `line: the import`, where the file `below` the commands names the module of a command that is not its own.
fn imports_of_commands(text: &str, below: &Path, names: &BTreeSet<String>) -> impl Iterator<Item = String> {
    let own = below.iter().next().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    // From a command's own file `super` is the module of all commands.
    let outward = format!("{}::", vec!["super"; below.iter().count()].join("::"));
    let numbered: Vec<(usize, String)> =
        text.lines().enumerate().map(|(at, line)| (at + 1, line.to_owned())).collect();
    numbered.into_iter().filter_map(move |(number, line)| {
        let prefixes = ["crate::commands::", outward.as_str()];
        let named =
            prefixes.iter().filter_map(|prefix| line.split_once(prefix)).find_map(|(before, rest)| {
                let is_outward = !before.ends_with("super::");
                let name: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
                (is_outward && name != own && names.contains(&name)).then_some(name)
            });
        named.map(|name| format!("{number}: {own} imports the command {name}"))
    })
}

/// Lines up to the test module at the end.
fn lines_before_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    (0..lines.len()).find(|at| is_test_module(&lines, *at)).unwrap_or(lines.len())
}

fn is_test_module(lines: &[&str], at: usize) -> bool {
    lines[at].trim() == "#[cfg(test)]"
        && lines.get(at + 1).is_some_and(|next| next.trim_start().starts_with("mod "))
}

/// `line: what; what to do instead` for each line of code that names something banned. Test modules are exempt.
fn lines_naming(text: &str, banned: &[(&str, &str)]) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in statements(text) {
        let spelled_out = without_groups(&line);
        for (name, instead) in banned.iter().filter(|(name, _)| spelled_out.contains(name)) {
            found.push(format!("{number}: pure code names {name}; {instead}"));
        }
    }
    found
}

/// Lines of code with their numbers, a `use` of several lines joined into one; comments and the test module
/// at the end are left out.
fn statements(text: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut statements: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    for (at, line) in lines.iter().enumerate() {
        if is_test_module(&lines, at) {
            break;
        }
        if line.trim_start().starts_with("//") {
            continue;
        }
        match statements.last_mut() {
            Some((_, statement)) if is_open => statement.push_str(line.trim()),
            _ => statements.push((at + 1, (*line).to_owned())),
        }
        let is_use =
            statements.last().is_some_and(|(_, statement)| statement.trim_start().starts_with("use "));
        is_open = is_use && !line.contains(';');
    }
    statements
}

/// `use std::{fmt, fs}` also spelled as `std::fmt std::fs`, so that a name is found however it is imported.
fn without_groups(statement: &str) -> String {
    let mut spelled = statement.to_owned();
    if let Some((prefix, group)) = statement.trim_start().trim_start_matches("use ").split_once("::{") {
        let members = group.split([',', '{', '}', ';']).map(str::trim).filter(|member| !member.is_empty());
        for member in members {
            spelled += &format!(" {prefix}::{member}");
        }
    }
    spelled
}

/// Names of types that three or more crates define, with those crates. Each but one should say whose it is: `Options`
/// of an agent is `AgentOptions`.
pub fn repeated_type_names(workspace: &Workspace) -> Vec<String> {
    let mut crates: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for package in &workspace.packages {
        for path in rust_files(&package.folder.join("src")) {
            let text = fs::read_to_string(&path).unwrap_or_default();
            for name in text.lines().filter_map(type_defined) {
                crates.entry(name.to_owned()).or_default().insert(&package.name);
            }
        }
    }
    let repeated = crates.into_iter().filter(|(_, crates)| crates.len() > 2);
    repeated.map(|(name, crates)| format!("{name} is a type of {crates:?}: say which")).collect()
}

/// The type that a line defines for others to use.
fn type_defined(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub "))?;
    let kinds = ["struct ", "enum ", "trait ", "type "];
    let named = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    named.split(|letter: char| !letter.is_alphanumeric()).next().filter(|name| !name.is_empty())
}

pub(crate) fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const MAP: &str = "text\n```\ncrates/\n  base/    lowest    units, diag\n  domain/  nouns     catalog\n  app/     program   bedplate\n  dev/     tests     testkit\ndata/    tables\n```\n";

    fn package(layer: &str, name: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
        let cargo_name = if name == "bedplate" { name.into() } else { format!("bedplate-{name}") };
        let dependencies: Vec<Value> =
            dependencies.iter().map(|(name, kind)| json!({ "name": name, "kind": kind })).collect();
        let manifest = format!("/r/crates/{layer}/{name}/Cargo.toml");
        json!({ "name": cargo_name, "manifest_path": manifest, "dependencies": dependencies })
    }

    fn check(changed: Value) -> Vec<String> {
        let mut packages = vec![
            package("base", "units", &[]),
            package("base", "diag", &[("bedplate-units", None), ("serde_json", None)]),
            package("domain", "catalog", &[("bedplate-diag", None)]),
            package("app", "bedplate", &[("bedplate-catalog", None), ("tokio", None)]),
            package("dev", "testkit", &[("serde_json", None)]),
        ];
        match packages.iter_mut().find(|known| known["name"] == changed["name"]) {
            Some(known) => *known = changed,
            None => packages.push(changed),
        }
        let workspace = Workspace::from_metadata(&json!({ "packages": packages }));
        violations(&workspace, &ArchitectureMap::parse(MAP))
    }

    #[test]
    fn planted_violations_are_found_and_a_clean_house_has_none() {
        let clean: Vec<String> = Vec::new();
        assert_eq!(check(package("base", "units", &[])), clean);
        assert_eq!(check(package("base", "units", &[("bedplate-testkit", Some("dev"))])), clean);
        for (planted, told) in [
            (
                package("base", "diag", &[("bedplate-catalog", None)]),
                "base/diag imports domain/catalog from a higher layer",
            ),
            (
                package("base", "units", &[("bedplate-diag", None)]),
                "base/units imports base/diag, which comes after it in the layer",
            ),
            (package("domain", "catalog", &[("tokio", None)]), "domain/catalog is pure and imports tokio"),
            (
                package("app", "bedplate", &[("bedplate-testkit", None)]),
                "app/bedplate imports dev/testkit, which is for tests",
            ),
            (
                package("domain", "job", &[]),
                "domain/job is not on the map in ARCHITECTURE.md; add it to its layer",
            ),
        ] {
            assert_eq!(check(planted), [told]);
        }
    }

    #[test]
    fn a_crate_on_the_map_must_exist() {
        let workspace = Workspace::from_metadata(&json!({ "packages": [] }));
        let found = violations(&workspace, &ArchitectureMap::parse(MAP));
        assert!(found.contains(&"base/units is on the map but does not exist".to_owned()), "{found:?}");
    }

    #[test]
    fn a_command_that_imports_another_is_found() {
        let names = ["plan", "train"].map(str::to_owned).into();
        let check = |below: &str, text: &str| imports_of_commands(text, Path::new(below), &names).count();
        assert_eq!(check("plan/task", "use crate::commands::train::launch;"), 1);
        assert_eq!(check("plan/task", "use super::super::train;"), 1);
        assert_eq!(check("plan", "use super::train::Launch;"), 1);
        assert_eq!(check("plan/serve/show", "use super::super::train::page; use super::load;"), 0);
        assert_eq!(check("plan/task", "use crate::commands::plan::page; use super::train::Part;"), 0);
        assert_eq!(check("plan/task", "crate::commands::run(cli.command)"), 0);
    }

    #[test]
    fn pure_code_that_touches_the_world_is_found_outside_comments_and_tests() {
        let text =
            "//! doc\n// std::fs is fine here\nuse std::fs;\n#[cfg(test)]\nmod tests { use std::env; }\n";
        assert_eq!(
            lines_naming(text, &IMPURE_NAMES),
            ["3: pure code names std::fs; take the text as an argument"]
        );
    }

    #[test]
    fn types_that_others_can_use_are_found_by_name() {
        let lines = [
            "pub struct Quince(u64);",
            "    pub(crate) enum Medlar<T> {",
            "pub fn quince() {}",
            "struct Own;",
        ];
        assert_eq!(lines.map(type_defined), [Some("Quince"), Some("Medlar"), None, None]);
    }
}
