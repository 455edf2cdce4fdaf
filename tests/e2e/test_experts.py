#!/usr/bin/env python3
"""Models with experts on CPUs: gtp, egtp and edp change no bit, losses are those of the numpy reference, and settings that do
not fit are refused.

At fixed tp, etp, ep and dp, runs have the same bits for every gtp, egtp, budget, recompute policy and transport. By default a few
combinations run. TESSERA_E2E=full runs all of them.
"""
import itertools
import json
import math
import os
import struct
import sys
import unittest

from program import MPIRUN, ROOT, bits, mesh_flags, metrics, run, scratch, tessera, write_documents, write_tokens
from stored_tensors import tensor_hashes
from summary import run_cases

sys.path.append(str(ROOT / "tests" / "reference"))
try:
    from train_reference import parse_arguments, train
except ImportError:
    train = None

FULL = os.environ.get("TESSERA_E2E") == "full"
MODEL, QWEN, DOTS = "mixtral-tiny-odd", "qwen3-moe-tiny-odd", "dots1-tiny-odd"
STEPS = 20 if FULL else 4
BOUND = 1e-9  # as in test_reference_training.py


def set_number(path, name, index, value):
    """Sets an element of an fp32 tensor of a safetensors file."""
    data = bytearray(path.read_bytes())
    size = struct.unpack("<Q", data[:8])[0]
    tensor = json.loads(data[8:8 + size])[name]
    assert tensor["dtype"] == "F32", tensor
    begin = 8 + size + tensor["data_offsets"][0] + 4 * index
    data[begin:begin + 4] = struct.pack("<f", value)
    path.write_bytes(data)


