#!/usr/bin/env python3
"""Experts that are stored and sent in number formats: storage and transport change no bit, checkpoints continue in other formats and
on other meshes, plans equal measurements, folders keep the values, and impossible settings are refused."""
import functools
import json
import sys
import unittest

from program import MPIRUN, ROOT, bits, mesh_flags, metrics, run, scratch, tessera, write_tokens
from refusals import read_manifest, write_manifest
from stored_tensors import tensor_hashes
from summary import run_cases

sys.path.append(str(ROOT / "tests" / "reference"))
try:
    from formats import bf16_matrix, quantized, safetensors
except ImportError:
    quantized = None

FORMATS = ("fp8", "fp8_block", "mxfp8", "nvfp4")
STEPS = 4
# No size is divisible by a tile, and some tiles of experts are shorter than others. 4-bit numbers need even sizes.
SIZES = {"hidden_size": 72, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
         "head_dim": 12, "num_local_experts": 5}
EXPERTS = "layers.*.experts.*"
# Where the configurations of a folder list the modules without a format.
CONFIGURATIONS = {"fp8_block": [("config.json", "quantization_config", "modules_to_not_convert")],
                  "nvfp4": [("hf_quant_config.json", "quantization", "exclude_modules")]}
POISON = ("--debug-poison", "on", "--gather-budget", "min", "--reduce-budget", "min")


