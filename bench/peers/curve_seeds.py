"""Trains models of equal active parameters with several seeds, each with `tessera train` and with curves.py (transformers), and
prints a table of the held-out losses.

All runs have the same flags, so for one seed they train on the same samples. The arguments after -- are given to every run. At most
--parallel runs share the device at a time. After a run that fails or has a loss that is not finite, no run starts; the program ends with
the run's output when the others have ended. Needs the packages of curves.py. Example on a GPU, with the demo's text:

  python3 bench/peers/curve_seeds.py --out seeds --tessera build/cuda/apps/tessera --backend nccl -- --data data/demo/train \\
      --valid data/demo/valid --seq-len 128 --global-batch 16 --micro-batch 16 --steps 3000 --eval-every 500 --lr 2e-3 --warmup-steps 30
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

ROOT = pathlib.Path(__file__).resolve().parents[2]


def parse_arguments(arguments):
    end = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the runs; must not exist")
    parser.add_argument("--tessera", default=str(ROOT / "build/cpu/apps/tessera"), help="the program")
    parser.add_argument("--backend", default="local", help="backend of tessera train")
    parser.add_argument("--models", nargs="+", default=[str(ROOT / "configs/llama-demo"), str(ROOT / "configs/mixtral-demo")],
                        help="folders with a config.json")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--dtypes", nargs="+", default=["fp32"], choices=("fp32", "bf16"))
    parser.add_argument("--programs", nargs="+", default=["tessera", "transformers"], choices=("tessera", "transformers"))
    parser.add_argument("--parallel", type=int, default=6, help="runs at a time")
    options = parser.parse_args(arguments[:end])
    options.flags = arguments[end + 1:]
    return options


def command_of(options, program, model, dtype, seed, folder):
    flags = ["--model", model, "--dtype", dtype, "--seed", str(seed), *options.flags]
    if program == "transformers":
        return [sys.executable, str(ROOT / "bench/peers/curves.py"), *flags]
    has_loss = "router_aux_loss_coef" in (pathlib.Path(model) / "config.json").read_text()
    pooled = ["--moe-aux", "pooled"] if has_loss else []  # as curves.py
    return [options.tessera, "train", "--backend", options.backend, *flags, *pooled, "--out", str(folder)]


def held_out_losses(text):
    """Returns the held-out losses of a run's JSON lines by step."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {line["step"]: float(line["valid_loss"]) for line in lines if "valid_loss" in line}


def run(options, program, model, dtype, seed):
    folder = options.out / f"{program}-{pathlib.Path(model).name}-{dtype}-{seed}"
    result = subprocess.run(command_of(options, program, model, dtype, seed, folder), capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"{folder.name}: exit code {result.returncode}\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    losses = held_out_losses(result.stdout if program == "transformers" else (folder / "metrics.jsonl").read_text())
    if not losses:
        raise SystemExit(f"{folder.name}: no held-out loss, expected --valid among the flags after --")
    for step, loss in losses.items():
        if not math.isfinite(loss):
            raise SystemExit(f"{folder.name}: the held-out loss after step {step} is {loss}, expected a finite number")
    return losses


def main():
    options = parse_arguments(sys.argv[1:])
    if options.out.exists():
        raise SystemExit(f"--out: {options.out} exists, expected a new folder")
    options.out.mkdir(parents=True)
    rows = [(program, model, dtype) for dtype in options.dtypes for program in options.programs for model in options.models]
    with ThreadPoolExecutor(options.parallel) as pool:
        results = {row: [pool.submit(run, options, *row, seed) for seed in options.seeds] for row in rows}
        wait([future for futures in results.values() for future in futures], return_when=FIRST_EXCEPTION)
        pool.shutdown(wait=False, cancel_futures=True)  # cancels nothing unless a run has failed
        losses = {row: [future.result() for future in futures] for row, futures in results.items()}
    print(f"held-out losses of seeds {', '.join(map(str, options.seeds))}")
    for step in sorted(losses[rows[0]][0]):
        for program, model, dtype in rows:
            values = [of_seed[step] for of_seed in losses[program, model, dtype]]
            print(f"step {step}  {program:12}  {pathlib.Path(model).name:14}  {dtype}  {'  '.join(f'{v:.4f}' for v in values)}"
                  f"  mean {sum(values) / len(values):.4f}")


if __name__ == "__main__":
    main()
