"""Steps as events of a GPU tell them, with a GPU that a test plays."""

import sys
from typing import Any, Dict, List, Tuple
from unittest import TestCase

from .job import SOURCES

sys.path.insert(0, str(SOURCES))

from bedplate._steps import MOST_PENDING, Recorder  # noqa: E402


class Said:
    """What a writer was given, as it would be written."""

    def __init__(self) -> None:
        self.reports: List[Dict[str, Any]] = []

    def put(self, kind: str, fields: Any, urgent: bool = True) -> None:
        self.reports.append({"report": kind, **(fields() if callable(fields) else fields)})

    def close(self) -> None:
        pass

    def steps(self) -> List[Dict[str, Any]]:
        return [report for report in self.reports if report["report"] == "step"]


class Gpu:
    """Its work is `behind` steps late, and takes twice as long as the host takes to queue it."""

    def __init__(self, clock: Any, behind: int) -> None:
        self.clock, self.behind, self.ended = clock, behind, 0
        self.marks: List[Tuple[str, float]] = []

    def begin(self, activity: str) -> None:
        self.marks = [(activity, self.clock())]

    def mark(self, activity: str) -> None:
        self.marks.append((activity, self.clock()))

    def end_step(self, then: str) -> Any:
        self.mark(then)
        marks, self.marks = self.marks, self.marks[-1:]
        self.ended += 1
        return [self.ended, marks]

    def read_later(self, loss: Any) -> Any:
        return loss

    def has_passed(self, marks: Any) -> bool:
        return bool(self.ended - marks[0] >= self.behind)

    def seconds(self, marks: Any) -> Dict[str, float]:
        spans: Dict[str, float] = {}
        for (activity, at), (_, following) in zip(marks[1], marks[1][1:]):
            spans[activity] = spans.get(activity, 0.0) + 2.0 * (following - at)
        return spans


class Sampler:
    """Counts the samples that were given up."""

    def __init__(self) -> None:
        self.discarded = 0

    def discard(self) -> None:
        self.discarded += 1


class Steps(TestCase):
    def run_steps(self, count: int, behind: int, broken: str = "") -> Tuple[Recorder, Said]:
        now = [0.0]
        said = Said()
        recorder = Recorder(said, clock=lambda: now[0])  # type: ignore[arg-type]
        recorder.device = Gpu(recorder.clock, behind)
        if broken:
            setattr(recorder.device, broken, lambda *_: 1 / 0)
        recorder.begin("data")
        for _ in range(count):
            for activity, seconds in (("data", 1.0), ("forward", 2.0), ("backward", 4.0), ("save", 8.0)):
                recorder.switch(activity)
                now[0] += seconds
            recorder.end_step(then="data")
        return recorder, said

    def test_a_step_is_reported_when_its_events_have_passed(self) -> None:
        recorder, said = self.run_steps(5, behind=1)
        self.assertEqual([step["step"] for step in said.steps()], [1, 2, 3, 4])
        self.assertEqual({step["seconds"] for step in said.steps()}, {14.0})
        self.assertEqual(said.steps()[0]["breakdown"], {"storage": 2.0, "compute": 12.0})
        self.assertEqual(said.reports[-1]["report"], "step")
        self.assertIn({"report": "progress", "step": 5}, said.reports)
        recorder.close()
        self.assertEqual((said.steps()[-1]["step"], said.steps()[-1]["seconds"]), (5, 7.0))

    def test_a_gpu_far_behind_is_not_waited_for(self) -> None:
        _, said = self.run_steps(2 * MOST_PENDING, behind=1000)
        self.assertEqual(len(said.steps()), MOST_PENDING)
        self.assertEqual({step["seconds"] for step in said.steps()}, {7.0})

    def test_a_gpu_that_fails_leaves_the_clock_of_the_host(self) -> None:
        for broken in ("begin", "mark", "end_step", "read_later", "has_passed", "seconds"):
            _, said = self.run_steps(3, behind=0, broken=broken)
            self.assertEqual([step["seconds"] for step in said.steps()], [7.0, 7.0, 7.0], broken)

    def test_between_samples_a_longer_step_is_put_down_to_nothing_where_ranks_wait_in_it(self) -> None:
        for waits, expected in ((0.5, {"compute": 3.0, "scale_up": 3.0, "other": 4.0}), (0.0, {"compute": 10.0})):
            recorder, said = self.run_steps(0, 0)
            recorder.device = None
            recorder.sample = (6.0, {"compute": 1.0 - waits, "scale_up": waits})
            recorder._spans = {"forward": 10.0}
            recorder.end_step()
            self.assertEqual(said.steps()[0]["breakdown"], expected)

    def test_an_evaluation_and_the_end_of_the_program_end_a_sample(self) -> None:
        recorder, _ = self.run_steps(1, 0)
        recorder.sampler = Sampler()
        recorder.switch("forward")
        self.assertEqual(recorder.sampler.discarded, 0)
        recorder.switch("evaluate")
        self.assertEqual(recorder.sampler.discarded, 1)
        recorder.close()
        self.assertEqual(recorder.sampler.discarded, 2)
