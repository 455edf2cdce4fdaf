#!/usr/bin/env python3
"""Tests meshes with unused places (--dead, --idle, --tp-spares): results of the uniform run, both ways to start, resume, refusals."""
import json
import unittest

from program import bits, metrics, run, scratch, tessera, write_tokens
from refusals import content
from summary import run_cases

STEPS = 20


class DeadPlaces(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("dead-places")
        cls.data = write_tokens(cls.folder / "tokens", 131)
        cls.valid = write_tokens(cls.folder / "valid", 131, documents=11)
        cls.uniform = {}

    def flags(self, mesh, *more, batch=12, steps=STEPS, dtype="fp64"):
        tp, gtp, dp = mesh
        return ["train", "--model", "llama-tiny-odd", "--data", self.data, "--valid", self.valid, "--seq-len", 16, "--seed", 5,
                "--lr", 3e-3, "--clip", 0.5, "--dtype", dtype, "--steps", steps, "--global-batch", batch, "--tp", tp, "--gtp", gtp,
                "--dp", dp, *more]

    def train(self, name, *arguments, mpi_ranks=None, **settings):
        out = self.folder / name
        text = tessera(*self.flags(*arguments, **settings), "--out", out, mpi_ranks=mpi_ranks)
        self.assertEqual(0, json.loads((out / "summary.json").read_text())["skipped_steps"])
        return bits(out), text

    def bits_of(self, mesh, **settings):
        """Returns the bits of the uniform run of a mesh."""
        key = (mesh, *settings.items())
        if key not in self.uniform:
            name = "uniform-" + "-".join(map(str, (*mesh, *settings.values())))
            self.uniform[key] = self.train(name, mesh, **settings)[0]
        return self.uniform[key]

    def test_groups_that_shrink_have_the_bits_of_the_uniform_run(self):
        for number, (mesh, dead, dtype, *more) in enumerate([
                ((1, 2, 2), "dp0.gtp1:0", "fp64"), ((1, 2, 2), "dp0.gtp1:0", "bf16"),
                ((1, 3, 2), "dp0.gtp0:0;dp0.gtp2:0", "bf16", "--zero", "off"),
                ((2, 2, 2), "dp1.gtp0:0,1", "fp64", "--coalesce", 1, "--gather-budget", "min", "--reduce-budget", "min"),
                ((1, 2, 3), "dp2.gtp0:0;dp0.gtp1:0", "bf16", "--debug-poison", "on", "--debug-delays", 3)]):
            with self.subTest(dead, dtype=dtype):
                found, _ = self.train(f"shrunk-{number}", mesh, "--dead", dead, *more, dtype=dtype)
                tp, _, dp = mesh
                self.assertEqual(self.bits_of((tp, 1, dp), dtype=dtype), found)

    def test_other_words_for_the_same_places_give_the_same_run(self):
        (self.folder / "map.json").write_text('{"dp0.gtp1": [0, 1]}')
        expected, text = self.train("both", (2, 2, 1), "--dead", "dp0.gtp1:1,0")
        self.assertIn("2 ranks (tp 2 x gtp 2 x dp 1, dead dp0.gtp1:0,1)", text)
        for name, words in {"file": ("--dead", self.folder / "map.json"), "idle": ("--idle", "dp0.gtp1:0,1"),
                            "spares": ("--dead", "dp0.gtp1:0", "--tp-spares", 2)}.items():
            with self.subTest(name):
                self.assertEqual(expected, self.train(name, (2, 2, 1), *words)[0])
        self.assertEqual(self.bits_of((2, 1, 1)), expected)

    def test_smaller_tp_groups_are_within_the_fp64_bounds_of_the_uniform_run(self):
        for number, (mesh, dead, more) in enumerate([
                ((2, 1, 2), "dp0:1", ("--reduced-batch", 4)), ((4, 1, 2), "dp0:1", ("--tp-spares", 2, "--reduced-batch", "auto")),
                ((3, 1, 2), "dp1:0,2", ("--sequence-parallel", "on")), ((2, 2, 1), "dp0.gtp1:0", ("--zero", "off")),
                ((2, 2, 2), "dp0.gtp0:0;dp0.gtp1:0,1;dp1.gtp1:1", ("--gather-budget", "min", "--debug-poison", "on"))]):
            self.bits_of(mesh)
            self.train(f"adopted-{number}", mesh, "--dead", dead, *more)
            expected = metrics(self.folder / f"uniform-{mesh[0]}-{mesh[1]}-{mesh[2]}")
            for ours, theirs in zip(metrics(self.folder / f"adopted-{number}"), expected, strict=True):
                for value in ("loss", "grad_norm", "valid_loss"):
                    with self.subTest(dead, step=ours["step"], value=value):
                        expected_value = theirs.get(value) or 0
                        self.assertAlmostEqual(expected_value, ours.get(value) or 0, delta=1e-9 * expected_value)

    def test_moments_in_bf16_of_smaller_tp_groups(self):
        """Ranks of smaller tp groups hold several ranges of columns. ZeRO-1 does not change the bits."""
        for number, (mesh, dead) in enumerate([((3, 1, 2), "dp1:0,2"), ((4, 1, 2), "dp0:1"), ((3, 2, 1), "dp0.gtp1:1")]):
            with self.subTest(dead):
                flags = ("--dead", dead, "--moments", "bf16")
                found = [self.train(f"rounded-{number}-{zero}", mesh, *flags, "--zero", zero, dtype="bf16")[0] for zero in ("on", "off")]
                self.assertEqual(*found)
                wide, _ = self.train(f"wide-{number}", mesh, "--dead", dead, dtype="bf16")
                self.assertNotEqual(wide["steps"], found[0]["steps"])
                self.assertAlmostEqual(wide["steps"][-1][1], found[0]["steps"][-1][1], delta=0.05)

    def test_a_replica_without_ranks_has_no_samples(self):
        found, _ = self.train("replica", (1, 2, 3), "--dead", "dp1.gtp0:0;dp1.gtp1:0")
        self.assertEqual(self.bits_of((1, 2, 2)), found)

    def test_shares_that_do_not_divide(self):
        """The step has 7 sequences, and a replica has 3 or 4 of them. With several replicas, the order of sums differs from
        that of one replica.
        """
        self.bits_of((1, 1, 1), batch=7)
        expected = metrics(self.folder / "uniform-1-1-1-7")
        for number, (mesh, dead, more) in enumerate([((1, 2, 2), "dp0.gtp1:0", ()), ((1, 2, 2), "dp1.gtp0:0", ("--micro-batch", 2)),
                                                     ((1, 3, 3), "dp0.gtp1:0;dp2.gtp0:0;dp2.gtp1:0", ())]):
            self.train(f"shares-{number}", mesh, "--dead", dead, *more, batch=7)
            for ours, theirs in zip(metrics(self.folder / f"shares-{number}"), expected, strict=True):
                for value in ("loss", "grad_norm"):
                    with self.subTest(dead, step=ours["step"], value=value):
                        self.assertAlmostEqual(theirs[value], ours[value], delta=1e-10 * theirs[value])
                self.assertEqual(theirs["tokens"], ours["tokens"])

    def test_processes_for_active_places_and_for_all_places(self):
        dead = ("--dead", "dp0.gtp0:0", "--backend", "mpi")
        expected = self.bits_of((1, 1, 2))
        for ranks in (3, 4):
            with self.subTest(ranks):
                found, text = self.train(f"mpi-{ranks}", (1, 2, 2), *dead, mpi_ranks=ranks)
                self.assertEqual(expected, found)
                line = "tessera: process 0 ends without work: place dp0.gtp0:0 is dead"
                self.assertEqual(ranks == 4, line in text, text)
        resumed = self.train("mpi-4", (1, 2, 2), "--resume", "latest", *dead, mpi_ranks=4, steps=STEPS + 2)[1]
        self.assertIn("place dp0.gtp0:0 is dead", resumed)

    def test_mpi_processes_adopt_with_the_bits_of_threads(self):
        for number, (mesh, dead, ranks, more) in enumerate([((2, 2, 1), "dp0.gtp0:1", 3, ()),
                                                            ((2, 1, 2), "dp1:0", 4, ("--sequence-parallel", "on", "--reduced-batch", 5))]):
            with self.subTest(dead):
                flags = ("--dead", dead, *more)
                expected, _ = self.train(f"threads-{number}", mesh, *flags, steps=6)
                found, text = self.train(f"processes-{number}", mesh, *flags, "--backend", "mpi", mpi_ranks=ranks, steps=6)
                self.assertEqual(expected, found)
                self.assertEqual(ranks == 4, f"place {dead.replace(':', '.gtp0:')} is dead" in text, text)

    def test_mpi_processes_for_all_places(self):
        """The number of replicas follows from the number of processes, also if the unused places are whole replicas, and one process
        may remain."""
        for number, (words, processes, mesh) in enumerate([
                (("--tp", 2, "--dead", "dp0:0"), 2, "1 rank (tp 2 x gtp 1 x dp 1, dead dp0.gtp0:0)"),
                (("--dp", 2, "--dead", "dp0:0"), 2, "1 rank (tp 1 x gtp 1 x dp 2, dead dp0.gtp0:0)"),
                (("--dead", "dp1:0"), 3, "2 ranks (tp 1 x gtp 1 x dp 3, dead dp1.gtp0:0)"),
                (("--tp", 2, "--dead", "dp1:0,1"), 2, "2 ranks (tp 2 x gtp 1 x dp 2, dead dp1.gtp0:0,1)"),
                (("--tp", 2, "--dead", "dp0:0,1"), 4, "2 ranks (tp 2 x gtp 1 x dp 2, dead dp0.gtp0:0,1)")]):
            with self.subTest(words):
                text = tessera("train", "--model", "llama-tiny-odd", "--data", self.data, "--seq-len", 16, "--steps", 2, "--global-batch", 6,
                               "--backend", "mpi", *words, "--out", self.folder / f"all-{number}", mpi_ranks=processes)
                self.assertIn(mesh, text)

    def test_other_numbers_of_processes_are_refused(self):
        result = run(*self.flags((1, 2, 2), "--dead", "dp0.gtp0:0", "--backend", "mpi"), "--out", self.folder / "two", mpi_ranks=2)
        self.assertIn("2 processes were started, expected 3 active ranks or all 4 places of tp 1 x gtp 2 x dp 2 (--dead dp0.gtp0:0)",
                      result.stderr)
        self.assertFalse((self.folder / "two").exists())

    def test_a_resumed_run_keeps_the_places_unless_a_flag_gives_a_mesh(self):
        mesh, dead = (1, 2, 2), ("--dead", "dp0.gtp1:0", "--schedule-steps", STEPS)
        self.train("resumed", mesh, *dead, steps=8)
        out = self.folder / "resumed"
        text = tessera("train", "--resume", "latest", "--steps", 14, "--out", out)
        self.assertIn("mesh of the checkpoint: 3 ranks (tp 1 x gtp 2 x dp 2, dead dp0.gtp1:0)", text)
        text = tessera("train", "--resume", "latest", "--steps", STEPS, "--tp", 1, "--gtp", 1, "--dp", 2, "--out", out)
        self.assertIn("mesh of the command line: 2 ranks (tp 1 x gtp 1 x dp 2); the checkpoint's was 3 ranks", text)
        self.assertEqual(self.bits_of((1, 1, 2)), bits(out))

    def test_a_resumed_run_changes_only_the_unused_places(self):
        self.train("places", (1, 2, 2), "--schedule-steps", STEPS, steps=6)
        out = self.folder / "places"
        text = tessera("train", "--resume", "latest", "--steps", 12, "--dead", "dp0.gtp1:0", "--out", out)
        self.assertIn("mesh of the command line: 3 ranks (tp 1 x gtp 2 x dp 2, dead dp0.gtp1:0); the checkpoint's was 4 ranks", text)
        text = tessera("train", "--resume", "latest", "--steps", STEPS, "--idle", "dp1.gtp0:0", "--out", out)
        self.assertIn("mesh of the command line: 2 ranks (tp 1 x gtp 2 x dp 2, dead dp0.gtp1:0, idle dp1.gtp0:0)", text)
        self.assertEqual(self.bits_of((1, 1, 2)), bits(out))

    def test_the_layout_lists_the_slots_of_each_group(self):
        words = ("inspect", "layout", "--model", "llama-tiny-odd", "--tp", 2, "--gtp", 2, "--dp", 2, "--dead", "dp1.gtp0:0", "--tp-spares", 2)
        places = json.loads(tessera(*words, "--json"))["places"]
        self.assertEqual([("dp0.gtp0", [0, 1], [], []), ("dp0.gtp1", [0, 1], [], []), ("dp1.gtp0", [], [0], [1]),
                          ("dp1.gtp1", [0, 1], [], [])],
                         [(place["group"], place["active"], place["dead"], place["retired"]) for place in places])
        self.assertRegex(tessera(*words), r"(?m)^  dp1.gtp0 +- +0 +1$")

    def test_a_plan_lists_replicas_and_compares_the_ways_to_continue(self):
        words = ("plan", "--model", "llama-tiny-odd", "--tp", 2, "--gtp", 2, "--dp", 2, "--seq-len", 16, "--global-batch", 12)
        (self.folder / "plan.json").write_text('{"dp1": [0]}')
        for dead in ("dp1.gtp0:0", self.folder / "plan.json"):
            plan = json.loads(tessera(*words, "--dead", dead, "--reduced-batch", 4, "--json"))
            self.assertEqual((7, "dp1.gtp0:0"), (plan["mesh"]["ranks"], plan["mesh"]["dead"]))
            self.assertEqual([([0], [2, 2], 8, 4), ([1], [2, 1], 4, 2)],
                             [(kind["dp"], kind["groups"], kind["sequences"], kind["microbatches"]) for kind in plan["kinds"]])
            ways = plan["comparison"]["ways"]
            self.assertEqual(["drop the replica", "drop the gtp place", "adopt", "adopt with shares"], [way["way"] for way in ways])
            self.assertEqual([4, 6, 7, 7], [way["ranks"] for way in ways])
            self.assertTrue(all(0 < way["kept"] < 1 for way in ways), ways)
            best = max(ways, key=lambda way: way["kept"])
            self.assertAlmostEqual(best["kept"], next(way["kept"] for way in ways if way["way"] == plan["comparison"]["recommended"]), delta=2e-3)
        self.assertIn("recommended: ", tessera(*words, "--dead", dead))
        whole = json.loads(tessera(*words, "--dead-share", 0, "--dead-seeds", 1, "--json"))
        self.assertEqual([1, 1, 1, 1], [way["kept"] for way in whole["mean"]])
        drawn = [tessera(*words, "--dead-share", 0.2, "--dead-seeds", 2) for _ in range(2)]
        self.assertEqual(*drawn)
        self.assertIn("seed 2: 2 dead places", drawn[0])
        for more, expected in [(("--dead", "dp5:0"), "--dead: place dp5.gtp0:0 is in replica 5, expected one below --dp 2"),
                               (("--dead", "dp0:1", "--wire-format", "mxfp8", "--dtype", "bf16"), "--wire-format: got mxfp8 with place dp0.gtp0:1"),
                               (("--dead", "dp0:1", "--search", "--ranks", 8), "--search: got it with --dead")]:
            with self.subTest(more):
                result = run(*words, *more)
                self.assertEqual(2, result.returncode)
                self.assertIn(expected, result.stderr)

    def test_maps_that_do_not_fit_change_nothing(self):
        dead = ("--dead", "dp0.gtp1:0")
        for words, expected in [
                ((*dead, "--ranks", 2), "--ranks: got 2, expected 3 active ranks or all 4 places"),
                (("--dead", "dp5:0"), "--dead: place dp5.gtp0:0 is in replica 5, expected one below --dp 2"),
                (("--dead", "dp0:9"), "--dead: place dp0.gtp0:9 is tp slot 9"),
                (("--dead", "0,1"), "--dead: got '0,1', expected"),
                (("--dead", self.folder / "none.json"), "none.json"),
                (("--dead", "dp0.gtp0:0;dp0.gtp1:0;dp1.gtp0:0;dp1.gtp1:0"), "--dead: no place of tp 1 x gtp 2 x dp 2 is left"),
                ((*dead, "--tp-spares", 2), "--tp-spares: got 2, expected auto or 1 to --tp 1"),
                (("--tp-spares", "auto"), "--tp-spares: got auto without --dead"),
                ((*dead, "--idle", "dp0.gtp1:0"), "--idle: place dp0.gtp1:0 is also named by --dead"),
                ((*dead, "--reduce-order", "hierarchical", "--ranks-per-node", 2), "--reduce-order: got hierarchical with --dead"),
                (("--tp", 2, "--dead", "dp0:1", "--dtype", "bf16", "--wire-format", "mxfp8"), "--wire-format: got mxfp8 with place dp0.gtp0:1"),
                (("--tp", 2, "--dead", "dp0:1", "--embedding", "rows"), "--embedding: got rows with place dp0.gtp0:1 unused"),
                ((*dead, "--cuda-graph", "on"), "--cuda-graph"),
                ((*dead, "--model", "mixtral-demo"), "--dead: model 'mixtral-demo' has experts")]:
            with self.subTest(words):
                before = content(self.folder / "refused")
                flags = self.flags((1, 2, 2))
                for name in words[::2]:
                    if name in flags:
                        del flags[flags.index(name):flags.index(name) + 2]
                result = run(*flags, *words, "--out", self.folder / "refused")
                self.assertEqual(2, result.returncode, result.stderr)
                self.assertEqual(1, len(result.stderr.splitlines()), result.stderr)
                self.assertIn(expected, result.stderr)
                self.assertEqual(before, content(self.folder / "refused"))


if __name__ == "__main__":
    run_cases()
