"""Measures what reporting costs: `python -m bedplate.overhead [--step-ms 50] [--steps 240]`.

The same loop runs with and without reports, in turns, and the processor time of all threads is compared: it bounds what a step
loses, and other programs on the machine disturb it little. With PyTorch the loop trains a small model with every hook, on the GPU if
there is one; otherwise it only marks. A step sleeps for the duration that is asked for, so that reports are written as they are in a job.
"""

import argparse
import json
import os
import sys
import tempfile
from importlib.util import find_spec
from statistics import median
from time import process_time, sleep
from typing import Any, Callable, Dict, Iterable, Tuple

#: Turns of the loop with and without reports.
TURNS = 6

Work = Callable[[], None]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bedplate.overhead", description="Measures what reporting costs.")
    parser.add_argument("--step-ms", type=float, default=50.0, help="duration of a step (50)")
    parser.add_argument("--steps", type=int, default=240, help="steps of each kind (240)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BEDPLATE_REPORT"] = os.path.join(folder, "report")
        found = measure(asked.step_ms / 1e3, max(1, asked.steps // TURNS))
    if asked.json:
        print(json.dumps(found))
        return
    print(f"{found['steps']} steps of {asked.step_ms:g} ms, {found['loop']}")
    print(f"  marks and reports  {found['marks_us']:8.1f} us a step  {found['marks_share']:7.3%}")
    if found["samples_share"]:
        print(f"  profiled steps     {found['sample_ms']:8.1f} ms each    {found['samples_share']:7.3%} at most")
    print(f"  together                               {found['share']:7.3%} of a step")


def measure(step_s: float, steps: int) -> Dict[str, Any]:
    import bedplate

    from . import _job

    has_torch = find_spec("torch") is not None
    (bare, _, _, loop), (work, model, optimizer, _) = (of_torch() if has_torch else plain() for _ in range(2))
    bedplate.watch(model, optimizer)
    recorder = _job.recorder()
    if recorder is None:
        sys.exit("overhead: no reports are written by this process: it is a further rank of a launcher")
    without, with_reports = [], []
    for turn in range(TURNS + 1):
        times = seconds(range(steps), bare, step_s), seconds(bedplate.Steps(range(steps)), work, step_s)
        # The first turn warms up.
        if turn > 0:
            without.append(times[0])
            with_reports.append(times[1])
    marks = max(0.0, median(with_reports) - median(without)) / steps
    found: Dict[str, Any] = {
        "loop": loop,
        "steps": TURNS * steps,
        "step_s": step_s,
        "marks_us": marks * 1e6,
        "marks_share": marks / step_s,
    }
    found.update(sample_ms=0.0, samples_share=0.0)
    if has_torch:
        from ._sample import BUDGET

        found.update(sample_ms=recorder.sampler.cost_s * 1e3, samples_share=BUDGET)
    found["share"] = found["marks_share"] + found["samples_share"]
    return found


def seconds(steps: Iterable[int], work: Work, step_s: float) -> float:
    """Of the processor, for a loop."""
    began = process_time()
    for _ in steps:
        work()
        sleep(step_s)
    return process_time() - began


def plain() -> Tuple[Work, Any, Any, str]:
    return lambda: None, None, None, "a plain loop"


def of_torch() -> Tuple[Work, Any, Any, str]:
    import torch

    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(8, 64, device=device)

    def work() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return work, model, optimizer, f"a loop of PyTorch on {device}"


if __name__ == "__main__":
    main()
