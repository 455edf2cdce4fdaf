#!/usr/bin/env python3
"""Kills a rank in the middle of a run. The printed command continues the run without this rank."""
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import time
import unittest

from program import ENVIRONMENT, MPIRUN, command, gpus, metrics, run, scratch, tessera, write_tokens
from summary import run_cases

STEPS, SAVE_EVERY = 14, 3
# The printed command also runs on machines with fewer cores than ranks.
OVERSUBSCRIBED = {**ENVIRONMENT, "OMPI_MCA_rmaps_base_oversubscribe": "1"}
# The time until mpirun kills the remaining ranks. Its default is 1 s, which may be too short on a busy machine.
KILLED_AFTER = {**ENVIRONMENT, "OMPI_MCA_odls_base_sigkill_timeout": "4"}


def process_of(rank, word):
    """Returns the process of tessera with this MPI rank whose command line contains the word."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            folder = pathlib.Path("/proc", pid)
            words = folder.joinpath("cmdline").read_bytes().split(b"\0")
            is_rank = f"OMPI_COMM_WORLD_RANK={rank}".encode() in folder.joinpath("environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if is_rank and words[0].endswith(b"tessera") and str(word).encode() in words:
            return int(pid)
    raise AssertionError(f"found no process of rank {rank}")


class LostRanks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("lost-ranks")
        cls.data = write_tokens(cls.folder / "tokens", 131)

    def flags(self, *more):
        return ["train", "--model", "llama-tiny-odd", "--data", self.data, "--seq-len", 16, "--seed", 5, "--lr", 3e-3, "--dtype",
                "fp64", "--steps", STEPS, "--global-batch", 12, "--tp", 2, "--gtp", 2, "--dp", 2, *more]

    def kill_in_the_middle(self, out, line):
        """Starts the run and kills rank 5 after the first checkpoint. Returns the run's stderr."""
        log = self.folder / f"{out.name}.log"
        with open(log, "w", encoding="utf8") as errors:
            job = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=errors, env=KILLED_AFTER)
            try:
                for _ in range(1200):
                    if (out / "metrics.jsonl").exists() and len(metrics(out)) > SAVE_EVERY:
                        break
                    self.assertIsNone(job.poll(), log.read_text())
                    time.sleep(0.05)
                os.kill(process_of(5, out), signal.SIGKILL)
                self.assertNotEqual(0, job.wait(timeout=160))
            finally:
                job.kill()
        self.assertLess(len(metrics(out)), STEPS)
        return log.read_text(errors="replace")

    def expect_bounds_of_the_uniform_run(self, out):
        uniform = self.folder / "uniform"
        if not uniform.exists():
            tessera(*self.flags(), "--out", uniform)
        for ours, theirs in zip(metrics(out), metrics(uniform), strict=True):
            for value in ("loss", "grad_norm"):
                self.assertAlmostEqual(theirs[value], ours[value], delta=1e-9 * theirs[value], msg=f"{value}, step {ours['step']}")

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_the_printed_command_continues_without_a_killed_rank(self):
        out = self.folder / "killed"
        line = command(*self.flags("--backend", "mpi", "--save-every", SAVE_EVERY, "--timeout-s", 100), "--out", out, mpi_ranks=8)
        said = self.kill_in_the_middle(out, line)
        self.assertIn("tessera: rank 5 has ended during the run; dead places: dp1.gtp0:1", said)
        written = json.loads((out / "resume-without.json").read_text())
        self.assertEqual(({"dp1.gtp0": [1]}, [5], 7), (written["dead"], written["lost_ranks"], written["ranks"]))
        self.assertIn(written["command"], said)
        self.assertEqual(max((out / "checkpoints").glob("step-????????")), pathlib.Path(written["checkpoint"]))
        # The command is the same without the report of the run.
        (out / "resume-without.json").unlink()
        self.assertIn(written["command"].split(" --timeout-s")[0], tessera("resume-command", out, "--lost", 5))
        self.assertEqual(written["dead"], json.loads((out / "resume-without.json").read_text())["dead"])
        resumed = subprocess.run(shlex.split(written["command"]), capture_output=True, text=True, env=OVERSUBSCRIBED, check=False,
                                 timeout=300)
        self.assertEqual(0, resumed.returncode, written["command"] + resumed.stderr)
        self.assertIn(f"resuming from {written['checkpoint']} with step", resumed.stdout)
        self.assertIn("mesh of the command line: 7 ranks (tp 2 x gtp 2 x dp 2, dead dp1.gtp0:1)", resumed.stdout)
        self.assertFalse((out / "resume-without.json").exists())
        self.expect_bounds_of_the_uniform_run(out)
        for words, expected in ((("--lost", 7), "--lost: got rank 7, expected one below 7"), ((), "--lost is required"),
                                (("--lost", "x"), "--lost: got 'x'"), (("--lost", ""), "--lost: got ''")):
            refused = run("resume-command", out, *words)
            self.assertEqual((2, 1), (refused.returncode, len(refused.stderr.splitlines())), refused.stderr)
            self.assertIn(expected, refused.stderr)

    def test_the_command_has_the_settings_that_the_checkpoint_does_not_have(self):
        """A run that was resumed with other settings has not saved a checkpoint yet."""
        out = self.folder / "changed"
        tessera(*self.flags(), "--out", out)
        config = json.loads((out / "config.json").read_text())
        config["config"] |= {"steps": STEPS + 2, "save_every": 5, "zero": False, "lr": 1e-3}
        (out / "config.json").write_text(json.dumps(config))
        text = tessera("resume-command", out, "--lost", 5)
        words = shlex.split(text.splitlines()[-1])
        self.assertEqual("train --resume latest --out".split(), words[1:5])
        for flag, value in (("--steps", str(STEPS + 2)), ("--save-every", "5"), ("--zero", "off"), ("--lr", "0.001"), ("--dead", "dp1.gtp0:1")):
            self.assertEqual(value, words[words.index(flag) + 1], text)
        self.assertFalse({"--seed", "--model", "--data", "--global-batch"} & set(words), text)
        tessera(*words[1:])
        self.assertEqual(STEPS + 2, metrics(out)[-1]["step"])
        kept = json.loads((out / "config.json").read_text())["config"]
        self.assertEqual((STEPS + 2, 5, False, 1e-3), tuple(kept[key] for key in ("steps", "save_every", "zero", "lr")))

    def test_a_folder_without_a_run_is_refused(self):
        refused = run("resume-command", self.folder, "--lost", 0)
        self.assertEqual(2, refused.returncode)
        self.assertIn("expected the folder of a run", refused.stderr)

    def test_unused_places_under_the_variables_of_torchrun(self):
        """The process of an unused place ends before it uses a device, also without CUDA. test_ranks_on_gpus starts all ranks."""
        line = command(*self.flags("--backend", "nccl", "--dead", "dp0.gtp0:0", "--idle", "dp1.gtp0:1"), "--out", self.folder / "torchrun")
        for rank, place, why in ((0, "dp0.gtp0:0", "dead"), (5, "dp1.gtp0:1", "not used")):
            variables = {"RANK": str(rank), "WORLD_SIZE": "8", "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
            ended = subprocess.run(line, capture_output=True, text=True, check=False, env={**ENVIRONMENT, **variables}, timeout=60)
            self.assertEqual((0, f"tessera: process {rank} ends without work: place {place} is {why}\n", ""),
                             (ended.returncode, ended.stdout, ended.stderr))
        self.assertFalse((self.folder / "torchrun").exists())

    @unittest.skipUnless(gpus(), "no GPU")
    def test_ranks_on_gpus(self):
        """Ranks may share a GPU. Place 0 is dead from the start, then rank 2 is killed."""
        from gpu_ranks import Ranks
        out = self.folder / "gpus"
        flags = self.flags("--backend", "nccl", "--dead", "dp0:0", "--save-every", SAVE_EVERY, "--timeout-s", 20)
        flags[flags.index("--steps") + 1] = 2000
        flags[flags.index("--dtype") + 1] = "fp32"
        job = Ranks(8, *flags, "--out", out)
        for _ in range(2400):
            if (out / "metrics.jsonl").exists() and len(metrics(out)) > 2 * SAVE_EVERY:
                break
            time.sleep(0.05)
        job.programs[3].kill()  # the process of place 3 is rank 2
        codes, errors = job.finish(80)
        self.assertEqual(0, codes[0])
        self.assertIn("rank 2 has ended during the run; dead places: dp0.gtp0:0;dp0.gtp1:1", "".join(errors))
        written = json.loads((out / "resume-without.json").read_text())
        self.assertEqual({"dp0.gtp0": [0], "dp0.gtp1": [1]}, written["dead"])
        self.assertRegex(written["command"], "^torchrun --no-python --nproc-per-node 8 ")
        words = shlex.split(re.sub(".* train ", "train ", written["command"]))
        codes, errors = Ranks(8, *words, "--steps", 1 + len(metrics(out))).finish(300)
        self.assertEqual([0] * 8, codes, errors)


if __name__ == "__main__":
    run_cases()
