"""Odd variants of every computed family: tiny random models, and what transformers computes with them.

    python variants.py FOLDER [NAME...]     writes a folder for each, all or those named

`variants` runs this and then the test that compares. Gradients and logits are computed in f64 as well; how far transformers' own
f32 is from that is written beside them, since a sum that cancels is not more exact than its terms. After a prompt come 120 greedy
tokens; where two of them are as good as equally likely, another seed is taken.
"""

import contextlib
import json
import sys
import zlib
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

import make

POSITIONS, PROMPT, GREEDY = 160, 12, 120
BASE = {**make.COMMON, "max_position_embeddings": POSITIONS}
LATENT = {**BASE, "num_key_value_heads": 4, "intermediate_size": 40, "moe_intermediate_size": 8, "kv_lora_rank": 12,
          "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 8, "n_shared_experts": 1,
          "num_experts_per_tok": 2, "first_k_dense_replace": 1, "q_lora_rank": 16, "pad_token_id": None}
MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
FULL, NEAR = "full_attention", "sliding_attention"


def rope(kind, **more):
    return {"rope_type": kind, "rope_theta": 1000.0, **more}


YARN = rope("yarn", factor=4.0, original_max_position_embeddings=40)
LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=40)
LONG = rope("longrope", short_factor=[1.0, 1.0, 1.5, 2.0], long_factor=[1.0, 2.0, 4.0, 8.0])
# A family, what all its variants have, and the variants.
FAMILIES = {
    "Llama": (dict(intermediate_size=40), {
        "plain": {}, "tied": dict(tie_word_embeddings=True), "biases": dict(attention_bias=True, mlp_bias=True),
        "one_head": dict(num_key_value_heads=1), "all_heads": dict(num_key_value_heads=4), "wide_heads": dict(head_dim=10),
        "linear": dict(rope_parameters=rope("linear", factor=2.5)), "llama3": dict(rope_parameters=LLAMA3),
        "yarn": dict(rope_parameters=YARN), "dynamic": dict(rope_parameters=rope("dynamic", factor=2.0)),
        "yarn_scaled": dict(rope_parameters={**YARN, "attention_factor": 0.8, "beta_fast": 20.0, "beta_slow": 2.0}),
        "epsilon": dict(rms_norm_eps=0.1), "padding": dict(pad_token_id=7), "bent": dict(hidden_act="gelu"),
        "deep": dict(num_hidden_layers=5)}),
    "Mistral": (dict(intermediate_size=40), {
        "windows": dict(sliding_window=5), "full": dict(sliding_window=None), "head": dict(head_dim=6, sliding_window=7)}),
    "Ministral": (dict(intermediate_size=40, head_dim=8), {
        "mixed": dict(sliding_window=5, layer_types=[FULL, NEAR]), "near": dict(sliding_window=3, layer_types=[NEAR] * 2)}),
    "Qwen2": (dict(intermediate_size=40), {
        "plain": {}, "tied": dict(tie_word_embeddings=True),
        "windows": dict(use_sliding_window=True, sliding_window=4, max_window_layers=1),
        "listed": dict(use_sliding_window=True, sliding_window=6, layer_types=[NEAR, FULL]), "yarn": dict(rope_parameters=YARN)}),
    "Qwen3": (dict(intermediate_size=40, head_dim=8), {
        "plain": {}, "biases": dict(attention_bias=True), "one_head": dict(num_key_value_heads=1),
        "windows": dict(use_sliding_window=True, sliding_window=4, max_window_layers=1), "yarn": dict(rope_parameters=YARN)}),
    "Mixtral": (dict(intermediate_size=32, num_local_experts=4), {
        "plain": {}, "windows": dict(sliding_window=5), "one": dict(num_experts_per_tok=1),
        "all": dict(num_experts_per_tok=4), "three": dict(num_experts_per_tok=3, head_dim=10)}),
    "Qwen2Moe": (dict(intermediate_size=40, shared_expert_intermediate_size=24, **MOE), {
        "plain": {}, "normed": dict(norm_topk_prob=True), "dense": dict(mlp_only_layers=[0]),
        "step": dict(decoder_sparse_step=2), "no_bias": dict(qkv_bias=False)}),
    "Qwen3Moe": (dict(intermediate_size=40, head_dim=8, **MOE), {
        "plain": {}, "normed": dict(norm_topk_prob=True), "dense": dict(mlp_only_layers=[1]), "biases": dict(attention_bias=True),
        "windows": dict(use_sliding_window=True, sliding_window=4)}),
    "Olmoe": (dict(intermediate_size=16, num_experts=4, num_experts_per_tok=2, pad_token_id=None), {
        "plain": {}, "normed": dict(norm_topk_prob=True), "clipped": dict(clip_qkv=0.5)}),
    "Gemma": (dict(intermediate_size=40, head_dim=8, pad_token_id=None), {
        "plain": {}, "untied": dict(tie_word_embeddings=False), "exact": dict(hidden_act="gelu"), "one_head": dict(num_key_value_heads=1)}),
    "Gemma2": (dict(intermediate_size=40, head_dim=8, sliding_window=5, pad_token_id=None), {
        "plain": {}, "unbent": dict(attn_logit_softcapping=None, final_logit_softcapping=None), "scalar": dict(query_pre_attn_scalar=20),
        "tight": dict(attn_logit_softcapping=2.0, final_logit_softcapping=4.0)}),
    "Gemma3Text": (dict(intermediate_size=40, head_dim=8, sliding_window=5, pad_token_id=None), {
        "plain": dict(layer_types=[NEAR, FULL]), "near": dict(layer_types=[NEAR, NEAR]),
        "bases": dict(layer_types=[FULL, NEAR], rope_parameters={NEAR: rope("default"), FULL: rope("linear", factor=4.0)})}),
    "Phi3": (dict(intermediate_size=40, pad_token_id=None), {
        "plain": {}, "windows": dict(sliding_window=5), "part": dict(hidden_size=32, rope_parameters=rope("default", partial_rotary_factor=0.5)),
        # Which of the two lists counts follows from the longest text here, from each text there: one that is long anyway, and one that is never.
        "long": dict(hidden_size=32, original_max_position_embeddings=8, rope_parameters=LONG),
        "short": dict(hidden_size=32, max_position_embeddings=320, original_max_position_embeddings=POSITIONS, rope_parameters=LONG)}),
    "Olmo2": (dict(intermediate_size=40, pad_token_id=None), {
        "plain": {}, "biases": dict(attention_bias=True), "all_heads": dict(num_key_value_heads=4)}),
    "Olmo3": (dict(intermediate_size=40, pad_token_id=None, sliding_window=5), {
        "mixed": dict(layer_types=[NEAR, FULL]), "full": dict(layer_types=[FULL, FULL])}),
    "Glm": (dict(intermediate_size=40, head_dim=8, pad_token_id=None), {"plain": {}, "no_bias": dict(attention_bias=False)}),
    "Glm4": (dict(intermediate_size=40, head_dim=8, pad_token_id=None), {"plain": {}, "whole": dict(partial_rotary_factor=1.0)}),
    "Glm4Moe": (dict(intermediate_size=40, moe_intermediate_size=8, head_dim=8, n_routed_experts=6, num_experts_per_tok=2), {
        "plain": {}, "norms": dict(use_qk_norm=True), "groups": dict(n_group=3, topk_group=2, routed_scaling_factor=1.5),
        "dense": dict(first_k_dense_replace=2)}),
    "SmolLM3": (dict(intermediate_size=40, pad_token_id=None), {
        "plain": dict(no_rope_layers=[1, 0]), "every": dict(no_rope_layers=[1, 1]), "biases": dict(no_rope_layers=[0, 1], mlp_bias=True)}),
    "Granite": (dict(intermediate_size=40, embedding_multiplier=6.0, residual_multiplier=0.5, attention_multiplier=0.2), {
        "plain": {}, "scaled": dict(logits_scaling=4.0), "biases": dict(attention_bias=True, mlp_bias=True)}),
    "GptOss": (dict(intermediate_size=16, head_dim=8, num_local_experts=4, num_experts_per_tok=2, pad_token_id=None), {
        "plain": dict(sliding_window=5), "full": dict(layer_types=[FULL, FULL]), "near": dict(sliding_window=3, layer_types=[NEAR, NEAR]),
        "limits": dict(swiglu_limit=0.5, swiglu_alpha=1.2), "one": dict(num_experts_per_tok=1), "no_bias": dict(attention_bias=False),
        "unstretched": dict(rope_parameters=rope("default")), "truncated": dict(rope_parameters={**YARN, "truncate": True})}),
    "DeepseekV2": (LATENT, {
        "plain": {}, "direct": dict(q_lora_rank=None), "groups": dict(topk_method="group_limited_greedy", n_group=4, topk_group=2),
        "scaled": dict(routed_scaling_factor=3.0), "wide_values": dict(v_head_dim=14), "narrow_values": dict(v_head_dim=4),
        "yarn": dict(rope_parameters={**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}), "normed": dict(norm_topk_prob=True)}),
    "DeepseekV3": (dict(LATENT, n_group=4, topk_group=2), {
        "plain": {}, "direct": dict(q_lora_rank=None), "halves": dict(rope_interleave=False), "biases": dict(attention_bias=True),
        "one_group": dict(n_group=1, topk_group=1), "not_normed": dict(norm_topk_prob=False), "wide_values": dict(v_head_dim=14),
        "yarn": dict(rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}), "dense": dict(first_k_dense_replace=2),
        "epsilon": dict(rms_norm_eps=0.1), "turning": dict(qk_nope_head_dim=2, qk_rope_head_dim=8)}),
    "GPT2": (dict(), {"plain": {}, "tied_off": dict(tie_word_embeddings=False), "scales": dict(scale_attn_by_inverse_layer_idx=True),
                      "wide": dict(n_inner=40)}),
}


