#!/usr/bin/env python3
"""An imported weight that is not finite skips every step in every format, on CPUs and, if there are any, on GPUs. Ten skipped
steps in a row end a run."""
import itertools
import json
import os
import random
import struct
import unittest

import gpu_ranks
from program import metrics, run, scratch, tessera, write_documents, write_tokens
from stored_tensors import tensor_hashes
from summary import run_cases

MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 131, "hidden_size": 16, "intermediate_size": 48,
         "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 64,
         "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "initializer_range": 0.02, "hidden_act": "silu", "tie_word_embeddings": False}
EXPERTS = MODEL | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 5, "num_experts_per_tok": 2,
                   "router_aux_loss_coef": 0.02}
FULL = os.environ.get("TESSERA_E2E") == "full"
STEPS = 3
INFINITY, NAN = 0x7F80, 0x7FC0  # bf16
FORMATS = (["--wire-format", "bf16"], ["--wire-format", "fp8"], ["--wire-format", "fp8_block"], ["--wire-format", "mxfp8"],
           ["--wire-format", "nvfp4"], ["--gemm-format", "fp8"], ["--gemm-format", "fp8_block"],
           ["--wire-format", "fp8", "--gemm-format", "fp8"], ["--wire-format", "fp8_block", "--gemm-format", "fp8_block"],
           ["--gemm-format", "fp8", "--fp8-scaling", "current"], ["--wire-format-backward", "fp8"],
           ["--gemm-format", "mxfp8"], ["--gemm-format", "nvfp4"], ["--wire-format", "nvfp4", "--gemm-format", "nvfp4"])


def set_element(path, name, code):
    """Sets the eighth element of a bf16 tensor of a safetensors file."""
    data = bytearray(path.read_bytes())
    size = struct.unpack("<Q", data[:8])[0]
    tensor = json.loads(data[8:8 + size])[name]
    assert tensor["dtype"] == "BF16", tensor
    begin = 8 + size + tensor["data_offsets"][0] + 2 * 7
    data[begin:begin + 2] = struct.pack("<H", code)
    path.write_bytes(data)


