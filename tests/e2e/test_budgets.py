#!/usr/bin/env python3
"""Memory budgets for communication do not change the result. The tests use poisoned buffers, delayed communication, and
evaluations and checkpoints between the steps.

By default they run a few combinations. TESSERA_E2E=full runs all of them, TESSERA_E2E_JOBS at a time.
"""
import functools
import itertools
import json
import os
import unittest
from concurrent.futures import ThreadPoolExecutor

from program import MPIRUN, metrics, run, scratch, tessera, write_tokens
from stored_tensors import tensor_hashes
from summary import run_cases

FULL = os.environ.get("TESSERA_E2E") == "full"
JOBS = int(os.environ.get("TESSERA_E2E_JOBS", "1"))
BUDGETS = ("min", 0.25, 0.5, 0.75, "auto", "unlimited")  # a number is a fraction of the way from min to unlimited
UNLIMITED = "900GB"
RECOMPUTE = ("none", "selective", "full")


def everything(out):
    """Returns losses, norms and every logical tensor of every checkpoint."""
    steps = [tuple(line.get(key) for key in ("step", "loss", "grad_norm", "valid_loss")) for line in metrics(out)]
    return steps, {path.name: tensor_hashes(path) for path in sorted((out / "checkpoints").iterdir())}


class Budgets(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("budgets")
        cls.data = write_tokens(cls.folder / "tokens", 131)
        cls.valid = write_tokens(cls.folder / "valid", 131, documents=11)

    def shape(self, tp, gtp, recompute):
        """Returns the flags that a run and its plan share."""
        return ["--model", "llama-tiny-odd", "--micro-batch", 1, "--global-batch", 12, "--seq-len", 32, "--ranks", tp * gtp,
                "--tp", tp, "--gtp", gtp, "--sequence-parallel", "on" if tp > 1 else "off", "--recompute", recompute]

    @functools.lru_cache(maxsize=None)
    def arenas(self, tp, gtp, recompute, budget):
        """Returns the bytes of the arenas for gathers and for gradients within a budget."""
        plan = json.loads(tessera("plan", *self.shape(tp, gtp, recompute), "--gather-budget", budget, "--reduce-budget", budget,
                                  "--json"))
        return plan["arenas"]["gather_bytes"], plan["arenas"]["reduce_bytes"] + plan["arenas"]["scratch_bytes"]

    def budget(self, name, which, *shape):
        if name == "unlimited":
            return UNLIMITED
        if isinstance(name, str):
            return name
        least, most = (self.arenas(*shape, budget)[which] for budget in ("min", UNLIMITED))
        return max(1, int(least + name * (most - least)))  # on one rank no weight is gathered

    def train(self, name, shape, *flags, backend="local", steps=5):
        tp, gtp, _ = shape
        out = self.folder / name
        tessera("train", *self.shape(*shape), "--data", self.data, "--valid", self.valid, "--seed", 7, "--steps", steps, "--backend",
                backend, "--out", out, *flags, mpi_ranks=tp * gtp if backend == "mpi" else None)
        summary = json.loads((out / "summary.json").read_text())
        self.assertEqual(summary["departed_steps"], 0, name)
        self.assertEqual(summary["gather_arena_bytes"], summary["gather_peak_bytes"], name)
        self.assertEqual(summary["reduce_arena_bytes"], summary["reduce_peak_bytes"], name)
        return out

    def cases(self, tp):
        """Returns the cases (backend, gtp, budget of gathers, budget of gradients)."""
        if FULL:
            cases = list(itertools.product(("local",), (1, 2, 3, 4), BUDGETS, BUDGETS))
            return cases + [("mpi", gtp, budget, budget) for gtp in (1, 2, 3, 4) for budget in BUDGETS] * bool(MPIRUN)
        turns = [BUDGETS[tp:] + BUDGETS[:tp], BUDGETS[tp + 2:] + BUDGETS[:tp + 2]]
        cases = [("local", gtp, *pair) for gtp, pair in zip((1, 2, 2, 3, 3, 4), zip(*turns))]
        return cases + [("mpi", 3, 0.5, "min") if tp == 1 else ("mpi", 2, "min", "min")] * bool(MPIRUN)

    def check_tp(self, tp):
        between = ["--eval-every", 2, "--save-every", 2]
        expected = everything(self.train(f"expected-{tp}", (tp, 1, "none"), *between))

        def outcome(numbered):
            number, (backend, gtp, gathers, reductions) = numbered
            shape = tp, gtp, RECOMPUTE[number % len(RECOMPUTE)]
            budgets = ["--gather-budget", self.budget(gathers, 0, *shape), "--reduce-budget", self.budget(reductions, 1, *shape)]
            out = self.train(f"run-{tp}-{number}", shape, *between, *budgets, "--debug-poison", "on", "--debug-delays", number + 1,
                             backend=backend)
            return everything(out)
        cases = list(enumerate(self.cases(tp)))
        with ThreadPoolExecutor(JOBS) as pool:
            for case, actual in zip(cases, pool.map(outcome, cases)):
                self.assertEqual(expected, actual, (tp, *case))
        print(f"tp {tp}: the same bits in {1 + len(cases)} runs", flush=True)

    def test_tp1(self):
        self.check_tp(1)

    def test_tp2(self):
        self.check_tp(2)

    def test_the_plan_of_a_finished_run_equals_its_measurements(self):
        cases = [((1, 3, "none"), "min"), ((1, 3, "none"), "unlimited"), ((2, 2, "full"), 0.5)]
        if FULL:
            cases = itertools.product(itertools.product((1, 2), (1, 2, 3), RECOMPUTE), ("min", 0.5, "unlimited"))
        for shape, name in cases:
            budgets = ["--gather-budget", self.budget(name, 0, *shape), "--reduce-budget", self.budget(name, 1, *shape)]
            out = self.train("measured-" + "-".join(map(str, (*shape, name))), shape, *budgets)
            rows = {row["name"]: row for row in json.loads(tessera("plan", "--measured", out, "--json"))["measured"]["rows"]}
            for key in ("gathered_bytes", "reduced_bytes", "gather_arena_bytes", "reduce_arena_bytes"):
                self.assertEqual(rows[key]["predicted"], rows[key]["measured"], (*shape, name, key))

    def test_the_plan_of_a_run_with_evaluations_equals_its_steady_steps(self):
        """Evaluations use the same arenas with another schedule. The step after an evaluation gathers prefetched weights again."""
        shape = 1, 4, "none"
        for budgets in ((), ("--gather-budget", "200KB")):
            out = self.train(f"evaluated{len(budgets)}", shape, "--eval-every", 3, *budgets, steps=8)
            report = json.loads(tessera("plan", "--measured", out, "--json"))["measured"]
            for row in report["rows"]:
                if row["name"].endswith("_bytes"):
                    self.assertEqual(row["predicted"], row["measured"], (budgets, row["name"]))
            self.assertEqual([], report["notes"])
        short = self.train("short", shape, "--gather-budget", "1GB", steps=2)
        text = tessera("plan", "--measured", short)
        self.assertIn("gathered_bytes differ: no measured step is steady: the first 3 steps make the schedule", text)

    def test_a_budget_below_the_minimum_is_refused(self):
        shape = 2, 2, "none"
        flags = "--gather-budget", "--reduce-budget"
        self.train("smallest", shape, *itertools.chain(*zip(flags, self.arenas(*shape, "min"))))
        for which, flag in enumerate(flags):
            smallest = self.arenas(*shape, "min")[which]
            for backend in ["local"] + ["mpi"] * bool(MPIRUN and (FULL or which == 1)):
                out = self.folder / f"refused-{backend}{flag}"
                result = run("train", *self.shape(*shape), "--data", self.data, "--steps", 3, flag, smallest - 1, "--backend",
                             backend, "--out", out, mpi_ranks=4 if backend == "mpi" else None)
                self.assertEqual(result.returncode, 2, result.stderr)
                lines = [line for line in result.stderr.splitlines() if line.startswith("tessera:")]
                self.assertEqual(len(lines), 1, result.stderr)
                self.assertIn(str(smallest), lines[0])
                self.assertIn(str(smallest - 1), lines[0])
                self.assertFalse(out.exists(), "a refused run has written files")


if __name__ == "__main__":
    run_cases()
