#!/usr/bin/env python3
"""Runs in difficult environments: variables of launchers without a launcher, slow file systems, files that shrink, ports, and a
standard output that is full, closed, or read slowly.

tests/gpu/test_gpu_ports.py reads the ports of ranks on GPUs, and tests/rendezvous disturbs the ports.
"""
import contextlib
import fcntl
import os
import pathlib
import socket
import subprocess
import tempfile
import time
import unittest

from program import (AWKWARD_FILES, ENVIRONMENT, MPIRUN, SERVER, bits, command, forked, metrics, scratch, starts_itself, tessera,
                     write_tokens)
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


class Command:
    """A running command. It writes its standard output to the file `output`, or has none."""

    def __init__(self, arguments, output):
        self.errors = tempfile.TemporaryFile()
        line = command(*arguments)
        if output is None:
            self.process = subprocess.Popen(["sh", "-c", 'exec "$@" >&-', "sh", *line], stderr=self.errors, env=ENVIRONMENT)
        elif SERVER and not starts_itself(line):
            self.process = SERVER.start(line, output, self.errors)
        else:
            self.process = subprocess.Popen(line, stdout=output, stderr=self.errors, env=ENVIRONMENT)

    def end(self):
        """Returns the exit code and standard error."""
        code = self.process.wait(120)
        with self.errors:
            self.errors.seek(0)
            return code, self.errors.read().decode()


class StandardOutput(unittest.TestCase):
    """Every command but `train` ends with code 1 and one line if its standard output is full or closed, and waits for a slow reader."""

    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("standard-output")
        cls.data = write_tokens(cls.folder / "tokens", 131)
        cls.train = ["train", "--model", "llama-tiny-odd", "--data", cls.data, "--seq-len", 32, "--global-batch", 4, "--gtp", 2,
                     "--steps", 3]
        cls.made = made = cls.folder / "run"
        tessera(*cls.train, "--out", made)
        small = ("--model", "llama-tiny-odd", "--seq-len", 16)
        # The arguments of each command, and a word of its output.
        cls.commands = [
            (["--help"], "usage: tessera"), (["--version"], "tessera "), (["train", "--help"], "--data"), (["plan", "--help"], "--search"),
            (["generate", made, "--prompt-ids", "1,2", "--tokens", 2], ","),
            (["generate", made, "--prompt-ids", "1,2", "--tokens", 2, "--json"], "prompt_ids"),
            (["evaluate", made, "--data", cls.data], "perplexity"), (["evaluate", made, "--data", cls.data, "--json"], "perplexity"),
            (["inspect", made], "embedding.weight"), (["inspect", cls.data, "--json"], "tokens"),
            (["inspect", "layout", "--model", "llama-tiny-odd"], "embedding.weight"),
            (["plan", *small, "--gtp", 2], "memory"), (["plan", *small, "--search", "--ranks", 2, "--global-batch", 4], "gtp"),
            (["plan", *small, "--json"], "memory"), (["plot", made], "loss"),
            (["resume-command", made, "--lost", "1"], ""), (["bench", "--help"], "schedule"),
            (["bench", "schedule", "--model", "llama-tiny-odd", "--seq-len", 16, "--gtp", 2], "")]

    def start_all(self, output):
        return [(arguments, Command(arguments, output)) for arguments, _ in self.commands]

    def check_all(self, started, reason):
        for arguments, running in started:
            with self.subTest(arguments):
                code, errors = running.end()
                self.assertEqual((1, 1), (code, errors.count("\n")), errors)
                self.assertRegex(errors, f"^tessera: standard output: {reason}: the output is incomplete")

    def convert(self, name, output):
        """The target of `convert` must not exist."""
        return ["convert"], Command(["convert", self.made, self.folder / name, "--json"], output)

    def test_a_full_disk(self):
        with open("/dev/full", "wb") as full:
            started = [*self.start_all(full), self.convert("full", full)]
        self.check_all(started, "No space left on device")

    def test_a_pipe_without_a_reader(self):
        read, write = os.pipe()
        os.close(read)
        with open(write, "wb") as pipe:
            started = [*self.start_all(pipe), self.convert("pipe", pipe)]
        self.check_all(started, "Broken pipe")

    def test_a_closed_output(self):
        """Also no file of the program gets the number of the closed stream, and with it the text. Forks of the server get a stream
        that cannot be written instead."""
        with open(os.devnull, "rb") as unwritable:
            started = self.start_all(unwritable)
        self.check_all([*started, (["--version"], Command(["--version"], None)), self.convert("closed", None)], "Bad file descriptor")
        tessera("convert", self.made, self.folder / "open")
        for file in (self.folder / "open").iterdir():
            self.assertEqual(file.read_bytes(), (self.folder / "closed" / file.name).read_bytes())

    def test_a_slow_reader(self):
        """The pipe is full when the command starts, and its writer does not block."""
        started = []
        for arguments, word in self.commands:
            read, write = os.pipe()
            os.set_blocking(write, False)
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(write, b"\0" * 4096)
            with open(write, "wb") as pipe:
                started.append((arguments, word, read, Command(arguments, pipe)))
        time.sleep(1)
        for arguments, word, read, running in started:
            with self.subTest(arguments):
                with open(read, "rb") as pipe:
                    output = pipe.read().decode().strip("\0")
                code, errors = running.end()
                self.assertIn(code, (0, 1) if arguments[0] == "resume-command" else (0,), errors)
                self.assertNotIn("standard output", errors)
                self.assertIn(word, output)
                self.assertGreater(len(output), 1)


