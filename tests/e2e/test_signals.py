#!/usr/bin/env python3
"""A run that receives a stop signal saves its state. The printed command resumes it, with the bits of a whole run."""
import contextlib
import json
import os
import pathlib
import pty
import random
import shlex
import signal
import statistics
import subprocess
import time
import unittest

from program import (AWKWARD_FILES, ENVIRONMENT, MPIRUN, TESSERA, gpus, metrics, pause, programs_with, run, scratch, tessera,
                     write_tokens)
from summary import run_cases

FULL = os.environ.get("TESSERA_E2E") == "full"
SEED = int(os.environ.get("TESSERA_E2E_SEED") or time.time_ns() % 10**6)
MOMENTS = 20 if FULL else 6  # each run of the tests draws others
STEPS = 12
# The printed command starts the same number of ranks, also on machines with fewer cores.
PLACES = {**ENVIRONMENT, "OMPI_MCA_rmaps_base_oversubscribe": "1"}
RANKS = 2
PAUSE_LIMIT_S = 5


def setUpModule():
    """Restores SIGINT. A shell starts background processes with SIGINT ignored, and child processes inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_until(what, limit_s=60):
    end = time.monotonic() + limit_s
    while not (found := what()):
        if time.monotonic() > end:
            raise AssertionError(f"{what} was not true within {limit_s} s")
        time.sleep(0.01)
    return found


def changed(flags, *changes):
    """Returns the flags with changed values."""
    named = {str(name) for name in changes[::2]}
    kept = [word for pair in zip(flags[::2], flags[1::2]) if str(pair[0]) not in named for word in pair]
    return [*kept, *changes]


def catches_signals(pid):
    try:
        status = pathlib.Path("/proc", str(pid), "status").read_text()
    except OSError:
        return False
    caught = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt"))
    return caught >> (signal.SIGTERM - 1) & 1


def lines(out):
    keys = ("step", "loss", "grad_norm", "lr", "tokens", "valid_loss", "skipped")
    return [{key: line.get(key) for key in keys} for line in metrics(out)] if (out / "metrics.jsonl").exists() else []


def summary(out):
    return json.loads((out / "summary.json").read_text())


def parts(out, step):
    return {path.name: path.read_bytes() for path in sorted((out / "checkpoints" / f"step-{step:08}").glob("*.safetensors"))}


def run_printed(line):
    """Runs a command that the program printed. Without a launcher, a fork of the program runs it, which starts faster."""
    program, *arguments = shlex.split(line)
    if program == TESSERA:
        return run(*arguments, timeout=120)
    return subprocess.run([program, *arguments], capture_output=True, text=True, env=PLACES, check=False, timeout=120)


class RunEnded(AssertionError):
    """The run ended before the awaited event."""


class Job:
    """A run in progress. It is killed at the end of the `with` block."""

    def __init__(self, out, *arguments, mpi=False, **environment):
        self.out, self.mpi, self.output, self.errors = out, mpi, None, None
        launcher = [MPIRUN, "-n", str(RANKS)] if mpi else []
        self.program = subprocess.Popen([*launcher, TESSERA, "train", *map(str, arguments), "--out", str(out)], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**PLACES, **environment})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.program.poll() is None:
            self.program.kill()
        for pid in programs_with(self.out):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.program.communicate()

    def wait_until(self, what):
        def look():
            if self.program.poll() is not None:
                raise RunEnded(f"it ended with {self.end()}: {self.errors}")
            return what()
        return wait_until(look)

    def ranks(self):
        """Waits until all ranks handle signals, and returns their process ids."""
        count = RANKS if self.mpi else 1
        return self.wait_until(
            lambda: len(found := programs_with(self.out)) == count and all(map(catches_signals, found)) and found)

    def has_trained(self, steps):
        self.wait_until(lambda: len(lines(self.out)) >= steps)

    def has_begun(self):
        """Waits until the run is about to train or to load its checkpoint."""
        self.wait_until((self.out / "metrics.jsonl").exists)

    def end(self, timeout=60):
        """Waits for the end of the run and returns its exit code. Further calls return the same code."""
        if self.output is None:
            self.output, self.errors = self.program.communicate(timeout=timeout)
        return self.program.returncode


class Signals(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("signals")
        cls.flags = ["--model", "llama-tiny-odd", "--data", write_tokens(cls.folder / "tokens", 131), "--valid",
                     write_tokens(cls.folder / "valid", 131, documents=15), "--global-batch", 8, "--seq-len", 32, "--steps",
                     STEPS, "--warmup-steps", 3, "--seed", 5, "--gtp", RANKS, "--eval-every", 3, "--save-every", 4]
        cls.whole = cls.folder / "whole"
        tessera("train", *cls.flags, "--out", cls.whole)
        cls.step_seconds = statistics.median(line["step_ms"] for line in metrics(cls.whole)) / 1000
        cls.expected = lines(cls.whole), parts(cls.whole, STEPS)

    def resume_and_compare(self, job):
        """Checks the files of the stopped run and resumes it with the printed command. Returns the last step before the stop."""
        said = f"seed {SEED}: {job.output}{job.errors}"
        stopped = summary(job.out)
        step = stopped["step"]
        self.assertEqual(step, len(lines(job.out)), said)
        self.assertTrue(step == STEPS or stopped["interrupted"], said)
        self.assertEqual(f"step-{step:08}", max(path.name for path in (job.out / "checkpoints").iterdir()), said)
        if stopped["interrupted"]:  # after step STEPS: in the evaluation that follows it
            resumed = run_printed(job.output.splitlines()[-1])
            self.assertEqual(0, resumed.returncode, said + resumed.stdout + resumed.stderr)
            self.assertFalse(summary(job.out)["interrupted"])
            self.assertEqual(STEPS, step + summary(job.out)["trained_steps"], said)
        self.assertEqual(self.expected[0], lines(job.out), said)
        self.assertEqual(self.expected[1], parts(job.out, STEPS), said)
        return step

    def stop_at_random_moments(self, moments, name, targets, **how):
        chosen = random.Random(f"{SEED} {name}")
        stops = []
        for moment in range(moments):
            with Job(self.folder / f"{name}-{moment}", *self.flags, *(["--backend", "mpi"] if how else []), **how) as job:
                try:
                    ranks = job.ranks()
                    job.has_trained(chosen.randrange(STEPS - 1))
                    time.sleep(chosen.uniform(0, 1.5 * self.step_seconds))
                    for pid, sent in targets(chosen, job, ranks):
                        os.kill(pid, sent)
                except (RunEnded, ProcessLookupError):  # the run ended before the signal, on a busy machine
                    self.assertEqual(STEPS, len(lines(job.out)))
                self.assertEqual(0, job.end(), f"seed {SEED}: {job.output}{job.errors}")
                stops.append(self.resume_and_compare(job))
        print(f"{name}: stopped after steps {sorted(stops)}, seed {SEED}")
        self.assertTrue(any(step < STEPS for step in stops), stops)

    def test_threads_at_random_moments(self):
        self.stop_at_random_moments(MOMENTS, "local", lambda chosen, _, ranks: [
            (ranks[0], chosen.choice((signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)))])

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_mpi_processes_at_random_moments(self):
        """Signals one rank, all ranks, or mpirun with a signal that it forwards."""
        def targets(chosen, job, ranks):
            sent = chosen.choice((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
            return chosen.choice(([(chosen.choice(ranks), sent)], [(rank, sent) for rank in ranks],
                                  [(job.program.pid, signal.SIGUSR1)]))
        self.stop_at_random_moments(MOMENTS * 2 // 3, "mpi", targets, mpi=True)

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_sigterm_to_mpirun(self):
        """On SIGTERM mpirun sends SIGTERM to the ranks and kills them after 3 seconds. Its exit code is not 0."""
        with Job(self.folder / "mpirun", *self.flags, "--backend", "mpi", mpi=True,
                 OMPI_MCA_odls_base_sigkill_timeout="3") as job:
            job.ranks()
            job.has_trained(1)
            job.program.terminate()
            job.end()
            wait_until(lambda: not programs_with(job.out), 10)
            out = job.out
        with Job(out, "--resume", "latest", "--backend", "mpi", "--gtp", RANKS, "--eval-every", 3, "--save-every", 4,
                 mpi=True) as job:
            self.assertEqual(0, job.end(), job.errors)
        self.assertEqual(self.expected[0], lines(out))
        self.assertEqual(self.expected[1], parts(out, STEPS))

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_output_under_mpirun_has_no_control_codes(self):
        with Job(self.folder / "codes", *changed(self.flags, "--steps", 2, "--warmup-steps", 1), "--backend", "mpi", mpi=True) as job:
            self.assertEqual(0, job.end(), job.errors)
        self.assertIn("step 1/2", job.output)
        self.assertNotIn("\x1b", job.output)

    def test_while_a_checkpoint_is_written(self):
        """The step of the checkpoint is the last step. fsync takes 0.15 s in this test."""
        with Job(self.folder / "saving", *self.flags, LD_PRELOAD=str(AWKWARD_FILES), TESSERA_TEST_FSYNC_MS="150") as job:
            job.ranks()
            job.wait_until(lambda: list((job.out / "checkpoints").glob("*partial*")) if job.out.exists() else [])
            job.program.terminate()
            self.assertEqual(0, job.end())
            self.assertEqual(4, self.resume_and_compare(job))

    def test_while_a_run_evaluates(self):
        """The evaluation ends without a loss, and no further step starts. The evaluation takes as long as about 60 steps."""
        flags = changed(self.flags, "--valid", write_tokens(self.folder / "long", 131, documents=900))
        with Job(self.folder / "evaluating", *flags) as job:
            job.ranks()
            job.has_trained(2)
            time.sleep(8 * self.step_seconds)
            job.program.terminate()
            self.assertEqual(0, job.end())
            self.assertEqual(3, summary(job.out)["step"], job.output)
        self.assertIsNone(lines(job.out)[2]["valid_loss"])
        self.assertNotIn("valid_loss", summary(job.out))

    def test_in_the_first_step_and_before_it(self):
        for delay in (0, 0.02, 0.05):
            with self.subTest(delay), Job(self.folder / f"first-{delay}", *self.flags) as job:
                job.ranks()
                job.has_begun()
                time.sleep(delay)
                job.program.send_signal(signal.SIGINT)
                self.assertEqual(0, job.end())
                self.assertLess(self.resume_and_compare(job), STEPS)

    def test_a_run_stopped_before_its_first_step_saves_its_initial_state(self):
        with Job(self.folder / "early", *self.flags, LD_PRELOAD=str(AWKWARD_FILES), TESSERA_TEST_FLOCK_MS="500") as job:
            job.ranks()
            job.program.terminate()
            self.assertEqual(0, job.end())
            self.assertEqual(0, self.resume_and_compare(job))

    def test_repeated_signals_within_a_short_time_are_one_request(self):
        """`timeout`, for example, signals its child and then the group."""
        with Job(self.folder / "twice", *self.flags) as job:
            job.ranks()
            job.has_trained(1)
            for _ in range(5):
                job.program.terminate()
                time.sleep(0.03)
            self.assertEqual(0, job.end())
            self.assertEqual(1, job.errors.count("a second signal ends the run at once"), job.errors)
            self.assertLess(self.resume_and_compare(job), STEPS)

    def test_a_second_request_ends_a_long_step_at_once(self):
        with Job(self.folder / "second", *changed(self.flags, "--global-batch", 1000)) as job:
            job.ranks()
            job.has_trained(1)
            job.program.terminate()
            time.sleep(0.7)
            self.assertIsNone(job.program.poll())
            job.program.terminate()
            self.assertEqual(-signal.SIGTERM, job.end(timeout=2))

    def test_a_second_request_ends_a_saving_run_at_once(self):
        """fsync takes 1.5 s in this test. The checkpoints that were complete before can be resumed."""
        with Job(self.folder / "second-saving", *self.flags) as job:
            job.ranks()
            job.has_trained(5)
            job.program.terminate()
            self.assertEqual(0, job.end())
        step = summary(job.out)["step"]
        with Job(job.out, "--resume", "latest", "--eval-every", 3, LD_PRELOAD=str(AWKWARD_FILES),
                 TESSERA_TEST_FSYNC_MS="1500") as job:
            job.wait_until(lambda: list((job.out / "checkpoints").glob("*partial*")))
            job.program.send_signal(signal.SIGINT)
            time.sleep(0.7)
            self.assertIsNone(job.program.poll())
            job.program.send_signal(signal.SIGINT)
            self.assertEqual(-signal.SIGINT, job.end(timeout=2))
        self.assertEqual(f"step-{step:08}", max(path.name for path in (job.out / "checkpoints").iterdir() if "partial" not in path.name))
        tessera("train", "--resume", "latest", "--eval-every", 3, "--out", job.out)
        self.assertEqual(self.expected[0], lines(job.out))
        self.assertEqual(self.expected[1], parts(job.out, STEPS))

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_a_second_request_ends_all_ranks_at_once(self):
        with Job(self.folder / "second-mpi", *changed(self.flags, "--global-batch", 800), "--backend", "mpi", mpi=True) as job:
            ranks = job.ranks()
            job.has_trained(1)
            for wait in (0.7, 0):
                os.kill(ranks[0], signal.SIGTERM)
                time.sleep(wait)
            self.assertNotEqual(0, job.end(timeout=5))
            wait_until(lambda: not programs_with(job.out), 3)

    def test_an_ignored_signal_stays_ignored(self):
        """For example, a shell script starts background processes with SIGINT ignored, and nohup ignores SIGHUP."""
        for number in (signal.SIGINT, signal.SIGHUP):
            before = signal.signal(number, signal.SIG_IGN)
            try:
                with Job(self.folder / f"ignored-{number.name}", *changed(self.flags, "--steps", 4)) as job:
                    job.has_begun()
                    job.program.send_signal(number)
                    self.assertEqual(0, job.end())
            finally:
                signal.signal(number, before)
            self.assertEqual((4, False), (summary(job.out)["step"], summary(job.out)["interrupted"]))

    def test_a_terminal_that_closes(self):
        """The kernel sends SIGHUP to the run, and later writes to the terminal fail."""
        out = self.folder / "terminal"
        child, terminal = pty.fork()
        if child == 0:
            os.execv(TESSERA, [TESSERA, "train", *map(str, changed(self.flags, "--global-batch", 64)), "--out", str(out)])
        wait_until(lambda: len(lines(out)) >= 1)
        os.close(terminal)
        self.assertEqual(0, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        step = summary(out)["step"]
        self.assertLess(step, STEPS)
        self.assertEqual(step, len(lines(out)))
        self.assertTrue((out / "checkpoints" / f"step-{step:08}").exists())

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_ranks_that_the_launcher_ends_do_not_promise_to_save(self):
        """mpirun sends SIGTERM to the other ranks if one rank ends. They cannot save without that rank."""
        with Job(self.folder / "survivors", *changed(self.flags, "--global-batch", 800), "--backend", "mpi", mpi=True,
                 OMPI_MCA_odls_base_sigkill_timeout="2") as job:
            ranks = job.ranks()
            job.has_trained(1)
            own = [rank for rank in ranks if b"OMPI_COMM_WORLD_RANK=1\0" in pathlib.Path(f"/proc/{rank}/environ").read_bytes()]
            os.kill(own[0], signal.SIGKILL)
            self.assertNotEqual(0, job.end())
        self.assertNotIn("stopping after this step and saving", job.errors)
        for line in job.errors.splitlines():
            if "stop requested" in line:
                self.assertIn("if all ranks still run", line)

    def test_a_pause_longer_than_the_time_limit(self):
        """All processes of a run are stopped for more than twice the limit. The run has the bits of a run without a pause."""
        flags = [*changed(self.flags, "--global-batch", 32), "--timeout-s", PAUSE_LIMIT_S]
        with contextlib.ExitStack() as stack:
            local = stack.enter_context(Job(self.folder / "paused", *flags))
            jobs = [local]
            if MPIRUN:
                jobs.append(stack.enter_context(Job(self.folder / "paused-mpi", *flags, "--backend", "mpi", mpi=True)))
            for job in jobs:
                with contextlib.suppress(RunEnded):
                    job.has_trained(2)
            pause([*(job.program.pid for job in jobs[1:]), *(pid for job in jobs for pid in programs_with(job.out))],
                  2 * PAUSE_LIMIT_S + 1)
            for job in jobs:
                self.assertEqual(0, job.end(), job.errors)
        with Job(self.folder / "not-paused", *flags) as job:
            self.assertEqual(0, job.end(), job.errors)
        for paused in jobs:
            self.assertEqual((lines(job.out), parts(job.out, STEPS)), (lines(paused.out), parts(paused.out, STEPS)))

    def test_a_branch_that_was_stopped_before_its_first_step_resumes(self):
        """A run that starts from the checkpoint of another run saves a checkpoint in its own folder."""
        with Job(self.folder / "branch", "--resume", self.whole / "checkpoints" / "step-00000004", "--gtp", RANKS,
                 "--eval-every", 3, "--save-every", 4, LD_PRELOAD=str(AWKWARD_FILES), TESSERA_TEST_FLOCK_MS="500") as job:
            job.ranks()
            job.program.terminate()
            self.assertEqual(0, job.end())
            self.assertEqual(4, summary(job.out)["step"])
            resumed = subprocess.run(shlex.split(job.output.splitlines()[-1]), capture_output=True, text=True, check=False,
                                     env=PLACES, timeout=120)
            self.assertEqual(0, resumed.returncode, resumed.stderr)
        self.assertEqual(self.expected[0][4:], lines(job.out))
        self.assertEqual(self.expected[1], parts(job.out, STEPS))


@unittest.skipUnless(gpus(), "no GPU")
class GpuRanks(unittest.TestCase):
    """On GPUs one step is enqueued ahead. Ranks may share a GPU."""
    STEPS = 120

    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("gpu-signals")
        cls.flags = ["--model", "llama-tiny-odd", "--data", write_tokens(cls.folder / "tokens", 131), "--valid",
                     write_tokens(cls.folder / "valid", 131, documents=15), "--global-batch", 12, "--micro-batch", 3, "--seq-len", 64,
                     "--steps", cls.STEPS, "--warmup-steps", 3, "--deterministic", "on", "--backend", "nccl", "--eval-every", 30,
                     "--save-every", 40]

    def start(self, out, ranks, *flags):
        from gpu_ranks import Ranks
        return Ranks(ranks, "train", *self.flags, "--gtp", ranks, *flags, "--out", out)

    def finish(self, job, timeout=300):
        codes, errors = job.finish(timeout)
        self.assertEqual({0}, set(codes), f"seed {SEED}: {errors}")

    def test_ranks_that_share_a_gpu_stop_after_the_same_step(self):
        chosen = random.Random(f"{SEED} gpu")
        def begins(out):
            return (out / "metrics.jsonl").exists() and b"\n" in (out / "metrics.jsonl").read_bytes()

        for name, *flags in (("plain",), ("graph", "--cuda-graph", "on"), ("suppressed", "--debug-suppress", "50,51,70:2")):
            whole = self.folder / f"{name}-whole"
            job = self.start(whole, 2, *flags)
            wait_until(lambda: begins(whole))
            start = time.monotonic()
            self.finish(job)
            seconds, expected = time.monotonic() - start, (lines(whole), parts(whole, self.STEPS))
            stops = []
            for moment in range(2):
                out = self.folder / f"{name}-{moment}"
                job = self.start(out, 2, *flags)
                wait_until(lambda: begins(out))
                time.sleep(chosen.uniform(0, 0.8) * seconds)
                for program in chosen.choice((job.programs, job.programs[1:])):
                    program.terminate()
                self.finish(job)
                step = summary(out)["step"]
                stops.append(step)
                self.assertEqual(step, len(lines(out)), f"seed {SEED}")
                self.finish(self.start(out, 2, *flags, "--resume", "latest"))
                self.assertEqual(expected, (lines(out), parts(out, self.STEPS)), f"seed {SEED}, {name}, step {step}")
            print(f"{name}: stopped after steps {sorted(stops)}, seed {SEED}")
            self.assertTrue(any(0 < step < self.STEPS for step in stops), stops)

    def test_a_signal_of_a_terminal_is_one_request(self):
        """The terminal sends the signal to the whole group, and the first process forwards it: one request."""
        out = self.folder / "group"
        with Job(out, *self.flags) as job:
            job.has_trained(20)
            for pid in programs_with(out):
                os.kill(pid, signal.SIGINT)
            self.assertEqual(0, job.end(), job.errors)
            step = summary(out)["step"]
            self.assertTrue(0 < step < self.STEPS and summary(out)["interrupted"], job.output)
            resumed = subprocess.run(shlex.split(job.output.splitlines()[-1]), capture_output=True, text=True, check=False,
                                     env=PLACES, timeout=120)
            self.assertEqual(0, resumed.returncode, resumed.stderr)
            self.assertEqual(list(range(1, self.STEPS + 1)), [line["step"] for line in lines(out)])

    def test_a_signal_while_the_program_starts_its_rank(self):
        for delay in (0, 0.1, 0.3, 0.6, 1, 1.5):
            out = self.folder / f"begins-{delay}"
            with self.subTest(delay), Job(out, *self.flags) as job:
                job.wait_until(lambda: catches_signals(job.program.pid))
                time.sleep(delay)
                job.program.terminate()
                self.assertEqual(0, job.end(), job.errors)
                self.assertTrue(summary(out)["interrupted"])

    def test_a_second_request_ends_the_ranks(self):
        out = self.folder / "second"
        with Job(out, *changed(self.flags, "--global-batch", 600)) as job:
            job.has_trained(1)
            for wait in (0.7, 0):
                job.program.send_signal(signal.SIGINT)
                time.sleep(wait)
            self.assertEqual(128 + signal.SIGINT, job.end(timeout=5))
            wait_until(lambda: not programs_with(out), 1)


if __name__ == "__main__":
    run_cases()
