#!/usr/bin/env python3
"""Reads the listening sockets of ranks on GPUs for every way to start them, and disturbs the port of the store.

One GPU is enough. NCCL listens on loopback here (NCCL_SOCKET_IFNAME), so that no socket of a rank may be reachable from elsewhere.
TESSERA_STRANGER_SECONDS is the time for which a stranger disturbs a run.
"""
import os
import pathlib
import subprocess
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import gpu_ranks
from program import ENVIRONMENT, TESSERA, bits, command, metrics, scratch, write_tokens
import sockets  # after program, which sets the path
from summary import run_cases

if gpu_ranks.GPUS < 1:
    print("skipped: no GPU that the program can use")
    sys.exit(77)

STRANGER = pathlib.Path(TESSERA).parents[1] / "tests" / "stranger"
SECONDS = int(os.environ.get("TESSERA_STRANGER_SECONDS", "5"))
FOREVER = 10**6


def torchrun(rank, ranks, port):
    return {**gpu_ranks.torchrun_variables(rank, ranks, port), "MASTER_ADDR": "localhost", "TORCHELASTIC_RUN_ID": "a run"}


def hosts_sh(rank, ranks, port):
    """Returns the variables that tools/cluster/hosts.sh sets on one host. MASTER_ADDR is the name of the host."""
    return {**gpu_ranks.torchrun_variables(rank, ranks, port), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": os.uname().nodename,
            "TESSERA_RUN_ID": "0123456789abcdef0123456789abcdef"}


def srun(rank, ranks, port):
    return {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(ranks), "SLURM_LOCALID": str(rank % gpu_ranks.GPUS),
            "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_NODELIST": os.uname().nodename, "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "3",
            "MASTER_PORT": str(port)}


def mpirun(rank, ranks, port):
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(ranks), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % gpu_ranks.GPUS),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(ranks), "PMIX_NAMESPACE": "1554972673", "MASTER_PORT": str(port)}


class Ports(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("gpu-ports")
        cls.data = write_tokens(cls.folder / "tokens", 131)

    def flags(self, out, steps, ranks=2):
        return ["train", "--backend", "nccl", "--model", "llama-tiny-odd", "--data", self.data, "--seq-len", 64, "--global-batch", 8,
                "--seed", 7, "--dtype", "bf16", "--deterministic", "on", "--gtp", ranks, "--steps", steps, "--out", self.folder / out]

    def await_steps(self, out, runs, count=2):
        """Waits until the run has written `count` steps."""
        path = self.folder / out
        for _ in range(6000):
            if (path / "metrics.jsonl").exists() and len(metrics(path)) >= count:
                return
            self.assertTrue(runs(), f"{out} has ended")
            time.sleep(0.02)
        self.fail(f"{out}: fewer than {count} steps in two minutes")

    def stop(self, ranks):
        """Requests the end of a run, and expects that it ends well."""
        for program in ranks.programs:
            program.terminate()
        codes, errors = ranks.finish(timeout=120)
        self.assertEqual([0] * len(codes), codes, errors)

    def expect_loopback(self, pid, port):
        """Expects that only loopback reaches the process, and that it listens on the store's port if `port` is given."""
        found = sockets.listening(pid)
        self.assertEqual([], [address for address, _ in found if not address.is_loopback])
        if port is not None:
            self.assertIn(port, [number for _, number in found])

    def test_ranks_of_launchers_listen_on_loopback(self):
        for launcher in (gpu_ranks.torchrun_variables, torchrun, hosts_sh, srun, mpirun):
            with self.subTest(launcher=launcher.__name__):
                port, out = gpu_ranks.free_port(), launcher.__name__
                ranks = gpu_ranks.Ranks(2, *self.flags(out, FOREVER), launcher=launcher, port=port)
                try:
                    self.await_steps(out, ranks.all_run)
                    for rank, program in enumerate(ranks.programs):
                        self.expect_loopback(program.pid, port if rank == 0 else None)
                finally:
                    self.stop(ranks)

    def test_ranks_that_the_program_starts_listen_on_loopback(self):
        count = min(2, gpu_ranks.GPUS)
        line = command(*self.flags("own", FOREVER, count), "--ranks", count)
        job = subprocess.Popen(line, stdout=subprocess.DEVNULL, env={**ENVIRONMENT, "NCCL_SOCKET_IFNAME": "lo"})
        try:
            self.await_steps("own", lambda: job.poll() is None)
            children = sockets.children(job.pid)
            self.assertEqual(count, len(children))
            self.assertEqual([], sockets.listening(job.pid))
            for child in children:
                self.expect_loopback(child, None)
            self.assertGreater(len(sockets.listening(children[0])), 0)
        finally:
            job.terminate()
            self.assertEqual(0, job.wait(timeout=120))

    def test_a_second_run_on_the_port_is_refused(self):
        for launcher in (gpu_ranks.torchrun_variables, hosts_sh):
            with self.subTest(launcher=launcher.__name__):
                port, out = gpu_ranks.free_port(), f"first-{launcher.__name__}"
                first = gpu_ranks.Ranks(2, *self.flags(out, FOREVER), launcher=launcher, port=port)
                try:
                    self.await_steps(out, first.all_run)
                    second = gpu_ranks.Ranks(2, *self.flags("second", 2), "--timeout-s", 20, port=port)
                    codes, errors = second.finish(timeout=100)
                    self.assertEqual(2, codes[0], errors)
                    self.assertNotIn(0, codes)
                    for text in errors:
                        self.assertEqual(1, len(text.splitlines()), errors)
                        self.assertIn("MASTER_PORT", text)
                    self.assertFalse((self.folder / "second").exists())
                    self.await_steps(out, first.all_run, len(metrics(self.folder / out)) + 2)
                finally:
                    self.stop(first)

    def test_a_stranger_changes_nothing(self):
        """A stranger disturbs the port of the store as soon as rank 0 listens, and another one during the steps."""
        gpu_ranks.train(2, *self.flags("calm", 20)[3:])
        port = gpu_ranks.free_port()
        disturbed = gpu_ranks.Ranks(2, *self.flags("disturbed", 20), port=port)
        while disturbed.all_run() and port not in [number for _, number in sockets.listening(disturbed.programs[0].pid)]:
            time.sleep(0.01)
        stranger = subprocess.Popen([STRANGER, str(SECONDS), str(port)], stdout=subprocess.DEVNULL)
        codes, errors = disturbed.finish(timeout=300)
        self.assertEqual([0, 0], codes, errors)
        self.assertEqual(bits(self.folder / "calm"), bits(self.folder / "disturbed"))
        self.assertEqual(0, stranger.wait(), "the port accepted no connection of the stranger")

        ranks = gpu_ranks.Ranks(2, *self.flags("long", FOREVER), port=port)
        try:
            self.await_steps("long", ranks.all_run, 10)
            rank0 = ranks.programs[0].pid
            before = sockets.descriptors(rank0), sockets.resident_mib(rank0)
            stranger = subprocess.Popen([STRANGER, str(SECONDS), str(port)], stdout=subprocess.DEVNULL)
            while stranger.poll() is None:
                self.assertLessEqual(sockets.descriptors(rank0), before[0] + 2)  # a file may be open for a moment
                time.sleep(0.1)
            self.assertLess(sockets.resident_mib(rank0), before[1] + 64)
            self.await_steps("long", ranks.all_run, len(metrics(self.folder / "long")) + 2)
        finally:
            self.stop(ranks)


if __name__ == "__main__":
    run_cases()
