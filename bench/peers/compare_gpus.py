#!/usr/bin/env python3
"""Compares a step of `tessera bench step` with the same step of PyTorch on the same GPUs.

On one GPU, the peer is plain PyTorch (one_gpu.py). On N GPUs it is FSDP2 (fsdp2.py, or experts.py for a model with
experts), with resharding on and off. With --tp N above 1, the weights are sharded over N GPUs by tensor parallelism, and
the peer is DTensor's tensor parallelism (tensor_parallel.py), with async on and off. For a model with experts on N GPUs,
Tessera runs twice: with the experts sharded like the other weights (egtp N), and with whole experts (ep N).
--moments names the rows of the comparison:
  fp32: fp32 moments on both sides
  bf16: bf16 moments on both sides, and bf16 moments beside a peer whose parameters and moments are all bf16
  both: all three rows
A row lists the bytes that each side stores. Its peer is the fastest of the peer's runs in the states of the row (updates.py).
The programs run one at a time on all GPUs. Prints each run, a table of the medians over the rounds, the rows and
one JSON line. A program that fails is listed with its error, and the others still run. The exit code is
1 if Tessera failed. Example:
  bench/compare.sh --gpus 4 --seq-len 8192 --rounds 3 -- FLAGS-FOR-TESSERA-BENCH-STEP
"""
import argparse
import json
import math
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from compare_rows import ROOT, has_experts, programs_of, row_lines, row_results, rows_of, stored_bytes

NEEDED = ("median_ms", "p10_ms", "p90_ms", "tokens_per_second_per_gpu", "peak_memory_bytes")
OPTIONAL = ("mfu", "exposed_comm_ms", "least_exposed_comm_ms", "limit_ratio", "expert_load")
GRACE_S = 60  # between SIGTERM and SIGKILL; torchrun ends its processes in half of this time


class Failure(Exception):
    """The reason why a program gave no result."""


def count_gpus():
    try:
        return len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines())
    except (OSError, subprocess.CalledProcessError):
        return 0


def at_least(least):
    """Returns the type of a flag: a whole number of at least `least`."""
    def number(text):
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"is {value}, expected {least} or more")
        return value
    number.__name__ = "whole number"  # argparse shows this name if `text` is not a number
    return number


