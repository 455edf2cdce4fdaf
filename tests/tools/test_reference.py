#!/usr/bin/env python3
"""Tests the numpy reference: gradients against finite differences, the order of samples, and masks of documents."""
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "reference"), str(ROOT / "python")]
try:
    import numpy as np
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)

from indexed_dataset import write_dataset  # noqa: E402
from llama import load_folder, rope_frequencies  # noqa: E402
from samples import Samples, permuted  # noqa: E402
from summary import run_cases  # noqa: E402
from train_reference import make_model, parse_arguments, train  # noqa: E402


def read_config(name):
    return json.loads((ROOT / "configs" / name / "config.json").read_text())


def random_weights(config, seed=0):
    rng, hidden, ffn = np.random.default_rng(seed), config["hidden_size"], config["intermediate_size"]
    q, kv = (config[key] * config["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        shapes |= {name + "self_attn.q_proj.weight": (q, hidden), name + "self_attn.k_proj.weight": (kv, hidden),
                   name + "self_attn.v_proj.weight": (kv, hidden), name + "self_attn.o_proj.weight": (hidden, q),
                   name + "mlp.gate_proj.weight": (ffn, hidden), name + "mlp.up_proj.weight": (ffn, hidden),
                   name + "mlp.down_proj.weight": (hidden, ffn), name + "input_layernorm.weight": (hidden,),
                   name + "post_attention_layernorm.weight": (hidden,)}
        if config["model_type"] == "dots1":
            shapes |= dots1_shapes(config, layer)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return {name: rng.normal(1.0 if len(shape) == 1 else 0.0, 0.15, shape) for name, shape in shapes.items()}


def dots1_shapes(config, layer):
    """The tensors of a layer beyond those of a Llama. A sparse layer has the dense matrices too, which nothing reads."""
    name, hidden = f"model.layers.{layer}.", config["hidden_size"]
    shapes = {f"{name}self_attn.{part}_norm.weight": (config["head_dim"],) for part in "qk"}
    if layer < config["first_k_dense_replace"]:
        return shapes
    count, width = config["n_routed_experts"], config["moe_intermediate_size"]
    shapes |= {name + "mlp.gate.weight": (count, hidden), name + "mlp.gate.e_score_correction_bias": (count,)}
    parts = {f"experts.{expert}.": width for expert in range(count)} | {"shared_experts.": width * config["n_shared_experts"]}
    for part, rows in parts.items():
        shapes |= {f"{name}mlp.{part}gate_proj.weight": (rows, hidden), f"{name}mlp.{part}up_proj.weight": (rows, hidden),
                   f"{name}mlp.{part}down_proj.weight": (hidden, rows)}
    return shapes


def write_folder(folder, config, weights):
    """Writes a Hugging Face folder with one fp64 file."""
    header, offset = {}, 0
    for name, weight in weights.items():
        header[name] = {"dtype": "F64", "shape": weight.shape, "data_offsets": [offset, offset + weight.nbytes]}
        offset += weight.nbytes
    text = json.dumps(header).encode()
    data = b"".join(weight.astype("<f8").tobytes() for weight in weights.values())
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (folder / "config.json").write_text(json.dumps(config))


class Reference(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)

    def write_tokens(self, vocab_size):
        rng = np.random.default_rng(1)
        write_dataset(self.root / "tokens", [rng.integers(0, vocab_size, size) for size in (5, 30, 1, 64, 9)], vocab_size)
        return self.root / "tokens"

    def check_gradient(self, name, mask_documents):
        config = read_config(name)
        model = make_model(config, random_weights(config), parse_arguments(["--model", "", "--data", "", "--expert-capacity", "1.1"]))
        sample = Samples(self.write_tokens(config["vocab_size"]), 20, 3, mask_documents).sample(1)
        gradient = {key: np.zeros_like(weight) for key, weight in model.w.items()}
        model.loss_and_gradient(sample, gradient, 1.0)
        rng, unused = np.random.default_rng(2), {key: np.zeros_like(weight) for key, weight in model.w.items()}
        for key, weight in model.w.items():
            direction = rng.normal(size=weight.shape)
            step = 1e-5
            losses = []
            for sign in (1, -1):
                model.w[key] = weight + sign * step * direction
                losses.append(model.loss_and_gradient(sample, unused, 0.0))
            model.w[key] = weight
            expected, got = (losses[0] - losses[1]) / (2 * step), float((gradient[key] * direction).sum())
            # The errors of central differences are step^2 * third derivative and eps * loss / step. Both are near 1e-9 here.
            self.assertAlmostEqual(got, expected, delta=1e-6 * (1 + abs(expected)), msg=key)

    def test_gradients_equal_finite_differences(self):
        self.check_gradient("llama-tiny", mask_documents=False)
        self.check_gradient("llama-tiny-odd", mask_documents=True)
        self.check_gradient("dots1-tiny-odd", mask_documents=True)

    def test_rope_scaling_keeps_high_frequencies_and_divides_low_ones(self):
        config = read_config("llama-tiny-odd")
        scaled, plain = rope_frequencies(config), rope_frequencies(config | {"rope_scaling": None})
        self.assertEqual(scaled[0], plain[0])
        self.assertEqual(scaled[-1], plain[-1] / 8.0)
        self.assertTrue(plain[1] / 8.0 < scaled[1] < plain[1])

    def test_the_order_of_samples_is_a_permutation_that_depends_on_seed_and_epoch(self):
        for size in (1, 2, 3, 17, 64, 257):
            orders = {tuple(permuted(seed, epoch, size, i) for i in range(size)) for seed in (0, 1) for epoch in (0, 1)}
            for order in orders:
                self.assertEqual(sorted(order), list(range(size)))
        self.assertEqual(len(orders), 4)

    def test_masked_documents_are_independent(self):
        sample = Samples(self.write_tokens(50), 20, 0, True).sample(0)  # documents end at tokens 5 and 35
        self.assertEqual([i for i, target in enumerate(sample["targets"]) if target < 0], [4])
        self.assertEqual(sample["positions"].tolist(), [*range(5), *range(15)])
        self.assertFalse(sample["mask"][5:, :5].any())
        self.assertTrue(sample["mask"][19, 5:].all())

    def test_training_reduces_the_loss_of_one_batch(self):
        config = read_config("llama-tiny")
        write_folder(self.root, config, random_weights(config))
        prefix = self.write_tokens(config["vocab_size"])
        options = parse_arguments(["--model", str(self.root), "--data", str(prefix), "--seq-len", "27", "--global-batch", "4",
                                   "--steps", "8", "--lr", "3e-3", "--lr-schedule", "constant"])
        losses = [line["loss"] for line in train(options)]
        self.assertLess(losses[-1], 0.8 * losses[0])

    def test_a_folder_reads_back_to_the_same_weights(self):
        config = read_config("llama-tiny")
        weights = random_weights(config)
        write_folder(self.root, config, weights)
        for name, weight in load_folder(self.root)[1].items():
            np.testing.assert_array_equal(weight, weights[name])


if __name__ == "__main__":
    run_cases()
