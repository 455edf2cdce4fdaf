#!/usr/bin/env python3
"""`tessera generate`: greedy tokens equal those of the numpy reference on every mesh; sampling, prompts, text, and refusals.

The reference computes in fp64 without a cache. The program computes in fp32 and fp64 with a cache. Their logits differ by about
1e-6 of
the largest logit. The models have fixed seeds, and the test asserts that no two greatest logits are that close.

The package tokenizers gives the expected text of tokenizers of twelve kinds (tests/tools/tokenizer_kinds.py). transformers must give
the same where it is installed: test_transformers.py explains $TRANSFORMERS_PYTHON, which needs no torch here.
"""
import json
import os
import shutil
import subprocess
import sys
import unittest

from program import ENVIRONMENT, ROOT, command, forked, run, scratch, tessera, write_documents, write_tokens
from summary import run_cases

sys.path.append(str(ROOT / "tests" / "reference"))
try:
    import numpy as np
    from llama import Llama, load_folder
    from mixtral import Mixtral
except ImportError:
    np = None
try:
    import tokenizers
    from tokenizer_kinds import BEGIN, SPECIAL, VOCABULARY, kinds
except ImportError:
    tokenizers = None

PROMPT = [17, 4, 130, 4, 4, 61, 99]
TOKENS = 60
MESHES = [[], ["--tp", 2], ["--gtp", 3], ["--tp", 2, "--gtp", 2], ["--tp", 3, "--dtype", "fp64"]]


def ids_text(ids):
    return ",".join(map(str, ids))


def write_model(folder, name, **changes):
    """Writes a configuration whose random weights give logits that are not close to each other."""
    path = folder / f"{name}.json"
    config = json.loads((ROOT / "configs" / name / "config.json").read_text())
    path.write_text(json.dumps(config | {"initializer_range": 0.3} | changes))
    return path


def initial_run(folder, name, **changes):
    """Returns a run of random weights."""
    tessera("train", "--model", write_model(folder, name, **changes), "--data", write_tokens(folder / "tokens", 131),
            "--seq-len", 16, "--seed", 5, "--steps", 0, "--out", folder / "run")
    return folder / "run"


def generated(path, *flags):
    return json.loads(tessera("generate", path, "--json", *flags))


def reference_tokens(hf, count):
    """Returns the greedy tokens of the numpy model, and the smallest distance of the two greatest logits, relative to the
    greatest."""
    config, weights = load_folder(hf)
    model = Mixtral(config, weights, "layer", 0.0) if config["model_type"] == "mixtral" else Llama(config, weights)
    tokens, closest = list(PROMPT), 1.0
    for _ in range(count):
        length = len(tokens)
        sample = {"tokens": np.array(tokens), "positions": np.arange(length), "mask": np.tril(np.ones((length, length), bool))}
        logits = model.forward(sample)[1][-1] @ model.w[model.output].T
        order = np.argsort(-logits)
        closest = min(closest, (logits[order[0]] - logits[order[1]]) / np.abs(logits).max())
        tokens.append(int(order[0]))
    return tokens[len(PROMPT):], closest


