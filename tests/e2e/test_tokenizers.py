#!/usr/bin/env python3
"""`tessera generate` with tokenizers of twelve kinds (tests/tools/tokenizer_kinds.py): prompt, whole text and continuation, with the begin
tokens of the tokenizer and with those that a run stores.

The package tokenizers gives the expected results. transformers must give the same where it is installed: test_transformers.py explains
$TRANSFORMERS_PYTHON, which needs no torch here.
"""
import json
import os
import subprocess
import sys
import unittest

from program import ENVIRONMENT, ROOT, command, forked, run, scratch, tessera, write_documents
from summary import run_cases

try:
    from tokenizer_kinds import BEGIN, SPECIAL, VOCABULARY, kinds
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)

TRANSFORMERS = os.environ.get("TRANSFORMERS_PYTHON", sys.executable)
PROMPT = "the quick  river caf\u00e9 \u4e16\u754c don't"
TOKENS = 9
# Reads {folder, prompt, lists of new ids} and prints the ids of the prompt and the texts of transformers.
AS_TRANSFORMERS = """
import json, sys, transformers
answers = []
for case in json.load(sys.stdin):
    tokenizer = transformers.AutoTokenizer.from_pretrained(case["folder"])
    ids = tokenizer(case["prompt"]).input_ids
    answers.append({"ids": ids, "bare": tokenizer(case["prompt"], add_special_tokens=False).input_ids,
                    "prompt": tokenizer.decode(ids), "all": tokenizer.decode(ids + case["new"])})
json.dump(answers, sys.stdout)
"""


def has_transformers():
    return subprocess.run([TRANSFORMERS, "-c", "import transformers"], capture_output=True, check=False).returncode == 0


