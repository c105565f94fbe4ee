"""llama.cpp with random weights of a shape, told what to measure line by line.

The first argument is the shape as JSON, the second a folder. `decode SEQUENCES PROMPT TOKENS` and `prefill TOKENS` are answered by tokens
per second."""

import ctypes
import json
import os
import sys
import time

import gguf
import llama_cpp as llama
import numpy as np

shape, folder = json.loads(sys.argv[1]), sys.argv[2]
TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "f16": gguf.GGMLQuantizationType.F16,
    "int8": gguf.GGMLQuantizationType.Q8_0,
    "int4": gguf.GGMLQuantizationType.Q4_0,
}
kind = TYPES[shape["weights"]]
random = np.random.default_rng(7)
path = os.path.join(folder, "model.gguf")


def write():
    hidden, head = shape["hidden"], shape["head_dim"]
    file = gguf.GGUFWriter(path, "llama")
    file.add_block_count(shape["layers"])
    file.add_context_length(shape["context"])
    file.add_embedding_length(hidden)
    file.add_feed_forward_length(shape["intermediate"])
    file.add_head_count(shape["heads"])
    file.add_head_count_kv(shape["kv_heads"])
    file.add_key_length(head)
    file.add_value_length(head)
    file.add_rope_dimension_count(head)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_freq_base(10000.0)
    file.add_vocab_size(shape["vocabulary"])
    file.add_tokenizer_model("none")

    def matrix(name, outputs, inputs):
        numbers = random.standard_normal((outputs, inputs), dtype=np.float32) * np.float32(0.02)
        file.add_tensor(name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)

    def vector(name, length, number):
        file.add_tensor(name, np.full(length, number, dtype=np.float32))

    matrix("token_embd.weight", shape["vocabulary"], hidden)
    if not shape["is_tied"]:
        matrix("output.weight", shape["vocabulary"], hidden)
    vector("output_norm.weight", hidden, 1.0)
    for layer in range(shape["layers"]):
        block = f"blk.{layer}."
        vector(block + "attn_norm.weight", hidden, 1.0)
        vector(block + "ffn_norm.weight", hidden, 1.0)
        for name, outputs in (("q", shape["heads"]), ("k", shape["kv_heads"]), ("v", shape["kv_heads"])):
            matrix(block + f"attn_{name}.weight", outputs * head, hidden)
            if shape["has_bias"]:
                vector(block + f"attn_{name}.bias", outputs * head, 0.0)
        matrix(block + "attn_output.weight", hidden, shape["heads"] * head)
        matrix(block + "ffn_gate.weight", shape["intermediate"], hidden)
        matrix(block + "ffn_up.weight", shape["intermediate"], hidden)
        matrix(block + "ffn_down.weight", hidden, shape["intermediate"])
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


@llama.llama_log_callback
def silent(level, text, data):
    if level == 4:
        sys.stderr.write(text.decode(errors="replace"))


def open_model():
    llama.llama_log_set(silent, ctypes.c_void_p(0))
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    if not model:
        sys.exit("llama.cpp did not load the model")
    settings = llama.llama_context_default_params()
    settings.n_ctx = 16384
    settings.n_batch = settings.n_ubatch = 1024
    settings.n_seq_max = 32
    settings.kv_unified = True
    settings.n_threads = settings.n_threads_batch = shape["threads"]
    context = llama.llama_init_from_model(model, settings)
    if not context:
        sys.exit("llama.cpp did not make a context")
    return context


write()
context = open_model()
os.unlink(path)
batch = llama.llama_batch_init(1024, 0, 1)


def run(rows):
    """Decodes rows of (token, position, sequence, whether its logits are wanted)."""
    batch.n_tokens = len(rows)
    for at, (token, position, sequence, wanted) in enumerate(rows):
        batch.token[at], batch.pos[at] = int(token), position
        batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
        batch.logits[at] = wanted
    if llama.llama_decode(context, batch) != 0:
        sys.exit("llama.cpp could not decode")


def draw(at):
    logits = llama.llama_get_logits_ith(context, at)
    return int(np.argmax(np.ctypeslib.as_array(logits, (shape["vocabulary"],))))


def forget():
    llama.llama_memory_clear(llama.llama_get_memory(context), True)


def prompt(tokens):
    return random.integers(0, shape["vocabulary"], tokens)


def decode(sequences, length, tokens):
    forget()
    last = []
    for sequence in range(sequences):
        run([(t, at, sequence, at == length - 1) for at, t in enumerate(prompt(length))])
        last.append(draw(length - 1))
    began = time.perf_counter()
    for position in range(length, length + tokens):
        run([(token, position, sequence, True) for sequence, token in enumerate(last)])
        last = [draw(sequence) for sequence in range(sequences)]
    return sequences * tokens / (time.perf_counter() - began)


def prefill(tokens):
    forget()
    rows = [(t, at, 0, at == tokens - 1) for at, t in enumerate(prompt(tokens))]
    began = time.perf_counter()
    run(rows)
    draw(tokens - 1)
    return tokens / (time.perf_counter() - began)


decode(1, 32, 4)
print("ready", flush=True)
for line in sys.stdin:
    what, *numbers = line.split()
    print({"decode": decode, "prefill": prefill}[what](*map(int, numbers)), flush=True)
