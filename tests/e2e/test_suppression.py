#!/usr/bin/env python3
"""A suppressed step is repeated, and the run has the bits of a run without suppressed steps.

By default most meshes run a few injections. TESSERA_E2E=full runs all injections on all meshes.
"""
import json
import os
import unittest

from program import MPIRUN, metrics, run, scratch, tessera, write_tokens
from stored_tensors import tensor_hashes
from summary import run_cases

FULL = os.environ.get("TESSERA_E2E") == "full"
STEPS = 6
# Steps N = 3 and N + 1, alone and together; a step twice; the first and the last step; step 4 has an evaluation and a checkpoint.
INJECTIONS = ("3", "4", "3,4", "3:2", "1", "6", "1:2,2,3,4:3,5,6")
FEW = INJECTIONS if FULL else ("3,4", "1:2,2,3,4:3,5,6")
FP8 = ("--dtype", "bf16", "--gemm-format", "fp8")


class Suppression(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("suppression")
        cls.flags = ["--model", "llama-tiny-odd", "--data", write_tokens(cls.folder / "tokens", 131), "--valid",
                     write_tokens(cls.folder / "valid", 131, documents=11), "--global-batch", 12, "--seq-len", 32, "--seed", 7,
                     "--steps", STEPS, "--eval-every", 2, "--save-every", 2]
        cls.references = {}

    def train(self, name, mesh, *flags, backend="local"):
        """Trains, and returns the values of every step and every checkpoint that must be equal."""
        gtp, dp = mesh
        out = self.folder / name
        tessera("train", *self.flags, "--backend", backend, "--gtp", gtp, "--dp", dp, "--out", out, *flags,
                mpi_ranks=gtp * dp if backend == "mpi" else None)
        lines = [{key: line.get(key) for key in ("step", "loss", "grad_norm", "lr", "tokens", "valid_loss", "skipped")}
                 for line in metrics(out)]
        return lines, {path.name: self.checkpoint(path) for path in sorted((out / "checkpoints").iterdir())}

    def checkpoint(self, folder):
        """Returns the state of a checkpoint without the settings of the run, and its logical tensors."""
        state = json.loads((folder / "manifest.json").read_text())["state"]
        del state["config"]
        return state, tensor_hashes(folder)

    def reference(self, dp, *flags):
        """Returns the results of the run with gtp 1 and without suppressed steps."""
        if (dp, *flags) not in self.references:
            self.references[dp, *flags] = self.train(f"without-{len(self.references)}", (1, dp), *flags)
        return self.references[dp, *flags]

    def check(self, name, mesh, *flags, injections=INJECTIONS, backend="local", format_flags=()):
        expected = self.reference(mesh[1], *format_flags)
        flags = (*format_flags, *flags)
        self.assertEqual(3, len(expected[1]))
        for injected in injections:
            run_name = f"{name}-{injected.replace(':', 'x').replace(',', '-')}"
            got = self.train(run_name, mesh, *flags, "--debug-suppress", injected, backend=backend)
            self.assertEqual(expected[0], got[0], (name, injected))
            self.assertEqual(expected[1], got[1], (name, injected))
            self.check_report(self.folder / run_name, injected)

    def check_report(self, out, injected):
        times = {int(step): int(count or 1) for step, _, count in (entry.partition(":") for entry in injected.split(","))}
        self.assertEqual(times, {line["step"]: line["suppressed"] for line in metrics(out) if "suppressed" in line})
        summary = json.loads((out / "summary.json").read_text())
        self.assertEqual(sum(times.values()), summary["suppressed_steps"])
        self.assertEqual({"debug_suppress": sum(times.values())}, summary["suppressed_by"])
        self.assertEqual((STEPS, 0), (summary["trained_steps"], summary["skipped_steps"]))

    def test_gtp_degrees(self):
        self.check("gtp1", (1, 1), injections=FEW)
        self.check("gtp3", (3, 1))

    def test_replicas_and_zero(self):
        for gtp in (1, 3):
            for zero in ("on", "off"):
                injections = ("3", "4", "3,4", "1,6:2") if FULL else ("3,4", "1,6:2")
                self.check(f"dp2-gtp{gtp}-{zero}", (gtp, 2), "--zero", zero, injections=injections)

    def test_delayed_scaling(self):
        """The history has two steps, so that a step that counts twice changes the result soon."""
        for flags in ((*FP8, "--fp8-history", 2), (*FP8, "--fp8-amax", "newest"),
                      (*FP8, "--wire-format", "fp8", "--wire-format-backward", "mxfp8")):
            name = f"fp8-{len(flags)}-{flags[-1]}"
            self.check(f"{name}-1", (1, 1), format_flags=flags, injections=FEW[-1:] if not FULL else INJECTIONS)
            self.check(f"{name}-3", (3, 1), format_flags=flags, injections=("3", *FEW[-2:]) if not FULL else INJECTIONS)

    def test_with_small_budgets_poison_and_delays(self):
        """The run also exchanges rows of the embedding."""
        self.check("poison", (3, 1), "--debug-poison", "on", "--debug-delays", 3, "--gather-budget", "min", "--reduce-budget",
                   "min", "--embedding", "rows", injections=INJECTIONS[-1:])

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_mpi(self):
        self.check("mpi", (3, 1), injections=("3,4",), backend="mpi")

    def test_the_timeline_shows_the_successful_attempt(self):
        self.check("timeline", (2, 1), "--trace-step", 4, injections=("3,4",))
        self.assertTrue((self.folder / "timeline-3-4" / "trace-step-4.json").exists())

    def test_a_resumed_run(self):
        """Resumes from a checkpoint after a suppressed step. Injections before the checkpoint have no effect."""
        expected = self.reference(1)
        self.train("resume-part", (1, 1), "--debug-suppress", "4:2")
        out = self.folder / "resume-rest"
        tessera("train", "--resume", self.folder / "resume-part" / "checkpoints" / "step-00000004", "--gtp", 3, "--out", out,
                "--debug-suppress", "4,5")
        self.assertEqual([line["loss"] for line in expected[0][4:]], [line["loss"] for line in metrics(out)])
        self.assertEqual({5: 1}, {line["step"]: line["suppressed"] for line in metrics(out) if "suppressed" in line})

    def test_ten_suppressed_attempts_in_a_row_end_the_run(self):
        for mesh in ((1, 1), (3, 2)):
            name = f"too-many-{mesh[0]}"
            result = run("train", *self.flags, "--gtp", mesh[0], "--dp", mesh[1], "--debug-suppress", "2:9,3:10", "--out",
                         self.folder / name)
            self.assertEqual(1, result.returncode, result.stderr)
            self.assertIn("step 3: its update was suppressed 10 times in a row: stop counter 'debug_suppress' is 1, expected 0",
                          result.stderr)
            self.assertEqual([None, 9], [line.get("suppressed") for line in metrics(self.folder / name)])

    def test_invalid_lists_of_steps_are_refused(self):
        for bad in ("0", "3:0", "3,3", "3:x", "7"):
            result = run("train", *self.flags, "--debug-suppress", bad, "--out", self.folder / "refused")
            self.assertEqual(2, result.returncode, result.stderr)
            self.assertIn("--debug-suppress: got", result.stderr)
            self.assertFalse((self.folder / "refused").exists())


if __name__ == "__main__":
    run_cases()