def config_of(family, common, more):
    made = getattr(transformers, f"{family}Config")
    if family == "GPT2":
        return made(vocab_size=make.VOCAB, n_embd=24, n_layer=2, n_head=4, n_positions=POSITIONS, resid_pdrop=0.0, embd_pdrop=0.0,
                    attn_pdrop=0.0, attn_implementation="eager", use_cache=False, **more)
    return made(**{**BASE, **common, **more})


@contextlib.contextmanager
def twice_as_wide():
    """What models compute in f32 whatever they are given is computed in f64."""
    names = {name: getattr(torch, name) for name in ["float32", "float"]}
    tensor_float = torch.Tensor.float
    try:
        torch.float32 = torch.float = torch.float64
        torch.Tensor.float = torch.Tensor.double
        torch.set_default_dtype(torch.float64)
        yield
    finally:
        torch.set_default_dtype(names["float32"])
        torch.Tensor.float = tensor_float
        for name, dtype in names.items():
            setattr(torch, name, dtype)


def computed(model, tokens):
    model.zero_grad()
    logits, loss = make.mean_loss(model, tokens)
    loss.backward()
    # Experts that no token visits have no gradient.
    return logits.detach(), loss.item(), {key: torch.zeros_like(p) if p.grad is None else p.grad for key, p in model.named_parameters()}


