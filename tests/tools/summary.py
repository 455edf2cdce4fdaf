"""Runs the unittest cases of a script. The last line of output is the summary that tools/run/test.py reads."""
import sys
import unittest


def cases(reports):
    """Returns the cases of the reports. Subtests of one case count as one case."""
    return {getattr(test, "test_case", test) for test, _ in reports}


def run_cases():
    result = unittest.main(module="__main__", exit=False, verbosity=1).result
    failed = cases(result.failures + result.errors) | set(result.unexpectedSuccesses)
    skipped = cases(result.skipped) - failed
    # A failure or a skip of a whole class has no test case, so it does not reduce the number of passed cases.
    passed = max(result.testsRun - sum(case.countTestCases() for case in failed | skipped), 0)
    sys.stderr.flush()
    print(f"{passed} passed, {len(failed)} failed" + (f", {len(skipped)} skipped" if skipped else ""))
    sys.exit(1 if failed or not (passed or skipped) else 0)
