"""Measures operators of PyTorch on the processor, one per line of standard input: `operator precision`."""

import json
import math
import sys
import time

import torch
import torch.nn.functional as F

threads, mode = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(threads)
BATCH, SEQUENCE, HIDDEN, INNER, HEADS, VOCAB = 4, 512, 512, 1408, 8, 32000
ROWS = BATCH * SEQUENCE


def rotary_tables(head_dim, dtype):
    frequencies = 1e4 ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(SEQUENCE).float(), frequencies)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x, tables):
    cos, sin = tables
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


class Block(torch.nn.Module):
    def __init__(self, hidden, inner, heads):
        super().__init__()
        self.heads, self.head_dim = heads, hidden // heads
        self.norm1, self.norm2 = torch.nn.RMSNorm(hidden, 1e-6), torch.nn.RMSNorm(hidden, 1e-6)
        self.qkv = torch.nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = torch.nn.Linear(hidden, hidden, bias=False)
        self.gate_up = torch.nn.Linear(hidden, 2 * inner, bias=False)
        self.down = torch.nn.Linear(inner, hidden, bias=False)

    def forward(self, x, tables):
        batch, sequence, hidden = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, sequence, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = rotate(qkv[0], tables), rotate(qkv[1], tables), qkv[2]
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, sequence, hidden))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Model(torch.nn.Module):
    def __init__(self, hidden, inner, heads, layers, vocab):
        super().__init__()
        self.table = torch.nn.Embedding(vocab, hidden)
        torch.nn.init.normal_(self.table.weight, std=0.02)
        self.blocks = torch.nn.ModuleList(Block(hidden, inner, heads) for _ in range(layers))
        self.norm = torch.nn.RMSNorm(hidden, 1e-6)

    def forward(self, tokens, targets, tables):
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x, tables)
        logits = F.linear(self.norm(x), self.table.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def best(work, seconds=0.25):
    began, least, calls = time.perf_counter(), math.inf, 0
    while calls < 2 or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - start)
        calls += 1
    return least


def differentiable(function, inputs, leaves):
    """Times `function(*inputs)` and its backward pass to `leaves`."""
    gradient = torch.ones_like(function(*inputs))

    def forward():
        with torch.no_grad():
            function(*inputs)

    def both():
        for leaf in leaves:
            leaf.grad = None
        function(*inputs).backward(gradient)

    return forward, both


def numbers(dtype, *shape):
    return torch.randn(*shape, dtype=torch.float32).to(dtype).requires_grad_()


def make(operator, dtype):
    """A pair of functions (forward, forward and backward), and the same compiled where that is asked for."""
    n = lambda *shape: numbers(dtype, *shape)
    if operator == "linear":
        x, w = n(ROWS, HIDDEN), n(2 * INNER, HIDDEN)
        return differentiable(F.linear, (x, w), (x, w)), None
    if operator == "attention":
        qkv = [n(BATCH, HEADS, SEQUENCE, HIDDEN // HEADS) for _ in range(3)]
        return differentiable(lambda *a: F.scaled_dot_product_attention(*a, is_causal=True), qkv, qkv), None
    if operator == "rms_norm":
        x, w = n(ROWS, HIDDEN), n(HIDDEN)
        return differentiable(lambda x, w: F.rms_norm(x, (HIDDEN,), w, 1e-6), (x, w), (x, w)), None
    if operator == "layer_norm":
        x, w, b = n(ROWS, HIDDEN), n(HIDDEN), n(HIDDEN)
        return differentiable(lambda x, w, b: F.layer_norm(x, (HIDDEN,), w, b), (x, w, b), (x, w, b)), None
    if operator == "rotary":
        x, tables = n(BATCH, 2 * HEADS, SEQUENCE, HIDDEN // HEADS), rotary_tables(HIDDEN // HEADS, dtype)
        return differentiable(lambda x: rotate(x, tables), (x,), (x,)), None
    if operator == "swiglu":
        x = n(ROWS, 2 * INNER)
        return differentiable(lambda x: F.silu(x[:, :INNER]) * x[:, INNER:], (x,), (x,)), None
    if operator == "gelu":
        x = n(ROWS, 2048)
        return differentiable(lambda x: F.gelu(x, approximate="tanh"), (x,), (x,)), None
    if operator == "embedding":
        table, tokens = n(VOCAB, HIDDEN), torch.arange(ROWS) * 7919 % VOCAB
        return differentiable(lambda t: F.embedding(tokens, t), (table,), (table,)), None
    if operator == "head_and_loss":
        x, w, targets = n(ROWS, HIDDEN), n(VOCAB, HIDDEN), torch.arange(ROWS) * 104729 % VOCAB
        loss = lambda x, w: F.cross_entropy(F.linear(x, w).float(), targets)
        return differentiable(loss, (x, w), (x, w)), None
    if operator == "experts":
        x, w = n(8, 2 * ROWS // 8, HIDDEN), n(8, HIDDEN, INNER)
        return differentiable(torch.bmm, (x, w), (x, w)), None
    if operator == "adamw":
        parameter = torch.randn(25_000_000).requires_grad_()
        parameter.grad = torch.randn(25_000_000)
        step = torch.optim.AdamW([parameter], lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True).step
        return (step, step), None
    if operator == "block":
        return block(dtype)
    if operator in ("model_25m", "model_100m"):
        return model(dtype, *((512, 1408, 8, 6, 12000) if operator == "model_25m" else (768, 2048, 12, 12, 20000)))
    return None, None


def block(dtype):
    module, x = Block(HIDDEN, INNER, HEADS).to(dtype), numbers(dtype, BATCH, SEQUENCE, HIDDEN)
    tables = rotary_tables(HIDDEN // HEADS, dtype)
    leaves = [x, *module.parameters()]
    eager = differentiable(lambda x: module(x, tables), (x,), leaves)
    if mode != "compile":
        return eager, None
    compiled = torch.compile(module)
    return eager, differentiable(lambda x: compiled(x, tables), (x,), leaves)


def model(dtype, hidden, inner, heads, layers, vocab):
    module = Model(hidden, inner, heads, layers, vocab)
    tables = rotary_tables(hidden // heads, dtype)
    tokens = (torch.arange(ROWS) * 7919 % vocab).view(BATCH, SEQUENCE)
    targets = (torch.arange(1, ROWS + 1) * 7919 % vocab).view(BATCH, SEQUENCE)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-6, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def pair(callee):
        def loss():
            # bf16 with f32 master weights, as autocast does it.
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
                return callee(tokens, targets, tables)

        def forward():
            with torch.no_grad():
                loss()

        def both():
            optimizer.zero_grad()
            loss().backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()

        return forward, both

    return pair(module), pair(torch.compile(module)) if mode == "compile" else None


print("ready", flush=True)
ready = {}
for line in sys.stdin:
    operator, precision = line.split()
    if (operator, precision) not in ready:
        ready.clear()
        ready[operator, precision] = make(operator, torch.float32 if precision == "f32" else torch.bfloat16)
    answer = {}
    for name, pair in zip(("eager", "compiled"), ready[operator, precision]):
        if pair:
            answer[name] = dict(forward=best(pair[0]), both=best(pair[1]))
    print(json.dumps(answer), flush=True)
