"""Runs the checks of this folder and prints every finding as file:line: message. Called by `./run lint [CHECK...]`.

The last line counts the checks: `N passed, N failed[, N skipped]`. Exit code 1: a check failed; 2: unknown name of a check.
"""
import argparse
import pathlib
import sys
import time

import english
import formatting
import headers
import layers
import limits
import repository
import state
import tidy
from sources import Skip, repository_files

CHECKS = {
    "english": english.check,
    "format": formatting.check,
    "headers": headers.check,
    "layers": layers.check,
    "limits": limits.check,
    "repository": repository.check,
    "state": state.check,
    "tidy": tidy.check,
}


def run_check(name, root, files, options):
    """Runs one check and prints its findings. Returns passed, failed or skipped."""
    start = time.monotonic()
    try:
        findings = CHECKS[name](root, files, options)
    except Skip as reason:
        print(f"  {name}: skipped ({reason})")
        return "skipped"
    for finding in findings:
        print(finding)
    result = "failed" if findings else "passed"
    print(f"  {name}: {result}, {len(findings)} findings ({time.monotonic() - start:.1f} s)", flush=True)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--build", default="build/cpu", help="build folder, relative to the root")
    parser.add_argument("--all", action="store_true", help="headers: check every header, not only changed headers")
    parser.add_argument("--tidy-seconds", type=int, default=60, help="tidy starts no file after this number of seconds")
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=" ".join(CHECKS))
    options = parser.parse_args()
    unknown = [name for name in options.checks if name not in CHECKS]
    if unknown:
        print(f"unknown check '{unknown[0]}': expected {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    root = options.root.resolve()
    files = repository_files(root)
    results = [run_check(name, root, files, options) for name in options.checks or CHECKS]
    skipped = results.count("skipped")
    print(f"{results.count('passed')} passed, {results.count('failed')} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if "failed" in results else 0


if __name__ == "__main__":
    sys.exit(main())
