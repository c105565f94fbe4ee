"""Tiny models of every family with random weights, and what transformers computes with them.

For each model: config.json, model.safetensors (weights), gradients.safetensors (of the mean loss, under the names of
files), expected.json (tokens, documents' logits and loss). For two of them also curve.json: fifty steps of AdamW.

    python make.py make FOLDER [NAME...]     writes the models, all or those named
    python make.py adapters FOLDER           trains adapters with PEFT (0.21.2) from their files
    python make.py check FOLDER              computes them from their files and compares

Made with transformers 5.22.2 and 5.23.0 and PyTorch 2.15.0. Checked with 5.22.2 and with 4.57.6 (13 of the first 14 models):
the largest difference of a logit or gradient, relative to the largest of its tensor, is 2e-6, and the losses of the
curves are 1.2e-6 apart. `qwen2_moe_windows` is left to version 5, see ONLY_SINCE_5.
"""

import copy
import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

VOCAB, SEQUENCE, BATCH = 67, 12, 2
MAJOR = int(transformers.__version__.split(".")[0])
# Where the versions differ, the newer one counts: version 4 has no `layer_types` in Qwen2-MoE, and which layers it bounds
# depends on the implementation of attention.
ONLY_SINCE_5 = {"qwen2_moe_windows"}
# Tokens of padding at the end of each sequence; these models also learn from the load-balancing loss.
PADDING = {"mixtral_balance": [0, 5], "qwen3_moe_balance": [3, 0], "gpt_oss": [4, 0]}
COMMON = dict(vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=64, attn_implementation="eager", use_cache=False)

COMMON_LATENT = {**COMMON, "num_key_value_heads": 4}

CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**COMMON, intermediate_size=40, tie_word_embeddings=False,
                                      rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
                                                       "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                                       "original_max_position_embeddings": 16}),
    "qwen2": lambda: transformers.Qwen2Config(**COMMON, intermediate_size=40, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**COMMON, intermediate_size=40, head_dim=8, tie_word_embeddings=True),
    "mixtral": lambda: transformers.MixtralConfig(**COMMON, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2,
                                          sliding_window=5, tie_word_embeddings=False),
    "qwen2_moe": lambda: transformers.Qwen2MoeConfig(**COMMON, intermediate_size=40, moe_intermediate_size=16,
                                             shared_expert_intermediate_size=24, num_experts=4,
                                             num_experts_per_tok=2, norm_topk_prob=False, tie_word_embeddings=False),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**COMMON, intermediate_size=40, moe_intermediate_size=16, head_dim=8,
                                             num_experts=4, num_experts_per_tok=2, norm_topk_prob=True,
                                             tie_word_embeddings=False),
    "llama_linear": lambda: transformers.LlamaConfig(**COMMON, intermediate_size=40, tie_word_embeddings=False,
                                                     attention_bias=True, mlp_bias=True,
                                                     rope_parameters={"rope_type": "linear", "rope_theta": 1000.0,
                                                                      "factor": 2.5}),
    "qwen2_windows": lambda: transformers.Qwen2Config(**COMMON, intermediate_size=40, tie_word_embeddings=True,
                                                      use_sliding_window=True, sliding_window=4, max_window_layers=1),
    "qwen2_moe_windows": lambda: transformers.Qwen2MoeConfig(
        **COMMON, intermediate_size=40, moe_intermediate_size=16, shared_expert_intermediate_size=24, num_experts=4,
        num_experts_per_tok=2, norm_topk_prob=True, tie_word_embeddings=False, use_sliding_window=True,
        sliding_window=4, max_window_layers=2),
    "qwen3_moe_windows": lambda: transformers.Qwen3MoeConfig(
        **COMMON, intermediate_size=40, moe_intermediate_size=16, head_dim=8, num_experts=4, num_experts_per_tok=2,
        norm_topk_prob=True, tie_word_embeddings=False, use_sliding_window=True, sliding_window=4),
    "mixtral_balance": lambda: transformers.MixtralConfig(
        **COMMON, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=False,
        router_aux_loss_coef=0.5),
    "qwen3_moe_balance": lambda: transformers.Qwen3MoeConfig(
        **{**COMMON, "num_hidden_layers": 3}, intermediate_size=40, moe_intermediate_size=16, head_dim=8,
        num_experts=4, num_experts_per_tok=2, norm_topk_prob=True, tie_word_embeddings=True, mlp_only_layers=[1],
        router_aux_loss_coef=0.5),
    "gemma": lambda: transformers.GemmaConfig(**COMMON, intermediate_size=40, head_dim=8, pad_token_id=3),
    "gemma2": lambda: transformers.Gemma2Config(
        **COMMON, intermediate_size=40, head_dim=8, sliding_window=5, query_pre_attn_scalar=20,
        attn_logit_softcapping=4.0, final_logit_softcapping=3.0, attention_bias=True, pad_token_id=None),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **{**COMMON, "num_hidden_layers": 3}, intermediate_size=40, head_dim=8, sliding_window=5,
        query_pre_attn_scalar=16, pad_token_id=0,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                         "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0}}),
    "llama_yarn": lambda: transformers.LlamaConfig(
        **COMMON, intermediate_size=40, tie_word_embeddings=False, pad_token_id=5,
        rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 24.0,
                         "original_max_position_embeddings": 16}),
    "qwen3_yarn": lambda: transformers.Qwen3Config(
        **COMMON, intermediate_size=40, head_dim=16, tie_word_embeddings=True,
        rope_parameters={"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "mscale": 1.0,
                         "mscale_all_dim": 0.5, "truncate": False, "original_max_position_embeddings": 16}),
    "llama_dynamic": lambda: transformers.LlamaConfig(
        **COMMON, intermediate_size=40, tie_word_embeddings=False,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}),
    "phi3": lambda: transformers.Phi3Config(
        **COMMON, intermediate_size=40, sliding_window=5, pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}),
    "phi3_longrope": lambda: transformers.Phi3Config(
        **{**COMMON, "hidden_size": 32}, intermediate_size=40, pad_token_id=None,
        original_max_position_embeddings=32, tie_word_embeddings=True,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
                         "short_factor": [1.0, 1.5, 2.0], "long_factor": [2.0, 4.0, 8.0]}),
    "phi3_long": lambda: transformers.Phi3Config(
        **{**COMMON, "hidden_size": 32}, intermediate_size=40, pad_token_id=None,
        original_max_position_embeddings=8,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
                         "short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0]}),
    "olmo2": lambda: transformers.Olmo2Config(**COMMON, intermediate_size=40, pad_token_id=1),
    "olmo3": lambda: transformers.Olmo3Config(
        **COMMON, intermediate_size=40, pad_token_id=None, sliding_window=5, attention_bias=True,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                         "full_attention": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 500.0,
                                            "original_max_position_embeddings": 16}}),
    "olmoe": lambda: transformers.OlmoeConfig(
        **COMMON, intermediate_size=16, num_experts=4, num_experts_per_tok=2, norm_topk_prob=False,
        pad_token_id=None),
    "glm": lambda: transformers.GlmConfig(**COMMON, intermediate_size=40, head_dim=8, pad_token_id=None),
    "glm4": lambda: transformers.Glm4Config(**COMMON, intermediate_size=40, head_dim=8, pad_token_id=None),
    "glm4_moe": lambda: transformers.Glm4MoeConfig(
        **COMMON, intermediate_size=40, moe_intermediate_size=8, head_dim=8, n_routed_experts=6, n_shared_experts=1,
        num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1, routed_scaling_factor=1.5,
        use_qk_norm=True, attention_bias=True, partial_rotary_factor=0.5),
    "smollm3": lambda: transformers.SmolLM3Config(
        **COMMON, intermediate_size=40, pad_token_id=None, no_rope_layers=[1, 0]),
    "granite": lambda: transformers.GraniteConfig(
        **COMMON, intermediate_size=40, tie_word_embeddings=True, embedding_multiplier=12.0, logits_scaling=8.0,
        residual_multiplier=0.22, attention_multiplier=0.0625, mlp_bias=True),
    "ministral": lambda: transformers.MinistralConfig(
        **COMMON, intermediate_size=40, head_dim=8, sliding_window=5,
        layer_types=["sliding_attention", "full_attention"]),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **COMMON, intermediate_size=16, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=5,
        swiglu_limit=1.5, swiglu_alpha=1.5, pad_token_id=None, router_aux_loss_coef=0.5,
        rope_parameters={"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "beta_fast": 24.0,
                         "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 16}),
    "gpt_oss_mxfp4": lambda: transformers.GptOssConfig(
        **{**COMMON, "hidden_size": 32}, intermediate_size=32, head_dim=8, num_local_experts=3, num_experts_per_tok=2,
        sliding_window=5, pad_token_id=None),
    # Groups of experts by their best one, values wider than keys.
    "deepseek_v2": lambda: transformers.DeepseekV2Config(
        **COMMON_LATENT, intermediate_size=40, moe_intermediate_size=8, kv_lora_rank=12, q_lora_rank=16,
        qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=14, n_routed_experts=6, n_shared_experts=2,
        num_experts_per_tok=3, n_group=3, topk_group=2, topk_method="group_limited_greedy", first_k_dense_replace=1,
        routed_scaling_factor=1.75, pad_token_id=None),
    "deepseek_v2_lite": lambda: transformers.DeepseekV2Config(
        **COMMON_LATENT, intermediate_size=40, moe_intermediate_size=8, kv_lora_rank=12, q_lora_rank=None,
        qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8, n_routed_experts=4, n_shared_experts=1,
        num_experts_per_tok=2, topk_method="greedy", first_k_dense_replace=1, pad_token_id=2,
        rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 24.0, "mscale": 0.707,
                         "mscale_all_dim": 0.707, "original_max_position_embeddings": 16}),
    # Groups by their two best, scores that are sigmoids, and a correction of the choice.
    "deepseek_v3": lambda: transformers.DeepseekV3Config(
        **COMMON_LATENT, intermediate_size=40, moe_intermediate_size=8, kv_lora_rank=12, q_lora_rank=16,
        qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8, n_routed_experts=8, n_shared_experts=1,
        num_experts_per_tok=3, n_group=4, topk_group=2, first_k_dense_replace=1, attention_bias=True,
        rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 24.0, "mscale": 1.0,
                         "mscale_all_dim": 1.0, "original_max_position_embeddings": 16}),
    "deepseek_v3_halves": lambda: transformers.DeepseekV3Config(
        **COMMON_LATENT, intermediate_size=40, moe_intermediate_size=8, kv_lora_rank=12, q_lora_rank=None,
        qk_nope_head_dim=4, qk_rope_head_dim=8, v_head_dim=12, n_routed_experts=4, n_shared_experts=1,
        num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1, norm_topk_prob=False,
        rope_interleave=False, num_nextn_predict_layers=0),
    "qwen3_fp8": lambda: transformers.Qwen3Config(**COMMON, intermediate_size=160, head_dim=8, tie_word_embeddings=True),
    "llama_fp8": lambda: transformers.LlamaConfig(**COMMON, intermediate_size=40, tie_word_embeddings=False),
    "gpt2_scales": lambda: transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=24, n_layer=2, n_head=4, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True,
        attn_implementation="eager", use_cache=False),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=VOCAB, n_embd=24, n_layer=2, n_head=4, n_positions=32, resid_pdrop=0.0,
                                    embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager", use_cache=False),
}


