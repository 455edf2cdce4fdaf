#!/usr/bin/env python3
"""Runs on GPUs that are paused for longer than their time limit, that lose their terminal, and whose reader ends. Ranks share a GPU
if there are more ranks than GPUs. The tests take about 2 minutes on one GPU and are skipped without one."""
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from program import bits, command, gpus, metrics, pause, programs_with, scratch, write_tokens
from summary import run_cases

if gpus() == 0:
    print("skipped: no GPU")
    sys.exit(77)

from gpu_ranks import Ranks, train

LIMIT_S = 5
STEPS = 200


class GpuPauses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("gpu-pauses")
        cls.flags = ["--model", "llama-tiny-odd", "--data", write_tokens(cls.folder / "tokens", 131), "--global-batch", 12,
                     "--micro-batch", 3, "--seq-len", 64, "--deterministic", "on", "--timeout-s", LIMIT_S]
        train(2, *cls.flags, "--steps", STEPS, "--gtp", 2, "--out", cls.folder / "whole")
        cls.expected = bits(cls.folder / "whole")

    def start(self, out, *flags, steps=STEPS):
        job = Ranks(2, "train", "--backend", "nccl", *self.flags, "--steps", steps, "--gtp", 2, *flags, "--out", out)
        self.wait_for_step(out, 5)
        self.assertTrue(job.all_run())
        return job

    def wait_for_step(self, out, step):
        end = time.monotonic() + 120
        while not (out / "metrics.jsonl").exists() or len(metrics(out)) < step:
            self.assertLess(time.monotonic(), end, f"{out} has no step {step}")
            time.sleep(0.02)

    def finish(self, job):
        codes, errors = job.finish(300)
        self.assertEqual({0}, set(codes), errors)
        return errors

    def test_a_pause_of_all_ranks_does_not_count(self):
        for name, *flags in (("plain",), ("graph", "--cuda-graph", "on")):
            with self.subTest(name):
                out = self.folder / f"paused-{name}"
                job = self.start(out, *flags)
                pause([program.pid for program in job.programs], 2 * LIMIT_S + 1)
                self.finish(job)
                self.assertEqual(self.expected, bits(out))

    def test_a_pause_of_one_rank_counts(self):
        """The other rank ends the run. On waking, the stopped rank finds that failure."""
        job = self.start(self.folder / "hangs", steps=10**6)
        os.kill(job.programs[1].pid, signal.SIGSTOP)
        begin = time.monotonic()
        self.assertNotEqual(0, job.programs[0].wait(LIMIT_S + 30))
        self.assertGreater(time.monotonic() - begin, LIMIT_S - 1)
        os.kill(job.programs[1].pid, signal.SIGCONT)
        codes, errors = job.finish(60)
        self.assertNotIn(0, codes)
        self.assertIn("time limit of", errors[0])

    def test_a_lost_terminal_stops_the_run_with_a_checkpoint(self):
        out = self.folder / "hangup"
        job = self.start(out)
        os.kill(job.programs[1].pid, signal.SIGHUP)
        self.finish(job)
        self.assertLess(len(metrics(out)), STEPS)
        train(2, *self.flags, "--steps", STEPS, "--gtp", 2, "--resume", "latest", "--out", out)
        self.assertEqual(self.expected, bits(out))

    def test_ranks_that_the_program_starts(self):
        """The program and its rank are paused together, and nobody reads the output. SIGHUP then stops the run."""
        out = self.folder / "own-ranks"
        read, write = os.pipe()
        os.close(read)
        line = command("train", "--backend", "nccl", "--ranks", 1, *self.flags, "--steps", 10**6, "--out", out)
        with open(write, "wb") as pipe:
            job = subprocess.Popen(line, stdout=pipe, stderr=subprocess.PIPE, text=True)
        try:
            self.wait_for_step(out, 5)
            pause(programs_with(out), 2 * LIMIT_S + 1)
            self.wait_for_step(out, len(metrics(out)) + 2)
            job.send_signal(signal.SIGHUP)
            errors = job.communicate(timeout=60)[1]
        finally:
            job.kill()
        self.assertEqual(0, job.returncode, errors)
        self.assertEqual(1, errors.count("tessera: standard output: Broken pipe: the run continues"), errors)
        self.assertEqual(1, errors.count("stopping after this step and saving"), errors)


if __name__ == "__main__":
    run_cases()
