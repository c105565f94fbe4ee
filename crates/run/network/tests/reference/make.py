"""Tiny models of every family with random weights, and what transformers computes with them.

For each model: config.json, model.safetensors (weights), gradients.safetensors (of the mean loss, under the names of
files), expected.json (tokens, documents' logits and loss). For one of them also curve.json: fifty steps of AdamW.
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
COMMON = dict(vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=64, attn_implementation="eager", use_cache=False)

CONFIGS = {
    "llama": transformers.LlamaConfig(**COMMON, intermediate_size=40, tie_word_embeddings=False,
                                      rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
                                                       "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                                       "original_max_position_embeddings": 16}),
    "qwen2": transformers.Qwen2Config(**COMMON, intermediate_size=40, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**COMMON, intermediate_size=40, head_dim=8, tie_word_embeddings=True),
    "mixtral": transformers.MixtralConfig(**COMMON, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2,
                                          sliding_window=5, tie_word_embeddings=False),
    "qwen2_moe": transformers.Qwen2MoeConfig(**COMMON, intermediate_size=40, moe_intermediate_size=16,
                                             shared_expert_intermediate_size=24, num_experts=4,
                                             num_experts_per_tok=2, norm_topk_prob=False, tie_word_embeddings=False),
    "qwen3_moe": transformers.Qwen3MoeConfig(**COMMON, intermediate_size=40, moe_intermediate_size=16, head_dim=8,
                                             num_experts=4, num_experts_per_tok=2, norm_topk_prob=True,
                                             tie_word_embeddings=False),
    "gpt2": transformers.GPT2Config(vocab_size=VOCAB, n_embd=24, n_layer=2, n_head=4, n_positions=32, resid_pdrop=0.0,
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
    return model


def mean_loss(model, tokens):
    logits = model(input_ids=tokens[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))
    return logits, loss


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
    tokens = torch.randint(0, VOCAB, (BATCH, SEQUENCE + 1))
    logits, loss = mean_loss(model, tokens)
    loss.backward()
    tensors, written = saved(model, folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(written, indent=1) + "\n")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for of, parameter in zip(model.parameters(), twin.parameters()):
            parameter.copy_(of.grad)
    gradients, _ = saved(twin, folder)
    save_file(gradients, folder / "gradients.safetensors")
    expected = dict(tokens=tokens.tolist(), loss=loss.item(),
                    logits=[round(value, 7) for value in logits.detach().reshape(-1).tolist()])
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")
    print(f"{name}: loss {loss.item():.6f}, {sum(p.numel() for p in model.parameters())} parameters")
    return model


def curve(model, folder, steps=50):
    """Fifty steps of AdamW on sequences that follow a rule, from the weights in the folder."""
    settings = dict(learning_rate=3e-3, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1, clip=1.0, warmup=10)
    torch.manual_seed(7)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
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
    (folder / "curve.json").write_text(json.dumps(dict(settings=settings, tokens=data, losses=losses, norms=norms)) + "\n")
    print(f"curve: loss {losses[0]:.4f} -> {losses[-1]:.4f}")


if __name__ == "__main__":
    root = Path(sys.argv[1])
    models = {name: make(name, config, root / name) for name, config in CONFIGS.items()}
    curve(models["llama"], root / "llama")
    curve(models["mixtral"], root / "mixtral")