class Tokens(unittest.TestCase):
    def check_reference(self, name):
        folder = scratch(f"generate-{name}")
        source = initial_run(folder, name)
        tessera("convert", source, folder / "hf")
        expected, closest = reference_tokens(folder / "hf", TOKENS)
        self.assertGreater(closest, 1e-5)
        self.assertGreater(len(set(expected)), 8)
        for mesh in MESHES:
            found = generated(folder / "hf", "--prompt-ids", ids_text(PROMPT), "--tokens", TOKENS, *mesh)
            self.assertEqual({"prompt_ids": PROMPT, "ids": expected}, found, mesh)
        for path in (source, source / "checkpoints" / "step-00000000"):
            self.assertEqual(expected, generated(path, "--prompt-ids", ids_text(PROMPT), "--tokens", TOKENS)["ids"])

    @unittest.skipUnless(np, "numpy is missing")
    def test_of_a_llama_equal_the_reference(self):
        self.check_reference("llama-tiny-odd")

    @unittest.skipUnless(np, "numpy is missing")
    def test_of_a_mixtral_equal_the_reference(self):
        self.check_reference("mixtral-tiny-odd")

    def test_are_equal_on_meshes_with_more_ranks_than_heads(self):
        folder = scratch("generate-heads")
        for name, heads in (("qwen2-tiny-odd", 5), ("qwen3-tiny-odd", 5), ("qwen3-moe-tiny-odd", 5)):
            (folder / name).mkdir()
            source = initial_run(folder / name, name, vocab_size=131, num_attention_heads=heads, num_key_value_heads=1)
            expected = generated(source, "--prompt-ids", "3", "--tokens", 20)["ids"]
            self.assertEqual(20, len(expected))
            for mesh in (["--tp", heads + 1], ["--tp", 2, "--gtp", 3]):
                self.assertEqual(expected, generated(source, "--prompt-ids", "3", "--tokens", 20, *mesh)["ids"], (name, mesh))

    def test_of_another_type_than_the_stored_weights(self):
        folder = scratch("generate-types")
        tessera("train", "--model", write_model(folder, "llama-tiny-odd"), "--data", write_tokens(folder / "tokens", 131),
                "--seq-len", 16, "--global-batch", 4, "--dtype", "bf16", "--steps", 2, "--out", folder / "run")
        tessera("convert", folder / "run", folder / "hf", "--dtype", "fp32")  # from the masters
        flags = ["--prompt-ids", ids_text(PROMPT), "--tokens", 200]
        wide = generated(folder / "run", *flags, "--dtype", "fp32")
        self.assertEqual(wide, generated(folder / "hf", *flags))
        self.assertEqual(generated(folder / "run", *flags), generated(folder / "hf", *flags, "--dtype", "bf16"))
        self.assertNotEqual(wide, generated(folder / "run", *flags))

    def test_are_drawn_from_seed_and_position(self):
        source = initial_run(scratch("generate-draws"), "llama-tiny-odd")
        flags = ["--prompt-ids", ids_text(PROMPT), "--tokens", 40]
        greedy = generated(source, *flags)
        drawn = [generated(source, *flags, "--temperature", 2, "--top-p", 0.95, "--seed", seed) for seed in (1, 2)]
        self.assertNotEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0], greedy)
        self.assertEqual(drawn[0], generated(source, *flags, "--temperature", 2, "--top-p", 0.95))
        self.assertEqual(drawn[1], generated(source, *flags, "--temperature", 2, "--top-p", 0.95, "--seed", 2, "--tp", 2, "--gtp", 2))
        self.assertEqual(greedy, generated(source, *flags, "--temperature", 2, "--top-p", 1e-9, "--seed", 3))

    def test_stop_only_where_it_is_asked_for(self):
        folder = scratch("generate-stop")
        tessera("convert", initial_run(folder, "llama-tiny-odd"), folder / "hf")
        flags = ["--prompt-ids", ids_text(PROMPT), "--tokens", 40]
        everything = generated(folder / "hf", *flags)["ids"]
        end = everything[5]
        (folder / "hf" / "generation_config.json").write_text(json.dumps({"eos_token_id": [130, end]}))
        self.assertEqual(everything, generated(folder / "hf", *flags)["ids"])
        until = min(everything.index(token) for token in (130, end) if token in everything)
        self.assertEqual(everything[:until + 1], generated(folder / "hf", *flags, "--stop-at-eos", "--gtp", 2)["ids"])
        (folder / "hf" / "generation_config.json").unlink()
        self.assertEqual(2, run("generate", folder / "hf", *flags, "--stop-at-eos").returncode)
        config = json.loads((folder / "hf" / "config.json").read_text())
        (folder / "hf" / "config.json").write_text(json.dumps(config | {"eos_token_id": end}))
        self.assertEqual(end, generated(folder / "hf", *flags, "--stop-at-eos")["ids"][-1])


WORDS = "the quick brown fox jumps over a lazy dog while rain falls on quiet hills caf\u00e9 \u4e16\u754c river stone".split()


