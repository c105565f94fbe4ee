"""A rank whose steps do not go on says so once, with its stack, and again when they do."""

import json
import sys
import unittest
from typing import Any, Callable, Dict, List

from .job import SOURCES, InJob, of_kind

sys.path.insert(0, str(SOURCES))

from bedplate._stall import Watch, ranges  # noqa: E402


class Stalls(InJob):
    def test_a_loop_that_stands_says_where_and_when_it_goes_on(self) -> None:
        process = self.start(
            """
            import time, bedplate
            def wait_for_a_lock():
                time.sleep(6)
            for number in bedplate.Steps(range(60)):
                time.sleep(0.02)
                if number == 40:
                    wait_for_a_lock()
            """,
            rank=3,
            RANK="3",
            WORLD_SIZE="4",
        )
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, err)
        lines = [report["line"] for report in of_kind(self.reports(3), "log")]
        self.assertEqual(lines, err.splitlines(), "what is reported is what is printed")
        self.assertRegex(lines[0], r"^bedplate: no step for [\d.]+ s \{")
        self.assertRegex(lines[1], r"^bedplate: rank 3 goes on after [\d.]+ s$")
        said = json.loads(lines[0][lines[0].index("{") :])
        self.assertTrue(said["stack"][0].startswith("wait_for_a_lock ("), said)
        group = {"name": "the job", "ranks": "0-3", "number": 40, "call": "communication of step", "waits": False}
        self.assertEqual(said["groups"], [group])

    def test_slow_steps_evaluations_and_starts_are_no_stalls(self) -> None:
        said: List[str] = []
        clock = [0.0]
        watch = Watch(Loop(said), lambda: clock[0])

        def passes(seconds: float, steps: int = 0) -> None:
            clock[0] += seconds
            watch.recorder.number += steps
            watch.tick()

        passes(1000.0)
        for _ in range(10):
            passes(4.0, 1)
        passes(39.0)
        self.assertEqual(said, [])
        watch.recorder.activity = "evaluate"
        passes(60.0)
        self.assertEqual(said, [])
        watch.recorder.activity = "host"
        passes(1.0, 1)
        passes(41.0)
        passes(41.0)
        self.assertEqual(len(said), 1)
        self.assertEqual([ranges([0, 1, 2]), ranges([1, 5, 9]), ranges([0, 3, 5]), ranges([7])], ["0-2", "1-9:4", "0,3,5", "7"])


class Loop:
    """A recorder as far as a watch looks at it."""

    def __init__(self, said: List[str]) -> None:
        self.number, self.activity, self.call, self.thread = 0, "host", "", 0
        self.writer = Lines(said)


class Lines:
    def __init__(self, said: List[str]) -> None:
        self.put: Callable[[str, Dict[str, Any]], None] = lambda kind, fields: said.append(fields["line"])


if __name__ == "__main__":
    unittest.main()
