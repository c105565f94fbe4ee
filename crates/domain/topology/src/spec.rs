//! A cluster in one line: `p5.48xlarge:64`, or several joined by `+`.
//!
//! Each part is the name of a catalog instance or UltraServer and, after a colon, their number; one where the
//! number is left out. An UltraServer counts as a whole: `u-p6e-gb200x72:4` is four NVLink domains of 18
//! instances each. Instances that are only part of UltraServers become whole ones: `p6e-gb200.36xlarge:16` is one
//! `u-p6e-gb200x72`, and [`Cluster::remarks_on_spec`] says so. Nodes are called `n1`, `n2`, …, padded to one width. There is no tree of switches: all
//! nodes are attached to one flat, non-blocking fabric.

use bedplate_catalog::{Catalog, CatalogError, Instance, UltraServer};
use bedplate_diag::{Place, Source};

use crate::draft::{ClusterDraft, MAX_NODES, check_limit};
use crate::{Cluster, Format, ImportOptions, NodeKind, TopologyError, import};

impl Cluster {
    /// Reads a cluster in one line, such as `p5.48xlarge:64` or `p5.48xlarge:64+u-p6e-gb200x72:4`.
    pub fn from_spec(spec: &str, catalog: &Catalog) -> Result<Self, TopologyError> {
        import(Format::Spec, &[Source::new("cluster", spec)], &ImportOptions::default(), catalog)
    }

    /// What a reader of a specification should know: which instances were taken for parts of UltraServers.
    pub fn remarks_on_spec(spec: &str, catalog: &Catalog) -> Vec<String> {
        let counted = spec.trim().split('+').filter_map(|part| {
            let (name, count) =
                part.rsplit_once(':').map_or((part, Ok(1)), |(name, count)| (name, read_count(count.trim())));
            Some((name.trim(), count.ok()?))
        });
        counted
            .filter_map(|(name, count)| {
                let (server, servers) = whole(catalog.instance(name).ok()?, count, catalog)?;
                let (gpus, server) = (u64::from(server.accelerators).saturating_mul(servers), &server.name);
                Some(format!(
                    "{name} comes only in UltraServers: {count} of them are taken for {servers} {server}, {gpus} GPUs"
                ))
            })
            .collect()
    }
}

/// What a part of a cluster is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unit<'a> {
    Instance(&'a Instance),
    UltraServer(&'a UltraServer, &'a Instance),
}

impl<'a> Unit<'a> {
    pub(crate) fn find(name: &str, catalog: &'a Catalog) -> Result<Self, CatalogError> {
        let error = match catalog.instance(name) {
            Ok(instance) => return Ok(Unit::Instance(instance)),
            Err(error) => error,
        };
        match catalog.ultraserver(name) {
            Ok(server) => Self::ultraserver(server, catalog),
            Err(other) => Err(with_hint(error, other)),
        }
    }

    pub(crate) fn ultraserver(server: &'a UltraServer, catalog: &'a Catalog) -> Result<Self, CatalogError> {
        Ok(Unit::UltraServer(server, catalog.instance(&server.instance)?))
    }

    pub(crate) fn kind(self, catalog: &Catalog) -> NodeKind {
        match self {
            Unit::Instance(instance) => NodeKind::from_instance(instance, catalog),
            Unit::UltraServer(server, instance) => NodeKind::from_ultraserver(server, instance, catalog),
        }
    }

    /// Nodes that one unit has.
    pub(crate) fn nodes(self) -> u32 {
        match self {
            Unit::Instance(_) => 1,
            Unit::UltraServer(server, _) => server.instances.max(1),
        }
    }
}

/// The error that carries a suggestion.
fn with_hint(instance: CatalogError, ultraserver: CatalogError) -> CatalogError {
    match &instance {
        CatalogError::UnknownName { near, .. } if near.is_empty() => match &ultraserver {
            CatalogError::UnknownName { near, .. } if !near.is_empty() => ultraserver,
            _ => instance,
        },
        _ => instance,
    }
}