def random_model(config):
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32).train()
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms and biases get random values too, so that a forgotten one shows.
            spread = 0.3 if parameter.dim() > 1 else 0.1
            centre = 1.0 if parameter.dim() == 1 and parameter.abs().sum() > 0 else 0.0
            parameter.copy_(centre + spread * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.2 * torch.randn_like(buffer))
    return model


# Weights of linear layers in 8 bits, as published: by blocks of 128 by 128, and one scale for each output.
FP8 = {
    "qwen3_fp8": dict(quant_method="fp8", activation_scheme="dynamic", fmt="e4m3", weight_block_size=[128, 128]),
    "llama_fp8": dict(quant_method="compressed-tensors", format="float-quantized", ignore=["lm_head"]),
}


# Experts in 4 bits, as gpt-oss publishes them.
MXFP4 = {"gpt_oss_mxfp4": dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "lm_head"])}


def pack_experts(model):
    """Gives the experts random weights of 4 bits; returns the tensors of files in their place."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    files = {}
    for stem, experts in model.named_modules():
        if not stem.endswith("mlp.experts"):
            continue
        for part in ["gate_up_proj", "down_proj"]:
            count, inputs, outputs = getattr(experts, part).shape
            blocks = torch.randint(0, 256, (count, outputs, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(122, 126, (count, outputs, inputs // 32), dtype=torch.uint8)
            getattr(experts, part).data.copy_(convert_moe_packed_tensors(blocks, scales).float())
            files[f"{stem}.{part}_blocks"], files[f"{stem}.{part}_scales"] = blocks, scales
            files[f"{stem}.{part}"] = None
    return files


def make_mxfp4(folder):
    """Every number of MXFP4 with every scale, and what transformers makes of them."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    low, high = torch.arange(16, dtype=torch.uint8), torch.arange(16, dtype=torch.uint8).flip(0)
    blocks = (low | high << 4).expand(1, 32, 8, 16).contiguous()
    scales = torch.arange(256, dtype=torch.uint8).reshape(1, 32, 8)
    wide = convert_moe_packed_tensors(blocks, scales).transpose(1, 2).contiguous()
    save_file({"x_blocks": blocks, "x_scales": scales, "x": wide}, folder / "mxfp4.safetensors")


