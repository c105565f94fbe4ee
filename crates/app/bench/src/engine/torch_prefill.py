"""PyTorch with random weights of a shape, told what to measure line by line.

The first argument is the shape as JSON. `prefill TOKENS` is answered by tokens per second, up to the logits of the last one."""

import json
import sys
import time

import torch
import torch.nn.functional as F

shape = json.loads(sys.argv[1])
torch.set_num_threads(shape["threads"])
torch.manual_seed(7)
torch.set_grad_enabled(False)
numbers = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[shape["weights"]]
heads, kv_heads, head = shape["heads"], shape["kv_heads"], shape["head_dim"]
hidden, inner = shape["hidden"], shape["intermediate"]


def matrix(outputs, inputs):
    return (torch.randn(outputs, inputs) * 0.02).to(numbers)


class Layer:
    def __init__(self):
        self.norms = [torch.ones(hidden, dtype=numbers) for _ in range(2)]
        self.qkv = matrix((heads + 2 * kv_heads) * head, hidden)
        self.bias = torch.zeros((heads + 2 * kv_heads) * head, dtype=numbers) if shape["has_bias"] else None
        self.out = matrix(hidden, heads * head)
        self.gate_up = matrix(2 * inner, hidden)
        self.down = matrix(hidden, inner)


table = matrix(shape["vocabulary"], hidden)
final = torch.ones(hidden, dtype=numbers)
layers = [Layer() for _ in range(shape["layers"])]
frequencies = 1e4 ** (-torch.arange(0, head, 2).float() / head)
angles = torch.outer(torch.arange(shape["context"]).float(), frequencies)
angles = torch.cat([angles, angles], dim=-1)
cos, sin = angles.cos().to(numbers), angles.sin().to(numbers)


def rotate(x):
    left, right = x.chunk(2, dim=-1)
    count = x.shape[1]
    return x * cos[:count] + torch.cat([-right, left], dim=-1) * sin[:count]


def attention(layer, x):
    count = x.shape[0]
    qkv = F.linear(x, layer.qkv, layer.bias).view(count, heads + 2 * kv_heads, head).transpose(0, 1)
    q, k, v = qkv.split([heads, kv_heads, kv_heads])
    q, k = rotate(q), rotate(k)
    seen = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)
    return F.linear(seen[0].transpose(0, 1).reshape(count, heads * head), layer.out)


def forward(tokens):
    x = F.embedding(tokens, table)
    for layer in layers:
        x = x + attention(layer, F.rms_norm(x, (hidden,), layer.norms[0], 1e-5))
        gate, up = F.linear(F.rms_norm(x, (hidden,), layer.norms[1], 1e-5), layer.gate_up).chunk(2, dim=-1)
        x = x + F.linear(F.silu(gate) * up, layer.down)
    return F.linear(F.rms_norm(x[-1:], (hidden,), final, 1e-5), table)


def prefill(tokens):
    prompt = torch.randint(0, shape["vocabulary"], (tokens,))
    began = time.perf_counter()
    forward(prompt).argmax().item()
    return tokens / (time.perf_counter() - began)


prefill(64)
print("ready", flush=True)
for line in sys.stdin:
    what, *rest = line.split()
    print(prefill(*map(int, rest)), flush=True)
