#!/usr/bin/env python3
"""Other people's clients against `bedplate serve`, with a tiny model made here.

    python3 crates/operate/gateway/tests/clients/run.py [--bedplate target/debug/bedplate] [--venv target/clients] [--torch PYTHON]

Installs the clients from PyPI into a virtual environment the first time. What is run: the openai package, LangChain's and LlamaIndex's
OpenAI clients (chats, streams, tools, structured output, embeddings) and lm-evaluation-harness (multiple choice, loglikelihood, rolling
loglikelihood and generation through /v1/completions). With `--torch`, a Python that has torch and transformers, the model is made there and
every score of the harness is compared with that of transformers.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

PACKAGES = [
    "openai",
    "langchain-openai",
    "llama-index-llms-openai-like",
    "llama-index-embeddings-openai-like",
    "lm_eval[api]",
]
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[4]
NAME = "tiny"
WORDS = "the garden is green and the lamp stands in the garden where Ada waits for rain and counts birds until evening".split()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bedplate", type=pathlib.Path, default=ROOT / "target/debug/bedplate")
    parser.add_argument("--venv", type=pathlib.Path, default=ROOT / "target/clients")
    parser.add_argument("--torch", type=pathlib.Path, help="a Python with torch and transformers")
    return parser.parse_args()


def enter_venv(folder):
    """Goes on in the virtual environment, which is made where it is missing."""
    python = folder / "bin/python"
    if pathlib.Path(sys.prefix).resolve() == folder.resolve():
        return
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    probe = "import openai, langchain_openai, llama_index.llms.openai_like, llama_index.embeddings.openai_like, lm_eval"
    if subprocess.run([python, "-c", probe], capture_output=True).returncode != 0:
        print("installs", ", ".join(PACKAGES), flush=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    os.execv(python, [str(python), str(pathlib.Path(__file__).resolve()), *sys.argv[1:]])


def make_model(bedplate, folder, torch):
    """A folder with a configuration and a tokenizer, and weights where torch makes them."""
    texts = folder / "texts.txt"
    texts.write_text("\n".join(" ".join(WORDS[at:] + WORDS[:at]) for at in range(len(WORDS))))
    model = folder / NAME
    model.mkdir()
    tokenizer = model / "tokenizer.json"
    subprocess.run([bedplate, "data", "train-tokenizer", texts, "--vocabulary", "400", "--out", tokenizer], check=True, capture_output=True)
    marks = {token["content"]: token["id"] for token in json.loads(tokenizer.read_text())["added_tokens"]}
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "initializer_range": 0.3, "tie_word_embeddings": False, "torch_dtype": "float32",
        "eos_token_id": marks["<|im_end|>"],
    }
    (model / "config.json").write_text(json.dumps(config))
    if torch is None:
        return model, ["--random-weights", "7"]
    make = (
        "import sys, torch; from transformers import LlamaConfig, LlamaForCausalLM; torch.manual_seed(7);"
        "LlamaForCausalLM(LlamaConfig.from_pretrained(sys.argv[1])).save_pretrained(sys.argv[1])"
    )
    subprocess.run([torch, "-c", make, model], check=True, capture_output=True)
    return model, []


class Server:
    """A server on a free port, for as long as the block lasts."""

    def __init__(self, bedplate, model, more):
        self.command = [bedplate, "serve", model, "--listen", "127.0.0.1:0", "--device", "cpu", "--precision", "f32", "--name", NAME, *more]

    def __enter__(self):
        self.process = subprocess.Popen([str(part) for part in self.command], stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://"), f"the server did not start: {self.url!r}"
        return self.url

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def check(what, found, expected=True):
    assert found == expected, f"{what}: {found!r} is not {expected!r}"
    print(f"  {what}", flush=True)


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather", "description": "The weather of a city.",
        "parameters": {
            "type": "object", "additionalProperties": False, "required": ["city", "days"],
            "properties": {"city": {"enum": ["Oslo", "Lima"]}, "days": {"enum": [1, 2, 3]}},
        },
    },
}
QUESTION = [{"role": "user", "content": "the garden"}]


def with_openai(url):
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300)
    chat = client.chat.completions.create(model=NAME, messages=QUESTION, temperature=0, max_tokens=20)
    check("a chat", chat.usage.completion_tokens <= 20 and isinstance(chat.choices[0].message.content, str))
    chunks = client.chat.completions.create(
        model=NAME, messages=QUESTION, temperature=0, max_tokens=20, stream=True, stream_options={"include_usage": True}
    )
    told = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    check("its stream", told, chat.choices[0].message.content)
    scored = client.completions.create(model=NAME, prompt="the garden is green", echo=True, logprobs=2, max_tokens=0)
    listed = scored.choices[0].logprobs
    check("a scored prompt", (scored.choices[0].text, listed.token_logprobs[0]), ("the garden is green", None))
    check("its tokens", len(listed.tokens) == len(listed.top_logprobs) == len(listed.text_offset) == scored.usage.prompt_tokens)
    again = client.completions.create(model=NAME, prompt="the garden is green", echo=True, logprobs=2, max_tokens=0)
    check("the same once it is cached", again.choices[0].logprobs.token_logprobs, listed.token_logprobs)
    forced = client.chat.completions.create(model=NAME, messages=QUESTION, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, temperature=0, max_tokens=1000)
    call = forced.choices[0].message.tool_calls[0].function
    check("a call", (call.name, sorted(json.loads(call.arguments))), ("weather", ["city", "days"]))
    with client.chat.completions.stream(model=NAME, messages=QUESTION, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, temperature=0, max_tokens=1000) as stream:
        deltas = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion().choices[0].message.tool_calls[0].function
    check("its stream", (final.name, "".join(event.arguments_delta for event in deltas)), ("weather", final.arguments))
    check("in pieces", len(deltas) > 1)
    response = client.responses.create(model=NAME, input="the lamp", max_output_tokens=16)
    check("a response", response.usage.output_tokens <= 16)
    vectors = client.embeddings.create(model=NAME, input=["the garden", "rain"])
    check("embeddings", [len(entry.embedding) for entry in vectors.data], [64, 64])


def with_langchain(url):
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
    from pydantic import BaseModel, Field

    common = {"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0, "timeout": 300}
    chat = ChatOpenAI(model=NAME, temperature=0, max_tokens=1000, stream_usage=True, **common)
    question = [HumanMessage("the garden")]
    short = chat.bind(max_tokens=20)
    whole = short.invoke(question)
    check("a chat", whole.usage_metadata["output_tokens"] <= 20)
    pieces = list(short.stream(question))
    check("its stream", "".join(piece.content for piece in pieces), whole.content)
    check("its usage", pieces and sum((piece.usage_metadata or {}).get("output_tokens", 0) for piece in pieces), whole.usage_metadata["output_tokens"])

    calling = chat.bind_tools([WEATHER], tool_choice="any", parallel_tool_calls=False)
    called = calling.invoke(question)
    check("a call", (called.tool_calls[0]["name"], sorted(called.tool_calls[0]["args"])), ("weather", ["city", "days"]))
    streamed = None
    for piece in calling.stream(question):
        streamed = piece if streamed is None else streamed + piece
    check("its stream", [(call["name"], call["args"]) for call in streamed.tool_calls], [(call["name"], call["args"]) for call in called.tool_calls])
    answered = [*question, called, ToolMessage("rain", tool_call_id=called.tool_calls[0]["id"])]
    check("what comes after a call", isinstance(chat.bind_tools([WEATHER], tool_choice="none").bind(max_tokens=5).invoke(answered).content, str))

    class Person(BaseModel):
        name: str = Field(max_length=5)
        age: int = Field(ge=0, le=9)

    for method in ["json_schema", "function_calling"]:
        check(f"structured output by {method}", type(chat.with_structured_output(Person, method=method).invoke(question)), Person)
    text = OpenAI(model=NAME, temperature=0, max_tokens=8, **common)
    check("a completion", text.invoke("the garden"), "".join(text.stream("the garden")))
    vectors = OpenAIEmbeddings(model=NAME, check_embedding_ctx_length=False, **common)
    check("embeddings", [len(vector) for vector in vectors.embed_documents(["the garden", "rain"])], [64, 64])
    # The lengths of texts are known by OpenAI's own tokenizer, and so its tokens are sent.
    check("a query", len(vectors.embed_query("rain")), 64)


def with_llama_index(url):
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    from llama_index.llms.openai_like import OpenAILike
    from pydantic import BaseModel, Field

    common = {"api_base": f"{url}/v1", "api_key": "none", "max_retries": 0, "timeout": 300}
    model = OpenAILike(model=NAME, is_chat_model=True, is_function_calling_model=True, context_window=2048, temperature=0, max_tokens=1000, **common)
    question = [ChatMessage(role="user", content="the garden")]
    whole = model.chat(question, max_tokens=20)
    pieces = [piece.delta or "" for piece in model.stream_chat(question, max_tokens=20)]
    check("a chat and its stream", "".join(pieces), whole.message.content)

    def weather(days: int) -> str:
        """The weather of the next days."""
        return f"rain for {days} days"

    tool = FunctionTool.from_defaults(fn=weather)
    called = model.chat_with_tools([tool], user_msg="the garden", tool_required=True, allow_parallel_tool_calls=False, max_tokens=1000)
    calls = model.get_tool_calls_from_response(called, error_on_no_tool_call=False)
    check("a call", calls and calls[0].tool_name, "weather")

    class Person(BaseModel):
        name: str = Field(max_length=5)

    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": Person.model_json_schema(), "strict": True}}
    told = model.chat(question, response_format=schema)
    check("structured output", type(Person.model_validate_json(told.message.content)), Person)
    plain = OpenAILike(model=NAME, is_chat_model=False, context_window=2048, temperature=0, max_tokens=8, **common)
    check("a completion and its stream", plain.complete("the garden").text, "".join(piece.delta for piece in plain.stream_complete("the garden")))
    vectors = OpenAILikeEmbedding(model_name=NAME, **common)
    check("embeddings", len(vectors.get_text_embedding("rain")), 64)


TASKS = {
    "choice": {"output_type": "multiple_choice", "doc_to_text": "{{start}}", "doc_to_target": "{{right}}", "doc_to_choice": "{{ends}}",
               "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]},
    "likely": {"output_type": "loglikelihood", "doc_to_text": "{{start}}", "doc_to_target": "{{ends[0]}}",
               "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}]},
    "rolling": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{start}}{{ends[1]}}",
                "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}]},
    "written": {"output_type": "generate_until", "doc_to_text": "{{start}}", "doc_to_target": "{{ends[0]}}",
                "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 8}, "metric_list": [{"metric": "exact_match"}]},
}


def write_tasks(folder):
    """Tasks of lm-evaluation-harness over sentences of ours."""
    documents = []
    for at in range(12):
        words = WORDS[at % 8 :] * 3
        ends = [" " + " ".join(words[5 : 7 + at % 4]), " lamp é 日本", " rain"]
        documents.append({"start": " ".join(words[:5]), "ends": ends, "right": at % 3})
    data = folder / "documents.json"
    data.write_text("\n".join(json.dumps(document) for document in documents))
    tasks = folder / "tasks"
    tasks.mkdir()
    for name, task in TASKS.items():
        # Every JSON is YAML.
        whole = {"task": f"bedplate_{name}", "target_delimiter": "", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test", **task}
        (tasks / f"{name}.yaml").write_text(json.dumps(whole))
    return tasks


EVALUATE = """
import json, sys, lm_eval
from lm_eval.tasks import TaskManager
kind, arguments, tasks, names = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], sys.argv[4].split(",")
found = lm_eval.simple_evaluate(model=kind, model_args=arguments, tasks=names, task_manager=TaskManager(include_path=tasks), bootstrap_iters=0, log_samples=True)
shown = {name: [sample["resps"] for sample in sorted(found["samples"][name], key=lambda one: one["doc_id"])] for name in names}
results = {name: {key: value for key, value in result.items() if isinstance(value, float)} for name, result in found["results"].items()}
print("FOUND" + json.dumps({"scores": shown, "results": results}))
"""


def evaluate(python, kind, model, tasks, names):
    environment = {**os.environ, "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OPENAI_API_KEY": "none"}
    command = [str(python), "-c", EVALUATE, kind, json.dumps(model), str(tasks), ",".join(names)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    line = next((line for line in ended.stdout.splitlines() if line.startswith("FOUND")), None)
    assert line, f"lm-evaluation-harness failed:\n{ended.stdout[-3000:]}\n{ended.stderr[-6000:]}"
    return json.loads(line.removeprefix("FOUND"))


def numbers(scores):
    """All log-likelihoods, in order, whatever lists they lie in."""
    if isinstance(scores, (list, tuple)):
        return [number for one in scores for number in numbers(one)]
    if isinstance(scores, str):
        return [float(scores)] if scores.lstrip("-").replace(".", "", 1).replace("e-", "", 1).isdigit() else []
    return [] if isinstance(scores, bool) else [float(scores)]


def with_harness(url, folder, model, torch):
    tasks = write_tasks(folder)
    names = [f"bedplate_{name}" for name in TASKS]
    common = {"model": NAME, "base_url": f"{url}/v1/completions", "max_length": 2048, "max_retries": 1}
    kinds = {
        "token numbers one by one": {**common, "batch_size": 1},
        "batches of requests": {**common, "batch_size": 4, "num_concurrent": 4},
    }
    found = {}
    for kind, given in kinds.items():
        found[kind] = evaluate(sys.executable, "local-completions", given, tasks, names)
        check(f"{kind}: {len(numbers(found[kind]['scores']['bedplate_choice']))} choices scored", True)
    one, many = found.values()
    for name in names[:3]:
        pairs = list(zip(numbers(one["scores"][name]), numbers(many["scores"][name]), strict=True))
        check(f"the same scores of {name}", pairs and max(abs(a - b) for a, b in pairs) < 1e-3)
    check("the same texts", one["scores"]["bedplate_written"], many["scores"]["bedplate_written"])
    if torch is not None:
        scored = score_with_transformers(torch, folder, model, tasks)
        for name in names[:2]:
            pairs = list(zip(numbers(one["scores"][name]), scored[name], strict=True))
            most = max(abs(a - b) for a, b in pairs)
            check(f"{name} is what transformers computes (at most {most:.1e} apart)", most < 1e-3)


SCORE = """
import json, sys, torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
tokenizer = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
found = []
for start, end in json.load(sys.stdin):
    # The harness encodes both together, and takes what is behind the first as the second.
    both, first = (tokenizer.encode(text, add_special_tokens=False).ids for text in (start + end, start))
    before, after = both[: len(first)], both[len(first) :]
    logits = model(torch.tensor([before + after])).logits[0].double().log_softmax(-1)
    found.append(sum(logits[len(before) + at - 1, token].item() for at, token in enumerate(after)))
