#!/usr/bin/env python3
"""Tests python/compare_losses.py: repeated steps, steps of one run only, files that cannot be read."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from summary import run_cases

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "python" / "compare_losses.py"


class CompareLosses(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))

    def write(self, name, *steps):
        (self.folder / name).mkdir()
        (self.folder / name / "metrics.jsonl").write_text("".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in steps))

    def compare(self, *words):
        return subprocess.run([sys.executable, SCRIPT, *words], cwd=self.folder, capture_output=True, text=True, check=False)

    def test_side_by_side(self):
        self.write("a", (1, 4.0), (2, 3.0), (2, 2.0), (3, 1.0))
        self.write("b", (1, 4.0), (2, 2.5))
        said = self.compare("a", "b", "--every", "2").stdout.splitlines()
        self.assertEqual([["1", "4.000000", "4.000000", "0.00e+00"], ["2", "2.000000", "2.500000", "2.50e-01"]],
                         [line.split() for line in said[1:3]])
        self.assertEqual("2 steps: largest relative difference 2.50e-01 (step 2), mean 1.25e-01", said[3])

    def test_losses_that_are_zero_or_not_finite(self):
        self.write("a", (1, "NaN"), (2, 0.0), (3, 0.0), (4, 2.0))
        self.write("b", (1, 4.0), (2, 0.0), (3, 1.0), (4, "Infinity"))
        said = self.compare("a", "b", "--every", "1").stdout.splitlines()
        self.assertEqual([["2", "0.00e+00"], ["3", "inf"]], [[line.split()[0], line.split()[3]] for line in said[1:3]])
        self.assertEqual(["2 steps are left out: their losses are not finite", "2 steps: largest relative difference inf (step 3), mean inf"],
                         said[3:])
        self.write("c", (1, "NaN"))
        self.assertIn("a and c have no step with finite losses in common", self.compare("a", "c").stderr)

    def test_refusals(self):
        self.write("a", (1, 4.0))
        self.write("b", (2, 4.0))
        self.assertIn("a and b have no step in common", self.compare("a", "b").stderr)
        self.assertIn("none", self.compare("a", "none").stderr)


if __name__ == "__main__":
    run_cases()
