"""Which fp8 for training: errors of a linear layer's products by format and by what shares a scale.

Trains a small Llama-like model of bytes on the project's own documentation, then rounds the sides of every linear layer's products in
each way and prints how far the products are from those of unrounded sides (root mean square over root mean square, median over layers):
the output, the gradient of the input, the gradient of the weight. `python3 fp8_scaling.py [steps]`, needs torch and numpy.
"""
import glob
import os
import statistics
import sys

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
WIDTH, LAYERS, HEADS, SEQUENCE, BATCH = 256, 6, 4, 256, 8
LIMITS = {"e4m3": (torch.float8_e4m3fn, 448.0), "e5m2": (torch.float8_e5m2, 57344.0)}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up, self.down = nn.Linear(WIDTH, 6 * WIDTH, bias=False), nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norms[0](x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.out(attended)
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.blocks, self.norm, self.head = nn.Sequential(*[Block() for _ in range(LAYERS)]), nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def rounded(x, format, shares):
    """`x` rounded; a scale is shared by each row (`row`), the whole matrix (`tensor`), or is a power of two for each row (`row, 2^n`)."""
    kind, limit = LIMITS[format]
    most = x.abs().amax() if shares == "tensor" else x.abs().amax(1, keepdim=True)
    scale = most.clamp(min=1e-30) / limit
    if shares == "row, 2^n":
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    return (x / scale).clamp(-limit, limit).to(kind).float() * scale


def error(found, exact):
    return ((found - exact).square().mean() / exact.square().mean()).sqrt().item()


def main():
    docs = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../../docs/*.md")
    text = torch.tensor(bytearray(b"".join(open(path, "rb").read() for path in sorted(glob.glob(docs)))))
    model, steps = Model(), int(sys.argv[1]) if len(sys.argv) > 1 else 300
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)

    def loss():
        starts = torch.randint(len(text) - SEQUENCE - 1, (BATCH,))
        rows = torch.stack([text[start : start + SEQUENCE + 1] for start in starts]).long()
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    for step in range(steps):
        optimizer.zero_grad()
        now = loss()
        now.backward()
        optimizer.step()
    kept = []

    def keep(layer, inputs, output):
        output.register_hook(lambda d: kept.append((inputs[0].detach().flatten(0, 1), layer.weight.detach(), d.flatten(0, 1))))

    for layer in model.modules():
        if isinstance(layer, nn.Linear) and layer is not model.head:
            layer.register_forward_hook(keep)
    loss().backward()
    print(f"loss {now.item():.3f} after {steps} steps; {len(kept)} linear layers; errors in per cent")
    print(f"{'gradients':10} {'scale':10} {'output':>7} {'d input':>8} {'d weight':>9}")
    for gradients in LIMITS:
        for shares in ["tensor", "row", "row, 2^n"]:
            errors = []
            for x, w, d in kept:
                by_row = lambda m, format="e4m3": rounded(m, format, shares)
                output = error(by_row(x) @ by_row(w).T, x @ w.T)
                d_input = error(by_row(d, gradients) @ by_row(w.T.contiguous()).T, d @ w)
                turned = d.T.contiguous()
                d_weight = error(by_row(turned, gradients) @ by_row(x.T.contiguous()).T, turned @ x)
                errors.append((output, d_input, d_weight))
            medians = [100 * statistics.median(column) for column in zip(*errors)]
            print(f"{gradients:10} {shares:10} {medians[0]:7.2f} {medians[1]:8.2f} {medians[2]:9.2f}")


main()
