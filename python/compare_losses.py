#!/usr/bin/env python3
"""Prints the losses of two runs side by side, and how much they differ."""
import argparse
import json
import math
import pathlib
import sys

from standard_output import print_results


def losses(run):
    """Returns {step: loss}. The lines of repeated steps replace earlier ones. An incomplete last line is ignored, because the run
    may be writing it."""
    path = pathlib.Path(run)
    path = path / "metrics.jsonl" if path.is_dir() else path
    number = 0
    try:
        found = {}
        for number, text in enumerate(path.read_text(encoding="utf8").split("\n")[:-1], 1):
            line = json.loads(text)
            found[line["step"]] = float(line["loss"])
    except OSError as error:
        sys.exit(f"compare_losses.py: {path}: {error.strerror}")
    except (KeyError, TypeError, ValueError):
        where = f"{path}:{number}" if number else path
        sys.exit(f"compare_losses.py: {where}: expected the lines of a run's metrics.jsonl, with step and loss")
    return found


def positive(text):
    if int(text) < 1:
        raise ValueError
    return int(text)


def difference(one, other):
    """Returns the difference of two losses, relative to the first."""
    return abs(one - other) / abs(one) if one else math.inf if other else 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs=2, metavar="RUN", help="folder of a run, or its metrics.jsonl")
    parser.add_argument("--every", type=positive, default=10, metavar="N", help="steps between printed lines [10]")
    arguments = parser.parse_args()
    first, second = map(losses, arguments.runs)
    common = sorted(first.keys() & second.keys())
    steps = [step for step in common if math.isfinite(first[step]) and math.isfinite(second[step])]
    if not steps:
        sys.exit(f"compare_losses.py: {' and '.join(arguments.runs)} have no step {'with finite losses ' if common else ''}in common")
    differences = {step: difference(first[step], second[step]) for step in steps}
    lines = [f"{'step':>6} {'loss':>12} {'loss':>12} {'difference':>12}"]
    for step in steps:
        if step in (steps[0], steps[-1]) or step % arguments.every == 0:
            lines.append(f"{step:6} {first[step]:12.6f} {second[step]:12.6f} {differences[step]:12.2e}")
    largest = max(steps, key=differences.get)
    if len(steps) < len(common):
        lines.append(f"{len(common) - len(steps)} steps are left out: their losses are not finite")
    lines.append(f"{len(steps)} steps: largest relative difference {differences[largest]:.2e} (step {largest}), "
                 f"mean {sum(differences.values()) / len(steps):.2e}")
    print_results("\n".join(lines), "compare_losses.py")


if __name__ == "__main__":
    main()
