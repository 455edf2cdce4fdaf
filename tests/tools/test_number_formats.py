#!/usr/bin/env python3
"""Elements of 8 and 4 bits equal those of ml_dtypes and of torch, code by code.

Values that are too great differ by definition: Tessera saturates, where ml_dtypes and torch give NaN or infinity. So what is
compared is finite and within the type's range. E8M0 rounds up here and to nearest there: of it powers of two are compared.
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
    """Codes of fp32 values, or fp32 values of codes."""
    result = subprocess.run([PRINT_CODES, direction, kind], input=values.tobytes(), capture_output=True, check=True)
    return np.frombuffer(result.stdout, np.uint8 if direction == "encode" else np.float32)


def inputs(kind):
    """All bf16 numbers, every tie between two codes and its neighbours, patterns of fp32 at random: those within the range."""
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

    def test_codes_are_those_of_ml_dtypes(self):
        for kind, dtype in TYPES.items():
            with self.subTest(kind):
                values = inputs(kind)
                self.assertGreater(len(values), 1_000_000)
                self.assert_equal_codes(values, print_codes("encode", kind, values), values.astype(dtype).view(np.uint8))

    def test_values_of_codes_are_those_of_ml_dtypes(self):
        for kind, dtype in [*TYPES.items(), ("e8m0", ml_dtypes.float8_e8m0fnu)]:
            with self.subTest(kind):
                codes = np.arange(CODES[kind], dtype=np.uint8)
                got, expected = print_codes("decode", kind, codes), codes.view(dtype).astype(np.float32)
                np.testing.assert_array_equal(got, expected)  # a NaN equals any NaN
                np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(expected[expected == 0]))

    def test_powers_of_two_have_the_scales_of_ml_dtypes(self):
        values = (2.0 ** np.arange(-127, 128)).astype(np.float32)
        expected = values.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)
        self.assert_equal_codes(values, print_codes("encode", "e8m0", values), expected)

    def test_codes_are_those_of_torch(self):
        try:
            import torch
        except (ImportError, OSError) as reason:
            self.skipTest(f"torch: {reason}")
        for kind, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
            with self.subTest(kind):
                values = inputs(kind)
                expected = torch.from_numpy(values).to(dtype).view(torch.uint8).numpy()
                self.assert_equal_codes(values, print_codes("encode", kind, values), expected)

    def test_what_is_too_great_saturates(self):
        for kind, greatest in (("e4m3", 448), ("e5m2", 57344), ("e2m1", 6)):
            values = np.array([greatest * 1.5, 3e38, np.inf], np.float32)
            for sign in (1, -1):
                got = print_codes("encode", kind, sign * values)
                np.testing.assert_array_equal(print_codes("decode", kind, got), [sign * greatest] * 3)


if __name__ == "__main__":
    run_cases()
