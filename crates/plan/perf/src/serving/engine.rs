//! How engine families differ in latency: one table of settings, each a default that a
//! deployment may replace.

use crate::{Generation, Hardware};

/// An engine family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Engine {
    Vllm,
    Sglang,
    TensorRtLlm,
    /// `bedplate serve`: scheduled like vLLM, with kernels and host overhead like TensorRT-LLM.
    Bedplate,
}

/// How prompts and decodes share steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefillStyle {
    /// Prompts get their own steps, during which decodes pause.
    Separate,
    /// Chunks of prompts share steps with decodes, up to a number of tokens.
    Chunked,
    /// Whole prompts share steps with decodes.
    Whole,
}

/// KV tokens that must be free to admit a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvReserve {
    /// Prompt and half of the answer: preemption handles later growth.
    HalfAnswer,
    /// Prompt and the whole answer: nothing is ever evicted.
    WholeAnswer,
}

/// The settings that decide how requests pass through an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineSettings {
    pub prefill: PrefillStyle,
    /// Prompt tokens of one step, for each attention data rank.
    pub chunk: u32,
    pub reserve: KvReserve,
    /// Share of a GPU's memory that the engine takes.
    pub memory_share: f64,
    /// Decode steps between polls of the request queue (SGLang's receive interval); a step with prompts is followed by one.
    pub receive_interval: u32,
    /// Steps that a prompt waits at most for others to share its step (TensorRT-LLM's batch wait).
    pub batch_wait: u32,
    /// Steps by which first tokens come late; answers count as begun so much later.
    pub late_stream: u32,
    /// Steps before a new request is seen; `None` is the engine family's usual number.
    pub visible_after: Option<f64>,
    /// Whether steps with prompts run as captured graphs, in pieces around attention; otherwise the host launches every kernel.
    pub captures_prompts: bool,
    /// Sequences that may run at once, for each attention data rank.
    pub max_sequences: u32,
    /// Tokens per second that one server can stream out; requests beyond that wait before their first token.
    pub stream_limit: Option<f64>,
}

struct Row {
    engine: Engine,
    name: &'static str,
    prefill: PrefillStyle,
    chunk: u32,
    chunk_blackwell: u32,
    reserve: KvReserve,
    memory_share: f64,
    memory_share_hopper: f64,
    captures_prompts: bool,
}

const VLLM: Row = Row {
    engine: Engine::Vllm,
    name: "vllm",
    prefill: PrefillStyle::Chunked,
    chunk: 8192,
    chunk_blackwell: 8192,
    reserve: KvReserve::HalfAnswer,
    memory_share: 0.92,
    memory_share_hopper: 0.92,
    captures_prompts: true,
};

/// Defaults as the engines document them and as the measured rows show.
static ENGINES: [Row; 4] = [
    VLLM,
    Row {
        engine: Engine::Sglang,
        name: "sglang",
        prefill: PrefillStyle::Separate,
        chunk: 8192,
        chunk_blackwell: 16_384,
        reserve: KvReserve::HalfAnswer,
        memory_share: 0.92,
        memory_share_hopper: 0.82,
        captures_prompts: true,
    },
    Row {
        engine: Engine::TensorRtLlm,
        name: "trtllm",
        prefill: PrefillStyle::Whole,
        chunk: 8192,
        chunk_blackwell: 8192,
        reserve: KvReserve::WholeAnswer,
        memory_share: 0.92,
        memory_share_hopper: 0.92,
        captures_prompts: false,
    },
    Row { engine: Engine::Bedplate, name: "bedplate", captures_prompts: false, ..VLLM },
];

/// Default number of concurrent sequences.
const MAX_SEQUENCES: u32 = 2048;

impl Engine {
    pub const ALL: [Engine; 4] = [Engine::Vllm, Engine::Sglang, Engine::TensorRtLlm, Engine::Bedplate];

    fn row(self) -> &'static Row {
        ENGINES
            .iter()
            .find(|row| row.engine == self)
            .expect("the table names every engine: checked by a test")
    }

    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The engine whose name begins a text such as `sglang 0.5.9` or `TensorRT-LLM (PyTorch backend)`.
    pub fn find(text: &str) -> Option<Self> {
        let lower = text.trim().to_ascii_lowercase();
        let is_tensorrt = lower.starts_with("tensorrt") || lower.starts_with("trt");
        Self::ALL
            .into_iter()
            .find(|engine| lower.starts_with(engine.name()))
            .or_else(|| is_tensorrt.then_some(Engine::TensorRtLlm))
    }

    /// The engine's default settings.
    pub fn settings(self, hardware: &Hardware) -> EngineSettings {
        let row = self.row();
        let is_blackwell = matches!(hardware.generation, Generation::Blackwell | Generation::BlackwellUltra);
        EngineSettings {
            prefill: row.prefill,
            chunk: if is_blackwell { row.chunk_blackwell } else { row.chunk },
            reserve: row.reserve,
            memory_share: if is_blackwell { row.memory_share } else { row.memory_share_hopper },
            receive_interval: 1,
            batch_wait: 0,
            late_stream: 0,
            visible_after: None,
            captures_prompts: row.captures_prompts,
            max_sequences: MAX_SEQUENCES,
            stream_limit: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_has_a_row_and_is_found_by_its_versions() {
        for engine in Engine::ALL {
            assert_eq!(Engine::find(&format!("{} 1.2.3", engine.name())), Some(engine));
        }
        assert_eq!(Engine::find("TensorRT-LLM (PyTorch backend)"), Some(Engine::TensorRtLlm));
        assert_eq!(Engine::find("llama.cpp"), None);
    }
}
