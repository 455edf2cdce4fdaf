#!/usr/bin/env python3
"""Tests the preparation of text: token files decode to the same text, and the numbers in meta.json are right."""
import gzip
import json
import math
import pathlib
import resource
import shutil
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

    def run_tool(self, name, *arguments, **options):
        command = [sys.executable, str(ROOT / "python" / name), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, cwd=self.root, check=False, **options)

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

    def test_standard_streams_that_are_full_or_closed(self):
        (self.root / "in.txt").write_text(text(300))
        for number, (streams, code, said) in enumerate(((">/dev/full", 1, "standard output: No space left on device"),
                                                        (">&-", 1, "standard output: Bad file descriptor"), ("2>&-", 0, ""))):
            output = self.root / str(number)
            found = subprocess.run(["sh", "-c", f'"$@" {streams}', "sh", sys.executable, str(ROOT / "python" / "prepare_text.py"), "--input",
                                    str(self.root / "in.txt"), "--output", str(output), "--vocab-size", "300"],
                                   capture_output=True, text=True, check=False)
            self.assertEqual(found.returncode, code, found.stderr)
            self.assertIn(said, found.stderr)
            self.assertTrue((output / "meta.json").exists())

    def test_meta_json_states_the_counts_and_the_unigram_loss(self):
        self.prepare_text("--held-out", 0.1)
        meta = json.loads((self.root / "out/meta.json").read_text())
        train, valid = (read_dataset(self.root / "out" / part)[0].tolist() for part in ("train", "valid"))
        self.assertEqual((meta["train_tokens"], meta["valid_tokens"]), (len(train), len(valid)))
        total = len(train) + meta["vocab_size"]
        expected = sum(-math.log((train.count(token) + 1) / total) for token in valid) / len(valid)
        self.assertAlmostEqual(meta["unigram_loss"], expected, delta=1e-12 * expected)
        self.assertGreaterEqual(len(valid), 0.05 * (len(train) + len(valid)))

    def test_meta_json_states_the_entries_of_a_short_text(self):
        self.assertEqual(self.prepare_text("--vocab-size", 5000).returncode, 0)
        tokenizer = tokenizers.Tokenizer.from_file(str(self.root / "out/tokenizer.json"))
        self.assertEqual(tokenizer.get_vocab_size(), json.loads((self.root / "out/meta.json").read_text())["vocab_size"])
        self.assertLess(tokenizer.get_vocab_size(), 5000)

    def test_the_same_text_gives_the_same_bytes(self):
        self.prepare_text(output="a")
        self.prepare_text(output="b")
        for path in sorted((self.root / "a").iterdir()):
            self.assertEqual(path.read_bytes(), (self.root / "b" / path.name).read_bytes(), path.name)

    def test_a_given_tokenizer_is_used_unchanged(self):
        self.prepare_text(output="a")
        self.assertEqual(self.prepare_text("--tokenizer", "a/tokenizer.json", output="b").returncode, 0)
        self.assertEqual((self.root / "a/train.bin").read_bytes(), (self.root / "b/train.bin").read_bytes())

    def config(self, folder):
        return json.loads((self.root / folder / "tokenizer_config.json").read_text())

    def test_the_tokenizer_has_the_files_that_transformers_reads(self):
        self.prepare_text(output="a")
        self.assertEqual(("PreTrainedTokenizerFast", "<|endoftext|>"), tuple(self.config("a")[key] for key in ("tokenizer_class", "eos_token")))
        given = self.root / "given"
        given.mkdir()
        stored = (self.root / "a/tokenizer.json").read_text()
        (given / "tokenizer.json").write_text(stored)
        (given / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>", "model_max_length": 77}')
        (given / "chat_template.jinja").write_text("{{ messages }}")
        (given / "model.safetensors").write_text("weights")
        self.assertEqual(self.prepare_text("--tokenizer", "given/tokenizer.json", output="b").returncode, 0)
        self.assertEqual(77, self.config("b")["model_max_length"])
        files = {"train.bin", "train.idx", "valid.bin", "valid.idx", "meta.json", "tokenizer.json", "tokenizer_config.json"}
        self.assertEqual(files | {"chat_template.jinja"}, {path.name for path in (self.root / "b").iterdir()})
        # Files beside a tokenizer of another name do not belong to it.
        (given / "other.json").write_text(stored.replace("<|endoftext|>", "</s>"))
        self.assertEqual(self.prepare_text("--tokenizer", "given/other.json", "--eod-token", "</s>", output="c").returncode, 0)
        self.assertEqual("</s>", self.config("c")["eos_token"])
        self.assertEqual(files, {path.name for path in (self.root / "c").iterdir()})

    def decoded(self, part):
        tokens, _ = read_dataset(self.root / "out" / part)
        return tokenizers.Tokenizer.from_file(str(self.root / "out/tokenizer.json")).decode(tokens[:-1].tolist())

    def test_a_plain_file_is_one_document_and_its_end_is_held_out(self):
        for name, content in (("lines", "".join(f"line {i} of the text\n" for i in range(400))),
                              ("words", " ".join(f"word{i}" for i in range(2000))), ("letters", "abcdefgh" * 800)):
            (self.root / "in.txt").write_text(content)
            result = self.run_tool("prepare_text.py", "--input", "in.txt", "--output", "out", "--vocab-size", 300)
            self.assertEqual(result.returncode, 0, result.stderr)
            train, valid = self.decoded("train"), self.decoded("valid")
            self.assertEqual(train + valid, content, name)
            self.assertLessEqual(0.02 * len(content), len(valid) + 1, name)
            self.assertLessEqual(len(valid), 0.05 * len(content), name)
            self.assertEqual(train[-1], {"lines": "\n", "words": " ", "letters": train[-1]}[name])
            shutil.rmtree(self.root / "out")

    def test_a_tokenizer_needs_the_token_that_ends_documents(self):
        self.prepare_text(output="a")
        stored = (self.root / "a/tokenizer.json").read_text()
        (self.root / "t.json").write_text(stored.replace("<|endoftext|>", "</s>"))
        result = self.prepare_text("--tokenizer", "t.json", output="b")
        self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
        for word in ("--eod-token", "<|endoftext|>", "</s>"):
            self.assertIn(word, result.stderr)
        self.assertEqual(self.prepare_text("--tokenizer", "t.json", "--eod-token", "</s>", output="b").returncode, 0)
        self.assertEqual((self.root / "a/train.bin").read_bytes(), (self.root / "b/train.bin").read_bytes())
        result = self.prepare_text("--eod-token", "</s>", output="c")
        self.assertIn("--eod-token </s>: expected it with --tokenizer", result.stderr)

    def test_the_eos_token_beside_a_tokenizer_ends_documents(self):
        self.prepare_text(output="a")
        given = self.root / "given"
        given.mkdir()
        (given / "tokenizer.json").write_text((self.root / "a/tokenizer.json").read_text().replace("<|endoftext|>", "</s>"))
        for number, (token, name) in enumerate((("</s>", "given/tokenizer.json"), ({"content": "</s>"}, "given"))):
            (given / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
            result = self.prepare_text("--tokenizer", name, output=f"b{number}")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual((self.root / "a/train.bin").read_bytes(), (self.root / f"b{number}/train.bin").read_bytes())
        (given / "tokenizer_config.json").write_text("[]")
        result = self.prepare_text("--tokenizer", "given/tokenizer.json", output="c")
        self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
        self.assertIn("tokenizer_config.json", result.stderr)

    def test_a_given_tokenizer_neither_truncates_nor_pads(self):
        self.prepare_text(output="a")
        tokenizer = tokenizers.Tokenizer.from_file(str(self.root / "a/tokenizer.json"))
        tokenizer.enable_truncation(4)
        tokenizer.enable_padding(length=9)
        tokenizer.save(str(self.root / "short.json"))
        self.assertEqual(self.prepare_text("--tokenizer", "short.json", output="b").returncode, 0)
        self.assertEqual((self.root / "a/train.bin").read_bytes(), (self.root / "b/train.bin").read_bytes())

    def test_the_ids_of_a_given_tokenizer_may_have_gaps(self):
        self.prepare_text(output="a")
        content = json.loads((self.root / "a/tokenizer.json").read_text())
        vocabulary = content["model"]["vocab"]
        first = int(read_dataset(self.root / "a/train")[0][0])
        name = next(name for name, token in vocabulary.items() if token == first)
        vocabulary[name] = len(vocabulary) + 100
        (self.root / "gaps.json").write_text(json.dumps(content))
        result = self.prepare_text("--tokenizer", "gaps.json", output="b")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(vocabulary[name] + 1, json.loads((self.root / "b/meta.json").read_text())["vocab_size"])
        self.assertEqual(vocabulary[name], read_dataset(self.root / "b/train")[0][0])

    def test_files_that_are_not_text_are_refused(self):
        for name, content, words in (("a.txt", bytes(range(256)), ("a.txt", "byte 128 is not UTF-8")),
                                     ("b.txt", b"text\0text", ("b.txt", "byte 4 is 0")),
                                     ("c.gz", gzip.compress(b"text"), ("c.gz", "gzip")),
                                     ("d.jsonl", b'{"text": "a"}\nno json', ("d.jsonl: line 2", "JSON")),
                                     ("e.jsonl", b'{"content": "a"}', ("e.jsonl: line 1", '"text"')),
                                     ("f.txt", b"", ("--held-out", "text")),
                                     ("g.jsonl", b'{"text": "a"}\n{"text": "\\ud800"}', ("g.jsonl: line 2", "surrogate"))):
            (self.root / name).write_bytes(content)
            result = self.run_tool("prepare_text.py", "--input", name, "--output", "out")
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
            for word in words:
                self.assertIn(word, result.stderr)
            self.assertEqual([], list(self.root.glob("out*")), name)

    def test_messages_name_the_flag_of_a_file(self):
        (self.root / "model.json").write_text('{"vocab_size": 9}')
        (self.root / "text.txt").write_text("text")
        for flags, words in ((("--input", "absent.txt"), "--input absent.txt: "),
                             (("--input", "text.txt", "--tokenizer", "model.json"), "--tokenizer model.json: is not a tokenizer.json")):
            result = self.run_tool("prepare_text.py", *flags, "--output", "out")
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
            self.assertIn(words, result.stderr)

    def test_a_full_disk_leaves_nothing(self):
        (self.root / "in.txt").write_text(text(3000))
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        result = self.run_tool("prepare_text.py", "--input", "in.txt", "--output", "out", "--vocab-size", 300,
                               "--split", "blank-lines", preexec_fn=limit)
        self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
        self.assertIn("out", result.stderr)
        self.assertIn("File too large", result.stderr)
        self.assertEqual([], list(self.root.glob("out*")))

    def test_each_line_of_jsonl_is_one_document(self):
        (self.root / "in.jsonl").write_text("".join(json.dumps({"text": f"line {i}\n\nmore"}) + "\n" for i in range(50)))
        result = self.run_tool("prepare_text.py", "--input", "in.jsonl", "--output", "out", "--vocab-size", 270)
        self.assertEqual(result.returncode, 0, result.stderr)
        meta = json.loads((self.root / "out/meta.json").read_text())
        self.assertEqual(meta["train_documents"] + meta["valid_documents"], 50)

    def test_bad_arguments_print_one_line_and_write_nothing(self):
        for arguments, named in ((["--vocab-size", 100], "--vocab-size 100"), (["--vocab-size", 10**9], "--vocab-size 1000000000"), (["--held-out", 1.5], "--held-out 1.5"),
                                 (["--input", "absent.txt"], "absent.txt"), (["--tokenizer", "in.txt"], "--tokenizer in.txt")):
            result = self.prepare_text(*arguments)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
            self.assertIn(named, result.stderr)
            self.assertFalse((self.root / "out").exists(), arguments)

    def test_the_demo_is_split_in_entries_and_prepared_once(self):
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
