#!/usr/bin/env python3
"""Prints the losses of two runs side by side, and how much they differ."""
import argparse
import json
import pathlib
import sys


def losses(run):
    """Returns {step: loss}. The lines of repeated steps replace earlier ones."""
    path = pathlib.Path(run)
    path = path / "metrics.jsonl" if path.is_dir() else path
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf8").splitlines()]
    except (OSError, ValueError) as error:
        sys.exit(f"compare_losses.py: {path}: {error}")
    return {line["step"]: float(line["loss"]) for line in lines}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs=2, metavar="RUN", help="folder of a run, or its metrics.jsonl")
    parser.add_argument("--every", type=int, default=10, metavar="N", help="steps between printed lines [10]")
    arguments = parser.parse_args()
    first, second = map(losses, arguments.runs)
    steps = sorted(first.keys() & second.keys())
    if not steps:
        sys.exit(f"compare_losses.py: {' and '.join(arguments.runs)} have no step in common")
    differences = {step: abs(first[step] - second[step]) / abs(first[step]) for step in steps}
    print(f"{'step':>6} {'loss':>12} {'loss':>12} {'difference':>12}")
    for step in steps:
        if step in (steps[0], steps[-1]) or step % arguments.every == 0:
            print(f"{step:6} {first[step]:12.6f} {second[step]:12.6f} {differences[step]:12.2e}")
    largest = max(steps, key=differences.get)
    print(f"{len(steps)} steps: largest relative difference {differences[largest]:.2e} (step {largest}), "
          f"mean {sum(differences.values()) / len(steps):.2e}")


if __name__ == "__main__":
    main()