@unittest.skipUnless(tokenizers and np, "numpy or tokenizers is missing")
class Text(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("generate-text")
        text = [" ".join(WORDS[(7 * i + i * i * j + j) % len(WORDS)] for j in range(50)) for i in range(60)]
        (cls.folder / "own.txt").write_text("\n\n".join(text), encoding="utf-8")
        subprocess.run([sys.executable, ROOT / "python" / "prepare_text.py", "--input", cls.folder / "own.txt", "--output",
                        cls.folder / "data", "--vocab-size", "300", "--split", "blank-lines"], check=True, capture_output=True)
        model = write_model(cls.folder, "llama-tiny-odd", vocab_size=300)
        tessera("train", "--model", model, "--data", cls.folder / "data" / "train", "--seq-len", 16, "--global-batch", 8,
                "--steps", 30, "--lr", "3e-3", "--out", cls.folder / "run")
        cls.tokenizer = tokenizers.Tokenizer.from_file(str(cls.folder / "data" / "tokenizer.json"))

    def generate(self, path, *flags, text=None, python=sys.executable):
        return subprocess.run(forked(command("generate", path, *flags)), input=text, capture_output=True, check=False,
                              env={**ENVIRONMENT, "TESSERA_PYTHON": str(python)}, timeout=300)

    def json_of(self, *arguments, **options):
        result = self.generate(*arguments, "--json", **options)
        self.assertEqual(0, result.returncode, result.stderr)
        return json.loads(result.stdout)

    def test_is_that_of_the_tokenizer(self):
        prompt = "the quick caf\u00e9"
        found = self.json_of(self.folder / "run", "--prompt", prompt, "--tokens", 25)
        self.assertEqual(self.tokenizer.encode(prompt).ids, found["prompt_ids"])
        self.assertEqual(25, len(found["ids"]))
        self.assertEqual(self.tokenizer.decode(found["ids"], skip_special_tokens=False), found["text"])
        shown = self.generate(self.folder / "run", "--prompt", prompt, "--tokens", 25).stdout.decode()
        self.assertEqual(self.tokenizer.decode(found["prompt_ids"] + found["ids"], skip_special_tokens=False) + "\n", shown)
        ids = ["--prompt-ids", ids_text(found["prompt_ids"]), "--tokens", 25]
        self.assertEqual(found, self.json_of(self.folder / "run", *ids))
        self.assertEqual({"prompt_ids": found["prompt_ids"], "ids": found["ids"]},
                         self.json_of(self.folder / "run", *ids, python="/nonexistent/python"))

    def test_comes_from_files_and_standard_input(self):
        expected = self.json_of(self.folder / "run", "--prompt", "rain\nfalls \u4e16\u754c", "--tokens", 9)
        (self.folder / "prompt").write_text("rain\nfalls \u4e16\u754c", encoding="utf-8")
        self.assertEqual(expected, self.json_of(self.folder / "run", "--prompt-file", self.folder / "prompt", "--tokens", 9))
        self.assertEqual(expected, self.json_of(self.folder / "run", "--prompt-file", "-", "--tokens", 9, "--tp", 2,
                                                text="rain\nfalls \u4e16\u754c".encode()))

    def test_may_be_empty_if_the_tokenizer_adds_a_token(self):
        folder = self.folder / "begins"
        tessera("convert", self.folder / "run", folder)
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<|endoftext|> $A",
                                                                            special_tokens=[("<|endoftext|>", 0)])
        tokenizer.save(str(folder / "tokenizer.json"))
        self.assertEqual([0], self.json_of(folder, "--prompt", "", "--tokens", 2)["prompt_ids"])

    def test_goes_with_runs_checkpoints_and_folders(self):
        run_folder, folder = self.folder / "run", self.folder
        expected = self.json_of(run_folder, "--prompt", "the dog", "--tokens", 12)
        files = {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}
        self.assertEqual(files, {path.name for path in (run_folder / "tokenizer").iterdir()})
        tessera("convert", run_folder, folder / "hf")
        tessera("convert", folder / "hf", folder / "checkpoint")
        tessera("convert", folder / "checkpoint", folder / "again")
        self.assertEqual(files | {"config.json", "model.safetensors"}, {path.name for path in (folder / "hf").iterdir()})
        for path in sorted((folder / "hf").iterdir()):
            self.assertEqual(path.read_bytes(), (folder / "again" / path.name).read_bytes(), path.name)
        end = self.tokenizer.token_to_id("<|endoftext|>")
        for name in ("config.json", "generation_config.json"):
            self.assertEqual(end, json.loads((folder / "hf" / name).read_text())["eos_token_id"])
        data = ["--data", folder / "data" / "train", "--seq-len", 16, "--global-batch", 8]
        tessera("train", "--init", folder / "hf", *data, "--steps", 0, "--out", folder / "tuned")
        tessera("train", "--resume", folder / "checkpoint", *data, "--steps", 0, "--out", folder / "resumed")
        # Without the data's tokenizer, the run takes that of the checkpoint.
        bare = folder / "bare"
        bare.mkdir()
        for suffix in ("bin", "idx"):
            shutil.copy(folder / "data" / f"train.{suffix}", bare)
        tessera("train", "--resume", run_folder, "--data", bare / "train", "--steps", 30, "--out", folder / "moved")
        for path in ("hf", "checkpoint", "again", "tuned", "resumed", "moved", "run/checkpoints/step-00000030"):
            self.assertEqual(expected, self.json_of(folder / path, "--prompt", "the dog", "--tokens", 12), path)

    def test_that_is_wrong_is_refused(self):
        source = self.folder / "run"
        (self.folder / "latin1").write_bytes("caf\u00e9".encode("latin1"))
        (self.folder / "nothing").write_bytes(b"")
        tessera("convert", source, self.folder / "broken")
        (self.folder / "broken" / "tokenizer.json").write_text('{"version": "1.0"}')
        other = self.folder / "other"  # a model with fewer tokens than the tokenizer
        other.mkdir()
        tessera("convert", initial_run(other, "llama-tiny-odd"), other / "hf")
        shutil.copy(self.folder / "data" / "tokenizer.json", other / "hf")
        for flags, words in ((["--prompt-file", self.folder / "latin1"], "byte 3 of the text is not UTF-8"),
                             (["--prompt-file", self.folder / "nothing"], "--prompt-file: the prompt is empty"),
                             (["--prompt", ""], "--prompt: the prompt is empty"),
                             (["--prompt", "dog " * 600], "expected at most 512 (max_position_embeddings"),
                             (["--prompt", "dog", "--tokens", 600], "--tokens: got 600 after a prompt of "),
                             (["--prompt-file", self.folder / "absent"], "is not a file")):
            self.check_refusal(self.generate(source, *flags), words)
        self.check_refusal(self.generate(source, "--prompt", "dog", python="/nonexistent/python"), "no Python with the package tokenizers")
        self.check_refusal(self.generate(source, "--prompt-file", "-", text=b"\xc0\xaf"), "byte 0 of the text is not UTF-8")
        self.check_refusal(self.generate(self.folder / "broken", "--prompt", "dog"), "tokenizer.json: ")
        found = self.generate(self.folder / "broken", "--prompt-ids", "1", "--tokens", 2, "--json")  # ids are known without text
        self.assertEqual([1], json.loads(found.stdout)["prompt_ids"])
        self.assertIn(b"warning: no text: ", found.stderr)
        self.check_refusal(self.generate(other / "hf", "--prompt", "the dog"), "expected 0 to 130: the model has a vocabulary of 131")

    def check_refusal(self, result, words):
        self.assertEqual(2, result.returncode, result.stderr)
        self.assertEqual(b"", result.stdout)
        lines = result.stderr.decode().splitlines()
        self.assertEqual(1, len(lines), lines)
        self.assertIn(words, lines[0])


