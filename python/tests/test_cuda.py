"""A loop on an NVIDIA GPU: its own times, without waiting for it."""

import os
import unittest

from .job import InJob, missing, share, steps

LOOP = """
    import time, torch, bedplate
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(16))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = torch.randn(8192, 4096, device="cuda")
    for _ in range(3):
        model(batch).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    """


def no_gpu() -> str:
    if missing("torch"):
        return missing("torch") or ""
    import torch

    return "" if torch.cuda.is_available() else "SKIPPED: there is no GPU"


@unittest.skipIf(no_gpu(), no_gpu())
class Cuda(InJob):
    def environment(self, **more: str) -> "dict[str, str]":
        return super().environment(CUDA_VISIBLE_DEVICES=os.environ.get("CUDA_VISIBLE_DEVICES", "0"), **more)

    def test_steps_are_those_of_the_gpu_and_nothing_waits_for_it(self) -> None:
        path = self.folder / "wall"
        reports = self.run_rank(
            LOOP
            + f"""
    torch.cuda.set_sync_debug_mode("error")
    steps = bedplate.Steps(range(60), model=model, optimizer=optimizer)
    for number in steps:
        if number == 30:
            torch.cuda.set_sync_debug_mode("default")
            torch.cuda.synchronize()
            began = time.perf_counter()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.loss = loss
    torch.cuda.synchronize()
    open({str(path)!r}, "w").write(str(time.perf_counter() - began))
    """
        )
        self.assertEqual([step["step"] for step in steps(reports)], list(range(1, 61)))
        self.assertTrue(all(step["loss"] >= 0 for step in steps(reports)))
        wall, told = float(path.read_text()), sum(step["seconds"] for step in steps(reports)[30:])
        self.assertLess(abs(told - wall), 0.1 * wall, (told, wall))
        self.assertGreater(share(reports[40:], "compute"), 0.5, reports[-1])
        self.assertGreater(share(reports[40:], "optimizer"), 0.0, reports[-1])
        self.assertGreater(share(reports[40:], "memory"), 0.0, reports[-1])
        self.assertEqual([step["step"] for step in steps(reports) if step.get("sampled")], [21])
        print(reports[-1])

    def test_a_loader_that_the_gpu_waits_for_shows_and_one_that_is_hidden_does_not(self) -> None:
        for sleep, least, most in ((0.0, 0.0, 0.1), (0.2, 0.3, 1.0)):
            reports = self.run_rank(
                LOOP
                + f"""
    def loader():
        for number in range(15):
            time.sleep({sleep})
            yield number
    for _ in bedplate.Steps(loader(), model=model, optimizer=optimizer):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
            )
            self.assertGreaterEqual(share(reports, "storage"), least, reports[-1])
            self.assertLessEqual(share(reports, "storage"), most, reports[-1])

    def test_a_graph_that_is_captured_within_a_step_is_left_alone(self) -> None:
        reports = self.run_rank(
            LOOP
            + """
    graph = torch.cuda.CUDAGraph()
    for number in bedplate.Steps(range(6), model=model):
        if number == 2:
            with torch.cuda.graph(graph):
                model(batch)
        graph.replay() if number > 2 else model(batch)
    """
        )
        self.assertEqual(len(steps(reports)), 6)
