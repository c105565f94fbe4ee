"""A rank of PyTorch that trains a Llama with DDP or FSDP2 over Gloo, told what to do over a socket.

`step COUNT` is answered by the nanoseconds of each step, `losses RATE...` by the loss of one step at each learning rate."""

import contextlib
import json
import os
import socket
import struct
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

asked = json.loads(sys.argv[2])
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(asked["threads"])
torch.manual_seed(7)
is_bf16 = asked["precision"] == "bf16"
link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
link.connect(sys.argv[1])


def tell(line):
    link.sendall((line + "\n").encode())


def tables():
    head = asked["hidden"] // asked["heads"]
    frequencies = 1e4 ** (-torch.arange(0, head, 2).float() / head)
    angles = torch.outer(torch.arange(asked["sequence"]).float(), frequencies)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


class Block(torch.nn.Module):
    def __init__(self, hidden, inner, heads):
        super().__init__()
        self.heads, self.head = heads, hidden // heads
        self.norm1, self.norm2 = torch.nn.RMSNorm(hidden, 1e-6), torch.nn.RMSNorm(hidden, 1e-6)
        linear = lambda inputs, outputs: torch.nn.Linear(inputs, outputs, bias=False)
        self.qkv, self.out = linear(hidden, 3 * hidden), linear(hidden, hidden)
        self.gate_up, self.down = linear(hidden, 2 * inner), linear(inner, hidden)

    def forward(self, x, cos, sin):
        batch, sequence, hidden = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, sequence, 3, self.heads, self.head).permute(2, 0, 3, 1, 4)
        q, k, v = rotate(qkv[0], cos, sin), rotate(qkv[1], cos, sin), qkv[2]
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, sequence, hidden))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Model(torch.nn.Module):
    def __init__(self, hidden, inner, heads, layers, vocab):
        super().__init__()
        self.table = torch.nn.Embedding(vocab, hidden)
        self.blocks = torch.nn.ModuleList(Block(hidden, inner, heads) for _ in range(layers))
        self.norm = torch.nn.RMSNorm(hidden, 1e-6)
        for weight in self.parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.02)

    def forward(self, tokens, targets, cos, sin):
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        logits = F.linear(self.norm(x), self.table.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def named(model):
    """The weights by the names that Hugging Face gives them."""
    hidden, inner = asked["hidden"], asked["inner"]
    found = {"model.embed_tokens.weight": model.table.weight, "model.norm.weight": model.norm.weight}
    for number, block in enumerate(model.blocks):
        at = "model.layers.%d." % number
        q, k, v = block.qkv.weight.split(hidden)
        gate, up = block.gate_up.weight.split(inner)
        found.update({at + "self_attn.q_proj.weight": q, at + "self_attn.k_proj.weight": k,
                      at + "self_attn.v_proj.weight": v, at + "self_attn.o_proj.weight": block.out.weight,
                      at + "mlp.gate_proj.weight": gate, at + "mlp.up_proj.weight": up,
                      at + "mlp.down_proj.weight": block.down.weight,
                      at + "input_layernorm.weight": block.norm1.weight,
                      at + "post_attention_layernorm.weight": block.norm2.weight})
    return found


def write(model, path):
    """The first weights as a safetensors file."""
    header, parts, at = {}, [], 0
    for name, weight in named(model).items():
        data = weight.detach().contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(weight.shape), "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def tokens_of(step, sequence):
    """The tokens of a sequence with the one that follows them, as the other side makes them."""
    place = torch.arange(asked["sequence"] + 1) + (step * asked["batch"] + sequence) * asked["sequence"]
    return (place * 7919 % 1009) % asked["vocab"]


class Run:
    def __init__(self):
        model = Model(*(asked[key] for key in ("hidden", "inner", "heads", "layers", "vocab")))
        if rank == 0 and asked.get("weights"):
            write(model, asked["weights"])
        self.is_fsdp = asked["kind"] == "fsdp"
        if self.is_fsdp:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
            mesh = init_device_mesh("cpu", (ranks,))
            mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            policy = {"mp_policy": mixed} if is_bf16 else {}
            for block in model.blocks:
                fully_shard(block, mesh=mesh, **policy)
            self.model = fully_shard(model, mesh=mesh, **policy)
        else:
            self.model = torch.nn.parallel.DistributedDataParallel(model)
        matrices = [weight for weight in self.model.parameters() if weight.dim() > 1]
        others = [weight for weight in self.model.parameters() if weight.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
        self.cos, self.sin = tables()
        self.done = 0

    def step(self, rate):
        own, at_once = asked["batch"] // ranks, asked["micro_batch"]
        count, total = own // at_once, 0.0
        for number in range(count):
            first = rank * own + number * at_once
            rows = torch.stack([tokens_of(self.done, first + row) for row in range(at_once)])
            is_last = number + 1 == count
            quiet = contextlib.nullcontext() if self.is_fsdp or is_last else self.model.no_sync()
            # FSDP casts by itself.
            cast = torch.autocast("cpu", torch.bfloat16, enabled=is_bf16 and not self.is_fsdp)
            with quiet:
                with cast:
                    loss = self.model(rows[:, :-1], rows[:, 1:], self.cos, self.sin) / count
                loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        self.done += 1
        mean = torch.tensor([total], dtype=torch.float64)
        dist.all_reduce(mean)
        return mean.item() / ranks


tell("rank %d %d" % (rank, os.getpid()))
dist.init_process_group("gloo")
run = Run()
dist.barrier()
tell("ready")
for line in link.makefile():
    words = line.split()
    try:
        if words[0] == "step":
            times = []
            for _ in range(int(words[1])):
                dist.barrier()
                began = time.perf_counter_ns()
                run.step(3e-4)
                times.append(time.perf_counter_ns() - began)
            answer = " ".join(["ok"] + [str(t) for t in times])
        else:
            answer = " ".join(["ok"] + [repr(run.step(float(rate))) for rate in words[1:]])
    except Exception as error:
        answer = "no " + " ".join(str(error).split())[:300]
    tell(answer)
