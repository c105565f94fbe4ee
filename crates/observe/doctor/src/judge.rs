//! From facts about a node to checks: a pure function.

mod gpus;
mod kernel;
mod network;
mod settings;
mod versions;

use bedplate_catalog::{Accelerator, Catalog, Instance};

use crate::check::{Check, Stack};
use crate::cost::FlawPricing;
use crate::facts::NodeFacts;

/// What the node should be, by the catalog.
pub(crate) struct Expected<'a> {
    pub(crate) instance: Option<&'a Instance>,
    pub(crate) accelerator: Option<&'a Accelerator>,
    pub(crate) price: Option<FlawPricing>,
}

impl<'a> Expected<'a> {
    /// By name; otherwise by what the firmware says, and for the accelerator by what the driver says.
    fn of(facts: &NodeFacts, catalog: &'a Catalog, like: Option<&str>) -> Self {
        let name = like.or(facts.product.as_deref());
        let instance = name.and_then(|name| catalog.instance(name).ok());
        let by_driver = || catalog.accelerator(facts.gpus.first()?.name.as_str()).ok();
        let accelerator = instance.map(|instance| catalog.accelerator_of(instance)).or_else(by_driver);
        let price = instance.and_then(|instance| FlawPricing::new(&instance.name, catalog));
        Self { instance, accelerator, price }
    }

    pub(crate) fn is_efa(&self) -> bool {
        self.instance
            .and_then(|instance| instance.scale_out.as_deref())
            .is_some_and(|name| name.starts_with("efa"))
    }

    pub(crate) fn generation(&self) -> &str {
        self.accelerator.map_or("", |accelerator| accelerator.generation.as_str())
    }
}

/// All checks of a node, layer by layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Examination {
    /// The catalog's entry that the node was held against.
    pub instance: Option<String>,
    pub checks: Vec<Check>,
}

/// Judges a node. `like` names the instance that it should be; without it the firmware's name is looked up.
pub fn examine(facts: &NodeFacts, catalog: &Catalog, like: Option<&str>) -> Examination {
    let expected = Expected::of(facts, catalog, like);
    let mut checks = Vec::new();
    checks.extend(gpus::judge(facts, &expected));
    checks.extend(network::hardware(facts, &expected));
    checks.extend(kernel::judge(facts, &expected));
    checks.extend(versions::judge(facts, &expected));
    checks.extend(network::libraries(facts, &expected));
    checks.extend(settings::judge(facts, &expected));
    checks.extend(unread(facts));
    checks.sort_by_key(|check| check.layer);
    Examination { instance: expected.instance.map(|instance| instance.name.clone()), checks }
}

/// What could not be read is not a pass.
fn unread(facts: &NodeFacts) -> impl Iterator<Item = Check> + '_ {
    facts.remarks.iter().map(|remark| {
        let rule = format!("{}/unread", remark.source);
        Check::fail(&rule, Stack::Hardware, remark.told.clone())
            .because("a driver that does not answer most often waits for a lost GPU")
            .fixed_by("look for XIDs in the kernel log (`dmesg | grep -i xid`), then reset or reboot")
    })
}
