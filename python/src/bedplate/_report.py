"""The file of reports: lines are queued by the training loop and written by a thread of their own.

The loop never waits: the queue is bounded, and what does not fit is dropped and counted. Only the thread touches the
file, which may be a pipe without a reader, on a full disk or on a mount that is gone. `docs/report.md` defines the lines.
"""

import json
import math
import os
import threading
import time
from collections import deque
from itertools import count
from operator import itemgetter
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple, Union

VERSION = 1
#: Steps are written this often: waking up costs more than writing.
INTERVAL_S = 0.5
#: Reports that wait at most, other than steps.
MOST_WAITING = 4096
#: Steps that wait at most: readers take no more of one reading.
MOST_STEPS = 32
LONGEST_LINE = 64 << 10
#: What a report says, or what makes it when it is written.
Fields = Union[Dict[str, Any], Callable[[], Dict[str, Any]]]
#: In order, the kind, and the rest.
Waiting = Tuple[int, str, Fields]
encode = json.JSONEncoder(allow_nan=False, default=str, separators=(",", ":")).encode
#: How long the end of a program waits for its last reports, and how long where the file takes nothing.
PATIENCE_S = 5.0
PATIENCE_STUCK_S = 0.5


class Writer:
    """Writes reports to the file `path`; a pipe is written to only while it takes something."""

    def __init__(self, path: str) -> None:
        self.path = path
        #: Reports that were left out: too many wait, or they were no JSON.
        self.dropped = 0
        self._count = count()
        # Of steps and progress the newest matter, of all else the oldest.
        self._steps: Deque[Waiting] = deque(maxlen=MOST_STEPS)
        self._progress: Deque[Waiting] = deque(maxlen=1)
        self._others: Deque[Waiting] = deque()
        self._tasks: Deque[Callable[[], None]] = deque(maxlen=4)
        #: Called at least every `INTERVAL_S`.
        self.tick: Optional[Callable[[], None]] = None
        self._unsent = b""
        self._file: Optional[int] = None
        self._wake = threading.Event()
        self._busy = threading.Lock()
        self._ends = self._is_stuck = False
        self._thread = threading.Thread(target=self._run, name="bedplate-reports", daemon=True)
        self._thread.start()

    def put(self, kind: str, fields: Fields, urgent: bool = True) -> None:
        """Queues a report. One that is not urgent is written within `INTERVAL_S`."""
        waiting = (next(self._count), kind, fields)
        if kind == "progress":
            self._progress.append(waiting)
        elif kind == "step":
            self.dropped += len(self._steps) == MOST_STEPS
            self._steps.append(waiting)
        elif len(self._others) < MOST_WAITING:
            self._others.append(waiting)
        else:
            self.dropped += 1
        if urgent:
            self._wake.set()

    def later(self, task: Callable[[], None]) -> None:
        """Does some work on the writer's thread."""
        self._tasks.append(task)

    def flush(self, timeout: float = PATIENCE_S) -> bool:
        """Waits until everything is written, at most `timeout` seconds; says whether it is."""
        began = time.monotonic()
        while self._queued() or self._unsent or self._tasks or self._busy.locked():
            patience = min(timeout, PATIENCE_STUCK_S) if self._is_stuck else timeout
            if time.monotonic() - began > patience or not self._thread.is_alive():
                return False
            self._wake.set()
            time.sleep(0.005)
        return True

    def close(self) -> None:
        """Writes what is left, with little patience, and ends the thread."""
        self.flush()
        self._ends = True
        self._wake.set()

    def _run(self) -> None:
        while not self._ends:
            self._wake.wait(INTERVAL_S)
            self._wake.clear()
            with self._busy:
                self._work()

    def _work(self) -> None:
        if self.tick is not None:
            try:
                self.tick()
            except Exception:
                self.tick = None
        while self._tasks:
            try:
                self._tasks.popleft()()
            except Exception:
                pass
        # While a reader takes nothing, the queue fills up and then drops: memory stays bounded.
        if not self._unsent and self._queued():
            queues = (self._steps, self._progress, self._others)
            # Another thread may replace what is oldest meanwhile, but takes nothing.
            taken = [queue.popleft() for queue in queues for _ in range(len(queue))]
            self._unsent = b"".join(self._lines(sorted(taken, key=itemgetter(0))))
        try:
            while self._unsent:
                if self._file is None:
                    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
                    self._file = os.open(self.path, flags, 0o600)
                self._unsent = self._unsent[os.write(self._file, self._unsent) :]
            self._is_stuck = False
        except OSError as error:
            self._is_stuck = True
            if self._file is not None and not isinstance(error, BlockingIOError):
                os.close(self._file)
                self._file = None

    def _queued(self) -> int:
        return len(self._steps) + len(self._progress) + len(self._others)

    def _lines(self, reports: List[Waiting]) -> List[bytes]:
        lines = []
        for _, kind, fields in reports:
            try:
                said = fields() if callable(fields) else fields
                line = encode({"version": VERSION, "report": kind, **said}).encode() + b"\n"
            except (TypeError, ValueError, RecursionError):
                line = b""
            if line and len(line) <= LONGEST_LINE:
                lines.append(line)
            else:
                self.dropped += 1
        return lines


def number(loss: Any) -> Any:
    """A loss as JSON has it: it has no word for what is no number."""
    if loss is None:
        return None
    loss = float(loss)
    return loss if math.isfinite(loss) else "nan"
