#!/usr/bin/env python3
"""Tests the table of bench/peers/curve_seeds.py with runs of `tessera train`. test_transformers_experts.py also runs transformers."""
import subprocess
import sys
import unittest

from program import ROOT, TESSERA, metrics, scratch, write_tokens
from summary import run_cases

FLAGS = ("--seq-len", 16, "--global-batch", 4, "--steps", 2, "--warmup-steps", 1)


class CurveSeeds(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("curve-seeds")
        cls.data = write_tokens(cls.folder / "text", 97)

    def call(self, name, *flags, own=(), code=0):
        """Returns stdout and stderr."""
        command = [sys.executable, ROOT / "bench" / "peers" / "curve_seeds.py", "--out", self.folder / name, "--tessera", TESSERA, "--programs",
                   "tessera", "--models", ROOT / "configs" / "llama-tiny-odd", "--seeds", 3, 4, 5, *own, "--", "--data", self.data, *FLAGS, *flags]
        result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=120)
        self.assertEqual(code, result.returncode, result.stderr)
        return result.stdout, result.stderr

    def test_the_table_has_the_held_out_losses_of_the_runs(self):
        output, _ = self.call("runs", "--valid", self.data, "--eval-every", 1, own=["--dtypes", "fp32", "bf16"])
        lines = [line.split() for line in output.splitlines()]
        self.assertEqual("held-out losses of seeds 3, 4, 5", " ".join(lines[0]))
        self.assertEqual(["1 fp32", "1 bf16", "2 fp32", "2 bf16"], [f"{line[1]} {line[4]}" for line in lines[1:]])
        for line in lines[1:]:
            runs = [metrics(self.folder / "runs" / f"tessera-llama-tiny-odd-{line[4]}-{seed}") for seed in (3, 4, 5)]
            losses = [run[int(line[1]) - 1]["valid_loss"] for run in runs]
            self.assertEqual([f"{loss:.4f}" for loss in losses] + ["mean", f"{sum(losses) / 3:.4f}"], line[5:])
        self.assertIn("expected a new folder", self.call("runs", code=1)[1])

    def test_a_run_that_fails_is_an_error(self):
        _, errors = self.call("failed", "--tp", 0, own=["--parallel", 1], code=1)
        self.assertIn("tessera-llama-tiny-odd-fp32-3: exit code 2\n", errors)
        self.assertIn("--tp: got 0", errors)
        self.assertNotIn("Traceback", errors)

    def test_a_loss_that_is_missing_or_not_finite_is_an_error(self):
        _, errors = self.call("not-finite", "--valid", self.data, "--lr", 1e38, "--lr-schedule", "constant", own=["--parallel", 1], code=1)
        self.assertIn("fp32-3: the held-out loss after step 2 is nan, expected a finite number", errors)
        self.assertLessEqual(len(list((self.folder / "not-finite").iterdir())), 2)  # the second run starts when the first ends
        self.assertIn("fp32-3: no held-out loss, expected --valid", self.call("no-losses", code=1)[1])


if __name__ == "__main__":
    run_cases()
