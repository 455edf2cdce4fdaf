#!/usr/bin/env python3
"""Tests the last lines of ./run train: the next commands name the mesh of the run and its model."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from summary import run_cases

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Report(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)
        (self.out / "meta.json").write_text(json.dumps({"unigram_loss": 6.5}))

    def commands(self, model, experts=False, **degrees):
        """Returns the flags of the command that resumes the run, and those of the command with another mesh."""
        mesh = {"tp": 1, "gtp": 1, "dp": 1, "etp": 1, "ep": 1, "egtp": 1, **degrees}
        summary = {"interrupted": False, "valid_loss": 4.5, **({"mesh": mesh} if experts else {})}
        (self.out / "summary.json").write_text(json.dumps(summary))
        (self.out / "config.json").write_text(json.dumps({"config": {"model": model, **mesh}}))
        (self.out / "checkpoints" / "step-00000003").mkdir(parents=True, exist_ok=True)
        text = subprocess.run([sys.executable, ROOT / "tools/run/report.py", self.out, self.out / "meta.json"], capture_output=True,
                              text=True, check=True).stdout
        resumed, trained = [line.split() for line in text.splitlines() if line.startswith("    ./run train")]
        at = resumed.index(str(self.out)) + 1
        return " ".join(resumed[2:3] + resumed[at:resumed.index("--steps")]), " ".join(trained[2:])

    def test_dense_models(self):
        self.assertEqual(("--resume --tp 2 --gtp 2", "--tp 1 --gtp 4"), self.commands("llama-demo", tp=2, gtp=2))
        self.assertEqual(("--resume --tp 1 --gtp 2 --dp 2", "--model qwen3-demo --tp 1 --gtp 4"), self.commands("qwen3-demo", gtp=2, dp=2))

    def test_models_with_experts(self):
        self.assertEqual(("--resume --tp 1 --gtp 4 --etp 1 --ep 2 --egtp 2", "--model mixtral-demo --tp 1 --gtp 4 --egtp 4"),
                         self.commands("mixtral-demo", experts=True, gtp=4, ep=2, egtp=2))
        self.assertEqual(("--resume --tp 1 --gtp 4 --etp 1 --ep 1 --egtp 4", "--model mixtral-demo --tp 1 --gtp 4 --ep 2 --egtp 2"),
                         self.commands("mixtral-demo", experts=True, gtp=4, egtp=4))
        self.assertEqual(("--resume --tp 2 --gtp 2 --dp 2 --etp 2 --ep 1 --egtp 2", "--model mixtral-demo --tp 1 --gtp 4 --egtp 4"),
                         self.commands("mixtral-demo", experts=True, tp=2, gtp=2, dp=2, etp=2, egtp=2))


if __name__ == "__main__":
    run_cases()
