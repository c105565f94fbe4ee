"""PyTorch's figures for what `examples/gpu.rs`, `bench engine` and `bench training` measure, on the same GPU.

`python3 torch_gpu.py [rates] [layer] [step] [decode]`: each figure is a line that begins with `torch`. Layers are compiled by torch.compile, one
at a time, and decoding steps are replayed from a CUDA graph."""

import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

wanted = sys.argv[1:]
torch.manual_seed(7)
torch.set_float32_matmul_precision("high")
torch._dynamo.config.cache_size_limit = 64
GPU, BF16 = "cuda", torch.bfloat16


def is_wanted(name):
    return not wanted or name in wanted


def tell(text):
    print("torch " + text, flush=True)


def milliseconds(work, times=20):
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3 / times


def random(*shape, size=1.0):
    return torch.randn(*shape, device=GPU, dtype=BF16) * size


def rates():
    for side in (4096, 8192):
        x, w = random(side, side), random(side, side, size=0.02)
        ms = milliseconds(lambda: x @ w.t())
        tell(f"gemm bf16 {side}: {2 * side**3 / ms / 1e9:.1f} TFLOP/s")
    side, one = 8192, torch.ones((), device=GPU)
    x, w = (random(side, side).to(torch.float8_e4m3fn) for _ in range(2))
    multiply = lambda: torch._scaled_mm(x, w.t(), one, one, out_dtype=BF16, use_fast_accum=True)
    tell(f"gemm fp8 {side}: {2 * side**3 / milliseconds(multiply) / 1e9:.1f} TFLOP/s")
    x, scales = random(side, side), torch.ones(1, side, device=GPU)

    @torch.compile
    def rounded(x):
        scale = x.abs().amax(1, keepdim=True).float() / 448
        return (x / scale).to(torch.float8_e4m3fn), scale

    def by_rows():
        of_x, scale = rounded(x)
        return torch._scaled_mm(of_x, w.t(), scale, scales, out_dtype=BF16, use_fast_accum=True)

    tell(f"gemm fp8 {side}, rows of bf16 rounded each time: {2 * side**3 / milliseconds(by_rows) / 1e9:.1f} TFLOP/s")
    source = torch.randn(1 << 30, device=GPU)
    to = torch.empty_like(source)
    tell(f"copy: {8 * 2**30 / milliseconds(lambda: to.copy_(source), 10) / 1e9:.2f} TB/s")
    del source, to
    shapes = [(8, 32, 8, 2048, 128), (2, 32, 8, 8192, 128), (8, 32, 32, 2048, 64), (8, 32, 8, 2048, 64)]
    for batch, heads, kv_heads, tokens, dim in shapes:
        q = random(batch, heads, tokens, dim).requires_grad_()
        k, v = (random(batch, kv_heads, tokens, dim).requires_grad_() for _ in range(2))
        d = random(batch, heads, tokens, dim)
        flops = 2 * batch * heads * tokens * tokens * dim
        for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
            with sdpa_kernel(backend):
                run = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)
                with torch.no_grad():
                    forward = milliseconds(run)

                def both():
                    run().backward(d)
                    q.grad = k.grad = v.grad = None

                whole = milliseconds(both)
            tell(f"attention {name} {batch} x {tokens}, heads {heads}/{kv_heads} of {dim}: forward {forward:.3f} ms "
                 f"{flops / forward / 1e9:.0f} TFLOP/s, both {3.5 * flops / whole / 1e9:.0f}")


class Layer(torch.nn.Module):
    def __init__(self, hidden, inner, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, hidden // heads
        linear = lambda inputs, outputs: torch.nn.Linear(inputs, outputs, bias=False)
        self.norm1, self.norm2 = torch.nn.RMSNorm(hidden, 1e-5), torch.nn.RMSNorm(hidden, 1e-5)
        self.qkv, self.out = linear(hidden, (heads + 2 * kv_heads) * self.dim), linear(hidden, hidden)
        self.gate_up, self.down = linear(hidden, 2 * inner), linear(inner, hidden)

    def split(self, x, cos, sin):
        batch, tokens, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, self.heads + 2 * self.kv_heads, self.dim).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], 1)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def finish(self, x, attended):
        batch, tokens, hidden = x.shape
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, hidden))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)

    def forward(self, x, cos, sin):
        q, k, v = self.split(x, cos, sin)
        return self.finish(x, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads))

    def decode(self, x, cos, sin, keys, values, context):
        q, k, v = self.split(x, cos, sin)
        keys[:, :, context:context + 1], values[:, :, context:context + 1] = k, v
        k, v = keys[:, :, :context + 1], values[:, :, :context + 1]
        return self.finish(x, F.scaled_dot_product_attention(q, k, v, enable_gqa=True))


