#!/usr/bin/env python3
"""Tests tools/run/jobs.py with jobs of the shell, and that gpu_tests.py lists every GPU test."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

from summary import run_cases

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools" / "run"))
import gpu_tests
import jobs


class Jobs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_jobs(self, text, *flags, gpus=""):
        """Returns the exit code, the lines of stdout, the log and stderr. `gpus` is the value of CUDA_VISIBLE_DEVICES."""
        log = self.folder / "jobs.log"
        done = subprocess.run([sys.executable, ROOT / "tools" / "run" / "jobs.py", "-", "--log", log, *map(str, flags)], input=text,
                              capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "CUDA_VISIBLE_DEVICES": gpus})
        return done.returncode, done.stdout.splitlines(), log.read_text() if log.exists() else "", done.stderr

    def test_the_exit_code_of_a_command_decides(self):
        code, lines, log, _ = self.run_jobs("a 9 1 echo one; true\n# a comment\n\nb 9 1 echo two; exit 3\nc 9 1 exit 77\n")
        self.assertEqual(1, code)
        self.assertEqual("1 passed, 1 failed, 1 skipped", lines[-1])
        self.assertRegex("\n".join(lines), r"a: passed \(.*\n(.*\n)?b: failed: code 3 \(")
        self.assertIn("    two", lines)
        self.assertNotIn("    one", lines)
        self.assertIn("$ echo one; true\none\n", log)

    def test_all_passed(self):
        code, lines, _, _ = self.run_jobs("a 9 1 true\nb 9 0 true\n")
        self.assertEqual((0, "2 passed, 0 failed, 0 skipped"), (code, lines[-1]))

    def test_a_command_is_killed_at_its_limit_with_its_processes(self):
        mark = self.folder / "mark"
        code, lines, log, _ = self.run_jobs(f"a 0.5 1 echo begun; (sleep 1; touch {mark}) & sleep 30\n")
        self.assertEqual(1, code)
        self.assertRegex(lines[0], r"a: failed: no end after [01] s")
        self.assertIn("begun", log)
        time.sleep(1)
        self.assertFalse(mark.exists())

    def test_jobs_have_gpus_of_their_own(self):
        show = f"printf '%s ' $CUDA_VISIBLE_DEVICES >>{self.folder}/gpus; sleep 0.5"
        _, lines, _, _ = self.run_jobs(f"a 9 1 {show}\nb 9 1 {show}\nc 9 2 {show}\n", "--gpus", 2)
        self.assertEqual("3 passed, 0 failed, 0 skipped", lines[-1])
        seen = (self.folder / "gpus").read_text().split()
        self.assertEqual((["0", "1"], "0,1"), (sorted(seen[:2]), seen[2]))
        seconds = [float(re.search(r"\((.*) s\)", line)[1]) for line in lines[:-1]]
        self.assertTrue(all(0.1 <= value < 5 for value in seconds), seconds)

    def test_jobs_that_passed_before_are_left_out(self):
        self.run_jobs("a 9 1 true\nb 9 1 false\nc 9 1 exit 77\n")
        earlier = self.folder / "earlier.log"
        (self.folder / "jobs.log").rename(earlier)
        code, lines, log, _ = self.run_jobs("a 9 1 false\nb 9 1 true\nc 9 1 true\nd 9 1 true\n", "--not-passed-in", earlier, earlier)
        self.assertEqual((0, "3 passed, 0 failed, 0 skipped"), (code, lines[-1]))
        self.assertEqual(["b", "c", "d"], re.findall(r"(?m)^==== (\w+):", log))
        code, lines, _, _ = self.run_jobs("a 9 1 false\n", "--not-passed-in", earlier)
        self.assertEqual((0, ["0 passed, 0 failed, 0 skipped"]), (code, lines))
        code, _, _, errors = self.run_jobs("a 9 1 true\n", "--not-passed-in", self.folder / "missing.log")
        self.assertEqual(1, code)
        self.assertIn("missing.log", errors)

    def test_the_first_jobs_start_before_the_others(self):
        _, _, log, _ = self.run_jobs("a 9 1 true\nb1 9 1 true\nc 9 1 true\nb2 9 1 true\n", "--first", "^b")
        self.assertEqual(["b1", "b2", "a", "c"], re.findall(r"(?m)^==== (\w+):", log))

    def test_jobs_share_the_listed_gpus(self):
        show = f"echo $CUDA_VISIBLE_DEVICES >>{self.folder}/gpus; sleep 0.3"
        _, lines, _, _ = self.run_jobs(f"a 9 1 {show}\nb 9 1 {show}\n", "--gpus", 2, gpus="5,GPU-7")
        self.assertEqual("2 passed, 0 failed, 0 skipped", lines[-1])
        self.assertEqual(["5", "GPU-7"], sorted((self.folder / "gpus").read_text().split()))
        _, lines, _, _ = self.run_jobs("a 9 2 true\n", "--gpus", 1, gpus="5,GPU-7")
        self.assertEqual("0 passed, 0 failed, 1 skipped", lines[-1])
        self.assertIn("--gpus: got -1, expected 0 or more", self.run_jobs("a 9 1 true\n", "--gpus", -1, gpus="5,GPU-7")[3])
        code, lines, _, errors = self.run_jobs("a 9 1 true\n", "--gpus", 3, gpus="5,GPU-7")
        self.assertEqual((1, []), (code, lines))
        self.assertIn("--gpus: got 3, expected at most the GPUs of CUDA_VISIBLE_DEVICES=5,GPU-7", errors)

    def test_processes_that_a_command_leaves_behind_are_killed(self):
        mark = self.folder / "mark"
        _, lines, _, _ = self.run_jobs(f"a 9 1 (sleep 1; touch {mark}) >&- 2>&- &\n")
        self.assertEqual("1 passed, 0 failed, 0 skipped", lines[-1])
        time.sleep(1.2)
        self.assertFalse(mark.exists())

    def test_a_job_without_gpus_runs_alone(self):
        def busy(name):
            return f"[ ! -e {self.folder}/{name} ] || exit 1; touch {self.folder}/{name}; sleep 0.4; rm {self.folder}/{name}"
        _, lines, _, _ = self.run_jobs(f"a 9 1 {busy('x')}\nb 9 0 {busy('x')}\nc 9 1 {busy('x')}\n", "--gpus", 2)
        self.assertEqual("3 passed, 0 failed, 0 skipped", lines[-1])

    def test_jobs_without_time_or_gpus_do_not_start(self):
        code, lines, _, _ = self.run_jobs("a 9 1 sleep 9\nb 9 1 true\nc 9 4 true\n", "--seconds", 0.5)
        self.assertEqual(1, code)
        self.assertEqual("0 passed, 1 failed, 2 skipped", lines[-1])
        self.assertIn("b: not started (0.0 s)", lines)
        self.assertEqual("c: not started (0.0 s)", lines[0])
        code, lines, _, _ = self.run_jobs("a 9 1 true\nc 9 4 true\n")
        self.assertEqual((1, "1 passed, 0 failed, 1 skipped"), (code, lines[-1]))

    def test_only_selects_by_name(self):
        code, lines, _, _ = self.run_jobs("a.x 9 1 false\nb.x 9 1 true\n", "--only", r"^b\.")
        self.assertEqual((0, "1 passed, 0 failed, 0 skipped"), (code, lines[-1]))

    def test_bad_lines_are_refused(self):
        for text, message in (("a 9 1\n", "-:1: expected NAME LIMIT_S GPUS COMMAND, got 'a 9 1'"),
                              ("a 9 1 true\n\na 9 1 true\n", "-:3: expected names that differ, got 'a' twice"),
                              ("a x 1 true\n", "expected NAME LIMIT_S GPUS COMMAND"),
                              ("a/b 9 1 true\n", "expected a name of letters"), ("a 0 1 true\n", "a limit above 0"),
                              ("a 9 -1 true\n", "a number of GPUs"), ("", "has no job whose name contains ''")):
            with self.subTest(text):
                code, lines, log, errors = self.run_jobs(text)
                self.assertEqual((1, [], ""), (code, lines, log))
                self.assertIn(message, errors)


class GpuTests(unittest.TestCase):
    """gpu_tests.py lists every GPU test, with the limits that it defines."""

    def setUp(self):
        self.jobs = jobs.parse_jobs("\n".join(gpu_tests.jobs()), "gpu_tests.py")

    def test_every_script_for_gpus_is_listed(self):
        scripts = {f"gpu/{path.name}" for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
        scripts |= {f"e2e/{path.name}" for path in (ROOT / "tests" / "e2e").glob("test_*.py") if "gpu_ranks" in path.read_text()}
        self.assertEqual(scripts, set(gpu_tests.SCRIPTS))

    def test_each_script_has_jobs(self):
        for script in gpu_tests.SCRIPTS:
            self.assertTrue(any(f"tests/{script} " in job.command for job in self.jobs), script)

    def test_special_limits_and_gpus_name_jobs(self):
        names = {job.name for job in self.jobs}
        self.assertLessEqual(set(gpu_tests.LIMITS_S) | set(gpu_tests.GPUS), names)
        self.assertGreater(len(names), 80)


if __name__ == "__main__":
    run_cases()
