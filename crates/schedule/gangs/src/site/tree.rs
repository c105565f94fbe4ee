//! Tables that name their parents, sorted so that each parent comes first.

use std::collections::BTreeMap;

use bedplate_document::Table;

use crate::SettingsError;

/// One table of a tree.
pub(super) struct Branch {
    pub(super) name: String,
    /// Absent at the top, and below the root that always exists.
    pub(super) parent: Option<String>,
    pub(super) table: Table,
}

/// Otherwise in the order of the file. `root` is a name that exists without a table.
pub(super) fn sorted(
    what: &'static str,
    tables: Vec<(String, Table)>,
    root: Option<&str>,
) -> Result<Vec<Branch>, SettingsError> {
    let mut branches = Vec::with_capacity(tables.len());
    for (name, table) in tables {
        if root == Some(name.as_str()) {
            return Err(SettingsError::Duplicate { what, name, place: table.place_of("name") });
        }
        let parent = table.optional::<String>("parent")?.filter(|parent| root != Some(parent.as_str()));
        branches.push(Branch { name, parent, table });
    }
    let depths = depths(what, &branches)?;
    let mut numbered: Vec<(usize, Branch)> = depths.into_iter().zip(branches).collect();
    numbered.sort_by_key(|(depth, _)| *depth);
    Ok(numbered.into_iter().map(|(_, branch)| branch).collect())
}

/// How many parents each has above it.
fn depths(what: &'static str, branches: &[Branch]) -> Result<Vec<usize>, SettingsError> {
    let places: BTreeMap<&str, usize> =
        branches.iter().enumerate().map(|(at, branch)| (branch.name.as_str(), at)).collect();
    let mut depths: Vec<Option<usize>> = vec![None; branches.len()];
    for start in 0..branches.len() {
        // Up to a branch whose depth is known, then down again.
        let mut path = vec![start];
        let mut below = loop {
            let last = *path.last().expect("the path has its start");
            if let Some(depth) = depths[last] {
                path.pop();
                break depth + 1;
            }
            let Some(parent) = &branches[last].parent else { break 0 };
            let Some(parent) = places.get(parent.as_str()) else {
                return Err(undefined(what, &branches[last], parent, branches));
            };
            if path.len() > branches.len() {
                return Err(cycle(what, &branches[last]));
            }
            path.push(*parent);
        };
        for at in path.into_iter().rev() {
            depths[at] = Some(below);
            below += 1;
        }
    }
    Ok(depths.into_iter().map(|depth| depth.expect("every branch was a start")).collect())
}

fn undefined(what: &'static str, branch: &Branch, parent: &str, branches: &[Branch]) -> SettingsError {
    let known = branches.iter().map(|branch| branch.name.as_str());
    SettingsError::undefined(what, parent, known, branch.table.place_of("parent"))
}

fn cycle(what: &'static str, branch: &Branch) -> SettingsError {
    SettingsError::Cycle { what, name: branch.name.clone(), place: branch.table.place_of("parent") }
}
