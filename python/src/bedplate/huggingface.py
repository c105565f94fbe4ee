"""The callback of Hugging Face's Trainer and of TRL's trainers, which are Trainers too.

from bedplate.huggingface import BedplateCallback

Trainer(..., callbacks=[BedplateCallback()])
"""

import os
from typing import Any

from transformers import TrainerCallback

from . import _job, _prepare, checkpoint, flush, watch
from ._job import harmless


class BedplateCallback(TrainerCallback):
    """Steps with their loss, evaluations and checkpoints; does nothing outside of a job."""

    def __init__(self) -> None:
        self._record: Any = None

    @harmless
    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        recorder = _job.recorder()
        if recorder is None:
            return
        _prepare(recorder)
        watch(named.get("model"), named.get("optimizer"))
        recorder.number = state.global_step
        recorder.begin("data")

    @harmless
    def on_step_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        recorder = _job.recorder()
        if recorder is not None:
            recorder.switch("host")

    @harmless
    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        recorder = _job.recorder()
        if recorder is None:
            return
        tokens = getattr(state, "num_input_tokens_seen", 0)
        self._record = recorder.end_step(
            state.global_step, tokens or None, then=following(control), is_complete=not control.should_log
        )

    @harmless
    def on_log(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        recorder = _job.recorder()
        if recorder is not None and self._record is not None:
            self._record.loss = (named.get("logs") or {}).get("loss")
            recorder.settle()
            self._record = None

    @harmless
    def on_evaluate(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        recorder = _job.recorder()
        if recorder is not None:
            recorder.switch("save" if control.should_save else "data")

    @harmless
    def on_save(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        recorder = _job.recorder()
        if recorder is not None:
            recorder.switch("data")
            checkpoint(state.global_step, os.path.abspath(os.path.join(args.output_dir, f"checkpoint-{state.global_step}")))

    @harmless
    def on_train_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        recorder = _job.recorder()
        if recorder is not None:
            recorder.switch("host")
            recorder.end_sample()
            recorder.turn_to("done")
            flush()


def following(control: Any) -> str:
    """What the trainer does after a step."""
    if control.should_evaluate:
        return "evaluate"
    return "save" if control.should_save else "data"
