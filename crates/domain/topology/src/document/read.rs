//! Reading `cluster.toml`.

use std::collections::{BTreeMap, HashSet};

use bedplate_catalog::{Catalog, CatalogError, Instance, LocalStorage};
use bedplate_diag::Source;
use bedplate_document::Table;

use crate::cluster::AttachedStorage;
use crate::draft::{
    ClusterDraft, Culprit, DraftSwitch, MAX_GPUS_PER_NODE, MAX_NODES, NamedDraft, check_limit, shown,
    undefined,
};
use crate::hostlist::Hostlist;
use crate::spec::{GeneratedNames, Unit, add_unit};
use crate::{Cluster, Health, NodeKind, TopologyError};

pub(crate) fn read(source: Source<'_>, catalog: &Catalog) -> Result<Cluster, TopologyError> {
    let file = Table::parse(source)?;
    let mut reader = Reader::new(catalog);
    reader.named.draft.name = file.or("name", "cluster".to_owned())?;
    reader.read_kinds(&file)?;
    reader.read_groups(&file)?;
    reader.read_fabric(&file)?;
    reader.read_switches(&file)?;
    reader.read_domains(&file)?;
    reader.read_storage(&file)?;
    reader.read_health(&file)?;
    file.finish()?;
    reader.finish(source)
}

struct Reader<'a> {
    catalog: &'a Catalog,
    named: NamedDraft,
    /// Own kinds by name.
    kinds: BTreeMap<String, u16>,
    /// The groups with the first node of each.
    group_tables: Vec<(usize, Table)>,
    /// The tables that define the draft's switches; none for those made by [fabric].
    switch_tables: Vec<Table>,
    /// By level, leaves first.
    oversubscription: Vec<f32>,
}

impl<'a> Reader<'a> {
    fn new(catalog: &'a Catalog) -> Self {
        Self {
            catalog,
            named: NamedDraft::default(),
            kinds: BTreeMap::new(),
            group_tables: Vec::new(),
            switch_tables: Vec::new(),
            oversubscription: Vec::new(),
        }
    }

    fn read_kinds(&mut self, file: &Table) -> Result<(), TopologyError> {
        for table in file.tables("kind")? {
            let name: String = table.required("name")?;
            let table = table.titled(format!("kind `{}`", shown(&name)));
            let kind = self.kind(&table, &name)?;
            table.finish()?;
            let number = self.named.draft.kinds.intern(kind);
            if self.kinds.insert(name.clone(), number).is_some() {
                let (what, name) = ("kind", shown(&name));
                return Err(TopologyError::Duplicate { what, name, place: table.place_of("name") });
            }
        }
        Ok(())
    }

    fn kind(&self, table: &Table, name: &str) -> Result<NodeKind, TopologyError> {
        let domain_sizes: Vec<u32> = table.or("domains", Vec::new())?;
        let accelerators: u64 = domain_sizes.iter().map(|size| u64::from(*size)).sum();
        check_limit("GPUs in one node", accelerators, MAX_GPUS_PER_NODE, || table.place_of("domains"))?;
        if domain_sizes.contains(&0) {
            return Err(table.bad_value("domains", "a domain has at least one GPU").into());
        }
        let accelerator: Option<String> = table.optional("accelerator")?;
        if accelerator.is_some() == domain_sizes.is_empty() {
            return Err(table.bad_value("domains", "`accelerator` and `domains` go together").into());
        }
        let known = |name: String| self.hardware(self.catalog.accelerator(&name), table, "accelerator");
        Ok(NodeKind {
            accelerator: accelerator.map(known).transpose()?.map(|known| known.name.clone()),
            accelerators: accelerators as u32,
            domain_sizes,
            scale_up_bandwidth: table.optional("scale_up_bandwidth")?,
            scale_out: table.optional("scale_out")?,
            scale_out_bandwidth: table.optional("scale_out_bandwidth")?,
            network_cards: table.optional("network_cards")?,
            vcpus: table.optional("vcpus")?,
            memory: table.optional("memory")?,
            local_storage: local_storage(table)?,
            ..NodeKind::bare(name)
        })
    }

