#!/usr/bin/env python3
"""Tests weights in number formats: within a format the layout does not change the result, transferred bytes have the size of the
format, and impossible settings are refused."""
import json
import unittest

from format_runs import FORMATS, FULL, POISON, STEPS, FormatRuns, chosen
from program import MPIRUN, bits, metrics, run, tessera
from summary import run_cases

# Bytes of one element on the wire, including the scales of edge tiles and the scale of the whole matrix.
BYTES = {"fp8": 1.0, "fp8_block": 1.001, "mxfp8": 1.04, "nvfp4": 0.51}


class Formats(FormatRuns, unittest.TestCase):
    def test_layouts_do_not_change_the_result(self):
        for turn, wire in enumerate(FORMATS):
            losses = []
            for runs in ([(1, 1, 1), (1, 3, 1, *POISON), (1, 6, 1, "--debug-delays", 3), (1, 4, 1)],
                         [(2, 1, 1), (2, 2, 1, "--tp-overlap", "off"), (2, 3, 1, *POISON)],
                         [(1, 1, 2), (1, 2, 2, "--zero", "off"), (1, 2, 2), (1, 3, 2, *POISON)]):
                same = chosen(runs, turn)
                found = [self.train(f"{wire}-{'-'.join(map(str, one))}", one[:3], wire, *one[3:]) for one in same]
                for one, got in zip(same, found):
                    self.assertEqual(found[0], got, (wire, one))
                losses.append(found[0]["steps"][-1][1])
            self.assertLess(max(losses) - min(losses), 0.02, wire)

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_processes_and_threads_give_the_same_bits(self):
        """Threads use shared memory. Processes send messages with encoded bytes, amaxes and activations."""
        split = ("--sequence-parallel", "on", "--gemm-format", "fp8", "--tp-wire-format", "fp8")
        for wire, mesh, *flags in (("fp8", (2, 2, 1), *split), ("fp8_block", (1, 3, 1)), ("mxfp8", (1, 1, 2)),
                                   ("nvfp4", (1, 2, 1), "--wire-format-backward", "mxfp8")):
            threads, processes = (self.train("-".join([backend, wire, *map(str, mesh), *flags]), mesh, wire, *flags, steps=2,
                                             backend=backend) for backend in ("local", "mpi"))
            self.assertEqual(threads, processes, (wire, mesh, *flags))

    def test_overlapping_parts(self):
        """fp8 has one scale for a matrix and mxfp8 has tiles of one row. Formats with larger tiles are refused for overlapping
        parts, because tiles would overlap."""
        for wire in ("fp8", "mxfp8"):
            self.assertEqual(self.train(f"overlap-1-{wire}", (4, 1, 1), wire), self.train(f"overlap-2-{wire}", (4, 2, 1), wire, *POISON))

    def test_backward_passes_may_have_another_format(self):
        """The backward weight is cast from the same masters in every layout."""
        for turn, (wire, backward) in enumerate((("nvfp4", "mxfp8"), ("bf16", "fp8"), ("fp8_block", "bf16"))):
            flags = ("--wire-format-backward", backward)
            for runs in ([(1, 1, 1), (1, 4, 1, *POISON), (1, 6, 1, "--debug-delays", 3), (1, 3, 1)],
                         [(2, 1, 1), (2, 3, 1, *POISON)],
                         [(1, 1, 2), (1, 2, 2), (1, 2, 2, "--zero", "off"), (1, 3, 2, *POISON)]):
                same = chosen(runs, turn)
                found = [self.train(f"{wire}-{backward}-{'-'.join(map(str, one))}", one[:3], wire, *flags, *one[3:])
                         for one in same]
                for one, got in zip(same, found):
                    self.assertEqual(found[0], got, (wire, backward, one))

    def test_a_run_with_a_backward_format_resumes_with_the_same_bits(self):
        flags = ("--wire-format-backward", "mxfp8", "--wire-rules-backward", "layers.1.mlp.*=fp8")
        out, whole = self.check_resumed("backward", "nvfp4", *flags)
        self.assertNotEqual(whole, self.train("whole-forward", (1, 2, 1), "nvfp4"))
        self.assertEqual({"bf16", "fp8", "mxfp8", "nvfp4"}, set(metrics(out)[-1]["gathered_by_format"]))

    def test_bytes_of_both_passes_are_counted_by_format(self):
        """Each pass gathers each weight once, so swapping the formats of the passes does not change the bytes of a format."""
        moved = {}
        for wire, backward in (("nvfp4", "mxfp8"), ("mxfp8", "nvfp4"), ("nvfp4", "fp8"), ("bf16", "fp8")):
            self.train(f"moved-{wire}-{backward}", (1, 2, 1), wire, *self.of_both_passes(backward))
            moved[wire, backward] = metrics(self.folder / f"moved-{wire}-{backward}")[-1]["gathered_by_format"]
        self.assertEqual({"bf16", "nvfp4", "mxfp8"}, set(moved["nvfp4", "mxfp8"]))
        self.assertEqual(moved["nvfp4", "mxfp8"], moved["mxfp8", "nvfp4"])
        elements = moved["nvfp4", "fp8"]["fp8"]  # one byte for each element; the scale of the whole matrix is not transferred
        self.assertEqual(elements, moved["bf16", "fp8"]["fp8"])
        for wire in ("nvfp4", "mxfp8"):
            self.assertLessEqual(moved["nvfp4", "mxfp8"][wire] / elements, BYTES[wire] * 1.01, wire)
            self.assertGreater(moved["nvfp4", "mxfp8"][wire] / elements, {"nvfp4": 0.503, "mxfp8": 1.03}[wire])
        summary = json.loads((self.folder / "moved-nvfp4-mxfp8" / "summary.json").read_text())
        self.assertEqual(("nvfp4", "mxfp8"), (summary["wire_format"], summary["wire_format_backward"]))
        self.assertEqual(0, summary["demand_gathers"])

    @staticmethod
    def of_both_passes(backward):
        return "--gather-budget", "min", "--reduce-budget", "min", "--embedding", "gather", "--wire-format-backward", backward

    def test_a_format_changes_the_result_and_training_goes_on(self):
        last = {wire: self.train(f"plain-{wire}", (1, 2, 1), wire)["steps"] for wire in ("bf16", *FORMATS)}
        self.assertEqual(len(last), len({str(steps) for steps in last.values()}))
        for wire, steps in last.items():
            self.assertLess(steps[-1][1], steps[0][1], wire)
            self.assertLess(abs(steps[-1][1] - last["bf16"][-1][1]), 0.02, wire)

    def test_a_resumed_run_and_another_mesh_go_on_alike(self):
        for wire in FORMATS if FULL else ("fp8_block",):  # the others: see the run with a backward format
            self.check_resumed(wire, wire)

    def test_a_run_resumes_in_another_format(self):
        self.train("before", (1, 2, 1), "mxfp8", "--schedule-steps", STEPS, steps=2)
        for wire in ("nvfp4", "bf16"):
            out = self.folder / f"after-{wire}"
            tessera("train", "--resume", self.folder / "before" / "checkpoints" / "step-00000002", "--gtp", 2, "--wire-format", wire,
                    "--steps", STEPS, "--out", out)
            self.assertEqual(wire, json.loads((out / "summary.json").read_text())["wire_format"])
            by_format = {"bf16"} if wire == "bf16" else {"bf16", wire}
            self.assertEqual(by_format, set(json.loads((out / "summary.json").read_text())["gathered_bytes"]))

    def test_checkpoints_are_equal_for_every_format(self):
        tensors = [self.train(f"first-{wire}", (1, 2, 1), wire, steps=0)["tensors"] for wire in ("bf16", *FORMATS)]
        for other in tensors[1:]:
            self.assertEqual(tensors[0], other)

    def test_transferred_bytes_have_the_size_of_the_format(self):
        rules = ["--wire-rules", "embedding.*=bf16,output.*=bf16,layers.*=bf16", "--embedding", "gather"]
        moved = {wire: self.last_line(wire, *(rules if wire == "bf16" else ["--embedding", "gather"]))
                 for wire in ("bf16", *FORMATS)}
        self.assertNotIn("gathered_by_format", moved["bf16"])
        for wire in FORMATS:
            by_format = moved[wire]["gathered_by_format"]
            self.assertEqual({"bf16", wire}, set(by_format))
            self.assertEqual(moved[wire]["gathered_bytes"], sum(by_format.values()))
            of_layers = moved["bf16"]["gathered_bytes"] - by_format["bf16"]
            self.assertLessEqual(by_format[wire] / (of_layers / 2), BYTES[wire] * 1.01, wire)
            summary = json.loads((self.folder / f"moved-{wire}" / "summary.json").read_text())
            self.assertEqual(wire, summary["wire_format"])
            self.assertEqual(sum(line["gathered_by_format"][wire] for line in metrics(self.folder / f"moved-{wire}")),
                             summary["gathered_bytes"][wire])

    def test_the_plan_of_a_run_equals_its_measurements(self):
        for wire, mesh in (("nvfp4", (1, 3, 1)), ("mxfp8", (2, 2, 1)), ("fp8", (1, 2, 2))):
            self.train(f"measured-{wire}", mesh, wire, "--wire-rules", "layers.1.mlp.*=bf16", "--gather-budget", "min",
                       "--reduce-budget", "min")
            rows = json.loads(tessera("plan", "--measured", self.folder / f"measured-{wire}", "--json"))["measured"]["rows"]
            found = {row["name"]: (row["predicted"], row["measured"]) for row in rows}
            for key in ("gathered_bytes", "reduced_bytes", "gather_arena_bytes", "reduce_arena_bytes"):
                self.assertEqual(*found[key], (wire, key))

    def last_line(self, wire, *more):
        self.train(f"moved-{wire}", (1, 2, 1), wire, "--gather-budget", "min", *more)
        return metrics(self.folder / f"moved-{wire}")[-1]

    def test_impossible_settings_are_refused(self):
        self.refused(dtype="fp32", expect=["--wire-format: got mxfp8 with --dtype fp32", "--dtype bf16"])
        self.refused("--wire-rules", "layers.0.*=nvfp4", dtype="fp64", wire="bf16", expect=["--wire-rules: got nvfp4 with --dtype fp64"])
        self.refused(wire="fp16", expect=["--wire-format", "fp16", "mxfp8"])
        self.refused("--wire-rules", "unknown=fp8", expect=["--wire-rules", "unknown"])
        self.refused("--wire-rules", "layers.0.*", expect=["--wire-rules", "PATTERN=FORMAT"])
        self.refused("--wire-rules", "layers.0.*=int8", expect=["--wire-rules", "int8", "nvfp4"])
        self.refused("--wire-rules", "embedding.*=fp8", expect=["embedding.weight", "bf16"])
        self.refused("--wire-format-backward", "mxfp8", dtype="fp32", wire="bf16",
                     expect=["--wire-format-backward", "mxfp8", "--dtype bf16"])
        self.refused("--wire-format-backward", "fp16", expect=["--wire-format-backward", "fp16", "mxfp8"])
        self.refused("--wire-rules-backward", "unknown=fp8", expect=["--wire-rules-backward", "unknown"])
        self.refused("--wire-rules-backward", "embedding.*=fp8", expect=["embedding.weight", "bf16"])
        self.refused("--wire-rules-backward", "layers.0.mlp.down.weight=nvfp4", wire="bf16", mesh=(4, 1, 1),
                     expect=["layers.0.mlp.down.weight (backward)", "even", "83"])
        # Two key/value heads on four tp ranks, and 332 columns in four parts.
        for wire in ("fp8_block", "nvfp4"):
            self.refused(wire=wire, mesh=(4, 1, 1), expect=["layers.0.attention.qkv.weight", "overlap"])
        self.refused("--wire-rules", "layers.0.mlp.down.weight=nvfp4", wire="bf16", mesh=(4, 1, 1),
                     expect=["layers.0.mlp.down.weight", "even", "83"])

    def test_split_masters_do_not_change_the_result(self):
        for wire, mesh in (("bf16", (1, 3, 1)), ("bf16", (1, 2, 2)), ("nvfp4", (1, 2, 1))):
            of = {masters: f"masters-{masters}-{wire}-{mesh[2]}" for masters in ("fp32", "auto")}
            found = {masters: self.train(name, mesh, wire, "--masters", masters) for masters, name in of.items()}
            self.assertEqual(found["fp32"], found["auto"], (wire, mesh))
            stored = {masters: json.loads((self.folder / name / "summary.json").read_text())["master_bytes"]
                      for masters, name in of.items()}
            self.assertEqual(0, stored["fp32"]["split"])
            self.assertEqual(wire == "bf16", stored["auto"]["fp32"] == 0)
            self.assertEqual(stored["fp32"]["fp32"], stored["auto"]["fp32"] + 2 * stored["auto"]["split"])
        self.assertEqual(self.train("masters-split", (1, 3, 1), "bf16", "--masters", "split"),
                         self.train("masters-auto-bf16-1", (1, 3, 1), "bf16", "--masters", "auto"))

    def test_a_run_resumes_with_another_storage_of_masters(self):
        whole = self.train("masters-whole", (1, 2, 1), "bf16")
        for before, after in (("fp32", "split"), ("split", "fp32")):
            self.train(f"masters-part-{before}", (1, 3, 1), "bf16", "--schedule-steps", STEPS, "--masters", before, steps=2)
            out = self.folder / f"masters-{before}-{after}"
            tessera("train", "--resume", self.folder / f"masters-part-{before}" / "checkpoints" / "step-00000002", "--gtp", 4,
                    "--masters", after, "--steps", STEPS, "--out", out)
            self.assertEqual(whole["tensors"], bits(out)["tensors"], before)
            self.assertEqual(after, json.loads((out / "config.json").read_text())["config"]["masters"])

    def test_masters_that_cannot_be_split_are_refused(self):
        self.refused("--masters", "split", "--wire-rules", "layers.1.mlp.down.weight=fp8", wire="bf16",
                     expect=["--masters: got split", "'layers.1.mlp.down.weight' is stored in fp8", "expected auto"])
        self.refused("--masters", "split", "--wire-format-backward", "mxfp8", wire="bf16",
                     expect=["--masters: got split", "backward passes read 'layers.0."])
        self.refused("--masters", "split", wire="bf16", dtype="fp32", expect=["--masters: got split with --dtype fp32"])
        self.refused("--masters", "half", wire="bf16", expect=["--masters", "half", "split"])

    def test_plans_include_the_copies_of_backward_passes(self):
        self.train("copies", (1, 2, 1), "nvfp4", *self.of_both_passes("mxfp8"))
        report = json.loads(tessera("plan", "--measured", self.folder / "copies", "--json"))
        rows = {row["name"]: row for row in report["measured"]["rows"]}
        for name in ("gathered_bytes", "reduced_bytes", "gather_arena_bytes", "reduce_arena_bytes"):
            self.assertEqual(rows[name]["measured"], rows[name]["predicted"], name)

    def test_rules_select_layers(self):
        self.train("rules", (1, 2, 1), "nvfp4", "--wire-rules", "layers.0.*=mxfp8,layers.1.mlp.*=fp8,output.*=fp8_block")
        self.assertEqual({"bf16", "fp8", "fp8_block", "mxfp8", "nvfp4"},
                         set(metrics(self.folder / "rules")[-1]["gathered_by_format"]))
        tensors = json.loads(tessera("inspect", self.folder / "rules", "--quantization-error", "fp8", "--json"))["tensors"]
        weights = {tensor["name"]: tensor for tensor in tensors if tensor["kind"] == "weight"}
        for name, wire in {"layers.0.mlp.down.weight": "mxfp8", "layers.1.mlp.down.weight": "fp8", "output.weight": "fp8_block",
                           "layers.1.attention.qkv.weight": "nvfp4", "embedding.weight": "bf16", "norm.weight": "bf16"}.items():
            self.assertEqual(wire, weights[name]["wire_format"], name)
            self.assertEqual(name != "norm.weight", "quantization_error" in weights[name], name)
        result = run("inspect", self.folder / "rules", "--quantization-error", "fp9")
        self.assertEqual(2, result.returncode)
        self.assertIn("--quantization-error: got 'fp9', expected all, fp8, fp8_block, mxfp8 or nvfp4", result.stderr)


if __name__ == "__main__":
    run_cases()
