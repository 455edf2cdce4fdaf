#!/usr/bin/env python3
"""Tests the counts of `./run test`: a test that failed, crashed or did not run never counts as passed."""
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import unittest.mock

from summary import run_cases

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("runner", ROOT / "tools" / "run" / "test.py")
runner = importlib.util.module_from_spec(spec)
sys.modules["runner"] = runner
spec.loader.exec_module(runner)

GOOD = "[==========] 5 tests from 2 test suites ran. (3 ms total)\n[  PASSED  ] 5 tests.\n"
MIXED = ("[==========] 9 tests from 2 test suites ran. (3 ms total)\n[  PASSED  ] 5 tests.\n"
         "[  SKIPPED ] 1 test, listed below:\n[  FAILED  ] 3 tests, listed below:\n")


def case_of(status, output="", message=None):
    from xml.etree import ElementTree
    case = ElementTree.Element("testcase", status=status)
    ElementTree.SubElement(case, "system-out").text = output
    if message is not None:
        ElementTree.SubElement(case, "skipped", message=message)
    return case


class Order(unittest.TestCase):
    def started(self, seconds):
        names = []
        with unittest.mock.patch.object(runner, "run_script", lambda path, _: names.append(path.name) or runner.Count(passed=1)):
            for call in runner.script_calls(None, [], seconds):
                call()
        return names

    def test_long_scripts_start_first_in_a_fresh_clone(self):
        names = self.started({})
        self.assertEqual(set(runner.LONGEST_SCRIPTS), set(names[:len(runner.LONGEST_SCRIPTS)]))

    def test_the_seconds_of_the_last_run_decide(self):
        seconds = {path.name: number for number, path in enumerate(runner.script_paths())}
        self.assertEqual(sorted(seconds, key=seconds.get, reverse=True), self.started(dict(seconds)))


class Counting(unittest.TestCase):
    def check(self, count, passed, failed, skipped=0):
        self.assertEqual((count.passed, count.failed, count.skipped), (passed, failed, skipped))

    def test_gtest_cases_are_counted_one_by_one(self):
        self.check(runner.count_gtest(GOOD, True), 5, 0)
        self.check(runner.count_gtest(MIXED, False), 5, 3, 1)

    def test_a_binary_that_exits_with_an_error_has_failed(self):
        self.check(runner.count_gtest(GOOD, False), 4, 1)
        self.check(runner.count_gtest("[ RUN      ] A.b\n", False), 0, 1)

    def test_several_summaries_count_as_one_case(self):
        self.check(runner.count_gtest(GOOD + GOOD, True), 1, 0)
        self.check(runner.count_gtest(GOOD + GOOD, False), 0, 1)

    def test_an_entry_that_did_not_run_has_failed_unless_it_was_skipped(self):
        self.check(runner.count_case(case_of("notrun", message="Unable to find required file")), 0, 1)
        self.check(runner.count_case(case_of("notrun", message="SKIP_RETURN_CODE=77")), 0, 0, 1)
        self.check(runner.count_case(case_of("disabled")), 0, 0, 1)
        self.check(runner.count_case(case_of("fail", MIXED)), 5, 3, 1)
        self.check(runner.count_case(case_of("run", GOOD)), 5, 0)

    def test_scripts_are_counted_by_their_last_line(self):
        self.check(runner.count_script("x\n7 passed, 0 failed\n", 0), 7, 0)
        self.check(runner.count_script("7 passed, 2 failed, 1 skipped", 1), 7, 2, 1)
        self.check(runner.count_script("7 passed, 0 failed", 1), 7, 1)
        self.check(runner.count_script("", 0), 1, 0)
        self.check(runner.count_script("trace", 1), 0, 1)
        self.check(runner.count_script("skipped: why", 77), 0, 0, 1)
        self.check(runner.count_script("7 passed, 0 failed\nlate words", "none after 900 s"), 0, 1)

    def check_summary(self, line, body, code=None):
        script = "import unittest, sys\nsys.path.insert(0, sys.argv.pop(1))\nfrom summary import run_cases\n"
        script += textwrap.dedent(body) + "run_cases()\n"
        result = subprocess.run([sys.executable, "-c", script, ROOT / "tests" / "tools"], capture_output=True, text=True,
                                check=False)
        expected = int(", 0 failed" not in line) if code is None else code
        self.assertEqual((line, expected), (result.stdout.strip(), result.returncode), result.stderr)

    def test_subtests_count_as_one_case(self):
        self.check_summary("1 passed, 2 failed, 1 skipped", """
            class Parts(unittest.TestCase):
                def parts(self, *calls):
                    for i, call in enumerate(calls):
                        with self.subTest(i): call("parts")
                def test_good(self): self.parts(str, str)
                def test_failed(self): self.parts(self.fail, self.fail, str)
                def test_skipped(self): self.parts(self.skipTest, self.skipTest)
                def test_both(self): self.parts(self.skipTest, self.fail, str)
            """)

    def test_a_failure_of_a_class_does_not_reduce_the_passed_cases(self):
        class_and_another = """
            class Good(unittest.TestCase):
                def test_good(self): pass
            class Other(unittest.TestCase):
                @classmethod
                def {}(cls): raise {}("other")
                def test_one(self): pass
            """
        self.check_summary("1 passed, 1 failed", class_and_another.format("setUpClass", "OSError"))
        self.check_summary("2 passed, 1 failed", class_and_another.format("tearDownClass", "OSError"))
        self.check_summary("1 passed, 0 failed, 1 skipped", class_and_another.format("setUpClass", "unittest.SkipTest"))

    def test_a_script_may_skip_all_cases_but_must_have_one(self):
        self.check_summary("0 passed, 0 failed, 1 skipped", """
            class Other(unittest.TestCase):
                @classmethod
                def setUpClass(cls): raise unittest.SkipTest("all")
                def test_one(self): pass
            """)
        self.check_summary("0 passed, 0 failed", "class Empty(unittest.TestCase): pass\n", code=1)

    def test_an_unexpected_success_has_failed(self):
        self.check_summary("0 passed, 1 failed", """
            class Known(unittest.TestCase):
                @unittest.expectedFailure
                def test_mended(self): pass
            """)


