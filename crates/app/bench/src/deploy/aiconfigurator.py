# Asks aiconfigurator for the mean latencies of measured rows: a JSON question per line, a JSON answer per line.
#
# A row is asked as aiconfigurator's own adapter of InferenceX runs asks (sdk/config_adapter/inferencex.py): `cli_estimate` in mode
# `agg`, with the users of one attention rank as the batch and one prompt as the context tokens of a step, or in mode `disagg`, with one
# prompt at a time per prompt worker. What the adapter leaves open is filled in its favour: the checkpoint that was served, with the
# formats that it carries, and the row's format of keys and values; the newest version of the engine in the database that is not
# newer than the row's, else the oldest; the tokens that drafts bring; in SGLang, whose prompts have steps of their own, as many prompts
# as a step takes. Where measured kernels are missing (`SILICON`), its own filling (`HYBRID`) is asked.
import functools
import json
import logging
import os
import re
import sys
import time

# Whatever the package prints must not be taken for an answer.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
logging.disable(logging.CRITICAL)

from importlib.metadata import version

from aiconfigurator.cli.api import cli_estimate
from aiconfigurator.sdk.perf_database import get_latest_database_version, get_supported_databases

SYSTEMS = get_supported_databases()
CHIPS = {"a100": "a100_sxm", "h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm", "b300": "b300_sxm"}

# The checkpoint of a model in a format of its weights, and formats that the checkpoint does not state.
CHECKPOINTS = {
    ("deepseek-r1", "fp8"): ("deepseek-ai/DeepSeek-R1", {}),
    ("deepseek-r1", "fp4"): ("nvidia/DeepSeek-V3.1-NVFP4", {}),
    ("deepseek-v3", "fp8"): ("deepseek-ai/DeepSeek-V3", {}),
    ("deepseek-v3", "fp4"): ("nvidia/DeepSeek-V3.1-NVFP4", {}),
    ("glm-5", "bf16"): ("zai-org/GLM-5", {}),
    ("glm-5", "fp8"): ("zai-org/GLM-5-FP8", {}),
    ("glm-5", "fp4"): ("nvidia/GLM-5-NVFP4", {}),
    ("gpt-oss-20b", "fp4"): ("openai/gpt-oss-20b", {}),
    ("gpt-oss-120b", "fp4"): ("openai/gpt-oss-120b", {}),
    ("kimi-k2.5", "int4"): ("moonshotai/Kimi-K2.5", {}),
    ("kimi-k2.5", "fp4"): ("nvidia/Kimi-K2.5-NVFP4", {}),
    ("llama-3.1-70b", "fp8"): ("nvidia/Llama-3.1-70B-Instruct-FP8", {}),
    ("minimax-m2.5", "fp8"): ("MiniMaxAI/MiniMax-M2.5", {}),
    ("minimax-m2.5", "fp4"): ("nvidia/MiniMax-M2.5-NVFP4", {}),
    ("qwen3-235b-a22b", "fp8"): ("Qwen/Qwen3-235B-A22B-FP8", {}),
    ("qwen3-235b-a22b", "fp4"): ("nvidia/Qwen3-235B-A22B-NVFP4", {}),
    ("qwen3-32b", "fp8"): ("Qwen/Qwen3-32B-FP8", {}),
    ("qwen3.5-397b-a17b", "fp8"): ("Qwen/Qwen3.5-397B-A17B", {"gemm": "fp8_block", "moe": "fp8_block"}),
    ("qwen3.5-397b-a17b", "fp4"): ("nvidia/Qwen3.5-397B-A17B-NVFP4", {}),
}
# Models whose checkpoint is in bf16; other formats are named.
PLAIN = {
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
    "llama-3.1-405b": "meta-llama/Meta-Llama-3.1-405B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B",
    "qwen3.5-397b-a17b": "Qwen/Qwen3.5-397B-A17B",
}
NAMED = {"bf16": "bfloat16", "fp8": "fp8", "fp4": "nvfp4", "int4": "int4_wo"}


class Refused(Exception):
    pass


def system_of(row):
    name = CHIPS.get(row["chip"].lower(), row["chip"].lower())
    if not SYSTEMS.get(name, {}).get(row["engine"]):
        raise Refused(f"no database of {row['engine']} on {row['chip']}")
    return name


def numbers(text):
    """A version in order: release candidates before their release, later patches after it. None for nightly builds."""
    if not re.match(r"\d+(\.\d+)+", text):
        return None
    stage = {"rc": -1000, "post": 1000}
    return [stage.get(part) or int(part) for part in re.findall(r"\d+|rc|post", text)] + [0]


