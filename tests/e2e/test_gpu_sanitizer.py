#!/usr/bin/env python3
"""NVIDIA's compute-sanitizer: memcheck on all kernels and on whole runs, racecheck on all kernels.

TESSERA names a program that was built with CUDA. Skipped where there is no GPU or no compute-sanitizer that can use it.
"""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import unittest

from program import TESSERA, WITHOUT_SEGMENTS, command, gpus, metrics, scratch, write_tokens
from summary import run_cases

SANITIZER = shutil.which("compute-sanitizer", path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")
# By program: its tests of kernels, and how many there are at least.
KERNELS = {"test_comm": ("DeviceKernels*", 9), "test_ops": ("OnCuda*:*_cuda", 80), "test_shard": ("*RowKernelsOn*/cuda", 4)}
MEMCHECK = ["--tool", "memcheck"]
# It reports kernels of cuDNN's attention and of cuBLASLt's products, at some of the tests' shapes.
RACECHECK = ["--tool", "racecheck", "--kernel-name-exclude", "kernel_substring=cudnn_generated", "--kernel-name-exclude",
             "kernel_substring=nvjet"]
NOTHING_SEEN = r"(?m)^========= (ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards)"
LIMIT_S = 200
# libtorch gives each tensor memory of its own, so that its end is seen. Graphs keep the memory that they were recorded with.
WITHOUT_CACHE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def end_with_children(pid):
    """Of each before the process itself, so that none loses its parent."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        os.kill(pid, signal.SIGSTOP)
        for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
            for child in path.read_text().split():
                end_with_children(int(child))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def output_under(tool, arguments, environment):
    """Exit code and output; after LIMIT_S seconds the program and its children are ended."""
    with subprocess.Popen([SANITIZER, *tool, "--error-exitcode", "9", *map(str, arguments)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace",
                          env={**WITHOUT_SEGMENTS, **environment}) as program:
        try:
            output = program.communicate(timeout=LIMIT_S)[0]
            return output, program.returncode
        except subprocess.TimeoutExpired:
            end_with_children(program.pid)
            return program.communicate()[0], f"none after {LIMIT_S} s"


if SANITIZER is None or gpus() == 0:
    print("skipped: no GPU that the program can use" if SANITIZER else "skipped: no compute-sanitizer")
    sys.exit(77)


class Sanitizer(unittest.TestCase):
    def check(self, tool, *arguments, environment=None):
        """What `arguments` printed; fails unless the program ends well and the tool says that it saw nothing."""
        output, code = output_under(tool, arguments, environment or {})
        if re.search(r"(?m)^=========.*Device not supported", output) and "[ RUN " not in output:
            self.skipTest("compute-sanitizer does not support this device")
        lines = [line for line in output.splitlines() if "=========" in line or "FAILED" in line] or output.splitlines()[-20:]
        self.assertEqual(0, code, "\n".join(lines[:60]))
        self.assertRegex(output, NOTHING_SEEN)
        return output

    def check_kernels(self, tool, left_out=""):
        for name, (tests, least) in KERNELS.items():
            with self.subTest(name):
                program = pathlib.Path(TESSERA).resolve().parents[1] / "tests" / name
                output = self.check(tool, program, f"--gtest_filter={tests}{left_out}", environment=WITHOUT_CACHE)
                passed = re.search(r"(?m)^\[  PASSED  \] (\d+) test", output)
                self.assertGreaterEqual(int(passed[1]) if passed else 0, least, output[-2000:])

    def test_kernels_stay_within_bounds(self):
        self.check_kernels(MEMCHECK)

    def test_kernels_have_no_races(self):
        self.check_kernels(RACECHECK, left_out="-*Gemm*")  # nothing but cuBLASLt's kernels

    def test_runs_stay_within_bounds(self):
        folder = scratch("sanitizer")
        flags = ["--model", "llama-tiny-odd", "--data", write_tokens(folder / "tokens", 131), "--global-batch", 6, "--seq-len",
                 33, "--backend", "nccl", "--ranks", 1, "--steps", 5]
        for dtype in ("bf16", "fp32"):
            for graph in ("off", "on"):
                with self.subTest(dtype=dtype, graph=graph):
                    out = folder / f"{dtype}-{graph}"
                    arguments = command("train", *flags, "--dtype", dtype, "--cuda-graph", graph, "--out", out)
                    self.check(MEMCHECK, *arguments, environment=WITHOUT_CACHE if graph == "off" else None)
                    self.assertEqual(5, len(metrics(out)))


if __name__ == "__main__":
    run_cases()
