"""What the package writes in a job, and that it does nothing outside of one and harms nothing in one."""

import os
import subprocess
import sys
import textwrap

from typing import List

from .job import InJob, Report, of_kind, steps


class Reports(InJob):
    def test_a_loop_of_batches_reports_steps_that_add_up(self) -> None:
        reports = self.run_rank(
            """
            import time, bedplate
            def loader():
                for number in range(6):
                    time.sleep(0.02)
                    yield number
            steps = bedplate.Steps(loader(), batches_per_step=2, tokens_per_step=100)
            for batch in steps:
                with bedplate.part("forward"):
                    time.sleep(0.01)
                steps.loss = batch
            """
        )
        self.assertEqual([step["step"] for step in steps(reports)], [1, 2, 3])
        self.assertEqual([step["tokens"] for step in steps(reports)], [100, 200, 300])
        self.assertEqual([step["loss"] for step in steps(reports)], [1, 3, 5])
        for step in steps(reports):
            self.assertAlmostEqual(sum(step["breakdown"].values()), step["seconds"], places=6)
            self.assertGreaterEqual(step["breakdown"]["storage"], 0.04)
            self.assertGreaterEqual(step["breakdown"]["compute"], 0.02)

    def test_saving_and_evaluating_are_phases_and_part_of_no_step(self) -> None:
        reports = self.run_rank(
            """
            import time, bedplate
            for number in range(2):
                with bedplate.step() as step:
                    step.loss = float("nan")
                with bedplate.evaluating():
                    time.sleep(0.1)
                with bedplate.saving(number + 1, f"/c/{number + 1}"):
                    time.sleep(0.1)
            try:
                with bedplate.saving(9):
                    raise OSError("the disk is full")
            except OSError:
                bedplate.phase("done")
            """
        )
        each = ["training", "evaluating", "training", "saving"]
        self.assertEqual(
            [each["phase"] for each in of_kind(reports, "phase")], each + each + ["training", "saving", "training", "done"]
        )
        self.assertEqual([(each["step"], each["path"]) for each in of_kind(reports, "checkpoint")], [(1, "/c/1"), (2, "/c/2")])
        self.check_without_phases(reports)

    def check_without_phases(self, reports: List[Report]) -> None:
        """Each step but the first follows an evaluation, which it does not count."""
        for step in steps(reports)[1:]:
            phases = {name: step["activities"].pop(name) for name in ("evaluate", "save") if name in step["activities"]}
            self.assertIn("evaluate", phases)
            self.assertAlmostEqual(sum(step["activities"].values()), step["seconds"], places=4)

    def test_a_restarted_job_goes_on_counting(self) -> None:
        program = """
            import bedplate
            assert bedplate.resume() == (40, "/c/40")
            with bedplate.step():
                pass
            """
        reports = self.run_rank(program, BEDPLATE_CHECKPOINT_STEP="40", BEDPLATE_CHECKPOINT_PATH="/c/40")
        self.assertEqual([step["step"] for step in steps(reports)], [41])

    def test_what_is_no_report_is_dropped_and_counted(self) -> None:
        reports = self.run_rank(
            """
            import bedplate
            loop = []
            loop.append(loop)
            bedplate.report("step", step=1, seconds=float("inf"))
            bedplate.report("step", step=1, seconds=loop)
            bedplate.report("log", line="x" * 100_000)
            bedplate.progress(7)
            assert bedplate.flush(10) and bedplate.dropped() == 3, bedplate.dropped()
            """
        )
        self.assertEqual([report["report"] for report in reports], ["progress"])

    def test_of_fast_steps_the_newest_are_written(self) -> None:
        reports = self.run_rank(
            """
            import bedplate
            for batch in bedplate.Steps(range(100_000)):
                pass
            """
        )
        self.assertEqual(steps(reports)[-1]["step"], 100_000)
        self.assertLess(len(steps(reports)), 50_000)

    def test_a_pipe_without_a_reader_and_a_stopped_reader_hold_nothing_up(self) -> None:
        for reader in ("None", "os.open(path, os.O_RDONLY | os.O_NONBLOCK)"):
            path = self.folder / "report-0"
            os.mkfifo(path)
            out = self.end(
                self.start(
                    f"""
                    import os, bedplate
                    path = os.environ["BEDPLATE_REPORT"]
                    reader = {reader}
                    for number in range(20_000):
                        bedplate.report("log", line="x" * 1000)
                    print(bedplate.dropped())
                    """
                )
            )
            self.assertGreater(int(out), 0)
            path.unlink()

    def test_a_file_that_cannot_be_written_harms_nothing(self) -> None:
        program = """
            import bedplate
            with bedplate.step():
                pass
            bedplate.progress("seven")
            """
        for path in ("/dev/full", "/nowhere/report", str(self.folder)):
            process = self.start(program, BEDPLATE_REPORT=path)
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, err)
            self.assertEqual(err.count("bedplate: a report failed: ValueError"), 1, err)

    def test_each_call_of_a_function_may_be_a_step(self) -> None:
        reports = self.run_rank(
            """
            import time, bedplate
            def train_step(number):
                return number + 1
            def evaluate():
                time.sleep(0.05)
            train_step, evaluate = bedplate.step()(train_step), bedplate.part("evaluate")(evaluate)
            for number in range(3):
                assert train_step(number) == number + 1
                evaluate()
            """
        )
        self.assertEqual([step["step"] for step in steps(reports)], [1, 2, 3])
        self.check_without_phases(reports)

    def test_errors_of_the_loop_go_through(self) -> None:
        process = self.start(
            """
            import bedplate
            with bedplate.step(), bedplate.part("forward"):
                raise KeyError("theirs")
            """
        )
        self.assertIn("KeyError: 'theirs'", process.communicate(timeout=60)[1])
        self.assertEqual(steps(self.reports()), [])

    def test_forked_children_and_further_ranks_of_a_launcher_report_nothing(self) -> None:
        program = """
            import os, bedplate
            with bedplate.step():
                pass
            if os.fork() == 0:
                with bedplate.step():
                    pass
                bedplate.progress(99)
                assert not bedplate.is_active() and bedplate.flush()
                os._exit(0)
            assert os.wait()[1] == 0
            """
        self.assertEqual(len(steps(self.run_rank(program))), 1)
        (self.folder / "report-0").unlink()
        self.end(self.start(program, TORCHELASTIC_RUN_ID="1", LOCAL_RANK="1"))
        self.assertFalse((self.folder / "report-0").exists())

    def test_outside_of_a_job_nothing_is_imported_started_or_written(self) -> None:
        program = """
            import sys, threading
            before = set(sys.modules)
            import bedplate
            steps = bedplate.Steps([1, 2], model=object(), optimizer=object())
            assert list(steps) == [1, 2] and len(steps) == 2
            with bedplate.step() as step, bedplate.part("forward"):
                step.loss = 1
            with bedplate.saving(1, "/c/1"):
                pass
            bedplate.install_flight()
            bedplate.watch(object(), object())
            bedplate.report("step", step=1, seconds=1)
            bedplate.progress(1)
            assert bedplate.flush() and bedplate.dropped() == 0 and bedplate.resume() is None
            assert threading.active_count() == 1
            new = {name for name in sys.modules if name.startswith("bedplate")}
            assert new == {"bedplate", "bedplate._job"}, new
            assert not {"json", "threading", "torch"} & (set(sys.modules) - before) - {"threading"}
            """
        subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=self.environment(), cwd=self.folder, check=True)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_signal_shows_where_a_rank_stands(self) -> None:
        process = self.start(
            """
            import os, signal, bedplate
            bedplate.install_flight()
            def stuck_here():
                os.kill(os.getpid(), signal.SIGUSR1)
            stuck_here()
            print(os.environ["TORCH_FR_DUMP_TEMP_FILE"])
            """
        )
        out, err = process.communicate(timeout=60)
        self.assertIn("in stuck_here", err)
        self.assertEqual(out.strip(), str(self.folder / "nccl_trace_rank_"))
