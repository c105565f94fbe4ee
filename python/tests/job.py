"""Programs as they run in a job: each rank with a report file of its own."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path
from typing import Any, Dict, List, Optional

SOURCES = Path(__file__).resolve().parent.parent / "src"
#: Where reports are kept for the test that reads them as the cluster does.
KEPT = os.environ.get("BEDPLATE_TEST_REPORTS")
#: Generous: a machine may be slow, and a test that hangs must end.
DEADLINE_S = 300

Report = Dict[str, Any]


class InJob(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bedplate-python-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def environment(self, **more: str) -> Dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("BEDPLATE_", "TORCH", "PYTHON"))}
        quiet = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        return {**own, **quiet, "PYTHONPATH": str(SOURCES), **more}

    def start(self, program: str, rank: int = 0, **more: str) -> "subprocess.Popen[str]":
        path = self.folder / "program.py"
        path.write_text(textwrap.dedent(program))
        report = {"BEDPLATE_REPORT": str(self.folder / f"report-{rank}"), **more}
        return subprocess.Popen(
            [sys.executable, str(path)],
            env=self.environment(**report),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, process: "subprocess.Popen[str]") -> str:
        """The output of a program that succeeds."""
        try:
            out, err = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            self.fail(f"no end within {DEADLINE_S} s: {err[-4000:]}")
        self.assertEqual(process.returncode, 0, err[-4000:])
        self.assertNotIn("bedplate: ", err)
        return out

    def run_rank(self, program: str, **more: str) -> List[Report]:
        self.end(self.start(program, **more))
        return self.reports()

    def run_ranks(self, ranks: int, port: int, program: str, **more: str) -> List[List[Report]]:
        shared = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        started = [self.start(program, rank, RANK=str(rank), LOCAL_RANK=str(rank), **shared, **more) for rank in range(ranks)]
        for process in started:
            self.end(process)
        return [self.reports(rank) for rank in range(ranks)]

    def reports(self, rank: int = 0) -> List[Report]:
        path = self.folder / f"report-{rank}"
        if KEPT:
            shutil.copy(path, Path(KEPT) / f"{self.id()}-{rank}")
        return [json.loads(line) for line in path.read_text().splitlines()]


def of_kind(reports: List[Report], kind: str) -> List[Report]:
    return [report for report in reports if report["report"] == kind]


def steps(reports: List[Report]) -> List[Report]:
    return of_kind(reports, "step")


def share(reports: List[Report], part: str) -> float:
    """The share of a part of all steps."""
    counted = steps(reports)
    return sum(step["breakdown"].get(part, 0.0) for step in counted) / sum(step["seconds"] for step in counted)


def free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def missing(module: str) -> Optional[str]:
    """Why a test of a framework is skipped."""
    from importlib.util import find_spec

    return None if find_spec(module) else f"SKIPPED: {module} is not installed; ./test installs it into target/torch"
