#!/usr/bin/env python3
"""NVIDIA's compute-sanitizer: memcheck on all kernels and on whole runs, racecheck on all kernels.

TESSERA names a program that was built with CUDA. Skipped where there is no GPU or no compute-sanitizer that can use it.
"""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import unittest

from program import ENVIRONMENT, TESSERA, command, gpus, metrics, scratch, write_tokens
from summary import run_cases

SANITIZER = shutil.which("compute-sanitizer", path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")
KERNELS = {"test_comm": "DeviceKernels*", "test_ops": "OnCuda*:*_cuda", "test_shard": "*RowKernelsOn*/cuda"}
MEMCHECK = ["--tool", "memcheck"]
# It reports kernels of cuDNN's attention, at the tests' shapes.
RACECHECK = ["--tool", "racecheck", "--kernel-name-exclude", "kernel_substring=cudnn_generated"]
NOTHING_SEEN = r"(?m)^========= (ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards)"
LIMIT_S = 200
# libtorch asks for expandable segments in ways of which the driver may refuse the first, which would be reported.
WITHOUT_SEGMENTS = {name: value for name, value in ENVIRONMENT.items() if not name.endswith("ALLOC_CONF")}


def output_under(tool, arguments):
    """Exit code and output; what the program started ends with it."""
    with subprocess.Popen([SANITIZER, *tool, "--error-exitcode", "9", *map(str, arguments)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", env=WITHOUT_SEGMENTS,
                          start_new_session=True) as program:
        try:
            output = program.communicate(timeout=LIMIT_S)[0]
            return output, program.returncode
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)
            return program.communicate()[0], f"none after {LIMIT_S} s"


if SANITIZER is None or gpus() == 0:
    print("skipped: no GPU that the program can use" if SANITIZER else "skipped: no compute-sanitizer")
    sys.exit(77)


class Sanitizer(unittest.TestCase):
    def check(self, tool, *arguments):
        """What `arguments` printed; fails unless the program ends well and the tool says that it saw nothing."""
        output, code = output_under(tool, arguments)
        if re.search(r"(?m)^=========.*Device not supported", output) and "[ RUN " not in output:
            self.skipTest("compute-sanitizer does not support this device")
        lines = [line for line in output.splitlines() if "=========" in line or "FAILED" in line] or output.splitlines()[-20:]
        self.assertEqual(0, code, "\n".join(lines[:60]))
        self.assertRegex(output, NOTHING_SEEN)
        return output

    def check_kernels(self, tool):
        for name, tests in KERNELS.items():
            with self.subTest(name):
                program = pathlib.Path(TESSERA).resolve().parents[1] / "tests" / name
                self.assertRegex(self.check(tool, program, f"--gtest_filter={tests}"), r"(?m)^\[  PASSED  \] [1-9]\d* test")

    def test_kernels_stay_within_bounds(self):
        self.check_kernels(MEMCHECK)

    def test_kernels_have_no_races(self):
        self.check_kernels(RACECHECK)

    def test_runs_stay_within_bounds(self):
        folder = scratch("sanitizer")
        flags = ["--model", "llama-tiny-odd", "--data", write_tokens(folder / "tokens", 131), "--global-batch", 6, "--seq-len",
                 33, "--backend", "nccl", "--ranks", 1, "--steps", 5]
        for dtype in ("bf16", "fp32"):
            for graph in ("off", "on"):
                with self.subTest(dtype=dtype, graph=graph):
                    out = folder / f"{dtype}-{graph}"
                    self.check(MEMCHECK, *command("train", *flags, "--dtype", dtype, "--cuda-graph", graph, "--out", out))
                    self.assertEqual(5, len(metrics(out)))


if __name__ == "__main__":
    run_cases()
