//! `topology.conf`: `SwitchName` and `BlockName` lines.

use bedplate_diag::{Place, Source, nearest};

use super::assemble::{At, Block, Found, Switch};
use super::line::{Line, Lines, Pair};
use crate::TopologyError;
use crate::draft::shown;

const FIRST_KEYS: [&str; 3] = ["SwitchName", "BlockName", "BlockSizes"];
/// First keys of the `slurm.conf` lines that matter here, and similar ones.
const CONF_KEYS: [&str; 6] =
    ["NodeName", "DownNodes", "ClusterName", "PartitionName", "NodeSet", "SlurmctldHost"];
const SWITCH_KEYS: [&str; 5] = ["SwitchName", "Nodes", "Switches", "LinkSpeed", "Level"];
const BLOCK_KEYS: [&str; 2] = ["BlockName", "Nodes"];

/// Whether a file is `topology.conf`, where every line must be understood, and not `slurm.conf`.
pub(super) fn looks_like(source: Source<'_>) -> bool {
    source.name.ends_with("topology.conf") || (has_line(source, &FIRST_KEYS) && !has_line(source, &CONF_KEYS))
}

fn has_line(source: Source<'_>, keys: &[&str]) -> bool {
    let is_one = |first: &str| keys.iter().any(|key| first.eq_ignore_ascii_case(key));
    Lines::new(source.text).any(|line| line.first_key().is_some_and(is_one))
}

pub(super) fn read_line(
    line: &Line<'_>,
    source: Source<'_>,
    at: At,
    found: &mut Found,
) -> Result<(), TopologyError> {
    let pairs = line.pairs(source)?;
    let place = || source.line(line.number);
    match pairs.first() {
        Some(first) if first.key.eq_ignore_ascii_case("SwitchName") => {
            found.switches.push(switch(&pairs, at, &place)?);
        }
        Some(first) if first.key.eq_ignore_ascii_case("BlockName") => {
            found.blocks.push(block(&pairs, at, &place)?);
        }
        Some(first) => check_sizes(first.value, &place)?,
        None => {}
    }
    Ok(())
}

fn switch(pairs: &[Pair<'_>], at: At, place: &dyn Fn() -> Place) -> Result<Switch, TopologyError> {
    check_keys(pairs, "a SwitchName line", &SWITCH_KEYS, place)?;
    let children = value(pairs, "Switches");
    // Only `scontrol show topology` writes levels, and it repeats the nodes of the switches below.
    let repeats_nodes = children.is_some() && value(pairs, "Level").is_some();
    let nodes = value(pairs, "Nodes").filter(|_| !repeats_nodes);
    let switch = Switch { name: pairs[0].value.to_owned(), nodes, children, at };
    check_switch(&switch, place)?;
    Ok(switch)
}

/// A switch has nodes or switches below it; Slurm takes only one of the two.
pub(super) fn check_switch(switch: &Switch, place: &dyn Fn() -> Place) -> Result<(), TopologyError> {
    let reason = match (&switch.nodes, &switch.children) {
        (Some(_), Some(_)) => "has both nodes and switches below it",
        (None, None) => "has neither nodes nor switches below it",
        _ => return Ok(()),
    };
    Err(TopologyError::Malformed {
        expected: "a switch of Slurm's tree",
        reason: format!("`{}` {reason}", shown(&switch.name)),
        place: place(),
    })
}

fn block(pairs: &[Pair<'_>], at: At, place: &dyn Fn() -> Place) -> Result<Block, TopologyError> {
    check_keys(pairs, "a BlockName line", &BLOCK_KEYS, place)?;
    let name = pairs[0].value.to_owned();
    let nodes = value(pairs, "Nodes").ok_or_else(|| TopologyError::Malformed {
        expected: "a block of Slurm's block topology",
        reason: format!("`{}` has no `Nodes`", shown(&name)),
        place: place(),
    })?;
    Ok(Block { name, nodes, at })
}

fn check_sizes(sizes: &str, place: &dyn Fn() -> Place) -> Result<(), TopologyError> {
    let is_size = |size: &str| size.trim().parse::<u32>().is_ok_and(|size| size > 0);
    if sizes.split(',').all(is_size) {
        return Ok(());
    }
    Err(TopologyError::Malformed {
        expected: "a list of block sizes",
        reason: format!("`{}` are not whole numbers separated by commas", shown(sizes)),
        place: place(),
    })
}

fn value(pairs: &[Pair<'_>], key: &str) -> Option<String> {
    pairs.iter().find(|pair| pair.key.eq_ignore_ascii_case(key)).map(|pair| pair.value.to_owned())
}

fn check_keys(
    pairs: &[Pair<'_>],
    file: &'static str,
    known: &'static [&'static str],
    place: &dyn Fn() -> Place,
) -> Result<(), TopologyError> {
    let is_unknown = |pair: &&Pair<'_>| !known.iter().any(|key| pair.key.eq_ignore_ascii_case(key));
    match pairs.iter().find(is_unknown) {
        None => Ok(()),
        Some(pair) => Err(unknown_key(file, pair.key, known, place())),
    }
}

pub(super) fn unknown_key(
    file: &'static str,
    key: &str,
    known: &'static [&'static str],
    place: Place,
) -> TopologyError {
    let near = nearest(key, known.iter().copied());
    TopologyError::UnknownKey { file, key: shown(key), near, known: known.join(", "), place }
}

/// How many lines of an unrecognised file are searched for misspellings.
const SEARCHED_LINES: usize = 100;

/// A file with nothing we know is probably misspelt, and its first lines show it. Other lines of `slurm.conf` are
/// not checked.
pub(super) fn check_some_line_is_known(source: Source<'_>) -> Result<(), TopologyError> {
    const KEYS: [&str; 4] = ["SwitchName", "BlockName", "BlockSizes", "NodeName"];
    if has_line(source, &FIRST_KEYS) || has_line(source, &CONF_KEYS) {
        return Ok(());
    }
    let misspelt = Lines::new(source.text).take(SEARCHED_LINES).find_map(|line| {
        let key = line.first_key().filter(|key| nearest(key, KEYS).is_some())?;
        Some(unknown_key("Slurm's files", key, &KEYS, source.line(line.number)))
    });
    misspelt.map_or(Ok(()), Err)
}

pub(super) fn unknown_first_key(key: &str, place: Place) -> TopologyError {
    unknown_key("topology.conf", key, &FIRST_KEYS, place)
}
