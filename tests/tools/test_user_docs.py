#!/usr/bin/env python3
"""Checks documents for users: docs/runs.md lists every key of metrics.jsonl and summary.json, and each message in
docs/troubleshooting.md is in the sources."""
import pathlib
import re
import unittest

from summary import run_cases

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ("tessera", "apps")
STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def section(text, title):
    return text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def keys_in(text):
    """Returns the names in backquotes."""
    return set(re.findall(r"`([a-z_0-9]+)`", text))


def rows_of_metrics():
    """Returns the text of each row of the table of metrics, by key."""
    rows = (ROOT / "tessera/telemetry/metric.cpp").read_text().split('{.key = "')[1:]
    return dict(row.split('"', 1) for row in rows)


def keys_of_metrics():
    """Returns the keys that a line of metrics.jsonl can hold."""
    return {key for key, row in rows_of_metrics().items() if ".line = never" not in row}


def keys_of_summary():
    source = (ROOT / "tessera/run/run_files.cpp").read_text()
    keys = set(re.findall(r'json\["([a-z_]+)"\]', source))
    keys |= set(re.findall(r'\{"([a-z_]+)", summary[._]', source)) | set(re.findall(r'\{"([a-z_]+)", suppressed_steps', source))
    settings = (ROOT / "tessera/settings/settings.cpp").read_text()
    keys |= {key for key, row in rows_of_metrics().items() if re.search(r"\.summary = (last|median)", row)}
    return keys | set(re.findall(r'"(fp8_[a-z_]+)"', settings))


def messages():
    """Returns the first cell of each row of docs/troubleshooting.md, without backquotes."""
    return re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/troubleshooting.md").read_text(), re.M)


def strings_of_sources():
    """Returns every source as one text of its string literals. Neighbouring literals are joined, as the compiler does."""
    texts = []
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.cpp")):
            joined = re.sub(r'"\s*\n\s*"', "", path.read_text())
            texts += STRING.findall(joined)
    return texts


def pattern_of(message):
    """Returns a pattern in which `...` matches values or placeholders."""
    return re.compile(r"[^\n]*?".join(re.escape(part) for part in message.split("...")))


class UserDocuments(unittest.TestCase):
    def test_each_key_of_metrics_is_documented(self):
        written = keys_of_metrics()
        self.assertTrue({"step", "valid_loss", "z_loss", "expert_counts", "slowest_rank", "gpu_errors", "skipped",
                         "activations_by_format"} <= written, written)
        self.assertGreater(len(written), 22)
        rows = re.findall(r"^\| (`[^|]+) \|", section((ROOT / "docs/runs.md").read_text(), "metrics.jsonl"), re.M)
        self.assertEqual(written, keys_in("".join(rows)))

    def test_each_key_of_the_summary_is_documented(self):
        written = keys_of_summary()
        self.assertTrue({"step", "suppressed_steps", "mesh", "transport", "fp8_history", "host_waits"} <= written, written)
        self.assertGreater(len(written), 35)
        documented = keys_in(section((ROOT / "docs/runs.md").read_text(), "summary.json"))
        self.assertEqual(written - documented, set())

    def test_each_message_is_in_the_sources(self):
        strings = strings_of_sources()
        self.assertGreater(len(messages()), 15)
        missing = [message for message in messages() if not any(pattern_of(message).search(string) for string in strings)]
        self.assertEqual(missing, [])

    def test_a_message_that_does_not_exist_is_found(self):
        self.assertFalse(any(pattern_of("the GPU has ... wheels").search(string) for string in strings_of_sources()))


if __name__ == "__main__":
    run_cases()
