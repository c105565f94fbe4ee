"""Plain loops of PyTorch with two ranks on Gloo: what is reported is what happened."""

import unittest
from .job import InJob, free_port, missing, share, steps

#: Rank 1 computes for longer than rank 0, which waits for it.
LOOP = """
    import os, time, torch, bedplate
    import torch.distributed as dist
    bedplate.install_flight()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    class Model(torch.nn.Sequential):
        def forward(self, inputs):
            if dist.get_rank() == 1:
                time.sleep(0.05)
            return super().forward(inputs)
    model = Model(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    loader = [torch.randn(8, 64)] * 40
    optimizer = torch.optim.AdamW(model.parameters())
    """
DDP = """
    model = torch.nn.parallel.DistributedDataParallel(model)
    for batch in (steps := bedplate.Steps(loader, model=model, optimizer=optimizer)):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.loss = loss
    """
OWN = """
    model, loader = model.module, loader[:12]
    for batch in (steps := bedplate.Steps(loader, model=model, optimizer=optimizer)):
        model(batch).square().mean().backward()
        work = [dist.all_reduce(each.grad, async_op=True) for each in model.parameters()]
        for each in work:
            each.wait()
        dist.all_reduce(torch.ones(1))
        optimizer.step()
    """
SHARDED = """
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in (steps := bedplate.Steps(loader, model=model, optimizer=optimizer)):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    """


@unittest.skipIf(missing("torch"), missing("torch") or "")
class Torch(InJob):
    def test_the_rank_that_waits_is_told_from_the_one_that_computes(self) -> None:
        ranks = self.run_ranks(2, free_port(), LOOP + DDP + OWN + SHARDED)
        first, last = steps(ranks[0])[0], steps(ranks[0])[-1]
        self.assertEqual(last["step"], 64)
        self.assertIsInstance(first["loss"], float)
        self.assertIn("optimizer", first["breakdown"])
        # One step was profiled; what is not marked in those after it is divided as in that one.
        self.assertEqual([next(step["step"] for step in steps(rank) if step.get("sampled")) for rank in ranks], [21, 21])
        self.assertNotIn("memory", first["breakdown"])
        self.assertIn("memory", last["breakdown"])
        for kind, begins, ends in (("DDP", 2, 40), ("its own collectives", 42, 52), ("shards", 54, 64)):
            with self.subTest(kind):
                waits, computes = ([step for step in steps(rank) if begins < step["step"] <= ends] for rank in ranks)
                self.assertGreater(share(waits, "scale_up"), 1.5 * share(computes, "scale_up"), (waits[-1], computes[-1]))
        for step in steps(ranks[0]) + steps(ranks[1]):
            self.assertAlmostEqual(sum(step["breakdown"].values()), step["seconds"], places=6)

    def test_a_program_that_profiles_itself_is_not_disturbed(self) -> None:
        reports = self.run_rank(
            """
            import torch, bedplate
            from torch.profiler import profile, ProfilerActivity
            model = torch.nn.Linear(8, 8)
            for number, _ in enumerate(bedplate.Steps(range(30), model=model)):
                if number == 20:
                    # In the middle of a step that is sampled.
                    mine = profile(activities=[ProfilerActivity.CPU])
                    mine.start()
                model(torch.ones(8)).sum().backward()
                if number == 21:
                    mine.stop()
                    assert "aten::linear" in {each.key for each in mine.key_averages()}
            """
        )
        self.assertEqual(len(steps(reports)), 30)

    def test_a_loop_and_a_program_may_end_within_a_step_that_is_sampled(self) -> None:
        reports = self.run_rank(
            """
            import torch, bedplate
            model = torch.nn.Linear(8, 8)
            def loop(count):
                for number in bedplate.Steps(range(count), model=model):
                    model(torch.ones(8)).sum().backward()
                    if number == 20:
                        assert torch.autograd._profiler_enabled()
                        raise SystemExit(0)
            loop(20)
            assert not torch.autograd._profiler_enabled()
            bedplate._job.recorder().sampler.steps = 0
            loop(30)
            """
        )
        self.assertEqual(len(steps(reports)), 40)

    def test_an_engine_steps_itself_and_an_evaluation_is_no_forward_pass(self) -> None:
        reports = self.run_rank(
            """
            import time, torch, bedplate
            class Engine(torch.nn.Linear):
                def backward(self, loss):
                    loss.backward()
                def step(self):
                    time.sleep(0.02)
            engine = Engine(8, 8)
            for _ in bedplate.Steps(range(5), model=engine):
                engine.backward(engine(torch.ones(8)).sum())
                engine.step()
                with bedplate.evaluating(), torch.no_grad():
                    engine(torch.ones(8))
            """
        )
        self.assertTrue(all(step["breakdown"]["optimizer"] >= 0.02 for step in steps(reports)), reports)
        self.assertTrue(all(step["activities"]["evaluate"] > 0 for step in steps(reports)), reports)
