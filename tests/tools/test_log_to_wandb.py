#!/usr/bin/env python3
"""Tests python/log_to_wandb.py with a module that imitates wandb, and with the real package where it is installed.

The imitation follows the documentation of wandb.Run: `step` is the step of the next call of log(), a resumed run continues after
its last step, and log() ignores a step below the current one. $WANDB_PYTHON is an interpreter with the package
(`pip install wandb` in a separate environment); the default is the current Python. Without a server, the real package ignores
`resume`, so only the imitation shows later calls.
"""
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
WANDB_PYTHON = os.environ.get("WANDB_PYTHON", sys.executable)
HAS_WANDB = subprocess.run([WANDB_PYTHON, "-c", "import wandb"], capture_output=True, check=False).returncode == 0
# The file $CALLS holds all calls of the program, and HISTORY the values that the server has after all programs so far.
IMITATION = """import json, os
CALLS, HISTORY = os.environ["CALLS"], os.environ["CALLS"] + ".history"
def append(path, value):
    with open(path, "a") as file: file.write(json.dumps(value) + "\\n")
class Run:
    def __init__(self):
        steps = [json.loads(line)[0] for line in open(HISTORY)] if os.path.exists(HISTORY) else []
        self.step = max(steps) + 1 if steps else 0
    def log(self, values, step):
        append(CALLS, ["log", step, {key: repr(value) for key, value in values.items()}])
        if step < self.step: return
        append(HISTORY, [step, values])
        self.step = step
    def finish(self): append(CALLS, ["finish"])
def init(**options):
    append(CALLS, ["init", options])
    return Run()
"""
# Prints the steps with their losses that the real package has stored in the folder. Its file has LevelDB's log format: blocks of
# 32 KiB, and records with a checksum, a length and a type (1: whole, 4: last part).
READ_STORED = """import json, pathlib, struct, sys
from wandb.proto import wandb_internal_pb2
data, at, held = next(pathlib.Path(sys.argv[1]).rglob("*.wandb")).read_bytes(), 7, b""
while at + 7 <= len(data):
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
        continue
    _, size, kind = struct.unpack_from("<IHB", data, at)
    held += data[at + 7:at + 7 + size]
    at += 7 + size
    if kind not in (1, 4): continue
    record = wandb_internal_pb2.Record.FromString(held)
    held = b""
    values = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
    if values: print(json.dumps([values["_step"], values["loss"]]))
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

    def history(self):
        return [json.loads(line)[0] for line in pathlib.Path(f"{self.calls}.history").read_text().splitlines()]

    def test_later_calls_copy_the_steps_that_are_missing(self):
        copied = []
        for last in (3, 6, 6, 8):
            self.metrics.write_text("".join(line(step) for step in range(1, last + 1)))
            copied.append([call[1] for call in self.called() if call[0] == "log"])
        self.assertEqual([[1, 2, 3], [4, 5, 6], [], [7, 8]], copied)
        self.assertEqual(list(range(1, 9)), self.history())

    def test_a_call_after_a_call_without_steps_copies_all(self):
        self.metrics.write_text("")
        self.called()
        self.metrics.write_text(line(1) + line(2))
        self.called()
        self.assertEqual([1, 2], self.history())

    def test_follow_reads_the_file_of_a_resumed_run_that_removed_lines(self):
        self.metrics.write_text("".join(line(step) for step in (1, 2, 3)))
        program = subprocess.Popen(self.command("--follow", "--seconds", "0.05"), env=self.environment())
        self.addCleanup(program.kill)
        while not self.calls.exists() or len(self.calls.read_text().splitlines()) < 4:
            time.sleep(0.02)
        new = self.run_folder / "new"
        new.write_text("".join(line(step) for step in (1, 2, 3, 4)))
        new.rename(self.metrics)
        with open(self.metrics, "a", encoding="utf-8") as file:
            file.write(line(5))
        (self.run_folder / "summary.json").write_text("{}")
        self.assertEqual(program.wait(timeout=20), 0)
        self.assertEqual([1, 2, 3, 4, 5], self.history())

    @unittest.skipUnless(HAS_WANDB, f"{WANDB_PYTHON} has no wandb")
    def test_the_real_package_stores_each_step(self):
        self.metrics.write_text("".join(line(step, grad_norm="NaN") for step in (1, 2, 3)))
        environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": str(self.root), "WANDB_SILENT": "true"}
        subprocess.run([WANDB_PYTHON, *self.command()[1:]], check=True, capture_output=True, env=environment, timeout=300)
        stored = subprocess.run([WANDB_PYTHON, "-c", READ_STORED, str(self.root)], check=True, capture_output=True, text=True)
        self.assertEqual([[1, 4.5], [2, 3.5], [3, 2.5]], [json.loads(values) for values in stored.stdout.splitlines()])

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