class StandardOutputOfTrain(unittest.TestCase):
    """A run continues without its output."""

    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("standard-output-of-train")
        data = write_tokens(cls.folder / "tokens", 131)
        cls.train = ["train", "--model", "llama-tiny-odd", "--data", data, "--seq-len", 32, "--global-batch", 4, "--gtp", 2,
                     "--steps", 3]
        tessera(*cls.train, "--out", cls.folder / "whole")
        cls.expected = bits(cls.folder / "whole")

    def check(self, name, output, reason):
        out = self.folder / name
        code, errors = Command([*self.train, "--out", out], output).end()
        self.assertEqual(0, code, errors)
        self.assertEqual([f"tessera: standard output: {reason}: the run continues; its results are in the folder of --out"],
                         errors.splitlines())
        self.assertEqual(self.expected, bits(out))

    def test_a_full_disk(self):
        with open("/dev/full", "wb") as full:
            self.check("full", full, "No space left on device")

    def test_a_pipe_whose_reader_ends(self):
        read, write = os.pipe()
        os.close(read)
        with open(write, "wb") as pipe:
            self.check("pipe", pipe, "Broken pipe")

    def test_a_closed_output(self):
        self.check("closed", None, "Bad file descriptor")

    def test_a_reader_that_pauses_for_longer_than_the_time_limit(self):
        """As with Ctrl-S or a pager. The pipe is full when the run starts."""
        read, write = os.pipe()
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
        os.write(write, b"\0" * 4096)
        out = self.folder / "paused-reader"
        with open(read, "rb") as reader:
            with open(write, "wb") as pipe:
                running = Command([*self.train, "--timeout-s", 1, "--out", out], pipe)
            for _ in range(600):
                if (out / "summary.json").exists():
                    break
                time.sleep(0.1)
            self.assertEqual(self.expected, bits(out))
            output = reader.read().decode().strip("\0")
        self.assertEqual((0, ""), running.end())
        for word in ("step 1/3", "step 3/3", "checkpoint"):
            self.assertIn(word, output)

    def test_a_lost_terminal(self):
        """A write to a terminal that is gone fails with EIO. The messages are lost, but the run is not."""
        main, terminal = os.openpty()
        os.close(main)
        out = self.folder / "terminal"
        process = subprocess.run(forked(command(*self.train, "--out", out)), stdout=terminal, stderr=terminal, check=False, timeout=120)
        os.close(terminal)
        self.assertEqual(0, process.returncode)
        self.assertEqual(self.expected, bits(out))

    def test_a_full_standard_error(self):
        """A failed write of a message does not change the exit code."""
        with open("/dev/full", "wb") as full:
            for arguments, code in ((["train", "--frobnicate"], 2), (["frobnicate"], 2), ([], 2), (["--version"], 0)):
                line = forked(command(*arguments))
                self.assertEqual(code, subprocess.run(line, stdout=subprocess.DEVNULL, stderr=full, check=False, timeout=60).returncode)

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_a_pipe_after_mpirun_whose_reader_ends(self):
        """mpirun survives the end of its reader, as `mpirun ... tessera train | head -1` shows."""
        out = self.folder / "mpi"
        line = [MPIRUN, "-n", "2", *forked(command(*self.train, "--backend", "mpi", "--out", out))]
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as job:
            job.stdout.readline()
            job.stdout.close()
            errors = job.stderr.read().decode()
            code = job.wait(120)
        self.assertEqual(0, code, errors)
        self.assertEqual(self.expected, bits(out))


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
