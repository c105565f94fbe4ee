"""PyTorch's distributed checkpoints over Hugging Face folders: `read FOLDER` and `write FROM TO`.

`read` loads a folder with HuggingFaceStorageReader, on two ranks that each want a share of every tensor, and holds it against the
file itself. `write` saves twice each number from two ranks of FSDP2 with HuggingFaceStorageWriter. `check` exits with 0
where this Python has what that needs.
"""

import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as processes
from safetensors.torch import load_file
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, zeros

RANKS = 2


def whole(folder):
    """All tensors of a folder by name."""
    found = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            found.update(load_file(os.path.join(folder, name)))
    return found


class Node(torch.nn.Module):
    """A module whose parameters have given names, dots and all."""

    def __init__(self, tensors):
        super().__init__()
        below = {}
        for name, tensor in tensors.items():
            first, _, rest = name.partition(".")
            if rest:
                below.setdefault(first, {})[rest] = tensor
            else:
                self.register_parameter(first, torch.nn.Parameter(tensor))
        for first, tensors in below.items():
            self.add_module(first, Node(tensors))


def read(rank, mesh, folder):
    expected = whole(folder)
    found = {name: zeros(tensor.shape, dtype=tensor.dtype, device_mesh=mesh, placements=[Shard(0)])
             for name, tensor in expected.items()}
    dcp.load(found, storage_reader=HuggingFaceStorageReader(folder))
    for name, tensor in expected.items():
        assert torch.equal(found[name].full_tensor(), tensor), name
    if rank == 0:
        print(f"read {len(found)} tensors", flush=True)


def write(rank, mesh, from_folder, to_folder):
    model = Node({name: 2 * tensor for name, tensor in whole(from_folder).items()})
    fully_shard(model, mesh=mesh)
    state = model.state_dict()
    assert all(isinstance(tensor, DTensor) for tensor in state.values())
    writer = HuggingFaceStorageWriter(to_folder, save_distributed=True, enable_consolidation=True)
    dcp.save(state, storage_writer=writer)
    if rank == 0:
        print(f"wrote {len(state)} tensors", flush=True)


def work(rank, port, action, folders):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    {"read": read, "write": write}[action](rank, init_device_mesh("cpu", (RANKS,)), *folders)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    action, folders = sys.argv[1], sys.argv[2:]
    if action != "check":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes.spawn(work, (port, action, folders), nprocs=RANKS)