    fn read_groups(&mut self, file: &Table) -> Result<(), TopologyError> {
        let groups: Vec<Group<'a>> =
            file.tables("group")?.into_iter().map(|table| self.group(table)).collect::<Result<_, _>>()?;
        let unnamed = groups.iter().filter(|group| group.names.is_none());
        let mut generated = GeneratedNames::of(unnamed.map(Group::node_count).fold(0, u64::saturating_add));
        let total = groups.iter().map(Group::node_count).fold(0, u64::saturating_add);
        check_limit("nodes", total, MAX_NODES, || file.place_of("group"))?;
        for group in &groups {
            self.add_group(group, &mut generated)?;
        }
        Ok(())
    }

    fn group(&mut self, table: Table) -> Result<Group<'a>, TopologyError> {
        let table = table.titled("group");
        let member = self.member(&table)?;
        let names: Option<String> = table.optional("nodes")?;
        let features: Vec<String> = table.or("features", Vec::new())?;
        if features.iter().any(|feature| feature.is_empty() || feature.contains(',')) {
            return Err(table.bad_value("features", "a feature is a word without commas").into());
        }
        let named = names.as_deref().map(|names| hostlist(names, &table)).transpose()?.map(|list| list.count);
        let count: Option<u64> = table.optional::<u64>("count")?;
        let count = match (count, named) {
            (Some(count), _) => count,
            (None, Some(named)) => named / u64::from(member.nodes()),
            (None, None) => 1,
        };
        table.finish()?;
        let group = Group { member, count, names, features, table };
        if let Some(named) = named.filter(|named| *named != group.node_count()) {
            let reason = format!("it names {named} nodes, but the group has {}", group.node_count());
            return Err(group.table.bad_value("nodes", reason).into());
        }
        if count == 0 {
            return Err(group.table.bad_value("count", "a group has at least one member").into());
        }
        Ok(group)
    }

    fn member(&mut self, table: &Table) -> Result<Member<'a>, TopologyError> {
        let instance: Option<String> = table.optional("instance")?;
        let ultraserver: Option<String> = table.optional("ultraserver")?;
        let kind: Option<String> = table.optional("kind")?;
        match (instance, ultraserver, kind) {
            (Some(name), None, None) => {
                let instance = self.hardware(self.catalog.instance(&name), table, "instance")?;
                let kind = match table.optional::<String>("part_of")? {
                    None => NodeKind::from_instance(instance, self.catalog),
                    Some(server) => self.part_of(&server, instance, table)?,
                };
                self.catalog_member(Unit::Instance(instance), kind, table)
            }
            (None, Some(name), None) => {
                let server = self.hardware(self.catalog.ultraserver(&name), table, "ultraserver")?;
                let unit = self.hardware(Unit::ultraserver(server, self.catalog), table, "ultraserver")?;
                self.catalog_member(unit, unit.kind(self.catalog), table)
            }
            (None, None, Some(name)) => match self.kinds.get(&name) {
                Some(kind) => Ok(Member::Own(*kind)),
                None => {
                    let known = self.kinds.keys().map(String::as_str);
                    Err(undefined("kind", &name, known, &|| table.place_of("kind")))
                }
            },
            (None, None, None) => {
                let _: String = table.required("instance")?;
                Ok(Member::Own(0))
            }
            _ => Err(table.bad_value("instance", "say one of `instance`, `ultraserver` and `kind`").into()),
        }
    }

    /// Instances of an UltraServer whose nodes `[[domain]]` joins.
    fn part_of(&self, server: &str, instance: &Instance, table: &Table) -> Result<NodeKind, TopologyError> {
        let server = self.hardware(self.catalog.ultraserver(server), table, "part_of")?;
        if server.instance != instance.name {
            let reason = format!("{} is made of {}", server.name, server.instance);
            return Err(table.bad_value("part_of", reason).into());
        }
        Ok(NodeKind::from_ultraserver(server, instance, self.catalog))
    }

    fn catalog_member(
        &mut self,
        unit: Unit<'a>,
        kind: NodeKind,
        table: &Table,
    ) -> Result<Member<'a>, TopologyError> {
        let kind = NodeKind { reported_memory: table.optional("reported_memory")?, ..kind };
        Ok(Member::Catalog(unit, self.named.draft.kinds.intern(kind)))
    }

    fn add_group(&mut self, group: &Group<'a>, generated: &mut GeneratedNames) -> Result<(), TopologyError> {
        let draft = &mut self.named.draft;
        let first = draft.nodes.len();
        match &group.names {
            None => group.add_to(draft, generated),
            Some(names) => {
                let list = hostlist(names, &group.table)?;
                let mut all = Vec::with_capacity(list.count as usize);
                list.visit(|name| {
                    all.push(name.to_owned());
                    Ok::<(), TopologyError>(())
                })?;
                group.add_to(draft, &mut all.into_iter());
            }
        }
        let features = draft.features.intern(group.features.clone());
        draft.nodes[first..].iter_mut().for_each(|node| node.features = features);
        self.group_tables.push((first, group.table.clone()));
        self.named.name_nodes_from(first, &|| group.table.place_of("nodes"))
    }

    fn read_fabric(&mut self, file: &Table) -> Result<(), TopologyError> {
        let Some(table) = file.table("fabric")? else { return Ok(()) };
        let table = table.titled("fabric");
        let keys = ["nodes_per_leaf", "leaves_per_spine", "spines_per_core"];
        let mut sizes = Vec::new();
        for key in keys {
            let size: Option<u32> = table.optional(key)?;
            if size == Some(0) {
                return Err(table.bad_value(key, "it must be at least 1").into());
            }
            sizes.push(size);
        }
        let ratios: Vec<f64> = table.or("oversubscription", Vec::new())?;
        table.finish()?;
        for ratio in ratios {
            self.oversubscription.push(checked_ratio(ratio, &table)?);
        }
        if let Some(key) = (1..keys.len()).find(|at| sizes[*at].is_some() && sizes[at - 1].is_none()) {
            return Err(table.bad_value(keys[key], format!("`{}` is needed first", keys[key - 1])).into());
        }
        if sizes[0].is_some() && file.has("switch") {
            let reason = "the tree is written out in [[switch]] too; keep one of the two";
            return Err(table.bad_value("nodes_per_leaf", reason).into());
        }
        self.add_regular_tree(&sizes.into_iter().flatten().collect::<Vec<_>>());
        Ok(())
    }

    /// Leaves over nodes, spines over leaves, …, until one switch joins them all.
    fn add_regular_tree(&mut self, sizes: &[u32]) {
        let Some(per_leaf) = sizes.first() else { return };
        let leaves = (self.named.draft.nodes.len() as u32).div_ceil(*per_leaf);
        for (index, node) in self.named.draft.nodes.iter_mut().enumerate() {
            node.switch = Some(index as u32 / per_leaf);
        }
        self.add_tier("leaf", leaves, 0);
        let (mut below_start, mut below) = (0, leaves);
        for (tier, title) in ["spine", "core", "top"].into_iter().enumerate() {
            if below <= 1 {
                return;
            }
            let per_switch = sizes.get(tier + 1).copied().unwrap_or(below);
            let start = self.named.draft.switches.len() as u32;
            for child in 0..below {
                let parent = start + child / per_switch;
                self.named.draft.switches[(below_start + child) as usize].parent = Some(parent);
            }
            self.add_tier(title, below.div_ceil(per_switch), tier + 1);
            (below_start, below) = (start, below.div_ceil(per_switch));
        }
    }

    fn add_tier(&mut self, title: &str, count: u32, tier: usize) {
        let oversubscription = self.oversubscription.get(tier).copied().unwrap_or(1.0);
        for number in 1..=count {
            let order = self.named.draft.switches.len() as u32;
            let switch = DraftSwitch::new(format!("{title}{number}"), order);
            self.named.draft.switches.push(DraftSwitch { oversubscription, ..switch });
        }
    }

    fn read_switches(&mut self, file: &Table) -> Result<(), TopologyError> {
        let mut parents: Vec<Option<String>> = Vec::new();
        let mut ratios: Vec<Option<f64>> = Vec::new();
        for table in file.tables("switch")? {
            let name: String = table.required("name")?;
            let table = table.titled(format!("switch `{}`", shown(&name)));
            let index = self.named.add_switch(&name, &|| table.place_of("name"))?;
            if let Some(nodes) = table.optional::<String>("nodes")? {
                let list = hostlist(&nodes, &table)?;
                self.named.hang_nodes(&list, index, &|| table.place_of("nodes"))?;
            }
            parents.push(table.optional("parent")?);
            ratios.push(table.optional("oversubscription")?);
            table.finish()?;
            self.switch_tables.push(table);
        }
        self.join_switches(&parents)?;
        self.set_oversubscription(&ratios)
    }

    fn join_switches(&mut self, parents: &[Option<String>]) -> Result<(), TopologyError> {
        let mut has_below = vec![false; parents.len()];
        for (index, parent) in parents.iter().enumerate() {
            let Some(parent) = parent else { continue };
            let place = || self.switch_tables[index].place_of("parent");
            let number = self.named.find_switch(parent, &place)?;
            self.named.hang_switch(index as u32, number, &place)?;
            has_below[number as usize] = true;
        }
        let nodes = self.named.draft.nodes.iter().filter(|_| !parents.is_empty());
        for switch in nodes.filter_map(|node| node.switch) {
            has_below[switch as usize] = true;
        }
        match has_below.iter().position(|has| !has) {
            None => Ok(()),
            Some(empty) => {
                let table = &self.switch_tables[empty];
                Err(table.bad_value("nodes", "the switch has neither nodes nor switches below it").into())
            }
        }
    }

    /// A switch's own ratio, else the one that [fabric] gives its level.
    fn set_oversubscription(&mut self, ratios: &[Option<f64>]) -> Result<(), TopologyError> {
        let heights = if self.oversubscription.is_empty() { vec![0; ratios.len()] } else { self.heights() };
        for (index, ratio) in ratios.iter().enumerate() {
            let by_level = || self.oversubscription.get(heights[index]).copied().unwrap_or(1.0);
            self.named.draft.switches[index].oversubscription = match ratio {
                Some(ratio) => checked_ratio(*ratio, &self.switch_tables[index])?,
                None => by_level(),
            };
        }
        Ok(())
    }

    /// Heights above the leaves, up to the levels that have a ratio; that also ends a walk along a cycle, which is refused later.
    fn heights(&self) -> Vec<usize> {
        let mut heights = vec![0; self.named.draft.switches.len()];
        for _ in 0..self.oversubscription.len().min(8) {
            for switch in 0..self.named.draft.switches.len() {
                if let Some(parent) = self.named.draft.switches[switch].parent {
                    heights[parent as usize] = heights[parent as usize].max(heights[switch] + 1);
                }
            }
        }
        heights
    }

    fn read_domains(&mut self, file: &Table) -> Result<(), TopologyError> {
        self.named.name_domains();
        for table in file.tables("domain")? {
            let name: String = table.required("name")?;
            let table = table.titled(format!("domain `{}`", shown(&name)));
            let nodes: String = table.required("nodes")?;
            table.finish()?;
            let domain = self.named.add_domain("domain", &name, &|| table.place_of("name"))?;
            let place = || table.place_of("nodes");
            let nodes = self.named.find_nodes(&hostlist(&nodes, &table)?, &place)?;
            self.named.join_domain(&nodes, domain, &place)?;
        }
        Ok(())
    }

    fn read_storage(&mut self, file: &Table) -> Result<(), TopologyError> {
        for table in file.tables("storage")? {
            let class: String = table.required("class")?;
            let class = self.hardware(self.catalog.storage_class(&class), &table, "class")?.name.clone();
            let capacity = table.required("capacity")?;
            table.finish()?;
            self.named.draft.storage.push(AttachedStorage { class, capacity });
        }
        Ok(())
    }

    fn read_health(&mut self, file: &Table) -> Result<(), TopologyError> {
        let mut seen = HashSet::new();
        for table in file.tables("health")? {
            let nodes: String = table.required("nodes")?;
            let state: Health = table.choice("state", &Health::ALL)?;
            let reason: Option<String> = table.optional("reason")?;
            let failed: Vec<u32> = table.or("failed_gpus", Vec::new())?;
            table.finish()?;
            hostlist(&nodes, &table)?.visit(|name| {
                let index = self.named.find_node(name, &|| table.place_of("nodes"))?;
                if !seen.insert(index) {
                    let (what, name) = ("health of node", shown(name));
                    return Err(TopologyError::Duplicate { what, name, place: table.place_of("nodes") });
                }
                let draft = &mut self.named.draft;
                let node = &mut draft.nodes[index as usize];
                node.health = state;
                node.reason.clone_from(&reason);
                let gpus = draft.kinds.get(node.kind).accelerators;
                if let Some(wrong) = failed.iter().find(|local| **local >= gpus) {
                    let reason =
                        format!("node `{}` has {gpus} GPUs, and {wrong} is not one of them", shown(name));
                    return Err(table.bad_value("failed_gpus", reason).into());
                }
                draft.failed.extend(failed.iter().map(|local| (index, *local)));
                Ok(())
            })?;
        }
        Ok(())
    }

    fn hardware<T>(
        &self,
        found: Result<T, CatalogError>,
        table: &Table,
        key: &str,
    ) -> Result<T, TopologyError> {
        found.map_err(|error| TopologyError::unknown_hardware(error, self.catalog, table.place_of(key)))
    }

    fn finish(self, source: Source<'_>) -> Result<Cluster, TopologyError> {
        let (groups, switches) = (self.group_tables, self.switch_tables);
        let group_of = |node: usize| &groups[groups.partition_point(|(first, _)| *first <= node) - 1].1;
        self.named.draft.build(&|culprit| match culprit {
            Culprit::Switch(index) => switches.get(index).map_or_else(|| source.whole(), Table::place),
            Culprit::Node(index) => group_of(index).place(),
            Culprit::Whole => source.whole(),
        })
    }
}

