#!/usr/bin/env python3
"""Tests python/log_to_wandb.py with a module that imitates wandb and writes its calls to a file."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

from summary import run_cases

ROOT = pathlib.Path(__file__).resolve().parents[2]
IMITATION = """import json, os
class Run:
    step = int(os.environ.get("IMITATED_STEP", "0"))
    def log(self, values, step): write(["log", step, {key: repr(value) for key, value in values.items()}])
    def finish(self): write(["finish"])
def write(call):
    with open(os.environ["CALLS"], "a") as file: file.write(json.dumps(call) + "\\n")
def init(**options):
    write(["init", options])
    return Run()
"""


def line(step, **more):
    return json.dumps({"step": step, "loss": 5.5 - step, "lr": 3e-4, **more}) + "\n"


class LogToWandb(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.run_folder, self.calls = self.root / "mine", self.root / "calls"
        (self.root / "modules").mkdir()
        (self.root / "modules/wandb.py").write_text(IMITATION)
        self.run_folder.mkdir()
        (self.run_folder / "config.json").write_text('{"config": {"tp": 2}}')
        self.metrics = self.run_folder / "metrics.jsonl"

    def command(self, *arguments):
        return [sys.executable, str(ROOT / "python/log_to_wandb.py"), str(self.run_folder), *arguments]

    def environment(self, **more):
        return {**os.environ, "PYTHONPATH": str(self.root / "modules"), "CALLS": str(self.calls), **more}

    def called(self, *arguments, **more):
        self.calls.unlink(missing_ok=True)
        result = subprocess.run(self.command(*arguments), capture_output=True, text=True, check=False, env=self.environment(**more))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return [json.loads(call) for call in self.calls.read_text().splitlines()]

    def test_each_line_is_logged_with_its_numbers(self):
        self.metrics.write_text(line(1, skipped=True, grad_norm="NaN", valid_loss="Infinity") +
                                line(2, mfu=None, flops_by_format={"fp8": 8.0}, expert_counts=[[1, 2]]) + '{"step": 3, "lo')
        calls = self.called("--project", "p")
        self.assertEqual(calls[0], ["init", {"project": "p", "id": "mine", "resume": "allow", "config": {"tp": 2}}])
        self.assertEqual(calls[1], ["log", 1, {"loss": "4.5", "lr": "0.0003", "skipped": "1.0", "grad_norm": "nan", "valid_loss": "inf"}])
        self.assertEqual(calls[2], ["log", 2, {"loss": "3.5", "lr": "0.0003", "flops_by_format/fp8": "8.0"}])
        self.assertEqual(calls[3:], [["finish"]])

    def test_a_second_call_copies_only_new_steps(self):
        self.metrics.write_text("".join(line(step) for step in (1, 2, 3)))
        steps = [call[1] for call in self.called(IMITATED_STEP="2") if call[0] == "log"]
        self.assertEqual(steps, [3])

    def test_follow_waits_for_the_end_of_the_run(self):
        self.metrics.write_text(line(1))
        program = subprocess.Popen(self.command("--follow", "--seconds", "0.05"), env=self.environment())
        self.addCleanup(program.kill)
        with open(self.metrics, "a", encoding="utf-8") as file:
            for part in (line(2)[:9], line(2)[9:], line(3)):
                time.sleep(0.2)
                file.write(part)
                file.flush()
        self.assertIsNone(program.poll())
        (self.run_folder / "summary.json").write_text("{}")
        self.assertEqual(program.wait(timeout=20), 0)
        steps = [json.loads(call)[1] for call in self.calls.read_text().splitlines() if '"log"' in call]
        self.assertEqual(steps, [1, 2, 3])

    def test_follow_waits_for_a_resumed_run_without_a_new_step(self):
        config = self.run_folder / "config.json"
        self.metrics.write_text(line(1))
        (self.run_folder / "summary.json").write_text("{}")  # of the first part of the run
        config.write_text(config.read_text())  # a resumed run writes it when it starts
        os.utime(self.run_folder / "summary.json", (1, 1))
        os.utime(self.metrics, (1, 1))
        program = subprocess.Popen(self.command("--follow", "--seconds", "0.05"), env=self.environment())
        self.addCleanup(program.kill)
        with self.assertRaises(subprocess.TimeoutExpired):
            program.wait(timeout=2)
        with open(self.metrics, "a", encoding="utf-8") as file:
            file.write(line(2))
        (self.run_folder / "summary.json").write_text("{}")
        self.assertEqual(program.wait(timeout=20), 0)
        steps = [json.loads(call)[1] for call in self.calls.read_text().splitlines() if '"log"' in call]
        self.assertEqual(steps, [1, 2])

    def test_missing_parts_print_one_line(self):
        for remove, text in ((self.root / "modules/wandb.py", "pip install wandb"), (self.metrics, "has no metrics.jsonl")):
            self.metrics.write_text(line(1))
            remove.unlink()
            result = subprocess.run([self.command()[0], "-S", *self.command()[1:]], capture_output=True, text=True, check=False,
                                    env=self.environment())
            self.assertEqual(result.returncode, 1)
            self.assertIn(text, result.stderr)
            self.assertEqual(len(result.stderr.splitlines()), 1)


if __name__ == "__main__":
    run_cases()
