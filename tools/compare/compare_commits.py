#!/usr/bin/env python3
"""Shows that two commits compute the same. Runs both programs with the same flags and compares all results bit for bit.
Prints one line for each run: `equal`, or the first difference. The last line is `N passed, N failed[, N skipped]`.

BASE (A) and HEAD (B) are each a commit of this checkout, a folder that contains a checkout, or a `tessera` program.
Exit code 0: all results are equal; 1: a difference, or a failed run; 2: bad arguments.
"""
import argparse
import contextlib
import functools
import pathlib
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import bits
import cuda_runs
import inputs
import runs
import sides
import times
from table import Run


class Parser(argparse.ArgumentParser):
    """Reports an error in one line."""

    def error(self, message):
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(2)


def count(text):
    """Parses the value of a flag: a whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text}, expected a whole number of 1 or more")
    return int(text)


def pattern(text):
    """Parses the value of a flag: a regular expression."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"got {text}, expected a regular expression: {error}") from error


def parse_arguments(argv):
    parser = Parser(prog="compare_commits.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", metavar="BASE", help="a commit, a folder or a program")
    parser.add_argument("head", nargs="?", metavar="HEAD", default=str(sides.ROOT), help="the same (default: this checkout)")
    parser.add_argument("--preset", choices=("cpu", "cuda"), default="cpu", help="preset of the builds and table of runs")
    parser.add_argument("--no-build", action="store_true", help="use the existing builds of checkouts")
    parser.add_argument("--only", type=pattern, metavar="PATTERN", help="runs whose name matches this regular expression")
    parser.add_argument("--list", action="store_true", help="print the runs and their flags without running them")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER", help="keep the files of the runs in this folder")
    parser.add_argument("--jobs", type=count, help="runs at a time (default: 2 with cpu, 1 with cuda; always 1 with --times)")
    parser.add_argument("--times", action="store_true", help="measure step times instead; they do not change the exit code")
    parser.add_argument("--rounds", type=count, default=9, help="measurements of each side (default: 9)")
    options = parser.parse_args(argv)
    options.rows = selected(rows_of(options.preset, options.times), options.only)
    if not options.rows:
        parser.error(f"--only {options.only.pattern}: matches no run; --list prints the runs")
    if not options.list and options.base is None:
        parser.error("BASE is missing: expected a commit, a folder or a program")
    options.jobs = options.jobs or (2 if options.preset == "cpu" else 1)
    return options


def rows_of(preset, timed):
    """Returns the table that the options select."""
    if timed:
        return runs.TIMINGS if preset == "cpu" else cuda_runs.CUDA_TIMINGS
    return runs.RUNS if preset == "cpu" else cuda_runs.CUDA_RUNS


def selected(rows, only):
    """Returns the rows whose name matches the pattern; returns all rows without a pattern."""
    return [row for row in rows if only is None or only.search(row.name)]


def described(row):
    """Returns a row of the table as --list prints it."""
    model = f"[{row.model}] " if isinstance(row, Run) else ""
    before = f"{row.resumes}, then " if getattr(row, "resumes", None) is not None else ""
    return f"{row.name:26} {model}{before}{row.flags}".rstrip()


def results_of(options, programs, folder):
    """Yields (name, passed, message) of every row in the order of the table, as soon as each is known."""
    if options.times:
        for row in options.rows:
            yield row.name, *times.measure(row, programs, options.rounds)
        return
    common = runs.COMMON if options.preset == "cpu" else cuda_runs.COMMON_CUDA
    names = {row.model for row in options.rows}
    task = bits.Task(common, inputs.write_inputs(folder / "inputs", names), folder)
    with ThreadPoolExecutor(options.jobs) as pool:
        compared = pool.map(functools.partial(bits.compare, programs=programs, task=task), options.rows)
        for row, (passed, said) in zip(options.rows, compared):
            yield row.name, passed, said


@contextlib.contextmanager
def results_folder(keep):
    """Yields the folder that runs write to: the folder of --keep, or a temporary folder that is deleted at the end."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="tessera-compare-") as folder:
        yield pathlib.Path(folder)


def report(results):
    """Prints every result and the count. Returns the exit code."""
    counts = {True: 0, False: 0, None: 0}
    for name, passed, said in results:
        counts[passed] += 1
        print(f"{name}: {said}", flush=True)
    skipped = f", {counts[None]} skipped" if counts[None] else ""
    print(f"{counts[True]} passed, {counts[False]} failed{skipped}")
    return 1 if counts[False] or not counts[True] else 0


def main(argv):
    options = parse_arguments(argv)
    if options.list:
        print("\n".join(map(described, options.rows)))
        return 0
    try:
        both = [sides.side_of(text) for text in (options.base, options.head)]
        programs = [sides.program_of(side, options.preset, not options.no_build) for side in both]
    except (sides.BadArgument, sides.BuildFailed) as error:
        print(f"compare_commits.py: {error}", file=sys.stderr)
        return 2 if isinstance(error, sides.BadArgument) else 1
    for name, side in zip("AB", both):
        print(f"{name}: {side.label}")
    with results_folder(options.keep) as folder:
        return report(results_of(options, programs, folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
