#!/usr/bin/env python3
"""Checks the table of flags in tests/README.md: it lists every flag, and each listed test exists and sets its flags."""
import pathlib
import re
import unittest

from summary import run_cases

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = {"F": "test_gpu_flags.py", "N": "test_gpu_nodes.py", "G": "test_gpus.py", "R": "test_gpu_rows.py", "S": "test_gpu_sanitizer.py",
           "E": "test_gpu_experts.py"}


def section():
    text = (ROOT / "tests" / "README.md").read_text()
    return text[text.index("## Flags and GPU tests"):]


def words(text):
    """Returns the flags in a text, and the identifiers that may represent lists of flags."""
    return set(re.findall(r"--[a-z0-9-]+", text)), set(re.findall(r"\b[A-Za-z_][A-Za-z0-9_]+\b", text))


def flags_set_by(script, test):
    """Returns whether the test exists, and the flags in its body and in the functions and constants that the body uses."""
    source = (ROOT / "tests" / "gpu" / script).read_text()
    parts = dict(re.findall(r"(?ms)^    def (\w+)\(.*?\n(.*?)(?=^    def |^    @|^class |^if __name__|\Z)", source))
    parts |= dict(re.findall(r"(?m)^([A-Z][A-Z0-9_]+) = (.*)$", source))
    found, seen, left = set(), set(), ["setUpClass", f"test_{test}"]
    while left:
        name = left.pop()
        if name in seen or name not in parts:
            continue
        seen.add(name)
        flags, names = words(parts[name])
        found |= flags
        left.extend(names)
    return f"test_{test}" in parts, found


class Table(unittest.TestCase):
    def test_the_table_lists_every_flag_once(self):
        settings = (ROOT / "tessera/settings/settings.cpp").read_text()
        reserved = set(re.findall(r'ReservedSetting\{\s*"(\w+)"', settings))
        expected = {"--" + name.replace("_", "-") for name in re.findall(r'\bSetting\{\s*"(\w+)"', settings)} - reserved
        named = re.findall(r"`(--[a-z0-9-]+)`", section())
        self.assertGreater(len(expected), 50)
        self.assertEqual(sorted(expected), sorted(set(named)))
        self.assertEqual(len(named), len(set(named)), "the table lists a flag twice")

    def test_the_tests_exist_and_set_their_flags(self):
        rows = re.findall(r"(?m)^\| (`--.*?) \| (.*?) \|$", section())
        self.assertGreater(len(rows), 20)
        for flags, tests in rows:
            for script, test in re.findall(r"([A-Z]) (\w+)", tests):
                exists, found = flags_set_by(SCRIPTS[script], test)
                for flag in re.findall(r"--[a-z0-9-]+", flags):
                    with self.subTest(test=test, flag=flag):
                        self.assertTrue(exists, f"{SCRIPTS[script]} has no test_{test}")
                        self.assertIn(flag, found)


if __name__ == "__main__":
    run_cases()
