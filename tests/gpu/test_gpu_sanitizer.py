#!/usr/bin/env python3
"""Runs NVIDIA's compute-sanitizer: memcheck on all kernels and on whole runs, racecheck on all kernels.

$TESSERA is a program that was built with CUDA. The tests are skipped without a GPU that compute-sanitizer supports.
"""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import gpu_ranks
from program import ROOT, TESSERA, WITHOUT_SEGMENTS, command, metrics, scratch, write_tokens
from summary import run_cases

SANITIZER = shutil.which("compute-sanitizer", path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")
# {program: (filter of its kernel tests, minimum number of tests)}.
KERNELS = {"test_comm": ("DeviceKernels*", 9), "test_ops": ("OnCuda*:*_cuda:*/Cuda", 107), "test_quant": ("Device*", 20), "test_shard": ("*RowKernelsOn*/cuda", 4)}
MEMCHECK = ["--tool", "memcheck"]
# racecheck reports kernels of cuDNN and cuBLASLt for some shapes of the tests, so these kernels are excluded. The grouped products
# of libtorch are CUTLASS's.
RACECHECK = ["--tool", "racecheck", "--kernel-name-exclude", "kernel_substring=cudnn_generated", "--kernel-name-exclude",
             "kernel_substring=nvjet", "--kernel-name-exclude", "kernel_substring=cutlass"]
# Tests of products, whose kernels are those of cuBLASLt and libtorch. racecheck may end with an internal error beside them.
PRODUCTS = ("*ExpertsAsCodes*", "*OnCudaCodesOf*", "*Gemm*", "*OperandTest*", "*GroupedProducts*", "*BitsOfAnExpert*", "*WeightGradientsOfBf16*", "*Companions*", "*OnCudaMuon.Iterations*",
            *(f"*ExpertsInFormats.{test}*" for test in ("Products", "RowsOfABlock", "OneScale", "Values", "Gradients")))
NOTHING_SEEN = r"(?m)^========= (ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards)"
LIMIT_S = 200
PARTS = 4  # parts of a program's tests, which run at the same time
# Without its cache libtorch allocates each tensor separately, so that memcheck detects accesses to freed tensors. Runs with
# graphs need the cache, because a graph keeps the memory of its recording.
WITHOUT_CACHE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def end_with_children(pid):
    """Kills all children before the process itself, so that no child loses its parent."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
        os.kill(pid, signal.SIGSTOP)
        for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
            for child in path.read_text().split():
                end_with_children(int(child))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def output_under(tool, arguments, environment):
    """Returns (output, exit code). After LIMIT_S seconds it kills the program and its children."""
    with subprocess.Popen([SANITIZER, *tool, "--error-exitcode", "9", *map(str, arguments)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace",
                          env={**WITHOUT_SEGMENTS, **environment}) as program:
        try:
            output = program.communicate(timeout=LIMIT_S)[0]
            return output, program.returncode
        except subprocess.TimeoutExpired:
            end_with_children(program.pid)
            return program.communicate()[0], f"none after {LIMIT_S} s"


if SANITIZER is None or gpu_ranks.GPUS == 0:
    print("skipped: no GPU that the program can use" if SANITIZER else "skipped: no compute-sanitizer")
    sys.exit(77)


class Sanitizer(unittest.TestCase):
    def check(self, tool, *arguments, environment=None):
        """Returns the output of `arguments`. Fails unless the program exits with code 0 and the tool reports no error."""
        output, code = output_under(tool, arguments, environment or {})
        if re.search(r"(?m)^=========.*Device not supported", output) and "[ RUN " not in output:
            self.skipTest("compute-sanitizer does not support this device")
        lines = [line for line in output.splitlines() if "=========" in line or "FAILED" in line] or output.splitlines()[-20:]
        lines.append("the last test that began: " + (re.findall(r"(?m)^\[ RUN      \] (.*)", output) or ["none"])[-1])
        self.assertEqual(0, code, "\n".join(lines[:60]))
        self.assertRegex(output, NOTHING_SEEN)
        return output

    def check_kernels(self, tool, left_out=""):
        def passed(name, part):
            program = pathlib.Path(TESSERA).resolve().parents[1] / "tests" / name
            output = self.check(tool, program, f"--gtest_filter={KERNELS[name][0]}{left_out}", environment={
                **WITHOUT_CACHE, "GTEST_TOTAL_SHARDS": str(PARTS), "GTEST_SHARD_INDEX": str(part)})
            return int(found[1]) if (found := re.search(r"(?m)^\[  PASSED  \] (\d+) test", output)) else 0

        with concurrent.futures.ThreadPoolExecutor(PARTS) as pool:
            for name, (_, least) in KERNELS.items():
                with self.subTest(name):
                    self.assertGreaterEqual(sum(pool.map(passed, [name] * PARTS, range(PARTS))), least)

    def test_kernels_stay_within_bounds(self):
        self.check_kernels(MEMCHECK)

    def test_kernels_have_no_races(self):
        self.check_kernels(RACECHECK, left_out="-" + ":".join(PRODUCTS))

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

    def test_runs_with_experts_stay_within_bounds(self):
        folder = scratch("sanitizer-experts")
        flags = ["--data", write_tokens(folder / "tokens", 131), "--global-batch", 4, "--seq-len", 33, "--backend", "nccl", "--ranks", 1]
        models = {"mixtral-tiny-odd": (), "dots1-tiny-odd": ("--expert-capacity", 1.1)}
        for model, dtype, graph, steps in [(model, *case) for model in models for case in
                                           (("bf16", "off", 2), ("fp32", "off", 2), ("bf16", "on", 5))]:
            with self.subTest(model=model, dtype=dtype, graph=graph):
                out = folder / f"{model}-{dtype}-{graph}"
                arguments = command("train", "--model", model, *flags, *models[model], "--dtype", dtype, "--cuda-graph", graph,
                                    "--steps", steps, "--out", out)
                self.check(MEMCHECK, *arguments, environment=WITHOUT_CACHE if graph == "off" else None)
                self.assertEqual(steps, len(metrics(out)))

    def format_flags(self, folder):
        """Returns flags for a model whose products read stored bytes directly, because all sizes are multiples of 128."""
        model = folder / "whole.json"
        model.write_text(json.dumps(json.loads((ROOT / "configs" / "llama-tiny-odd" / "config.json").read_text()) | {
            "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
            "head_dim": 64, "vocab_size": 256}))
        return ["--model", model, "--data", write_tokens(folder / "tokens", 131), "--global-batch", 2, "--seq-len", 64, "--backend",
                "nccl", "--dtype", "bf16", "--steps", 2]

    def test_products_in_formats_stay_within_bounds(self):
        folder = scratch("sanitizer-formats")
        flags = self.format_flags(folder)
        for product, wire in (("fp8", "fp8"), ("fp8_block", "fp8_block"), ("fp8", "nvfp4"), ("nvfp4", "nvfp4"), ("mxfp8", "mxfp8"),
                              ("nvfp4", "bf16")):
            with self.subTest(product=product, wire=wire):
                out = folder / f"{product}-{wire}"
                self.check(MEMCHECK, *command("train", *flags, "--gemm-format", product, "--wire-format", wire, "--out", out),
                           environment=WITHOUT_CACHE)
                self.assertEqual(2, len(metrics(out)))

    def test_products_of_experts_in_formats_stay_within_bounds(self):
        folder = scratch("sanitizer-experts")
        flags = ["--data", write_tokens(folder / "tokens", 131), "--global-batch", 2, "--seq-len", 64, "--backend", "nccl",
                 "--dtype", "bf16", "--steps", 2]
        sixteens = folder / "sixteens.json"  # sizes that are multiples of 16, which products of codes need
        sixteens.write_text(json.dumps(json.loads((ROOT / "configs" / "mixtral-tiny-odd" / "config.json").read_text()) | {
            "hidden_size": 64, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}))
        codes = ("--gemm-kernels", "native", "--fp8-recipe", "e4m3")
        for product, *more in (("fp8", "--fp8-scaling", "current"), ("fp8", "--wire-format", "fp8"), ("fp8_block",), ("nvfp4",),
                               ("mxfp8", "--wire-format", "mxfp8"), ("fp8", *codes), ("fp8", *codes, "--wire-format", "fp8")):
            with self.subTest(product=product):
                out = folder / f"{product}-{len(more)}{more[0] if more else ''}"
                model = sixteens if "native" in more else "mixtral-tiny-odd"
                self.check(MEMCHECK, *command("train", *flags, "--model", model, "--gemm-format", product, *more, "--out", out), environment=WITHOUT_CACHE)
                self.assertEqual(2, len(metrics(out)))

    def test_tokens_split_over_tp_stay_within_bounds(self):
        """Tests bf16, and activations sent as fp8 codes for each recipe and scaling. Without libtorch's cache, memcheck detects
        accesses to freed tensors."""
        folder = scratch("sanitizer-tp")
        flags = [*self.format_flags(folder), "--tp", 2, "--sequence-parallel", "on"]
        codes = ["--gemm-format", "fp8", "--wire-format", "fp8", "--tp-wire-format", "fp8"]
        cases = {"bf16": []} | {f"{recipe}-{scaling}": [*codes, "--fp8-recipe", recipe, "--fp8-scaling", scaling]
                                for recipe in ("hybrid", "e4m3") for scaling in ("delayed", "current")}
        for name, more in cases.items():
            with self.subTest(name):
                # NCCL detects its kernels for this GPU with calls that may fail, so API errors are not reported.
                arguments = [*MEMCHECK, "--report-api-errors", "no", "--error-exitcode", 9, *command("train", *flags, *more, "--out", folder / name)]
                ranks = gpu_ranks.Ranks(2, *arguments, program=SANITIZER, environment={**WITHOUT_SEGMENTS, **WITHOUT_CACHE})
                codes_of_exit, outputs = ranks.finish(LIMIT_S)
                if any(re.search(r"(?m)^=========.*Device not supported", output) for output in outputs):
                    self.skipTest("compute-sanitizer does not support this device")
                self.assertEqual([0, 0], codes_of_exit, "".join(outputs)[-6000:])
                for output in outputs:
                    self.assertRegex(output, NOTHING_SEEN)
                self.assertEqual(2, len(metrics(folder / name)))


if __name__ == "__main__":
    run_cases()
