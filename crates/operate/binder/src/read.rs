//! From Kubernetes' objects to those of `pods`.

mod node;
mod pod;

pub(crate) use node::{node, terms};
pub(crate) use pod::{Lookup, PodReading, pod};

use std::collections::BTreeMap;

use bedplate_document::kubernetes;
use bedplate_kubernetes::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use bedplate_kubernetes::names::GPU_RESOURCES;
use bedplate_pods::Resources;

/// What a list of quantities comes to. An amount that cannot be read counts as none.
fn resources(list: &BTreeMap<String, Quantity>) -> Resources {
    let mut resources = Resources::default();
    for (name, Quantity(text)) in list {
        let whole = || kubernetes::whole(text).unwrap_or(0);
        match name.as_str() {
            "cpu" => resources.cpu_milli = kubernetes::thousandths(text).unwrap_or(0),
            "memory" => resources.memory_bytes = whole(),
            "pods" => resources.pods = whole(),
            name if GPU_RESOURCES.contains(&name) => resources.gpus += whole(),
            name => drop(resources.others.insert(name.to_owned(), whole())),
        }
    }
    resources
}
