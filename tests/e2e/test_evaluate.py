#!/usr/bin/env python3
"""`tessera evaluate`: the loss equals the held-out loss of training and that of the numpy reference, counts every sample once on
every mesh, and refuses wrong inputs.
"""
import json
import math
import os
import subprocess
import sys
import unittest

from program import ENVIRONMENT, ROOT, command, run, scratch, tessera, write_documents, write_tokens
from summary import run_cases

sys.path.append(str(ROOT / "tests" / "reference"))
try:
    from llama import Llama, load_folder
    from mixtral import Mixtral
    from samples import Samples
    from train_reference import held_out_loss
except ImportError:
    held_out_loss = None

# In fp64 sums have at most 1e5 terms of epsilon 1.1e-16.
BOUND = 1e-10


def evaluated(path, data, *flags):
    return json.loads(tessera("evaluate", path, "--data", data, "--json", *flags))


class Evaluate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("evaluate")
        cls.data = write_tokens(cls.folder / "tokens", 131)
        # 7 samples of 16 tokens, and a rest that is not a sample.
        cls.short = write_documents(cls.folder / "short", [[(7 * i * i + i) % 131 for i in range(50)], [3] * 70])
        cls.runs = {}
        for model in ("llama-tiny-odd", "mixtral-tiny-odd"):
            cls.runs[model] = cls.folder / model
            tessera("train", "--model", model, "--data", cls.data, "--valid", cls.short, "--seq-len", 16, "--global-batch", 8,
                    "--micro-batch", 2, "--dtype", "fp64", "--lr", 5e-3, "--steps", 3, "--out", cls.runs[model])
            tessera("convert", cls.runs[model], cls.folder / f"{model}-hf")

    def test_equals_the_held_out_loss_of_training(self):
        for model, path in self.runs.items():
            trained = json.loads((path / "summary.json").read_text())["valid_loss"]
            found = evaluated(path, self.short, "--seq-len", 16, "--micro-batch", 2)
            self.assertEqual({"loss": trained, "perplexity": math.exp(trained), "tokens": 112, "samples": 7}, found)
            hf = self.folder / f"{model}-hf"
            self.assertEqual(found, evaluated(hf, self.short, "--seq-len", 16, "--micro-batch", 2))

    def test_a_terminal_shows_the_size_first(self):
        terminal, end = os.openpty()
        self.addCleanup(os.close, terminal)
        result = subprocess.run(command("evaluate", self.runs["llama-tiny-odd"], "--data", self.short, "--seq-len", 16, "--json"),
                                stdout=subprocess.PIPE, stderr=end, text=True, check=True, env=ENVIRONMENT, timeout=120)
        os.close(end)
        self.assertEqual("evaluating 7 samples of 16 tokens\r\n", os.read(terminal, 1000).decode())
        self.assertEqual(7, json.loads(result.stdout)["samples"])

    def test_has_the_same_bits_over_gtp_and_dp(self):
        for path in self.runs.values():
            for micro_batch in (1, 3):  # 3 does not divide 7
                flags = ["--seq-len", 16, "--micro-batch", micro_batch]
                one = evaluated(path, self.short, *flags)
                for mesh in (["--gtp", 3], ["--dp", 2], ["--gtp", 2, "--dp", 3], ["--gtp", 9]):
                    found = evaluated(path, self.short, *flags, *mesh)
                    self.assertEqual((one["tokens"], one["samples"]), (found["tokens"], found["samples"]))
                    if "--dp" not in mesh:
                        self.assertEqual(one, found, mesh)
                    self.assertAlmostEqual(one["loss"], found["loss"], delta=BOUND, msg=mesh)

    def test_agrees_over_tp_batches_and_types(self):
        for path in self.runs.values():
            expected = evaluated(path, self.data, "--seq-len", 33)
            for flags in (["--tp", 2], ["--tp", 3, "--gtp", 2], ["--micro-batch", 5], ["--micro-batch", 1000]):
                found = evaluated(path, self.data, "--seq-len", 33, *flags)
                self.assertEqual(expected["tokens"], found["tokens"])
                self.assertAlmostEqual(expected["loss"], found["loss"], delta=BOUND, msg=flags)
            wide = evaluated(path, self.data, "--seq-len", 33, "--dtype", "fp32")
            self.assertAlmostEqual(expected["loss"], wide["loss"], delta=1e-5)
            self.assertNotEqual(expected["loss"], wide["loss"])

    @unittest.skipUnless(held_out_loss, "numpy is missing")
    def test_equals_the_reference(self):
        for model in self.runs:
            for masked in (False, True):
                config, weights = load_folder(self.folder / f"{model}-hf")
                reference = Mixtral(config, weights, "layer", 0.0) if "mixtral" in model else Llama(config, weights)
                samples = Samples(str(self.short), 16, 0, masked).in_order()
                found = evaluated(self.folder / f"{model}-hf", self.short, "--seq-len", 16, "--mask-documents", "on" if masked else "off")
                self.assertAlmostEqual(held_out_loss(reference, samples), found["loss"], delta=BOUND)
                self.assertEqual(sum(int((sample["targets"] >= 0).sum()) for sample in samples), found["tokens"])
                self.assertEqual(112 - masked, found["tokens"])  # one target is the first token of a document

    def test_data_of_another_tokenizer_has_a_warning(self):
        data = {}
        for name, vocabulary in (("same", {"a": 0, "b": 1}), ("other", {"a": 1, "b": 0})):
            folder = self.folder / name
            folder.mkdir()
            data[name] = write_tokens(folder / "tokens", 131)
            (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": [], "model": {"vocab": vocabulary}}))
        flags = ["--seq-len", 16, "--global-batch", 4, "--steps", 1]
        tessera("train", "--model", "llama-tiny-odd", "--data", data["same"], *flags, "--out", self.folder / "own")
        tessera("convert", self.folder / "own", self.folder / "own-hf")
        for name, count in (("same", 0), ("other", 1)):
            text = tessera("train", "--init", self.folder / "own-hf", "--data", data[name], *flags, "--out", self.folder / f"from-{name}")
            self.assertEqual(count, text.count("warning: the tokenizer beside --data differs from that of the model"), text)
            result = run("evaluate", self.folder / "own", "--data", data[name], "--seq-len", 16)
            self.assertEqual((0, count), (result.returncode, result.stderr.count("tessera: warning: the tokenizer beside --data differs")))
            self.assertIn(f"warning: the model {self.folder / 'own'} has a vocabulary of 131, but the tokenizer", result.stderr)
        new, differs = ["--model", "llama-tiny-odd", *flags], "warning: the tokenizer beside --{} differs from that {}: {} and {} have"
        own, beside = ["of the model", self.folder / "own" / "tokenizer"], [f"beside --data {data['same']}", self.folder / "same"]
        for number, (read, flag, (owner, other)) in enumerate((
                ([*new, "--data", data["same"], "--valid", data["other"]], "valid", beside),
                ([*new, "--data", 1, data["same"], 1, data["other"]], "data", beside),
                (["--resume", self.folder / "own", "--valid", data["other"], "--steps", 2], "valid", own))):
            text = tessera("train", *read, "--out", self.folder / f"warned-{number}")
            self.assertEqual(1, text.count(differs.format(flag, owner, self.folder / "other", other)), text)
            self.assertEqual(1, text.count("warning: the model llama-tiny-odd has a vocabulary of 131, but the tokenizer"), text)

    def test_needs_a_target(self):
        single = write_documents(self.folder / "single", [[7]] * 40)
        path, flags = self.runs["llama-tiny-odd"], ["--seq-len", 16, "--mask-documents"]
        words = f"no token of '{single}' is a target, because each document is a single token and --mask-documents is on"
        self.assertEqual(32, evaluated(path, single, *flags, "off")["tokens"])
        train = ["train", "--model", "llama-tiny-odd", "--global-batch", 2, "--steps", 1, *flags]
        for name, refused in (("--data", ["evaluate", path, "--data", single, *flags, "on", "--gtp", 2]),
                              ("--data", [*train, "on", "--data", single, "--out", self.folder / "refused"]),
                              ("--valid", [*train, "on", "--data", self.data, "--valid", single, "--out", self.folder / "refused"])):
            result = run(*refused)
            self.assertEqual((2, "", 1), (result.returncode, result.stdout, len(result.stderr.splitlines())), result.stderr)
            self.assertIn(f"{name}: {words}", result.stderr)
        self.assertFalse((self.folder / "refused").exists())

    def test_a_step_without_targets_has_no_loss(self):
        # Samples of 4 tokens: with documents of one token, only the samples of the last document have targets.
        mixed = write_documents(self.folder / "mixed", [[7]] * 40 + [list(range(1, 42))])
        for model in ("llama-tiny-odd", "mixtral-tiny-odd"):
            out = self.folder / f"mixed-{model}"
            tessera("train", "--model", model, "--data", mixed, "--seq-len", 4, "--global-batch", 1, "--mask-documents", "on", "--steps", 8,
                    "--out", out)
            steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
            self.assertEqual({True, False}, {step["tokens"] == 0 for step in steps})
            for step in steps:
                self.assertEqual(step["tokens"] == 0, step["loss"] == "NaN", step)
                self.assertEqual(model == "mixtral-tiny-odd" and step["tokens"] > 0, "expert_load" in step, step)
                self.assertGreaterEqual(step["grad_norm"], 0)
            empty = sum(step["tokens"] == 0 for step in steps)
            shown = tessera("plot", out)
            self.assertIn(f"{empty} steps had no target, so they have no loss", shown)
            self.assertNotIn("losses are not finite", shown)

    def test_shows_the_result_as_text(self):
        found = evaluated(self.runs["llama-tiny-odd"], self.short, "--seq-len", 16)
        self.assertEqual(f"loss {found['loss']:.6f}, perplexity {found['perplexity']:.4f}: 112 tokens in 7 samples\n",
                         tessera("evaluate", self.runs["llama-tiny-odd"], "--data", self.short, "--seq-len", 16))

    def test_shows_a_loss_that_is_not_finite(self):
        out = self.folder / "not-finite"
        tessera("train", "--model", "llama-tiny-odd", "--data", self.data, "--seq-len", 16, "--global-batch", 4, "--steps", 1,
                "--lr", 1e38, "--lr-schedule", "constant", "--out", out)
        flags = ["evaluate", out, "--data", self.short, "--seq-len", 16]
        self.assertEqual("loss nan, perplexity nan: 112 tokens in 7 samples\n", tessera(*flags))
        self.assertEqual({"loss": "NaN", "perplexity": "NaN", "tokens": 112, "samples": 7}, json.loads(tessera(*flags, "--json")))

    def test_refuses_wrong_inputs(self):
        path = self.runs["llama-tiny-odd"]
        (self.folder / "bad.bin").write_bytes(b"")
        write_documents(self.folder / "large", [[5, 131, 7]])
        for arguments, words in (([path], "--data is required"),
                                 ([path, "--data", self.folder / "absent"], "absent.idx"),
                                 ([path, "--data", self.folder / "large", "--seq-len", 2], "token at byte 2 is 131, expected 0 to 130"),
                                 ([path, "--data", self.short, "--seq-len", 120], "expected at least 121"),
                                 ([path, "--data", self.short, "--seq-len", 0], "--seq-len: got 0"),
                                 ([path, "--data", self.short, "--seq-len", 513], "expected at most 512"),
                                 ([path, "--data", self.short, "--seq-len", 4, "--backend", "mpi"], "--backend: got mpi"),
                                 ([path, "--data", self.short, "--seq-len", 4, "--micro-batch", 0], "--micro-batch: got 0"),
                                 ([self.folder / "absent", "--data", self.short], "does not exist")):
            result = run("evaluate", *arguments)
            self.assertEqual((2, ""), (result.returncode, result.stdout), (arguments, result.stderr))
            self.assertEqual(1, len(result.stderr.splitlines()), result.stderr)
            self.assertIn(words, result.stderr)


if __name__ == "__main__":
    run_cases()