def quantise(model, name):
    """Gives the model the weights that 8 or 4 bits stand for; returns the tensors of files in their place."""
    if name in MXFP4:
        return pack_experts(model)
    files = {}
    for stem, layer in model.named_modules():
        if not isinstance(layer, torch.nn.Linear) or stem == "lm_head":
            continue
        weight = layer.weight.detach()
        rows, columns = weight.shape
        block = [128, 128] if FP8[name]["quant_method"] == "fp8" else [1, columns]
        down, along = -(-rows // block[0]), -(-columns // block[1])
        scales = torch.zeros(down, along)
        codes, plain = torch.zeros(rows, columns, dtype=torch.float8_e4m3fn), torch.zeros(rows, columns)
        for y in range(down):
            for x in range(along):
                part = (slice(y * block[0], (y + 1) * block[0]), slice(x * block[1], (x + 1) * block[1]))
                scale = (weight[part].abs().max() / 448).to(torch.bfloat16).float()
                scales[y, x] = scale
                codes[part] = (weight[part] / scale).to(torch.float8_e4m3fn)
                plain[part] = codes[part].float() * scale
        layer.weight.data.copy_(plain)
        files[f"{stem}.weight"] = codes
        if block[0] == 128:
            files[f"{stem}.weight_scale_inv"] = scales
        else:
            files[f"{stem}.weight_scale"] = scales.to(torch.bfloat16)
    return files


def mean_loss(model, tokens):
    logits = model(input_ids=tokens[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))
    return logits, loss


def balanced_loss(model, tokens, padding):
    """The mean loss of what is not padding, and the loss that balances experts, as transformers adds it."""
    lengths = SEQUENCE - torch.tensor(padding)
    mask = (torch.arange(SEQUENCE) < lengths[:, None]).long()
    out = model(input_ids=tokens[:, :-1], attention_mask=mask, output_router_logits=True)
    # The successor of the last token before padding is padding too.
    has_target = torch.arange(SEQUENCE) < torch.where(lengths < SEQUENCE, lengths - 1, lengths)[:, None]
    targets = tokens[:, 1:].masked_fill(~has_target, -100)
    loss = torch.nn.functional.cross_entropy(out.logits.reshape(-1, VOCAB), targets.reshape(-1))
    return out.logits, loss, loss + model.config.router_aux_loss_coef * out.aux_loss


def computed(model, tokens, padding):
    """Logits and mean loss, with the gradients in the model's parameters."""
    if padding:
        logits, loss, whole = balanced_loss(model, tokens, padding)
        whole.backward()
    else:
        logits, loss = mean_loss(model, tokens)
        loss.backward()
    return logits.detach(), loss.item()


def gradients_of(model, folder):
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for of, parameter in zip(model.parameters(), twin.parameters()):
            parameter.copy_(of.grad)
        for buffer in twin.buffers():
            buffer.zero_()  # what has no gradient
    return saved(twin, folder)[0]


def saved(model, folder):
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch, safe_serialization=True)
        tensors = load_file(Path(scratch) / "model.safetensors")
        config = json.loads((Path(scratch) / "config.json").read_text())
    return {name: tensor.contiguous() for name, tensor in tensors.items()}, config


