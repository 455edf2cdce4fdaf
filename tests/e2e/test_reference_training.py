#!/usr/bin/env python3
"""Compares `tessera train` in fp64 with the numpy reference: loss, grad_norm and held-out loss from the exported initial model.

The bound is 1e-9 relative over 5 steps. Both sides compute in fp64 (epsilon 1.1e-16). Sums have at most about 1e5 terms, and the
first steps of AdamW amplify differences of tiny gradients by at most about 1e4, so differences are a few 1e-11.
"""
import json
import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "tools"), str(ROOT / "tests" / "reference"), str(ROOT / "python")]
SCRATCH = pathlib.Path(os.environ.get("TEST_TMP") or ROOT / "build" / "reference-training")
try:
    import numpy as np
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)

from indexed_dataset import write_dataset  # noqa: E402
from program import tessera  # noqa: E402
from summary import run_cases  # noqa: E402
from train_reference import parse_arguments, train  # noqa: E402

STEPS, BOUND = 5, 1e-9


class ReferenceTraining(unittest.TestCase):
    def write_tokens(self, prefix, vocab_size, documents=60, seed=5):
        """Writes random documents with a skewed distribution of tokens, so that a model can learn it."""
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, 90, documents)
        write_dataset(prefix, [rng.integers(0, vocab_size, n) * rng.integers(0, 2, n) for n in lengths], vocab_size)
        return str(prefix)

    def compare(self, model, vocab_size, meshes, *flags, seq_len=33, steps=STEPS):
        folder = SCRATCH / "-".join([model, *(pathlib.Path(flag).name for flag in flags)]).replace("--", "")
        folder.mkdir(parents=True)
        common = ["--data", self.write_tokens(folder / "tokens", vocab_size), "--seq-len", str(seq_len), "--global-batch", "12",
                  "--seed", "7", "--lr", "2e-3", *flags]
        stored = ["--model", model, "--dtype", "fp64", "--backend", "local", *common]
        tessera("train", *stored, "--steps", 0, "--out", folder / "initial")
        tessera("convert", folder / "initial", folder / "hf")
        options = parse_arguments(["--model", str(folder / "hf"), "--steps", str(steps), *common])
        expected = list(train(options))
        for mesh in meshes:
            out = folder / ("run" + "".join(mesh))
            tessera("train", *stored, "--steps", steps, *mesh, "--out", out)
            lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
            self.assertEqual(len(lines), steps)
            for line, wanted in zip(lines, expected):
                self.assertEqual("valid_loss" in wanted, "valid_loss" in line, (mesh, line["step"]))
                for key, value in wanted.items():
                    self.assertAlmostEqual(line[key], value, delta=BOUND * abs(value), msg=(mesh, line["step"], key))

    def test_tied_embeddings_and_grouped_heads(self):
        self.compare("llama-tiny", 512, [[], ["--tp", "2", "--gtp", "2"], ["--gtp", "3", "--dp", "2"]])

    def test_odd_sizes_and_scaled_rope(self):
        self.compare("llama-tiny-odd", 131, [[], ["--tp", "2", "--gtp", "3"], ["--tp", "3", "--sequence-parallel", "on"]])

    def test_masked_documents_with_warmup_and_clipping(self):
        self.compare("llama-tiny-odd", 131, [["--tp", "4", "--gtp", "2"]], "--mask-documents", "on", "--warmup-steps", "2",
                     "--clip", "0.5", "--weight-decay", "0.3", "--min-lr", "1e-4", "--beta1", "0.8", "--beta2", "0.9", "--eps", "1e-4")

    def test_rate_schedules(self):
        for shape in ("linear", "sqrt", "cosine"):
            self.compare("llama-tiny-odd", 131, [["--tp", "2"]], "--lr-schedule", "wsd", "--decay-steps", "3", "--decay-shape", shape,
                         "--warmup-steps", "1", "--min-lr", "1e-4")
        self.compare("llama-tiny-odd", 131, [["--gtp", "2"]], "--lr-schedule", "linear", "--warmup-steps", "2", "--min-lr", "1e-4")

    def test_rates_and_decays_by_name(self):
        """The patterns match names of Tessera and of Hugging Face. The last match counts, and a rule lets norms decay."""
        self.compare("llama-tiny-odd", 131, [[], ["--tp", "2", "--gtp", "3"], ["--gtp", "2", "--dp", "3"]],
                     "--lr-rules", "*=2,*norm*=0.5,*embed*=0,*.mlp.down*=0.25", "--decay-rules", "*.1.*=0.3,*norm*=0.7,*.0.*norm*=0")

    def test_muon(self):
        """20 steps. q, k and v are separate matrices, and so are gate and up, and the experts."""
        self.compare("llama-tiny-odd", 131, [[], ["--tp", "2", "--gtp", "3"], ["--gtp", "2", "--dp", "2"]], "--optimizer", "muon",
                     "--muon-lr", "4e-3", "--warmup-steps", "2", "--weight-decay", "0.3", steps=20)
        self.compare("llama-tiny-odd", 131, [["--gtp", "2"]], "--optimizer", "muon", "--muon-nesterov", "off", "--muon-momentum", "0.8",
                     "--muon-steps", "4", "--muon-scale", "original", steps=20)
        self.compare("mixtral-tiny-odd", 131, [[], ["--tp", "2", "--gtp", "2", "--ep", "2", "--egtp", "2"]], "--optimizer", "muon",
                     steps=20)

    def test_held_out_losses(self):
        """A replica evaluates more than the 64 micro-batches of one schedule. 403 samples do not divide evenly on any mesh."""
        held_out = self.write_tokens(SCRATCH / "held-out", 131, documents=69, seed=6)
        self.assertEqual(403, (np.fromfile(held_out + ".bin", "<u2").size - 1) // 8)
        self.compare("llama-tiny-odd", 131, [[], ["--dp", "2", "--micro-batch", "2"], ["--dp", "2", "--gtp", "2", "--micro-batch", "3"],
                                             ["--dp", "3", "--micro-batch", "2", "--tp", "2"]],
                     "--valid", held_out, "--eval-every", "2", "--mask-documents", "on", seq_len=8)


if __name__ == "__main__":
    run_cases()