TRANSFORMERS = os.environ.get("TRANSFORMERS_PYTHON", sys.executable)
TEXT_PROMPT = "the quick  river caf\u00e9 \u4e16\u754c don't"
NEW_TOKENS = 9
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


@unittest.skipUnless(tokenizers, "tokenizers is missing")
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

    def generated(self, path, *flags, prompt=TEXT_PROMPT):
        words = forked(command("generate", path, "--prompt", prompt, "--tokens", NEW_TOKENS, *flags))
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
            new = self.check(name, self.folder / "hf", tokenizer.encode(TEXT_PROMPT).ids)
            cases.append({"folder": str(self.folder / name), "prompt": TEXT_PROMPT, "new": new})
            self.store(self.folder / name, tokenizer)
        if not has_transformers():
            return
        answers = subprocess.run([TRANSFORMERS, "-c", AS_TRANSFORMERS], input=json.dumps(cases), capture_output=True, text=True, check=True,
                                 env={**os.environ, "HF_HUB_OFFLINE": "1"}, timeout=300)
        for (name, tokenizer), case, answer in zip(self.kinds.items(), cases, json.loads(answers.stdout)):
            ids = tokenizer.encode(TEXT_PROMPT).ids
            self.assertEqual({"ids": ids, "bare": tokenizer.encode(TEXT_PROMPT, add_special_tokens=False).ids,
                              "prompt": tokenizer.decode(ids, skip_special_tokens=False),
                              "all": tokenizer.decode(ids + case["new"], skip_special_tokens=False)}, answer, name)
        print(f"transformers: {len(cases)} tokenizers give equal ids and texts", flush=True)

    def test_begin_prompts_with_the_ids_of_the_run(self):
        for name, tokenizer in self.kinds.items():
            bare, ids = tokenizer.encode(TEXT_PROMPT, add_special_tokens=False).ids, tokenizer.encode(TEXT_PROMPT).ids
            end = [ids[-1]] if "end" in name else []
            # The run does the opposite of the tokenizer.
            path, begin = (self.runs["off"], []) if "begin" in name else (self.runs["on"], [BEGIN])
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


