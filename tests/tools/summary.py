"""Runs the unittest cases of a script and ends with the line that tools/run/test.py counts."""
import sys
import unittest


def run_cases():
    result = unittest.main(module="__main__", exit=False, verbosity=1).result
    failed, skipped = len(result.failures) + len(result.errors), len(result.skipped)
    sys.stderr.flush()
    print(f"{result.testsRun - failed - skipped} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    sys.exit(1 if failed or result.testsRun == 0 else 0)
