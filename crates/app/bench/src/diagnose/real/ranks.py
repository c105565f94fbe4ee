"""A rank that trains a small model by DDP or FSDP2 over Gloo, and to which something happens at a step that it is told.

Computing is mostly waiting, so that several ranks share a processor without slowing each other down. With the package of reports in
its path it reports; without it rank 0 prints lines as nanoGPT does. The moment of the fault is written to a file, by the rank that it befalls.
"""

import json
import os
import sys
import time

asked = json.loads(sys.argv[1])
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
fault, culprit, onset, seconds = asked["fault"], asked["culprit"], asked["onset"], asked["step_s"]
is_culprit = rank == culprit
if asked["reports"]:
    import bedplate
else:
    os.environ.pop("BEDPLATE_REPORT", None)

import torch
import torch.distributed as dist

torch.set_num_threads(1)
torch.manual_seed(7)
if asked["reports"]:
    bedplate.install_flight()
dist.init_process_group("gloo")


class Model(torch.nn.Sequential):
    """Its layers, and the time that they would take."""

    wait = 0.0

    def forward(self, inputs):
        time.sleep(self.wait)
        return super().forward(inputs)


model = Model(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
if asked["shards"]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    plain = model
else:
    plain, model = model, torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
hoard = []


def marked(number):
    """The moment at which the fault begins."""
    if number == onset and (is_culprit or (culprit < 0 and rank == 0)):
        with open(asked["mark"] + ".new", "w") as file:
            file.write(repr(time.time()))
        os.replace(asked["mark"] + ".new", asked["mark"])


def batches():
    generator = torch.Generator().manual_seed(rank)
    for number in range(asked["steps"]):
        pause = 0.03 * seconds
        if number >= onset and ((fault == "loader-one" and is_culprit) or fault == "loader-all"):
            time.sleep(0.6 * seconds)
        time.sleep(pause)
        yield number, torch.randn(8, 64, generator=generator)


def befall(number):
    """What happens to this rank in this step, before it computes."""
    is_on = number >= onset
    plain.wait = 0.6 * seconds
    if is_on and fault == "more-work":
        plain.wait *= 1.6
    if is_on and fault == "skewed-lengths" and (number * 7919) % ranks == rank:
        plain.wait *= 1.8
    if number != onset:
        return
    if is_culprit and fault == "stuck":
        wait_for_a_lock_that_nobody_frees()
    if is_culprit and fault == "leaves-early":
        while True:
            time.sleep(1)
    if fault == "mismatched":
        if is_culprit:
            dist.broadcast(torch.ones(8), src=culprit)
        else:
            dist.all_reduce(torch.ones(8))
        dist.barrier()
    if is_culprit and fault == "disk-full":
        with open("/dev/full", "wb") as file:
            file.write(b"x" * 1000000)
    if is_culprit and fault == "out-of-memory":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        hoard.append(torch.ones(1 << 30))
    if is_culprit and fault == "data-error":
        {"input_ids": []}["labels"]


def wait_for_a_lock_that_nobody_frees():
    import threading

    lock = threading.Lock()
    with lock:
        lock.acquire()


def evaluate(number):
    time.sleep(0.5)


def train():
    began = time.perf_counter()
    steps = batches() if not asked["reports"] else bedplate.Steps(batches(), model=model, optimizer=optimizer)
    for number, batch in steps:
        marked(number)
        befall(number)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        told = loss.item()
        if number >= onset and fault == "not-a-number":
            told = float("nan")
        if number >= onset and fault == "loss-spike":
            told = told * 40 + 30
        if asked["reports"]:
            steps.loss = told
            if number % 50 == 49:
                with bedplate.evaluating():
                    evaluate(number)
            if number % 70 == 69:
                with bedplate.saving(number, None):
                    time.sleep(0.3)
        elif rank == 0:
            now = time.perf_counter()
            print(f"iter {number}: loss {told:.4f}, time {1000 * (now - began):.2f}ms, mfu 1.00%", flush=True)
            if number % 50 == 49:
                print("running evaluation", flush=True)
                evaluate(number)
        began = time.perf_counter()


train()
