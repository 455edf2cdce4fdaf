#!/usr/bin/env python3
"""Evaluations during training: part of the samples, named held-out sets, before the first step, and evaluations that a stop
request or a crash ends. A resumed run repeats such an evaluation and gets the losses of a run without interruption."""
import contextlib
import json
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from program import ENVIRONMENT, TESSERA, metrics, run, scratch, tessera, write_tokens
from summary import run_cases

STEPS = 6
SETS = {"valid_loss", "valid_loss/code", "valid_loss/a.b_c-1"}


def losses(out):
    """Returns the step and the held-out losses of each line that has some."""
    found = [(line["step"], {key: value for key, value in line.items() if key.startswith("valid_loss")}) for line in metrics(out)]
    return [(step, of_step) for step, of_step in found if of_step]


def lines(out):
    keys = {"step", "loss", "grad_norm", "lr", "tokens"}
    return [{key: value for key, value in line.items() if key in keys or key.startswith("valid_loss")} for line in metrics(out)]


def summary(out):
    return json.loads((out / "summary.json").read_text())


class Job:
    """A run whose output goes to a file. It is killed at the end of the `with` block."""

    def __init__(self, out, *arguments):
        self.said = out.with_suffix(".txt")
        with self.said.open("w") as said:
            self.program = subprocess.Popen([TESSERA, "train", *map(str, arguments), "--out", str(out)], env=ENVIRONMENT,
                                            stdout=said, stderr=subprocess.STDOUT,
                                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            self.program.kill()
        self.program.wait()

    def output(self):
        return self.said.read_text()

    def wait_for(self, text, limit_s=120):
        end = time.monotonic() + limit_s
        while text not in self.output():
            if self.program.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"no '{text}' in: {self.output()}")
            time.sleep(0.01)

    def end(self, timeout=120):
        return self.program.wait(timeout)


