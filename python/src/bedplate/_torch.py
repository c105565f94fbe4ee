"""Hooks of PyTorch: they mark what a loop does, so that the loop itself needs no change.

Forward is marked by hooks of the outer module, the optimizer by its own, waiting for other ranks by the end of the last gradient
(DDP's reduction ends with the backward pass) and, without a GPU, around collectives. All of it is a few microseconds a step.
"""

import sys
import threading
from typing import Any, Callable, Iterable, List

import torch

from ._steps import PHASES, Recorder

#: Calls that wait for other ranks where there is no GPU to do it meanwhile.
COLLECTIVES = (
    "all_gather all_gather_coalesced all_gather_into_tensor all_reduce all_reduce_coalesced all_to_all all_to_all_single "
    "barrier broadcast gather monitored_barrier recv reduce reduce_scatter reduce_scatter_tensor scatter send"
).split()


def attach(recorder: Recorder) -> None:
    """Prepares what needs no model."""
    if recorder.sampler is not None:
        return
    from ._sample import Sampler

    recorder.sampler = Sampler()
    if torch.cuda.is_available():
        from ._events import Device

        recorder.device = Device()
        recorder.device.begin(recorder.activity)
    elif torch.distributed.is_available():
        mark_collectives(recorder)


def watch(recorder: Recorder, model: Any, optimizer: Any) -> None:
    attach(recorder)
    if hasattr(model, "backward") and hasattr(model, "step"):
        # An engine, such as DeepSpeed's, does the steps of a loop itself.
        mark_method(recorder, model, "backward", "backward")
        mark_method(recorder, model, "step", "optimizer")
    elif optimizer is not None:
        for each in optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]:
            mark_optimizer(recorder, each)
    if isinstance(model, torch.nn.Module):
        if not is_compiled(model):
            mark_forward(recorder, model)
        if torch.distributed.is_available():
            LastGradient(recorder, model.parameters())


def is_compiled(model: torch.nn.Module) -> bool:
    """Hooks of a compiled module would be compiled too."""
    return hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None


def mark_forward(recorder: Recorder, model: torch.nn.Module) -> None:
    def begins(module: torch.nn.Module, _inputs: Any) -> None:
        if module.training and recorder.activity not in PHASES:
            recorder.switch("forward")

    def ends(module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if recorder.activity == "forward":
            recorder.switch("backward")

    model.register_forward_pre_hook(begins)
    model.register_forward_hook(ends)


def mark_optimizer(recorder: Recorder, optimizer: Any) -> None:
    while not hasattr(optimizer, "param_groups") or hasattr(optimizer, "optimizer"):
        # A wrapper, such as Accelerate's and Lightning's.
        optimizer = getattr(optimizer, "optimizer", None)
        if optimizer is None:
            return
    if hasattr(optimizer, "register_step_pre_hook"):
        optimizer.register_step_pre_hook(lambda *_: recorder.switch("optimizer") and None)
        optimizer.register_step_post_hook(lambda *_: recorder.switch("host") and None)


def mark_method(recorder: Recorder, owner: Any, name: str, activity: str) -> None:
    setattr(owner, name, marked(recorder, getattr(owner, name), activity))


def marked(recorder: Recorder, function: Callable[..., Any], activity: str) -> Callable[..., Any]:
    """The function, whose time counts as the activity when the loop's own thread calls it within a step."""

    def measured(*arguments: Any, **named: Any) -> Any:
        before = recorder.activity
        if before == activity or before in PHASES or threading.get_ident() != recorder.thread:
            return function(*arguments, **named)
        if activity == "communication":
            recorder.call = measured.__name__
        recorder.switch(activity)
        try:
            return function(*arguments, **named)
        finally:
            recorder.switch(before)

    measured.__name__ = getattr(function, "__name__", activity)
    measured.__doc__ = function.__doc__
    measured.__wrapped__ = function  # type: ignore[attr-defined]
    return measured


def mark_collectives(recorder: Recorder) -> None:
    """Without a GPU, Gloo and MPI keep the caller waiting."""
    import torch.distributed as public

    private = sys.modules["torch.distributed.distributed_c10d"]
    for name in COLLECTIVES:
        function = getattr(public, name, None)
        if function is not None and not hasattr(function, "__bedplate__"):
            measured = marked(recorder, function, "communication")
            measured.__bedplate__ = True  # type: ignore[attr-defined]
            setattr(public, name, measured)
            if getattr(private, name, None) is function:
                setattr(private, name, measured)
    work = public.Work
    if not hasattr(work.wait, "__bedplate__"):
        measured = marked(recorder, work.wait, "communication")
        measured.__bedplate__ = True  # type: ignore[attr-defined]
        work.wait = measured  # type: ignore[method-assign]


class LastGradient:
    """Marks the end of a backward pass as waiting for others, from the last gradient on.

    DDP overlaps its reductions with the backward pass and waits for them at its end. The first pass shows which gradient is last.
    """

    def __init__(self, recorder: Recorder, parameters: Iterable[Any]) -> None:
        self.recorder = recorder
        self.last: Any = None
        self.is_learning = True
        # The shards of FSDP and DeepSpeed get their gradients in ways of their own.
        plain = [each for each in parameters if type(each) is torch.nn.Parameter and not hasattr(each, "ds_id")]
        self.handles: List[Any] = [
            each.register_post_accumulate_grad_hook(self._gradient)
            for each in plain
            if each.requires_grad and hasattr(each, "register_post_accumulate_grad_hook")
        ]

    def _gradient(self, parameter: Any) -> None:
        try:
            if not self.is_learning:
                if self.recorder.activity not in PHASES:
                    self.recorder.switch("communication")
                    # A callback that a callback adds runs after the one that DDP waits in.
                    after_backward(lambda: after_backward(self._ended))
            else:
                if self.last is None:
                    after_backward(self._learned)
                self.last = parameter
        except Exception:
            self._remove()

    def _learned(self) -> None:
        self._remove()
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            self.is_learning = False
            self.handles = [self.last.register_post_accumulate_grad_hook(self._gradient)]

    def _ended(self) -> None:
        if self.recorder.activity == "communication":
            self.recorder.switch("host")

    def _remove(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []


def after_backward(function: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(function)
