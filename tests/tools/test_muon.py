#!/usr/bin/env python3
"""Compares Muon of one matrix with numpy in fp64, and in bf16 with numpy and torch.optim.Muon.

The bound in fp64 is 1e-9 relative to the largest element over 20 updates. A step of the iterations multiplies a relative error
by at most 3.4445, so five steps multiply the rounding errors of the norm and of the products, about 1e-15, by at most 500.

In bf16 the bound of X is 2e-2 relative, in the Frobenius norm: P is near -2.7 times the unit matrix, so a rounding of P changes X by
up to 2^-7, and five steps add such errors. torch also rounds the norm to bf16. In matrices with few rows, all rows may have nearly the
same error, so two programs may differ by twice the bound.

torch is optional: a Python that has it runs the comparison with torch, for example `TORCH_PYTHON=/opt/torch/bin/python`.
"""
import itertools
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "tools"), str(ROOT / "tests" / "reference")]
try:
    import numpy as np
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)

from muon import Muon, orthogonalized  # noqa: E402
from summary import run_cases  # noqa: E402

RUN_MUON = pathlib.Path(os.environ["TESSERA"]).resolve().parents[1] / "tests" / "run_muon"
TORCH = os.environ.get("TORCH_PYTHON", sys.executable)
KINDS = ("random", "rank deficient", "zero")
SHAPES = [(1, 1), (1, 37), (37, 1), (16, 16), (24, 65), (65, 24), (60, 12), (64, 64), (128, 96), (96, 256)]
LR, DECAY = 0.02, 0.1
TORCH_PROGRAM = """
import sys, torch
for line in sys.argv[1:]:
    rows, cols, updates, nesterov, scale = line.split(",")
    shape = 1 + int(updates), int(rows), int(cols)
    values = torch.frombuffer(bytearray(sys.stdin.buffer.read(8 * shape[0] * shape[1] * shape[2])), dtype=torch.float64).reshape(shape)
    w = torch.nn.Parameter(values[0].float())
    name = {"moonshot": "match_rms_adamw", "original": "original"}[scale]
    muon = torch.optim.Muon([w], lr=1.0, weight_decay=0.0, momentum=0.95, nesterov=nesterov == "on", adjust_lr_fn=name)
    for gradient in values[1:]:
        before = w.detach().clone()
        w.grad = gradient.float()
        muon.step()
        sys.stdout.buffer.write((before - w.detach()).double().numpy().tobytes())
"""


