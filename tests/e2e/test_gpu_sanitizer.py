#!/usr/bin/env python3
"""Kernels, and whole steps, under NVIDIA's compute-sanitizer: no access out of bounds, no race in shared memory.

TESSERA names a program that was built with CUDA. Skipped where there is no GPU or no compute-sanitizer that can use it.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

from program import ENVIRONMENT, TESSERA, command, gpus, metrics, scratch, write_tokens
from summary import run_cases

SANITIZER = shutil.which("compute-sanitizer", path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")
TESTS = pathlib.Path(TESSERA).parents[1] / "tests"
KERNELS = {"test_comm": "DeviceKernels*", "test_ops": "OnCuda*:*_cuda"}
# racecheck does not follow the asynchronous copies of cuDNN's attention: it reports its kernels, on every shape.
RACECHECK = ["--tool", "racecheck", "--kernel-name-exclude", "kernel_substring=cudnn_generated"]
MEMCHECK = ["--tool", "memcheck"]
REPORTS = 9  # the exit code that stands for them
# libtorch asks for expandable segments in ways of which the driver may refuse the first, which would be reported.
WITHOUT_SEGMENTS = {name: value for name, value in ENVIRONMENT.items() if not name.endswith("ALLOC_CONF")}


def check(tool, *arguments):
    """What `arguments` printed under the tool; fails when the tool reports something or the program does not end well."""
    result = subprocess.run([SANITIZER, *tool, "--error-exitcode", str(REPORTS), *map(str, arguments)], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, check=False, env=WITHOUT_SEGMENTS, timeout=600)
    if "Device not supported" in result.stdout:
        raise unittest.SkipTest("compute-sanitizer does not support this device")
    if result.returncode != 0:
        reports = [line for line in result.stdout.splitlines() if "=========" in line or "FAILED" in line]
        raise AssertionError(f"ended with {result.returncode}:\n" + "\n".join(reports[:60] or [result.stdout[-2000:]]))
    return result.stdout


if SANITIZER is None or gpus() == 0:
    print("skipped: no GPU that the program can use" if SANITIZER else "skipped: no compute-sanitizer")
    sys.exit(77)


class Sanitizer(unittest.TestCase):
    def check_kernels(self, tool):
        for program, tests in KERNELS.items():
            with self.subTest(program):
                output = check(tool, TESTS / program, f"--gtest_filter={tests}")
                self.assertGreater(int(re.search(r"^\[  PASSED  \] (\d+) tests?\.", output, re.M)[1]), 0)

    def test_kernels_stay_within_bounds(self):
        self.check_kernels(MEMCHECK)

    def test_kernels_have_no_races(self):
        self.check_kernels(RACECHECK)

    def test_steps_stay_within_bounds(self):
        folder = scratch("sanitizer")
        flags = ["--model", "llama-tiny-odd", "--data", write_tokens(folder / "tokens", 131), "--global-batch", 6, "--seq-len",
                 33, "--backend", "nccl", "--ranks", 1, "--steps", 5]
        for dtype in ("bf16", "fp32"):
            for graph in ("off", "on"):
                with self.subTest(dtype=dtype, graph=graph):
                    out = folder / f"{dtype}-{graph}"
                    check(MEMCHECK, *command("train", *flags, "--dtype", dtype, "--cuda-graph", graph, "--out", out))
                    self.assertEqual(5, len(metrics(out)))


if __name__ == "__main__":
    run_cases()