@functools.cache
def version_of(system, engine, measured):
    offered = sorted(SYSTEMS[system][engine], key=numbers)
    if numbers(measured) is None:
        return get_latest_database_version(system, engine)
    before = [each for each in offered if numbers(each) <= numbers(measured)]
    return before[-1] if before else offered[0]


def checkpoint_of(row):
    model, weights = row["model"].lower(), row["weights"]
    if (model, weights) in CHECKPOINTS:
        path, formats = CHECKPOINTS[model, weights]
    elif model in PLAIN and weights in NAMED:
        path, formats = PLAIN[model], {}
        if weights != "bf16":
            formats = {"gemm": NAMED[weights]}
            if row["is_mixture"]:
                formats["moe"] = NAMED[weights]
    else:
        raise Refused(f"no checkpoint of {row['model']} in {weights}")
    return path, {f"{part}_quant_mode": mode for part, mode in formats.items()}


def layout(worker, is_mixture, before=""):
    degrees = {"tp_size": worker["tp"], "pp_size": worker["pp"], "attention_dp_size": worker["attention_dp"]}
    if is_mixture:
        ranks = worker["tp"] * worker["attention_dp"]
        degrees |= {"moe_tp_size": ranks // worker["ep"], "moe_ep_size": worker["ep"]}
    return {before + name: degree for name, degree in degrees.items()}


def question_of(row):
    system = system_of(row)
    path, formats = checkpoint_of(row)
    asked = {
        "model_path": path,
        "system_name": system,
        "backend_name": row["engine"],
        "backend_version": version_of(system, row["engine"], row["version"]),
        "isl": row["input"],
        "osl": row["output"],
        "kvcache_quant_mode": NAMED.get(row["kv"]),
        **formats,
    }
    if row["drafts"]:
        accepted = min(row["tokens_per_step"] - 1, row["drafts"])
        asked |= {"nextn": row["drafts"], "nextn_accepted": accepted}
    decode, prefill = row["decode"], row["prefill"]
    batch = max(1, -(-row["users"] // (decode["workers"] * decode["attention_dp"])))
    if prefill is None:
        if row["engine"] == "sglang":
            asked["ctx_tokens"] = min(row["chunk"], row["input"] * batch)
        return asked | {"mode": "agg", "batch_size": batch} | layout(decode, row["is_mixture"])
    asked |= {"mode": "disagg", "prefill_batch_size": 1, "prefill_num_workers": prefill["workers"]}
    asked |= {"decode_batch_size": batch, "decode_num_workers": decode["workers"]}
    return asked | layout(prefill, row["is_mixture"], "prefill_") | layout(decode, row["is_mixture"], "decode_")


def why(error):
    """A reason without the figures of the row, so that rows refused alike can be counted."""
    text = str(error)
    if "OOM" in text:
        return "said not to fit, though it ran"
    if "Cross-node EP" in text:
        return "no data of experts spread over nodes"
    if missing := re.search(r"(\w[\w ]*) data missing", text):
        return f"no data of {missing.group(1)}"
    return f"{type(error).__name__}: {text}"[:80]


def estimate(row):
    asked, failed = question_of(row), None
    # Keys and values as the checkpoint has them are better than no answer.
    for basis in ("SILICON", "HYBRID"):
        for kv in (asked["kvcache_quant_mode"], None):
            try:
                found = cli_estimate(database_mode=basis, **asked | {"kvcache_quant_mode": kv})
                return {
                    "ttft_s": float(found.ttft) / 1e3,
                    "itl_s": float(found.tpot) / 1e3,
                    "is_filled": basis == "HYBRID",
                    "is_queued": bool(found.kv_cache_warning),
                }
            except Exception as error:
                failed = failed or error
    raise Refused(why(failed))


def timed(row):
    start = time.process_time()
    try:
        found = estimate(row)
    except Refused as refused:
        found = {"refused": str(refused)}
    return found, time.process_time() - start


def answer(row):
    # The first time tables are read from disk as they are needed; the second time is the model's own.
    _, first = timed(row)
    found, again = timed(row)
    return {"id": row["id"], **found, "first_cpu_s": first, "cpu_s": again}


about = {"version": version("aiconfigurator"), "systems": sorted(SYSTEMS), "import_cpu_s": time.process_time()}
print("ready", file=answers, flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps(answer(asked) if "id" in asked else about), file=answers, flush=True)
