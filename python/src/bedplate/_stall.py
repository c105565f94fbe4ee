"""Says that this rank does not get on, which call it waits in, and where its program stands.

The thread that writes reports looks twice a second whether steps go on. When none has ended for much longer than usual, one
line tells the state of this rank's process groups, by PyTorch's flight recorder where it is on, and the stack of the loop. The lines of
all ranks together show who is waited for: `bedplate diagnose` and the control plane read them. Nothing is done while steps go on.
"""

import json
import os
import sys
from collections import deque
from statistics import median
from time import perf_counter
from typing import Any, Callable, Deque, Dict, List, Optional

from ._steps import PHASES

#: No step for this many usual ones, and this many times the longest pause between steps, is a stall.
STEPS = 10
PAUSES = 3
LEAST_S = 3.0
#: Evaluating and saving may take this long, unless they took longer before.
LEAST_PHASE_S = 120.0
#: Steps that must have been seen before silence means something.
FEWEST = 5
#: What the readers of the line take.
LONGEST = 1000
MOST_GROUPS = 8


class Watch:
    """Whether the steps of a recorder go on."""

    def __init__(self, recorder: Any, clock: Callable[[], float] = perf_counter) -> None:
        self.recorder, self.clock = recorder, clock
        self.number: int = recorder.number
        self.since = clock()
        self.seen = 0
        self.gaps: Deque[float] = deque(maxlen=64)
        self.longest = self.longest_phase = 0.0
        self.in_phase = False
        self.told = False

    def tick(self) -> None:
        """To be called again and again."""
        now, number = self.clock(), self.recorder.number
        silent = now - self.since
        if number != self.number:
            self._goes_on(number - self.number, silent)
            self.number, self.since, self.in_phase = number, now, False
            return
        self.in_phase = self.in_phase or self.recorder.activity in PHASES
        if not self.told and self.seen >= FEWEST and silent > self.allowed():
            self.told = True
            self._tell(silent)

    def allowed(self) -> float:
        if self.in_phase:
            return max(LEAST_PHASE_S, PAUSES * self.longest_phase)
        return max(LEAST_S, STEPS * median(self.gaps), PAUSES * self.longest) if self.gaps else float("inf")

    def _goes_on(self, steps: int, silent: float) -> None:
        if self.told:
            self.told = False
            self._say(f"bedplate: rank {rank()} goes on after {silent:.1f} s")
        elif self.in_phase:
            self.longest_phase = max(self.longest_phase, silent)
        elif steps > 0 and self.seen > 0:
            self.gaps.append(silent / steps)
            self.longest = max(self.longest, silent)
        self.seen += max(1, steps)

    def _tell(self, silent: float) -> None:
        said: Dict[str, Any] = {"rank": rank(), "groups": groups(self.recorder), "stack": stack(self.recorder.thread)}
        while True:
            line = f"bedplate: no step for {silent:.1f} s {json.dumps(said, separators=(',', ':'))}"
            if len(line) <= LONGEST:
                break
            if said["stack"]:
                said["stack"].pop()
            elif said["groups"]:
                said["groups"].pop()
            else:
                return
        self._say(line)

    def _say(self, line: str) -> None:
        self.recorder.writer.put("log", {"line": line})
        if sys.stderr is not None:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()


def rank() -> int:
    number = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
    return int(number) if number.isdigit() else 0


def stack(thread: int) -> List[str]:
    """Where a thread stands, the innermost frame first; of libraries only the innermost."""
    frame: Any = sys._current_frames().get(thread)
    found: List[str] = []
    while frame is not None and len(found) < 8:
        file = frame.f_code.co_filename
        if not found or not is_library(file):
            found.append(f"{frame.f_code.co_name} ({short(file)}:{frame.f_lineno})")
        frame = frame.f_back
    return found


def is_library(file: str) -> bool:
    return "site-packages" in file or "dist-packages" in file or f"lib{os.sep}python" in file or file.startswith("<")


def short(file: str) -> str:
    return os.sep.join(file.split(os.sep)[-3:])


def groups(recorder: Any) -> List[Dict[str, Any]]:
    """What this rank asked of its process groups last, those first in which it waits."""
    try:
        found = of_flight_recorder()
    except Exception:
        found = []
    found = found or of_marks(recorder)
    return sorted(found, key=lambda group: not group["waits"])[:MOST_GROUPS]


def of_flight_recorder() -> List[Dict[str, Any]]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return []
    from torch._C import _distributed_c10d as native

    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(native, name, None)
        record = json.loads(dump()) if dump is not None else {}
        if record.get("entries"):
            return of_record(record)
    return []


def of_record(record: Dict[str, Any]) -> List[Dict[str, Any]]:
    found = []
    names: Dict[str, str] = {}
    calls: Dict[str, Dict[int, str]] = {}
    for entry in record["entries"]:
        if not entry.get("is_p2p"):
            number = str(entry.get("pg_id"))
            names[number] = str(entry["process_group"][1] or entry["process_group"][0])
            calls.setdefault(number, {})[int(entry["collective_seq_id"])] = entry["profiling_name"].split(":", 1)[-1]
    members = {str(each.get("desc") or name or "default_pg"): each["ranks"] for name, each in record["pg_config"].items()}
    for number, status in record["pg_status"].items():
        if number not in calls:
            continue
        # JSON has these as text, pickles as numbers.
        made, done = int(status["last_enqueued_collective"]), int(status["last_completed_collective"])
        ranks = members.get(names[number], "[]")
        found.append(
            {
                "name": names[number],
                "ranks": ranges(json.loads(ranks) if isinstance(ranks, str) else ranks),
                "number": made,
                "done": done,
                "call": calls[number].get(done + 1) or calls[number].get(made, "call"),
                "waits": made > done,
            }
        )
    return found


def of_marks(recorder: Any) -> List[Dict[str, Any]]:
    """Without a flight recorder: whether the loop waits for other ranks in this step."""
    world = os.environ.get("WORLD_SIZE", "1")
    if not world.isdigit() or int(world) < 2:
        return []
    waits = recorder.activity == "communication"
    call = f"{recorder.call} of step" if waits and recorder.call else "communication of step"
    number = recorder.number + waits
    return [{"name": "the job", "ranks": f"0-{int(world) - 1}", "number": number, "call": call, "waits": waits}]


def ranges(ranks: List[int]) -> str:
    """`0-3`, `0-12:4`, `0,3,5`."""
    if len(ranks) > 2:
        step = ranks[1] - ranks[0]
        if step > 0 and ranks == list(range(ranks[0], ranks[-1] + 1, step)):
            return f"{ranks[0]}-{ranks[-1]}" + (f":{step}" if step > 1 else "")
    return ",".join(map(str, ranks))


def watch(recorder: Any) -> Optional[Watch]:
    """Watches a recorder by the thread that writes its reports."""
    if os.environ.get("BEDPLATE_STALLS", "1") == "0":
        return None
    watch = Watch(recorder)
    recorder.writer.tick = watch.tick
    return watch
