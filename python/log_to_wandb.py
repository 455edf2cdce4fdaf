#!/usr/bin/env python3
"""Copies the lines of a run's metrics.jsonl to Weights & Biases. Only this script needs the package wandb.

If the run was copied before, the call adds lines to the same run of Weights & Biases. The id of that run is the name of the
folder, or the value of --id. Steps that Weights & Biases already has are not copied again, because it cannot replace them.
"""
import argparse
import json
import os
import pathlib
import sys
import time


def scalars_of(line):
    """Returns the numbers of a line by key. Texts such as "NaN" become numbers; objects become one key for each entry."""
    scalars = {}
    for key, value in json.loads(line).items():
        entries = {f"{key}/{name}": one for name, one in value.items()} if isinstance(value, dict) else {key: value}
        scalars.update({name: float(one) for name, one in entries.items()
                        if one is not None and not isinstance(one, list)})
    return scalars


def has_ended(run):
    """Returns whether the summary is newer than the files of the last start (config.json) and of the last step."""
    summary = run / "summary.json"
    return summary.exists() and all(summary.stat().st_mtime_ns >= (run / name).stat().st_mtime_ns
                                    for name in ("config.json", "metrics.jsonl"))


def is_replaced(file, path):
    """Returns whether the path names another file than the open one. A resumed run replaces its metrics if it removes lines."""
    try:
        return not os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def lines_of(run, follow, seconds):
    """Yields whole lines of the metrics. With `follow` the function waits for more lines until the run has ended. If the run
    replaces the file, the function yields the lines of the new file from its start."""
    path = run / "metrics.jsonl"
    while True:
        with open(path, encoding="utf-8") as file:
            held = ""
            while True:
                is_ended = has_ended(run)
                held += file.readline()
                if held.endswith("\n"):
                    yield held
                    held = ""
                elif is_replaced(file, path):
                    break
                elif not follow or is_ended:
                    return
                else:
                    time.sleep(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path, help="folder of a run")
    parser.add_argument("--project", default="tessera")
    parser.add_argument("--id", help="id of the run (default: the name of the folder)")
    parser.add_argument("--follow", action="store_true", help="wait for more lines until the run has ended")
    parser.add_argument("--seconds", type=float, default=5.0, help="time between two reads of the file, with --follow")
    arguments = parser.parse_args()
    metrics = arguments.run / "metrics.jsonl"
    if not metrics.is_file():
        sys.exit(f"log_to_wandb.py: '{arguments.run}' has no metrics.jsonl: expected the folder of a run")
    try:
        import wandb
    except ImportError:
        sys.exit("log_to_wandb.py: the package wandb is not installed: pip install wandb")
    config = json.loads((arguments.run / "config.json").read_text()).get("config", {})
    run = wandb.init(project=arguments.project, id=arguments.id or arguments.run.resolve().name, resume="allow", config=config)
    next_step = run.step  # of the next call of log(): 0 for a new run, otherwise 1 + the last step that was copied
    for line in lines_of(arguments.run, arguments.follow, arguments.seconds):
        scalars = scalars_of(line)
        step = int(scalars.pop("step"))
        if step >= next_step:
            run.log(scalars, step=step)
            next_step = step + 1
    run.finish()


if __name__ == "__main__":
    main()
