#!/usr/bin/env python3
"""Tests tools/compare with programs that only write files: it reports differences, and accepts equal results."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "compare"))

import bits  # noqa: E402
import commands  # noqa: E402
import cuda_runs  # noqa: E402
import evidence  # noqa: E402
import inputs  # noqa: E402
import runs  # noqa: E402
import sides  # noqa: E402
import times  # noqa: E402
from difference import ABSENT, first_difference, flatten, same  # noqa: E402
from ignored import CHOSEN_BY_TIMES, IGNORED  # noqa: E402
from summary import run_cases  # noqa: E402
from table import Run  # noqa: E402

# A program that imitates train, inspect, plan, evaluate and bench. The file `says` contains {key: value} that replace defaults.
PROGRAM = textwrap.dedent("""\
    #!{python}
    import json, pathlib, sys
    says = json.loads(pathlib.Path({says!r}).read_text())
    flags = dict(zip(sys.argv, sys.argv[1:]))
    if says.get("exit"):
        sys.exit("tessera: " + says["exit"])
    if sys.argv[1] == "train":
        out, steps = pathlib.Path(flags["--out"]), says.get("steps", int(flags["--steps"]))
        (out / "checkpoints" / f"step-{{steps:08d}}").mkdir(parents=True)
        lines = [{{"step": step, "loss": 1 / step, "step_ms": id(out) / 7, **says.get(str(step), {{}})}}
                 for step in range(1, steps + 1)]
        (out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
        (out / "summary.json").write_text(json.dumps({{"checkpoint": str(out), "schedules": 2, **says.get("summary", {{}})}}))
        settings = {{"out": str(out), "tp": 1, **says.get("settings", {{}})}}
        (out / "config.json").write_text(json.dumps({{"config": settings, "first_step": 1, "version": id(out)}}))
    elif sys.argv[1] == "inspect":
        tensor = {{"kind": "master", "name": "norm", "dtype": "fp32", "shape": [3], "pieces": 1, "hash": "ab"}}
        print(json.dumps({{"tensors": [{{**tensor, **says.get("tensor", {{}})}}]}}))
    elif sys.argv[1] == "plan":
        if "--save-events" in flags:
            pathlib.Path(flags["--save-events"]).write_text(says.get("events", "gather\\nconsume\\n"))
        print(json.dumps({{"memory": {{"total": 1}}, "gathers": [{{"offset": 0}}, {{"offset": 512}}], **says.get("plan", {{}})}}))
    elif sys.argv[1] == "evaluate":
        if not pathlib.Path(sys.argv[2]).is_dir():
            sys.exit("tessera: " + sys.argv[2])
        print(json.dumps({{"loss": says.get("evaluated", 5.5)}}))
    else:
        print("a line before")
        print(json.dumps({{"median_ms": says.get("ms", 2.0)}}))
    """)


class Values(unittest.TestCase):
    def test_values_that_differ_in_one_bit_differ(self):
        self.assertTrue(same(0.1, 0.1))
        self.assertFalse(same(0.1, 0.10000000000000002))
        self.assertFalse(same(0.0, -0.0))
        self.assertFalse(same(1, 1.0))
        self.assertFalse(same(1, True))
        self.assertTrue(same(float("nan"), float("nan")))

    def test_flatten_names_leaves_by_path(self):
        value = {"a": {"b": 1, "c": [2, {"d": 3}]}, "e": [], "f": {}}
        self.assertEqual({"a.b": 1, "a.c[0]": 2, "a.c[1].d": 3, "e": [], "f": {}}, flatten(value))

    def test_the_first_difference_is_reported(self):
        self.assertIsNone(first_difference({"a": 1, "b": 2.0}, {"b": 2.0, "a": 1}))
        found = first_difference({"a": 1, "b": 2.0, "c": 3}, {"a": 1, "b": 2.5, "c": 4})
        self.assertEqual("b: A 2.0 (0x1.0000000000000p+1), B 2.5 (0x1.4000000000000p+1)", str(found))

    def test_a_key_that_only_one_side_has_is_a_difference(self):
        self.assertEqual(("b", 2, ABSENT), tuple(vars(first_difference({"a": 1, "b": 2}, {"a": 1})).values()))
        self.assertEqual("b: A absent, B 2", str(first_difference({"a": 1}, {"a": 1, "b": 2})))


class Evidence(unittest.TestCase):
    def lines(self, *lines, ignored=("metrics.step_ms",)):
        return evidence.of_metrics("".join(json.dumps(line) + "\n" for line in lines), ignored)

    def test_only_times_are_ignored(self):
        table = self.lines({"step": 1, "loss": 0.5, "step_ms": 3.0, "gathered_bytes": 7}, {"step": 2, "loss": 0.25})
        self.assertEqual({"step 1: loss": 0.5, "step 1: gathered_bytes": 7, "step 2: loss": 0.25}, table)

    def test_a_missing_step_is_a_difference(self):
        one, two = ({"step": step, "loss": 0.5} for step in (1, 2))
        found = first_difference(self.lines(one, two), self.lines(one))
        self.assertEqual(("step 2: loss", ABSENT), (found.where, found.b))

    def test_losses_that_are_not_finite_are_compared(self):
        self.assertIsNone(first_difference(self.lines({"step": 1, "loss": "NaN"}), self.lines({"step": 1, "loss": "NaN"})))
        self.assertIsNotNone(first_difference(self.lines({"step": 1, "loss": "NaN"}), self.lines({"step": 1, "loss": 1.0})))

    def test_results_without_content_are_a_failure(self):
        for lines in ([], [{"loss": 1}], [{"step": 1}, {"step": 1}]):
            self.assertRaises(evidence.Failure, self.lines, *lines)
        self.assertRaises(evidence.Failure, evidence.of_metrics, "{cut sho", ())
        for text in ("", "[]", "{}", '{"tensors": []}', '{"tensors": [{"name": "a"}]}'):
            self.assertRaises(evidence.Failure, evidence.of_checkpoint, text)

    def test_settings_are_compared_except_folders(self):
        def table(settings, **others):
            return evidence.of_settings(json.dumps({"config": settings, "model": {"layers": 2}, **others}), IGNORED)
        self.assertEqual({"settings: tp": 2, "run: model.layers": 2},
                         table({"tp": 2, "out": "a", "resume": "b"}, version="1"))
        self.assertEqual("settings: dp", first_difference(table({"tp": 2, "dp": None}), table({"tp": 2})).where)
        for text in ("", "[]", "{}", '{"config": 1}'):
            self.assertRaises(evidence.Failure, evidence.of_settings, text, ())

    def test_tensors_are_compared_by_content(self):
        def table(**others):
            tensor = {"kind": "exp_avg", "name": "w", "dtype": "fp32", "shape": [2, 3], "hash": "00", "pieces": 1, **others}
            return evidence.of_checkpoint(json.dumps({"tensors": [tensor], "files": [others]}))
        self.assertIsNone(first_difference(table(), table(pieces=5)))
        for key, value in (("hash", "01"), ("dtype", "bf16"), ("shape", [3, 2])):
            self.assertEqual(f"tensor exp_avg/w: {key}", first_difference(table(), table(**{key: value})).where)


class Tables(unittest.TestCase):
    BOTH = [*runs.RUNS, *cuda_runs.CUDA_RUNS]
    ALL = [*BOTH, *runs.TIMINGS, *cuda_runs.CUDA_TIMINGS]

    def test_names_are_unique_and_flags_are_flags(self):
        self.assertEqual(len(self.ALL), len({row.name for row in self.ALL}))
        for row in self.ALL:
            commands.flags_of(row.flags)
            self.assertRegex(row.name, r"^[a-z0-9-]+$")
        self.assertRaises(ValueError, commands.flags_of, "--tp 2 --tp 3")
        self.assertRaises(ValueError, commands.flags_of, "--tp 2 3")

    def test_global_batches_are_divisible(self):
        """Meshes with unused places divide any global batch."""
        for common, table in ((runs.COMMON, runs.RUNS), (cuda_runs.COMMON_CUDA, cuda_runs.CUDA_RUNS)):
            for run in table:
                flags = {**commands.flags_of(common), **commands.flags_of(run.flags)}
                parts = int(flags["--micro-batch"]) * int(flags.get("--gtp", 1)) * int(flags.get("--dp", 1))
                if run.task in ("train", "plan") and not commands.unused_of(flags):
                    self.assertEqual(0, int(flags["--global-batch"]) % parts, run.name)

    def test_models_are_created_or_in_configs(self):
        for run in self.BOTH:
            named = run.task == "plan" and (ROOT / "configs" / run.model).is_dir()
            self.assertTrue(run.model in inputs.MODELS or run.model in inputs.FOLDERS or named, run.name)

    def test_stored_weights_come_from_a_folder_or_an_earlier_run(self):
        for run in self.BOTH:
            if run.task in ("evaluate", "generate"):
                self.assertNotEqual(run.model in inputs.FOLDERS, run.resumes is not None, run.name)
            self.assertTrue(not run.kept or run.resumes is not None, run.name)

    def test_budgets_are_numbers_if_bytes_are_compared(self):
        for run in self.BOTH:
            flags = commands.flags_of(run.flags)
            self.assertEqual("auto" in (flags.get("--gather-budget"), flags.get("--reduce-budget")), bool(run.varying))
            self.assertFalse({*run.varying} - {*CHOSEN_BY_TIMES}, run.name)

    def test_ignored_keys_have_a_reason(self):
        for key, why in IGNORED.items():
            self.assertRegex(key, r"^(metrics|summary|settings|run|plan)\.\w+$")
            self.assertTrue(why)

    def check_covered(self, table, common, words):
        flags = " ".join([common, *(f"{run.task} {run.flags} {run.resumes or ''}" for run in table)]) + " "
        for word in words:
            self.assertIn(f"{word} ", flags)

    def test_every_feature_is_covered(self):
        self.check_covered(runs.RUNS, runs.COMMON, (
            "--dtype bf16", "--dtype fp64", "--zero off", "--reduce-order hierarchical", "--embedding rows", "--embedding gather",
            "--gather-budget min", "--gather-budget auto", "--recompute selective", "--recompute full", "--recompute auto",
            "--sequence-parallel on", "--mask-documents on", "--backend mpi", "--debug-poison on", "--grad-wire bf16",
            "--grad-wire fp32", "--eval-every 2", "--micro-batch 3",
            "--etp 2", "--ep 2", "--egtp 2", "--expert-capacity 1.1", "--expert-bias-rate 0", "--expert-counts 1", "--moe-aux pooled",
            "--router-z-loss 1e-3", "--wire-format fp8", "--wire-format fp8_block", "--wire-format mxfp8", "--wire-format nvfp4",
            "--gemm-format fp8", "--gemm-format fp8_block", "--gemm-format mxfp8", "--gemm-format nvfp4", "--fp8-scaling current",
            "--fp8-recipe e4m3", "--fp8-amax newest", "--fp8-history 2", "--fp8-margin 1", "--wire-format-backward mxfp8",
            "--hidden-dropout 0.2", "--embedding-dropout 0.1", "--tp-spares auto", "--reduced-batch auto", "--reduced-batch 5",
            "--tp-overlap on", "--tp-overlap off", "--tp-chunks 2", "--tp-wire-format fp8", "--debug-suppress 2,4:2", "--search",
            "--dead-share 0.1", "--expert-load 2", "evaluate --data", "generate --prompt-ids", "inspect layout"))
        for flag in ("--wire-rules", "--wire-rules-backward", "--gemm-rules", "--dead", "--idle"):
            self.assertTrue(any(flag in commands.flags_of(run.flags) for run in runs.RUNS), flag)
        models = {run.model for run in runs.RUNS}
        self.assertLessEqual({"mixtral", "qwen3_moe", "dots1", "qwen2", "qwen3", "tied", *inputs.FOLDERS}, models)

    def test_every_feature_of_gpus_is_covered(self):
        self.check_covered(cuda_runs.CUDA_RUNS, cuda_runs.COMMON_CUDA, (
            "--cuda-graph on", "--gemm-format fp8", "--gemm-format fp8_block", "--gemm-format nvfp4", "--gemm-format mxfp8",
            "--wire-format nvfp4", "--wire-format mxfp8",
            "--fp8-scaling current", "--ep 2", "--etp 2", "--egtp 2", "--expert-room 1", "--expert-capacity 1.1", "--pushes off",
            "--tp-overlap on", "--tp-wire-format fp8", "--hidden-dropout 0.2", "evaluate --data", "generate --prompt-ids"))
        self.assertLessEqual({"mixtral", "qwen3_moe", "dots1", "whole-experts", "whole-dots1"}, {run.model for run in cuda_runs.CUDA_RUNS})

    def test_rows_of_two_gpus_need_two(self):
        for run in cuda_runs.CUDA_RUNS:
            self.assertEqual(2 if run.name.startswith("cuda2-") else 1, commands.most_ranks_of(run), run.name)


class Commands(unittest.TestCase):
    INPUTS = {"odd": "odd.json", "odd-weights": "folder", "data": "train", "valid": "valid"}

    def test_unused_places_have_no_rank(self):
        flags = commands.flags_of("--tp 4 --gtp 2 --dp 2 --dead 'dp0.gtp1:0,3;dp1:1' --idle dp1.gtp1:2")
        self.assertEqual((4, 12), (commands.unused_of(flags), commands.ranks_of(flags)))
        self.assertEqual(1, commands.ranks_of({}))

    def test_a_folder_of_weights_is_initial(self):
        flags = commands.training(Run("a", model="odd-weights"), "--tp 2", "--tp 1 --steps 4", self.INPUTS, "out")
        self.assertEqual(["--init", "folder"], commands.words_of(flags)[:2])
        self.assertEqual(("2", "4"), (flags["--tp"], flags["--steps"]))
        self.assertIn("--model", commands.training(Run("a"), "", "", self.INPUTS, "out"))

    def test_a_resumed_run_takes_some_flags_from_the_checkpoint(self):
        common = "--steps 4 --seed 7"
        flags = commands.resumed(Run("a", "--gtp 2", resumes=""), common, "checkpoint", "out")
        self.assertEqual((1, "2", 1, "4"), tuple(flags[name] for name in ("--tp", "--gtp", "--dp", "--steps")))
        self.assertNotIn("--seed", flags)
        flags = commands.resumed(Run("a", "--idle dp0:1", resumes="", kept="--tp --gtp --dp"), common, "checkpoint", "out")
        self.assertFalse({"--tp", "--gtp", "--dp"} & {*flags})
        self.assertEqual("off", flags["--sequence-parallel"])

    def test_stored_weights_are_read_with_held_out_data(self):
        self.assertEqual({"--data": "valid", "--json": None}, commands.stored(Run("a", "--data {valid}", task="evaluate"), self.INPUTS))


class Inputs(unittest.TestCase):
    def test_folders_of_weights_contain_every_tensor(self):
        with tempfile.TemporaryDirectory() as folder:
            written = inputs.write_inputs(pathlib.Path(folder), ["mixtral-weights"])
            self.assertNotIn("odd-weights", written)
            data = (written["mixtral-weights"] / "model.safetensors").read_bytes()
            size = int.from_bytes(data[:8], "little")
            tensors = json.loads(data[8:8 + size])
            end = max(tensor["data_offsets"][1] for tensor in tensors.values())
            self.assertEqual((0, len(data)), (size % 8, 8 + size + end))
            # 2 layers have 2 norms, 4 matrices of attention, a router and 7 experts of 3 matrices.
            self.assertEqual(3 + 2 * (2 + 4 + 1 + 7 * 3), len(tensors))
            self.assertEqual([61, 29], tensors["model.layers.1.block_sparse_moe.experts.6.w2.weight"]["shape"])


class Times(unittest.TestCase):
    def test_sides_alternate(self):
        self.assertEqual(list("ABBAAB"), times.turns(3))

    def test_the_summary_has_medians_ratio_and_range(self):
        line = times.summary({"A": [2.0, 4.0, 3.0], "B": [3.0, 6.0, 3.0]})
        self.assertEqual("A 3 ms (2 to 4), B 3 ms (3 to 6), B/A 1.0000 (rounds 1 to 1.5)", line)

    def test_output_without_a_time_is_a_failure(self):
        for output in ("", "{}", "{broken", '{"median_ms": null}'):
            self.assertRaises(evidence.Failure, times.median_of_steps, output)


class Sides(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_folders_and_programs_need_no_git(self):
        self.assertEqual("folder", sides.side_of(str(self.folder)).kind)
        program = sides.program_in(self.folder, "cuda")
        program.parent.mkdir(parents=True)
        program.touch(mode=0o755)
        self.assertEqual("program", sides.side_of(str(program)).kind)
        self.assertEqual(program.resolve(), sides.program_of(sides.side_of(str(self.folder)), "cuda", may_build=False))
        with self.assertRaisesRegex(sides.BadArgument, "not built"):
            sides.program_of(sides.side_of(str(self.folder)), "cpu", may_build=False)
        program.chmod(0o644)
        self.assertRaises(sides.BadArgument, sides.side_of, str(program))
        self.assertRaises(sides.BadArgument, sides.side_of, "not a commit")

    def test_a_built_commit_is_not_built_again(self):
        program = sides.program_in(self.folder / "0123456789ab", "cpu")
        program.parent.mkdir(parents=True)
        program.touch(mode=0o755)
        side = sides.Side("commit", self.folder / "0123456789ab", "0123456789ab")
        self.assertEqual(program, sides.program_of(side, "cpu"))

    def test_a_build_of_another_checkout_shares_the_downloads(self):
        torch = self.folder / ".venv/lib/python3.11/site-packages/torch"
        torch.mkdir(parents=True)
        found = sides.shared_environment(pathlib.Path("/elsewhere"), {"PATH": "/bin"}, root=self.folder)
        self.assertEqual((str(torch), f"/bin:{self.folder}/.venv/bin", f"{self.folder}/.cache/ccache"),
                         (found["TESSERA_TORCH"], found["PATH"], found["CCACHE_DIR"]))
        given = {"PATH": "/bin", "TESSERA_TORCH": "/t", "CCACHE_DIR": "/c"}
        self.assertEqual({**given, "PATH": f"/bin:{self.folder}/.venv/bin"},
                         sides.shared_environment(pathlib.Path("/elsewhere"), given, root=self.folder))
        self.assertEqual(given, sides.shared_environment(self.folder, given, root=self.folder))


class Programs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for side in "ab":
            program = self.folder / side
            program.write_text(PROGRAM.format(python=sys.executable, says=str(self.folder / f"{side}.json")))
            program.chmod(0o755)

    def compare(self, *options, a=None, b=None):
        """Returns the exit code, stdout without the two lines of the sides, and stderr."""
        for side, says in (("a", a), ("b", b)):
            (self.folder / f"{side}.json").write_text(json.dumps(says or {}))
        command = [ROOT / "tools/compare/compare_commits.py", self.folder / "a", self.folder / "b", *options]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd="/", check=False)
        return done.returncode, done.stdout.splitlines()[2:], done.stderr

    def test_equal_programs_pass(self):
        code, lines, errors = self.compare("--only", "^(gtp2|resume-same|plan-gtp4)$")
        self.assertEqual(0, code, errors)
        self.assertEqual(["gtp2: equal", "resume-same: equal", "plan-gtp4: equal", "3 passed, 0 failed"], lines)
        code, lines, errors = self.compare("--only", "^evaluate-(one|run)$")
        self.assertEqual((0, "2 passed, 0 failed"), (code, lines[-1]), errors)

    def test_differences_are_reported(self):
        third = "A 0.3333333333333333 (0x1.5555555555555p-2), B 0.25 (0x1.0"
        for says, expected in (({"3": {"loss": 0.25}}, f"step 3: loss: {third}"),
                               ({"2": {"valid_loss": 1.5}}, "step 2: valid_loss: A absent, B 1.5"),
                               ({"steps": 3}, "step 4: loss: A 0.25 (0x1.0000000000000p-2), B absent"),
                               ({"summary": {"schedules": 3}}, "summary: schedules: A 2, B 3"),
                               ({"settings": {"tp": 2}}, "settings: tp: A 1, B 2"),
                               ({"tensor": {"hash": "ac"}}, "tensor master/norm: hash: A 'ab', B 'ac'")):
            code, lines, errors = self.compare("--only", "^gtp2$", b=says)
            self.assertEqual((1, "0 passed, 1 failed"), (code, lines[-1]), errors)
            self.assertTrue(lines[0].startswith("gtp2: " + expected), lines)
        _, lines, _ = self.compare("--only", "^plan-gtp4$", b={"plan": {"gathers": [{"offset": 0}, {"offset": 0}]}})
        self.assertEqual("plan-gtp4: plan: gathers[1].offset: A 512, B 0", lines[0])
        _, lines, _ = self.compare("--only", "^plan-gtp4$", b={"events": "gather\nproduce\n"})
        self.assertEqual("plan-gtp4: events: line 2: A 'consume', B 'produce'", lines[0])
        code, lines, _ = self.compare("--only", "^plan-(gtp4|search)$", a={"events": ""}, b={"events": ""})
        self.assertEqual((1, ["plan-gtp4: A: the file of events is empty", "plan-search: equal"]), (code, lines[:-1]))
        _, lines, _ = self.compare("--only", "^evaluate-run$", b={"evaluated": 5.25})
        self.assertTrue(lines[0].startswith("evaluate-run: evaluate: loss: A 5.5 (0x1.6"), lines)

    def test_a_run_that_fails_on_both_sides_has_failed(self):
        code, lines, _ = self.compare("--only", "^gtp2$", a={"exit": "bad flag"}, b={"exit": "bad flag"})
        self.assertEqual((1, ["gtp2: A: tessera train ended with 1: tessera: bad flag", "0 passed, 1 failed"]), (code, lines))

    def test_keep_keeps_the_files_of_runs(self):
        self.compare("--only", "^gtp2$", "--keep", self.folder / "kept")
        self.assertEqual(["A", "B"], sorted(os.listdir(self.folder / "kept" / "gtp2")))

    def test_times_do_not_change_the_exit_code(self):
        code, lines, errors = self.compare("--times", "--rounds", 3, "--only", "step-one", b={"ms": 3.0})
        self.assertEqual(0, code, errors)
        self.assertEqual("step-one: A 2 ms (2 to 2), B 3 ms (3 to 3), B/A 1.5000 (rounds 1.5 to 1.5)", lines[0])
        self.assertEqual(1, self.compare("--times", "--only", "step-one", b={"exit": "no"})[0])

    def test_bad_arguments_print_one_line(self):
        for options in (["--only", "("], ["--only", "unknown-run"], ["--rounds", 0], ["--preset", "x"], ["a-third-side"]):
            code, _, errors = self.compare(*options)
            self.assertEqual((2, 1), (code, errors.count("\n")), errors)

    def test_a_run_that_the_machine_cannot_run_is_skipped(self):
        launcher, bits.mpirun = bits.mpirun, lambda: None
        self.addCleanup(setattr, bits, "mpirun", launcher)
        run = next(run for run in runs.RUNS if "--backend mpi" in run.flags)
        self.assertEqual((None, "skipped: no mpirun"), bits.compare(run, ["a", "b"], bits.Task(runs.COMMON, {}, self.folder)))
        (self.folder / "a.json").write_text(json.dumps({"exit": "--ranks: got 1000000, expected 1 to 1: the number of visible GPUs"}))
        task = bits.Task(cuda_runs.COMMON_CUDA, {}, self.folder)
        for run in (Run("of-two", "--gtp 2"), Run("before", "", resumes="--tp 2")):
            self.assertEqual((None, "skipped: 1 GPU, the run needs 2"), bits.compare(run, [self.folder / "a", "b"], task))


if __name__ == "__main__":
    run_cases()
