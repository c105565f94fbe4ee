//! How a network continues a text, for people who watch it learn: written by an engine, as it will be when the model is served.
//!
//! The engine has a packed copy of the weights and lives for one text, so that between texts it takes no memory.

use bedplate_kernels::{Device, Element, KvFormat, WeightFormat};
use bedplate_network::{KvPool, Network, PackedWeights, Weights};
use bedplate_serve::{
    Activations, Ask, Continuation, Engine, EngineOptions, Replica, SampleEvent, Sampling, ServeError,
};
use bedplate_transformer::{Attention, Transformer};

/// Tokens of the prompt that are computed at a time.
const CHUNK: u32 = 128;
const BLOCK: u32 = 16;
/// Bytes of an engine beside weights, keys and values: buffers of a few rows.
const ROOM: f64 = 4e6;

/// What is to be written.
pub(crate) struct Text<'a> {
    pub(crate) prompt: &'a [u32],
    /// Most tokens.
    pub(crate) count: usize,
    pub(crate) end: Option<u32>,
    pub(crate) temperature: f64,
    pub(crate) seed: u64,
}

impl Text<'_> {
    /// The tokens that follow the prompt, as far as the model was made for texts of that length.
    pub(crate) fn write<E: Element>(
        &self,
        device: &Device,
        network: &Network,
        weights: &Weights<E>,
    ) -> Result<Vec<u32>, ServeError> {
        let architecture = network.architecture().clone();
        let longest = architecture.transformer.max_context.min((self.prompt.len() + self.count) as u64);
        let count = (longest as usize).saturating_sub(self.prompt.len()).min(self.count);
        if self.prompt.is_empty() || count == 0 {
            return Ok(Vec::new());
        }
        let whole = Network::new(device, architecture, longest as usize)?;
        let (activations, format) = match E::NAME {
            "f32" => (Activations::F32, WeightFormat::F32),
            _ => (Activations::Bf16, WeightFormat::Bf16),
        };
        let packed = PackedWeights::<E>::of(network, device, weights, format);
        let blocks = longest.div_ceil(u64::from(BLOCK)) + 1;
        let options = EngineOptions {
            activations,
            weights: Some(format),
            context_limit: longest as u32,
            block_tokens: BLOCK,
            kv_bytes: blocks * KvPool::<E>::bytes_of_block(&whole, BLOCK as usize, KvFormat::Stored) as u64,
            token_budget: CHUNK,
            chunk_tokens: CHUNK,
            max_seqs: 1,
            keeps_prefixes: false,
            ..EngineOptions::default()
        };
        let ends: Vec<u32> = self.end.into_iter().collect();
        let own = Device::cpu(device.threads());
        let (engine, _) = Engine::with_weights(own, whole, packed, None, Vec::new(), &ends, &options)?;
        Ok(self.hear(&engine, count as u32))
    }

    fn hear(&self, engine: &Engine, most: u32) -> Vec<u32> {
        let sampling = Sampling {
            temperature: self.temperature as f32,
            top_p: 0.95,
            seed: Some(self.seed),
            ..Sampling::default()
        };
        let continuation = Continuation { most, sampling, ..Continuation::default() };
        let Ok(mut answer) = engine.ask(Ask::text(self.prompt.to_vec(), continuation)) else {
            return Vec::new();
        };
        let mut tokens = Vec::new();
        while let Some(event) = answer.wait() {
            if let SampleEvent::Token { token, .. } = event {
                tokens.push(token);
            }
        }
        tokens.retain(|token| Some(*token) != self.end);
        tokens
    }
}

/// Bytes that an engine takes while it writes: a packed copy of the weights, keys and values of a text, and its buffers.
pub(crate) fn bytes(model: &Transformer, tokens: usize, element: f64) -> f64 {
    let kv = |attention: &Attention| match attention {
        Attention::GroupedQuery(attention) => 2.0 * (attention.kv_heads * attention.head_dim) as f64,
        _ => 0.0,
    };
    let kv: f64 = model.layers().map(|layer| kv(&layer.attention)).sum();
    element * (model.parameters().total as f64 + kv * tokens as f64) + ROOM
}
