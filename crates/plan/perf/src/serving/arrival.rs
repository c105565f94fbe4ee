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
}

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
        let balances = deployment.engine == Engine::TensorRtLlm && deployment.parallel.attention_data > 1;
        let balance = if balances { c.balance_wait } else { 0.0 };
        let settings = &deployment.settings;
        let visible_after = settings.visible_after.unwrap_or(visible_after + balance);
        let visible_after = visible_after + f64::from(settings.batch_wait);
        let first_token = (first_token + deployment.adjustment.first_token).max(0.0);
        Self { visible_after, first_token, tokenise: c.tokenise }
    }
}
