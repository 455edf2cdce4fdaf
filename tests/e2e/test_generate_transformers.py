#!/usr/bin/env python3
"""Compares `tessera generate` with Hugging Face transformers: 200 greedy tokens of every architecture in fp32, from the folder that
transformers wrote and from an exported one, and a text from an exported run that transformers loads as it is.

Logits of the two programs differ by about 1e-6 of the greatest in fp32. The test asserts that the two greatest logits are never
that close. test_transformers.py explains $TRANSFORMERS_PYTHON.
"""
import json
import os
import pathlib
import subprocess
import sys
import unittest

from program import ROOT, TESSERA, scratch, tessera
from summary import run_cases

PYTHON = os.environ.get("TRANSFORMERS_PYTHON", sys.executable)
if subprocess.run([PYTHON, "-c", "import tokenizers, torch, transformers"], capture_output=True, check=False).returncode != 0:
    print(f"skipped: {PYTHON} has no transformers, torch and tokenizers")
    sys.exit(77)
try:
    import tokenizers
except ImportError:
    tokenizers = None

ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "TESSERA_PYTHON": PYTHON}
TOKENS, CLOSEST = 200, 1e-5
PROMPT = [(7 * i * i + 3) % 91 for i in range(13)]
SIZES = {"vocab_size": 91, "hidden_size": 36, "intermediate_size": 29, "num_hidden_layers": 2, "num_attention_heads": 6,
         "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 256, "initializer_range": 0.3}
ODD = SIZES | {"hidden_size": 33, "num_attention_heads": 15, "num_key_value_heads": 5}
STRETCHED = {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
                                 "high_freq_factor": 4.0, "original_max_position_embeddings": 32}}
EXPERTS = {"num_experts": 5, "num_local_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 13, "norm_topk_prob": True}
MODELS = {"llama": SIZES | STRETCHED | {"model_type": "llama", "tie_word_embeddings": True},
          "qwen2": ODD | {"model_type": "qwen2"},
          "qwen3": ODD | {"model_type": "qwen3", "tie_word_embeddings": True},
          "mixtral": SIZES | EXPERTS | {"model_type": "mixtral"},
          "qwen3-moe": ODD | EXPERTS | {"model_type": "qwen3_moe", "mlp_only_layers": [0]}}
MESHES = [[], ["--tp", 2], ["--gtp", 3], ["--tp", 2, "--gtp", 2]]

AS_IT_IS = """
import json, sys, torch, transformers
folder, prompt = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
inputs = tokenizer(prompt, return_tensors="pt")
out = model.generate(**inputs, max_new_tokens=60, do_sample=False)[0, inputs.input_ids.shape[1]:].tolist()
print(json.dumps({"prompt_ids": inputs.input_ids[0].tolist(), "ids": out, "text": tokenizer.decode(out),
                  "end": [tokenizer.eos_token_id, model.generation_config.eos_token_id, model.config.eos_token_id]}))
"""


def of_python(*arguments):
    result = subprocess.run([PYTHON, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=600,
                            env=ENVIRONMENT)
    if result.returncode != 0:
        raise AssertionError(result.stderr[-3000:])
    return json.loads(result.stdout.splitlines()[-1])


class Transformers(unittest.TestCase):
    def test_greedy_tokens_are_equal(self):
        folder = scratch("generate-transformers")
        spec = {"models": MODELS, "folder": str(folder), "prompt": PROMPT, "tokens": TOKENS}
        expected = of_python(pathlib.Path(__file__).with_name("transformers_greedy.py"), json.dumps(spec))
        flags = ["--prompt-ids", ",".join(map(str, PROMPT)), "--tokens", TOKENS, "--json"]
        for name, result in expected.items():
            self.assertEqual(TOKENS, len(result["tokens"]))
            self.assertGreater(result["closest"], CLOSEST, name)
            self.assertGreater(len(set(result["tokens"])), 8, name)
            tessera("convert", folder / name, folder / f"{name}-checkpoint")
            tessera("convert", folder / f"{name}-checkpoint", folder / f"{name}-exported")
            for path in (name, f"{name}-checkpoint", f"{name}-exported"):
                for mesh in MESHES if path == name else [[]]:
                    found = json.loads(tessera("generate", folder / path, *flags, *mesh))
                    self.assertEqual(result["tokens"], found["ids"], (path, mesh))
            print(f"{name}: {TOKENS} equal tokens, logits at least {result['closest']:.1e} apart", flush=True)

    @unittest.skipUnless(tokenizers, "tokenizers is missing")
    def test_an_export_loads_as_it_is(self):
        folder = scratch("generate-export")
        words = "river stone quiet hills rain falls lazy dog caf\u00e9 \u4e16\u754c".split()
        text = [" ".join(words[(i + 3 * j + i * j) % len(words)] for j in range(8)) + "." for i in range(200)]
        (folder / "own.txt").write_text("\n\n".join(text), encoding="utf-8")
        subprocess.run([sys.executable, ROOT / "python" / "prepare_text.py", "--input", folder / "own.txt", "--output",
                        folder / "data", "--vocab-size", "300", "--split", "blank-lines"], check=True, capture_output=True)
        config = json.loads((ROOT / "configs" / "llama-tiny" / "config.json").read_text()) | {"vocab_size": 300}
        (folder / "model.json").write_text(json.dumps(config))
        tessera("train", "--model", folder / "model.json", "--data", folder / "data" / "train", "--seq-len", 32, "--global-batch", 8,
                "--steps", 150, "--lr", "5e-3", "--out", folder / "run")
        tessera("convert", folder / "run", folder / "hf")
        prompt = "river stone"
        expected = of_python("-c", AS_IT_IS, folder / "hf", prompt)
        self.assertEqual([0], list(set(expected.pop("end"))))
        self.assertEqual(0, expected["ids"][-1], "the trained model ends its text, so that both programs must stop")
        for path in ("run", "hf"):
            result = subprocess.run([TESSERA, "generate", folder / path, "--prompt", prompt, "--tokens", "60",
                                     "--stop-at-eos", "--json"], capture_output=True, check=False, env=ENVIRONMENT)
            self.assertEqual(0, result.returncode, result.stderr)
            self.assertEqual(expected, json.loads(result.stdout))




if __name__ == "__main__":
    run_cases()
