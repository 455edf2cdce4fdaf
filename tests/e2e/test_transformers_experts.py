#!/usr/bin/env python3
"""Compares models with experts with Hugging Face transformers in fp64, from folders that transformers wrote: logits, loss, auxiliary
loss, all gradients and 20 AdamW steps within 1e-9 for each mesh, and conversions of both forms of weights.

transformers computes the pooled auxiliary loss. test_architectures.py derives the bound and compares the dense architectures.
test_transformers.py explains $TRANSFORMERS_PYTHON.
"""
import json
import os
import pathlib
import subprocess
import unittest

import test_architectures as dense
from program import ROOT, TESSERA, metrics, scratch, tessera, write_tokens
from summary import run_cases

STEPS, BOUND = 20, dense.FP64
# Few numbers divide these sizes.
SIZES = {"vocab_size": 91, "hidden_size": 33, "intermediate_size": 29, "num_hidden_layers": 3, "num_attention_heads": 15,
         "num_key_value_heads": 5, "head_dim": 6, "max_position_embeddings": 64, "initializer_range": 0.1}
AUX = {"router_aux_loss_coef": 0.05}
# (tp, gtp, etp, ep, egtp)
MESHES = ((1, 1, 1, 1, 1), (2, 1, 2, 1, 1), (2, 2, 1, 2, 2), (2, 2, 2, 2, 1), (1, 2, 1, 2, 1), (1, 4, 1, 4, 1), (1, 4, 1, 2, 2), (3, 1, 3, 1, 1))
MODULES = ("mlp", "block_sparse_moe")


def mesh_flags(mesh):
    tp, gtp, etp, ep, egtp = mesh
    return ["--tp", tp, "--gtp", gtp, "--etp", etp, "--ep", ep, "--egtp", egtp, "--sequence-parallel", "on" if tp > 1 else "off"]


def parts_of(name):
    """Returns the names of the fused tensors of transformers' model."""
    words = name.split(".")
    if "shared_expert" in words:
        parts = ["gate", "up"] if words[3] == "gate_up" else ["down"]
        return [f"model.layers.{words[1]}.mlp.shared_experts.{part}_proj.weight" for part in parts]
    if "router" in words:
        return [f"model.layers.{words[1]}.mlp.gate.weight"]
    if "experts" in words:
        return [f"model.layers.{words[1]}.mlp.experts.{words[3]}_proj"]
    return dense.parts_of(name)


