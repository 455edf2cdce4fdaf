#!/usr/bin/env python3
"""Runs in difficult environments: variables of launchers without a launcher, slow file systems, files that shrink, ports.

tests/gpu/test_gpu_ports.py reads the ports of ranks on GPUs, and tests/rendezvous disturbs the ports.
"""
import contextlib
import os
import pathlib
import socket
import subprocess
import time
import unittest

from program import AWKWARD_FILES, ENVIRONMENT, MPIRUN, command, metrics, scratch, write_tokens
import sockets  # after program, which sets the path
from summary import run_cases

# Open MPI's ranks then open no ports themselves.
WITHOUT_TCP = {**ENVIRONMENT, "OMPI_MCA_btl": "self,vader"}


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


class Ports(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("ports")
        cls.data = write_tokens(cls.folder / "tokens", 131)

    def watch(self, backend, ranks, mpi_ranks=None):
        """Runs until some steps are done. Returns the sockets on which ranks listened before the first step, and afterwards."""
        out, processes = self.folder / backend, mpi_ranks or 1
        line = command("train", "--model", "llama-tiny-odd", "--data", self.data, "--seq-len", 16, "--global-batch", 4, "--steps", 10**6,
                       "--gtp", ranks, "--backend", backend, "--out", out, mpi_ranks=mpi_ranks)
        before = set()
        with open(self.folder / f"{backend}.log", "w+", encoding="utf8") as log:
            job = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=log, env=WITHOUT_TCP)
            try:
                while not (out / "metrics.jsonl").exists() or len(metrics(out)) < 2:
                    self.assertIsNone(job.poll(), pathlib.Path(log.name).read_text())
                    before.update(found for rank in sockets.ranks_of(job.pid) for found in sockets.listening(rank))
                    time.sleep(0.004)
                running = sockets.ranks_of(job.pid)
                self.assertEqual(processes, len(running))
                return before, [found for rank in running for found in sockets.listening(rank)]
            finally:
                job.terminate()
                job.wait()

    def test_the_sockets_of_a_process_are_found(self):
        addresses = [("127.0.0.1", socket.AF_INET), ("0.0.0.0", socket.AF_INET)]
        addresses += [("::1", socket.AF_INET6)] if socket.has_dualstack_ipv6() else []
        with contextlib.ExitStack() as stack:
            servers = [stack.enter_context(socket.create_server((address, 0), family=family)) for address, family in addresses]
            names = [server.getsockname()[:2] for server in servers]
            found = [(str(address), port) for address, port in sockets.listening("self")]
        self.assertEqual(sorted(names), sorted(found))
        self.assertEqual([], sockets.listening("self"))

    def test_ranks_that_are_threads_do_not_listen(self):
        self.assertEqual((set(), []), self.watch("local", 2))

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_ranks_of_mpirun_listen_only_on_loopback_and_only_at_the_start(self):
        before, during = self.watch("mpi", 2, mpi_ranks=2)
        self.assertEqual([], [found for found in before if not found[0].is_loopback])
        self.assertEqual([], during)


if __name__ == "__main__":
    run_cases()
