#!/usr/bin/env python3
"""When a run saves and ends by the clock (--save-minutes, --stop-minutes), which checkpoints it keeps, and saves that fail."""
import json
import pathlib
import re
import subprocess
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from program import AWKWARD_FILES, ENVIRONMENT, MPIRUN, bits, command, metrics, run, scratch, tessera, write_tokens
from summary import run_cases


def saved(out):
    return sorted(int(path.name[5:]) for path in (out / "checkpoints").iterdir() if re.fullmatch(r"step-\d+", path.name))


def summary(out):
    return json.loads((out / "summary.json").read_text())


class Saves(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("saves")
        cls.flags = ["train", "--model", "llama-tiny-odd", "--data", write_tokens(cls.folder / "tokens", 131), "--seq-len", 32,
                     "--global-batch", 12, "--seed", 5, "--warmup-steps", 2, "--schedule-steps", 400]

    def call(self, *words, code=0, mpi_ranks=None, **variables):
        """Runs the program with the preloaded library, and checks its exit code. Returns its output and its seconds."""
        start = time.monotonic()
        result = subprocess.run(command(*words, mpi_ranks=mpi_ranks), capture_output=True, text=True, check=False, timeout=240,
                                env={**ENVIRONMENT, "LD_PRELOAD": str(AWKWARD_FILES), **variables})
        self.assertEqual(code, result.returncode, result.stdout + result.stderr)
        return result.stdout + result.stderr, time.monotonic() - start

    def test_saves_by_the_clock_on_several_ranks(self):
        """Only rank 0 looks at the clock, and all ranks save after the same step."""
        out = self.folder / "clock"
        tessera(*self.flags, "--steps", 40, "--gtp", 2, "--save-minutes", 0.002, "--out", out)
        steps = saved(out)
        self.assertGreater(len(steps), 2)
        times = {line["step"]: line["step_ms"] / 1000 for line in metrics(out)}
        for first, last in zip(steps, steps[1:-1]):
            self.assertGreater(sum(times[step] for step in range(first + 1, last + 1)), 0.06)
        whole = self.folder / "clock-whole"
        tessera(*self.flags, "--steps", 40, "--gtp", 2, "--out", whole)
        self.assertEqual(bits(whole), bits(out))

    def stop_and_compare(self, name, *launcher, mpi_ranks=None):
        """A save takes 1 s or more here, because each fsync takes 0.2 s."""
        out, limit_s = self.folder / name, 12
        said, took = self.call(*self.flags, "--steps", 4000, "--gtp", 2, *launcher, "--stop-minutes", limit_s / 60, "--out", out,
                               mpi_ranks=mpi_ranks, TESSERA_TEST_FSYNC_MS="200")
        step = summary(out)["step"]
        self.assertTrue(summary(out)["interrupted"], said)
        print(f"{name}: ended after {took:.1f} s, limit {limit_s} s, saved {saved(out)}")  # tests/run/deadlines_test.cpp checks times
        self.assertEqual(step, saved(out)[-1])
        self.assertIn(f"--stop-minutes {limit_s / 60}", said.splitlines()[-1] if not launcher else said)
        whole = self.folder / f"{name}-whole"
        tessera(*self.flags, "--steps", step, "--gtp", 2, "--out", whole)
        self.assertEqual(bits(whole), bits(out))

    def test_stops_before_a_limit(self):
        self.stop_and_compare("stop")

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_processes_stop_before_a_limit(self):
        self.stop_and_compare("stop-mpi", "--backend", "mpi", mpi_ranks=2)

    def check_failures(self, name, *launcher, mpi_ranks=None):
        """The disk is full for the saves of one step. The run has the bits of a run without failures."""
        out, whole = self.folder / name, self.folder / f"{name}-whole"
        flags = [*self.flags, "--steps", 5, "--save-every", 1, "--gtp", 3, *launcher]
        said, _ = self.call(*flags, "--out", whole, mpi_ranks=mpi_ranks)
        self.assertNotIn("warning", said)
        for step, code in ((2, 0), (5, 1)):
            run_of_step = out.with_name(f"{name}-{step}")
            full = f"step-0000000{step}.partial"
            said, _ = self.call(*flags, "--out", run_of_step, code=code, mpi_ranks=mpi_ranks, TESSERA_TEST_FULL=f"{full}:5")
            begin = "warning" if code == 0 else "tessera: the last checkpoint was not saved"
            self.assertRegex(said, rf"(?m)^{begin}: writing checkpoint .*{full}.*No space left on device")
            self.assertEqual(1 - code, said.count("the run tries again"), said)
            self.assertEqual([n for n in range(1, 6) if n != step], saved(run_of_step))
            self.assertFalse(list((run_of_step / "checkpoints").glob("*partial*")))
            self.assertEqual(1, summary(run_of_step)["failed_saves"])
            if code == 1:
                tessera("train", "--resume", "latest", "--backend", "local", "--out", run_of_step)
            self.assertEqual(bits(whole), bits(run_of_step))

    def test_a_failed_save_does_not_end_the_run(self):
        self.check_failures("failed")

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_processes_agree_on_a_failed_save(self):
        self.check_failures("failed-mpi", "--backend", "mpi", mpi_ranks=3)

    def test_failures_in_a_row_end_the_run(self):
        out = self.folder / "row"
        flags = [*self.flags, "--steps", 9, "--save-every", 1, "--gtp", 2]
        said, _ = self.call(*flags, "--out", out, code=1, TESSERA_TEST_FULL="part-00001:5")
        self.assertEqual(2, said.count("warning: writing"), said)
        self.assertIn("3 saves in a row failed (--save-failures)", said)
        self.assertEqual((3, []), (len(metrics(out)), saved(out)))
        said, _ = self.call(*flags, "--save-failures", 1, "--out", self.folder / "row-1", code=1, TESSERA_TEST_FULL="part-00001:5")
        self.assertEqual(1, len(metrics(self.folder / "row-1")), said)

    def test_a_file_system_that_is_read_only_for_a_while(self):
        out, switch = self.folder / "read-only", self.folder / "switch"
        flags = [*self.flags, "--steps", 20, "--save-every", 1, "--save-failures", 1000, "--gtp", 2]
        with subprocess.Popen(command(*flags, "--out", out), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**ENVIRONMENT, "LD_PRELOAD": str(AWKWARD_FILES), "TESSERA_TEST_READ_ONLY": str(switch)}) as job:
            said = ""
            for line in job.stdout:
                said += line
                if line.startswith("step 3/"):
                    switch.touch()
                elif line.startswith("warning") and "tries again" in line:
                    switch.unlink(missing_ok=True)
        self.assertEqual(0, job.returncode, said)
        self.assertIn("Read-only file system", said)
        self.assertIn(20, saved(out))
        self.assertEqual(20 - summary(out)["failed_saves"], len(saved(out)), said)
        self.assertLess(0, summary(out)["failed_saves"])

    def test_a_small_file_system(self):
        """The file system holds one checkpoint of 1.5 MB, so --keep 1 cannot save a second one."""
        out = self.folder / "small"
        out.mkdir()
        mounted = ["unshare", "-m", "sh", "-c", f"mount -t tmpfs -o size=2560k none {out} && \"$@\"; code=$?; ls {out}/run/checkpoints; "
                   "exit $code", "sh"]
        if subprocess.run([*mounted, "true"], capture_output=True, check=False).returncode not in (0, 2):
            self.skipTest("no file system can be mounted")
        flags = [*self.flags, "--steps", 4, "--gtp", 2, "--save-every", 1, "--keep", 1, "--out", out / "run"]
        done = subprocess.run([*mounted, *command(*flags, "--save-failures", 9)], capture_output=True, text=True, check=False,
                              env=ENVIRONMENT)
        said = done.stdout + done.stderr
        self.assertEqual(1, done.returncode, said)
        self.assertRegex(said, r"warning: .* has 2\.\d+ MB free, expected \d\.\d+ MB for 2 checkpoints \(--keep 1 and one more\)")
        self.assertIn("step 4/4", said)
        self.assertEqual(2, said.count("tries again"), said)
        self.assertIn("the last checkpoint was not saved", said)
        self.assertEqual("step-00000001", done.stdout.splitlines()[-1])

    def test_keeps_the_multiples_of_a_step(self):
        out = self.folder / "kept"
        tessera(*self.flags, "--steps", 11, "--save-every", 1, "--keep", 2, "--keep-every", 4, "--out", out)
        self.assertEqual([4, 8, 10, 11], saved(out))

    def test_minutes_that_are_not_positive_are_refused(self):
        for flag in ("--save-minutes", "--stop-minutes"):
            for value in ("0", "-1", "nan", "soon"):
                result = run(*self.flags, "--steps", 1, flag, value, "--out", self.folder / "refused")
                self.assertEqual((2, 1), (result.returncode, len(result.stderr.splitlines())), result.stderr)
                self.assertIn(f"{flag}: got", result.stderr)


if __name__ == "__main__":
    run_cases()
