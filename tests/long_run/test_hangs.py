#!/usr/bin/env python3
"""Stops each rank of a run in turn. The first line of the run's errors names this rank. SIGUSR2 shows what each rank does."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from program import AWKWARD_FILES, ENVIRONMENT, MPIRUN, command, metrics, programs_with, scratch, write_tokens
from summary import run_cases

RANKS, LIMIT_S = 4, 5
MESH = ["--tp", 2, "--gtp", 2, "--backend", "mpi"]


def rank_of(pid):
    return int(re.search(rb"\0OMPI_COMM_WORLD_RANK=(\d+)", b"\0" + pathlib.Path("/proc", str(pid), "environ").read_bytes())[1])


class Job:
    """A run of several processes whose errors go to a file."""

    def __init__(self, out, *flags, launcher=RANKS, **variables):
        self.out, self.log = out, out.with_suffix(".log")
        with open(self.log, "w", encoding="utf8") as errors:
            self.job = subprocess.Popen(command("train", *flags, "--out", out, mpi_ranks=launcher), stdout=errors, stderr=errors,
                                        env={**ENVIRONMENT, **variables})

    def said(self):
        return self.log.read_text(errors="replace")

    def wait_until(self, what, limit_s=120):
        end = time.monotonic() + limit_s
        while not what():
            if self.job.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"the run has not reached its state: {self.said()}")
            time.sleep(0.01)

    def wait_for_step(self, step):
        self.wait_until(lambda: (self.out / "metrics.jsonl").exists() and len(metrics(self.out)) >= step)

    def ranks(self):
        return {rank_of(pid): pid for pid in programs_with(self.out)}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pids = programs_with(self.out)
        self.job.kill()
        self.job.wait()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@unittest.skipUnless(MPIRUN, "no mpirun")
class Hangs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("hangs")
        cls.tokens = write_tokens(cls.folder / "tokens", 131)
        cls.valid = write_tokens(cls.folder / "valid", 131, 1500)
        cls.flags = ["--model", "llama-tiny-odd", "--data", cls.tokens, "--seq-len", 32, "--global-batch", 12, "--timeout-s", LIMIT_S,
                     *MESH]

    def stop(self, rank, name, reached, phase, *flags, **variables):
        """Stops the rank when reached(job) returns. Returns the errors of the run."""
        out = self.folder / f"{name}-{rank}"
        with Job(out, *self.flags, *flags, **variables) as job:
            reached(job)
            os.kill(job.ranks()[rank], signal.SIGSTOP)
            self.assertNotEqual(0, job.job.wait(timeout=LIMIT_S + 60))
        said = job.said()
        lines = [line for line in said.splitlines() if line.startswith("tessera: ")]
        self.assertTrue(lines, said)
        self.assertRegex(lines[0], rf"^tessera: rank {rank} hangs: ranks? .* time limit of {LIMIT_S}000 ms \(--timeout-s\); "
                         rf"rank {rank} \(host \S+, process \d+\) does not answer; its last report: step \d+, {phase} for \d+ s")
        written = json.loads((out / "resume-without.json").read_text())
        self.assertEqual(([rank], 3), (written["lost_ranks"], written["ranks"]))
        self.assertIn(f"\n  {written['command']}\n", said)
        logs = {int(path.stem[5:]): path.read_text() for path in (out / "logs").iterdir()}
        self.assertTrue(logs, said)
        self.assertNotIn(rank, logs)
        for other, text in logs.items():
            self.assertRegex(text, rf"(?m)^\d{{4}}-\d\d-\d\d \S+ tessera: rank {other}: .*time limit of")
        return said

    def each_rank(self, *arguments, **variables):
        for rank in range(RANKS):
            with self.subTest(rank=rank):
                self.stop(rank, *arguments, **variables)

    def test_in_a_step(self):
        self.each_rank("step", lambda job: job.wait_for_step(3), "(training|evaluation)", "--steps", 10**6)

    def test_in_an_evaluation(self):
        """The evaluation takes far longer than a step. The line of a step is printed before the evaluation."""
        def reached(job):
            job.wait_until(lambda: "step 1/" in job.said())
            time.sleep(0.5)  # the rank sends its phase
        self.each_rank("evaluation", reached, "evaluation", "--steps", 10**6,
                       "--valid", self.valid, "--eval-every", 1)

    def test_in_a_save(self):
        """A save takes several seconds, because each fsync takes 0.5 s."""
        def reached(job):
            job.wait_until(lambda: list((job.out / "checkpoints").glob("*.partial*")))
            time.sleep(0.4)  # the rank sends its phase
        self.each_rank("save", reached, "save", "--steps", 10**6, "--save-every", 2, LD_PRELOAD=str(AWKWARD_FILES),
                       TESSERA_TEST_FSYNC_MS="500")

    def test_at_the_end(self):
        """Rank 0 writes the summary for several seconds, while the others wait in the last barrier."""
        self.each_rank("end", lambda job: job.wait_until(lambda: (job.out / "checkpoints/step-00000002/manifest.json").exists()),
                       "(save|end)", "--steps", 2, LD_PRELOAD=str(AWKWARD_FILES), TESSERA_TEST_FSYNC_MS="1500")

    def test_a_table_on_request(self):
        """The run continues. mpirun sends the signal to all ranks, and there is one table."""
        out = self.folder / "table"
        with Job(out, *self.flags, "--steps", 10**6) as job:
            job.wait_for_step(20)
            for number, send in enumerate((lambda: job.job.send_signal(signal.SIGUSR2), lambda: os.kill(job.ranks()[3], signal.SIGUSR2)), 1):
                send()
                job.wait_until(lambda number=number: job.said().count("runs: step") >= number * RANKS)
                time.sleep(2.5)
            job.wait_for_step(len(metrics(out)) + 2)
            said = job.said()
        for rank in range(RANKS):
            self.assertEqual(2, len(re.findall(rf"(?m)^tessera: rank {rank} \(host \S+, process \d+\) runs: step \d+, training for \d+ s",
                                               said)), said)


class Threads(unittest.TestCase):
    def test_a_table_on_request(self):
        folder = scratch("hangs-threads")
        flags = ["--model", "llama-tiny-odd", "--data", write_tokens(folder / "tokens", 131), "--seq-len", 32, "--global-batch", 12,
                 "--gtp", 2, "--steps", 10**6]
        with Job(folder / "run", *flags, launcher=None) as job:
            job.wait_for_step(2)
            job.job.send_signal(signal.SIGUSR2)
            job.wait_until(lambda: "tessera: rank 1 (host" in job.said())
            self.assertRegex(job.said(), r"(?m)^tessera: rank 0 \(host \S+, process \d+\) runs: step \d+, training for \d+ s")
            job.wait_for_step(len(metrics(job.out)) + 2)


if __name__ == "__main__":
    run_cases()
