"""The time of a step by activity, as marks of the training loop give it.

A loop does one thing at a time: it waits for data, goes forward, backward, waits for other ranks, optimizes, saves, evaluates, or
none of these, which is work of the host. A mark ends one activity and begins the next, so that activities add up to the step. With a
GPU each mark is an event of its stream too. Events are read when they have passed, a step late or more, and never waited for.
"""

import atexit
import threading
from collections import deque
from functools import partial
from time import perf_counter
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from ._report import Writer, number

Marks = List[Tuple[str, Any]]

#: Steps whose events have not passed; beyond them the clock of the host counts.
MOST_PENDING = 8
#: Not part of a step: reported as phases.
PHASES = {"save": "saving", "evaluate": "evaluating"}
#: A step this much longer than the one that was sampled is sampled again.
CHANGED = 1.1
#: Less communication than this in a sample of forward and backward is none.
LITTLE = 0.02


class Record:
    """A step that has ended."""

    __slots__ = ("number", "seconds", "spans", "tokens", "loss", "marks", "is_sampled")

    def __init__(self, number: int, seconds: float, spans: Dict[str, float]) -> None:
        self.number, self.seconds, self.spans = number, seconds, spans
        self.tokens: Optional[int] = None
        self.loss: Any = None
        self.marks: Marks = []
        self.is_sampled = False


