"""Reports what a training loop does to the Bedplate cluster that runs it.

    import bedplate

    steps = bedplate.Steps(loader, model=model, optimizer=optimizer)
    for batch in steps:
        loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.loss = loss

Outside of a job (no `BEDPLATE_REPORT` in the environment) nothing is imported, measured or written. Nothing here raises
an error of its own into the loop, waits for a GPU or waits for the file. docs/python.md has an example for each framework.
"""

import os
import sys
from contextlib import ContextDecorator, contextmanager
from typing import Any, Generic, Iterable, Iterator, NamedTuple, Optional, TypeVar

from . import _job
from ._job import harmless as _harmless

__version__ = "0.1.0"
__all__ = [
    "Checkpoint",
    "Step",
    "Steps",
    "checkpoint",
    "dropped",
    "evaluating",
    "flush",
    "install_flight",
    "is_active",
    "part",
    "phase",
    "progress",
    "report",
    "resume",
    "saving",
    "step",
    "watch",
]

Batch = TypeVar("Batch")


class Checkpoint(NamedTuple):
    """Where a job that was started again goes on."""

    step: int
    path: Optional[str]


def is_active() -> bool:
    """Whether this process reports to a cluster."""
    return _job.recorder() is not None


@_harmless
def report(kind: str, **fields: Any) -> None:
    """Writes a report: `report("step", step=7, seconds=0.41, breakdown={"compute": 0.3, "host": 0.11})`."""
    recorder = _job.recorder()
    if recorder is not None:
        recorder.writer.put(kind, fields)


@_harmless
def progress(step: int) -> None:
    """This many steps are done."""
    report("progress", step=int(step))


@_harmless
def checkpoint(step: int, path: Optional[Any] = None) -> None:
    """The job can start again from here."""
    report("checkpoint", step=int(step), **({} if path is None else {"path": str(path)}))


@_harmless
def phase(name: str) -> None:
    """What the process does from now on: loading, training, evaluating, saving or done."""
    recorder = _job.recorder()
    if recorder is not None:
        recorder.turn_to(name)


def resume() -> Optional[Checkpoint]:
    """The last checkpoint that the job reported before it was started again."""
    step = os.environ.get("BEDPLATE_CHECKPOINT_STEP", "")
    return Checkpoint(int(step), os.environ.get("BEDPLATE_CHECKPOINT_PATH") or None) if step.isdigit() else None


def dropped() -> int:
    """Reports that were left out: more than are read, more than the file takes, or no JSON."""
    recorder = _job.recorder()
    return 0 if recorder is None else int(recorder.writer.dropped)


def flush(timeout: float = 5.0) -> bool:
    """Waits at most `timeout` seconds until all reports are written; says whether they are."""
    recorder = _job.recorder()
    if recorder is None:
        return True
    _settle(recorder)
    return bool(recorder.writer.flush(timeout))


@_harmless
def _settle(recorder: Any) -> None:
    recorder.settle(wait=True)


@_harmless
def watch(model: Any = None, optimizer: Any = None) -> None:
    """Marks forward, backward, waiting for other ranks and the optimizer by hooks of PyTorch.

    Call it when the model is complete: wrapped in DDP or FSDP, and compiled if it is to be.
    """
    recorder = _job.recorder()
    if recorder is not None and "torch" in sys.modules:
        from . import _torch

        _torch.watch(recorder, model, optimizer)


def install_flight(folder: Optional[str] = None) -> None:
    """Turns on PyTorch's flight recorder, and stacks on SIGUSR1. Call it before `init_process_group`."""
    if is_active():
        from . import _flight

        _harmless(_flight.install)(folder)


@contextmanager
def part(activity: str) -> Iterator[None]:
    """What happens inside counts as `data`, `forward`, `backward`, `communication`, `optimizer`, `save` or `evaluate`."""
    before = _switch(activity)
    try:
        yield
    finally:
        _switch(before)


@_harmless
def _switch(activity: Optional[str]) -> Optional[str]:
    recorder = _job.recorder()
    return None if recorder is None or activity is None else recorder.switch(activity)


@contextmanager
def saving(step: int, path: Optional[Any] = None) -> Iterator[None]:
    """A checkpoint is written inside, and reported when that has succeeded."""
    with part("save"):
        yield
    checkpoint(step, path)


def evaluating() -> Any:
    """The model is evaluated inside: that time is part of no step."""
    return part("evaluate")


class Step(ContextDecorator):
    """One step as a context, or each call of a function as one. Time between two of them counts as waiting for data."""

    def __init__(self, number: Optional[int] = None, tokens: Optional[int] = None, loss: Any = None) -> None:
        #: A number or a tensor, which is read when the GPU has computed it.
        self.loss = loss
        #: Since the job began, this step included.
        self.tokens = tokens
        #: The first step of a job is 1; counted if it is not said.
        self.number = number

    def __enter__(self) -> "Step":
        _begin_step()
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            _end_step(self.number, self.tokens, self.loss)


def step(number: Optional[int] = None, tokens: Optional[int] = None, loss: Any = None) -> Step:
    """`with bedplate.step() as step:` around each step; `step.loss = loss` and `step.tokens = …` inside.

    `train_step = bedplate.step()(train_step)` makes each call of a function a step.
    """
    return Step(number, tokens, loss)


@_harmless
def _begin_step() -> None:
    recorder = _job.recorder()
    if recorder is None:
        return
    _prepare(recorder)
    recorder.begin_step()


@_harmless
def _end_step(number: Optional[int], tokens: Optional[int], loss: Any) -> None:
    recorder = _job.recorder()
    if recorder is not None:
        recorder.end_step(number, tokens, loss, then="data")


def _prepare(recorder: Any) -> None:
    """Where the loop uses PyTorch, its collectives are marked and its steps sampled, also without a call of `watch`."""
    if recorder.sampler is None and "torch" in sys.modules:
        from . import _torch

        _torch.attach(recorder)


class Steps(Generic[Batch]):
    """The batches of a loader, measured: a step is from one request for a batch to the next.

    Several batches make a step where `batches_per_step` is more than one. `tokens_per_step` counts all ranks.
    """

    def __init__(
        self,
        loader: Iterable[Batch],
        model: Any = None,
        optimizer: Any = None,
        *,
        batches_per_step: int = 1,
        tokens_per_step: Optional[int] = None,
        start: Optional[int] = None,
    ) -> None:
        self.loader = loader
        self.batches_per_step = max(1, batches_per_step)
        self.tokens_per_step = tokens_per_step
        #: Of the step under way: a number or a tensor.
        self.loss: Any = None
        if start is not None and is_active():
            _job.recorder().number = start
        watch(model, optimizer)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        recorder = _job.recorder()
        if recorder is None:
            return iter(self.loader)
        return self._measured(recorder)

    def _measured(self, recorder: Any) -> Iterator[Batch]:
        _prepare_safely(recorder)
        batches, taken = iter(self.loader), 0
        _begin(recorder)
        while True:
            _switch("data")
            try:
                batch = next(batches)
            except StopIteration:
                _switch("host")
                recorder.end_sample()
                return
            _switch("host")
            yield batch
            taken += 1
            if taken % self.batches_per_step == 0:
                self._end()

    def _end(self) -> None:
        recorder = _job.recorder()
        if recorder is not None:
            tokens = None if self.tokens_per_step is None else self.tokens_per_step * (recorder.number + 1)
            _end_step(None, tokens, self.loss)
        self.loss = None


@_harmless
def _prepare_safely(recorder: Any) -> None:
    _prepare(recorder)


@_harmless
def _begin(recorder: Any) -> None:
    recorder.begin("data")
