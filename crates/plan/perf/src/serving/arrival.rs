//! What a request waits for besides its turn: the engine polling its queue, and the path in and out.

use super::{Deployment, Engine, ServingConstants};

/// Delay of a request that is not queueing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrival {
    /// Steps before the engine sees a request that came while it was busy; a fraction is a probability.
    pub visible_after: f64,
    /// Seconds of a first token outside the engine's steps.
    pub first_token: f64,
    /// Seconds in which the server makes one token of a prompt from text.
    pub tokenise: f64,
    /// Prompts that the engine has seen and lets wait for others.
    pub prefill_delay: Option<PrefillDelay>,
}

/// Prefill batching delay: prompts wait for each other while others decode, so that one step computes several: until there are enough of them, or the first has waited for the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefillDelay {
    /// Steps for which the first of them waits at most.
    pub longest: u32,
    /// Prompts that are enough.
    pub prompts: u32,
    /// Tokens that are enough.
    pub tokens: u64,
    /// Ranks that decode: while one of them has nothing to decode, no prompt waits.
    pub ranks: u32,
}

/// Share of a step's tokens at which TensorRT-LLM's batch wait ends, as published scripts set it.
const FULL: f64 = 0.8;

impl Arrival {
    /// Seconds from sending a prompt of `tokens` tokens to when an engine could see it.
    pub fn sent(&self, tokens: u32) -> f64 {
        self.tokenise * f64::from(tokens)
    }

    pub fn new(deployment: &Deployment, constants: &ServingConstants) -> Self {
        let c = constants;
        let (visible_after, first_token) = match deployment.engine {
            Engine::Vllm | Engine::Bedplate => (c.visible_vllm, c.first_token_vllm),
            Engine::Sglang => (c.visible_sglang, c.first_token_sglang),
            Engine::TensorRtLlm => (c.visible_trtllm, c.first_token_trtllm),
        };
        let settings = &deployment.settings;
        let visible_after = settings.visible_after.unwrap_or(visible_after) + f64::from(settings.late_stream);
        let first_token = (first_token + deployment.adjustment.first_token).max(0.0);
        Self { visible_after, first_token, tokenise: c.tokenise, prefill_delay: prefill_delay(deployment, c) }
    }

    /// Steps of other requests before a prompt's own, while so many sequences decode; where prompts wait for each other, for half of
    /// the longest wait.
    pub fn steps(&self, decodes: f64) -> f64 {
        let wait = self.prefill_delay.filter(|wait| decodes >= f64::from(wait.ranks));
        self.visible_after + wait.map_or(0.0, |wait| f64::from(wait.longest) / 2.0)
    }
}

/// TensorRT-LLM waits until every attention data rank has a prompt, and where it is told to, until a step is nearly full.
fn prefill_delay(deployment: &Deployment, constants: &ServingConstants) -> Option<PrefillDelay> {
    let Deployment { settings, parallel, engine, .. } = deployment;
    let ranks = parallel.attention_data.max(1);
    let balances = *engine == Engine::TensorRtLlm && ranks > 1;
    let fills = settings.batch_wait > 0;
    if !balances && !fills {
        return None;
    }
    // A prompt goes to the rank that an answer left: until all have one there are as many as coupons to a whole set.
    let coupons = f64::from(ranks) * (1..=ranks).map(|rank| 1.0 / f64::from(rank)).sum::<f64>();
    let full = FULL * f64::from(settings.chunk) * f64::from(ranks);
    let balance = if balances { constants.balance_wait as u32 } else { 0 };
    Some(PrefillDelay {
        longest: settings.batch_wait.max(balance),
        prompts: if balances { coupons.round() as u32 } else { u32::MAX },
        tokens: if fills { full as u64 } else { u64::MAX },
        ranks,
    })
}
