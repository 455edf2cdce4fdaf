#!/usr/bin/env python3
"""Tests the tokens of prepared documents with tokenizers of twelve kinds: tokens that begin and end documents, and control tokens whose
names are in the text."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
try:
    import numpy  # noqa: F401
    import tokenizers  # noqa: F401
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)

from document_tokens import document_tokens  # noqa: E402
from indexed_dataset import read_dataset  # noqa: E402
from summary import run_cases  # noqa: E402
from tokenizer_kinds import BEGIN, END, SPECIAL, TEXT, VOCABULARY, kinds, sentencepiece  # noqa: E402

END_OF_TEXT = SPECIAL.index("<|endoftext|>")
BOS = {"bos_token": "<s>"}


def begin(name, bos, config=None):
    return document_tokens(KINDS[name], TEXT, "<|endoftext|>", bos, config or {}, "control").begin


KINDS = kinds()
BEGIN_TOKENS = {"byte-level, begin": [BEGIN], "byte-level, prefix space, begin and end": [BEGIN], "SentencePiece, begin": [BEGIN],
                "SentencePiece, Metaspace, begin": [BEGIN], "SentencePiece without prefix, two begin tokens": [END_OF_TEXT, BEGIN],
                "WordPiece, begin and end": [BEGIN]}


class BeginTokens(unittest.TestCase):
    def test_follow_the_tokenizer(self):
        for name, tokenizer in KINDS.items():
            self.assertLessEqual(tokenizer.get_vocab_size(), VOCABULARY)
            self.assertEqual(BEGIN_TOKENS.get(name, []), begin(name, "auto"), name)
            self.assertEqual(BEGIN_TOKENS.get(name, []), begin(name, "auto", BOS), name)
            self.assertEqual([], begin(name, "off", BOS), name)
            self.assertEqual(BEGIN_TOKENS.get(name, [BEGIN]), begin(name, "on", BOS), name)

    def test_of_a_tokenizer_without_a_template_are_named_beside_it(self):
        for token in ("<s>", {"content": "<s>"}):
            self.assertEqual([BEGIN], begin("SentencePiece", "on", {"bos_token": token}))

    def test_that_do_not_exist_are_refused(self):
        for config, words in (({}, "--bos on: the tokenizer adds no token before a text"), ({"bos_token": "<bos>"}, "no token '<bos>'")):
            with self.assertRaisesRegex(ValueError, words):
                begin("SentencePiece", "on", config)


class Documents(unittest.TestCase):
    def test_have_the_begin_tokens_the_text_and_the_end_token(self):
        for name, tokenizer in KINDS.items():
            for bos in ("auto", "on", "off"):
                tokens = document_tokens(tokenizer, TEXT, "</s>", bos, BOS, "control")
                for text, ids in zip(TEXT, tokens.encode(tokenizer, TEXT)):
                    expected = begin(name, bos, BOS) + tokenizer.encode(text, add_special_tokens=False).ids + [END]
                    self.assertEqual(expected, ids, (name, bos))

    def test_with_the_name_of_a_control_token(self):
        text = "stone <|endoftext|> river </s>"
        for name, tokenizer in KINDS.items():
            def encoded(special_tokens):
                tokens = document_tokens(tokenizer, [text], "<|endoftext|>", "off", {}, special_tokens)
                return list(tokens.encode(tokenizer, [text]))[0][:-1]
            control = encoded("control")
            self.assertEqual([END_OF_TEXT, END], [token for token in control if token in (END_OF_TEXT, END)], name)
            self.assertEqual(control, tokenizer.encode(text, add_special_tokens=False).ids, name)
            if "Unigram" in name:  # its model has the names as ordinary entries
                with self.assertRaisesRegex(ValueError, "--special-tokens text: .* gives </s>, <\\|endoftext\\|> for a text"):
                    encoded("text")
            else:
                ids = encoded("text")
                self.assertTrue({END_OF_TEXT, END, BEGIN}.isdisjoint(ids), name)
                if "byte-level" in name or "SentencePiece" in name:
                    self.assertEqual(text, tokenizer.decode(ids, skip_special_tokens=False).removeprefix(" "), name)
            tokenizer.encode_special_tokens = False

    def test_of_prepare_text_are_recorded(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "in.txt").write_text("\n\n".join([*TEXT, "stone <|endoftext|> river"]), encoding="utf-8")
            sentencepiece("<s> $A").save(str(root / "tokenizer.json"))
            (root / "tokenizer_config.json").write_text(json.dumps(BOS | {"eos_token": "</s>"}))
            for output, flags, ids, special in (("auto", [], [BEGIN], "control"),
                                                ("off", ["--bos", "off", "--special-tokens", "text"], [], "text")):
                command = [sys.executable, ROOT / "python/prepare_text.py", "--input", root / "in.txt", "--output", root / output,
                           "--tokenizer", root, "--split", "blank-lines", "--held-out", "0", *flags]
                shown = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                meta = json.loads((root / output / "meta.json").read_text())
                self.assertEqual(shown, meta)
                self.assertEqual((ids, special), (meta["begin_ids"], meta["special_tokens"]))
                stream, starts = read_dataset(root / output / "train")
                for first, last in zip(starts[:-1], starts[1:]):
                    self.assertEqual(ids, [token for token in stream[first:last].tolist() if token == BEGIN])
                    self.assertEqual(END, stream[last - 1])
                self.assertEqual(special == "control", END_OF_TEXT in stream)


if __name__ == "__main__":
    run_cases()