def greedy(model, prompt):
    """The tokens, and how much likelier each is than the next one at least."""
    text, clear = prompt.clone(), float("inf")
    with torch.no_grad():
        for _ in range(GREEDY):
            logits = model(input_ids=text).logits[0, -1]
            best = logits.topk(2)
            clear = min(clear, ((best.values[0] - best.values[1]) / logits.abs().max()).item())
            text = torch.cat([text, best.indices[:1, None]], dim=1)
    return text[0, prompt.shape[1]:].tolist(), clear


def apart(a, b):
    return ((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-12)).item()


def write(name, config, folder):
    for seed in range(20):
        torch.manual_seed(zlib.crc32(f"{name} {seed}".encode()))
        model = make.random_model(config)
        tokens = torch.randint(0, make.VOCAB, (make.BATCH, make.SEQUENCE + 1))
        told, clear = greedy(model, tokens[:1, :PROMPT])
        if clear > 3e-5:
            break
    logits, loss, gradients = computed(model, tokens)
    tensors, written = make.saved(model, folder)
    with twice_as_wide():
        wide = transformers.AutoModelForCausalLM.from_config(config).to(torch.float64).train()
        if hasattr(wide, "set_experts_implementation"):
            wide.set_experts_implementation("eager")  # others have no f64
        wide.load_state_dict({key: value.to(torch.float64) for key, value in model.state_dict().items()})
        wide_logits, _, wide_gradients = computed(wide, tokens)
    own = [apart(logits, wide_logits), max(apart(gradients[key], wide_gradients[key]) for key in gradients)]
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(wide_gradients[key])
        for buffer in model.buffers():
            buffer.zero_()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(make.saved(model, folder)[0], folder / "gradients.safetensors")
    (folder / "config.json").write_text(json.dumps(written, indent=1) + "\n")
    expected = dict(tokens=tokens.tolist(), loss=loss, logits=wide_logits.reshape(-1).tolist(), own=own, greedy=told, prompt=PROMPT)
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")
    print(f"{name}: transformers' f32 is {own[0]:.1e} and {own[1]:.1e} from its f64", flush=True)


if __name__ == "__main__":
    root, wanted = Path(sys.argv[1]), sys.argv[2:]
    transformers.utils.logging.set_verbosity_error()
    for family, (common, variants) in FAMILIES.items():
        for variant, more in variants.items():
            name = f"{family.lower()}.{variant}"
            if not wanted or name in wanted or family.lower() in wanted:
                write(name, config_of(family, common, more), root / name)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
