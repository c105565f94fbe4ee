"""The callback of Lightning, whether it is imported as `lightning` or as `pytorch_lightning`.

from bedplate.lightning import BedplateCallback

Trainer(..., callbacks=[BedplateCallback()])
"""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from . import _job, _prepare, flush, saving, watch
from ._job import harmless

has_loaded = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
if has_loaded or find_spec("lightning") is None:
    Callback: Any = import_module("pytorch_lightning").Callback
else:
    Callback = import_module("lightning.pytorch").Callback


class BedplateCallback(Callback):  # type: ignore[misc]
    """Steps with their loss, validations and checkpoints; does nothing outside of a job."""

    def __init__(self) -> None:
        self._steps = 0

    @harmless
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        recorder = _job.recorder()
        if recorder is None:
            return
        _prepare(recorder)
        watch(pl_module if trainer.strategy.model is None else trainer.strategy.model)
        report_saves(trainer)
        self._steps = recorder.number = trainer.global_step
        recorder.begin("data")

    @harmless
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        recorder = _job.recorder()
        if recorder is not None:
            recorder.switch("forward")

    @harmless
    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        recorder = _job.recorder()
        if recorder is not None:
            recorder.switch("backward")

    @harmless
    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        recorder = _job.recorder()
        if recorder is not None:
            recorder.switch("host")

    @harmless
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        # Not by hooks of the optimizer: forward and backward are inside of its step.
        recorder = _job.recorder()
        if recorder is not None:
            recorder.switch("optimizer")

    @harmless
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        recorder = _job.recorder()
        if recorder is None:
            return
        if trainer.global_step > self._steps:
            self._steps = trainer.global_step
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            recorder.end_step(trainer.global_step, loss=loss, then="data")
        else:
            recorder.switch("data")

    @harmless
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        recorder = _job.recorder()
        if recorder is not None and not trainer.sanity_checking:
            recorder.switch("evaluate")

    @harmless
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        recorder = _job.recorder()
        if recorder is not None and not trainer.sanity_checking:
            recorder.switch("data")

    @harmless
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        recorder = _job.recorder()
        if recorder is not None:
            recorder.switch("host")
            recorder.end_sample()
            recorder.turn_to("done")
            flush()


def report_saves(trainer: Any) -> None:
    """The trainer tells callbacks when a checkpoint begins, not when it is written."""
    save = trainer.save_checkpoint

    def saved(filepath: Any, *arguments: Any, **named: Any) -> Any:
        with saving(trainer.global_step, os.path.abspath(filepath)):
            return save(filepath, *arguments, **named)

    trainer.save_checkpoint = saved
