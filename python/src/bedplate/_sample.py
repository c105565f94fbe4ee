"""Now and then a step under PyTorch's profiler, which tells computing from waiting inside of forward and backward.

Samples have a budget: their cost is measured, and the next one waits until it is a small share of the time since. All ranks sample
the same early step, so that they do not slow each other down one by one.
"""

import os
from time import perf_counter, thread_time
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import torch

from ._steps import PHASES, Record, Recorder, unmarked

Interval = Tuple[int, int, str]

#: The first sample: after compilation, tuning and the first fills of caches.
FIRST_STEP = 20
#: Only such steps are sampled later, which brings ranks together.
EVERY_STEPS = 10
#: Unless steps take longer than those that were sampled.
LEAST_INTERVAL_S = 60.0
#: Samples that follow the first take this share of the time at most.
BUDGET = 0.001
#: A step of more events is not divided.
MOST_EVENTS = 400_000

COMMUNICATION = ("nccl", "gloo:", "mpi:", "rccl", "nvshmem", "all_reduce", "all_gather", "reduce_scatter")
OPTIMIZER = ("multi_tensor_apply", "adam", "optimizer.step#")
COMPUTE = (
    "gemm", "cutlass", "nvjet", "xmma", "wgmma", "flash", "fmha", "attention", "convol", "conv1d", "conv2d", "conv3d", "::mm", "::addmm", "::bmm", "::baddbmm",
    "::_scaled_mm", "mkldnn_linear", "cublas", "cudnn", "cijk",
)  # fmt: skip
#: Events around other events.
ENVELOPES = ("autograd::engine", "profilerstep", "distributeddataparallel", "c10d::", "torch::autograd", "[")
#: Of two things that happen at once the first counts.
ORDER = ("optimizer", "compute", "memory", "communication")


class Sampler:
    """Runs the profiler over single steps."""

    def __init__(self) -> None:
        self.is_on = os.environ.get("BEDPLATE_SAMPLE", "1") != "0"
        self.steps = 0
        self.cost_s = 0.0
        self._profiler: Any = None
        self._restore: Callable[[], None] = lambda: None
        self._until = 0.0
        self._last_s = 0.0
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")

    def end_step(self, recorder: Recorder, record: Record, then: str) -> bool:
        """Whether the step that ended was sampled."""
        self.steps += 1
        is_sampled = self._profiler is not None
        try:
            if is_sampled:
                self._stop(recorder, record)
                recorder.pause(then)
            elif self.is_on and then not in PHASES and self._is_due(recorder):
                self._start()
                recorder.pause(then)
        except Exception:
            self.is_on = False
            self._restore()
            self._profiler = None
        if not is_sampled:
            self._last_s = record.seconds
        return is_sampled

    def _is_due(self, recorder: Recorder) -> bool:
        if self.steps == FIRST_STEP:
            return True
        if self.steps < FIRST_STEP or self.steps % EVERY_STEPS != 0:
            return False
        interval = 0.0 if recorder.has_changed() else LEAST_INTERVAL_S
        return perf_counter() > self._until + max(interval, self.cost_s / BUDGET)

    def _start(self) -> None:
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            # The program profiles itself.
            return
        began = perf_counter()
        cuda = torch.cuda.is_available()
        activity = torch.profiler.ProfilerActivity.CUDA if cuda else torch.profiler.ProfilerActivity.CPU
        self._profiler = torch.profiler.profile(activities=[activity])
        self._profiler.start()
        self._give_way()
        self.cost_s = perf_counter() - began

    def _give_way(self) -> None:
        """There is one profiler in a process: ours ends before the program starts its own."""
        import torch.autograd.profiler as module

        prepare = module._prepare_profiler  # type: ignore[attr-defined]

        def prepare_theirs(*arguments: Any, **named: Any) -> Any:
            self.discard()
            return prepare(*arguments, **named)

        self._restore = lambda: setattr(module, "_prepare_profiler", prepare)
        module._prepare_profiler = prepare_theirs  # type: ignore[attr-defined]

    def discard(self) -> None:
        """Ends a sample that is none: the loop has ended, evaluates or saves, or the program profiles itself."""
        profiler: Any = self._profiler
        self._profiler = None
        if profiler is not None:
            self._restore()
            profiler.stop()
            self._until = perf_counter()

    def _stop(self, recorder: Recorder, record: Record) -> None:
        began = perf_counter()
        profiler: Any = self._profiler
        self._profiler = None
        self._restore()
        profiler.stop()
        self._until = perf_counter()
        self.cost_s += self._until - began + max(0.0, record.seconds - self._last_s)
        events = profiler.profiler.kineto_results
        # The profiler has waited for the GPU: the step's events have passed.
        recorder.read(record)

        def divide() -> None:
            began = thread_time()
            recorder.sample = shares(intervals(events.events()), record, recorder.communication)
            self.cost_s += thread_time() - began

        recorder.writer.later(divide)


def intervals(events: Iterable[Any]) -> List[Interval]:
    """What happened when: kernels of a GPU if there are any, otherwise operators of the host."""
    host: List[Interval] = []
    kernels: List[Interval] = []
    cpu = torch._C._autograd.DeviceType.CPU
    for count, event in enumerate(events):
        if count > MOST_EVENTS:
            return []
        kind = kind_of(event.name())
        if kind is not None:
            start = event.start_ns()
            (host if event.device_type() == cpu else kernels).append((start, start + event.duration_ns(), kind))
    return kernels or host


def kind_of(name: str) -> Optional[str]:
    """Of a kernel or an operator; nothing for envelopes of others."""
    lower = name.lower()
    if any(word in lower for word in COMMUNICATION):
        return None if lower.startswith(("c10d::", "aten::")) else "communication"
    if any(word in lower for word in OPTIMIZER):
        return "optimizer"
    if any(word in lower for word in COMPUTE):
        return "compute"
    return None if lower.startswith(ENVELOPES) else "memory"


def exposed(events: List[Interval]) -> Dict[str, float]:
    """Seconds by kind; while two kinds overlap, the one that comes first in `ORDER` counts."""
    edges = sorted(edge for start, end, kind in events for edge in ((start, 1, kind), (end, -1, kind)))
    open_now = dict.fromkeys(ORDER, 0)
    seconds = dict.fromkeys(ORDER, 0.0)
    before = 0
    for at, change, kind in edges:
        for each in ORDER:
            if open_now[each]:
                seconds[each] += (at - before) / 1e9
                break
        open_now[kind] += change
        before = at
    return seconds


def shares(events: List[Interval], record: Record, communication: str) -> Optional[Tuple[float, Dict[str, float]]]:
    """How the time divides that no mark explains; none if nothing was seen."""
    rest = unmarked(record)
    if not events or rest <= 0.0:
        return None
    seconds = exposed(events)
    parts = {"compute": seconds["compute"], "memory": seconds["memory"]}
    parts[communication] = max(0.0, seconds["communication"] - record.spans.get("communication", 0.0))
    if "optimizer" not in record.spans:
        parts["optimizer"] = seconds["optimizer"]
    whole = max(rest, sum(parts.values()))
    divided = {part: each / whole for part, each in parts.items() if each > 0.0}
    divided["host"] = max(0.0, 1.0 - sum(divided.values()))
    return rest, divided
