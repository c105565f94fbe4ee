//! The numbers that the serving side does not derive: one table, with the meaning and origin of each.
//!
//! `data/serving/constants.toml` holds the built-in fit; a site's own fit is an overlay in the same format.
//! At most forty are fitted to measured serving rows; the kernel tables are those of aiconfigurator-core
//! 0.12.0 (medians over GEMM, attention, MoE and all-reduce rows).

use crate::constants::constants;

constants! {
    /// Constants of an engine step and of the wait for a first token.
    ServingConstants, "data/serving/constants.toml";
    bf16_rate_ampere = 0.84, KernelTable, 0.1, "Share of the bf16 peak that large matrix products reach on A100 (tables: 0.79 to 0.91).";
    bf16_rate_hopper = 0.76, KernelTable, 0.1, "The same on H100 and H200 (tables: 0.69 to 0.80).";
    bf16_rate_blackwell = 0.66, KernelTable, 0.1, "The same on B200, GB200, B300 and GB300 (tables: 0.62 to 0.73).";
    fp8_rate_hopper = 0.60, KernelTable, 0.1, "Share of the fp8 peak on Hopper (tables: 0.53 to 0.67).";
    fp8_rate_blackwell = 0.508, Serving, 0.15, "The same on Blackwell (tables: 0.47 to 0.64).";
    fp4_rate_blackwell = 0.42, Serving, 0.15, "Share of the fp4 peak on Blackwell (tables: 0.31 to 0.45).";
    dense_read_hopper = 0.85, Serving, 0.1, "Share of HBM bandwidth at which a decode step reads dense weights on Hopper and older (tables: 0.77 to 0.83 for one product).";
    dense_read_blackwell = 0.75, Serving, 0.1, "The same on Blackwell (tables: 0.67 to 0.72).";
    fp4_read_blackwell = 0.55, Serving, 0.15, "The same of weights in fp4 (tables: 0.46 to 0.51 for one product of vLLM or SGLang).";
    expert_read_hopper = 0.74, Serving, 0.1, "Share of HBM bandwidth at which routed experts are read on Hopper and older.";
    expert_read_blackwell = 0.80, Serving, 0.1, "The same on Blackwell.";
    expert_rate_hopper = 0.60, Serving, 0.25, "Rate of deep grouped expert products against one large product of the same arithmetic on Hopper and older, bf16 (tables: 0.2 to 1).";
    expert_fp8_rate_hopper = 0.65, Serving, 0.15, "The same in fp8 (tables: 0.4 to 0.8).";
    expert_rate_blackwell = 0.70, Serving, 0.25, "The same on Blackwell, bf16 and fp4 (tables: 0.6 to 1).";
    expert_fp8_rate_blackwell = 0.33, Serving, 0.25, "The same in fp8, whose scales of blocks its tensor cores do not know (tables: 0.25 to 0.35, DeepGEMM of TensorRT-LLM 1.3).";
    expert_depth = 1000.0, Serving, 0.4, "Summed values at which a grouped product reaches half of that: starting a tile, casting and gathering its tokens take as long (tables: 300 to 3000).";
    expert_tile = 30.0, Serving, 0.4, "Tokens by which the products of an expert are padded to whole tiles (tables: 13 to 40).";
    kv_read = 0.78, KernelTable, 0.1, "Share of HBM bandwidth at which paged keys and values are read (tables: 0.75 to 0.85 above 1 GB).";
    attention_rate_hopper = 0.65, KernelTable, 0.1, "Share of the bf16 peak that prompt attention nears for long prompts on Hopper and older (tables: 0.53 to 0.64 at 8k).";
    attention_rate_blackwell = 0.52, KernelTable, 0.1, "The same on Blackwell (tables: 0.45 to 0.53 at 8k).";
    attention_ramp = 800.0, KernelTable, 0.3, "Mean keys per query at which prompt attention reaches half of that (tables at 1k: 0.16 to 0.28, Blackwell 0.11 to 0.13).";
    layer_latency = 49e-6, Serving, 0.2, "Seconds per layer of kernels that wait for each other, in a captured graph.";
    layer_latency_trtllm = 40e-6, Serving, 0.2, "The same in TensorRT-LLM, which fuses more of them.";
    mixture_latency = 40e-6, Serving, 0.3, "Seconds more in a layer with routed experts, by the Triton kernels of vLLM and SGLang on Hopper and older (tables: 47 to 78 us).";
    mixture_latency_fused = 25e-6, Serving, 0.3, "The same by kernels of TensorRT-LLM, which all engines use on Blackwell (tables: 23 to 40 us).";
    latent_latency = 33e-6, Serving, 0.3, "Seconds more in a layer with latent attention.";
    sparse_latency = 60e-6, Serving, 0.3, "Seconds more in a layer that chooses its keys by an indexer.";
    linear_latency = 20e-6, Serving, 0.3, "Seconds more in a layer of linear attention: a convolution, gates, its own norm.";
    block_latency = 17e-6, Serving, 0.3, "Seconds more in a layer whose activations are cast to block-scaled fp8.";
    block_latency_trtllm = 8e-6, Serving, 0.4, "The same in TensorRT-LLM, whose small block-scaled products take a tenth of the time of others' (tables: 6 against 60 us on H200).";
    eager_latency = 300e-6, Serving, 0.5, "Seconds per layer in which the host launches a step that holds prompt tokens, where engines have not captured it; the GPU's work hides them or waits.";
    reduce_latency = 7.4e-6, Serving, 0.2, "Seconds of a small all-reduce inside a scale-up domain (tables: 4 to 8 us up to 128 KB).";
    reduce_latency_trtllm = 4e-6, Serving, 0.3, "The same in TensorRT-LLM, fused with the norm behind it (tables: 3 to 6 us).";
    reduce_reach = 0.75, Serving, 0.15, "Share of scale-up bandwidth that large reductions reach (tables: 418 of 450 GB/s on H200, 591 of 900 on B200).";
    expert_skew = 0.3, Serving, 0.3, "Exponent of the power law by which tokens prefer experts; 0 is even.";
    sequence_host = 26e-6, Serving, 0.3, "Seconds of host work per running sequence and step: sampling, detokenising, streaming.";
    sequence_host_trtllm = 15e-6, Serving, 0.5, "The same, TensorRT-LLM.";
    step_host_trtllm = 0.5e-3, Serving, 0.5, "Seconds of each step that TensorRT-LLM's executor does not hide behind the GPU's work.";
    draft_acceptance = 2.0, Serving, 0.15, "Tokens per step with three drafts of a multi-token predictor, answers of about a thousand tokens.";
    draft_growth = 0.1, Serving, 0.3, "Exponent by which that grows with the length of answers, which repeat themselves.";
    maturity = 0.5, Serving, 0.3, "Logarithm per year by which kernel latency of mixtures falls as engines mature.";
    tokenise = 2e-6, Serving, 0.5, "Seconds in which a server makes one token of a prompt from text, before the engine can see it.";
    first_token_trtllm = 64e-3, SetByHand, 0.5, "Seconds of a first token outside the engine's steps, TensorRT-LLM: HTTP, tokenising, first stream.";
    first_token_sglang = 100e-3, SetByHand, 0.5, "The same, SGLang.";
    first_token_vllm = 13e-3, Serving, 0.5, "The same, vLLM.";
    visible_trtllm = 1.0, Serving, 0.3, "Steps before TensorRT-LLM sees a request that arrived and that it has polled.";
    visible_vllm = 2.2, Serving, 0.3, "The same, vLLM.";
    visible_sglang = 1.5, Serving, 0.3, "The same, SGLang.";
    hand_off = 50e-3, Serving, 0.5, "Seconds of routing and handshake of a request between prompt and decode workers.";
    balance_wait = 60.0, SetByHand, 0.3, "Steps for which a prompt of TensorRT-LLM waits at most until every attention data rank has one, as published scripts set it.";
    single_draft = 0.6, SetByHand, 0.3, "Share of the gain of three drafts that one draft brings.";
    serial_host = 4e-3, SetByHand, 0.5, "Seconds of scheduling per step that an engine without overlap exposes (async scheduling of vLLM and SGLang hides it).";
    workspace = 2.0, SetByHand, 0.3, "GB of a GPU for CUDA context, graphs and communication buffers.";
}
