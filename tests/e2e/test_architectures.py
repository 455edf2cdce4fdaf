#!/usr/bin/env python3
"""Compares every architecture with Hugging Face transformers, from a folder that transformers wrote: logits, loss, all gradients,
ten steps, and the conversion back to a folder.

Bounds: in fp64 both sides compute the same sums of at most about 1e4 terms in different orders, so logits, loss and gradients
agree to 1e-9 of the largest element. In fp32 the loss of a step differs by about 1e-7. AdamW divides by the root of tiny second
moments and amplifies differences of gradients at each step, to 2e-4 after ten steps. test_transformers.py explains
$TRANSFORMERS_PYTHON.
"""
import array
import json
import math
import os
import pathlib
import subprocess
import sys
import unittest

from program import TESSERA, metrics, scratch, tessera, write_tokens
from summary import run_cases

PYTHON = os.environ.get("TRANSFORMERS_PYTHON", sys.executable)
if subprocess.run([PYTHON, "-c", "import numpy, safetensors, torch, transformers"], capture_output=True, check=False).returncode != 0:
    print(f"skipped: {PYTHON} has no transformers, torch, safetensors and numpy")
    sys.exit(77)

LOGITS = pathlib.Path(TESSERA).parents[1] / "tests" / "print_logits"
STEPS, FP64, FP32 = 10, 1e-9, 2e-4
REGULAR = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "initializer_range": 0.1}
# Few numbers divide these sizes, and the heads do not add up to the hidden size. transformers refuses such a hidden size
# only for Llama.
ODD = REGULAR | {"vocab_size": 91, "hidden_size": 33, "intermediate_size": 29, "num_attention_heads": 15, "num_key_value_heads": 5,
                 "head_dim": 6}
STRETCHED = {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
                                 "high_freq_factor": 4.0, "original_max_position_embeddings": 16}}
MESHES = [[], ["--tp", "2", "--gtp", "2", "--sequence-parallel", "on"], ["--tp", "3", "--recompute", "selective"]]
# {Tessera's name: the names in a folder whose rows, or elements of a vector, it stacks}. N is the number of the layer.
PARTS = {"embedding.weight": ["model.embed_tokens.weight"],
         "layers.N.attention_norm.weight": ["model.layers.N.input_layernorm.weight"],
         "layers.N.attention.qkv.weight": [f"model.layers.N.self_attn.{x}_proj.weight" for x in "qkv"],
         "layers.N.attention.qkv.bias": [f"model.layers.N.self_attn.{x}_proj.bias" for x in "qkv"],
         "layers.N.attention.q_norm.weight": ["model.layers.N.self_attn.q_norm.weight"],
         "layers.N.attention.k_norm.weight": ["model.layers.N.self_attn.k_norm.weight"],
         "layers.N.attention.output.weight": ["model.layers.N.self_attn.o_proj.weight"],
         "layers.N.mlp_norm.weight": ["model.layers.N.post_attention_layernorm.weight"],
         "layers.N.mlp.gate_up.weight": ["model.layers.N.mlp.gate_proj.weight", "model.layers.N.mlp.up_proj.weight"],
         "layers.N.mlp.down.weight": ["model.layers.N.mlp.down_proj.weight"],
         "norm.weight": ["model.norm.weight"],
         "output.weight": ["lm_head.weight"]}


def tensors(path):
    """Returns the bytes of each tensor of a safetensors file."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {name: data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]] for name, entry in header.items()}


def numbers(data):
    return array.array("d", data)


def stored(checkpoint, kind):
    """Returns the logical tensors of a kind in an fp64 checkpoint, in row-major order."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    files = [tensors(checkpoint / file["name"]) for file in manifest["files"]]
    result = {}
    for tensor in manifest["tensors"]:
        if tensor["kind"] != kind:
            continue
        columns = tensor["shape"][-1]
        rows = math.prod(tensor["shape"][:-1])
        whole = array.array("d", bytes(8 * rows * columns))
        for file, index, row, height, col, width in tensor["pieces"]:
            piece = numbers(files[file][f"{kind}/{tensor['name']}/{index}"])
            for i in range(height):
                at = (row + i) * columns + col
                whole[at:at + width] = piece[i * width:(i + 1) * width]
        result[tensor["name"]] = whole
    return result


def parts_of(name):
    words = name.split(".")
    layer = words[1] if words[0] == "layers" else ""
    return [part.replace(".N.", f".{layer}.") for part in PARTS[name.replace(f".{layer}.", ".N.") if layer else name]]


def compare_gradients(case, checkpoint, expected, parts, bound, mesh):
    """Returns the largest relative difference between the gradients of a checkpoint and `expected`, {name in transformers: numbers}.

    parts(name): the names in transformers of the tensors that a parameter stacks. The checkpoint follows one step with beta1 0.5
    and without clipping, so a first moment is half a gradient."""
    worst, seen = 0, set()
    for ours, values in stored(checkpoint, "exp_avg").items():
        names = parts(ours)
        seen.update(names)
        stacked = array.array("d", [number for name in names for number in expected[name]])
        case.assertEqual(len(values), len(stacked), (ours, mesh))
        largest = max(map(abs, stacked))
        case.assertGreater(largest, 0, (ours, mesh))
        difference = max(abs(2 * a - b) for a, b in zip(values, stacked)) / largest
        case.assertLessEqual(difference, bound, (ours, mesh))
        worst = max(worst, difference)
    case.assertEqual(seen, set(expected))
    return worst


