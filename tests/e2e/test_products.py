#!/usr/bin/env python3
"""Tests products in number formats: within a format the layout does not change the result, losses are close to bf16, scales from
earlier steps are part of a checkpoint, and impossible settings are refused."""
import json
import unittest

from format_runs import FORMATS, FULL, POISON, STEPS, FormatRuns, chosen
from program import MPIRUN, bits, metrics, run, tessera
from refusals import read_manifest, write_manifest
from summary import run_cases

# (product format, wire format). A product reads the gathered weight directly or decoded, or quantizes it again after unpacking.
PAIRS = (("fp8", "fp8"), ("fp8", "nvfp4"), ("fp8_block", "fp8_block"), ("fp8_block", "bf16"), ("mxfp8", "bf16"),
         ("mxfp8", "mxfp8"), ("nvfp4", "nvfp4"), ("nvfp4", "mxfp8"))
PARALLEL = ("--sequence-parallel", "on")
CURRENT = ("--fp8-scaling", "current")
PLAIN = ("--nvfp4-hadamard", "off", "--nvfp4-rounding", "nearest")


class Products(FormatRuns, unittest.TestCase):
    def products(self, name, mesh, product, wire, *more, steps=STEPS):
        return self.train(name, mesh, wire, "--gemm-format", product, *more, steps=steps)

    def same(self, product, wire, *runs):
        """Checks that runs of (mesh, flags) have the same bits. Returns the bits."""
        found = [self.products(f"{product}-{wire}-{'-'.join(map(str, (*mesh, *more)))}", mesh, product, wire, *more)
                 for mesh, *more in runs]
        for (mesh, *more), got in zip(runs, found):
            self.assertEqual(found[0], got, (product, wire, mesh, more))
        return found[0]

    def test_layouts_do_not_change_the_result(self):
        for turn, (product, wire) in enumerate(PAIRS):
            self.same(product, wire, *chosen([[(1, 1, 1)], [(1, 3, 1), *POISON], [(1, 4, 1), "--debug-delays", 3]], turn))
            self.same(product, wire, [(2, 1, 1), *PARALLEL], [(2, 2, 1), *PARALLEL, *POISON])
        chunks = (*PARALLEL, "--tp-chunks", 2)
        for product in ("nvfp4", "mxfp8"):
            self.same(product, product, [(2, 1, 1), *chunks, "--tp-overlap", "off"],
                      [(2, 2, 1), *chunks, "--tp-overlap", "on", "--debug-delays", 3, *POISON])
        self.same("fp8", "fp8", [(1, 1, 2)], [(1, 2, 2)], [(1, 2, 2), "--zero", "off"])
        self.same("nvfp4", "nvfp4", [(1, 1, 2)], [(1, 2, 2), "--zero", "off"])
        self.same("fp8", "fp8", [(1, 1, 1), *CURRENT], [(1, 3, 1), *CURRENT])
        self.same("fp8", "bf16", [(2, 1, 1), *CURRENT], [(2, 2, 1), *CURRENT, *POISON])

    def test_gathered_columns_equal_quantized_columns_of_the_bf16_weight(self):
        """Backward passes gather mxfp8 weights quantized along columns. The bits equal those of a quantized bf16 weight."""
        for mesh in ((1, 3, 1), (2, 2, 1)) if FULL else ((2, 2, 1),):
            plain = self.products(f"bf16-{mesh[0]}", mesh, "mxfp8", "bf16", *PARALLEL)
            self.assertEqual(plain, self.products(f"columns-{mesh[0]}", mesh, "mxfp8", "mxfp8", *PARALLEL))
            self.assertEqual(plain, self.products(f"one-{mesh[0]}", mesh, "mxfp8", "bf16", "--wire-format-backward", "mxfp8",
                                                  *PARALLEL, *POISON))
        moved = json.loads((self.folder / "columns-2" / "summary.json").read_text())
        self.assertEqual({"bf16", "mxfp8"}, set(moved["gathered_bytes"]))
        self.assertEqual(0, moved["demand_gathers"])

    def test_decoded_weights_equal_quantized_bf16_weights(self):
        """Products read the codes of a gathered nvfp4 weight. The bits equal those of a bf16 weight that each product quantizes."""
        for mesh in ((1, 3, 1), (2, 2, 1), (1, 2, 2)) if FULL else ((2, 2, 1),):
            split = PARALLEL if mesh[0] > 1 else ()
            plain = self.products(f"whole-nvfp4-{mesh}", mesh, "nvfp4", "bf16", *split, steps=20)
            codes = self.products(f"codes-nvfp4-{mesh}", mesh, "nvfp4", "nvfp4", *split, *POISON, steps=20)
            self.assertEqual(plain, codes, mesh)
        whole, codes = (self.summary(f"{name}-nvfp4-(2, 2, 1)") for name in ("whole", "codes"))
        self.assertEqual({"nvfp4": whole["weights_by_format"]["products"]["nvfp4"]}, whole["weights_quantized_at_use"])
        self.assertEqual({}, codes["weights_quantized_at_use"])
        self.assertEqual(0, codes["demand_gathers"])

    def test_columnwise_copies_are_made_once_a_residency(self):
        """A run makes the copies that `plan` counts. Kept copies, copies that are made again, and bf16 weights that each product
        quantizes give the same bits."""
        for product, mesh, more in (("fp8", (1, 1, 1), ()), ("fp8_block", (1, 2, 1), ()), ("fp8", (2, 1, 1), PARALLEL)):
            microbatches = 12 // (mesh[1] * mesh[2])
            plain = self.products(f"unstored-{product}-{mesh}", mesh, product, "bf16", *more)
            alone, counts = ("--coalesce", 1), []
            for number, budgets in enumerate((("900GB", *alone), ("min", *alone), ("900GB",))):
                name, flags = f"copies-{product}-{mesh}-{number}", (*more, "--gather-budget", *budgets)
                self.assertEqual(plain, self.products(name, mesh, product, product, *flags), name)
                shape = self.flags(name, mesh, product, "--gemm-format", product, *flags)
                without = [shape.index(flag) for flag in ("--data", "--seed", "--out")]
                shape = [flag for at, flag in enumerate(shape[1:], 1) if at not in without and at - 1 not in without]
                plan = json.loads(tessera("plan", *shape, "--json"))
                counts.append(len(plan["columnwise_copies"]))
                # The first step has no schedule and copies each weight alone at each use.
                self.assertEqual(counts[0] * microbatches + (STEPS - 1) * counts[-1], self.summary(name)["columnwise_copies"], name)
            kept, made, together = counts
            self.assertEqual(kept * microbatches, made, (product, mesh))
            self.assertLess(together, kept, (product, mesh))

    def test_the_recipe_of_nvfp4(self):
        """Each part of the recipe changes the gradients, and neither part changes the forward pass of the first step. Processes and
        threads have the same random numbers."""
        runs = {more: self.products("recipe" + "".join(more), (2, 1, 1), "nvfp4", "nvfp4", *PARALLEL, *more)["steps"]
                for more in ((), PLAIN[:2], PLAIN[2:], PLAIN)}
        self.assertEqual((1, 4), tuple(len({steps[0][value] for steps in runs.values()}) for value in (1, 2)), runs)
        if MPIRUN:
            processes = self.train("recipe-mpi", (2, 1, 1), "nvfp4", "--gemm-format", "nvfp4", *PARALLEL, backend="mpi")
            self.assertEqual(runs[()], processes["steps"])
        for name, expected in (("recipe", (True, "stochastic")), ("recipe" + "".join(PLAIN), (False, "nearest"))):
            config = json.loads((self.folder / name / "config.json").read_text())["config"]
            for found in (config, self.summary(name)):
                self.assertEqual(expected, (found["nvfp4_hadamard"], found["nvfp4_rounding"]))
        self.products("no-recipe", (1, 1, 1), "bf16", "bf16")
        self.assertNotIn("nvfp4_rounding", self.summary("no-recipe"))

    def test_an_earlier_run_continues_without_the_recipe(self):
        """Runs of earlier versions stored neither part of the recipe and had neither."""
        flags = ("--gemm-format", "nvfp4", *PLAIN)
        whole = self.train("plain-whole", (1, 1, 1), "nvfp4", *flags)
        self.train("plain-part", (1, 1, 1), "nvfp4", "--schedule-steps", STEPS, *flags, steps=2)
        step = self.folder / "plain-part" / "checkpoints" / "step-00000002"
        manifest = read_manifest(step)
        for key in ("nvfp4_hadamard", "nvfp4_rounding"):
            del manifest["state"]["config"][key]
        write_manifest(manifest, step)
        out = self.folder / "plain-rest"
        said = tessera("train", "--resume", step, "--steps", STEPS, "--out", out)
        self.assertEqual(1, said.count("--nvfp4-hadamard off, --nvfp4-rounding nearest"), said)
        self.assertEqual(whole["tensors"], bits(out)["tensors"])

    def test_recomputation_does_not_change_the_result(self):
        for turn, (product, wire) in enumerate((("fp8", "fp8"), ("nvfp4", "nvfp4"), ("mxfp8", "mxfp8"), ("nvfp4", "bf16"))):
            self.same(product, wire, *chosen([[(2, 1, 1), *PARALLEL], *([(2, 1, 1), *PARALLEL, "--recompute", policy]
                                                                        for policy in ("full", "selective"))], turn))

    def test_losses_are_close_to_bf16(self):
        losses = {"bf16": self.train("plain", (1, 2, 1), "bf16")["steps"]}
        for product in FORMATS:
            losses[product] = self.products(f"plain-{product}", (1, 2, 1), product, "bf16")["steps"]
        for more in (CURRENT, ("--fp8-recipe", "e4m3"), ("--fp8-history", 1), ("--fp8-amax", "newest"), ("--fp8-margin", 3)):
            losses[more] = self.products("plain-" + "-".join(map(str, more)), (1, 2, 1), "fp8", "bf16", *more)["steps"]
        for product, steps in losses.items():
            self.assertLess(steps[-1][1], steps[0][1], product)
            self.assertLess(abs(steps[-1][1] - losses["bf16"][-1][1]), 0.03, product)
        # With a history of one step the greatest amax is the newest amax.
        self.assertEqual(losses[("--fp8-history", 1)], losses.pop(("--fp8-amax", "newest")))
        self.assertEqual(len(losses), len({str(steps) for steps in losses.values()}))

    def test_activations_sent_as_codes_do_not_change_the_result(self):
        """Gathering codes gives the bits of gathering bf16 and quantizing with the scale of the whole matrix."""
        for more in ((), CURRENT):
            flags = (*PARALLEL, *more)
            name = f"wire{len(more)}"
            plain = self.products(name, (2, 1, 1), "fp8", "fp8", *flags)
            if FULL or not more:
                self.assertEqual(plain, self.products(f"{name}-codes", (2, 1, 1), "fp8", "fp8", *flags, "--tp-wire-format", "fp8"))
            self.assertEqual(plain, self.products(f"{name}-codes-3", (2, 3, 1), "fp8", "fp8", *flags, "--tp-wire-format", "fp8",
                                                  *POISON))
        whole, codes = (self.summary(name)["activation_bytes"] for name in ("wire0", "wire0-codes"))
        self.assertEqual({"bf16"}, set(whole))
        self.assertEqual(whole["bf16"], codes["bf16"] + 2 * codes["fp8"])
        self.assertEqual("fp8", self.summary("wire0-codes")["tp_wire_format"])
        lines = metrics(self.folder / "wire0-codes")
        self.assertEqual(codes["fp8"], sum(line["activations_by_format"]["fp8"] for line in lines))

    def test_codes_in_tiles_do_not_change_the_result(self):
        """Gathering codes and scales gives the bits of gathering bf16 and quantizing. With tp 3, the 32 tokens of a microbatch divide
        by nothing. With tp 2, each rank's tokens begin at a tile of nvfp4, and not at a tile of the other formats. The transform of
        nvfp4 leaves only codes by rows."""
        plain_columns = ("--nvfp4-hadamard", "off")
        gathers = 4 * 2 * STEPS * 12  # of columns: 4 a layer and microbatch
        for turn, (product, tp, more, reason) in enumerate(
                (("nvfp4", 2, plain_columns, None), ("nvfp4", 3, plain_columns, "tiles"), ("nvfp4", 3, (), "transform"),
                 ("mxfp8", 2, (), "tiles"), ("mxfp8", 3, (), "tiles"), ("fp8_block", 2, (), "tiles"), ("fp8_block", 3, (), "tiles"))):
            codes = ("--tp-wire-format", product)
            flags = (*PARALLEL, *more, "--tp-overlap", ("on", "off")[turn % 2], "--tp-chunks", 2)
            plain = self.products(f"tiles-{turn}", (tp, 1, 1), product, "bf16", *flags)
            self.assertEqual(plain, self.products(f"tiles-{turn}-codes", (tp, 1, 1), product, "bf16", *flags, *codes))
            summary = self.summary(f"tiles-{turn}-codes")
            self.assertEqual({reason: gathers} if reason else {}, summary["tp_wire_fallbacks"], turn)
            sent = summary["activation_bytes"]
            self.assertLess(sent[product], self.summary(f"tiles-{turn}")["activation_bytes"]["bf16"] - sent["bf16"])
        self.same("nvfp4", "nvfp4", [(2, 1, 1), *PARALLEL], [(2, 2, 1), *PARALLEL, "--tp-wire-format", "nvfp4", *POISON])
        mixed = ("--gemm-rules", "layers.1.*=mxfp8", *PARALLEL)
        self.same("nvfp4", "bf16", [(2, 1, 1), *mixed], [(2, 1, 1), *mixed, "--tp-wire-format", "mxfp8"])

    def summary(self, name):
        return json.loads((self.folder / name / "summary.json").read_text())

    def test_a_resumed_run_has_the_bits_of_the_whole_run(self):
        stateless = (("fp8", "fp8", CURRENT), ("fp8_block", "fp8", ())) if FULL else ()
        for product, wire, more in (("fp8", "fp8", ()), ("mxfp8", "mxfp8", ()), ("nvfp4", "nvfp4", ()), *stateless):
            self.check_resumed(f"{product}-{len(more)}", wire, "--gemm-format", product, *more)

    def resumed(self, name, *more):
        out = self.folder / f"{name}-{'-'.join(map(str, more))}"
        tessera("train", "--resume", self.folder / name / "checkpoints" / "step-00000002", "--steps", STEPS, "--out", out, *more)
        return metrics(out)

    def test_other_matrices_or_settings_restart_the_history(self):
        self.products("before", (1, 2, 1), "fp8", "fp8", "--schedule-steps", STEPS, steps=2)
        on = self.resumed("before")
        for more in (("--fp8-history", 4), ("--gemm-rules", "layers.0.*=bf16"), ("--gemm-format", "bf16"), ("--fp8-recipe", "e4m3"),
                     ("--fp8-margin", 1), ("--fp8-amax", "newest")):
            lines = self.resumed("before", *more)
            self.assertEqual(4, lines[-1]["step"])
            # Multipliers for another type or margin would clip the gradients.
            self.assertLess(abs(lines[0]["grad_norm"] / on[0]["grad_norm"] - 1), 0.02, more)
            self.assertNotEqual(lines[0]["grad_norm"], on[0]["grad_norm"], more)

    def test_settings_without_effect_are_dropped(self):
        self.products("set", (1, 2, 1), "fp8", "fp8", "--fp8-history", 4, "--gemm-rules", "layers.0.*=bf16", "--schedule-steps",
                      STEPS, steps=2)
        self.assertEqual(4, self.resumed("set", "--gemm-format", "bf16")[-1]["step"])
        self.assertNotIn("fp8_history", self.summary("set---gemm-format-bf16"))
        self.assertEqual(4, self.resumed("set", "--fp8-scaling", "current")[-1]["step"])
        self.assertIn("fp8", self.resumed("set", "--gemm-rules", "")[-1]["flops_by_format"])
        self.assertNotIn("gemm_rules", self.summary("set---gemm-rules-"))

    def test_flops_are_counted_by_format(self):
        self.products("counted", (2, 2, 1), "fp8", "fp8", "--gemm-rules", "layers.1.mlp.down.weight=fp8_block")
        summary = json.loads((self.folder / "counted" / "summary.json").read_text())
        lines = metrics(self.folder / "counted")
        self.assertEqual("fp8", summary["gemm_format"])
        self.assertEqual({"bf16", "fp8", "fp8_block"}, set(summary["flops"]))
        tokens, hidden, inner, heads = 12 * 32, 72, 332, 12
        down = 2 * 3 * tokens * hidden * inner
        layer = 2 * 3 * tokens * (hidden * (6 + 2 * 2) * heads + 6 * heads * hidden + hidden * 2 * inner) + down
        self.assertEqual({"fp8": 2.0 * layer - down, "fp8_block": down, "bf16": 2 * 3 * tokens * hidden * 131},
                         lines[-1]["flops_by_format"])
        self.assertEqual(summary["flops"]["fp8"], sum(line["flops_by_format"]["fp8"] for line in lines))
        kernels = {each["format"]: (each["kernel"], each["flops"]) for each in summary["products_by_kernel"]}
        self.assertEqual({name: ("native" if name == "bf16" else "decoded", flops) for name, flops in summary["flops"].items()}, kernels)
        self.assertEqual({"fp8_block": hidden * inner}, summary["weights_quantized_at_use"])

    def test_impossible_settings_are_refused(self):
        gemm = ("--gemm-format", "fp8")
        self.refused(*gemm, dtype="fp32", wire="bf16", expect=["--gemm-format", "fp8", "--dtype bf16"])
        self.refused("--gemm-format", "int8", wire="bf16", expect=["--gemm-format", "int8", "fp8_block"])
        self.refused("--gemm-rules", "unknown=fp8", wire="bf16", expect=["--gemm-rules", "unknown"])
        self.refused("--gemm-rules", "norm.weight=fp8", wire="bf16", expect=["--gemm-rules", "norm.weight", "matrix"])
        self.refused(*gemm, *CURRENT, "--fp8-history", 4, wire="bf16", expect=["--fp8-history", "--fp8-scaling delayed"])
        self.refused("--gemm-rules", "embedding.*=fp8", wire="bf16", expect=["embedding.weight", "no products"])
        self.refused("--gemm-format", "fp8_block", "--fp8-scaling", "current", wire="bf16",
                     expect=["--fp8-scaling", "--gemm-format fp8"])
        self.refused(*gemm, "--fp8-history", 0, wire="bf16", expect=["--fp8-history", "1"])
        for more in (PLAIN[:2], PLAIN[2:], ("--nvfp4-hadamard", "on"), ("--nvfp4-rounding", "stochastic")):
            for formats in ((), gemm, ("--gemm-format", "mxfp8")):
                self.refused(*formats, *more, wire="nvfp4", expect=[f"{more[0]}: got ", "expected it with --gemm-format nvfp4"])
        self.refused("--gemm-format", "nvfp4", "--nvfp4-rounding", "up", wire="bf16", expect=["--nvfp4-rounding", "stochastic, nearest"])
        for product in FORMATS:
            self.refused("--gemm-format", product, dtype="fp32", wire="bf16", expect=["--gemm-format", product, "--dtype bf16"])
            self.refused("--gemm-format", product, "--gemm-kernels", "native", wire="bf16",
                         expect=["--gemm-kernels: got native", f"products in {product}", "--backend local", "expected auto"])
        self.refused("--gemm-rules", "layers.0.*=nvfp4", "--gemm-kernels", "native", wire="bf16", expect=["products in nvfp4"])
        self.refused("--gemm-kernels", "fast", wire="bf16", expect=["--gemm-kernels", "auto, native"])
        # Commands without a backend do not have the flag.
        for words in (("plan",), ("bench", "schedule")):
            said = run(*words, "--model", self.model, "--gemm-kernels", "native")
            self.assertEqual((2, 1), (said.returncode, said.stderr.count("\n")), said.stderr)
            self.assertIn("unknown flag --gemm-kernels", said.stderr)
        for product in FORMATS:
            other = "mxfp8" if product == "fp8" else "fp8"
            self.refused("--gemm-format", other, "--tp-wire-format", product, *PARALLEL, wire="bf16", mesh=(2, 1, 1),
                         expect=[f"--tp-wire-format: got {product}, but no product has it"])
            for mesh, more in (((1, 2, 1), ()), ((2, 1, 1), ("--sequence-parallel", "off"))):
                self.refused("--gemm-format", product, "--tp-wire-format", product, *more, wire="bf16", mesh=mesh,
                             expect=[f"--tp-wire-format: got {product}", "--tp above 1 and --sequence-parallel on"])
        self.refused("--tp-wire-format", "int8", wire="bf16", expect=["--tp-wire-format", "int8", "nvfp4"])


if __name__ == "__main__":
    run_cases()