class Kinds(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("tokenizers")
        config = json.loads((ROOT / "configs" / "llama-tiny-odd" / "config.json").read_text())
        (cls.folder / "model.json").write_text(json.dumps(config | {"vocab_size": VOCABULARY, "initializer_range": 0.3}))
        cls.runs = {name: cls.initial_run(name, begin) for name, begin in (("off", []), ("on", [BEGIN]))}
        tessera("convert", cls.runs["off"], cls.folder / "hf")
        cls.kinds = kinds()

    @classmethod
    def initial_run(cls, name, begin):
        """Returns a run on data whose documents begin with these ids."""
        data, out = cls.folder / f"data-{name}", cls.folder / name
        data.mkdir()
        (data / "meta.json").write_text(json.dumps({"begin_ids": begin}))
        write_documents(data / "train", [[5] * 40])
        tessera("train", "--model", cls.folder / "model.json", "--data", data / "train", "--seq-len", 16, "--steps", 0, "--out", out)
        return out

    def generated(self, path, *flags, prompt=PROMPT):
        words = forked(command("generate", path, "--prompt", prompt, "--tokens", TOKENS, *flags))
        result = subprocess.run(words, capture_output=True, check=False, timeout=300,
                                env={**ENVIRONMENT, "TESSERA_PYTHON": sys.executable})
        self.assertEqual((0, b""), (result.returncode, result.stderr), path)
        return result.stdout.decode()

    def store(self, folder, tokenizer):
        folder.mkdir(exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[-1]}))

    def check(self, name, path, ids):
        """Checks the result for a prompt with these ids. Returns the new ids."""
        tokenizer = self.kinds[name]
        found = json.loads(self.generated(path, "--json"))
        self.assertEqual(ids, found["prompt_ids"], name)
        before, everything = (tokenizer.decode(part, skip_special_tokens=False) for part in (ids, ids + found["ids"]))
        self.assertTrue(everything.startswith(before), name)
        self.assertEqual(everything, before + found["text"], name)
        return found["ids"]

    def test_give_the_prompt_and_the_text_of_the_library(self):
        cases = []
        for name, tokenizer in self.kinds.items():
            self.store(self.folder / "hf", tokenizer)
            new = self.check(name, self.folder / "hf", tokenizer.encode(PROMPT).ids)
            cases.append({"folder": str(self.folder / name), "prompt": PROMPT, "new": new})
            self.store(self.folder / name, tokenizer)
        if not has_transformers():
            return
        answers = subprocess.run([TRANSFORMERS, "-c", AS_TRANSFORMERS], input=json.dumps(cases), capture_output=True, text=True, check=True,
                                 env={**os.environ, "HF_HUB_OFFLINE": "1"}, timeout=300)
        for (name, tokenizer), case, answer in zip(self.kinds.items(), cases, json.loads(answers.stdout)):
            ids = tokenizer.encode(PROMPT).ids
            self.assertEqual({"ids": ids, "bare": tokenizer.encode(PROMPT, add_special_tokens=False).ids,
                              "prompt": tokenizer.decode(ids, skip_special_tokens=False),
                              "all": tokenizer.decode(ids + case["new"], skip_special_tokens=False)}, answer, name)
        print(f"transformers: {len(cases)} tokenizers give equal ids and texts", flush=True)

    def test_begin_prompts_with_the_ids_of_the_run(self):
        for name, tokenizer in self.kinds.items():
            bare, ids = tokenizer.encode(PROMPT, add_special_tokens=False).ids, tokenizer.encode(PROMPT).ids
            end = [ids[-1]] if "end" in name else []
            for path, begin in ((self.runs["off"], []), (self.runs["on"], [BEGIN])):
                self.store(path / "tokenizer", tokenizer)
                self.check(name, path, begin + bare + end)

    def test_the_plain_output_is_the_whole_text(self):
        for name in ("SentencePiece", "byte-level, begin"):
            self.store(self.folder / "hf", self.kinds[name])
            found = json.loads(self.generated(self.folder / "hf", "--json"))
            before = self.kinds[name].decode(found["prompt_ids"], skip_special_tokens=False)
            self.assertEqual(before + found["text"] + "\n", self.generated(self.folder / "hf"))

    def test_the_record_of_a_run_may_give_an_empty_prompt_a_token(self):
        tokenizer = self.kinds["SentencePiece"]
        for path, ids in ((self.runs["off"], None), (self.runs["on"], [BEGIN])):
            self.store(path / "tokenizer", tokenizer)
            if ids:
                self.assertEqual(ids, json.loads(self.generated(path, "--json", prompt=""))["prompt_ids"])
            else:
                result = run("generate", path, "--prompt", "", TESSERA_PYTHON=sys.executable)
                self.assertEqual(2, result.returncode)
                self.assertIn("--prompt: the prompt is empty", result.stderr)

    def test_the_record_is_kept_by_runs_and_checkpoints(self):
        config = json.loads((self.runs["on"] / "config.json").read_text())
        manifest = json.loads((self.runs["on"] / "checkpoints" / "step-00000000" / "manifest.json").read_text())
        self.assertEqual(([BEGIN], [BEGIN]), (config["begin_ids"], manifest["state"]["begin_ids"]))
        # A resumed run whose data has no record keeps that of the checkpoint.
        data = self.folder / "bare"
        data.mkdir()
        write_documents(data / "train", [[5] * 40])
        tessera("train", "--resume", self.runs["on"], "--data", data / "train", "--steps", 0, "--out", self.folder / "resumed")
        self.assertEqual([BEGIN], json.loads((self.folder / "resumed" / "config.json").read_text())["begin_ids"])
        # A data set with a faulty record is refused.
        (data / "meta.json").write_text('{"begin_ids": ["<s>"]}')
        result = run("train", "--model", self.folder / "model.json", "--data", data / "train", "--seq-len", 16, "--steps", 0, "--out",
                     self.folder / "refused")
        self.assertEqual((2, 1, False), (result.returncode, len(result.stderr.splitlines()), (self.folder / "refused").exists()))
        self.assertIn('meta.json: begin_ids: got ["<s>"], expected a list of token ids', result.stderr)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    run_cases()