class Experts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("experts")
        cls.data = write_tokens(cls.folder / "tokens", 131)

    def start(self, model=MODEL):
        z_loss = [] if model == DOTS else ["--router-z-loss", 1e-3]
        return ["--model", model, "--data", self.data, "--global-batch", 24, "--seq-len", 16, "--seed", 7, "--lr", 2e-3,
                "--clip", 0.5, *z_loss]

    def train(self, name, mesh, *flags, model=MODEL, steps=STEPS, backend="local"):
        out = self.folder / name
        tp, gtp, dp = mesh[:3]
        ranks = tp * gtp * dp
        tessera("train", *self.start(model), "--steps", steps, "--backend", backend, *mesh_flags(mesh), *flags, "--out", out,
                mpi_ranks=ranks if backend == "mpi" else None)
        return bits(out), [(line["aux_loss"], line["z_loss"], line["expert_load"]) for line in metrics(out)]

    def check(self, name, model, meshes, *flags):
        """`meshes` is a list of (mesh, flags of only this run). Checks that all runs have the bits of the first run."""
        found = {}
        for number, (mesh, own) in enumerate(meshes):
            found[(mesh, *own)] = self.train(f"{name}-{number}", mesh, *flags, *own, model=model)
        first = next(iter(found.values()))
        for key, value in found.items():
            self.assertEqual(first, value, key)

    def test_egtp_and_gtp(self):
        self.check("egtp", MODEL, [((1, 1, 1, 1, 1, 1), []), ((1, 4, 1, 1, 1, 1), []), ((1, 4, 1, 1, 1, 2), ["--recompute", "full"]),
                                   ((1, 4, 1, 1, 1, 4), ["--gather-budget", "min", "--reduce-budget", "min", "--debug-poison", "on"]),
                                   ((1, 3, 1, 1, 1, 3), ["--recompute", "selective"])])

    def test_ep(self):
        self.check("ep", MODEL, [((1, 2, 1, 1, 2, 1), []), ((1, 4, 1, 1, 2, 1), ["--debug-delays", 3]),
                                 ((1, 4, 1, 1, 2, 2), ["--recompute", "full", "--debug-poison", "on"])], "--dtype", "bf16")

    def test_etp_and_tp(self):
        self.check("tp", MODEL, [((2, 1, 1, 1, 2, 1), []), ((2, 2, 1, 1, 2, 2), []), ((2, 2, 1, 1, 2, 1), ["--recompute", "full"])])
        self.check("etp", MODEL, [((2, 1, 1, 2, 1, 1), []), ((2, 2, 1, 2, 1, 1), []), ((2, 2, 1, 2, 1, 2), [])])

    def test_more_owners_than_experts_divide(self):
        """Tests 7 experts on 4 owners, and a model with a dense layer."""
        self.check("ep4", QWEN, [((1, 4, 1, 1, 4, 1), []), ((1, 8, 1, 1, 4, 2), ["--recompute", "selective"])])

    def test_replicas(self):
        self.check("dp", MODEL, [((1, 1, 2, 1, 1, 1), []), ((1, 2, 2, 1, 1, 2), ["--zero", "off"]), ((1, 2, 2, 1, 1, 1), []),
                                 ((1, 2, 2, 1, 1, 2), ["--coalesce", "64MiB"])])

    def test_sums_in_nodes(self):
        """Gradients of experts are first added inside nodes. In a node of 2 ranks, 2 / ep ranks have gradients of the same experts."""
        flags = ["--reduce-order", "hierarchical", "--ranks-per-node", 2]
        for ep in (1, 2):
            self.check(f"nodes-{ep}", MODEL, [((1, 4, 1, 1, ep, 1), []), ((1, 4, 1, 1, ep, 4 // ep), ["--recompute", "full"])], *flags)
            summary = json.loads((self.folder / f"nodes-{ep}-1" / "summary.json").read_text())
            self.assertEqual(("hierarchical", 2), (summary["reduce_order"], summary["ranks_per_node"]))
        self.assertNotEqual(self.train("sequential", (1, 4, 1, 1, 1, 4)), self.train("nodes", (1, 4, 1, 1, 1, 4), *flags))

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_processes(self):
        expected = self.train("local", (1, 2, 1, 1, 2, 1))
        self.assertEqual(expected, self.train("mpi", (1, 2, 1, 1, 2, 1), backend="mpi"))

    @unittest.skipUnless(train, "no numpy")
    def test_reference(self):
        """Loss, gradient norm and the router's losses of steps in fp64, for several meshes, are those of the numpy reference,
        with and without masked targets."""
        folder = self.folder / "reference"
        folder.mkdir()
        start = [8 if word == 24 else word for word in self.start()] + ["--dtype", "fp64"]
        tessera("train", *start, "--steps", 0, "--out", folder / "initial")
        tessera("convert", folder / "initial", folder / "hf")
        for aux, masks in (("layer", "on"), ("pooled", "off")):
            common = ["--data", self.data, "--seq-len", 16, "--global-batch", 8, "--seed", 7, "--lr", 2e-3, "--clip", 0.5,
                      "--router-z-loss", 1e-3, "--moe-aux", aux, "--mask-documents", masks, "--steps", 5]
            expected = list(train(parse_arguments(["--model", str(folder / "hf"), *map(str, common)])))
            for mesh in ((1, 1, 1, 1, 1, 1), (1, 4, 1, 1, 2, 2), (1, 4, 1, 1, 4, 1), (2, 2, 1, 2, 1, 2), (2, 2, 1, 1, 2, 1), (2, 2, 1, 2, 2, 1)):
                out = folder / f"{aux}-{'-'.join(map(str, mesh))}"
                tessera("train", *start, "--steps", 5, "--moe-aux", aux, "--mask-documents", masks, *mesh_flags(mesh), "--out", out)
                for line, wanted in zip(metrics(out), expected):
                    for key, value in wanted.items():
                        self.assertAlmostEqual(line[key], value, delta=BOUND * abs(value), msg=(aux, mesh, line["step"], key))

    @unittest.skipUnless(train, "no numpy")
    def test_reference_of_dots1(self):
        """The same for dots1, with biases that move and a capacity. Counts and dropped choices are equal on every mesh."""
        folder = self.folder / "reference-dots1"
        folder.mkdir()
        common = ["--data", self.data, "--seq-len", 16, "--global-batch", 8, "--seed", 7, "--lr", 2e-3, "--clip", 0.5, "--mask-documents", "on",
                  "--expert-capacity", 1.1, "--expert-bias-rate", 0.01]
        steps = ["--steps", 5]
        tessera("train", "--model", DOTS, *common, "--steps", 0, "--dtype", "fp64", "--out", folder / "initial")
        tessera("convert", folder / "initial", folder / "hf")
        expected = list(train(parse_arguments(["--model", str(folder / "hf"), *map(str, common + steps)])))
        self.assertGreater(expected[0]["expert_dropped"], 0)
        for mesh in ((1, 1, 1, 1, 1, 1), (1, 2, 2, 1, 2, 1), (2, 2, 1, 2, 1, 2), (2, 1, 1, 1, 2, 1)):
            out = folder / "-".join(map(str, mesh))
            tessera("train", "--model", DOTS, *common, *steps, "--dtype", "fp64", "--expert-counts", 1, *mesh_flags(mesh), "--out", out)
            for line, wanted in zip(metrics(out), expected, strict=True):
                for key, value in wanted.items():
                    if key.startswith("expert_"):
                        self.assertEqual(line[key], value, (mesh, line["step"], key))
                    else:
                        self.assertAlmostEqual(line[key], value, delta=BOUND * abs(value), msg=(mesh, line["step"], key))

    def test_checkpoints_on_other_meshes(self):
        """A checkpoint is loaded with other degrees. After two more steps, the losses differ only by rounding, so every tensor
        was read.
        """
        self.train("whole", (1, 4, 1, 1, 4, 1), "--dtype", "fp64", steps=4)
        self.train("first", (1, 4, 1, 1, 4, 1), "--dtype", "fp64", "--schedule-steps", 4, steps=2)
        out = self.folder / "other"
        tessera("train", "--resume", self.folder / "first", *mesh_flags((2, 2, 1, 2, 1, 2)), "--steps", 4, "--out", out)
        for whole, line in zip(metrics(self.folder / "whole")[2:], metrics(out)):
            self.assertAlmostEqual(whole["loss"], line["loss"], delta=BOUND * whole["loss"])

    def test_folders_of_weights(self):
        """Exporting a checkpoint and importing the result keeps the weights, also the fp32 routers of a bf16 model."""
        for model, dtype in itertools.product((MODEL, QWEN, DOTS), ("fp32", "bf16")):
            run, hf, again, hf2 = (self.folder / f"{name}-{model}-{dtype}" for name in ("run", "hf", "again", "hf2"))
            tessera("train", *self.start(model), "--dtype", dtype, "--steps", 2, "--out", run)
            tessera("convert", run, hf)
            tessera("convert", hf, again)
            tessera("convert", again, hf2)
            for file in ("model.safetensors", "config.json"):
                self.assertEqual((hf / file).read_bytes(), (hf2 / file).read_bytes(), (model, dtype))
            weights = [{name: value for name, value in tensor_hashes(folder).items() if name.startswith("weight/")} for folder in (run, again)]
            self.assertEqual(*weights, (model, dtype))
        tessera("convert", self.folder / f"run-{DOTS}-bf16", self.folder / "rounded", "--dtype", "bf16")
        header = (self.folder / "rounded" / "model.safetensors").read_bytes()
        types = {name: tensor["dtype"] for name, tensor in json.loads(header[8:8 + int.from_bytes(header[:8], "little")]).items() if
                 name != "__metadata__"}
        self.assertEqual({"BF16", "F32"}, set(types.values()))
        self.assertEqual({name for name in types if ".gate." in name}, {name for name, dtype in types.items() if dtype == "F32"})

    def test_counts_and_masked_tokens(self):
        """The counts include only unmasked tokens: in every sparse layer, the counts of all experts add up to k for each
        token. The load is that of one layer.
        """
        self.train("counts", (1, 2, 1, 1, 2, 1), "--mask-documents", "on", "--expert-counts", 2)
        for line in metrics(self.folder / "counts"):
            self.assertEqual(line["step"] % 2 == 0, "expert_counts" in line)
            counts = line.get("expert_counts", [])
            for layer in counts:
                self.assertEqual(2 * line["tokens"], sum(layer))
            if counts:
                self.assertEqual(2, len(counts))
                self.assertAlmostEqual(line["expert_load"], max(7 * max(layer) / sum(layer) for layer in counts), delta=1e-12)
        summary = json.loads((self.folder / "counts" / "summary.json").read_text())
        self.assertEqual({"tp": 1, "gtp": 2, "dp": 1, "etp": 1, "ep": 2, "egtp": 1, "edp": 1}, summary["mesh"])
        # Two blocks of 16 tokens with 2 choices. CPUs have memory for all choices.
        self.assertEqual((2 * 16 * 2, "local", 0), tuple(summary[key] for key in ("expert_room_rows", "expert_transport", "padded_products")))

    def test_both_grids_and_the_load_are_shown(self):
        """A run prints both grids in its first line, and the load with its progress. `inspect layout` prints the groups of both grids."""
        mesh = mesh_flags((1, 4, 1, 1, 2, 2))
        head, _, formats, step = tessera("train", *self.start(), "--steps", 1, *mesh, "--out", self.folder / "shown").splitlines()[:4]
        self.assertIn("(tp 1 x gtp 4 x dp 1; experts etp 1 x ep 2 x egtp 2 x edp 1 x dp 1)", head)
        self.assertEqual("formats: 100.0 % fp32 in the wire, the backward wire and products", formats)
        self.assertRegex(step, r"^step 1/1 .* expert load \d\.\d\d$")
        lines = [" ".join(line.split()) for line in tessera("inspect", "layout", "--model", MODEL, *mesh).splitlines()]
        for line in ("tp 1 x gtp 4 x dp 1", "etp 1 x ep 2 x egtp 2 x edp 1 x dp 1", "gather over gtp [0 1 2 3]", "gather over egtp [0 2] [1 3]",
                     "program over etp, ep [0 1] [2 3]"):
            self.assertIn(line, lines)

    def test_one_token_and_idle_owners(self):
        """Sequences of one repeated token: at least three of seven owners receive no row in any step. Results equal those of one rank."""
        data = write_documents(self.folder / "short", [[3] * 20])
        found = []
        for number, mesh in enumerate(((1, 1, 1, 1, 1, 1), (1, 4, 1, 1, 4, 1), (1, 7, 1, 1, 7, 1), (2, 2, 1, 1, 4, 1))):
            out = self.folder / f"one-{number}"
            tessera("train", "--model", MODEL, "--data", data, "--global-batch", 28, "--seq-len", 1, "--steps", 3, "--dtype", "fp64",
                    "--router-z-loss", 1e-3, "--expert-counts", 1, *mesh_flags(mesh), "--out", out)
            lines = metrics(out)
            found.append([line[key] for line in lines for key in ("loss", "grad_norm", "aux_loss", "z_loss")])
            for layer in (layer for line in lines for layer in line["expert_counts"]):
                self.assertEqual([0] * 5 + [28] * 2, sorted(layer))
        for other in found[1:]:
            for value, wanted in zip(other, found[0], strict=True):
                self.assertAlmostEqual(value, wanted, delta=BOUND * wanted)

    def test_coefficients_that_are_too_large(self):
        """A gradient of a router's losses that exceeds the range of fp32 skips the step."""
        config = json.loads((ROOT / "configs" / MODEL / "config.json").read_text())
        path = self.folder / "large.json"
        path.write_text(json.dumps(config | {"router_aux_loss_coef": 1e300}))
        for name, model, z_loss in (("aux", path, 0), ("z", MODEL, 1e300)):
            tessera("train", "--model", model, "--data", self.data, "--global-batch", 4, "--seq-len", 4, "--steps", 2, "--router-z-loss", z_loss,
                    "--out", self.folder / f"large-{name}")
            self.assertEqual([True, True], [line.get("skipped") for line in metrics(self.folder / f"large-{name}")])

    def test_parts_without_columns(self):
        """Experts of width 1 over etp 2 and 3: only the last etp rank has the column of an expert. With one token, most experts have no row."""
        for model, sizes in ((MODEL, {"intermediate_size": 1, "num_local_experts": 3, "num_experts_per_tok": 1}),
                             (QWEN, {"moe_intermediate_size": 1, "num_experts": 3, "num_experts_per_tok": 3})):
            path = self.folder / f"narrow-{model}.json"
            path.write_text(json.dumps(json.loads((ROOT / "configs" / model / "config.json").read_text()) | sizes))
            for length in (1, 8):
                found = []
                for number, (mesh, flags) in enumerate((((1, 1, 1, 1, 1, 1), []), ((2, 1, 1, 2, 1, 1), ["--debug-poison", "on"]),
                                                        ((3, 2, 1, 3, 1, 2), ["--recompute", "full"]),
                                                        ((2, 3, 1, 2, 3, 1), ["--recompute", "selective"]))):
                    out = self.folder / f"narrow-{model}-{length}-{number}"
                    tessera("train", "--model", path, "--data", self.data, "--global-batch", 6, "--seq-len", length, "--seed", 7, "--lr", 2e-3,
                            "--steps", 5, "--dtype", "fp64", *mesh_flags(mesh), *flags, "--out", out)
                    found.append([line[key] for line in metrics(out) for key in ("loss", "grad_norm", "aux_loss")])
                for other in found[1:]:
                    for value, wanted in zip(other, found[0]):
                        self.assertAlmostEqual(value, wanted, delta=BOUND * wanted, msg=(model, length))

    def test_refusals(self):
        for flags, words in {
                ("--ep", 2): ("--etp 1 * --ep 2 * --egtp 1 = 2", "--tp 1 * --gtp 1 = 1"),
                ("--gtp", 4, "--ep", 3): ("= 3", "= 4"),
                ("--gtp", 8, "--ep", 8): ("--ep: got 8, expected at most 7",),
                ("--tp", 2, "--gtp", 2, "--ep", 2, "--sequence-parallel", "off"): ("--sequence-parallel",),
                ("--tp", 2, "--gtp", 2, "--sequence-parallel", "on"): ("--etp 1 * --ep 1 = 1", "a multiple of --tp 2, such as --etp 2"),
                ("--tp", 4, "--ep", 2, "--sequence-parallel", "on"): ("--etp 1 * --ep 2 = 2", "a multiple of --tp 4, such as --etp 2"),
                ("--tp", 2, "--gtp", 2, "--dead", "dp0.gtp1:0"): ("--dead: model", "has experts"),
                ("--gtp", 2, "--idle", "dp0.gtp1:0"): ("--idle: model", "has experts"),
                ("--gtp", 2, "--ep", 2, "--idle", "dp0.gtp1:0"): ("--idle: got dp0.gtp1:0", "--ep 2"),
                ("--gtp", 2, "--etp", 2): ("--etp: got 2", "--tp 1"),
                ("--gtp", 2, "--reduce-order", "hierarchical"): ("--ranks-per-node",),
                ("--dtype", "bf16", "--gemm-rules", "layers.0.router.weight=fp8"): ("layers.0.router.weight",),
                ("--moe-aux", "none"): ("--moe-aux", "layer, pooled"),
                ("--expert-exact", "on"): ("unknown flag --expert-exact",),
                ("--expert-bias-rate", 0.1): ("--expert-bias-rate: got 0.1, expected 0", "have no biases"),
                ("--expert-capacity", -1): ("--expert-capacity", "-1"),
                ("--expert-bias-rate", 1.5): ("--expert-bias-rate: got 1.5", "at most 1"),
        }.items():
            result = run("train", *self.start(), "--steps", 1, *flags, "--out", self.folder / "refused")
            self.assertEqual(2, result.returncode, (flags, result.stderr))
            for word in words:
                self.assertIn(word, result.stderr, flags)
        for flags, words in ((("--router-z-loss", 0.1), "--router-z-loss: got 0.1, expected 0: the routers of model 'dots1-tiny-odd' have sigmoid scores"),
                             (("--moe-aux", "pooled"), "--moe-aux: got pooled, expected layer: the routers of model 'dots1-tiny-odd' have no auxiliary")):
            result = run("train", *self.start(DOTS), "--steps", 1, *flags, "--out", self.folder / "refused")
            self.assertEqual(2, result.returncode, result.stderr)
            self.assertIn(words, result.stderr)
        for flags in (["--ep", 2, "--gtp", 2], ["--egtp", 2, "--gtp", 2], ["--etp", 2, "--tp", 2], ["--expert-counts", 2],
                      ["--router-z-loss", 0.1], ["--moe-aux", "pooled"], ["--expert-capacity", 2], ["--expert-bias-rate", 0.1]):
            result = run("train", "--model", "llama-tiny-odd", "--data", self.data, "--seq-len", 16, "--steps", 1, *flags, "--out", self.folder / "refused")
            self.assertEqual(2, result.returncode, (flags, result.stderr))
            self.assertIn("has no experts", result.stderr)
            self.assertIn(f"{flags[0]}:", result.stderr)
        self.assertFalse((self.folder / "refused").exists())

    def test_a_bias_that_is_not_finite_is_refused(self):
        """All tokens would choose the same experts, and no gradient would show it."""
        self.train("finite", (1, 1, 1, 1, 1, 1), model=DOTS, steps=0)
        for number, value in enumerate((math.nan, -math.inf)):
            folder = self.folder / f"bias-{number}"
            tessera("convert", self.folder / "finite", folder)
            set_number(folder / "model.safetensors", "model.layers.1.mlp.gate.e_score_correction_bias", 3, value)
            result = run("convert", folder, self.folder / f"bias-{number}.checkpoint")
            self.assertIn("e_score_correction_bias", result.stdout + result.stderr)
            for source in (("--init", folder), ("--resume", self.folder / f"bias-{number}.checkpoint")):
                for mesh in ((1, 1, 1, 1, 1, 1), (1, 4, 1, 1, 2, 2)):
                    result = run("train", *self.start(DOTS)[2:], *source, *mesh_flags(mesh), "--steps", 2, "--out", self.folder / "refused-bias")
                    self.assertEqual(2, result.returncode, result.stderr)
                    self.assertRegex(result.stderr, r"layers\.1\.router\.bias: 1 of \d+ values are NaN or infinite")

            for words in (("generate", folder, "--prompt-ids", "1,2", "--tokens", 2), ("evaluate", folder, "--data", self.data, "--seq-len", 16)):
                result = run(*words)
                self.assertEqual(2, result.returncode, result.stderr)
                self.assertIn("layers.1.router.bias: 1 of ", result.stderr)

    def test_another_model_on_resume_is_named(self):
        self.train("dots", (1, 1, 1, 1, 1, 1), model=DOTS, steps=1)
        for model in (QWEN, "llama-tiny-odd"):
            result = run("train", "--resume", "latest", "--out", self.folder / "dots", "--model", model, "--data", self.data, "--steps", 2)
            self.assertEqual(2, result.returncode, result.stderr)
            self.assertIn("model", result.stderr)
            self.assertNotIn("--expert-bias-rate", result.stderr)

    def test_number_formats_of_products(self):
        """Weights are gathered, and products computed, in the formats. The output layer stays in bf16."""
        formats = ["--wire-format", "mxfp8", "--gemm-format", "fp8"]
        summaries = []
        for name, mesh, flags in (("plain", (1, 2, 1, 1, 1, 2), []), ("formats", (1, 4, 1, 1, 2, 2), formats),
                                  ("formats-tp", (2, 2, 1, 2, 2, 1), formats)):
            self.train(name, mesh, "--dtype", "bf16", *flags, steps=2)
            summaries.append(json.loads((self.folder / name / "summary.json").read_text()))
        # Each of 768 tokens is multiplied with the output layer, and with three matrices of 2 experts in 2 layers, once forward and twice
        # backward. The mesh has no influence.
        in_bf16, attention = 768 * 131 * 61 * 6, 2 * 61 * (350 + 250)  # attention: qkv and output of 2 layers
        in_fp8 = 768 * (2 * 2 * 3 * 61 * 29 + attention) * 6
        for summary in summaries[1:]:
            self.assertEqual({"bf16", "mxfp8"}, set(summary["gathered_bytes"]))
            self.assertEqual({"bf16", "fp8"}, set(summary["flops"]))
            self.assertEqual(in_bf16, summary["flops"]["bf16"])
            self.assertIn({"format": "fp8", "kernel": "decoded", "flops": summary["flops"]["fp8"]}, summary["products_by_kernel"])
            self.assertEqual(attention + 2 * 7 * 3 * 61 * 29, summary["weights_by_format"]["wire"]["mxfp8"])
            self.assertEqual(attention + 2 * 7 * 3 * 61 * 29, summary["weights_by_format"]["products"]["fp8"])
        self.assertEqual(in_fp8, summaries[1]["flops"]["fp8"])  # over tp, some key/value heads are computed twice
        self.assertEqual({"bf16": in_bf16 + in_fp8}, summaries[0]["flops"])


if __name__ == "__main__":
    run_cases()