def make(name, config, folder):
    torch.manual_seed(len(name))
    folder.mkdir(parents=True, exist_ok=True)
    model = random_model(config)
    in_files = quantise(model, name) if name in FP8 | MXFP4 else {}
    tokens = torch.randint(0, VOCAB, (BATCH, SEQUENCE + 1))
    if config.pad_token_id is not None:
        tokens[0, 2] = config.pad_token_id  # whose row of the embedding is not learned
    padding = PADDING.get(name)
    for row, count in enumerate(padding or []):
        if count:
            tokens[row, SEQUENCE - count:] = 0
    logits, loss = computed(model, tokens, padding)
    tensors, written = saved(model, folder)
    tensors.update(in_files)
    tensors = {key: tensor for key, tensor in tensors.items() if tensor is not None}
    if name in FP8 | MXFP4:
        written["quantization_config"] = (FP8 | MXFP4)[name]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(written, indent=1) + "\n")
    save_file(gradients_of(model, folder), folder / "gradients.safetensors")
    expected = dict(tokens=tokens.tolist(), loss=loss,
                    logits=[round(value, 7) for value in logits.reshape(-1).tolist()])
    if padding:
        expected["padding"] = padding
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")
    print(f"{name}: loss {loss:.6f}, {sum(p.numel() for p in model.parameters())} parameters")
    return model


def as_version_4(config):
    """The same configuration in the words of transformers 4."""
    rope = config.pop("rope_parameters", None)
    if rope and "full_attention" in rope:
        # What stretches positions was for layers without a window; the others had a base of their own in Gemma alone.
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    if rope:
        if "partial_rotary_factor" in rope:
            config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        if rope["rope_type"] == "longrope":
            config["original_max_position_embeddings"] = rope.pop("original_max_position_embeddings")
            rope["type"] = rope.pop("rope_type")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = None if rope.get("rope_type") == "default" else rope
    if config["model_type"] == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    return config