def rotate(x, cos, sin):
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def turns(tokens, dim, first=0):
    angles = torch.outer(torch.arange(first, first + tokens).float(), 5e5 ** (-torch.arange(0, dim, 2).float() / dim))
    angles = torch.cat([angles, angles], -1).to(GPU)
    return angles.cos().to(BF16), angles.sin().to(BF16)


def layer():
    model = Layer(4096, 11008, 32, 32).to(GPU, BF16)
    x, d = random(8, 2048, 4096).requires_grad_(), random(8, 2048, 4096)
    cos, sin = turns(2048, 128)
    for name, run in (("eager", model), ("compiled", torch.compile(model))):
        tell(f"7B layer forward and backward, {name}: {milliseconds(lambda: run(x, cos, sin).backward(d), 10):.2f} ms")


class Model(torch.nn.Module):
    def __init__(self, hidden, inner, heads, kv_heads, layers, vocab):
        super().__init__()
        self.table = torch.nn.Embedding(vocab, hidden)
        self.layers = torch.nn.ModuleList(Layer(hidden, inner, heads, kv_heads) for _ in range(layers))
        self.norm, self.head = torch.nn.RMSNorm(hidden, 1e-5), torch.nn.Linear(hidden, vocab, bias=False)


def step():
    """A whole step of Llama 3.2 1B's shape with a head of its own: f32 weights and moments, bf16 by autocast, clipping, AdamW."""
    with torch.device(GPU):
        model = Model(2048, 8192, 32, 8, 16, 128256)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.02)
    cos, sin = turns(2048, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    tokens = torch.randint(0, 128256, (8, 2049), device=GPU)
    for block in model.layers:
        block.compile()

    @torch.compile
    def losses(x, weight, targets):
        return F.cross_entropy(F.linear(x, weight).float().flatten(0, 1), targets.flatten())

    def train():
        with torch.autocast(GPU, BF16):
            x = model.table(tokens[:, :-1]).to(BF16)
            for block in model.layers:
                x = block(x, cos, sin)
            loss = losses(model.norm(x), model.head.weight, tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    ms = milliseconds(train, 5)
    tell(f"1B step: {ms:.1f} ms, {8 * 2048 / ms * 1e3:.0f} tokens/s, peak {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")


def decode():
    with torch.device(GPU):
        torch.set_default_dtype(BF16)
        model = Model(4096, 14336, 32, 8, 32, 128256)
        torch.set_default_dtype(torch.float32)
    weights = sum(weight.numel() for weight in model.parameters()) - model.table.weight.numel()
    run = torch.compile(lambda block, *rest: block.decode(*rest), dynamic=False)
    with torch.no_grad():
        for batch, context in ((1, 1024), (8, 1024), (64, 2048), (128, 2048)):
            keys, values = (random(32, batch, 8, context + 64, 128) for _ in range(2))
            tokens, (cos, sin) = torch.zeros(batch, 1, dtype=torch.long, device=GPU), turns(1, 128, context)

            def once():
                x = model.table(tokens)
                for number, block in enumerate(model.layers):
                    x = run(block, x, cos, sin, keys[number], values[number], context)
                return model.head(model.norm(x)).argmax(-1)

            for _ in range(3):
                once()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                once()
            ms = milliseconds(graph.replay, 10)
            moved = 2 * weights + 2 * 32 * batch * 8 * 128 * 2 * (context + 1)
            tell(f"8B, {batch} behind {context}: {ms:.3f} ms, {batch / ms * 1e3:.0f} tokens/s, {moved / ms / 1e9:.2f} TB/s")
            del graph, keys, values
        compiled = torch.compile(Layer.forward)
        tokens, (cos, sin) = torch.zeros(1, 8192, dtype=torch.long, device=GPU), turns(8192, 128)

        def prompt():
            x = model.table(tokens)
            for block in model.layers:
                x = compiled(block, x, cos, sin)
            return model.head(model.norm(x[:, -1]))

        tell(f"8B, a prompt of 8192, logits of the last token: {milliseconds(prompt, 5):.1f} ms")


print("torch", torch.__version__, torch.cuda.get_device_name(), flush=True)
for part in (rates, layer, step, decode):
    if is_wanted(part.__name__):
        began = time.perf_counter()
        try:
            part()
        except Exception as error:
            tell(f"{part.__name__} failed: {type(error).__name__}: {str(error)[:300]}")
        torch.cuda.empty_cache()
        torch._dynamo.reset()
        print(f"# {part.__name__} took {time.perf_counter() - began:.0f} s", flush=True)
