#!/usr/bin/env python3
"""When a run saves and ends by the clock (--save-minutes, --stop-minutes), which checkpoints it keeps, and saves that fail."""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from program import AWKWARD_FILES, ENVIRONMENT, MPIRUN, TESSERA, bits, command, metrics, run, scratch, tessera, write_tokens
from summary import run_cases


def saved(out):
    return sorted(int(path.name[5:]) for path in (out / "checkpoints").iterdir() if re.fullmatch(r"step-\d+", path.name))


def summary(out):
    return json.loads((out / "summary.json").read_text())


class Saves(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("saves")
        cls.flags = ["train", "--model", "llama-tiny-odd", "--data", write_tokens(cls.folder / "tokens", 131), "--seq-len", 32,
                     "--global-batch", 24, "--seed", 5, "--warmup-steps", 2, "--schedule-steps", 400]

    def call(self, *words, code=0, mpi_ranks=None, **variables):
        """Runs the program with the preloaded library, and checks its exit code. Returns its output and its seconds."""
        start = time.monotonic()
        result = subprocess.run(command(*words, mpi_ranks=mpi_ranks), capture_output=True, text=True, check=False, timeout=240,
                                env={**ENVIRONMENT, "LD_PRELOAD": str(AWKWARD_FILES), **variables})
        self.assertEqual(code, result.returncode, result.stdout + result.stderr)
        return result.stdout + result.stderr, time.monotonic() - start

    def test_saves_by_the_clock_on_several_ranks(self):
        """Only rank 0 looks at the clock, and all ranks save after the same step."""
        out = self.folder / "clock"
        tessera(*self.flags, "--steps", 60, "--gtp", 2, "--save-minutes", 0.005, "--out", out)
        steps = saved(out)
        self.assertGreater(len(steps), 2)
        times = {line["step"]: line["step_ms"] / 1000 for line in metrics(out)}
        for first, last in zip(steps, steps[1:-1]):
            self.assertGreater(sum(times[step] for step in range(first + 1, last + 1)), 0.2)
        whole = self.folder / "clock-whole"
        tessera(*self.flags, "--steps", 60, "--gtp", 2, "--out", whole)
        self.assertEqual(bits(whole), bits(out))

    def stop_and_compare(self, name, *launcher, mpi_ranks=None):
        """A save takes 1.5 s here, more with its other fsyncs. The run of many steps ends within 18 s."""
        out, limit_s = self.folder / name, 18
        said, took = self.call(*self.flags, "--steps", 4000, "--gtp", 2, *launcher, "--stop-minutes", limit_s / 60, "--out", out,
                               mpi_ranks=mpi_ranks, TESSERA_TEST_FSYNC_MS="200")
        step = summary(out)["step"]
        self.assertTrue(summary(out)["interrupted"], said)
        self.assertLess(took, limit_s + 2, said)  # the start of mpirun and the end of the processes
        self.assertEqual(2, len(saved(out)), said)  # the first one measures the time of a save
        self.assertEqual(step, saved(out)[-1])
        self.assertIn(f"--stop-minutes {limit_s / 60}", said.splitlines()[-1] if not launcher else said)
        whole = self.folder / f"{name}-whole"
        tessera(*self.flags, "--steps", step, "--gtp", 2, "--out", whole)
        self.assertEqual(bits(whole), bits(out))

    def test_stops_before_a_limit(self):
        self.stop_and_compare("stop")

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_processes_stop_before_a_limit(self):
        self.stop_and_compare("stop-mpi", "--backend", "mpi", mpi_ranks=2)

    def test_keeps_the_multiples_of_a_step(self):
        out = self.folder / "kept"
        tessera(*self.flags, "--steps", 11, "--save-every", 1, "--keep", 2, "--keep-every", 4, "--out", out)
        self.assertEqual([4, 8, 10, 11], saved(out))

    def test_minutes_that_are_not_positive_are_refused(self):
        for flag in ("--save-minutes", "--stop-minutes"):
            for value in ("0", "-1", "nan", "soon"):
                result = run(*self.flags, "--steps", 1, flag, value, "--out", self.folder / "refused")
                self.assertEqual((2, 1), (result.returncode, len(result.stderr.splitlines())), result.stderr)
                self.assertIn(f"{flag}: got", result.stderr)


if __name__ == "__main__":
    run_cases()
