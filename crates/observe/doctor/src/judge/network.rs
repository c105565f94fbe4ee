//! Network cards against the catalog, and the libraries between NCCL and them.

use super::Expected;
use crate::check::{Check, Stack};
use crate::facts::NodeFacts;

pub(super) fn hardware(facts: &NodeFacts, expected: &Expected<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    checks.extend(drivers(facts, expected));
    checks.extend(count(facts, expected));
    for card in &facts.cards {
        // EFA has no subnet manager; its ports are always active.
        if let Some(state) = card.state.as_deref().filter(|state| *state != "ACTIVE") {
            checks.push(
                Check::fail("network/port", Stack::Hardware, format!("port of {} is {state}", card.name))
                    .because("NCCL leaves the card out, and the others carry its share")
                    .fixed_by(
                        "check the cable and the switch port (`ibstat`, `mlxlink`), and the subnet manager",
                    ),
            );
        }
    }
    checks
}

fn drivers(facts: &NodeFacts, expected: &Expected<'_>) -> Option<Check> {
    let cards = facts.pci.efa_cards;
    if cards == 0 && !expected.is_efa() {
        return None;
    }
    if cards > 0 && !facts.has_module("efa") {
        return Some(
            Check::fail(
                "driver/efa",
                Stack::Kernel,
                format!("there are {cards} EFA devices and the module efa is not loaded"),
            )
            .because("NCCL falls back to sockets")
            .costing(expected.price.as_ref().and_then(|price| price.without_rdma()))
            .fixed_by("run the EFA installer for this kernel, then `modprobe efa`"),
        );
    }
    let version = facts.modules.get("efa").and_then(Option::as_ref);
    let told = version.map_or_else(|| "loaded".to_owned(), ToString::to_string);
    facts.has_module("efa").then(|| Check::pass("driver/efa", Stack::Kernel, format!("efa {told}")))
}

fn count(facts: &NodeFacts, expected: &Expected<'_>) -> Option<Check> {
    const RULE: &str = "network/cards";
    let seen = facts.cards.len() as u32;
    let should = expected.instance.and_then(|instance| instance.scale_out_cards);
    let Some(should) = should else {
        return (seen > 0)
            .then(|| Check::pass(RULE, Stack::Hardware, format!("{seen} network cards with RDMA")));
    };
    if seen >= should {
        return Some(Check::pass(RULE, Stack::Hardware, format!("all {should} network cards are there")));
    }
    let fix = if expected.is_efa() {
        "launch the instance with all its network interfaces, each of type efa or efa-only; give containers all of /dev/infiniband"
    } else {
        "check `lspci` and the driver (`dmesg | grep mlx5`)"
    };
    let check = Check::fail(RULE, Stack::Hardware, format!("{seen} of {should} network cards are there"));
    Some(
        check
            .because("bandwidth between nodes falls in proportion")
            .costing(expected.price.as_ref().and_then(|price| price.with_cards(seen)))
            .fixed_by(fix),
    )
}

pub(super) fn libraries(facts: &NodeFacts, expected: &Expected<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    if facts.pci.efa_cards > 0 || expected.is_efa() {
        checks.push(plugin(facts, expected));
        checks.push(libfabric(facts, expected));
    }
    for name in ["ucx", "gdrcopy"] {
        if let Some(version) = facts.version(name) {
            checks.push(Check::pass(
                &format!("library/{name}"),
                Stack::Communication,
                format!("{name} {version}"),
            ));
        }
    }
    checks
}

/// Without the plugin NCCL does not know EFA at all.
fn plugin(facts: &NodeFacts, expected: &Expected<'_>) -> Check {
    const RULE: &str = "library/aws-ofi-nccl";
    let Some(copy) = facts.copies("aws-ofi-nccl").next() else {
        return Check::fail(RULE, Stack::Communication, "aws-ofi-nccl is in none of the usual folders nor on LD_LIBRARY_PATH")
            .because("NCCL knows EFA only through it and falls back to sockets")
            .costing(expected.price.as_ref().and_then(|price| price.without_rdma()))
            .fixed_by("run the EFA installer (it brings the plugin since 1.34), and put its folder on LD_LIBRARY_PATH of the job");
    };
    let told = copy.version.as_ref().map_or_else(|| "of unknown version".to_owned(), ToString::to_string);
    let check = |make: fn(&str, Stack, String) -> Check, found: String| {
        make(RULE, Stack::Communication, found).seen_in(&copy.path)
    };
    let is_old = copy.version.as_ref().is_some_and(|version| !version.is_at_least(&[1, 7]));
    if is_old && ["hopper", "blackwell", "blackwell-ultra"].contains(&expected.generation()) {
        return check(Check::fail, format!("aws-ofi-nccl {told} is older than 1.7"))
            .because("the RDMA protocol that fills several cards per GPU came with 1.7")
            .fixed_by("install the current EFA installer");
    }
    check(Check::pass, format!("aws-ofi-nccl {told}"))
}

/// The plugin says which libfabric it needs: 1.18 since 1.8, 1.22 since 1.13.
fn libfabric(facts: &NodeFacts, expected: &Expected<'_>) -> Check {
    const RULE: &str = "library/libfabric";
    let Some(version) = facts.version("libfabric") else {
        return Check::warn(RULE, Stack::Communication, "no libfabric was found by its pkg-config file")
            .because("the plugin needs libfabric with the provider efa")
            .costing(expected.price.as_ref().and_then(|price| price.without_rdma()))
            .fixed_by("run the EFA installer; check `fi_info -p efa`");
    };
    let plugin = facts.version("aws-ofi-nccl");
    let needed: &[u64] = match plugin {
        Some(plugin) if plugin.is_at_least(&[1, 13]) => &[1, 22],
        Some(plugin) if plugin.is_at_least(&[1, 8]) => &[1, 18],
        _ => &[1, 14],
    };
    if version.is_at_least(needed) {
        return Check::pass(RULE, Stack::Communication, format!("libfabric {version}"));
    }
    let plugin = plugin.map_or_else(|| "the plugin".to_owned(), |plugin| format!("aws-ofi-nccl {plugin}"));
    Check::fail(
        RULE,
        Stack::Communication,
        format!("libfabric {version}; {plugin} needs {}.{}", needed[0], needed[1]),
    )
    .because("the plugin refuses to start, and NCCL falls back to sockets")
    .costing(expected.price.as_ref().and_then(|price| price.without_rdma()))
    .fixed_by("take libfabric and the plugin from one EFA installer")
}