class Architectures(unittest.TestCase):
    def check(self, name, config):
        folder = scratch(f"architectures-{name}")
        flags = ["--data", str(write_tokens(folder / "tokens", config["vocab_size"])), "--seq-len", "24", "--global-batch", "4",
                 "--seed", "7", "--lr", "2e-3"]
        tokens = [(7 * i * i + 3) % config["vocab_size"] for i in range(23)]
        spec = {"config": config, "tokens": tokens, "folder": str(folder / "hf"), "gradients": str(folder / "gradients.safetensors"),
                "flags": [*flags, "--steps", str(STEPS)]}
        result = subprocess.run([PYTHON, pathlib.Path(__file__).with_name("transformers_training.py"), json.dumps(spec)],
                                capture_output=True, text=True, check=False, timeout=600,
                                env={**os.environ, "HF_HUB_OFFLINE": "1"})
        self.assertEqual(0, result.returncode, result.stderr[-3000:])
        expected = json.loads(result.stdout.splitlines()[-1])
        self.check_folder(folder)
        self.check_logits(name, folder, tokens, expected["logits"])
        self.check_gradients(name, folder, flags, expected["loss"])
        self.check_steps(name, folder, flags, expected["losses"])

    def check_folder(self, folder):
        """Converts folder -> checkpoint -> folder twice. The tensors stay equal, and both written folders have equal files."""
        source = folder / "hf"
        for turn in ("first", "second"):
            tessera("convert", source, folder / f"{turn}-checkpoint")
            tessera("convert", folder / f"{turn}-checkpoint", folder / turn)
            source = folder / turn
        self.assertEqual(tensors(folder / "hf" / "model.safetensors"), tensors(folder / "first" / "model.safetensors"))
        files = sorted(path.name for path in (folder / "first").iterdir())
        self.assertEqual(files, sorted(path.name for path in (folder / "second").iterdir()))
        for file in files:
            self.assertEqual((folder / "first" / file).read_bytes(), (folder / "second" / file).read_bytes(), file)

    def checkpoint(self, folder, dtype):
        path = folder / f"checkpoint-{dtype}"
        if not path.exists():
            tessera("convert", folder / "hf", path, "--dtype", dtype)
        return path

    def check_logits(self, name, folder, tokens, expected):
        largest, worst = max(abs(value) for row in expected for value in row), 0
        for tp in (1, 2, 3):
            arguments = [folder / "hf" / "config.json", self.checkpoint(folder, "fp64"), tp, *tokens]
            result = subprocess.run([LOGITS, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300)
            self.assertEqual(0, result.returncode, result.stderr)
            found = [list(map(float, line.split())) for line in result.stdout.splitlines()]
            self.assertEqual([len(row) for row in expected], [len(row) for row in found])
            worst = max([worst, *(abs(a - b) / largest for row, other in zip(expected, found) for a, b in zip(row, other))])
            self.assertLessEqual(worst, FP64, tp)
        print(f"{name}: logits in fp64 within {worst:.1e}", flush=True)

    def train(self, folder, out, dtype, flags):
        tessera("train", "--resume", self.checkpoint(folder, dtype), "--model", folder / "hf", "--dtype", dtype, "--micro-batch", 1,
                "--out", out, *flags)
        return [line["loss"] for line in metrics(out)]

    def check_gradients(self, name, folder, flags, loss):
        expected = {key: numbers(value) for key, value in tensors(folder / "gradients.safetensors").items()}
        worst = 0
        for mesh in MESHES:
            out = folder / ("gradients" + "".join(mesh))
            [found] = self.train(folder, out, "fp64", [*flags, "--steps", 1, "--clip", 0, "--beta1", 0.5, *mesh])
            self.assertAlmostEqual(found, loss, delta=FP64 * loss, msg=mesh)
            worst = max(worst, compare_gradients(self, out / "checkpoints" / "step-00000001", expected, parts_of, FP64, mesh))
        print(f"{name}: loss and {len(expected)} gradients in fp64 within {worst:.1e}", flush=True)

    def check_steps(self, name, folder, flags, expected):
        worst = 0
        for mesh in MESHES[:2]:
            found = self.train(folder, folder / ("steps" + "".join(mesh)), "fp32", [*flags, "--steps", STEPS, *mesh])
            self.assertEqual(len(found), STEPS)
            differences = [abs(a - b) / b for a, b in zip(found, expected)]
            worst = max([worst, *differences])
            self.assertLessEqual(worst, FP32, (mesh, differences))
        self.assertLess(expected[-1], expected[0])
        print(f"{name}: {STEPS} steps in fp32 within {worst:.1e}", flush=True)

    def test_llama(self):
        self.check("llama", REGULAR | STRETCHED | {"model_type": "llama"})

    def test_llama_of_odd_sizes(self):
        self.check("llama-odd", ODD | {"model_type": "llama", "hidden_size": 45, "tie_word_embeddings": True})

    def test_qwen2(self):
        self.check("qwen2", REGULAR | {"model_type": "qwen2", "tie_word_embeddings": True})

    def test_qwen2_of_odd_sizes(self):
        self.check("qwen2-odd", ODD | STRETCHED | {"model_type": "qwen2"})

    def test_qwen3(self):
        self.check("qwen3", REGULAR | {"model_type": "qwen3"})

    def test_qwen3_of_odd_sizes(self):
        self.check("qwen3-odd", ODD | {"model_type": "qwen3", "tie_word_embeddings": True})


if __name__ == "__main__":
    run_cases()
