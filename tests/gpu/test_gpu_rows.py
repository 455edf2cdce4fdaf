#!/usr/bin/env python3
"""Checks on GPUs that gradients of single rows of the embedding and of the whole table give the same bits, and also, on two or
more GPUs, that exchanging rows and gathering the table do."""
import json
import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from program import ROOT, bits, gpus, metrics, scratch, tessera, write_tokens
from summary import run_cases

GPUS = gpus()
if GPUS < 1:
    print(f"skipped: the program can use {GPUS} GPUs")
    sys.exit(77)

STEPS = 6  # recorded steps, then scheduled steps


class Rows(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("gpu-rows")
        cls.data = write_tokens(cls.folder / "tokens", 131)
        # The vocabulary does not divide evenly, and the embedding is not tied to the output layer.
        config = json.loads((ROOT / "configs" / "llama-tiny" / "config.json").read_text())
        cls.model = cls.folder / "model.json"
        cls.model.write_text(json.dumps({**config, "vocab_size": 131, "tie_word_embeddings": False}))

    def train(self, name, mesh, *flags, length=64, steps=STEPS, batch=8):
        """Trains and returns the bits. The gather budget is fixed, because measured times would choose it otherwise, and the
        gathered bytes depend on it."""
        tp, gtp, dp = mesh
        out = self.folder / name
        tessera("train", "--backend", "nccl", "--ranks", tp * gtp * dp, "--tp", tp, "--gtp", gtp, "--dp", dp, "--model",
                self.model, "--data", self.data, "--out", out, "--micro-batch", 1, "--global-batch", batch, "--seq-len", length,
                "--steps", steps, "--seed", 7, "--deterministic", "on", "--gather-budget", "1GB", *flags)
        return bits(out)

    def gathered(self, name):
        return metrics(self.folder / name)[-1]["gathered_bytes"]

    def check(self, name, mesh, *flags):
        expected = self.train(f"{name}-gather", mesh, *flags, "--embedding", "gather")
        self.assertEqual(expected, self.train(f"{name}-rows", mesh, *flags, "--embedding", "rows"))
        self.assertEqual(expected, self.train(f"{name}-poisoned", mesh, *flags, "--embedding", "rows", "--debug-poison", "on",
                                              "--debug-delays", 3))
        self.assertEqual(expected, self.train(f"{name}-graph", mesh, *flags, "--embedding", "rows", "--cuda-graph", "on",
                                              "--debug-poison", "on"))
        self.assertGreater(json.loads((self.folder / f"{name}-graph" / "summary.json").read_text())["graph_steps"], 1)
        self.assertNotEqual(self.gathered(f"{name}-gather"), self.gathered(f"{name}-rows"))
        self.assertEqual(self.gathered(f"{name}-rows"), self.gathered(f"{name}-graph"))
        return expected

    def check_one_rank(self, name, mesh, *flags, batch=8):
        """Compares gradients of rows with gradients of the whole table, without and with a graph."""
        expected = self.train(f"{name}-gather", mesh, *flags, "--embedding", "gather", batch=batch)
        for kind, *more in (("auto",), ("graph", "--cuda-graph", "on"), ("poisoned", "--debug-poison", "on", "--debug-delays", 3)):
            self.assertEqual(expected, self.train(f"{name}-{kind}", mesh, *flags, *more, batch=batch), (name, kind))
        summary = {kind: json.loads((self.folder / f"{name}-{kind}" / "summary.json").read_text()) for kind in ("gather", "auto", "graph")}
        # The sum of rows needs scratch for the map of the stored rows.
        self.assertGreater(summary["auto"]["exchange_scratch_bytes"], summary["gather"]["exchange_scratch_bytes"])
        self.assertGreater(summary["graph"]["graph_steps"], 1)

    def test_one_gpu(self):
        for dtype in ("bf16", "fp32"):
            self.check_one_rank(f"one-{dtype}", (1, 1, 1), "--dtype", dtype)
        self.check_one_rank("one-microbatch", (1, 1, 1), "--dtype", "bf16", batch=1)
        self.check_one_rank("one-recompute", (1, 1, 1), "--dtype", "bf16", "--recompute", "full")

    def test_one_gpu_repeats_suppressed_steps(self):
        flags = ["--dtype", "bf16"]
        expected = self.train("not-suppressed", (1, 1, 1), *flags)
        for name, more in (("suppressed", []), ("suppressed-graph", ["--cuda-graph", "on"])):
            self.assertEqual(expected, self.train(name, (1, 1, 1), *flags, *more, "--debug-suppress", "2,4:2"), name)

    def test_one_gpu_with_formats(self):
        for wire in ("fp8", "mxfp8"):
            self.check_one_rank(f"one-{wire}", (1, 1, 1), "--dtype", "bf16", "--wire-format", wire)
        self.check_one_rank("one-moments", (1, 1, 1), "--dtype", "bf16", "--masters", "fp32", "--moments", "bf16")
        self.check_one_rank("one-wide-wire", (1, 1, 1), "--dtype", "bf16", "--grad-wire", "fp32")

    @unittest.skipIf(GPUS < 2, "fewer than 2 GPUs")
    def test_one_gpu_stores_each_part_of_the_table(self):
        for zero in ("on", "off"):
            self.check_one_rank(f"dp-{zero}", (1, 1, 2), "--dtype", "bf16", "--zero", zero)
        self.check_one_rank("tp", (2, 1, 1), "--dtype", "bf16", "--sequence-parallel", "on")

    @unittest.skipIf(GPUS < 2, "fewer than 2 GPUs")
    def test_gtp2(self):
        for dtype in ("bf16", "fp32"):
            expected = self.check(dtype, (1, 2, 1), "--dtype", dtype)
            self.assertEqual(expected, self.train(f"{dtype}-alone", (1, 1, 1), "--dtype", dtype), dtype)

    @unittest.skipIf(GPUS < 2, "fewer than 2 GPUs")
    def test_without_pushes(self):
        self.check("nccl", (1, 2, 1), "--dtype", "bf16", "--pushes", "off")

    @unittest.skipIf(GPUS < 2, "fewer than 2 GPUs")
    def test_evaluations_between_graph_launches(self):
        flags = ["--dtype", "bf16", "--embedding", "rows", "--valid", self.data, "--eval-every", 3]
        expected = self.train("evaluated", (1, 2, 1), *flags, steps=12)
        self.assertEqual(expected, self.train("evaluated-graph", (1, 2, 1), *flags, "--cuda-graph", "on", steps=12))

    @unittest.skipIf(GPUS < 2, "fewer than 2 GPUs")
    def test_hierarchical_sums(self):
        self.check("node", (1, 2, 1), "--dtype", "bf16", "--reduce-order", "hierarchical", "--ranks-per-node", 2)

    @unittest.skipIf(GPUS < 4, "fewer than 4 GPUs")
    def test_meshes_of_four_gpus(self):
        for mesh, *flags in (((1, 4, 1),), ((2, 2, 1), "--sequence-parallel", "on"), ((2, 2, 1), "--sequence-parallel", "off"),
                             ((1, 2, 2), "--zero", "off")):
            self.check("-".join(map(str, [*mesh, *flags])), mesh, "--dtype", "bf16", *flags)


if __name__ == "__main__":
    run_cases()