def parse_arguments(argv):
    parser = argparse.ArgumentParser(prog="bench/compare.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=at_least(1), help="default: all GPUs that nvidia-smi lists")
    parser.add_argument("--tp", type=at_least(1), default=1, help="1, or all GPUs: tensor parallelism (default: 1)")
    parser.add_argument("--model", default="llama3-8b")
    parser.add_argument("--layers", type=at_least(1), help="number of layers (default: the model's)")
    for name, default, what in (("seq-len", 8192, "tokens"), ("micro-batch", 1, "sequences per GPU"),
                                ("rounds", 3, "rounds over all programs"), ("steps", 20, "timed steps per run"),
                                ("warmup", 5, "warm-up steps per run"), ("limit", 300, "time limit of a run in seconds")):
        parser.add_argument(f"--{name}", type=at_least(0 if name == "warmup" else 1), default=default,
                            help=f"{what} (default: {default})")
    parser.add_argument("--moments", choices=("fp32", "bf16", "both"), default="fp32", help="rows of the comparison (default: fp32)")
    parser.add_argument("--routing", choices=("even", "skewed"), default="even", help="load of experts (default: even)")
    parser.add_argument("--tessera", default=str(ROOT / "build" / "cuda" / "apps" / "tessera"))
    parser.add_argument("--python", default="python3", help="an interpreter that imports torch")
    cut = argv.index("--") if "--" in argv else len(argv)
    options = parser.parse_args(argv[:cut])
    options.has_experts = has_experts(options.model)
    options.gpus = options.gpus or count_gpus() or parser.error("nvidia-smi lists no GPU: expected --gpus N")
    if options.tp not in (1, options.gpus):
        parser.error(f"argument --tp: is {options.tp}, expected 1 or --gpus {options.gpus}")
    if options.has_experts and options.tp != 1:
        parser.error(f"--tp: got {options.tp}, expected 1: {options.model} has experts, and its peer has no tensor parallelism")
    if options.tp != 1 and options.moments != "fp32":
        parser.error(f"--moments: got {options.moments}, expected fp32 with --tp {options.tp}: its peer has only fp32 moments")
    extra = argv[cut + 1:]
    if any(word.split("=")[0] == "--moments" for word in extra):
        parser.error("--moments after '--': expected it before '--', because it also selects the peer's state")
    return options, extra


def last_object(text):
    """Returns the last JSON object in a program's output, on one line or several; None if the output has no object."""
    found, position = None, 0
    while match := re.compile(r"^\{", re.M).search(text, position):
        try:
            found, position = json.JSONDecoder().raw_decode(text, match.start())
        except ValueError:
            position = match.end()
    return found


def last_error(text):
    """Returns the last line with an exception other than torchrun's own; without one, the last line with a word."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    named = [line for line in lines if re.match(r"(\[\w+\]:\s*)?([\w.]*(Error|Exception)\b|error:)", line)
             and "ChildFailedError" not in line]
    return (named or lines or ["stderr is empty"])[-1]


def run(command, limit_s):
    """Returns (exit code, stdout, stderr) of a program. The program and its children end after limit_s, or with this script."""
    limited = ["timeout", f"--kill-after={GRACE_S}", str(limit_s), *map(str, command)]
    # Files instead of pipes, since a process that outlives the program would keep a pipe open.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        with subprocess.Popen(limited, stdin=subprocess.DEVNULL, stdout=output, stderr=errors) as process:
            try:
                process.wait()
            except BaseException:
                process.terminate()  # `timeout` forwards the signal
                raise
        return process.returncode, *(text_of(stream) for stream in (output, errors))


def text_of(stream):
    stream.seek(0)
    return stream.read().decode(errors="replace")


def result_of(command, options):
    """Runs a program and returns its measurements. Raises Failure."""
    start = time.monotonic()
    code, output, errors = run(command, options.limit)
    if code != 0:
        print("\n".join("    " + line for line in errors.splitlines()[-100:]), file=sys.stderr, flush=True)
        seconds = f"{time.monotonic() - start:.0f} s" + (" (its limit)" if code == 124 else "")
        raise Failure(f"exit code {code} after {seconds}: {last_error(errors)}")
    result = last_object(output)
    missing = [key for key in NEEDED if not isinstance((result or {}).get(key), (int, float))]
    if missing:
        raise Failure(f"printed no JSON object with {', '.join(missing)}")
    empty = [key for key in NEEDED if not result[key] > 0]
    if empty:
        raise Failure(f"measured nothing: {', '.join(f'{key} is {result[key]}' for key in empty)}")
    loss = result.get("loss")
    if not isinstance(loss, (int, float)) or not math.isfinite(loss):
        raise Failure(f"measured steps whose loss is not finite: loss is {loss}")
    tokens = result["tokens_per_second_per_gpu"] * result["median_ms"] / 1e3
    expected = options.seq_len * options.micro_batch / options.tp
    if not 0.7 < tokens / expected < 1.4:  # a rate from the mean differs slightly from a rate from the median
        raise Failure(f"did {tokens:.0f} tokens a GPU and step, expected {expected:.0f}")
    return result


def collect(options, programs):
    """Returns the results and failures of each program, {name: [...]}. Every second round runs backwards to balance drift."""
    results, failures = {name: [] for name in programs}, {name: [] for name in programs}
    for number in range(options.rounds):
        for name in list(programs)[::1 if number % 2 == 0 else -1]:
            try:
                results[name].append(result_of(programs[name].command, options))
                said = f"{results[name][-1]['median_ms']:.1f} ms"
            except Failure as failure:
                failures[name].append(str(failure))
                said = f"failed: {failure}"
            print(f"round {number + 1}: {name}: {said}", flush=True)
    return results, failures


def summarize(results, programs, extra):
    """Returns each program's medians over the rounds, its maximum memory of any round, and what it stores."""
    summary = {}
    for name, runs in results.items():
        keys = NEEDED + tuple(key for key in OPTIONAL if all(isinstance(one.get(key), (int, float)) for one in runs))
        if runs:
            summary[name] = {key: statistics.median(one[key] for one in runs) for key in keys}
            summary[name]["peak_memory_bytes"] = max(one["peak_memory_bytes"] for one in runs)
            if moved := sorted({one["transport"] for one in runs if one.get("transport")}):
                summary[name]["transport"] = " and ".join(moved)
            if stored := stored_bytes(programs[name], runs[-1], extra):
                summary[name]["stored_bytes"] = stored
    return summary


def report(summary, failures, programs, rows):
    """Returns the lines of the table, the failures and the rows."""
    width = 2 + max(22, *map(len, programs))
    lines = [f"{'':{width}}{'median ms':>11}{'p10':>9}{'p90':>9}{'tokens/s/GPU':>14}{'GB a GPU':>10}"]
    for name, row in summary.items():
        lines.append(f"{name:{width}}{row['median_ms']:11.1f}{row['p10_ms']:9.1f}{row['p90_ms']:9.1f}"
                     f"{row['tokens_per_second_per_gpu']:14.0f}{row['peak_memory_bytes'] / 1e9:10.1f}")
    lines += [f"{name}: failed {len(reasons)} times: {reasons[-1]}" for name, reasons in failures.items() if reasons]
    for name in (name for name in summary if programs[name].moments):
        lines += [f"{name}: {key} {summary[name][key]:.3f}" for key in OPTIONAL if key in summary[name]]
        if "transport" in summary[name]:
            lines.append(f"{name}: weights and gradients moved by {summary[name]['transport']}")
    for row in rows:
        lines += row_lines(row, programs, summary)
    return lines


def main():
    options, extra = parse_arguments(sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # ignored under nohup
            signal.signal(number, lambda number, _: sys.exit(128 + number))  # so that the running program ends too
    programs, rows = programs_of(options, extra), rows_of(options.moments)
    results, failures = collect(options, programs)
    summary = summarize(results, programs, extra)
    print("\n".join(report(summary, failures, programs, rows)))
    print(json.dumps({"programs": summary, "rows": [row_results(row, programs, summary) for row in rows], "gpus": options.gpus,
                      "model": options.model, "tp": options.tp, "layers": options.layers, "seq_len": options.seq_len,
                      "micro_batch": options.micro_batch, "moments": options.moments, "rounds": options.rounds}))
    return 1 if any(failures[name] for name, program in programs.items() if program.moments) else 0


if __name__ == "__main__":
    sys.exit(main())