class Evaluations(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("evaluations")
        cls.small = write_tokens(cls.folder / "small", 131, documents=31)
        cls.large = write_tokens(cls.folder / "large", 131, documents=700)
        cls.flags = ["--model", "llama-tiny-odd", "--data", write_tokens(cls.folder / "tokens", 131), "--global-batch", 12,
                     "--seq-len", 32, "--steps", STEPS, "--warmup-steps", 2, "--seed", 5]

    def train(self, name, *flags):
        out = self.folder / name
        return out, tessera("train", *self.flags, *flags, "--out", out)

    def test_part_of_the_samples_gives_the_same_bits_on_every_mesh(self):
        valid = ["--valid", self.small, "--eval-every", 2]
        whole, _ = self.train("all-samples", *valid)
        for rest in ((), ("--dp", 2), ("--tp", 2, "--sequence-parallel", "on")):
            wanted = None
            for gtp in (1, 2, 3):
                out, _ = self.train(f"samples-{len(rest)}-{rest[:1]}-{gtp}", *valid, "--eval-samples", 7, "--gtp", gtp, *rest)
                wanted = wanted or losses(out)
                self.assertEqual([2, 4, 6], [step for step, _ in losses(out)])
                self.assertEqual(wanted, losses(out), (rest, gtp))
            for (_, part), (_, all_samples) in zip(wanted[:2], losses(whole)):
                self.assertNotEqual(part, all_samples)
            self.assertAlmostEqual(losses(whole)[2][1]["valid_loss"], wanted[2][1]["valid_loss"], places=5)

    def test_named_sets_have_losses_of_their_own(self):
        other = write_tokens(self.folder / "other", 131, documents=9)
        sets = ["--valid", self.small, f"code={other}", "a.b_c-1=0.5", other, "0.5", self.small]
        out, said = self.train("named", *sets, "--eval-every", 3, "--eval-first", "on")
        self.assertEqual([0, 3, 6], [step for step, _ in losses(out)])
        for _, found in losses(out):
            self.assertEqual(SETS, set(found))
        for prefix, key in ((self.small, "valid_loss"), (other, "valid_loss/code")):
            alone, _ = self.train(key.replace("/", "-"), "--valid", prefix, "--eval-every", 3, "--eval-first", "on")
            self.assertEqual([found["valid_loss"] for _, found in losses(alone)], [found[key] for _, found in losses(out)])
        events = b"".join(path.read_bytes() for path in out.glob("events.*"))
        plot = tessera("plot", out)
        for key in SETS:
            self.assertEqual(losses(out)[-1][1][key], summary(out)[key])
            self.assertIn(key.encode(), events)
            name = key.removeprefix("valid_loss").replace("/", " of ")
            self.assertIn(f"held-out loss{name} {summary(out)[key]:.4f}", said)
            self.assertIn(f"held-out loss{name} {summary(out)[key]:.4f}", plot)

    def test_before_the_first_step(self):
        out, _ = self.train("first", "--valid", self.small, "--eval-first", "on")
        start = self.folder / "start"
        tessera("train", *self.flags[:-6], "--steps", 0, "--seed", 5, "--valid", self.small, "--out", start)
        self.assertEqual({"step", "valid_loss"}, set(metrics(out)[0]))
        self.assertEqual((0, summary(start)["valid_loss"]), (metrics(out)[0]["step"], metrics(out)[0]["valid_loss"]))
        self.assertEqual(STEPS + 1, len(metrics(out)))
        without, _ = self.train("not-first", "--valid", self.small)
        self.assertEqual(lines(without), lines(out)[1:])

    def test_a_repeated_name_is_refused(self):
        result = run("train", *self.flags, "--valid", f"x={self.small}", f"x={self.large}", "--out", self.folder / "twice")
        self.assertEqual((2, 1), (result.returncode, len(result.stderr.splitlines())), result.stderr)
        self.assertIn("--valid: set 'x' is given twice", result.stderr)
        self.assertFalse((self.folder / "twice").exists())

    def test_a_long_evaluation_names_the_flag(self):
        _, said = self.train("long", "--valid", self.large, "--eval-every", 2)
        advice = re.findall(r"the evaluation after step 2 took .* with --eval-samples (\d+) it would take about 2 %", said)
        self.assertEqual(1, len(advice), said)
        self.assertEqual(1, said.count("--eval-samples"))
        self.assertLess(said.index("step 2/6  loss"), said.index("step 2/6  valid_loss"))

    def check_interrupted(self, name, steps, begins, sent, *flags):
        """Ends the run twice in the evaluation that follows `steps` steps and the output `begins`. A run that receives SIGINT repeats
        this evaluation when it resumes, and ends in it again."""
        flags = ["--valid", self.large, f"code={self.small}", "--eval-every", 3, "--save-every", 2, "--gtp", 2, *flags]
        whole, said = self.train(f"{name}-whole", *flags)
        seconds = max(map(float, re.findall(r"  valid_loss .*  ([\d.]+) s$", said, re.M)))
        out, command = self.folder / name, [*self.flags, *flags]
        for attempt in range(2):
            with Job(out, *command) as job:
                job.wait_for("is repeated first" if attempt == 1 and sent == signal.SIGINT else begins)
                time.sleep(0.2 * seconds)
                job.program.send_signal(sent)
                code = job.end()
                self.assertEqual(0 if sent == signal.SIGINT else -sent, code, job.output())
                words = ["--resume", "latest", *flags]
                if sent == signal.SIGINT:
                    self.assertEqual((True, steps), (summary(out)["interrupted"], summary(out)["step"]), job.output())
                    words = shlex.split(job.output().splitlines()[-1])[2:]
                    self.assertEqual(["--resume", "latest", "--out", str(out)], words[:4])
                command = ["--resume", "latest", *words[4:]] if sent == signal.SIGINT else words
            self.assertNotIn(steps, [step for step, _ in losses(out)])
        said = tessera("train", *command, "--out", out)
        self.assertEqual(lines(whole), lines(out), said)
        for key in ("step", "valid_loss", "valid_loss/code", "interrupted"):
            self.assertEqual(summary(whole)[key], summary(out)[key])

    def test_a_stop_between_steps(self):
        self.check_interrupted("between", 3, f"step 3/{STEPS}  loss", signal.SIGINT)

    def test_a_stop_after_the_last_step(self):
        self.check_interrupted("last", STEPS, f"step {STEPS}/{STEPS}  loss", signal.SIGINT)

    def test_a_stop_before_the_first_step(self):
        self.check_interrupted("before", 0, "formats: ", signal.SIGINT, "--eval-first", "on")

    def test_a_crash(self):
        self.check_interrupted("crash", 3, f"step 3/{STEPS}  loss", signal.SIGKILL)


if __name__ == "__main__":
    run_cases()
