#!/usr/bin/env python3
"""Tests the server that forks the program for other tests, and its client: variables of a process, results, signals, time limits."""
import contextlib
import os
import pathlib
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
    def setUp(self):
        self.folder = scratch("fork-server")

    def start(self, *words, **variables):
        self.errors = tempfile.TemporaryFile("w+")
        self.addCleanup(self.errors.close)
        with open(os.devnull, "wb") as nothing:
            return SERVER.start([TESSERA, *map(str, words)], nothing, self.errors, variables)

    def run_of(self, steps):
        return ("train", "--model", "llama-tiny-odd", "--data", write_tokens(self.folder / "tokens", 131), "--steps", steps, "--seq-len", 32,
                "--global-batch", 64)

    def endless(self, out="run"):
        return (*self.run_of(10**6), "--out", self.folder / out)

    def test_variables_reach_only_their_process(self):
        train = ("train", "--model", "llama-tiny-odd", "--data", "missing", "--out", self.folder / "none")
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

    def ends(self, pid):
        """Returns whether the process ends within 10 s. Otherwise kills it."""
        end = time.monotonic() + 10
        while (runs := os.path.exists(f"/proc/{pid}/exe")) and time.monotonic() < end:
            time.sleep(0.05)
        if runs:
            os.kill(pid, signal.SIGKILL)
        return not runs

    def start_client(self, *words, **variables):
        client = subprocess.Popen(SERVER.command([TESSERA, *map(str, words)]), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  cwd=self.folder, env={**ENVIRONMENT, **variables})
        self.addCleanup(client.communicate)
        self.addCleanup(client.kill)
        return client

    def fork_of(self, client, out):
        """Waits until the run writes its metrics to `out`, and returns the process."""
        log = out / "metrics.jsonl"
        end = time.monotonic() + 60
        while client.poll() is None and time.monotonic() < end:
            for folder in pathlib.Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    if any(file.resolve() == log for file in (folder / "fd").iterdir()):
                        return int(folder.name)
            time.sleep(0.02)
        raise AssertionError(f"the run has no metrics after 60 s, or ended: {client.returncode}")

    def test_the_client_passes_variables_the_folder_and_the_result(self):
        client = self.start_client("train", "--model", "llama-tiny-odd", "--data", "missing", "--out", "none", RANK="0", WORLD_SIZE="words")
        self.assertIn("WORLD_SIZE", client.communicate(timeout=60)[1])
        self.assertEqual(2, client.returncode)
        client = self.start_client(*self.run_of(2), "--out", "here")
        output, errors = client.communicate(timeout=60)
        self.assertEqual(0, client.returncode, errors)
        self.assertIn("step 2/2", output)
        self.assertTrue((self.folder / "here" / "metrics.jsonl").exists())

    def test_the_client_passes_signals_and_its_end(self):
        # SIGTERM ends a run after its step, with code 0.
        for to_fork, number, code in ((False, signal.SIGTERM, 0), (False, signal.SIGKILL, -signal.SIGKILL), (True, signal.SIGKILL, -signal.SIGKILL)):
            out = f"run-{to_fork}-{number}"
            client = self.start_client(*self.endless(out))
            process = self.fork_of(client, self.folder / out)
            os.kill(process if to_fork else client.pid, number)
            self.assertEqual(code, client.wait(60), (to_fork, number))
            self.assertTrue(self.ends(process), "the fork runs without its client")

    def test_a_signal_at_the_start_of_the_client_is_not_lost(self):
        for delay in (0, 0.001, 0.002, 0.004, 0.008, 0.016, 0.1):
            client = self.start_client(*self.endless(f"run-{delay}"))
            time.sleep(delay)
            client.terminate()
            self.assertIn(client.wait(30), (0, -signal.SIGTERM), delay)

    def test_a_client_without_standard_input_ends_its_fork(self):
        line = SERVER.command([TESSERA, *map(str, self.endless("closed"))])
        client = subprocess.Popen(["sh", "-c", 'exec "$@" <&-', "sh", *line], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(client.kill)
        process = self.fork_of(client, self.folder / "closed")
        client.kill()
        client.wait(10)
        self.assertTrue(self.ends(process), "the fork runs without its client")

    def test_an_ignored_sigchld_does_not_hide_the_exit_code(self):
        handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            server = ForkServer(TESSERA, FORK_SERVER, ENVIRONMENT)
        finally:
            signal.signal(signal.SIGCHLD, handler)
        self.addCleanup(server.folder.cleanup)
        self.assertEqual(2, server.run([TESSERA, "trian"], 60).returncode)
        server.program.stdin.close()
        server.program.wait(10)

    def test_a_fork_has_one_copy_of_each_file(self):
        client = self.start_client(*self.endless("files"))
        process = self.fork_of(client, self.folder / "files")
        files = [os.readlink(file) for file in pathlib.Path(f"/proc/{process}/fd").iterdir()]
        for file in (1, 2):
            self.assertEqual(1, files.count(os.readlink(f"/proc/{client.pid}/fd/{file}")), files)

    def test_processes_end_with_the_server(self):
        server = ForkServer(TESSERA, FORK_SERVER, ENVIRONMENT)
        self.addCleanup(server.folder.cleanup)
        with open(os.devnull, "wb") as nothing:
            process = server.start([TESSERA, *map(str, self.endless())], nothing, nothing)
        self.assertIsNone(process.poll())
        server.program.stdin.close()
        self.assertEqual(0, server.program.wait(10))
        self.assertTrue(self.ends(process.pid), "the process runs without its server")
        for _ in range(2):
            with self.assertRaisesRegex(ConnectionError, "the fork server ended"):
                process.wait(10)
        process.connection.close()

    def test_a_time_limit_ends_the_process(self):
        with self.assertRaises(subprocess.TimeoutExpired):
            SERVER.run([TESSERA, *map(str, self.endless())], 0.2)


if __name__ == "__main__":
    run_cases()
