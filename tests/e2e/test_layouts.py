#!/usr/bin/env python3
"""The layout does not change the result: the tests vary gtp degrees, recompute policies, backends and the meshes of resumed runs.

By default they run a few combinations. TESSERA_E2E=full runs all of them, TESSERA_E2E_JOBS at a time. TESSERA_E2E_MODEL is
another model with at least 131 vocabulary entries.
"""
import json
import os
import unittest
from concurrent.futures import ThreadPoolExecutor

from program import MPIRUN, bits, scratch, tessera, write_tokens
from summary import run_cases

FULL = os.environ.get("TESSERA_E2E") == "full"
MODEL = os.environ.get("TESSERA_E2E_MODEL", "llama-tiny-odd")
JOBS = int(os.environ.get("TESSERA_E2E_JOBS", "1"))
STEPS, SEQUENCE = (20, 128) if FULL else (4, 32)
# No value is a default, because a resumed run that lost these settings would use the defaults.
OPTIMIZER = ["--beta1", 0.8, "--beta2", 0.9, "--eps", 1e-4, "--weight-decay", 0.3, "--clip", 0.5, "--min-lr", 1e-4]
CLASSES = {"tp1": (1, 1, "off"), "tp2-sp": (2, 1, "on"), "tp2": (2, 1, "off"), "dp2": (1, 2, "off")}


