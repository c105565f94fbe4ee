"""Trainers of others, with tiny models."""

import unittest

from .job import InJob, missing, of_kind, share, steps

TINY = """
    import os, torch
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 48
        def __getitem__(self, at):
            row = torch.full((8,), at % 32)
            return {"input_ids": row, "labels": row}
    """


class Trainers(InJob):
    @unittest.skipIf(missing("transformers"), missing("transformers") or "")
    def test_hugging_face_trainer(self) -> None:
        program = (
            TINY
            + """
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
    from bedplate.huggingface import BedplateCallback
    config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
    arguments = TrainingArguments(
        "out", max_steps=12, per_device_train_batch_size=2, gradient_accumulation_steps=2, logging_steps=4, save_steps=6,
        eval_strategy="steps", eval_steps=6, report_to=[], use_cpu=True, disable_tqdm=True,
    )
    Trainer(
        LlamaForCausalLM(config), arguments, train_dataset=Rows(), eval_dataset=Rows(), callbacks=[BedplateCallback()]
    ).train()
    """
        )
        reports = self.run_rank(program)
        self.check_steps(reports, 12)
        self.assertEqual([step["step"] for step in steps(reports) if "loss" in step], [4, 8, 12])
        phases = [each["phase"] for each in of_kind(reports, "phase")]
        self.assertEqual(phases, ["training"] + 2 * ["evaluating", "saving", "training"] + ["done"])
        saved = [(each["step"], each["path"]) for each in of_kind(reports, "checkpoint")]
        self.assertEqual(saved, [(6, str(self.folder / "out/checkpoint-6")), (12, str(self.folder / "out/checkpoint-12"))])

    @unittest.skipIf(missing("lightning"), missing("lightning") or "")
    def test_lightning(self) -> None:
        program = (
            TINY
            + """
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from bedplate.lightning import BedplateCallback
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Embedding(32, 16), torch.nn.Linear(16, 32))
        def loss(self, batch):
            return torch.nn.functional.cross_entropy(self.layers(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
        def training_step(self, batch, at):
            return self.loss(batch)
        def validation_step(self, batch, at):
            self.loss(batch)
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())
    loader = torch.utils.data.DataLoader(Rows(), batch_size=2)
    lightning.Trainer(
        max_steps=12, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        accumulate_grad_batches=2, val_check_interval=12, limit_val_batches=2,
        callbacks=[BedplateCallback(), ModelCheckpoint("out", every_n_train_steps=6, save_top_k=-1)],
    ).fit(Module(), loader, loader)
    """
        )
        reports = self.run_rank(program)
        self.check_steps(reports, 12)
        self.assertTrue(all("loss" in step for step in steps(reports)))
        self.assertTrue({"evaluating", "saving", "done"} <= {each["phase"] for each in of_kind(reports, "phase")})
        self.assertEqual([each["step"] for each in of_kind(reports, "checkpoint")][:2], [6, 12])

    def check_steps(self, reports, count: int) -> None:
        self.assertEqual([step["step"] for step in steps(reports)], list(range(1, count + 1)))
        self.assertGreater(share(reports, "compute"), 0.0)
        self.assertGreater(share(reports, "optimizer"), 0.0)
        for step in steps(reports):
            self.assertAlmostEqual(sum(step["breakdown"].values()), step["seconds"], places=6)

    @unittest.skipIf(missing("jax"), missing("jax") or "")
    def test_a_loop_of_jax(self) -> None:
        reports = self.run_rank(
            """
            import jax, bedplate
            step = jax.jit(lambda weights: (weights - 0.1 * weights, (weights**2).sum()))
            weights = jax.numpy.ones((64, 64))
            for _ in (steps := bedplate.Steps(range(8))):
                weights, steps.loss = step(weights)
            jax.block_until_ready(weights)
            """
        )
        self.assertEqual([step["step"] for step in steps(reports)], list(range(1, 9)))
        self.assertTrue(all(step["loss"] > 0 for step in steps(reports)))
