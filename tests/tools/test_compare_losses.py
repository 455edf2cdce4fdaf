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

    def test_an_incomplete_last_line_is_ignored_and_a_damaged_line_is_named(self):
        for name in "ab":
            self.write(name, (1, 4.0), (2, 3.0), (3, 2.0))
        file = self.folder / "b" / "metrics.jsonl"
        file.write_text(file.read_text() + '{"step": 4, "lo')
        self.assertIn("3 steps: largest", self.compare("a", "b").stdout)
        file.write_text('{"step": 1, "loss": 1}\n[1]\n')
        self.assertEqual("compare_losses.py: b/metrics.jsonl:2: expected the lines of a run's metrics.jsonl, with step and loss\n",
                         self.compare("a", "b").stderr)
        said = self.compare("a", "a", "--every", "0")
        self.assertEqual((2, True), (said.returncode, "--every" in said.stderr))

    def test_an_output_that_is_lost_is_reported(self):
        self.write("a", (1, 4.0))
        for output, reason in ((">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")):
            said = subprocess.run(["sh", "-c", f'"$@" {output}', "sh", sys.executable, SCRIPT, "a", "a"], cwd=self.folder, text=True,
                                  check=False, capture_output=True)
            self.assertEqual((1, f"compare_losses.py: standard output: {reason}: the output is incomplete\n"), (said.returncode, said.stderr))

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