def loaded(folder):
    config = json.loads((folder / "config.json").read_text())
    with tempfile.TemporaryDirectory() as scratch:
        written = as_version_4(config) if MAJOR == 4 else config
        (Path(scratch) / "config.json").write_text(json.dumps(written))
        (Path(scratch) / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
        model = transformers.AutoModelForCausalLM.from_pretrained(scratch, attn_implementation="eager")
    return model.to(torch.float32).train()


def check(name, folder):
    """The largest difference, relative to the largest number, between what this version computes and the files."""
    model = loaded(folder)
    expected = json.loads((folder / "expected.json").read_text())
    tokens, padding = torch.tensor(expected["tokens"]), expected.get("padding")
    logits, loss = computed(model, tokens, padding)
    kept = torch.arange(SEQUENCE) < SEQUENCE - torch.tensor(padding or [0] * BATCH)[:, None]
    pairs = [(logits[kept], torch.tensor(expected["logits"]).reshape(logits.shape)[kept])]
    found = gradients_of(model, folder)
    stored = load_file(folder / "gradients.safetensors")
    assert found.keys() == stored.keys(), f"{name}: {found.keys() ^ stored.keys()}"
    pairs += [(found[key], stored[key]) for key in stored]
    apart = max(((a - b).abs().max() / b.abs().max().clamp(min=1e-6)).item() for a, b in pairs)
    assert apart < 1e-4 and abs(loss - expected["loss"]) < 1e-5, f"{name}: loss {loss}, apart {apart:.1e}"
    return apart


def check_curve(folder):
    stored = json.loads((folder / "curve.json").read_text())
    losses = curve(loaded(folder))["losses"]
    apart = max(abs(a - b) for a, b in zip(losses, stored["losses"]))
    assert apart < 1e-3, f"{folder.name}: the curves are {apart:.1e} apart"
    return apart


def adapter(name, targets, root):
    """Adapters as PEFT makes them, before and after some steps, and the losses on the way."""
    import peft
    folder = root / name / "adapter"
    folder.mkdir(exist_ok=True)
    torch.manual_seed(len(targets))
    config = peft.LoraConfig(r=2, lora_alpha=6, target_modules=targets, task_type="CAUSAL_LM",
                             fan_in_fan_out=name.startswith("gpt2"))
    model = peft.get_peft_model(loaded(root / name), config)
    tensors = lambda: {key: value.detach().clone().contiguous() for key, value in
                       peft.get_peft_model_state_dict(model, save_embedding_layers=False).items()}
    save_file(tensors(), folder / "adapter_model.safetensors", metadata={"format": "pt"})
    found = curve(model, steps=12, weight_decay=0.0)
    save_file(tensors(), folder / "trained.safetensors", metadata={"format": "pt"})
    (folder / "curve.json").write_text(json.dumps(dict(found, targets=targets, rank=2, alpha=6)) + "\n")
    print(f"{name} with adapters on {targets} (PEFT {peft.__version__}): {found['losses'][0]:.4f} -> "
          f"{found['losses'][-1]:.4f}")
    usual = peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING["gpt2"]
    assert list(usual) == ["c_attn"], usual


def curve(model, steps=50, weight_decay=0.1):
    """Some steps of AdamW on sequences that follow a rule."""
    settings = dict(learning_rate=3e-3, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=weight_decay, clip=1.0,
                    warmup=10)
    torch.manual_seed(7)
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.dim() > 1]
    vectors = [p for p in trained if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [dict(params=matrices, weight_decay=settings["weight_decay"]), dict(params=vectors, weight_decay=0.0)],
        lr=settings["learning_rate"], betas=(settings["beta1"], settings["beta2"]), eps=settings["epsilon"])
    data, losses, norms = [], [], []
    for step in range(steps):
        start = torch.randint(0, VOCAB, (BATCH, 1))
        stride = torch.randint(1, 4, (BATCH, 1))
        tokens = (start + stride * torch.arange(SEQUENCE + 1)) % VOCAB
        for group in optimizer.param_groups:
            group["lr"] = settings["learning_rate"] * min(1.0, (step + 1) / settings["warmup"])
        optimizer.zero_grad()
        _, loss = mean_loss(model, tokens)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), settings["clip"]).item())
        optimizer.step()
        data.append(tokens.tolist())
        losses.append(loss.item())
    return dict(settings=settings, tokens=data, losses=losses, norms=norms)


CURVES = ["llama", "mixtral"]
ADAPTERS = {"llama": ["q_proj", "embed_tokens", "lm_head"], "gpt2": ["c_attn", "wpe"]}

if __name__ == "__main__":
    action, root, names = sys.argv[1], Path(sys.argv[2]), sys.argv[3:] or list(CONFIGS)
    if action == "make":
        for name in names:
            if name in MXFP4:
                make_mxfp4(root)
            model = make(name, CONFIGS[name](), root / name)
            if name in CURVES:
                (root / name / "curve.json").write_text(json.dumps(curve(model)) + "\n")
    elif action == "adapters":
        for name, targets in ADAPTERS.items():
            adapter(name, targets, root)
    else:
        # transformers has kernels for fp8 and MXFP4 on GPUs alone.
        names = [name for name in names if (MAJOR > 4 or name not in ONLY_SINCE_5) and name not in FP8 | MXFP4]
        apart = {name: check(name, root / name) for name in names}
        curves = {name: check_curve(root / name) for name in CURVES if name in names}
        print(f"transformers {transformers.__version__}, torch {torch.__version__}: {len(apart)} models, largest "
              f"difference {max(apart.values()):.1e}; curves {max(curves.values(), default=0.0):.1e}")
