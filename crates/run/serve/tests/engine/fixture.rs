//! Tiny models with random weights, engines over them, and the reference.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use bedplate_diag::Source;
use bedplate_kernels::{Bf16, Device, WeightFormat};
use bedplate_network::{
    Architecture, BatchTokens, KvPool, Network, PackedWeights, Recompute, Weights, Workspace, WorkspaceShape,
};
use bedplate_serve::{
    Activations, Answer, Ask, Continuation, EndReason, Engine, EngineOptions, Logprobs, Replica, SampleEvent,
    Sampling,
};
use bedplate_testkit::wait_to_see;

pub(crate) const CONTEXT: usize = 320;

pub(crate) const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 131, "max_position_embeddings": 320,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "initializer_range": 0.3}"#;
pub(crate) const QWEN3: &str = r#"{"model_type": "qwen3", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 131, "max_position_embeddings": 320,
    "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": true, "initializer_range": 0.3}"#;
pub(crate) const MIXTRAL: &str = r#"{"model_type": "mixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 131, "max_position_embeddings": 320, "num_local_experts": 4,
    "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "hidden_act": "silu", "initializer_range": 0.3, "sliding_window": null}"#;

pub(crate) const GPT_OSS: &str = r#"{"model_type": "gpt_oss", "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 131, "max_position_embeddings": 320,
    "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 24, "initializer_range": 0.3}"#;
pub(crate) const DEEPSEEK: &str = r#"{"model_type": "deepseek_v3", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 131, "max_position_embeddings": 320, "q_lora_rank": 16, "kv_lora_rank": 16,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4,
    "topk_group": 2, "n_shared_experts": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0, "initializer_range": 0.3}"#;

/// A model in memory.
pub(crate) struct Tiny {
    pub(crate) device: Device,
    pub(crate) network: Network,
    pub(crate) weights: Weights<f32>,
}

impl Tiny {
    pub(crate) fn new(config: &str) -> Self {
        let device = Device::cpu(1);
        let network = Network::new(&device, architecture(config), CONTEXT).unwrap();
        let mut weights = Weights::zeros(&device, &network);
        network.initialise(&device, 5, &mut weights);
        Self { device, network, weights }
    }

    /// The logits after each token of a text.
    pub(crate) fn logits(&self, text: &[u32]) -> Vec<Vec<f32>> {
        let shape = WorkspaceShape {
            sequences: 1,
            sequence: text.len(),
            recompute: Recompute::None,
            has_gradients: false,
        };
        let mut workspace = Workspace::new(&self.device, &self.network, shape);
        let positions: Vec<u32> = (0..text.len() as u32).collect();
        let (targets, first_keys) = (vec![u32::MAX; text.len()], vec![0; text.len()]);
        let given = BatchTokens {
            tokens: text,
            targets: &targets,
            positions: &positions,
            first_keys: &first_keys,
            padding: &[],
        };
        let mut room = workspace.room(0);
        room.load(&self.device, given);
        self.network.forward(&self.device, &self.weights, &mut room);
        let head = self.network.head_weights(&self.weights);
        let mut after = |at| {
            let mut logits = vec![0.0; self.network.architecture().transformer.vocab as usize];
            self.network.logits(&self.device, head, &mut room, at, &mut logits);
            logits
        };
        (0..text.len()).map(&mut after).collect()
    }

    /// The most likely tokens after a prompt, and how clear each choice is.
    pub(crate) fn continued(&self, prompt: &[u32], count: usize) -> Vec<u32> {
        let shape = WorkspaceShape {
            sequences: 1,
            sequence: prompt.len() + count,
            recompute: Recompute::None,
            has_gradients: false,
        };
        let mut workspace = Workspace::new(&self.device, &self.network, shape);
        let mut text = prompt.to_vec();
        let mut logits = vec![0.0; self.network.architecture().transformer.vocab as usize];
        for _ in 0..count {
            let mut tokens = text.clone();
            tokens.resize(shape.sequence, 0);
            let positions: Vec<u32> = (0..shape.sequence as u32).collect();
            let (targets, first_keys) = (vec![u32::MAX; shape.sequence], vec![0; shape.sequence]);
            let given = BatchTokens {
                tokens: &tokens,
                targets: &targets,
                positions: &positions,
                first_keys: &first_keys,
                padding: &[],
            };
            let mut room = workspace.room(0);
            room.load(&self.device, given);
            self.network.forward(&self.device, &self.weights, &mut room);
            let head = self.network.head_weights(&self.weights);
            self.network.logits(&self.device, head, &mut room, text.len() - 1, &mut logits);
            let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            text.push(logits.iter().position(|logit| *logit == most).unwrap() as u32);
        }
        text.split_off(prompt.len())
    }
}

pub(crate) fn architecture(config: &str) -> Architecture {
    Architecture::from_config(Source::new("config.json", config)).unwrap()
}

/// An engine with the weights of [`Tiny`].
pub(crate) fn engine(config: &str, options: &EngineOptions) -> Engine {
    engine_ending(config, &[], options)
}

