#!/usr/bin/env python3
"""`tessera generate` and `tessera evaluate` on GPUs give the tokens and the loss of CPUs. One GPU is enough, because ranks may
share it.

In fp32, the logits of GPUs and CPUs differ by about 1e-6 of the greatest logit. In the random models, the two greatest logits
differ by more (test_generate.py). In bf16, logits have errors of about 1e-2. The models of that test have learned a rule, so
the greatest
logit is far above the others.
"""
import json
import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import gpu_ranks
from program import ROOT, TESSERA, run, scratch, tessera, write_documents, write_tokens
from summary import run_cases

if gpu_ranks.GPUS < 1:
    print("skipped: no GPU that the program can use")
    sys.exit(77)

# whole: flash attention of one token reads the cache directly. odd: heads that the library kernels do not take. uneven: some
# tp ranks have key/value heads with different numbers of query heads.
SIZES = {"whole": {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64},
         "odd": {"hidden_size": 61, "intermediate_size": 59, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10},
         "uneven": {"hidden_size": 96, "intermediate_size": 101, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 16}}
MESHES = [(1, 1), (2, 1), (1, 3), (2, 2)]
RULE_VOCABULARY = 61
PROMPT = [17, 4, 60, 4, 4, 51, 9]


def rule(token):
    return (token * 7 + 3) % RULE_VOCABULARY


class GpuGenerate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("gpu-generate")
        cls.data = write_tokens(cls.folder / "tokens", RULE_VOCABULARY)
        texts = []
        for first in range(RULE_VOCABULARY):
            text = [first]
            while len(text) < 100:
                text.append(rule(text[-1]))
            texts.append(text)
        cls.rule = write_documents(cls.folder / "rule", texts)

    def model(self, name, architecture="llama", **changes):
        config = json.loads((ROOT / "configs" / f"{architecture}-tiny-odd" / "config.json").read_text())
        path = self.folder / f"{architecture}-{name}.json"
        path.write_text(json.dumps(config | SIZES[name] | {"vocab_size": RULE_VOCABULARY} | changes))
        return path

    def on_gpus(self, mesh, *arguments):
        """Returns the object that rank 0 prints. Other ranks print nothing."""
        tp, gtp = mesh
        flags = [*arguments, "--backend", "nccl", "--tp", tp, "--gtp", gtp, "--json"]
        codes, texts = gpu_ranks.Ranks(tp * gtp, *flags, program=TESSERA).finish(timeout=300)
        self.assertEqual([0] * (tp * gtp), codes, "".join(texts)[-3000:])
        self.assertEqual([""] * (tp * gtp - 1), texts[1:])
        return json.loads(texts[0].splitlines()[-1])

    def check_fp32(self, architecture, name, meshes):
        source = self.folder / f"fp32-{architecture}-{name}"
        tessera("train", "--model", self.model(name, architecture, initializer_range=0.3), "--data", self.data, "--seq-len", 16,
                "--seed", 5, "--steps", 0, "--out", source)
        flags = ["generate", source, "--prompt-ids", ",".join(map(str, PROMPT)), "--tokens", 60]
        drawn = ["--temperature", 1.5, "--top-p", 0.9, "--seed", 3]
        for mesh, own in [*((mesh, []) for mesh in meshes), (meshes[-1], drawn)]:
            expected = json.loads(tessera(*flags, *own, "--json"))
            self.assertEqual(expected, self.on_gpus(mesh, *flags, *own), (architecture, name, mesh, own))

    def test_tokens_in_fp32_are_those_of_cpus(self):
        for name in SIZES:
            self.check_fp32("llama", name, MESHES)
        for architecture in ("qwen2", "qwen3"):
            self.check_fp32(architecture, "odd", MESHES[:1])

    def test_tokens_in_bf16_follow_the_rule(self):
        for name in SIZES:
            source = self.folder / f"bf16-{name}"
            tessera("train", "--model", self.model(name), "--data", self.rule, "--seq-len", 96, "--global-batch", 8, "--seed", 5,
                    "--dtype", "bf16", "--lr", "5e-3", "--steps", 150, "--out", source)
            expected = [rule(PROMPT[-1])]
            while len(expected) < 80:
                expected.append(rule(expected[-1]))
            flags = ["generate", source, "--prompt-ids", ",".join(map(str, PROMPT)), "--tokens", 80]
            self.assertEqual(expected, json.loads(tessera(*flags, "--json"))["ids"], name)
            for mesh in MESHES if name == "whole" else (MESHES[0], MESHES[-1]):
                self.assertEqual(expected, self.on_gpus(mesh, *flags)["ids"], (name, mesh))

    def test_the_loss_is_that_of_cpus(self):
        source = self.folder / "loss"
        tessera("train", "--model", self.model("whole"), "--data", self.data, "--seq-len", 16, "--global-batch", 8, "--seed", 5,
                "--dtype", "bf16", "--lr", "5e-3", "--steps", 10, "--out", source)
        for dtype, bound in (("fp32", 1e-5), ("bf16", 1e-2)):
            flags = ["evaluate", source, "--data", self.data, "--seq-len", 33, "--micro-batch", 3, "--dtype", dtype]
            expected = json.loads(tessera(*flags, "--json"))
            for mesh in (MESHES[0], MESHES[-1]):
                found = self.on_gpus(mesh, *flags)
                self.assertEqual((expected["tokens"], expected["samples"]), (found["tokens"], found["samples"]))
                self.assertAlmostEqual(expected["loss"], found["loss"], delta=bound, msg=(dtype, mesh))

    def test_a_prompt_is_refused_once_on_all_ranks(self):
        source = self.folder / "refused"
        tessera("train", "--model", self.model("whole"), "--data", self.data, "--seq-len", 16, "--steps", 0, "--out", source)
        result = run("generate", source, "--prompt-ids", RULE_VOCABULARY, "--backend", "nccl", "--tp", 1)
        self.assertEqual(2, result.returncode, result.stderr)
        self.assertIn(f"--prompt-ids: got token {RULE_VOCABULARY}", result.stderr)
        codes, texts = gpu_ranks.Ranks(2, "generate", source, "--prompt-ids", RULE_VOCABULARY, "--backend", "nccl", "--tp", 2,
                                       program=TESSERA).finish(timeout=300)
        self.assertEqual([2, 2], codes, "".join(texts))
        self.assertEqual([1, 0], [len(text.splitlines()) for text in texts])


if __name__ == "__main__":
    run_cases()
