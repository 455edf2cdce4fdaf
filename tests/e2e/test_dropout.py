#!/usr/bin/env python3
"""Tests dropout in whole runs: the same masks on every mesh and after a resume, evaluations without dropout, and refusals."""
import json
import unittest

from program import bits, metrics, run, scratch, tessera, write_tokens
from summary import run_cases

STEPS = 4
DROPOUT = ("--hidden-dropout", 0.2, "--embedding-dropout", 0.1)


class Dropout(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("dropout")
        cls.data = write_tokens(cls.folder / "tokens", 131)
        cls.flags = ["train", "--data", cls.data, "--seq-len", 16, "--seed", 5, "--dtype", "fp64"]
        cls.whole = cls.train("whole", *DROPOUT, "--save-every", 2)

    @classmethod
    def train(cls, name, *more, model="llama-tiny-odd", batch=12, lr=3e-3):
        out = cls.folder / name
        tessera(*cls.flags, "--model", model, "--lr", lr, "--global-batch", batch, "--steps", STEPS, "--out", out, *more)
        return bits(out)

    def settings(self, name):
        return json.loads((self.folder / name / "config.json").read_text())["config"]

    def summary(self, name):
        return json.loads((self.folder / name / "summary.json").read_text())

    def check_close(self, expected, found):
        for (step, loss, norm), (_, other_loss, other_norm) in zip(expected["steps"], found["steps"], strict=True):
            self.assertAlmostEqual(loss, other_loss, delta=1e-9 * loss, msg=f"loss of step {step}")
            self.assertAlmostEqual(norm, other_norm, delta=1e-9 * norm, msg=f"norm of step {step}")

    def test_gtp_and_a_repeated_step_give_the_same_bits(self):
        self.assertEqual(self.whole, self.train("gtp", *DROPOUT, "--gtp", 2, "--recompute", "full", "--debug-suppress", 3))

    def test_other_meshes_and_micro_batches_have_the_same_masks(self):
        for number, flags in enumerate([("--tp", 3, "--sequence-parallel", "on"), ("--dp", 2, "--micro-batch", 3),
                                        ("--tp", 2, "--dp", 2, "--dead", "dp1:0", "--reduced-batch", 5)]):
            with self.subTest(flags):
                self.check_close(self.whole, self.train(f"mesh-{number}", *DROPOUT, *flags))

    def test_experts_have_the_same_masks(self):
        one = self.train("experts", *DROPOUT, model="mixtral-tiny-odd", batch=4)
        self.check_close(one, self.train("experts-tp", *DROPOUT, "--tp", 2, "--ep", 2, "--sequence-parallel", "on",
                                         model="mixtral-tiny-odd", batch=4))

    def test_a_resumed_run_keeps_the_settings_and_the_masks(self):
        checkpoint = self.folder / "whole" / "checkpoints" / "step-00000002"
        tessera("train", "--resume", checkpoint, "--ranks", 2, "--gtp", 2, "--out", self.folder / "resumed")
        rest = bits(self.folder / "resumed")
        self.assertEqual(self.whole["tensors"], rest["tensors"])
        self.assertEqual(self.whole["steps"][2:], rest["steps"])
        settings = self.settings("resumed")
        self.assertEqual((0.2, 0.1), (settings["hidden_dropout"], settings["embedding_dropout"]))
        summary = self.summary("resumed")
        self.assertEqual((0.2, 0.1), (summary["hidden_dropout"], summary["embedding_dropout"]))
        tessera("train", "--resume", checkpoint, "--hidden-dropout", 0, "--out", self.folder / "changed")
        self.assertNotEqual(rest["steps"], bits(self.folder / "changed")["steps"])

    def test_a_probability_of_zero_is_a_run_without_dropout(self):
        plain = self.train("plain", "--valid", self.data)
        self.assertEqual(plain, self.train("zero", "--valid", self.data, "--hidden-dropout", 0, "--embedding-dropout", 0))
        self.assertNotIn("hidden_dropout", self.summary("zero"))
        self.assertNotEqual(plain, self.whole)

    def test_evaluations_drop_nothing(self):
        """The weights do not change at a rate of 0."""
        for name, flags in (("evaluated", ()), ("evaluated-dropout", DROPOUT)):
            self.train(name, "--valid", self.data, "--eval-every", 2, *flags, lr=0)
        losses = [[line["valid_loss"] for line in metrics(self.folder / name) if line.get("valid_loss")]
                  for name in ("evaluated", "evaluated-dropout")]
        self.assertEqual(2, len(losses[0]))
        self.assertEqual(losses[0], losses[1])

    def test_invalid_settings_are_refused(self):
        model = json.loads((self.folder / "whole" / "config.json").read_text())["model"] | {"attention_dropout": 0.1}
        (self.folder / "attention.json").write_text(json.dumps(model))
        start = ["--data", self.data, "--steps", 1, "--out", self.folder / "refused"]
        for flags, expected in [
                (("--hidden-dropout", 1), "--hidden-dropout: got 1.0, expected a number of at least 0 and below 1"),
                (("--embedding-dropout", -0.5), "--embedding-dropout: got -0.5, expected a number of at least 0"),
                (("--attention-dropout", 0.1), "--attention-dropout: got"),
                (("--model", self.folder / "attention.json"), "field 'attention_dropout' is 0.1, expected 0: attention dropout is not supported")]:
            with self.subTest(flags):
                model = () if "--model" in flags else ("--model", "llama-tiny-odd")
                result = run("train", *start, *model, *flags)
                self.assertEqual(2, result.returncode, result.stderr)
                self.assertIn(expected, result.stderr)
                self.assertFalse((self.folder / "refused").exists())


if __name__ == "__main__":
    run_cases()