/// What a group is made of, with the number of the kind of its nodes.
#[derive(Debug, Clone, Copy)]
enum Member<'a> {
    Catalog(Unit<'a>, u16),
    Own(u16),
}

impl Member<'_> {
    fn nodes(self) -> u32 {
        match self {
            Member::Catalog(unit, _) => unit.nodes(),
            Member::Own(_) => 1,
        }
    }
}

struct Group<'a> {
    member: Member<'a>,
    count: u64,
    names: Option<String>,
    features: Vec<String>,
    table: Table,
}

impl Group<'_> {
    fn node_count(&self) -> u64 {
        self.count.saturating_mul(self.member.nodes().into())
    }

    fn add_to(&self, draft: &mut ClusterDraft, names: &mut impl Iterator<Item = String>) {
        for _ in 0..self.count {
            match self.member {
                Member::Catalog(unit, kind) => add_unit(draft, unit, kind, names),
                Member::Own(kind) => {
                    if let Some(name) = names.next() {
                        draft.add_node(name, kind);
                    }
                }
            }
        }
    }
}

fn local_storage(table: &Table) -> Result<Option<LocalStorage>, TopologyError> {
    let Some(disks) = table.table("local_storage")? else { return Ok(None) };
    let (class, devices) = (disks.required("class")?, disks.required("devices")?);
    let storage = LocalStorage { class, devices, device_size: disks.required("device_size")? };
    disks.finish()?;
    Ok(Some(storage))
}

fn checked_ratio(ratio: f64, table: &Table) -> Result<f32, TopologyError> {
    if (1.0..=1e6).contains(&ratio) {
        return Ok(ratio as f32);
    }
    let reason = format!("{ratio} is not a ratio of downlink to uplink bandwidth, which is at least 1");
    Err(table.bad_value("oversubscription", reason).into())
}

fn hostlist<'n>(names: &'n str, table: &Table) -> Result<Hostlist<'n>, TopologyError> {
    Hostlist::parse(names).map_err(|error| error.with_place(names, table.place_of("nodes")))
}