class ExpertFormats(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("expert_formats")
        cls.data = write_tokens(cls.folder / "tokens", 131)
        cls.model = cls.folder / "model.json"
        cls.model.write_text(json.dumps(json.loads((ROOT / "configs" / "mixtral-tiny-odd" / "config.json").read_text()) | SIZES))

    def flags(self, name, mesh, wire, *more, dtype="bf16"):
        model = [] if "--model" in more else ["--model", self.model]
        length = [] if "--seq-len" in more else ["--seq-len", 16]
        return ["train", *model, "--data", self.data, "--global-batch", 12, *length, "--seed", 7, "--dtype", dtype,
                "--wire-format", wire, *mesh_flags(mesh), "--out", self.folder / name, *more]

    def train(self, name, mesh, wire, *more, steps=STEPS, backend="local"):
        tessera(*self.flags(name, mesh, wire, "--steps", steps, "--backend", backend, *more),
                mpi_ranks=mesh[0] * mesh[1] * mesh[2] if backend == "mpi" else None)
        return bits(self.folder / name)

    def summary(self, name):
        return json.loads((self.folder / name / "summary.json").read_text())

    def test_storage_changes_no_bit(self):
        for number, (wire, *flags) in enumerate((("fp8",), ("fp8_block", "--wire-format-backward", "mxfp8"), ("mxfp8",),
                                                 ("nvfp4", "--wire-format-backward", "mxfp8"))):
            first, *others = [((1, 6, 1, 1, 1, 1), ()), ((1, 6, 1, 1, 1, 2), POISON), ((1, 6, 1, 1, 1, 6), ("--debug-delays", 3))]
            expected = self.train(f"{wire}-0", first[0], wire, *flags)
            mesh, own = others[number % 2]
            self.assertEqual(expected, self.train(f"{wire}-1", mesh, wire, *flags, *own), (wire, mesh))
            self.assertNotEqual(expected["steps"], self.train(f"{wire}-2", first[0], wire, *flags, "--wire-rules", f"{EXPERTS}=bf16",
                                                              "--wire-rules-backward", f"{EXPERTS}=bf16", steps=2)["steps"])

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_processes_and_threads_give_the_same_bits(self):
        for wire, mesh in (("nvfp4", (1, 4, 1, 1, 2, 2)), ("fp8", (2, 2, 1, 2, 1, 2))):
            threads, processes = (self.train(f"{backend}-{wire}", mesh, wire, steps=2, backend=backend) for backend in ("local", "mpi"))
            self.assertEqual(threads, processes, wire)

    def resumed(self, name, source, step, mesh, wire):
        tessera("train", "--resume", self.folder / source / "checkpoints" / f"step-{step:08}", *mesh_flags(mesh), "--wire-format", wire,
                "--steps", STEPS, "--out", self.folder / name)
        return bits(self.folder / name)

    def test_a_checkpoint_continues_in_another_format_and_on_another_mesh(self):
        """A checkpoint contains masters. Two runs with equal masters, moments and formats have equal bits, for any earlier formats."""
        owners, parts, sharded_parts = (1, 4, 1, 1, 2, 2), (2, 2, 1, 2, 1, 1), (2, 2, 1, 2, 1, 2)
        self.train("before", owners, "nvfp4", "--schedule-steps", STEPS, steps=2)
        self.assertEqual(*(self.resumed(f"after-{mesh[-1]}", "before", 2, mesh, "mxfp8") for mesh in (parts, sharded_parts)))
        masters = self.folder / "masters"
        tessera("convert", self.folder / "before", masters, "--dtype", "fp32")
        self.train("at-masters", owners, "nvfp4", "--init", masters, "--schedule-steps", STEPS, steps=0)
        expected = self.train("from-masters", sharded_parts, "mxfp8", "--init", masters)
        self.assertEqual(expected, self.resumed("after-masters", "at-masters", 0, parts, "mxfp8"))
        self.assertNotEqual(expected["steps"], self.resumed("after-bf16", "at-masters", 0, parts, "bf16")["steps"])
        self.assertEqual({"bf16"}, set(self.summary("after-bf16")["gathered_bytes"]))

    def check_planned(self, name):
        rows = json.loads(tessera("plan", "--measured", self.folder / name, "--json"))["measured"]["rows"]
        exact = [row for row in rows if row["name"] in ("gathered_bytes", "reduced_bytes", "gather_arena_bytes", "reduce_arena_bytes")]
        self.assertEqual(4, len(exact))
        for row in exact:
            self.assertEqual(row["predicted"], row["measured"], (name, row["name"]))

    def test_plans_equal_measurements(self):
        for wire, mesh, *flags in (("nvfp4", (1, 4, 1, 1, 2, 2), "--wire-format-backward", "mxfp8"), ("fp8", (2, 2, 1, 2, 1, 2)),
                                   ("mxfp8", (1, 3, 2, 1, 1, 3)), ("fp8_block", (1, 3, 2, 1, 3, 1))):
            self.train(f"measured-{wire}", mesh, wire, *flags, "--gather-budget", "min", "--reduce-budget", "min")
            self.check_planned(f"measured-{wire}")

    def test_storage_and_transport_change_no_bit_of_products(self):
        """Products in number formats have the same bits over gtp, egtp, ZeRO-1, budgets, delays, recomputation and wire formats. The
        blocks of a group of owners have one scale for each expert and block. With a sequence of 1 token, most experts have no rows."""
        one, short = (1, 6, 1, 1, 1, 1), ("--seq-len", 1)
        for number, (product, first, mesh, *more) in enumerate((
                ("nvfp4", one, (1, 6, 1, 1, 1, 2)), ("nvfp4", (1, 3, 1, 1, 3, 1), (1, 6, 1, 1, 3, 2)), ("mxfp8", (1, 6, 1, 1, 2, 1), (1, 6, 1, 1, 2, 3)),
                ("fp8_block", (1, 3, 1, 1, 3, 1), (1, 6, 1, 1, 3, 2)), ("fp8", (2, 1, 1, 2, 1, 1), (2, 3, 1, 2, 1, 3)),
                ("fp8", one, (1, 6, 1, 1, 1, 6), "--fp8-scaling", "current"), ("nvfp4", (2, 2, 1, 2, 1, 1), (2, 2, 1, 2, 1, 2), *short),
                ("fp8", (2, 2, 1, 2, 2, 1), (2, 2, 1, 2, 2, 1), "--fp8-scaling", "current", "--fp8-recipe", "e4m3"))):
            flags = ("--gemm-format", product, *more)
            expected = self.train(f"products-{number}", first, product, *flags)
            others = [((mesh, product), (*POISON, "--recompute", "selective")), ((first, "bf16"), ("--debug-delays", 5, "--recompute", "full"))]
            for other, ((cut, wire), own) in enumerate(others):
                found = self.train(f"products-{number}-{other}", cut, wire, *flags, *own)
                self.assertEqual(expected, found, (product, cut, wire))
            in_bf16 = self.train(f"products-{number}-plain", first, product, *flags, "--gemm-rules", f"{EXPERTS}=bf16", steps=2)
            self.assertNotEqual(expected["steps"][:2], in_bf16["steps"], product)

    def test_the_recipe_of_nvfp4_in_experts_alone(self):
        """Only experts are multiplied in nvfp4. Each part of the recipe changes the gradients, and neither part changes the forward pass
        of the first step. A run that stored neither part continues without them."""
        flags, norms, mesh = ("--gemm-rules", f"{EXPERTS}=nvfp4"), set(), (2, 1, 1, 2, 1, 1)
        parts = [("--nvfp4-hadamard", hadamard, "--nvfp4-rounding", rounding) for hadamard in ("on", "off") for rounding in ("stochastic", "nearest")]
        for number, part in enumerate(parts):
            self.train(f"recipe-{number}", mesh, "bf16", *flags, *part, steps=2)
            first = metrics(self.folder / f"recipe-{number}")[0]
            norms.add(first["grad_norm"])
            self.assertEqual(metrics(self.folder / "recipe-0")[0]["loss"], first["loss"], part)
            summary = self.summary(f"recipe-{number}")
            self.assertEqual((part[1] == "on", part[3]), (summary["nvfp4_hadamard"], summary["nvfp4_rounding"]))
        self.assertEqual(4, len(norms))
        default = self.train("recipe-default", mesh, "bf16", *flags, steps=2)
        self.assertEqual(bits(self.folder / "recipe-0"), default)
        step = self.folder / "recipe-default" / "checkpoints" / "step-00000002"
        manifest = read_manifest(step)
        for key in ("nvfp4_hadamard", "nvfp4_rounding"):
            del manifest["state"]["config"][key]
        write_manifest(manifest, step)
        said = tessera("train", "--resume", step, "--steps", 3, "--out", self.folder / "recipe-earlier")
        self.assertEqual(1, said.count("--nvfp4-hadamard off, --nvfp4-rounding nearest"), said)
        self.assertEqual((False, "nearest"), tuple(self.summary("recipe-earlier")[key] for key in ("nvfp4_hadamard", "nvfp4_rounding")))

    def test_plans_of_products_equal_measurements(self):
        """Events, bytes and flops; with etp, the messages of amaxes are part of the plan."""
        for number, (product, mesh, *more) in enumerate((("nvfp4", (2, 2, 1, 2, 1, 2)), ("fp8", (2, 2, 1, 2, 2, 1), "--fp8-scaling", "current"),
                                                         ("fp8", (2, 2, 1, 2, 1, 1)), ("mxfp8", (1, 4, 1, 1, 2, 2)))):
            name = f"planned-{number}"
            self.train(name, mesh, "bf16", "--gemm-format", product, *more, "--gather-budget", "min", "--reduce-budget", "min")
            summary = self.summary(name)
            kernels = {each["format"]: (each["kernel"], each["flops"]) for each in summary["products_by_kernel"]}
            self.assertEqual(("decoded", summary["flops"][product]), kernels[product])
            rows = json.loads(tessera("plan", "--measured", self.folder / name, "--json"))["measured"]["rows"]
            compared = [row["name"] for row in rows if row["name"] in
                        ("gathered_bytes", "reduced_bytes", "activation_bytes", "flops", "gather_arena_bytes", "reduce_arena_bytes")
                        and self.assertEqual(row["predicted"], row["measured"], (product, row["name"])) is None]
            self.assertIn("gathered_bytes", compared)

    def test_products_continue_on_another_mesh(self):
        """The history of delayed scaling belongs to a weight and its role, so it does not depend on the mesh of experts."""
        for product, *more in (("fp8", "--fp8-history", 3), ("nvfp4",)):
            flags = ("--gemm-format", product, *more)
            whole = self.train(f"whole-{product}", (1, 4, 1, 1, 2, 1), product, *flags)
            self.train(f"half-{product}", (1, 4, 1, 1, 2, 1), product, *flags, "--schedule-steps", STEPS, steps=2)
            self.assertEqual(whole["steps"][2:], self.resumed(f"rest-{product}", f"half-{product}", 2, (1, 4, 1, 1, 2, 2), product)["steps"])

    def test_bytes_have_the_size_of_the_format(self):
        moved = {}
        for wire in ("bf16", *FORMATS):
            self.train(f"moved-{wire}", (1, 2, 1, 1, 1, 2), "bf16", "--wire-rules", f"{EXPERTS}={wire}", "--embedding", "gather",
                       "--gather-budget", "min", "--reduce-budget", "min")
            moved[wire] = metrics(self.folder / f"moved-{wire}")[-1]
            self.check_planned(f"moved-{wire}")
        for wire, bytes_of_element in (("fp8", 1), ("fp8_block", 1.003), ("mxfp8", 1.05), ("nvfp4", 0.52)):
            by_format = moved[wire]["gathered_by_format"]
            of_experts = moved["bf16"]["gathered_bytes"] - by_format["bf16"]
            self.assertLessEqual(by_format[wire] / (of_experts / 2), bytes_of_element * 1.01, wire)

    @unittest.skipUnless(quantized, "no numpy")
    def test_folders_equal_a_reference(self):
        """Each matrix of each expert is quantized alone. The stored bytes are those of numpy, for all quantized matrices of the folder.
        The values that are read back do not depend on how often a folder is written."""
        qwen = self.folder / "qwen.json"
        qwen.write_text(json.dumps(json.loads((ROOT / "configs" / "qwen3-moe-tiny-odd" / "config.json").read_text())
                                   | {"hidden_size": 60, "moe_intermediate_size": 18, "intermediate_size": 34}))
        dots = self.folder / "dots.json"
        dots.write_text(json.dumps(json.loads((ROOT / "configs" / "dots1-tiny-odd" / "config.json").read_text())
                                   | {"hidden_size": 60, "moe_intermediate_size": 18, "intermediate_size": 34}))
        for name, model in (("mixtral", self.model), ("qwen", qwen), ("dots", dots)):
            self.train(f"stored-{name}", (1, 2, 1, 1, 1, 2), "nvfp4", "--model", model, steps=1)
            tessera("convert", self.folder / f"stored-{name}", self.folder / f"plain-{name}", "--dtype", "bf16")
            for command, *flags in (("evaluate", "--data", self.data, "--seq-len", 16), ("generate", "--prompt-ids", "5,3", "--tokens", 2)):
                result = run(command, self.folder / f"stored-{name}", *flags)
                self.assertEqual(0, result.returncode, result.stderr)
                self.assertIn("warning: the run was trained with --wire-format nvfp4; its formats are not used here", result.stderr)
            plain = safetensors(self.folder / f"plain-{name}" / "model.safetensors")
            for wire in FORMATS:
                folder = self.folder / f"folder-{name}-{wire}"
                tessera("convert", self.folder / f"stored-{name}", folder, "--format", wire)
                stored = safetensors(folder / "model.safetensors")
                matrices = [key for key in plain if f"{key}_scale" in stored or f"{key}_scale_inv" in stored]
                self.assertGreater(sum(".experts." in key for key in matrices), 14)
                routers = [key for key in plain if key.endswith("gate.weight")]
                self.assertFalse(set(routers) & set(matrices))
                for file, *keys in CONFIGURATIONS.get(wire, ()):
                    modules = functools.reduce(dict.__getitem__, keys, json.loads((folder / file).read_text()))
                    self.assertEqual({"lm_head", *(key.removesuffix(".weight") for key in routers)}, set(modules))
                for key in matrices:
                    for suffix, expected in quantized(wire, bf16_matrix(plain[key])).items():
                        self.assertEqual(expected, stored[key + suffix][2], (name, wire, key + suffix))
                for times in (1, 2):
                    tessera("convert", folder, self.folder / f"back-{name}-{wire}-{times}")
                self.assertEqual(tensor_hashes(self.folder / f"back-{name}-{wire}-1"), tensor_hashes(self.folder / f"back-{name}-{wire}-2"))

    def test_quantization_errors_of_experts(self):
        self.train("errors", (1, 1, 1, 1, 1, 1), "mxfp8", steps=1)
        tensors = json.loads(tessera("inspect", self.folder / "errors", "--quantization-error", "all", "--json"))["tensors"]
        experts = [tensor for tensor in tensors if tensor["kind"] == "weight" and ".experts." in tensor["name"]]
        self.assertEqual(4, len(experts))
        for tensor in experts:
            for error in tensor["quantization_error"].values():
                self.assertLess(error["worst"]["matrix"], 5)
                self.assertGreaterEqual(error["worst"]["relative_rms"], error["relative_rms"])
        self.assertIn("layers.0.experts.down.weight", tessera("inspect", self.folder / "errors", "--quantization-error", "nvfp4"))

    def test_impossible_settings_are_refused(self):
        plain = (1, 2, 1, 1, 1, 2)
        for mesh, flags, words in ((plain, ("--wire-rules", "layers.0.router.*=fp8"), ["layers.0.router.weight", "no number format"]),
                                   (plain, ("--wire-rules", "layers.0.expert.*=fp8"), ["--wire-rules", "layers.*.experts.down.weight"]),
                                   (plain, ("--gemm-rules", "layers.0.experts.*=fp8", "--gemm-kernels", "native"), ["--gemm-kernels", "fp8"]),
                                   ((4, 1, 1, 4, 1, 1), ("--wire-rules", "layers.0.experts.down.weight=nvfp4"),
                                    ["layers.0.experts.down.weight", "even", "got 11"])):
            result = run(*self.flags("refused", mesh, "bf16", "--steps", 1, *flags))
            self.assertEqual(2, result.returncode, result.stderr)
            for word in words:
                self.assertIn(word, result.stderr)
            self.assertEqual(1, result.stderr.count("\n"), result.stderr)
            self.assertFalse((self.folder / "refused").exists())


if __name__ == "__main__":
    run_cases()
