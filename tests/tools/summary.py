"""Runs the unittest cases of a script and ends with the line that tools/run/test.py counts."""
import sys
import unittest


def cases(reports):
    """The cases that reports are about; the parts of one (`subTest`) are one."""
    return {getattr(test, "test_case", test) for test, _ in reports}


def run_cases():
    result = unittest.main(module="__main__", exit=False, verbosity=1).result
    failed = cases(result.failures + result.errors) | set(result.unexpectedSuccesses)
    skipped = cases(result.skipped) - failed
    # What fails or is skipped for a whole class counts no case that ran.
    passed = max(result.testsRun - sum(case.countTestCases() for case in failed | skipped), 0)
    sys.stderr.flush()
    print(f"{passed} passed, {len(failed)} failed" + (f", {len(skipped)} skipped" if skipped else ""))
    sys.exit(1 if failed or not (passed or skipped) else 0)
