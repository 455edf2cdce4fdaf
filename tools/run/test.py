"""Runs every test of a build folder and counts the single cases. Called by `./run test`.

There are three kinds of parts; the output names each of them:
  units   the binaries in CTest's list. A GoogleTest binary counts its cases; any other entry counts one.
  scripts test_* in tests/tools, tests/e2e, tests/long_run, tests/golden and tests/gpu (.py or .sh, executable). Exit code 0: passed, 77:
          skipped, others: failed. If the last line is `N passed, N failed[, N skipped]`, these numbers count. $TESSERA is
          the program, $PYTHON the data tools' interpreter, and $TEST_TMP an empty folder of the script's own.
  lint    tools/lint/lint.py; each check counts one.
The last line is `N passed, N failed[, N skipped]`; the exit code is 0 only if a test ran and no test failed.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT_FOLDERS = ("tests/tools", "tests/e2e", "tests/long_run", "tests/golden", "tests/gpu")
SUMMARY = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$")
SCRIPT_LIMIT_S = 7200 if os.environ.get("TESSERA_E2E") == "full" else 900
BINARY_LIMIT_S = 600
SANITIZED_LIMIT_S = 3600
TIDY_S = 15  # `./run lint` takes longer and looks at more files
# These start first while the seconds of the last run are not known, as in a fresh clone.
LONGEST_SCRIPTS = ("test_install.py", "test_signals.py", "test_experts.py", "test_failures.py", "test_resume.py", "test_dead_places.py",
                   "test_messages.py", "test_budgets.py")
RUNNING = set()  # started processes, each with a group of its own


@dataclass
class Count:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other):
        return Count(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self):
        text = f"{self.passed} passed, {self.failed} failed"
        return text + (f", {self.skipped} skipped" if self.skipped else "")


def count_gtest(output, entry_passed):
    """Counts the cases of a CTest entry from its output. Without exactly one GoogleTest summary it counts as one case."""
    totals = re.findall(r"^\[==========\] (\d+) tests? from .* ran\.", output, re.M)
    if len(totals) != 1:
        return Count(passed=int(entry_passed), failed=int(not entry_passed))
    failed = sum(int(n) for n in re.findall(r"^\[  FAILED  \] (\d+) tests?, listed below", output, re.M))
    skipped = sum(int(n) for n in re.findall(r"^\[  SKIPPED \] (\d+) tests?, listed below", output, re.M))
    if not entry_passed and failed == 0:  # failed after its last case (sanitizer report, time limit)
        failed = 1
    return Count(max(int(totals[0]) - failed - skipped, 0), failed, skipped)


def count_case(case):
    """Counts an entry of CTest's report. A test that did not run has failed (no binary), unless it requested the skip."""
    status, skipped = case.get("status"), case.find("skipped")
    message = skipped.get("message", "") if skipped is not None else ""
    if status == "disabled" or "SKIP_" in message:
        return Count(skipped=1)
    return count_gtest(case.findtext("system-out") or "", status == "run")


def count_junit(path):
    """Returns the sum of the cases of CTest's report, and a line for each of its entries."""
    total, lines = Count(), []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        count = count_case(case)
        lines.append(f"  {case.get('name')}: {count} ({float(case.get('time')):.1f} s)")
        total += count
    return total, lines


def find_ctest(build):
    for line in (build / "CMakeCache.txt").read_text().splitlines():
        if line.startswith("CMAKE_CTEST_COMMAND:INTERNAL="):
            return line.split("=", 1)[1]
    return shutil.which("ctest")


def unit_names(build):
    listed = subprocess.run([find_ctest(build), "--test-dir", str(build), "-N"], capture_output=True, text=True, check=False)
    return re.findall(r"^ *Test +#\d+: (\S+)$", listed.stdout, re.M)


def find_unknown(arguments):
    """Returns the names that match nothing."""
    units = [unit for build in arguments.build for unit in unit_names(build)]
    others = ["lint", *(name for path in script_paths() for name in names_of(path))] if not arguments.units_only else []
    return [name for name in arguments.names if name not in others and not any(unit.startswith(name) for unit in units)]


def run_units(build, names):
    report = build.resolve() / "units.xml"
    report.unlink(missing_ok=True)
    is_sanitized = build.name in ("cpu-asan", "cpu-tsan")
    limit = SANITIZED_LIMIT_S if is_sanitized else BINARY_LIMIT_S
    command = [find_ctest(build), "--test-dir", str(build), "--output-on-failure", "-j3", "--timeout", str(limit),
               "--no-tests=ignore", "--test-output-size-passed", "10000000", "--test-output-size-failed", "10000000",
               "--output-junit", str(report), "--quiet", "-O", str(report.with_suffix(".log"))]
    if names:
        command += ["-R", "^(" + "|".join(re.escape(name) for name in names) + ")"]
    code = run_group(command, None, env=unit_environment())
    if not report.exists():
        return Count(failed=int(code != 0))
    count, lines = count_junit(report)
    if lines:
        print("\n".join([f"unit tests of {build}:", *lines]) + "\n", end="", flush=True)
    if code != 0:
        print_failures(report.with_suffix(".log"))
        count.failed = max(count.failed, 1)
    return count


def print_failures(log):
    """Prints the lines of CTest's log that describe failures, at most 200."""
    lines = log.read_text(errors="replace").splitlines()
    wanted = re.compile(r"Failure|FAILED|rror|Sanitizer|Timeout|Exception|SegFault|expected|Expected|Which is|actual")
    shown = [line for line in lines if wanted.search(line)]
    print("\n".join(shown[:200]))
    print(f"  (complete output: {log})")


