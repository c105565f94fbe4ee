//! What a request waits for besides its turn: the engine polling its queue, and the path in and out.

use super::{Deployment, Engine, ServingConstants};

/// Delay of a request that is not queueing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrival {
    /// Steps before the engine sees a request that came while it was busy; a fraction is a probability.
    pub visible_after: f64,
    /// Seconds of a first token outside the engine's steps.
    pub first_token: f64,
}

impl Arrival {
    pub fn new(deployment: &Deployment, constants: &ServingConstants) -> Self {
        let c = constants;
        let interval = deployment.settings.receive_interval;
        let (visible_after, first_token) = match deployment.engine {
            Engine::Vllm | Engine::Bedplate => (c.visible_vllm * interval, c.first_token_vllm),
            Engine::Sglang => (c.visible_sglang * interval, c.first_token_sglang),
            Engine::TensorRtLlm => (c.visible_trtllm * interval, c.first_token_trtllm),
        };
        let balances = deployment.engine == Engine::TensorRtLlm && deployment.parallel.attention_data > 1;
        let balance = if balances { c.balance_wait } else { 0.0 };
        let visible_after = deployment.settings.visible_after.unwrap_or(visible_after + balance);
        let first_token = (first_token + deployment.adjustment.first_token).max(0.0);
        Self { visible_after, first_token }
    }
}
