#!/usr/bin/env python3
"""Reads the listening sockets of runs on CPUs. tests/gpu/test_gpu_ports.py does this on GPUs, and tests/rendezvous disturbs the ports."""
import contextlib
import pathlib
import socket
import subprocess
import time
import unittest

import sockets
from program import ENVIRONMENT, MPIRUN, command, metrics, scratch, write_tokens
from summary import run_cases

# Open MPI's ranks then open no ports themselves.
WITHOUT_TCP = {**ENVIRONMENT, "OMPI_MCA_btl": "self,vader"}


def descendants(pid):
    """Returns the process and all processes that descend from it."""
    found = [pid]
    for parent in found:
        try:
            for task in pathlib.Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return found


def ranks_of(pid):
    """Returns the processes of tessera among the descendants of a process."""
    ranks = []
    for process in descendants(pid):
        try:
            if pathlib.Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[0].endswith(b"tessera"):
                ranks.append(process)
        except OSError:
            continue
    return ranks


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
                    before.update(found for rank in ranks_of(job.pid) for found in sockets.listening(rank))
                    time.sleep(0.004)
                running = ranks_of(job.pid)
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
