"""The job that this process belongs to, if any, and the promise that reporting harms nothing.

Outside of a job, that is without `BEDPLATE_REPORT`, there is no recorder, and every function of the package returns at once.
"""

import functools
import os
import sys
from typing import Any, Callable, Optional, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

#: Errors of our own after which this process reports nothing more.
MOST_ERRORS = 10

_recorder: Any = None
_errors = 0
_is_known = False


def recorder() -> Any:
    """The recorder of this process; `None` outside of a job."""
    global _recorder, _is_known
    if not _is_known:
        _is_known = True
        _recorder = _start()
    return _recorder


def _start() -> Any:
    path = os.environ.get("BEDPLATE_REPORT")
    # A launcher such as torchrun starts several ranks in one task, which has one file: the first of them reports.
    is_further = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("LOCAL_RANK", "0") != "0"
    if not path or is_further:
        return None
    try:
        from ._report import Writer
        from ._steps import Recorder

        os.register_at_fork(after_in_child=forget)
        started = Recorder(Writer(path), start=resumed_step())
        started.communication = "scale_up" if is_one_node() else "scale_out"
        from . import _stall

        _stall.watch(started)
        return started
    except Exception as error:
        complain(error)
        return None


def resumed_step() -> int:
    step = os.environ.get("BEDPLATE_CHECKPOINT_STEP", "")
    return int(step) if step.isdigit() else 0


def is_one_node() -> bool:
    world, local = os.environ.get("WORLD_SIZE", "1"), os.environ.get("LOCAL_WORLD_SIZE")
    return world == "1" or world == local


def forget() -> None:
    """A forked child, such as a worker of a data loader, reports nothing."""
    global _recorder, _is_known
    _recorder, _is_known = None, True


def harmless(function: Function) -> Function:
    """A function that never raises. Errors are told once; after many of them this process reports nothing more."""

    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except Exception as error:
            complain(error)
            return None

    return wrapped  # type: ignore[return-value]


def complain(error: BaseException) -> None:
    global _errors
    _errors += 1
    if _errors >= MOST_ERRORS:
        forget()
    if _errors in (1, MOST_ERRORS) and sys.stderr is not None:
        ends = "; nothing more is reported" if _errors == MOST_ERRORS else ""
        try:
            sys.stderr.write(f"bedplate: a report failed: {type(error).__name__}: {error}{ends}\n")
        except (OSError, ValueError):
            pass
