#!/usr/bin/env python3
"""Checks that Hugging Face transformers loads the folders of `tessera convert --format fp8_block` and computes with their values.

$TRANSFORMERS_PYTHON is an interpreter with transformers, torch and accelerate (`pip install transformers torch accelerate` in a
separate environment). The tests are skipped if neither this interpreter nor the current one has them.
"""
import json
import os
import pathlib
import subprocess
import sys
import unittest

from program import ROOT, scratch, tessera, write_tokens
from summary import run_cases

PYTHON = os.environ.get("TRANSFORMERS_PYTHON", sys.executable)
if subprocess.run([PYTHON, "-c", "import accelerate, torch, transformers"], capture_output=True, check=False).returncode != 0:
    print(f"skipped: {PYTHON} has no transformers, torch and accelerate")
    sys.exit(77)

# Sizes are multiples of 128, except for the 2 * 32 rows of keys and values.
SIZES = {"hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 2, "num_attention_heads": 8,
         "num_key_value_heads": 2, "head_dim": 32}


EXPERT_SIZES = SIZES | {"intermediate_size": 384, "num_local_experts": 5}


def train(folder, base, sizes):
    model = folder / "model.json"
    model.write_text(json.dumps(json.loads((ROOT / "configs" / base / "config.json").read_text()) | sizes))
    tessera("train", "--model", model, "--data", write_tokens(folder / "tokens", 131), "--global-batch", 8, "--seq-len", 32,
            "--seed", 7, "--dtype", "bf16", "--steps", 3, "--out", folder / "run")
    return folder / "run"


class Transformers(unittest.TestCase):
    def test_fp8_blocks_give_the_logits_of_their_values(self):
        self.check("llama-tiny-odd", SIZES)

    def test_fp8_blocks_of_experts_give_the_logits_of_their_values(self):
        self.check("mixtral-tiny-odd", EXPERT_SIZES)

    def check(self, base, sizes):
        folder = scratch(f"transformers-{base}")
        run = train(folder, base, sizes)
        self.assertNotIn("note", json.loads(tessera("convert", run, folder / "fp8", "--format", "fp8_block", "--json")))
        tessera("convert", folder / "fp8", folder / "checkpoint", "--dtype", "bf16")
        tessera("convert", folder / "checkpoint", folder / "values")
        tessera("convert", run, folder / "plain")
        result = subprocess.run([PYTHON, ROOT / "tests" / "reference" / "transformers_logits.py", folder / "fp8",
                                 folder / "values", folder / "plain"], capture_output=True, text=True, check=False, timeout=600,
                                env={**os.environ, "HF_HUB_OFFLINE": "1"})
        self.assertEqual(0, result.returncode, result.stderr[-3000:])
        found = json.loads(result.stdout.splitlines()[-1])
        print(json.dumps(found), flush=True)
        self.assertEqual([], found["names"])
        self.assertEqual([], found["different"])
        self.assertEqual(0, found["to_values"])
        self.assertGreater(found["to_plain"], 0)  # the model was quantized
        self.assertLess(found["to_plain"], 0.2 * found["greatest"])


if __name__ == "__main__":
    run_cases()