def matrices(kind, shape, count, seed=3):
    rng = np.random.default_rng(seed)
    if kind == "zero":
        return np.zeros((count, *shape))
    if kind == "rank deficient":
        rank = max(1, min(shape) // 3)
        return rng.standard_normal((count, shape[0], rank)) @ rng.standard_normal((rank, shape[1]))
    return rng.standard_normal((count, *shape)) * 10.0 ** rng.uniform(-3, 1, (count, 1, 1))


def run(cases):
    """cases: (type, nesterov, scale, values), where values are the matrix and its gradients. Returns (X, matrix) after each update
    of each case."""
    lines = [f"{kind},{values.shape[1]},{values.shape[2]},{len(values) - 1},{nesterov},{scale}" for kind, nesterov, scale, values in cases]
    done = subprocess.run([RUN_MUON, str(LR), str(DECAY), *lines], input=b"".join(case[-1].tobytes() for case in cases),
                          stdout=subprocess.PIPE, check=True)
    return split(np.frombuffer(done.stdout), [(len(values) - 1, 2, *values.shape[1:]) for *_, values in cases])


def split(numbers, shapes):
    parts, first = [], 0
    for shape in shapes:
        parts.append(numbers[first:first + np.prod(shape)].reshape(shape))
        first += np.prod(shape)
    assert first == numbers.size
    return parts


def xs_of(kind, values):
    return run([(kind, "on", "moonshot", values)])[0][:, 0]


def rounded(values):
    """Rounds to bf16, to nearest even."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def relative(got, expected):
    return np.linalg.norm(got - expected) / max(np.linalg.norm(expected), 1e-30)


def fp32(values):
    return values.astype(np.float32).astype(np.float64)


class OneMatrix(unittest.TestCase):
    def test_fp64_equals_numpy(self):
        cases = [("fp64", nesterov, scale, np.concatenate([matrices("random", shape, 1, 9), matrices(kind, shape, 20)]))
                 for shape, kind, nesterov, scale in itertools.product(SHAPES, KINDS, ("on", "off"), ("moonshot", "original"))]
        for (_, nesterov, scale, values), results in zip(cases, run(cases)):
            reference, w = Muon(values[0].shape, nesterov=nesterov == "on", scale=scale), values[0]
            for (x, got), gradient in zip(results, values[1:]):
                expected, w = reference.step(w, gradient, LR, DECAY)
                self.assertLessEqual(np.abs(x - expected).max(), 1e-9 * max(np.abs(expected).max(), 1e-30), w.shape)
                self.assertLessEqual(np.abs(got - w).max(), 1e-9 * np.abs(w).max(), w.shape)

    def test_singular_values_are_near_one(self):
        for shape in [(64, 64), (48, 200), (200, 48)]:
            values = np.linalg.svd(xs_of("fp64", matrices("random", shape, 2))[0], compute_uv=False)
            self.assertTrue(np.all(values[:-3] > 0.6) and np.all(values < 1.25), values)

    def test_fp32_and_bf16_are_near_numpy(self):
        bounds = {"fp32": 1e-4, "bf16": 2e-2}
        cases = [(kind, "on", "moonshot", fp32(matrices("random", shape, 6))) for kind in bounds for shape in SHAPES]
        for (kind, _, _, values), results in zip(cases, run(cases)):
            reference = Muon(values[0].shape)
            for (x, _), gradient in zip(results, values[1:]):
                expected, _ = reference.step(values[0], gradient, 0, 0)
                self.assertLessEqual(relative(x, expected), bounds[kind], (kind, values[0].shape))

    def test_bf16_rounds_each_product_once(self):
        """The iterations with sums in fp64 and the roundings of bf16. In small matrices, sums in fp32 rarely round to another bf16
        number."""
        for shape in SHAPES:
            if np.prod(shape) > 2000:
                continue
            values = fp32(matrices("random", shape, 2))
            u = rounded((1 - 0.95) * values[1] * (1 + 0.95)).astype(np.float64)
            x = rounded(u.astype(np.float32) / np.float32(max(np.sqrt((u * u).sum()), 1e-7))).astype(np.float64)
            x = x.T if shape[0] > shape[1] else x
            for _ in range(5):
                s = rounded(x @ x.T).astype(np.float64)
                p = rounded(-4.7750 * s + 2.0315 * (s @ s)).astype(np.float64)
                x = rounded(3.4445 * x + p @ x).astype(np.float64)
            self.assertLessEqual(relative(xs_of("bf16", values)[0], x.T if shape[0] > shape[1] else x), 4e-3, shape)

    def test_bf16_equals_torch(self):
        found = subprocess.run([TORCH, "-c", "import numpy, torch; assert torch.optim.Muon"], capture_output=True)
        if found.returncode:
            self.skipTest("torch.optim.Muon is missing")
        cases = [("bf16", nesterov, scale, np.concatenate([np.zeros((1, *shape)), fp32(matrices("random", shape, 4))]))
                 for shape, nesterov, scale in itertools.product(SHAPES, ("on", "off"), ("moonshot", "original"))]
        lines = [f"{values.shape[1]},{values.shape[2]},4,{nesterov},{scale}" for _, nesterov, scale, values in cases]
        done = subprocess.run([TORCH, "-c", TORCH_PROGRAM, *lines], input=b"".join(case[-1].tobytes() for case in cases),
                              stdout=subprocess.PIPE, check=True)
        steps = split(np.frombuffer(done.stdout), [(4, *values.shape[1:]) for *_, values in cases])
        for (_, nesterov, scale, values), results, of_torch in zip(cases, run(cases), steps):
            shape = values[0].shape
            bound = 2e-2 if min(shape) >= 64 else 4e-2
            for (x, _), step in zip(results, of_torch):
                self.assertLessEqual(relative(x, step / Muon(shape, scale=scale).factor), bound, (shape, nesterov, scale))


if __name__ == "__main__":
    run_cases()
