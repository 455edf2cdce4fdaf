#!/usr/bin/env python3
"""Tests resumed runs: they keep the settings of the checkpoint, refusals change nothing, and no checkpoint is lost too early."""
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from program import ENVIRONMENT, MPIRUN, command, metrics, run, scratch, tessera, write_tokens
from refusals import changed, content, read_manifest, write_manifest
from summary import run_cases

FULL = os.environ.get("TESSERA_E2E") == "full"
MODEL = "llama-tiny-odd"
AT_ONCE = 2


class Resume(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("resume")
        cls.data = write_tokens(cls.folder / "tokens", 131)
        cls.start = ["--model", MODEL, "--data", cls.data, "--seq-len", 32]
        cls.saved = cls.folder / "saved"  # steps 1 to 3
        tessera("train", *cls.start, "--steps", 3, "--save-every", 1, "--gtp", 2, "--out", cls.saved)

    def copy(self, name):
        shutil.rmtree(self.folder / name, ignore_errors=True)
        return shutil.copytree(self.saved, self.folder / name)

    def step(self, out, number):
        return out / "checkpoints" / f"step-{number:08}"

    def steps(self, out):
        return sorted(path.name for path in (out / "checkpoints").iterdir())

    def for_each(self, cases, check, start=None):
        """Calls check(folder, number, case) for all cases, AT_ONCE at a time. `folder` / "run" is a copy of `start` or of the
        saved run. No other thread uses `folder` at the same time."""
        folders = queue.SimpleQueue()
        for number in range(AT_ONCE):
            folder = self.folder / f"thread-{number}"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(start or self.saved, folder / "run")
            folders.put(folder)

        def check_one(number, case):
            folder = folders.get()
            try:
                check(folder, number, case)
            finally:
                folders.put(folder)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            results = [(case, pool.submit(check_one, number, case)) for number, case in enumerate(cases)]
        for case, result in results:
            with self.subTest(str(case)[:200]):
                result.result()

    def refused(self, out, *flags, expect=(), mpi_ranks=None, within=None):
        """Checks that the run exits with code 2, prints one line with the words, and changes no file of this test. With `within`,
        it compares only that folder and the saved run, because other threads use the other folders."""
        looked_at = (within, self.saved) if within else (self.folder,)
        before = content(*looked_at)
        result = run("train", *flags, "--out", out, mpi_ranks=mpi_ranks, timeout=120)
        self.assertEqual(2, result.returncode, (flags, result.stderr))
        # On a busy machine, mpirun may kill the other ranks so late that they print the same error with their rank.
        lines = [line for line in result.stderr.splitlines() if line.startswith("tessera:")]
        self.assertEqual(1, len({re.sub(r"^tessera: (rank \d+: )?", "", line) for line in lines}), (flags, result.stderr))
        for word in expect:
            self.assertIn(str(word), lines[0])
        after = content(*looked_at)
        self.assertEqual(before, after, (flags, set(before.items()) ^ set(after.items())))

    def settings(self, out):
        return json.loads((out / "config.json").read_text())["config"]


class Refused(Resume):
    def test_a_resume_with_a_damaged_line_of_metrics(self):
        out = self.copy("bad-line")
        lines = (out / "metrics.jsonl").read_text().splitlines()
        (out / "metrics.jsonl").write_text("\n".join([lines[0], "{", *lines[2:]]) + "\n")
        self.refused(out, "--resume", self.step(out, 1), "--steps", 4, expect=["metrics.jsonl:2"])
        self.refused(out, "--resume", "latest", "--steps", 4, expect=["metrics.jsonl:2"])

    def test_a_resume_of_another_type_into_a_new_folder(self):
        tessera("convert", self.saved, self.folder / "hf")
        tessera("convert", self.folder / "hf", self.folder / "bf16", "--dtype", "bf16")
        start = ["--data", self.data, "--seq-len", 32, "--steps", 2]
        self.refused(self.folder / "new", "--resume", self.folder / "bf16", *start, expect=["--dtype"])
        tessera("train", "--resume", self.folder / "bf16", *start, "--dtype", "bf16", "--out", self.folder / "new")

    def test_a_resume_with_folders_and_pipes_instead_of_files(self):
        for name in ("metrics.jsonl", "config.json", "summary.json"):
            out = self.copy("odd")
            (out / name).unlink()
            (out / name).mkdir()
            self.refused(out, "--resume", self.step(out, 1), "--steps", 4, expect=[name])
            (out / name).rmdir()
            os.mkfifo(out / name)  # no process writes to it
            self.refused(out, "--resume", self.step(out, 1), "--steps", 4, expect=[name, "pipe"])
            (out / name).unlink()
        out = self.copy("odd")
        shutil.move(out / "checkpoints", self.folder / "odd-checkpoints")
        (out / "checkpoints").write_text("")
        self.refused(out, "--resume", "latest", "--steps", 4)
        self.refused(out, "--resume", self.step(self.saved, 1), "--steps", 4, expect=["another run"])

    def test_a_renamed_checkpoint(self):
        """The name of a checkpoint must contain its step, because names define the order of checkpoints."""
        out = self.copy("renamed")
        self.step(out, 1).rename(self.step(out, 7))
        self.refused(out, "--resume", "latest", "--steps", 9, expect=["step-00000007", "of step 1"])

    def test_every_refusal_of_a_new_run(self):
        model = self.folder / "model.json"
        model.write_text(json.dumps(json.loads((self.saved / "config.json").read_text())["model"] | {"hidden_size": 30}))
        (self.folder / "file").write_text("")
        cases = [["--frobnicate", 1], ["--steps", "x"], ["--pp", 2], ["--lr", -1], ["--min-lr", 1], ["--ranks", 3, "--gtp", 2],
                 ["--ranks", 2000], ["--global-batch", 7, "--gtp", 2], ["--warmup-steps", 9], ["--grad-wire", "fp64"],
                 ["--eval-every", 1], ["--trace-step", 9], ["--debug-suppress", "9"], ["--debug-suppress", "x"],
                 ["--gather-budget", "x"], ["--gtp", 2, "--gather-budget", "1KB"], ["--gtp", 2, "--reduce-budget", "1KB"], ["--coalesce", "x"],
                 ["--reduce-order", "hierarchical"], ["--ranks-per-node", 2], ["--recompute", "auto"],
                 ["--reduce-order", "hierarchical", "--ranks-per-node", 3, "--tp", 2], ["--activation-budget", "1GB"],
                 ["--recompute", "auto", "--activation-budget", "1KB"], ["--seq-len", 10**6], ["--model", "absent"],
                 ["--model", model], ["--data", self.folder / "absent"], ["--valid", self.folder / "absent"],
                 ["--data", "x", self.data], ["--cuda-graph", "on"], ["--wire-format", "fp8"],
                 ["--dtype", "bf16", "--wire-format", "fp8", "--wire-rules", "absent=bf16"], ["--fp8-margin", 1],
                 ["--dtype", "bf16", "--wire-format", "nvfp4", "--tp", 3], ["--tp-wire-format", "fp8"],
                 ["--dtype", "bf16", "--gemm-format", "mxfp8", "--backend", "nccl"], ["--backend", "nccl", "--ranks", 10**5],
                 ["--config", self.folder / "file"], ["--config", self.folder / "absent"],
                 ["--resume", self.folder / "absent"], ["--resume", self.folder]]
        self.for_each(cases, lambda folder, _, flags: self.refused(
            folder / "refused", *self.start, "--steps", 4, *flags, within=folder))
        for out in (self.saved, self.folder / "file", self.folder / "file" / "below", "/proc/run"):
            self.refused(out, *self.start, "--steps", 4, expect=["--out"])
        self.refused(self.folder / "refused", *self.start, expect=["--steps"])

    def test_every_refusal_of_a_resumed_run(self):
        tessera("train", "--model", "llama-tiny", *self.start[2:], "--steps", 0, "--out", self.folder / "other-model")
        other = write_tokens(self.folder / "other", 131, documents=61)
        cases = [["--seed", 8], ["--seq-len", 16], ["--dtype", "bf16"], ["--global-batch", 12], ["--model", "llama-tiny"],
                 ["--data", other], ["--steps", 0], ["--trace-step", 1], ["--valid", self.folder / "absent"], ["--ranks", 5, "--gtp", 2],
                 ["--activation-budget", "1GB"], ["--ranks-per-node", 2], ["--gather-budget", "1KB"], ["--gtp", 5],
                 ["--backend", "nccl", "--ranks", 10**5], ["--save-every", -1]]

        def check(folder, number, flags):
            out = folder / "run"
            self.refused(out, "--resume", self.step(out, 1), *flags, within=folder)
            if FULL or number % 2 == 0:
                self.refused(out, "--resume", "latest", *flags, within=folder)
            if FULL or number % 2 == 1:
                self.refused(folder / "refused", "--resume", self.step(out, 1), *flags, within=folder)
        self.for_each(cases, check)
        out = self.copy("resumed")
        self.refused(out, "--resume", self.step(self.folder / "other-model", 0), expect=["another run"])
        self.refused("", "--resume", "latest", expect=["--out"])

    def test_every_fault_of_a_checkpoint(self):
        """All ranks find the same fault, and one line is printed."""
        manifest = read_manifest(self.step(self.saved, 1))
        values_of = {("state", "updates"): (1.5, 2, None, -1, "1", [], 2**63), ("step",): (2**63, "1", None, 1.5, -1, 2**31, 2**63 - 1),
                     ("state",): (3, [1], "x", []), ("state", "config"): ({"lr": "x"}, {"what": 1}, 3, [], "x"),
                     ("state", "model"): ({}, 3, [], "x"), ("state", "data"): ({}, 3, "x"),
                     ("state", "model", "hidden_size"): (10**12, None, 0, "x"), ("format",): ("x",), ("version",): (2,), ("files",): ({},),
                     ("tensors",): ([], 3), ("files", 0, "bytes"): (3,), ("state", "data", 0, "share"): ("x",),
                     ("state", "data", 0, "tokens"): ([],)}
        for key, values in {"ranks": (0, 7, 10**9, "x"), "tp": (1.5, 0, "x"), "gtp": (-1, 0), "dp": ([], 0), "backend": ("x", 3, []),
                            "zero": (3, "x"), "recompute": ("x", 1), "embedding": ("x", 1), "save_every": (-1, "x"),
                            "activation_budget": (3.5, ""), "sequence_parallel": ("x", 1), "steps": ("x", -5)}.items():
            values_of["state", "config", key] = values
        for key, values in {"name": ("x", 3), "kind": ("x",), "dtype": ("bf16", "x"), "shape": ([3], 3),
                            "pieces": ([[0, 0, 0, 2**62, 2**62, 2**62]], [], 3)}.items():
            values_of["tensors", 0, key] = values

        def check(folder, number, fault):
            out = folder / "run"
            write_manifest(changed(manifest, *fault), self.step(out, 1), self.step(out, 3))
            if FULL or number % 3 > 0:
                self.refused(out, "--resume", self.step(out, 1), "--steps", 4, within=folder)
            if FULL or number % 3 == 0:
                self.refused(folder / "refused", "--resume", self.step(out, 1), "--steps", 4, within=folder)
        self.for_each([(path, value) for path, values in values_of.items() for value in values[:None if FULL else 2]], check)

    def test_every_fault_of_delayed_scaling(self):
        out = self.folder / "scales"
        tessera("train", *self.start, "--steps", 1, "--gtp", 2, "--dtype", "bf16", "--gemm-format", "fp8", "--out", out)
        manifest = read_manifest(self.step(out, 1))
        values = manifest["state"]["delayed_scaling"]["values"]
        faults = [(["state", "delayed_scaling", key], value) for key, value in (
            ("values", None), ("values", 3), ("values", values[1:]), ("values", [-1, *values[1:]]), ("values", [2**32, *values[1:]]),
            ("values", [1.5, *values[1:]]), ("values", [0x7FC00000, *values[1:]]), ("matrices", 3), ("matrices", [1]), ("matrices", None),
            ("history", "x"), ("history", None), ("newest", 3), ("margin", "x"), ("greatest", "x"), ("greatest", ["x"]))]

        def check(folder, number, fault):
            out = folder / "run"
            write_manifest(changed(manifest, *fault), self.step(out, 1))
            if FULL or number % 3 > 0:
                self.refused(out, "--resume", "latest", "--steps", 2, expect=["delayed_scaling"], within=folder)
            if FULL or number % 3 == 0:
                self.refused(folder / "refused", "--resume", out, "--steps", 2, within=folder)
        self.for_each([*faults, (["state", "delayed_scaling"], 3)], check, start=out)

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_refusals_of_processes(self):
        def fault(out):
            write_manifest(changed(read_manifest(self.step(out, 1)), ["state", "updates"], 1.5), self.step(out, 1))

        def damage(out):
            part = sorted(self.step(out, 1).glob("part-*"))[-1]  # rank 1 reads this part
            part.write_bytes(part.read_bytes()[:-1] + b"\x55")

        def check(folder, number, case):
            ranks, change, new, flags, expect = case
            out = shutil.copytree(self.saved, folder / f"run-{number}")
            if change:
                change(out)
            flags = [*self.start, "--steps", 1, *flags] if new else ["--resume", self.step(out, 1), *flags]
            target = {None: out, "run": out, "new": folder / "refused"}[new]
            self.refused(target, *flags, "--backend", "mpi", mpi_ranks=ranks, expect=expect, within=folder)
        self.for_each([(3, None, None, [], ["--resume", "2 ranks", "3 processes were started"]),
                       (2, None, None, ["--seed", 8], ["--seed"]),
                       (3, None, "new", ["--gtp", 2], ["--gtp 2"]),
                       (2, None, "run", [], ["another run"]),
                       (2, fault, None, [], ["updates"]),
                       (2, damage, None, [], ["part-00001"]),
                       (2, lambda out: (out / "metrics.jsonl").write_text("x\n"), None, [], ["metrics.jsonl:1"])], check)


class Kept(Resume):
    def test_the_mesh_is_kept_unless_one_of_its_flags_is_given(self):
        out = self.folder / "mesh"
        tessera("train", *self.start, "--tp", 2, "--gtp", 1, "--dp", 2, "--steps", 1, "--out", out)
        for name, flags, mesh, said in (
                ("same", [], (4, 2, 1, 2), "mesh of the checkpoint: 4 ranks (tp 2 x gtp 1 x dp 2)"),
                ("gtp", ["--gtp", 3], (3, 1, 3, 1), "mesh of the command line: 3 ranks (tp 1 x gtp 3 x dp 1)"),
                ("ranks", ["--ranks", 2], (2, 1, 1, 2), "the checkpoint's was 4 ranks (tp 2 x gtp 1 x dp 2)"),
                ("given", ["--tp", 2, "--dp", 2], (4, 2, 1, 2), "mesh of the command line: 4 ranks (tp 2 x gtp 1 x dp 2)")):
            target = self.folder / f"mesh-{name}"
            lines = tessera("train", "--resume", out, *flags, "--steps", 2, "--out", target).splitlines()
            settings = self.settings(target)
            self.assertEqual(mesh, tuple(settings[key] for key in ("ranks", "tp", "gtp", "dp")), name)
            self.assertEqual(1, sum(said in line for line in lines), (name, lines))

    def test_a_plan_is_compared_with_the_steps_since_the_resume(self):
        out = self.folder / "planned"
        tessera("train", *self.start, "--gtp", 2, "--steps", 5, "--out", out)
        tessera("train", "--resume", "latest", "--gtp", 1, "--steps", 7, "--out", out)
        measured = json.loads(tessera("plan", "--measured", out, "--json"))["measured"]
        rows = {row["name"]: (row["predicted"], row["measured"]) for row in measured["rows"]}
        self.assertEqual((1, (0, 0)), (measured["steps"], rows["gathered_bytes"]))

    def test_settings_of_the_computation_are_kept(self):
        flags = {"zero": "off", "sequence_parallel": "on", "recompute": "auto", "activation_budget": "1GB", "embedding": "gather",
                 "save_every": 1}
        words = [word for key, value in flags.items() for word in (f"--{key.replace('_', '-')}", value)]
        out = self.folder / "how"
        tessera("train", *self.start, "--tp", 2, "--steps", 1, *words, "--out", out)
        expected = {key: self.settings(out)[key] for key in flags}
        tessera("train", "--resume", "latest", "--steps", 3, "--out", out)
        self.assertEqual(expected, {key: self.settings(out)[key] for key in flags})
        self.assertEqual(["step-00000001", "step-00000002", "step-00000003"], self.steps(out))
        tessera("train", "--resume", "latest", "--steps", 5, "--save-every", 0, "--recompute", "none", "--zero", "on",
                "--sequence-parallel", "off", "--embedding", "auto", "--out", out)
        settings = self.settings(out)
        self.assertEqual((True, False, "none", None, "auto", 0), tuple(settings[key] for key in flags))
        self.assertEqual("step-00000005", self.steps(out)[-1])
        self.assertNotIn("step-00000004", self.steps(out))

    def test_settings_without_effect_are_dropped(self):
        out = self.folder / "nodes"
        tessera("train", *self.start, "--tp", 2, "--gtp", 2, "--reduce-order", "hierarchical", "--ranks-per-node", 2, "--dtype", "bf16",
                "--gemm-format", "fp8", "--sequence-parallel", "on", "--tp-wire-format", "fp8", "--steps", 1, "--out", out)
        tessera("train", "--resume", "latest", "--steps", 2, "--reduce-order", "sequential", "--out", out)
        self.assertEqual(("sequential", 0), tuple(self.settings(out)[key] for key in ("reduce_order", "ranks_per_node")))
        for name, flags in (("tp", ["--tp", 1]), ("split", ["--sequence-parallel", "off"])):
            target = self.folder / f"nodes-{name}"
            tessera("train", "--resume", out, "--steps", 3, *flags, "--out", target)
            self.assertEqual("bf16", self.settings(target)["tp_wire_format"])

    def test_an_older_checkpoint_without_these_settings_resumes(self):
        out = self.copy("older")
        manifest = read_manifest(self.step(out, 3))
        for key in ("ranks", "tp", "gtp", "dp", "backend", "zero", "sequence_parallel", "recompute", "activation_budget", "embedding",
                    "save_every"):
            del manifest["state"]["config"][key]
        write_manifest(manifest, self.step(out, 3))
        lines = tessera("train", "--resume", "latest", "--steps", 4, "--out", out)
        self.assertIn("mesh of the command line: 1 rank (tp 1 x gtp 1 x dp 1); the checkpoint stores no mesh", lines)
        self.assertEqual((1, 0), (self.settings(out)["ranks"], self.settings(out)["save_every"]))

    def test_a_run_that_changes_its_update_rule(self):
        """AdamW to Muon and back: the state of the new rule starts at zero. Reports list the planes of both rules."""
        out = self.copy("rules")
        note = "the state of {} starts at zero for 8 parameters"
        self.assertIn(note.format("muon"), tessera("train", "--resume", "latest", "--optimizer", "muon", "--steps", 4, "--out", out))
        planes = {"adamw": {"exp_avg": "fp32", "exp_avg_sq": "fp32"}, "muon": {"momentum": "fp32"}}
        summary = json.loads((out / "summary.json").read_text())["update_rules"]
        self.assertEqual(planes, {rule["rule"]: rule["planes"] for rule in summary})
        stored = json.loads(tessera("inspect", self.step(out, 4), "--json"))["update_rules"]
        self.assertCountEqual([(rule["planes"], rule["parameters"], rule["state_bytes"]) for rule in summary],
                              [(rule["planes"], rule["parameters"], rule["state_bytes"]) for rule in stored])
        self.assertNotIn("starts at zero", tessera("train", "--resume", "latest", "--steps", 5, "--out", out))
        lines = tessera("train", "--resume", "latest", "--optimizer", "adamw", "--steps", 6, "--out", out)
        self.assertIn(note.format("adamw"), lines)
        manifest = read_manifest(self.step(out, 5))
        manifest["state"]["updates"] = "five"
        write_manifest(manifest, self.step(out, 5))
        self.refused(self.folder / "rules-2", "--resume", self.step(out, 5), expect=["updates: expected an integer", "five"])

    def test_a_last_line_of_metrics_without_its_newline_is_kept(self):
        out = self.copy("newline")
        (out / "metrics.jsonl").write_text((out / "metrics.jsonl").read_text()[:-1])
        tessera("train", "--resume", "latest", "--steps", 4, "--out", out)
        self.assertEqual([1, 2, 3, 4], [line["step"] for line in metrics(out)])

    def test_a_run_without_steps_left_names_the_flag(self):
        out = self.copy("complete")
        said = "the checkpoint is at or after the last step, {}: a greater --steps trains longer"
        steps = self.settings(out)["steps"]
        other = self.folder / "complete-elsewhere"
        self.assertIn(said.format(steps), tessera("train", "--resume", out, "--out", other).splitlines())
        self.assertEqual(0, json.loads((other / "summary.json").read_text())["trained_steps"])
        self.assertNotIn("the checkpoint is at", tessera("train", "--resume", "latest", "--steps", steps + 1, "--out", out))

    def test_a_finished_run_is_not_changed(self):
        out = self.folder / "finished"
        tessera("train", *self.start, "--steps", 3, "--out", out)
        before, times = content(out), {path: path.stat().st_mtime_ns for path in out.rglob("*")}
        said = f"the run is finished: {out}/summary.json has the results of its last step, 3. No file was changed"
        resumed = [["--resume", "latest"], ["--resume", self.step(out, 3), "--gtp", 2], ["--resume", "latest", "--steps", 3, "--lr", "1e-4"]]
        for flags in resumed:
            self.assertIn(said, tessera("train", *flags, "--out", out))
        if MPIRUN:
            self.assertIn(said, tessera("train", "--resume", "latest", "--backend", "mpi", "--gtp", 2, "--out", out, mpi_ranks=2))
        self.assertEqual((before, times), (content(out), {path: path.stat().st_mtime_ns for path in out.rglob("*")}))
        self.assertIn("medians of 1 steps", tessera("plan", "--measured", out))

    def test_a_run_that_lost_its_summary_or_has_none_of_its_last_step_is_completed(self):
        out = self.folder / "unfinished"
        tessera("train", *self.start, "--steps", 3, "--out", out)
        summary = json.loads((out / "summary.json").read_text())
        for text in (None, "{", "[]", json.dumps(summary | {"step": 2})):
            (out / "summary.json").unlink()
            if text is not None:
                (out / "summary.json").write_text(text)
            self.assertNotIn("the run is finished", tessera("train", "--resume", "latest", "--out", out))
            found = json.loads((out / "summary.json").read_text())
            self.assertEqual((3, 0, None), (found["step"], found["trained_steps"], found["tokens_per_second"]))
        # A run of 0 steps stores its initial weights again.
        zero = self.folder / "zero"
        for flags in ([*self.start, "--steps", 0], ["--resume", "latest"]):
            self.assertNotIn("the run is finished", tessera("train", *flags, "--out", zero))
            self.assertEqual((0, None), tuple(json.loads((zero / "summary.json").read_text())[key] for key in ("step", "tokens_per_second")))

    def test_a_converted_checkpoint_uses_the_mesh_of_the_command_line(self):
        tessera("convert", self.saved, self.folder / "kept-hf")
        tessera("convert", self.folder / "kept-hf", self.folder / "kept-converted")
        out = self.folder / "from-converted"
        lines = tessera("train", "--resume", self.folder / "kept-converted", *self.start[2:], "--steps", 1, "--gtp", 3, "--out", out)
        self.assertIn("mesh of the command line: 3 ranks (tp 1 x gtp 3 x dp 1); the checkpoint stores no mesh", lines)
        self.assertEqual(json.loads((self.saved / "config.json").read_text())["model"],
                         json.loads((out / "config.json").read_text())["model"])

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_the_backend_is_kept(self):
        out = self.folder / "backend"
        tessera("train", *self.start, "--backend", "mpi", "--gtp", 2, "--steps", 1, "--out", out, mpi_ranks=2)
        tessera("train", "--resume", "latest", "--steps", 2, "--out", out, mpi_ranks=2)
        self.assertEqual("mpi", self.settings(out)["backend"])
        self.refused(out, "--resume", "latest", "--steps", 3)
        tessera("train", "--resume", "latest", "--steps", 3, "--backend", "local", "--out", out)
        self.assertEqual(("local", 2), (self.settings(out)["backend"], self.settings(out)["ranks"]))


class Aside(Resume):
    def interrupted(self, name):
        """Returns the folder of a run that resumed from step 1 and was killed before its next checkpoint."""
        out = self.copy(name)
        with subprocess.Popen(command("train", "--resume", self.step(out, 1), "--steps", 10**6, "--save-every", 0, "--lr", "1e-4",
                                      "--out", out), stdout=subprocess.DEVNULL, env=ENVIRONMENT) as job:
            try:
                for _ in range(600):
                    if len((out / "metrics.jsonl").read_text().splitlines()) > 3 or job.poll() is not None:
                        break
                    time.sleep(0.05)
            finally:
                job.kill()
        return out

    def aside(self, out):
        return [name for name in self.steps(out) if "aside" in name]

    def test_later_checkpoints_are_kept_until_a_new_one_is_complete(self):
        out = self.interrupted("killed")
        aside = self.aside(out)
        self.assertEqual(["step-00000002", "step-00000003"], [name.split(".")[0] for name in aside])
        self.assertEqual(1, json.loads(tessera("inspect", out, "--json"))["step"])
        for name in aside:  # each is complete
            found = json.loads(tessera("inspect", out / "checkpoints" / name, "--json"))
            self.assertEqual(json.loads(tessera("inspect", self.step(self.saved, found["step"]), "--json"))["tensors"], found["tensors"])
        tessera("train", "--resume", "latest", "--steps", 1, "--out", out)  # no new checkpoint is saved
        self.assertEqual(aside, self.aside(out))
        tessera("train", "--resume", "latest", "--steps", 2, "--keep", 1, "--out", out)
        self.assertEqual(["step-00000002"], self.steps(out))
        self.assertEqual([1, 2], [line["step"] for line in metrics(out)])

    def test_a_checkpoint_that_was_set_aside_can_be_resumed(self):
        out = self.interrupted("restored")
        third = out / "checkpoints" / self.aside(out)[1]
        tessera("train", "--resume", third, "--steps", 3, "--out", out)
        self.assertEqual(["step-00000001", "step-00000003"], [name for name in self.steps(out) if "aside" not in name])
        tessera("train", "--resume", "latest", "--steps", 4, "--out", out)
        straight = self.copy("straight")
        tessera("train", "--resume", "latest", "--steps", 4, "--out", straight)
        self.assertEqual(metrics(straight)[-1]["loss"], metrics(out)[-1]["loss"])
        self.assertEqual([], self.aside(out))

    def test_latest_is_refused_if_all_checkpoints_are_set_aside(self):
        out = self.interrupted("only-aside")
        shutil.rmtree(self.step(out, 1))
        self.refused(out, *self.start, "--resume", "latest", "--steps", 4, expect=["latest", self.aside(out)[1]])
        self.assertIn(self.aside(out)[1], run("inspect", out).stderr)

    def test_a_crash_at_any_time_leaves_a_checkpoint(self):
        """The run resumes from step 1 and saves step 2. Each attempt is killed later, until the run ends without a kill."""
        ended, delay = False, 0.05
        while not ended:
            out = self.copy("crashed")
            with subprocess.Popen(command("train", "--resume", self.step(out, 1), "--steps", 2, "--out", out),
                                  stdout=subprocess.DEVNULL, env=ENVIRONMENT) as job:
                try:
                    ended = job.wait(timeout=delay) == 0
                except subprocess.TimeoutExpired:
                    os.kill(job.pid, signal.SIGKILL)
            delay += 0.08
            tessera("train", "--resume", "latest", "--steps", 4, "--out", out)
            self.assertEqual([1, 2, 3, 4], [line["step"] for line in metrics(out)])
            self.assertEqual([], self.aside(out))


if __name__ == "__main__":
    run_cases()
