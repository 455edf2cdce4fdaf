#!/usr/bin/env python3
"""Compares the state of GPUs in metrics.jsonl with the output of nvidia-smi. The test is skipped without a GPU or without
NVML. It takes about 20 s on one GPU.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from program import gpus, metrics, scratch, tessera, write_tokens
from summary import run_cases

if gpus() == 0 or not shutil.which("nvidia-smi"):
    print("skipped: no GPU, or no nvidia-smi")
    sys.exit(77)


def limits():
    """Returns the highest clock and the power limit of the first visible GPU, as nvidia-smi reports them."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    query = ["nvidia-smi", "-i", first, "--query-gpu=clocks.max.sm,power.limit", "--format=csv,noheader,nounits"]
    return [float(value) for value in subprocess.run(query, capture_output=True, text=True, check=True).stdout.split(",")]


class GpuMonitor(unittest.TestCase):
    def test_measured_steps_have_clock_power_and_errors(self):
        folder = scratch("gpu-monitor")
        data = write_tokens(folder / "text", 97)
        tessera("train", "--model", "llama-tiny-odd", "--data", data, "--backend", "nccl", "--dtype", "bf16", "--seq-len", 32,
                "--global-batch", 4, "--steps", 24, "--out", folder / "run")
        lines = metrics(folder / "run")
        measured = [line for line in lines if "gpu_clock_mhz" in line]
        self.assertEqual([line["step"] for line in measured], [5, 21])
        clock, power = limits()
        for line in measured:
            self.assertTrue(100 <= line["gpu_clock_mhz"] <= clock, line)
            self.assertTrue(10 < line["gpu_power_w"] < 1.5 * power, line)
            self.assertGreaterEqual(line["gpu_errors"], 0)


if __name__ == "__main__":
    run_cases()