class Recorder:
    """The steps of this process."""

    def __init__(self, writer: Writer, start: int = 0, clock: Callable[[], float] = perf_counter) -> None:
        self.writer, self.clock, self.number = writer, clock, start
        self.thread = threading.get_ident()
        self.activity = "host"
        #: The collective that the loop called last.
        self.call = ""
        self.phase = ""
        #: What marks a GPU's stream, and what samples steps; see `_torch`.
        self.device: Any = None
        self.sampler: Any = None
        #: Which part waiting for other ranks is.
        self.communication = "scale_up"
        #: Of the latest sample: seconds outside of what is marked, and how they divide into parts.
        self.sample: Optional[Tuple[float, Dict[str, float]]] = None
        self._longer = 0
        self._has_begun = False
        self._since = clock()
        self._spans: Dict[str, float] = {}
        self._pending: Deque[Record] = deque()
        atexit.register(self.close)

    def switch(self, activity: str) -> str:
        """Begins an activity; returns the one that ended."""
        before = self.activity
        if activity == before:
            return before
        now = self.clock()
        self._spans[before] = self._spans.get(before, 0.0) + now - self._since
        self._since, self.activity = now, activity
        if self.device is not None:
            self._on_device("mark", activity)
        if activity in PHASES or before in PHASES:
            self.end_sample()
            self.turn_to(PHASES.get(activity, "training"))
        return before

    def turn_to(self, phase: str) -> None:
        if phase != self.phase:
            self.phase = phase
            self.writer.put("phase", {"phase": phase})

    def begin(self, activity: str = "host") -> None:
        """The loop begins here: what was before is part of no step."""
        self._spans.clear()
        self._has_begun = True
        self.thread = threading.get_ident()
        self._since, self.activity = self.clock(), activity
        self._on_device("begin", activity)
        self.turn_to("training")

    def begin_step(self) -> None:
        """Goes on with a loop, or begins it."""
        if self._has_begun:
            self.switch("host")
        else:
            self.begin()

    def end_step(
        self,
        step: Optional[int] = None,
        tokens: Optional[int] = None,
        loss: Any = None,
        then: str = "host",
        is_complete: bool = True,
    ) -> Record:
        """A step has ended, and `then` begins. What is not complete, because its loss comes later, waits for `settle`."""
        now = self.clock()
        spans, self._spans = self._spans, {}
        spans[self.activity] = spans.get(self.activity, 0.0) + now - self._since
        self._since, self.activity = now, then
        self.number = self.number + 1 if step is None else int(step)
        within = sum(seconds for activity, seconds in spans.items() if activity not in PHASES)
        record = Record(self.number, within, spans)
        record.tokens = None if tokens is None else int(tokens)
        # Without the graph that it came from.
        record.loss = loss.detach() if hasattr(loss, "detach") else loss
        if self.device is not None:
            record.marks = self._on_device("end_step", then) or []
            record.loss = self._on_device("read_later", record.loss)
            self.writer.put("progress", {"step": self.number}, urgent=False)
        if self.sampler is not None:
            record.is_sampled = self.sampler.end_step(self, record, then)
        self._pending.append(record)
        if is_complete:
            self.settle()
        if then in PHASES:
            self.turn_to(PHASES[then])
        return record

    def settle(self, wait: bool = False) -> None:
        """Reports the steps whose events have passed; with `wait` the others too, by the clock of the host."""
        while self._pending:
            record = self._pending[0]
            has_passed = self.read(record) and is_ready(record.loss)
            if not has_passed and not wait and len(self._pending) <= MOST_PENDING:
                return
            self._pending.popleft()
            if not has_passed:
                record.loss = None
            self.writer.put("step", partial(self.report, record), urgent=False)

    def read(self, record: Record) -> bool:
        """Takes the times of a step from its events, if they have passed."""
        if not record.marks:
            return True
        if self._on_device("has_passed", record.marks) is False:
            return False
        spans, record.marks = self._on_device("seconds", record.marks), []
        if spans:
            record.spans = spans
            record.seconds = sum(span for activity, span in spans.items() if activity not in PHASES)
        return True

    def _on_device(self, call: str, *arguments: Any) -> Any:
        """A device that fails is asked no more: the clock of the host counts from then on."""
        try:
            return None if self.device is None else getattr(self.device, call)(*arguments)
        except Exception:
            self.device = None
            return None

    def report(self, record: Record) -> Dict[str, Any]:
        """What is written of a step; the writer's thread asks."""
        report: Dict[str, Any] = {"step": record.number, "seconds": round(record.seconds, 9)}
        if record.tokens is not None:
            report["tokens"] = record.tokens
        try:
            if record.loss is not None:
                report["loss"] = number(record.loss)
        except Exception:
            pass
        report["breakdown"] = self.breakdown(record)
        report["activities"] = {activity: round(span, 6) for activity, span in record.spans.items() if span >= 5e-7}
        if record.is_sampled:
            report["sampled"] = True
        return report

    def breakdown(self, record: Record) -> Dict[str, float]:
        """Activities as parts. What forward, backward and the host hide is divided as in the latest sample."""
        spans = record.spans
        parts = {
            "storage": spans.get("data", 0.0),
            "optimizer": spans.get("optimizer", 0.0),
            self.communication: spans.get("communication", 0.0),
        }
        rest = unmarked(record)
        if self.sample is None or self.sample[0] <= 0.0:
            parts["compute"] = min(rest, spans.get("forward", 0.0) + spans.get("backward", 0.0))
            # A loop that marks neither may compute in what is left.
            parts["host" if parts["compute"] > 0.0 else "other"] = rest - parts["compute"]
        else:
            usual, shares = self.sample
            known = rest
            self._longer = self._longer + 1 if rest > CHANGED * usual else 0
            if shares.get(self.communication, 0.0) > LITTLE and rest > CHANGED * usual:
                # Ranks wait for each other in here. Whether that or their own work takes longer is not known before the next sample.
                known = usual
                parts["other"] = rest - usual
            for part, share in shares.items():
                parts[part] = parts.get(part, 0.0) + known * share
        return {part: round(seconds, 9) for part, seconds in parts.items() if seconds > 0.0}

    def pause(self, then: str) -> None:
        """What was done since the last mark is part of no step."""
        self._since = self.clock()
        self._on_device("begin", then)

    def close(self) -> None:
        """The end of the program: the last reports are written, with little patience."""
        # A profiler that is still on when PyTorch is torn down brings the process down.
        self.end_sample()
        self.settle(wait=True)
        self.writer.close()

    def end_sample(self) -> None:
        """No step goes on."""
        try:
            if self.sampler is not None:
                self.sampler.discard()
        except Exception:
            self.sampler.is_on = False

    def has_changed(self) -> bool:
        """Whether steps take longer than the one that was sampled."""
        return self._longer >= 5


def is_ready(loss: Any) -> bool:
    """Whether a loss can be read without waiting for a device: those of JAX and of CUDA say so."""
    ask = getattr(loss, "is_ready", None)
    return ask is None or bool(ask())


def unmarked(record: Record) -> float:
    """What is neither data, nor the optimizer, nor marked as communication."""
    marked = sum(record.spans.get(activity, 0.0) for activity in ("data", "optimizer", "communication"))
    return max(0.0, record.seconds - marked)