print("FOUND" + json.dumps(found))
"""


def score_with_transformers(torch, folder, model, tasks):
    """The log-likelihoods of the two tasks, computed from the same tokens."""
    documents = [json.loads(line) for line in (folder / "documents.json").read_text().splitlines()]
    asked = {"bedplate_choice": [(one["start"], end) for one in documents for end in one["ends"]],
             "bedplate_likely": [(one["start"], one["ends"][0]) for one in documents]}
    found = {}
    for name, pairs in asked.items():
        ended = subprocess.run([torch, "-c", SCORE, model], input=json.dumps(pairs), capture_output=True, text=True, check=True)
        found[name] = json.loads(ended.stdout.split("FOUND")[1])
    return found


def main():
    given = arguments()
    enter_venv(given.venv)
    for name in ["NO_PROXY", "no_proxy"]:
        os.environ[name] = "127.0.0.1"
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        model, more = make_model(given.bedplate.resolve(), folder, given.torch)
        with Server(given.bedplate.resolve(), model, more) as url:
            urllib.request.urlopen(f"{url}/health").read()
            for name, run in [("openai", with_openai), ("LangChain", with_langchain), ("LlamaIndex", with_llama_index)]:
                print(name, flush=True)
                run(url)
            print("lm-evaluation-harness", flush=True)
            with_harness(url, folder, model, given.torch)
    print("all clients are content")


if __name__ == "__main__":
    main()