pub(crate) fn engine_ending(config: &str, ends: &[u32], options: &EngineOptions) -> Engine {
    let device = Device::cpu(options.threads.max(1));
    let network = Network::new(&device, architecture(config), CONTEXT).unwrap();
    let mut weights = Weights::<f32>::zeros(&device, &network);
    network.initialise(&device, 5, &mut weights);
    match options.activations {
        Activations::F32 => {
            let packed = PackedWeights::<f32>::of(&network, &device, &weights, WeightFormat::F32);
            Engine::with_weights(device, network, packed, None, Vec::new(), ends, options).unwrap().0
        }
        Activations::Bf16 => {
            let format = options.weights.unwrap_or(WeightFormat::Bf16);
            let packed = PackedWeights::<Bf16>::of(&network, &device, &weights, format);
            Engine::with_weights(device, network, packed, None, Vec::new(), ends, options).unwrap().0
        }
    }
}

/// The same with a draft model: the model itself, or one with other weights.
pub(crate) fn engine_with_draft(config: &str, seed: u64, options: &EngineOptions) -> Engine {
    let device = Device::cpu(1);
    let make = |seed| {
        let network = Network::new(&device, architecture(config), CONTEXT).unwrap();
        let mut weights = Weights::<f32>::zeros(&device, &network);
        network.initialise(&device, seed, &mut weights);
        let packed = PackedWeights::<f32>::of(&network, &device, &weights, WeightFormat::F32);
        (network, packed)
    };
    let ((network, packed), draft) = (make(5), make(seed));
    Engine::with_weights(device, network, packed, Some(draft), Vec::new(), &[], options).unwrap().0
}

/// Room for `blocks` blocks of a model with the settings of the tests.
pub(crate) fn kv_bytes(config: &str, blocks: u64, options: &EngineOptions) -> u64 {
    let device = Device::cpu(1);
    let network = Network::new(&device, architecture(config), CONTEXT).unwrap();
    let tokens = options.block_tokens as usize;
    let bytes = match options.activations {
        Activations::F32 => KvPool::<f32>::bytes_of_block(&network, tokens, options.kv),
        Activations::Bf16 => KvPool::<Bf16>::bytes_of_block(&network, tokens, options.kv),
    };
    blocks * bytes as u64
}

pub(crate) fn options() -> EngineOptions {
    EngineOptions {
        threads: 1,
        activations: Activations::F32,
        kv_bytes: 8 << 20,
        token_budget: 64,
        chunk_tokens: 64,
        max_seqs: 8,
        ..EngineOptions::default()
    }
}

/// Prompts that begin alike and differ in length.
pub(crate) fn prompts(count: u32) -> Vec<Vec<u32>> {
    (0..count)
        .map(|of| {
            (0..20 + of * 7).map(|at| if at < 18 { at * 5 % 131 } else { (at * 7 + of * 13) % 131 }).collect()
        })
        .collect()
}

pub(crate) fn greedy(prompt: &[u32], most: u32) -> Ask {
    let continuation = Continuation { most, sampling: Sampling::greedy(), ..Continuation::default() };
    Ask::text(prompt.to_vec(), continuation)
}

/// Everything that an answer tells.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Told {
    pub(crate) samples: Vec<(Vec<u32>, Option<EndReason>)>,
    pub(crate) cached: u32,
    pub(crate) failed: Option<String>,
    /// Of the prompt's tokens but the first.
    pub(crate) prompt: Vec<Logprobs>,
    pub(crate) embedding: Vec<f32>,
}

pub(crate) fn listen(mut answer: Answer) -> Told {
    let mut told = Told::default();
    while let Some(event) = answer.wait() {
        let mut of = |sample: u16| {
            let count = told.samples.len().max(usize::from(sample) + 1);
            told.samples.resize_with(count, Default::default);
            usize::from(sample)
        };
        match event {
            SampleEvent::Admitted { cached_tokens } => told.cached = cached_tokens,
            SampleEvent::Token { sample, token, .. } => {
                let at = of(sample);
                assert_eq!(told.samples[at].1, None, "no token comes after the end");
                told.samples[at].0.push(token);
            }
            SampleEvent::End { sample, reason } => {
                let at = of(sample);
                assert_eq!(told.samples[at].1.replace(reason), None, "a sample ends once");
            }
            SampleEvent::Prompt { first, logprobs } => {
                assert_eq!(first, told.prompt.len() + 1, "each token of the prompt is told once");
                assert!(told.samples.is_empty(), "the prompt is told before its samples");
                told.prompt.extend(logprobs);
            }
            SampleEvent::Embedding(embedding) => told.embedding = embedding,
            SampleEvent::Failed(reason) => told.failed = Some(reason),
            SampleEvent::Blocks { .. } => panic!("nobody asked for blocks"),
        }
    }
    told
}

/// The only sample of an answer.
pub(crate) fn tokens(answer: Answer) -> Vec<u32> {
    let told = listen(answer);
    assert_eq!(told.failed, None);
    assert_eq!(told.samples.len(), 1);
    told.samples.into_iter().next().unwrap().0
}

/// Waits until the engine has nothing to do and asserts that no block is held.
pub(crate) fn assert_nothing_left(engine: &Engine) {
    let state = wait_to_see(
        "the engine comes to rest",
        || engine.state(),
        |state| state.requests == 0 && state.running == 0 && state.waiting == 0,
    );
    assert_eq!(state.used_blocks, 0, "no block is leaked: {state:?}");
}

/// A folder of its own.
pub(crate) fn folder(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("bedplate-serve-{name}-{}-{number}", std::process::id()))
}
