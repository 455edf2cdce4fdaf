#!/usr/bin/env python3
"""Text becomes token files that read back to the same text, with the numbers that meta.json claims."""
import gzip
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
try:
    import numpy as np
    import tokenizers
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)

from indexed_dataset import read_dataset, write_dataset  # noqa: E402
from summary import run_cases  # noqa: E402

WORDS = "the cat sat on a mat; déjà vu, naïve \U0001f600 text with  two spaces and\ttabs".split(" ")


def text(documents):
    return "\n\n".join(" ".join(WORDS[(i * 7 + k * k) % len(WORDS)] for k in range(5 + i % 11)) for i in range(documents))


class Prepare(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)

    def run_tool(self, name, *arguments):
        command = [sys.executable, str(ROOT / "python" / name), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, cwd=self.root, check=False)

    def prepare_text(self, *arguments, output="out"):
        (self.root / "in.txt").write_text(text(300))
        return self.run_tool("prepare_text.py", "--input", "in.txt", "--output", output, "--vocab-size", 300,
                             "--split", "blank-lines", *arguments)

    def test_tokens_decode_to_the_text_in_order(self):
        self.assertEqual(self.prepare_text().returncode, 0)
        tokenizer = tokenizers.Tokenizer.from_file(str(self.root / "out/tokenizer.json"))
        documents = []
        for part in ("train", "valid"):
            tokens, starts = read_dataset(self.root / "out" / part)
            for first, last in zip(starts[:-1], starts[1:]):
                self.assertEqual(tokens[last - 1], tokenizer.token_to_id("<|endoftext|>"))
                documents.append(tokenizer.decode(tokens[first:last - 1].tolist()))
        self.assertEqual(documents, [part.strip() for part in text(300).split("\n\n")])

    def test_meta_json_states_the_counts_and_the_unigram_loss(self):
        self.prepare_text("--held-out", 0.1)
        meta = json.loads((self.root / "out/meta.json").read_text())
        train, valid = (read_dataset(self.root / "out" / part)[0].tolist() for part in ("train", "valid"))
        self.assertEqual((meta["train_tokens"], meta["valid_tokens"]), (len(train), len(valid)))
        total = len(train) + meta["vocab_size"]
        expected = sum(-math.log((train.count(token) + 1) / total) for token in valid) / len(valid)
        self.assertAlmostEqual(meta["unigram_loss"], expected, delta=1e-12 * expected)
        self.assertGreaterEqual(len(valid), 0.05 * (len(train) + len(valid)))

    def test_the_same_text_gives_the_same_bytes(self):
        self.prepare_text(output="a")
        self.prepare_text(output="b")
        for path in sorted((self.root / "a").iterdir()):
            self.assertEqual(path.read_bytes(), (self.root / "b" / path.name).read_bytes(), path.name)

    def test_a_given_tokenizer_is_used_as_it_is(self):
        self.prepare_text(output="a")
        self.assertEqual(self.prepare_text("--tokenizer", "a/tokenizer.json", output="b").returncode, 0)
        self.assertEqual((self.root / "a/train.bin").read_bytes(), (self.root / "b/train.bin").read_bytes())

    def test_jsonl_holds_one_document_a_line(self):
        (self.root / "in.jsonl").write_text("".join(json.dumps({"text": f"line {i}\n\nmore"}) + "\n" for i in range(50)))
        result = self.run_tool("prepare_text.py", "--input", "in.jsonl", "--output", "out", "--vocab-size", 270)
        self.assertEqual(result.returncode, 0, result.stderr)
        meta = json.loads((self.root / "out/meta.json").read_text())
        self.assertEqual(meta["train_documents"] + meta["valid_documents"], 50)

    def test_mistakes_are_one_line_and_leave_nothing(self):
        for arguments, named in ((["--vocab-size", 100], "--vocab-size 100"), (["--held-out", 1.5], "--held-out 1.5"),
                                 (["--input", "absent.txt"], "absent.txt"), (["--tokenizer", "in.txt"], "--tokenizer in.txt")):
            result = self.prepare_text(*arguments)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
            self.assertIn(named, result.stderr)
            self.assertFalse((self.root / "out").exists(), arguments)

    def test_the_demo_is_cut_in_entries_and_done_once(self):
        entries = "\n\n".join(f"Word{i} \\Word\\, n.\n   1. A thing, number\n      {i}.\n\n   2. Another." for i in range(200))
        header = "\n\n00-database-info\n   This file\n\n"
        (self.root / "x.dz").write_bytes(gzip.compress((header + entries).encode()))
        first = self.run_tool("prepare_demo.py", "--source", "x.dz", "--output", "demo")
        self.assertEqual(first.returncode, 0, first.stderr)
        tokens, starts = read_dataset(self.root / "demo/train")
        tokenizer = tokenizers.Tokenizer.from_file(str(self.root / "demo/tokenizer.json"))
        self.assertEqual(tokenizer.decode(tokens[starts[3]:starts[4] - 1].tolist()),
                         "Word3 \\Word\\, n. 1. A thing, number 3.\n2. Another.")
        again = self.run_tool("prepare_demo.py", "--source", "x.dz", "--output", "demo")
        self.assertIn("complete", again.stdout)

    def test_the_index_has_the_bytes_of_the_format(self):
        write_dataset(self.root / "d", [[1, 2, 3], [], [500]], 501)
        expected = (b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + b"\x08" + (3).to_bytes(8, "little")
                    + (4).to_bytes(8, "little") + b"".join(n.to_bytes(4, "little") for n in (3, 0, 1))
                    + b"".join(n.to_bytes(8, "little") for n in (0, 6, 6, 0, 1, 2, 3)))
        self.assertEqual((self.root / "d.idx").read_bytes(), expected)
        self.assertEqual((self.root / "d.bin").read_bytes(), np.array([1, 2, 3, 500], "<u2").tobytes())
        with self.assertRaisesRegex(ValueError, "token id 501"):
            write_dataset(self.root / "e", [[501]], 501)


if __name__ == "__main__":
    run_cases()
