#!/usr/bin/env python3
"""Elements of 8 and 4 bits equal those of ml_dtypes and of torch, code by code.

Values outside the range of a type differ by definition: Tessera saturates, but ml_dtypes and torch return NaN or infinity. So
the tests compare finite values within the range. Tessera rounds E8M0 up and the others round to nearest, so the tests compare
powers of two.
"""
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRINT_CODES = pathlib.Path(os.environ["TESSERA"]).parents[1] / "tests" / "print_codes"
try:
    import ml_dtypes
    import numpy as np
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)
if not PRINT_CODES.exists():
    print(f"skipped: no {PRINT_CODES}")
    sys.exit(77)

from summary import run_cases  # noqa: E402

TYPES = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "e2m1": ml_dtypes.float4_e2m1fn}
CODES = {"e4m3": 256, "e5m2": 256, "e2m1": 16, "e8m0": 256}


def print_codes(direction, kind, values):
    """Returns the codes of fp32 values, or the fp32 values of codes."""
    result = subprocess.run([PRINT_CODES, direction, kind], input=values.tobytes(), capture_output=True, check=True)
    return np.frombuffer(result.stdout, np.uint8 if direction == "encode" else np.float32)


def inputs(kind):
    """Returns all bf16 numbers, all ties between two codes, their neighbours, and random fp32 numbers, within the range."""
    greatest = float(ml_dtypes.finfo(TYPES[kind]).max)
    bf16 = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    codes = np.arange(CODES[kind], dtype=np.uint8).view(TYPES[kind]).astype(np.float32)
    finite = np.unique(codes[np.isfinite(codes)])
    ties = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    random = np.random.default_rng(1)
    patterns = random.integers(0, 1 << 32, 2_000_000, dtype=np.uint32).view(np.float32)
    near = (random.uniform(-1, 1, 2_000_000) * 2.0 ** random.uniform(-34, 0, 2_000_000) * greatest).astype(np.float32)
    values = np.concatenate([bf16, codes, ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, 2 * ties), patterns, near])
    return values[np.isfinite(values) & (np.abs(values) <= greatest)]


class NumberFormats(unittest.TestCase):
    def assert_equal_codes(self, values, got, expected):
        wrong = np.flatnonzero(got != expected)
        self.assertEqual(len(got), len(expected))
        self.assertEqual(len(wrong), 0, [(float(values[i]).hex(), int(got[i]), int(expected[i])) for i in wrong[:5]])

    def test_codes_equal_ml_dtypes(self):
        for kind, dtype in TYPES.items():
            with self.subTest(kind):
                values = inputs(kind)
                self.assertGreater(len(values), 1_000_000)
                self.assert_equal_codes(values, print_codes("encode", kind, values), values.astype(dtype).view(np.uint8))

    def test_values_of_codes_equal_ml_dtypes(self):
        for kind, dtype in [*TYPES.items(), ("e8m0", ml_dtypes.float8_e8m0fnu)]:
            with self.subTest(kind):
                codes = np.arange(CODES[kind], dtype=np.uint8)
                got, expected = print_codes("decode", kind, codes), codes.view(dtype).astype(np.float32)
                np.testing.assert_array_equal(got, expected)  # a NaN equals any NaN
                np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(expected[expected == 0]))

    def test_scales_of_powers_of_two_equal_ml_dtypes(self):
        values = (2.0 ** np.arange(-127, 128)).astype(np.float32)
        expected = values.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)
        self.assert_equal_codes(values, print_codes("encode", "e8m0", values), expected)

    def test_codes_equal_torch(self):
        try:
            import torch
        except (ImportError, OSError) as reason:
            self.skipTest(f"torch: {reason}")
        for kind, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
            with self.subTest(kind):
                values = inputs(kind)
                expected = torch.from_numpy(values).to(dtype).view(torch.uint8).numpy()
                self.assert_equal_codes(values, print_codes("encode", kind, values), expected)

    def test_values_outside_the_range_saturate(self):
        for kind, greatest in (("e4m3", 448), ("e5m2", 57344), ("e2m1", 6)):
            values = np.array([greatest * 1.5, 3e38, np.inf], np.float32)
            for sign in (1, -1):
                got = print_codes("encode", kind, sign * values)
                np.testing.assert_array_equal(print_codes("decode", kind, got), [sign * greatest] * 3)


if __name__ == "__main__":
    run_cases()