class Commands(unittest.TestCase):
    def test_an_unknown_name_is_a_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(ROOT / "tools/run/test.py"), "--build", folder]
            ctest = pathlib.Path(folder) / "ctest"
            ctest.write_text("#!/bin/sh\necho '  Test #1: base'\n")
            ctest.chmod(0o755)
            (pathlib.Path(folder) / "CMakeCache.txt").write_text(f"CMAKE_CTEST_COMMAND:INTERNAL={ctest}\n")
            for names in (["unknown-name"], ["base", "test_schedule_svg.py", "unknown-name"],
                          ["--units-only", "base", "test_schedule_svg"]):
                result = subprocess.run([*command, *names], capture_output=True, text=True, check=False)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(f"there is no test named {names[-1]}", result.stderr)
                self.assertEqual(result.stdout.splitlines()[-1], "0 passed, 0 failed")

    def test_a_build_reports_missing_libraries(self):
        """`./run test --cuda` reads the same variable."""
        for found, missing in (("liba.so => /lib/liba.so\n", ""), ("liba.so => not found\nlibb.so => /lib/libb.so\n", "liba.so")):
            script = (f"source tools/run/common.sh; source tools/run/build.sh; ldd() {{ printf '{found}'; }};"
                      "say_missing_libraries tessera; echo \"missing: $MISSING_LIBRARIES\"")
            result = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
            lines = result.stdout.splitlines()
            self.assertEqual(f"missing: {missing}", lines[-1])
            self.assertEqual(bool(missing), "cannot run here: liba.so not found" in lines[0], lines)

    def test_run_refuses_unknown_commands_and_presets_with_exit_code_2(self):
        for arguments in (["nonsense"], ["build", "gpu"]):
            result = subprocess.run([str(ROOT / "run"), *arguments], capture_output=True, text=True, cwd="/", check=False)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(arguments[-1], result.stderr)


class Interrupted(unittest.TestCase):
    def test_a_signal_to_the_runner_ends_its_scripts(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number), tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                scripts = [folder / f"test_long_{i}.sh" for i in range(3)]
                for script in scripts:
                    script.write_text(f"sleep 61 & echo $! >> {folder}/started; wait\n")
                program = ("import pathlib, signal, sys; sys.path.insert(0, sys.argv[1]); import test as runner\n"
                           "signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup\n"
                           "runner.end_by_signals()\n"
                           "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for background processes\n"
                           "folder, *scripts = map(pathlib.Path, sys.argv[2:])\n"
                           "run = lambda script: lambda: runner.run_script(script, folder)\n"
                           "runner.run_together([run(script) for script in scripts], 2)\n")
                process = subprocess.Popen([sys.executable, "-c", program, ROOT / "tools" / "run", folder, *scripts],
                                           stderr=subprocess.DEVNULL)
                self.addCleanup(process.kill)
                started = []
                end = time.monotonic() + 60
                while len(started) < 2 and time.monotonic() < end:
                    time.sleep(0.05)
                    started = (folder / "started").read_text().split() if (folder / "started").exists() else []
                self.assertEqual(len(started), 2)
                process.send_signal(number)
                self.assertNotEqual(process.wait(20), 0)
                for pid in started:
                    self.assertRaises((ProcessLookupError, FileNotFoundError), self.find, int(pid))

    def test_sighup_stays_ignored_under_nohup(self):
        program = "import signal, sys; sys.path.insert(0, sys.argv[1]); import test as runner; runner.end_by_signals()\n"
        program += "print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, callable(signal.getsignal(signal.SIGTERM)))"
        result = subprocess.run(["nohup", sys.executable, "-c", program, ROOT / "tools" / "run"], capture_output=True, text=True,
                                check=True)
        self.assertEqual("True True", result.stdout.strip())

    def find(self, pid):
        """Raises if the process does not exist or is a zombie."""
        for _ in range(100):
            os.kill(pid, 0)
            if pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                raise ProcessLookupError
            time.sleep(0.02)


if __name__ == "__main__":
    run_cases()
