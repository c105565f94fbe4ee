//! Every way to split a replica.

use std::collections::BTreeSet;

use bedplate_perf::serving::Parallel;

use crate::{Need, ServingLayout, Supply};

/// More stages than this are useless: each adds its latency to every token.
const MOST_STAGES: u32 = 8;

/// All layouts of the degrees that are tried with the formats and chunks of the need, legal or not.
pub(crate) fn layouts(need: &Need<'_>, supply: &Supply) -> Vec<ServingLayout> {
    let mut layouts = Vec::new();
    for parallel in degrees(need, supply) {
        for weights in &need.options.weights {
            for kv in &need.options.kv {
                for chunk in &need.options.chunks {
                    layouts.push(ServingLayout { parallel, weights: *weights, kv: *kv, chunk: *chunk });
                }
            }
        }
    }
    layouts
}

/// Tensor ranks inside a domain, stages over any number of GPUs, and for mixtures expert and attention data
/// ranks, which may span domains. All in powers of two, and ranks over half a domain, whole ones and several (72 GPUs, 144).
fn degrees(need: &Need<'_>, supply: &Supply) -> Vec<Parallel> {
    let gpus = supply.gpus();
    let mut degrees = Vec::new();
    for tensor in powers(supply.hardware.domain.min(gpus)) {
        let stages = powers(MOST_STAGES.min(gpus / tensor));
        degrees.extend(stages.map(|pipeline| Parallel { pipeline, ..Parallel::tensor(tensor) }));
        if need.model.transformer.is_mixture() {
            if tensor > 1 {
                degrees.push(Parallel { expert: tensor, ..Parallel::tensor(tensor) });
            }
            let ranks = ranks(supply.hardware.domain, tensor, gpus);
            degrees.extend(ranks.into_iter().map(|attention_data| Parallel {
                attention_data,
                expert: tensor * attention_data,
                ..Parallel::tensor(tensor)
            }));
        }
    }
    degrees
}

/// Numbers of attention data ranks, of `tensor` GPUs each, above one.
fn ranks(domain: u32, tensor: u32, gpus: u32) -> BTreeSet<u32> {
    let domains = powers(2 * gpus / domain.max(1)).map(|halves| halves * domain / 2);
    let domains = domains.filter(|gpus| gpus.is_multiple_of(tensor)).map(|gpus| gpus / tensor);
    powers(gpus / tensor).chain(domains).filter(|ranks| *ranks > 1).collect()
}

fn powers(most: u32) -> impl Iterator<Item = u32> {
    (0..31).map(|power| 1u32 << power).take_while(move |count| *count <= most)
}
