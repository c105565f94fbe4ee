//! Replicas that are asked for and not searched: split and stored as a pattern says, in one pool or two.

use bedplate_diag::{Diagnostic, Page, pages};
use bedplate_replay::requests::{Planned, Traffic};

use crate::{LayoutPattern, Need, OfferedLoad, Pattern, Plan, ServingLayoutRefusal, Supply, Workers, fit};

/// How many replicas, and their sequence slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    pub replicas: u32,
    /// Replicas that compute prompts and replicas that decode, instead.
    pub split: Option<(u32, u32)>,
    pub max_seqs: u32,
    /// Prompt tokens of one step, where the pattern does not say.
    pub chunk: u32,
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("no replica can be split as {layout}: {refusal}")]
pub struct RefusedReplica {
    pub layout: String,
    pub refusal: ServingLayoutRefusal,
}

pages! { pub PAGES "replay":
    REFUSED_REPLICA "refused-replica" User
        "The layout breaks a rule of the model or the chip, or the weights and the KV of one request do not fit on the GPUs of a replica."
        "give more tensor ranks or narrower formats in `--layout`; `bedplate plan serve` finds those that work"
}

impl Diagnostic for RefusedReplica {
    fn page(&self) -> &'static Page {
        &REFUSED_REPLICA
    }
}

impl Plan {
    /// The requested replicas, if each of them is possible.
    pub fn requested(
        need: &Need<'_>,
        supply: &Supply,
        pattern: &Pattern,
        numbers: Numbers,
    ) -> Result<Self, RefusedReplica> {
        let workers = |pattern: &LayoutPattern, replicas: u32| {
            let chunk = pattern.chunk.or(Some(numbers.chunk));
            let layout = LayoutPattern { chunk, ..*pattern }.completed(need);
            let refused = |refusal| RefusedReplica { layout: layout.to_string(), refusal };
            fit(need, supply, &layout).map_err(refused)?;
            Ok(Workers { layout, replicas, max_seqs: numbers.max_seqs })
        };
        let Pattern { first, second } = pattern;
        Ok(match numbers.split {
            None => Plan::Aggregated(workers(first, numbers.replicas)?),
            Some((prefill, decode)) => Plan::Disaggregated {
                prefill: workers(first, prefill)?,
                decode: workers(second.as_ref().unwrap_or(first), decode)?,
            },
        })
    }
}

impl OfferedLoad {
    /// Mean lengths of a traffic, at any rate; they determine the bend of windowed attention and the usual step.
    pub fn usual_of(traffic: &Traffic) -> Self {
        match traffic {
            Traffic::Generated(load) => {
                OfferedLoad::new(load.prompt.mean().max(1), load.output.mean().max(1), 1.0)
            }
            Traffic::Trace(requests) => {
                let count = requests.len().max(1) as u64;
                let mean = |tokens: fn(&Planned) -> u32| {
                    let sum: u64 = requests.iter().map(|planned| u64::from(tokens(planned))).sum();
                    (sum / count).max(1) as u32
                };
                OfferedLoad::new(
                    mean(|planned| planned.prompt_tokens),
                    mean(|planned| planned.output_tokens),
                    1.0,
                )
            }
        }
    }
}
