#!/usr/bin/env python3
"""Tests the server that forks the program for other tests: variables of a process, results, signals, time limits."""
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from fork_server import ForkServer
from program import ENVIRONMENT, FORK_SERVER, SERVER, TESSERA, scratch, write_tokens
from summary import run_cases

if SERVER is None:
    print("skipped: the preloaded library is not built")
    sys.exit(77)


class Forks(unittest.TestCase):
    def start(self, *words, **variables):
        self.errors = tempfile.TemporaryFile("w+")
        self.addCleanup(self.errors.close)
        with open(os.devnull, "wb") as nothing:
            return SERVER.start([TESSERA, *map(str, words)], nothing, self.errors, variables)

    def endless(self):
        folder = scratch("fork-server")
        return ("train", "--model", "llama-tiny-odd", "--data", write_tokens(folder / "tokens", 131), "--steps", 10**6, "--seq-len", 32,
                "--global-batch", 64, "--out", folder / "run")

    def test_variables_reach_only_their_process(self):
        train = ("train", "--model", "llama-tiny-odd", "--data", "missing", "--out", scratch("fork-server") / "none")
        for variables, expected in (({"RANK": "0", "WORLD_SIZE": "words"}, "WORLD_SIZE"), ({}, "missing")):
            self.assertEqual(2, self.start(*train, **variables).wait(60))
            self.errors.seek(0)
            text = self.errors.read()
            self.assertIn(expected, text)
            self.assertEqual(expected == "WORLD_SIZE", "WORLD_SIZE" in text)

    def test_a_killed_process_reports_its_signal(self):
        process = self.start(*self.endless())
        self.assertIsNone(process.poll())
        process.kill()
        self.assertEqual(-signal.SIGKILL, process.wait(60))
        self.assertEqual(-signal.SIGKILL, process.poll())
        process.kill()  # has no effect

    def test_processes_end_with_the_server(self):
        server = ForkServer(TESSERA, FORK_SERVER, ENVIRONMENT)
        self.addCleanup(server.folder.cleanup)
        with open(os.devnull, "wb") as nothing:
            process = server.start([TESSERA, *map(str, self.endless())], nothing, nothing)
        self.assertIsNone(process.poll())
        server.program.stdin.close()
        self.assertEqual(0, server.program.wait(10))
        end = time.monotonic() + 10
        while (runs := os.path.exists(f"/proc/{process.pid}/exe")) and time.monotonic() < end:
            time.sleep(0.05)
        if runs:
            os.kill(process.pid, signal.SIGKILL)
        self.assertFalse(runs, "the process runs without its server")
        for _ in range(2):
            with self.assertRaisesRegex(ConnectionError, "the fork server ended"):
                process.wait(10)
        process.connection.close()

    def test_a_time_limit_ends_the_process(self):
        with self.assertRaises(subprocess.TimeoutExpired):
            SERVER.run([TESSERA, *map(str, self.endless())], 0.2)


if __name__ == "__main__":
    run_cases()
