"""Gives settings to the parsers of Accelerate, DeepSpeed and torchtitan, and says what they object to.

Reads JSON lines from standard input, each with a trainer, its settings and the number of ranks and data ranks; answers
each with one line: nothing where the settings are accepted, else the objection. The parsers are those of the installed
packages. PyTorch, which they import and parsing does not need, is replaced by a stand-in: it would be gigabytes.
"""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import io
import json
import os
import pathlib
import shlex
import sys
import tempfile
import types
from unittest.mock import MagicMock

CLASSES = {
    "torch": ["Tensor", "dtype", "Size"],
    "torch.nn": ["Module", "Linear", "Parameter", "Embedding", "ModuleList", "LayerNorm"],
    "torch.optim": ["Optimizer"],
    "torch.autograd": ["Function"],
    "torch.utils.data": ["Dataset", "DataLoader", "Sampler"],
}
FORMATS = ["float16", "bfloat16", "float32", "float64", "half", "int8", "int32", "int64", "uint8", "float8_e4m3fn"]


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of PyTorch in which everything exists and nothing happens."""

    def find_spec(self, name, path=None, target=None):
        is_torch = name.split(".")[0] == "torch"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_torch else None

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__path__, module.__name__, module.__spec__, module.__file__ = [], spec.name, spec, None
        module.__version__ = "2.15.0"
        for name in CLASSES.get(spec.name, []):
            setattr(module, name, type(name, (), {}))
        return module

    def exec_module(self, module):
        pass


def stand_in_for_torch():
    sys.meta_path.insert(0, StandIn())
    import torch

    for name in CLASSES:
        importlib.import_module(name)
    for name in FORMATS:
        setattr(torch, name, torch.dtype())
    torch.distributed.is_available = lambda: False
    version = importlib.metadata.version
    # Transformers is asked for its version only.
    absent = {"torch": "2.15.0", "transformers": "5.2.0"}
    importlib.metadata.version = lambda name: absent.get(name) or version(name)


def hollow(*names):
    """Packages whose submodules can be imported without what the package itself imports."""
    for name in names:
        front, *rest = name.split(".")
        root = pathlib.Path(importlib.metadata.distribution(front).locate_file(front))
        module = types.ModuleType(name)
        module.__path__, module.__version__ = [str(root.joinpath(*rest))], importlib.metadata.version(front)
        sys.modules[name] = module


def parts(settings):
    """The file above the command, and the words of the command."""
    file, _, command = settings.rpartition("\n\n")
    lines = [line for line in command.replace("\\\n", " ").split("\n") if not line.startswith("#")]
    # What the scheduler of a site sets.
    os.environ.update(NODE_RANK="0", HEAD_NODE="localhost")
    return file, [os.path.expandvars(word) for word in shlex.split(" ".join(lines))]


def accelerate_parser():
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.parallelism_config import ParallelismConfig

    parser = launch_command_parser()

    def accept(case):
        file, words = parts(case["settings"])
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as place:
            place.write(file)
            place.flush()
            words = [place.name if word == "plan.yaml" else word for word in words[2:]]
            arguments, _, _ = _validate_launch_command(parser.parse_args(words))
        assert arguments.num_processes == case["ranks"], f"{arguments.num_processes} processes"
        if arguments.use_parallelism_config:
            names = ["dp_replicate_size", "dp_shard_size", "tp_size", "cp_size"]
            sizes = {name: int(getattr(arguments, f"parallelism_config_{name}")) for name in names}
            total = ParallelismConfig(**sizes).total_size
            assert total == case["ranks"], f"the sizes multiply to {total}"

    return accept


def deepspeed_parser():
    hollow("deepspeed", "deepspeed.runtime.zero", "deepspeed.ops", "deepspeed.module_inject")
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed.runtime import config

    config.dist.get_rank = lambda *_: 0

    def accept(case):
        file, _ = parts(case["settings"])
        ranks = types.SimpleNamespace(get_data_parallel_world_size=lambda: case["data_ranks"])
        config.DeepSpeedConfig(json.loads(file.split("\n", 1)[1]), mpu=ranks)

    return accept


def torchtitan_parser():
    hollow("torchtitan")
    from dataclasses import field, make_dataclass

    import tyro
    from torchtitan.config import configs

    sections = {
        "training": configs.TrainingConfig,
        "parallelism": configs.ParallelismConfig,
        "compile": configs.CompileConfig,
    }
    made = [(name, section, field(default_factory=section)) for name, section in sections.items()]
    Config = make_dataclass("Config", made)

    def flag(key, value):
        if value in ("True", "False"):
            section, name = key.split(".")
            return [f"--{section}.{'no-' if value == 'False' else ''}{name}"]
        return [f"--{key}", *[word.strip('"') for word in value.strip("[]").split(", ")]]

    def accept(case):
        lines = [line.strip() for line in case["settings"].split("\n")]
        pairs = [line[len("config.") :].split(" = ") for line in lines if line.startswith("config.")]
        flags = [flag(key, value) for key, value in pairs if key.split(".")[0] in sections]
        tyro.cli(Config, args=[word for words in flags for word in words])

    return accept


PARSERS = {"accelerate": accelerate_parser, "deepspeed": deepspeed_parser, "torchtitan": torchtitan_parser}


def objection(accept, case):
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            accept(case)
    except SystemExit:
        return " ".join(said.getvalue().split())[:500] or "the parser ended"
    except Exception as error:  # whatever it is, the settings were not accepted
        return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
    return ""


def main():
    if sys.argv[1:] == ["check"]:
        return [importlib.metadata.version(name) for name in [*PARSERS, "tyro", "numpy"]]
    stand_in_for_torch()
    made = {}
    answers = sys.stdout
    for line in sys.stdin:
        case = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):
            trainer = case["trainer"]
            if trainer not in made:
                made[trainer] = PARSERS[trainer]()
        answers.write(objection(made[trainer], case).replace("\n", " ") + "\n")


if __name__ == "__main__":
    main()