/// Reads the one line of a specification.
pub(crate) fn read(source: Source<'_>, catalog: &Catalog) -> Result<Cluster, TopologyError> {
    let parts = parts(source, catalog)?;
    let nodes: u64 = parts.iter().map(|(unit, count)| u64::from(unit.nodes()).saturating_mul(*count)).sum();
    check_limit("nodes", nodes, MAX_NODES, || source.place(0))?;
    let mut draft = ClusterDraft { name: source.text.trim().to_owned(), ..ClusterDraft::default() };
    let mut names = GeneratedNames::of(nodes);
    for (unit, count) in parts {
        let kind = draft.kinds.intern(unit.kind(catalog));
        for _ in 0..count {
            add_unit(&mut draft, unit, kind, &mut names);
        }
    }
    draft.build(&|_| source.place(0))
}

/// Adds the nodes of one instance or UltraServer.
pub(crate) fn add_unit(
    draft: &mut ClusterDraft,
    unit: Unit<'_>,
    kind: u16,
    names: &mut impl Iterator<Item = String>,
) {
    let domain = match unit {
        Unit::Instance(_) => None,
        Unit::UltraServer(server, _) => Some(add_domain(draft, &server.name)),
    };
    for name in names.take(unit.nodes() as usize) {
        draft.add_node(name, kind).domain = domain;
    }
}

/// Adds a domain named after its UltraServer and its number.
fn add_domain(draft: &mut ClusterDraft, server: &str) -> u32 {
    let number = draft.domains.len() as u32;
    draft.domains.push(format!("{server}-{}", number + 1));
    number
}

/// `n1`, `n2`, …, padded to the width of the last.
#[derive(Debug)]
pub(crate) struct GeneratedNames {
    next: u64,
    width: usize,
}

impl GeneratedNames {
    pub(crate) fn of(count: u64) -> Self {
        Self { next: 1, width: count.to_string().len() }
    }
}

impl Iterator for GeneratedNames {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let name = format!("n{:0width$}", self.next, width = self.width);
        self.next += 1;
        Some(name)
    }
}

fn parts<'a>(source: Source<'_>, catalog: &'a Catalog) -> Result<Vec<(Unit<'a>, u64)>, TopologyError> {
    let malformed = |reason: &str, place: Place| TopologyError::Malformed {
        expected: "a cluster such as `p5.48xlarge:64`",
        reason: reason.to_owned(),
        place,
    };
    let mut parts = Vec::new();
    let mut offset = 0;
    for part in source.text.trim_end().split('+') {
        let place = || source.place(offset);
        let (name, count) = match part.rsplit_once(':') {
            Some((name, count)) => (name.trim(), Some(count.trim())),
            None => (part.trim(), None),
        };
        if name.is_empty() {
            return Err(malformed("the name of an instance or UltraServer is missing", place()));
        }
        let count = match count {
            None => 1,
            Some(count) => read_count(count).map_err(|reason| malformed(reason, place()))?,
        };
        let unit = Unit::find(name, catalog)
            .map_err(|error| TopologyError::unknown_hardware(error, catalog, place()))?;
        let whole = match unit {
            Unit::Instance(instance) => whole(instance, count, catalog),
            Unit::UltraServer(..) => None,
        };
        match whole {
            Some((server, servers)) => {
                let unit = Unit::ultraserver(server, catalog)
                    .map_err(|error| TopologyError::unknown_hardware(error, catalog, place()))?;
                parts.push((unit, servers));
            }
            None => parts.push((unit, count)),
        }
        offset += part.len() + 1;
    }
    Ok(parts)
}

/// The UltraServers that hold `count` instances, where such instances come in no other form: the largest that they fill,
/// else the smallest, as many as it takes.
fn whole<'a>(instance: &Instance, count: u64, catalog: &'a Catalog) -> Option<(&'a UltraServer, u64)> {
    if !instance.is_only_in_ultraservers {
        return None;
    }
    let mut servers: Vec<&UltraServer> =
        catalog.ultraservers.iter().filter(|server| server.instance == instance.name).collect();
    servers.sort_by_key(|server| server.instances);
    let filled = servers.iter().rev().find(|server| u64::from(server.instances) <= count);
    let server = filled.or(servers.first())?;
    Some((server, count.div_ceil(u64::from(server.instances.max(1)))))
}

fn read_count(text: &str) -> Result<u64, &'static str> {
    match text.replace('_', "").parse() {
        Ok(0) => Err("the count is missing or zero"),
        Ok(count) => Ok(count),
        Err(_) if text.is_empty() => Err("the count is missing or zero"),
        Err(_) => Err("the count after the colon must be a whole number"),
    }
}
