#!/usr/bin/env python3
"""Runs in difficult environments: variables of launchers without a launcher, slow file systems, files that shrink."""
import os
import subprocess
import time
import unittest

from program import AWKWARD_FILES, ENVIRONMENT, MPIRUN, command, metrics, scratch, write_tokens
from summary import run_cases



class Places(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("places")
        cls.data = write_tokens(cls.folder / "tokens", 131)

    def train(self, name, *flags, steps=2, **environment):
        arguments = ["train", "--model", "llama-tiny-odd", "--data", self.data, "--seq-len", 32, "--steps", steps, "--out",
                     self.folder / name, *flags]
        return subprocess.run(command(*arguments), capture_output=True, text=True, check=False, timeout=120,
                              env={**ENVIRONMENT, **environment})

    def refused(self, result, *words):
        lines = result.stderr.splitlines()
        self.assertEqual((2, 1), (result.returncode, len(lines)), result.stderr)
        for word in words:
            self.assertIn(word, lines[0])

    def test_an_error_of_one_rank_is_printed(self):
        self.refused(self.train("other", "--bogus-flag", 3, RANK="1", WORLD_SIZE="2"), "tessera: rank 1: ", "--bogus-flag")
        self.refused(self.train("other", RANK="1", WORLD_SIZE="2"), "tessera: rank 1: ", "torchrun started 2 processes")
        self.refused(self.train("other", RANK="5", WORLD_SIZE="4"), "tessera: RANK: expected a number in [0, 3], got '5'")
        self.refused(self.train("other", "--bogus-flag", 3, RANK="0", WORLD_SIZE="2"), "tessera: unknown flag --bogus-flag")
        self.assertFalse((self.folder / "other").exists())

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_leftover_variables_of_a_launcher_do_not_hide_errors(self):
        result = subprocess.run(command("train", "--model", "llama-tiny-odd", "--data", "/nonexistent", "--seq-len", 32, "--steps",
                                        2, "--backend", "mpi", "--out", self.folder / "left-over", mpi_ranks=2),
                                capture_output=True, text=True, check=False, timeout=120,
                                env={**ENVIRONMENT, "RANK": "1", "WORLD_SIZE": "2"})
        lines = [line for line in result.stderr.splitlines() if line.startswith("tessera:")]
        self.assertEqual((2, 1), (result.returncode, len(lines)), result.stderr)
        self.assertIn("/nonexistent", lines[0])

    def test_a_batch_script_of_slurm(self):
        result = self.train("batch", SLURM_PROCID="0", SLURM_NTASKS="8", SLURM_LOCALID="0")
        self.assertEqual(0, result.returncode, result.stderr)

    def test_removal_of_checkpoints_may_exceed_the_time_limit(self):
        result = self.train("slow", "--gtp", 2, "--save-every", 1, "--keep", 1, "--timeout-s", 1, steps=2,
                            LD_PRELOAD=str(AWKWARD_FILES), TESSERA_TEST_UNLINK_MS="1300")
        self.assertEqual(0, result.returncode, result.stderr)
        self.assertEqual(["step-00000002"], os.listdir(self.folder / "slow" / "checkpoints"))

    def test_a_file_system_without_locks(self):
        result = self.train("unlocked", LD_PRELOAD=str(AWKWARD_FILES), TESSERA_TEST_NO_LOCKS="1")
        self.assertEqual(0, result.returncode, result.stderr)
        self.assertIn("no locks", result.stdout)
        self.assertEqual(2, len(metrics(self.folder / "unlocked")))

    def test_data_that_shrinks(self):
        data, out = write_tokens(self.folder / "shrinking", 131), self.folder / "shrunk"
        arguments = ["train", "--model", "llama-tiny-odd", "--data", data, "--seq-len", 32, "--steps", 10**6, "--gtp", 4, "--out", out]
        with subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as job:
            try:
                for _ in range(300):
                    if (out / "metrics.jsonl").exists() and (out / "metrics.jsonl").stat().st_size:
                        break
                    time.sleep(0.1)
                os.truncate(f"{data}.bin", 0)
                _, said = job.communicate(timeout=60)
            finally:
                job.kill()
        self.assertEqual((1, 1), (job.returncode, len(said.splitlines())), said)
        self.assertIn(f"tessera: {data}.bin: cannot be accessed", said)


if __name__ == "__main__":
    run_cases()
