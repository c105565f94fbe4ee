"""Marks on the stream of an NVIDIA or AMD GPU, and losses that are read without waiting for it."""

from typing import Any, Dict, List, Tuple

import torch

#: Marks of one step; a step with more of them is timed by the host's clock.
MOST_MARKS = 64


class Device:
    """Events of the current stream. An event is used again once its step was read."""

    def __init__(self) -> None:
        self._free: List[Any] = []
        self._marks: List[Tuple[str, Any]] = []

    def begin(self, activity: str) -> None:
        self._marks = []
        self.mark(activity)

    def mark(self, activity: str) -> None:
        # Before the program has chosen its GPU there is nothing to mark, and a graph that is captured is left alone.
        if len(self._marks) < MOST_MARKS and torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
            event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((activity, event))

    def end_step(self, then: str) -> List[Tuple[str, Any]]:
        """The marks of the step, the end of which is the beginning of the next."""
        if not self._marks or len(self._marks) >= MOST_MARKS:
            self.begin(then)
            return []
        marks = self._marks
        self.mark(then)
        self._marks = marks[-1:]
        return marks if len(marks) > 1 else []

    def has_passed(self, marks: List[Tuple[str, Any]]) -> bool:
        return bool(marks[-1][1].query())

    def seconds(self, marks: List[Tuple[str, Any]]) -> Dict[str, float]:
        """By activity. Its events, but for the last, are free again."""
        spans: Dict[str, float] = {}
        for (activity, event), (_, following) in zip(marks, marks[1:]):
            spans[activity] = spans.get(activity, 0.0) + event.elapsed_time(following) / 1e3
            self._free.append(event)
        return spans

    def read_later(self, loss: Any) -> Any:
        return Late(loss) if isinstance(loss, torch.Tensor) and loss.is_cuda else loss


class Late:
    """A number on its way from the GPU."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._copy = torch.empty((), dtype=torch.float32, pin_memory=True)
        self._copy.copy_(tensor.detach().float().reshape(-1)[0], non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def is_ready(self) -> bool:
        return bool(self._event.query())

    def __float__(self) -> float:
        return float(self._copy)