class Layouts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("layouts")
        cls.data = write_tokens(cls.folder / "tokens", 131)

    def train(self, name, mesh, *flags, backend="local"):
        tp, gtp, dp = mesh
        out = self.folder / name
        ranks = tp * gtp * dp
        tessera("train", "--backend", backend, "--ranks", ranks, "--tp", tp, "--gtp", gtp, "--dp", dp, "--out", out, *flags,
                mpi_ranks=ranks if backend == "mpi" else None)
        return bits(out)

    def activations(self, mesh, *flags):
        tp, gtp, dp = mesh
        plan = tessera("plan", "--model", MODEL, "--tp", tp, "--gtp", gtp, "--dp", dp, "--seq-len", SEQUENCE, "--json", *flags)
        return json.loads(plan)["memory_bytes"]["activations"]

    def common(self, *flags, model=MODEL, batch=12):
        return ["--model", model, "--data", self.data, "--global-batch", batch, "--seq-len", SEQUENCE,
                "--seed", 7, *flags]

    def cases(self, name, dtype):
        """Returns the cases (backend, gtp, recompute policy, flags). By default each dtype runs half of a few cases."""
        tp, dp, sequence_parallel = CLASSES[name]
        is_wide = dtype == "fp32"
        cases = [("local", gtp, recompute) for gtp in (1, 2, 3, 4, 6) for recompute in ("none", "selective", "full")]
        if not FULL:
            cases = [("local", 3, "full") if is_wide else ("local", 4, "selective")]
        if FULL or is_wide:
            most, least = (self.activations((tp, 2, dp), "--dtype", dtype, "--sequence-parallel", sequence_parallel,
                                            "--recompute", recompute) for recompute in ("none", "full"))
            cases.append(("local", 2, "auto", "--activation-budget", (3 * least + most) // 4))
        if MPIRUN and (FULL or not is_wide):
            cases += [("mpi", gtp, "none") for gtp in ((1, 2, 3, 4, 6) if FULL else (2,))]
        if dp > 1:
            cases += [("local", gtp, "none", "--zero", "off") for gtp in ((1, 2) if FULL else (1,) if is_wide else (2,))]
        return cases

    def check_class(self, name):
        tp, dp, sequence_parallel = CLASSES[name]
        for dtype in ("fp32", "bf16"):
            flags = self.common("--steps", STEPS, "--dtype", dtype, "--sequence-parallel", sequence_parallel, batch=12 * dp)
            expected = self.train(f"{name}-{dtype}", (tp, 1, dp), *flags)
            cases = self.cases(name, dtype)

            def run(case, dtype=dtype, flags=flags):
                backend, gtp, recompute, *more = case
                return self.train("-".join([name, dtype, *map(str, case)]), (tp, gtp, dp), *flags, "--recompute",
                                  recompute, *more, backend=backend)
            with ThreadPoolExecutor(JOBS) as pool:
                for case, actual in zip(cases, pool.map(run, cases)):
                    self.assertEqual(expected, actual, (name, dtype, *case))
            print(f"{name} {dtype}: the same bits in {1 + len(cases)} runs of {STEPS} steps", flush=True)

    def test_tp1(self):
        self.check_class("tp1")

    def test_tp2_with_sequence_parallelism(self):
        self.check_class("tp2-sp")

    def test_tp2_without_sequence_parallelism(self):
        self.check_class("tp2")

    def test_dp2(self):
        self.check_class("dp2")

    def check_same(self, name, runs, *flags):
        """Checks that runs, each with a mesh, a backend and flags, have the same bits. Returns the bits."""
        found = [(mesh, backend, self.train(f"{name}-{'-'.join(map(str, mesh))}-{backend}", mesh, *flags, *more, backend=backend))
                 for mesh, backend, *more in runs if backend == "local" or MPIRUN]
        for mesh, backend, actual in found[1:]:
            self.assertEqual(found[0][2], actual, (name, mesh, backend))
        return found[0][2]

    def test_micro_batches_of_several_sequences(self):
        flags = self.common("--steps", 2, "--micro-batch", 2)
        self.check_same("micro-tp1", [((1, 1, 1), "local"), ((1, 2, 1), "mpi", "--recompute", "full")], *flags)
        self.check_same("micro-tp2", [((2, 1, 1), "local"), ((2, 3, 1), "local", "--recompute", "selective")], *flags,
                        "--sequence-parallel", "on", "--dtype", "bf16", "--mask-documents", "on")
        self.check_same("micro-dp2", [((1, 1, 2), "local"), ((1, 3, 2), "local", "--zero", "off")], *flags, "--mask-documents", "on")

    def test_transfers_beside_products(self):
        """Tokens that travel in pieces over tp give the bits of whole transfers, in threads and in processes."""
        overlap = ("--tp-overlap", "on", "--debug-delays", 3)
        self.check_same("pieces", [((2, 1, 1), "local", "--tp-overlap", "off"), ((2, 2, 1), "local", *overlap, "--debug-poison", "on"),
                                   ((2, 1, 1), "mpi", *overlap)],
                        *self.common("--steps", 2, "--dtype", "bf16", "--sequence-parallel", "on", "--tp-chunks", 2))
        keys = ("tp_overlap", "tp_pieces", "tp_fallbacks", "transfer_arena_bytes")
        whole, pieces = ([json.loads((self.folder / f"pieces-{mesh}-local" / "summary.json").read_text())[key] for key in keys]
                         for mesh in ("2-1-1", "2-2-1"))
        self.assertEqual([False, 0, 0, 0], whole)
        self.assertEqual([True, 0], pieces[::2])
        self.assertGreater(min(pieces[1::2]), 0)
        exposed = json.loads((self.folder / "pieces-2-2-1-local" / "summary.json").read_text())["exposed_ms"]
        self.assertEqual({"weights", "tp"}, set(exposed))
        self.assertGreater(exposed["tp"], 0)

    def test_fp64(self):
        flags = self.common("--steps", 2, "--dtype", "fp64")
        self.check_same("fp64-tp1", [((1, 1, 1), "local"), ((1, 3, 1), "local", "--recompute", "full")], *flags)
        self.check_same("fp64-dp2", [((1, 1, 2), "local"), ((1, 2, 2), "mpi")], *flags)

    def test_a_bf16_wire_is_rounded_at_every_gtp_degree(self):
        flags = self.common("--steps", 3, "--grad-wire", "bf16")
        expected = self.train("wire-1", (1, 1, 1), *flags)
        self.assertEqual(expected, self.train("wire-3", (1, 3, 1), *flags))
        self.assertNotEqual(expected, self.train("wire-fp32", (1, 1, 1), *self.common("--steps", 3)))

    def test_rows_of_the_embedding_and_its_whole_table_give_the_same_bits(self):
        split = "--sequence-parallel", "on", "--recompute", "full"
        few = (1, (2,)), (1, (3,), "--dtype", "bf16"), (2, (3,)), (2, (2,), *split)
        for tp, gtps, *flags in ((1, (2, 3)), (1, (3,), "--dtype", "bf16"), (2, (2, 3)), (2, (2,), *split)) if FULL else few:
            with_gather = FULL or bool(flags)
            flags = self.common("--steps", 3, *flags, model="llama-tiny-odd")  # its embedding is not tied to the output layer
            name = f"rows-{tp}-{len(flags)}"
            expected = self.train(name, (tp, 1, 1), *flags)
            for gtp in gtps:
                cases = [("local", "rows", "--debug-poison", "on", "--debug-delays", 3)]
                if with_gather:
                    cases.append(("local", "gather"))
                if MPIRUN and (FULL or gtp == 2):
                    cases.append(("mpi", "rows"))
                for backend, embedding, *more in cases:
                    actual = self.train(f"{name}-{gtp}-{backend}-{embedding}", (tp, gtp, 1), *flags, "--embedding", embedding,
                                        *more, backend=backend)
                    self.assertEqual(expected, actual, (tp, gtp, backend, embedding, *flags))

    def test_gradients_of_rows_and_of_the_whole_table_give_the_same_bits_on_one_rank(self):
        poisoned = "--debug-poison", "on", "--debug-delays", 3
        few = (1, 1, 12), (2, 2, 12, "--zero", "on"), (1, 2, 12, "--zero", "off", "--dtype", "bf16"), (1, 1, 1, "--dtype", "bf16", *poisoned)
        others = [(1, 1, 12, "--dtype", "bf16", *flags) for flags in
                  (("--wire-format", "mxfp8"), ("--masters", "fp32", "--moments", "bf16"), ("--recompute", "full", "--grad-wire", "fp32"))]
        for tp, dp, batch, *more in (*few, *others) if FULL else (*few, others[0]):
            flags = self.common("--steps", 3, *more, model="llama-tiny-odd", batch=batch)
            name = f"own-{tp}-{dp}-{batch}-{'-'.join(str(flag).strip('-') for flag in more)}"
            expected = self.train(f"{name}-gather", (tp, 1, dp), *flags, "--embedding", "gather")
            self.assertEqual(expected, self.train(f"{name}-rows", (tp, 1, dp), *flags), more)
            # Only the sum of rows needs scratch, for the map of the stored rows.
            scratch_bytes = [json.loads((self.folder / f"{name}-{kind}" / "summary.json").read_text())["exchange_scratch_bytes"]
                             for kind in ("gather", "rows")]
            self.assertEqual(scratch_bytes[0], 0)
            self.assertGreater(scratch_bytes[1], 131 // tp * 4)

    def test_hierarchical_sums_have_their_own_bits(self):
        flags = self.common("--steps", 3, "--reduce-order", "hierarchical", "--ranks-per-node")
        expected = self.train("nodes", (2, 4, 1), *flags, 4)  # two gtp ranks a node
        self.assertEqual(expected, self.train("nodes-again", (2, 4, 1), *flags, 4, "--recompute", "full",
                                              "--gather-budget", "min", "--debug-delays", 5))
        sequential = self.train("in-order", (2, 4, 1), *self.common("--steps", 3))
        self.assertNotEqual(expected, sequential)
        self.assertEqual(sequential, self.train("nodes-of-one", (2, 4, 1), *flags, 2))
        if MPIRUN:
            self.assertEqual(expected, self.train("nodes-mpi", (2, 4, 1), *flags, 4, backend="mpi"))

    def test_a_checkpoint_resumes_with_other_layouts(self):
        half, whole = (20, 40) if FULL else (3, 6)
        flags = self.common("--schedule-steps", whole, *OPTIMIZER, "--mask-documents", "on", "--grad-wire", "bf16")
        self.train("half", (2, 2, 1), *flags, "--steps", half)
        uninterrupted = self.train("whole", (2, 2, 1), *flags, "--steps", whole)
        resume = ["--resume", self.folder / "half" / "checkpoints" / f"step-{half:08d}", "--steps", whole]
        for gtp in (1, 2, 3) if FULL else (1, 3):
            actual = self.train(f"resumed-2-{gtp}", (2, gtp, 1), *resume)
            self.assertEqual(uninterrupted["tensors"], actual["tensors"], f"gtp {gtp}")
            self.assertEqual(uninterrupted["steps"][half:], actual["steps"], f"gtp {gtp}")
        self.assertEqual(self.inspected("whole"), self.inspected("resumed-2-3"))
        at_tp1 = [self.train(f"resumed-1-{gtp}", (1, gtp, 1), *resume) for gtp in (1, 4)]
        self.assertEqual(*at_tp1)
        at_dp2 = [self.train(f"resumed-1-{gtp}-2-{zero}", (1, gtp, 2), *resume, "--zero", zero)
                  for gtp, zero in ((1, "on"), (3, "on"), (2, "off"))]
        self.assertEqual(at_dp2[0], at_dp2[1])
        self.assertEqual(at_dp2[0], at_dp2[2])

    def inspected(self, name):
        tensors = json.loads(tessera("inspect", self.folder / name, "--json"))["tensors"]
        return {(tensor["kind"], tensor["name"]): tensor["hash"] for tensor in tensors}

    def test_inspect_without_hashes_lists_the_same_tensors(self):
        self.train("inspected", (1, 1, 1), *self.common("--steps", 1))
        hashed, plain = (json.loads(tessera("inspect", self.folder / "inspected", "--json", *flags))["tensors"]
                         for flags in ((), ("--no-hash",)))
        self.assertTrue(all(tensor.pop("hash") for tensor in hashed))
        self.assertEqual(hashed, plain)

    def test_a_run_resumes_in_its_own_folder(self):
        flags = self.common("--schedule-steps", 4, "--save-every", 2)
        expected = self.train("straight", (1, 2, 1), *flags, "--steps", 4)
        self.train("continued", (1, 2, 1), *flags, "--steps", 3)  # saved at 2 and 3
        self.assertEqual(expected, self.train("continued", (1, 2, 1), *flags, "--steps", 4, "--resume", "latest"))


if __name__ == "__main__":
    run_cases()