class TransformersExperts(unittest.TestCase):
    def check(self, name, config):
        folder = scratch(f"transformers-experts-{name}")
        flags = ["--data", str(write_tokens(folder / "tokens", config["vocab_size"])), "--seq-len", "17", "--global-batch", "4",
                 "--seed", "7", "--lr", "2e-3"]
        own_flags = ["--expert-bias-rate", "0"] if config["model_type"] == "dots1" else ["--moe-aux", "pooled"]
        flags += own_flags
        spec = {"config": config, "tokens": [(7 * i * i + 3) % 91 for i in range(23)], "folder": str(folder / "hf"),
                "gradients": str(folder / "gradients.safetensors"), "flags": [*flags, "--clip", "0.5", "--steps", str(STEPS)]}
        result = subprocess.run([dense.PYTHON, pathlib.Path(__file__).with_name("transformers_training.py"), json.dumps(spec)],
                                capture_output=True, text=True, check=False, timeout=600, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        self.assertEqual(0, result.returncode, result.stderr[-3000:])
        expected = json.loads(result.stdout.splitlines()[-1])
        self.check_folders(folder)
        worst = max(self.check_gradients(folder, flags, expected["loss"], mesh) for mesh in MESHES)
        print(f"{name}: loss and gradients within {worst:.1e}", flush=True)
        worst = max(self.check_steps(folder, flags, expected, mesh) for mesh in MESHES)
        print(f"{name}: losses of {STEPS} steps within {worst:.1e}", flush=True)

    def check_folders(self, folder):
        """Both forms of weights give the same checkpoint. Folder -> checkpoint -> folder keeps every tensor and every byte of our files."""
        for form in ("hf", "hf-fused"):
            tessera("convert", folder / form, folder / f"{form}-checkpoint")
            tessera("convert", folder / f"{form}-checkpoint", folder / f"{form}-written")
        tessera("convert", folder / "hf-written", folder / "again-checkpoint")
        tessera("convert", folder / "again-checkpoint", folder / "again")
        self.assertEqual(dense.tensors(folder / "hf" / "model.safetensors"), dense.tensors(folder / "hf-written" / "model.safetensors"))
        for file in ("model.safetensors", "config.json"):
            for other in ("hf-fused-written", "again"):
                self.assertEqual((folder / "hf-written" / file).read_bytes(), (folder / other / file).read_bytes(), (other, file))

    def train(self, folder, out, mesh, flags):
        tessera("train", "--resume", folder / "hf-fused-checkpoint", "--model", folder / "hf", "--dtype", "fp64", "--micro-batch", 1,
                "--out", out, *flags, *mesh_flags(mesh))
        return metrics(out)

    def check_gradients(self, folder, flags, loss, mesh):
        expected = {key: dense.numbers(value) for key, value in dense.tensors(folder / "gradients.safetensors").items()}
        out = folder / "-".join(map(str, ("gradients", *mesh)))
        [line] = self.train(folder, out, mesh, [*flags, "--steps", 1, "--clip", 0, "--beta1", 0.5])
        self.assertAlmostEqual(line["loss"], loss, delta=BOUND * loss, msg=mesh)
        worst = dense.compare_gradients(self, out / "checkpoints" / "step-00000001", expected, parts_of, BOUND, mesh)
        return max(worst, abs(line["loss"] - loss) / loss)

    def check_steps(self, folder, flags, expected, mesh):
        lines = self.train(folder, folder / "-".join(map(str, ("steps", *mesh))), mesh, [*flags, "--clip", 0.5, "--steps", STEPS])
        self.assertEqual(STEPS, len(lines))
        self.assertEqual({"losses": STEPS, "aux_losses": STEPS}, {key: len(expected[key]) for key in ("losses", "aux_losses")})
        differences = [abs(line[key] - value) / (value or 1) for key, values in (("loss", expected["losses"]), ("aux_loss", expected["aux_losses"]))
                       for line, value in zip(lines, values)]
        self.assertLessEqual(max(differences), BOUND, (mesh, differences))
        return max(differences)

    def test_mixtral(self):
        self.check("mixtral", SIZES | AUX | {"model_type": "mixtral", "num_local_experts": 7, "num_experts_per_tok": 2})

    def test_mixtral_with_one_choice(self):
        self.check("mixtral-1", SIZES | AUX | {"model_type": "mixtral", "num_local_experts": 5, "num_experts_per_tok": 1, "tie_word_embeddings": True})

    def test_qwen3_moe(self):
        self.check("qwen3-moe", SIZES | AUX | {"model_type": "qwen3_moe", "num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 13,
                                         "mlp_only_layers": [1], "norm_topk_prob": True})

    def test_dots1(self):
        self.check("dots1", SIZES | {"model_type": "dots1", "n_routed_experts": 9, "num_experts_per_tok": 3, "moe_intermediate_size": 13,
                                     "n_shared_experts": 2, "n_group": 3, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
                                     "first_k_dense_replace": 1, "sliding_window": None})

    def test_qwen3_moe_with_plain_weights(self):
        self.check("qwen3-moe-plain", SIZES | AUX | {"model_type": "qwen3_moe", "num_experts": 10, "num_experts_per_tok": 4,
                                               "moe_intermediate_size": 13, "decoder_sparse_step": 2, "norm_topk_prob": False})

    def test_curves(self):
        """bench/peers/curves.py trains on the samples, the schedule and the optimizer of `tessera train`."""
        folder = scratch("transformers-experts-curves")
        config = SIZES | AUX | {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 7, "num_experts_per_tok": 2}
        (folder / "config.json").write_text(json.dumps(config))
        data = str(write_tokens(folder / "tokens", config["vocab_size"]))
        flags = ["--data", data, "--seq-len", "17", "--global-batch", "6", "--micro-batch", "2", "--seed", "7"]
        tessera("train", "--model", folder / "config.json", *flags, "--steps", 1, "--out", folder / "first")
        tessera("convert", folder / "first" / "checkpoints" / "step-00000001", folder / "hf")
        flags += ["--steps", "6", "--lr", "2e-3", "--warmup-steps", "2", "--min-lr", "1e-4", "--clip", "0.5", "--valid", data, "--eval-every", "3"]
        tessera("train", "--init", folder / "hf", "--dtype", "fp32", "--moe-aux", "pooled", *flags, "--out", folder / "ours")
        result = subprocess.run([dense.PYTHON, ROOT / "bench" / "peers" / "curves.py", "--model", folder / "hf", *flags, "--device", "cpu"],
                                capture_output=True, text=True, check=False, timeout=600, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        self.assertEqual(0, result.returncode, result.stderr[-3000:])
        theirs = [json.loads(line) for line in result.stdout.splitlines()]
        for line, other in zip(metrics(folder / "ours"), theirs, strict=True):
            for key in ("loss", "aux_loss", "grad_norm", "valid_loss"):
                self.assertEqual(key in line, key in other, key)
                if key in line:
                    self.assertAlmostEqual(line[key], other[key], delta=1e-5 * other[key], msg=(line["step"], key))

    def test_curve_seeds(self):
        """bench/peers/curve_seeds.py prints a row for each program. test_curve_seeds.py tests the rest of it."""
        folder = scratch("transformers-experts-seeds")
        config = SIZES | AUX | {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 7, "num_experts_per_tok": 2}
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps(config))
        data = str(write_tokens(folder / "tokens", config["vocab_size"]))
        command = [dense.PYTHON, ROOT / "bench" / "peers" / "curve_seeds.py", "--out", folder / "runs", "--tessera", TESSERA, "--models", folder / "model",
                   "--seeds", "3", "4", "--", "--data", data, "--valid", data, "--seq-len", "17", "--global-batch", "6", "--micro-batch", "2", "--steps",
                   "2", "--lr", "1e-3", "--warmup-steps", "1"]
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        self.assertEqual(0, result.returncode, result.stderr[-3000:])
        lines = [line.split() for line in result.stdout.splitlines() if line.startswith("step 2 ")]
        self.assertEqual(["tessera", "transformers"], [line[2] for line in lines])
        self.assertEqual([9, 9], [len(line) for line in lines])  # with two seeds and the mean


if __name__ == "__main__":
    run_cases()
