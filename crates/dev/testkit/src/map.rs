//! The map in ARCHITECTURE.md: layers from low to high, and the crates of each in order.

/// A layer and its crates, in the order in which they may import each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrateLayer {
    pub name: String,
    pub crates: Vec<String>,
}

/// The layers of the code block that begins with `crates/`, lowest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchitectureMap {
    pub layers: Vec<CrateLayer>,
}

/// The position of a crate: its layer, and its index within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) layer: usize,
    pub(crate) place: usize,
}

impl ArchitectureMap {
    /// Reads lines such as `  base/     knows nothing of GPUs or jobs     units, diag`.
    pub fn parse(text: &str) -> Self {
        let block = text.lines().skip_while(|line| line.trim() != "crates/").skip(1);
        let lines = block.take_while(|line| line.starts_with("  "));
        Self { layers: lines.filter_map(layer).collect() }
    }

    pub(crate) fn position(&self, layer: &str, name: &str) -> Option<Position> {
        let at = self.layers.iter().position(|known| known.name == layer)?;
        let place = self.layers[at].crates.iter().position(|known| known == name)?;
        Some(Position { layer: at, place })
    }
}

fn layer(line: &str) -> Option<CrateLayer> {
    let (name, rest) = line.trim().split_once('/')?;
    let crates = rest.rsplit("  ").map(str::trim).find(|part| !part.is_empty())?;
    Some(CrateLayer {
        name: name.to_owned(),
        crates: crates.split(',').map(|name| name.trim().to_owned()).collect(),
    })
}
