"""Walks the configuration classes of transformers and writes every key that they know, with its default.

    python walk.py keys.json

adds or replaces the installed version in the file; `walk` does so for two major versions. Keys are those that an
instance writes, those that its constructor takes, those that it takes out of its other arguments, and other names
(`attribute_map`). A default that is one long list is written for a model of its own number of layers. The test
`keys.rs` reads the file; nothing else needs Python.
"""

import inspect
import json
import re
import sys
from pathlib import Path

import transformers

TYPES = ("gpt2 bloom mpt llama llama4_text mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe deepseek_v2 deepseek_v3 "
         "gpt_oss gemma gemma2 gemma3_text nemotron phi3 olmo2 olmo3 olmoe glm glm4 glm4_moe smollm3 granite ministral").split()
# Sections and objects of their own, and what differs between two runs.
SKIPPED = {"transformers_version"}
NO_DEFAULT = "no default"


def defaults(config):
    values = {key: value for key, value in config.to_dict().items() if key not in SKIPPED}
    # A base class's own keys are the same everywhere; a section of MPT repeats them.
    section = values.get("attn_config")
    if isinstance(section, dict):
        base = transformers.PretrainedConfig().to_dict()
        values["attn_config"] = {key: value for key, value in section.items() if key not in base}
    return values


def other_names(cls):
    taken = set(inspect.signature(cls.__init__).parameters) - {"self", "args", "kwargs"}
    source = inspect.getsource(sys.modules[cls.__module__])
    own = source[source.index(f"class {cls.__name__}"):]
    following = re.search(r"^class ", own[1:], re.MULTILINE)
    own = own[:following.start()] if following else own
    taken |= set(re.findall(r"""kwargs\.(?:get|pop)\(\s*["'](\w+)["']""", own))
    taken |= set(getattr(cls, "attribute_map", {}))
    return {key for key in taken if key not in SKIPPED}


def walk():
    # `PretrainedConfig` is `PreTrainedConfig` since version 5; both names are there.
    base = defaults(transformers.PretrainedConfig())
    found = {"every": base}
    for model_type in TYPES:
        cls = transformers.CONFIG_MAPPING[model_type]
        keys = defaults(cls())
        own = {key: value for key, value in keys.items() if key not in base or base[key] != value}
        for name in other_names(cls) - keys.keys() - base.keys():
            own[name] = NO_DEFAULT
        found[model_type] = dict(sorted(own.items()))
    return found


if __name__ == "__main__":
    path = Path(sys.argv[1])
    versions = json.loads(path.read_text()) if path.exists() else {}
    versions = {version: keys for version, keys in versions.items()
                if version.split(".")[0] != transformers.__version__.split(".")[0]}
    versions[transformers.__version__] = walk()
    lines = []
    for version, families in sorted(versions.items()):
        rows = ",\n".join(f"  {json.dumps(family)}: {json.dumps(keys, default=str)}" for family, keys in families.items())
        lines.append(f" {json.dumps(version)}: {{\n{rows}\n }}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"transformers {transformers.__version__}: {sum(map(len, versions[transformers.__version__].values()))} keys")