class NotFinite(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("not-finite")
        cls.model = cls.folder / "model.json"
        cls.model.write_text(json.dumps(MODEL))
        cls.data = write_tokens(cls.folder / "tokens", 131)
        tessera("train", "--model", cls.model, *cls.flags(), "--steps", 0, "--out", cls.folder / "start")
        cls.checkpoint = {}

    @classmethod
    def flags(cls):
        return ["--data", cls.data, "--global-batch", 12, "--seq-len", 32, "--dtype", "bf16"]

    def imported(self, name, code, start="start"):
        """Returns a checkpoint of the model in which one element is replaced."""
        if (name, code) not in self.checkpoint:
            folder = self.folder / f"hf-{len(self.checkpoint)}"
            tessera("convert", self.folder / start / "checkpoints" / "step-00000000", folder, "--dtype", "bf16")
            set_element(folder / "model.safetensors", f"model.layers.0.{name}.weight", code)
            self.checkpoint[name, code] = folder.with_suffix(".checkpoint")
            tessera("convert", folder, self.checkpoint[name, code], "--dtype", "bf16")
        return self.checkpoint[name, code]

    def check(self, backend, checkpoint, gtp, flags, model=None):
        out = self.folder / "_".join([backend, checkpoint.stem, str(gtp), *map(str, flags)])
        arguments = ["--model", model or self.model, *self.flags(), "--resume", checkpoint, "--gtp", gtp, "--steps", STEPS, "--out", out, *flags]
        if backend == "local":
            tessera("train", "--backend", backend, *arguments)
        else:
            gpu_ranks.train(gtp, *arguments)
        with self.subTest(out.name):
            self.assertEqual([True] * STEPS, [line.get("skipped", False) for line in metrics(out)])
            self.assertEqual(STEPS, json.loads((out / "summary.json").read_text())["skipped_steps"])
            self.assertEqual(self.weights(checkpoint), self.weights(out))

    @staticmethod
    def weights(path):
        return {name: found for name, found in tensor_hashes(path).items() if name.startswith("weight/")}

    def check_formats(self, backend, formats, meshes):
        for gtp in meshes:
            for flags in formats:
                self.check(backend, self.imported("mlp.down_proj", INFINITY), gtp, flags)
                self.check(backend, self.imported("self_attn.q_proj", NAN), gtp, flags)

    def test_every_step_is_skipped_on_cpus(self):
        if FULL:
            return self.check_formats("local", FORMATS, (1, 3))
        # Each format runs once. tests/train/finite_check_test.cpp tests more weights and both degrees.
        for turn, flags in enumerate(FORMATS):
            spoiled = ("mlp.down_proj", INFINITY) if turn % 2 else ("self_attn.q_proj", NAN)
            self.check("local", self.imported(*spoiled), (1, 3)[turn // 2 % 2], flags)

    def check_experts(self, backend):
        """A matrix of one expert has an element that is not finite. The mesh is (gtp, ep)."""
        model = self.folder / "experts.json"
        model.write_text(json.dumps(EXPERTS))
        tessera("train", "--model", model, *self.flags(), "--steps", 0, "--out", self.folder / f"experts-{backend}")
        for turn, flags in enumerate((["nvfp4"], ["mxfp8"], ["fp8_block"], ["fp8"], ["fp8", "--fp8-scaling", "current"])):
            name, code = (("experts.1.w2", INFINITY), ("experts.3.w1", NAN))[turn % 2]
            checkpoint = self.imported(f"block_sparse_moe.{name}", code, f"experts-{backend}")
            wire = ["--wire-format", flags[0]] if turn % 2 else []
            for gtp, ep in ((1, 1), (2, 2)) if backend == "local" else ((1, 1),):
                self.check(backend, checkpoint, gtp, ["--ep", ep, "--gemm-format", *flags, *wire], model)

    def test_steps_with_experts_that_are_not_finite_are_skipped(self):
        self.check_experts("local")
        if gpu_ranks.GPUS > 0:
            self.check_experts("nccl")

    @unittest.skipIf(gpu_ranks.GPUS == 0, "no GPU that the program can use")
    def test_every_step_is_skipped_on_gpus(self):
        self.check_formats("nccl", FORMATS, (1,))
        self.check("nccl", self.imported("self_attn.q_proj", NAN), 3, ["--wire-format", "nvfp4", "--gemm-format", "fp8"])

    def train_on(self, name, spoiled_in_100):
        """Trains with one sample for each step. `spoiled_in_100` of 100 samples contain token 0, whose embedding row has a NaN.
        Returns the result, whether each step was skipped, and the lengths of the runs of skipped steps."""
        folder, out = self.folder / f"{name}-hf", self.folder / name
        tessera("convert", self.folder / "start" / "checkpoints" / "step-00000000", folder, "--dtype", "bf16")
        set_element(folder / "model.safetensors", "model.embed_tokens.weight", NAN)
        generator = random.Random(3)
        samples = [[generator.randrange(1, 131) for _ in range(8)] for _ in range(100)]
        for sample in samples[:spoiled_in_100]:
            sample[3] = 0
        data = write_documents(self.folder / f"{name}-tokens", [list(itertools.chain(*samples, [1]))])
        result = run("train", "--init", folder, "--data", data, "--seq-len", 8, "--global-batch", 1, "--steps", 40, "--out", out)
        skipped = [line.get("skipped", False) for line in metrics(out)]
        return result, skipped, [len(list(steps)) for is_skipped, steps in itertools.groupby(skipped) if is_skipped]

    def test_many_skipped_steps_that_are_not_in_a_row_do_not_end_a_run(self):
        result, skipped, stretches = self.train_on("alternating", 60)
        self.assertEqual((0, 40), (result.returncode, len(skipped)), result.stderr)
        self.assertGreater(sum(stretches), 20)
        self.assertLess(max(stretches), 10)

    def test_ten_skipped_steps_in_a_row_end_a_run(self):
        result, skipped, stretches = self.train_on("in-a-row", 90)
        self.assertEqual(1, result.returncode, result.stderr)
        self.assertIn(f"step {len(skipped)}: the gradient was not finite for 10 steps in a row", result.stderr)
        self.assertIn("try a lower --lr", result.stderr)
        self.assertGreater(len(stretches), 1)
        self.assertEqual((10, True), (stretches[-1], skipped[-1]))
        self.assertLess(max(stretches[:-1]), 10)


if __name__ == "__main__":
    run_cases()
