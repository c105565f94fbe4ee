//! The workspace obeys its own rules.

use bedplate_testkit::{ArchitectureMap, Workspace, homes, root, tidy};

#[test]
fn layers_import_downward_and_every_crate_is_on_the_map() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let map = ArchitectureMap::parse(&text);
    let found = tidy::violations(&Workspace::load(), &map);
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn pure_crates_touch_nothing_and_every_file_says_what_it_is_for() {
    let found = tidy::violations_in_sources(&Workspace::load());
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn each_small_tool_is_written_once() {
    let found = homes::violations();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn no_type_name_occurs_in_more_than_two_crates() {
    let found = tidy::repeated_type_names(&Workspace::load());
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn commands_stand_by_themselves_and_the_command_line_stays_thin() {
    let found = tidy::violations_of_the_command_line();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn the_workspace_grows_only_where_a_commit_says_so() {
    let found = tidy::growth(&Workspace::load());
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn every_crate_keeps_the_workspace_lints() {
    let packages = Workspace::load().packages;
    let keeps = |manifest: &str| manifest.contains("[lints]\nworkspace = true");
    let lax: Vec<String> = packages
        .iter()
        .filter(|package| !keeps(&std::fs::read_to_string(package.folder.join("Cargo.toml")).unwrap()))
        .map(|package| package.package.clone())
        .collect();
    assert!(lax.is_empty(), "without `[lints] workspace = true`: {lax:?}");
}