def unit_environment():
    """Returns the environment of unit tests. OpenMP has one thread, because ranks are threads and three binaries run at once.
    libtorch and Open MPI keep memory until the process ends; tools/run/leaks.txt lists them."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    folder = ROOT / "tools" / "run"
    environment["LSAN_OPTIONS"] = f"suppressions={folder / 'leaks.txt'}:print_suppressions=0"
    environment["ASAN_OPTIONS"] = "detect_stack_use_after_return=1"
    environment["UBSAN_OPTIONS"] = "print_stacktrace=1:halt_on_error=1"
    environment["TSAN_OPTIONS"] = f"halt_on_error=1:suppressions={folder / 'races.txt'}"
    return environment


def run_group(command, limit_s, **options):
    """Runs a command in a session of its own, so that a time limit also ends the processes that it started. Returns its exit
    code, or a text if it did not end in time."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    RUNNING.add(process)
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        end_group(process)
        process.wait()
        return f"none after {limit_s} s"
    finally:
        RUNNING.remove(process)


def run_script(path, build):
    """Runs one script test and returns its count; prints its output if it failed."""
    scratch = build.resolve() / "scripts" / path.stem
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    environment = dict(os.environ, TESSERA=str(build.resolve() / "apps" / "tessera"), PYTHON=sys.executable,
                       TEST_TMP=str(scratch), PYTHONDONTWRITEBYTECODE="1")
    command = ([sys.executable] if path.suffix == ".py" else ["bash"]) + [str(path)]
    start = time.monotonic()
    log = scratch / "output.log"
    with open(log, "w") as stream:
        code = run_group(command, SCRIPT_LIMIT_S, stdout=stream, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=ROOT,
                         env=environment)
    output = log.read_text(errors="replace")
    count = count_script(output, code)
    report = [f"  {path.name}: {count} ({time.monotonic() - start:.1f} s)"]
    if count.failed:
        report += ["    " + line for line in output.splitlines()[-60:]]
    else:
        shutil.rmtree(scratch)
    print("\n".join(report) + "\n", end="", flush=True)  # one write, so that lines of scripts do not mix
    return count


def count_script(output, code):
    lines = output.strip().splitlines()
    match = SUMMARY.match(lines[-1].strip()) if lines else None
    if code == 77:
        return Count(skipped=1)
    if match:
        count = Count(*(int(group or 0) for group in match.groups()))
        if code != 0 and count.failed == 0:
            count.failed = 1
        return count
    return Count(passed=int(code == 0), failed=int(code != 0))


def script_paths():
    return [path for folder in SCRIPT_FOLDERS for path in sorted((ROOT / folder).glob("test_*"))
            if path.suffix in (".py", ".sh") and os.access(path, os.X_OK)]


def names_of(path):
    return path.stem, path.name, path.parent.name


def script_calls(build, names, seconds):
    """Returns a call for each script, in descending order of `seconds`. A call writes its own time to `seconds`. Long scripts
    without a time start first."""
    paths = [path for path in script_paths() if not names or any(name in names_of(path) for name in names)]
    paths.sort(key=lambda path: -seconds.get(path.name, SCRIPT_LIMIT_S if path.name in LONGEST_SCRIPTS else 0))

    def call(path):
        start = time.monotonic()
        count = run_script(path, build)
        seconds[path.name] = round(time.monotonic() - start, 1)
        return count
    return [lambda path=path: call(path) for path in paths]


def run_together(calls, together):
    """Makes all calls, `together` of them at a time, and returns the sum of their counts. An exception ends the running
    scripts.
    """
    with ThreadPoolExecutor(together) as pool:
        waiting = [pool.submit(call) for call in calls]
        try:
            return sum((one.result() for one in waiting), Count())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            while not all(one.done() for one in waiting):
                for process in list(RUNNING):
                    end_group(process)
                time.sleep(0.05)
            raise


def end_by_signals():
    """Makes SIGTERM and SIGHUP (a lost terminal) also end the processes that this program started. SIGHUP stays ignored under
    `nohup`.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))


def end_group(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run_lint():
    command = [sys.executable, "tools/lint/lint.py", "--tidy-seconds", str(TIDY_S)]
    with tempfile.TemporaryFile("w+") as stream:
        code = run_group(command, None, cwd=ROOT, stdout=stream)
        stream.seek(0)
        output = stream.read()
    print(f"== lint ==\n{output}", end="", flush=True)  # one write, so that lines of scripts do not mix
    return count_script(output, code)


def run_all(arguments):
    def units():
        return sum((run_units(build, arguments.names) for build in arguments.build), Count())
    times = arguments.build[0] / "script-seconds.json"  # of the last run
    seconds = json.loads(times.read_text()) if times.exists() else {}
    scripts = [] if arguments.units_only else script_calls(arguments.build[0], arguments.names, seconds)
    # Unit tests and scripts wait about half of their time. Tests that use GPUs or fill the machine run one at a time.
    alone = arguments.build[0].name == "cuda" or os.environ.get("TESSERA_E2E") == "full"
    has_lint = not arguments.units_only and (not arguments.names or "lint" in arguments.names)
    total = run_together([units, *[run_lint] * has_lint, *scripts], 1 if alone else 6)
    times.write_text(json.dumps(seconds, indent=1))
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", action="append", type=pathlib.Path, required=True)
    parser.add_argument("--units-only", action="store_true")
    parser.add_argument("names", nargs="*", help="run only these: a layer, a script's name, its folder, or lint")
    arguments = parser.parse_args()
    end_by_signals()
    start = time.monotonic()
    unknown = find_unknown(arguments)
    total = Count() if unknown else run_all(arguments)
    if total == Count():
        print(f"no test ran: there is no test named {' or '.join(unknown or arguments.names) or 'test_*'}", file=sys.stderr)
    print(f"total time: {time.monotonic() - start:.0f} s")
    print(total)
    return 0 if total.passed > 0 and total.failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