class Refusals(unittest.TestCase):
    def test_name_the_flag(self):
        folder = scratch("generate-refusals")
        source = initial_run(folder, "llama-tiny-odd")
        ids = ["--prompt-ids", "1"]
        for path, flags, words in (
                (source, [], "--prompt is missing"),
                (source, [*ids, "--prompt", "a"], "got several of them"),
                (source, ["--prompt", "a"], "--prompt: no tokenizer is known for"),
                (source, ["--prompt-ids", ""], "--prompt-ids: the prompt is empty"),
                (source, ["--prompt-ids", "1,131"], "--prompt-ids: got token 131, expected 0 to 130"),
                (source, ["--prompt-ids=-1"], "--prompt-ids: got token -1"),
                (source, ["--prompt-ids", "1,x"], "--prompt-ids: got 'x'"),
                (source, ["--prompt-ids", "1,,2"], "--prompt-ids: got ''"),
                (source, ["--prompt-ids", ids_text([1] * 513)], "--prompt-ids: the prompt has 513 tokens, expected at most 512"),
                (source, ["--prompt-ids", ids_text([1] * 512), "--tokens", 2], "--tokens: got 2 after a prompt of 512 tokens, expected at most 1"),
                (source, [*ids, "--tokens", 0], "--tokens: got 0"),
                (source, ["--prompt-ids", "1,2,3", "--tokens", 2**63 - 1], "--tokens: got 9223372036854775807 after a prompt of 3 tokens"),
                (source, [*ids, "--top-p", 0], "--top-p: got 0"),
                (source, [*ids, "--top-p", 1.01], "--top-p: got 1.01"),
                (source, [*ids, "--top-p", "nan"], "--top-p: got nan"),
                (source, [*ids, "--temperature=-0.5"], "--temperature: got -0.5"),
                (source, [*ids, "--temperature", "nan"], "--temperature: got nan"),
                (source, [*ids, "--temperature", "inf"], "--temperature: got inf"),
                (source, [*ids, "--gtp", 5000], "expected at most 1024"),
                (source, [*ids, "--backend", "mpi"], "--backend: got mpi"),
                (source, [*ids, "--stop-at-eos"], "--stop-at-eos: the token that ends a text is not known"),
                (folder / "absent", ids, "does not exist"),
                (folder / "tokens.bin", ids, "is a file")):
            result = run("generate", path, *flags)
            self.assertEqual((2, ""), (result.returncode, result.stdout), (flags, result.stderr))
            self.assertEqual(1, len(result.stderr.splitlines()), result.stderr)
            self.assertIn(words, result.stderr)

    def test_of_a_full_context_is_not_one(self):
        source = initial_run(scratch("generate-full"), "llama-tiny-odd")
        self.assertEqual(1, len(generated(source, "--prompt-ids", ids_text([1] * 512), "--tokens", 1)["ids"]))
        self.assertEqual(3, len(generated(source, "--prompt-ids", ids_text([1] * 510), "--tokens", 3, "--tp", 2)["ids"]))

    def test_of_damaged_weights(self):
        folder = scratch("generate-damaged")
        source = initial_run(folder, "llama-tiny-odd")
        part = next((source / "checkpoints" / "step-00000000").glob("part-*"))
        data = bytearray(part.read_bytes())
        data[-100] ^= 1
        part.write_bytes(data)
        result = run("generate", source, "--prompt-ids", "1")
        self.assertEqual(2, result.returncode)
        self.assertIn("damaged", result.stderr)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    run_cases()
