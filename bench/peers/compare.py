#!/usr/bin/env python3
"""Compares tokens/s of `tessera train --backend local --ranks N --gtp N` with one process of plain PyTorch with N threads.

Both programs use the same model, data and global batch. The runs of the two programs alternate. Prints each pair and the ratio
of the medians. The
interpreter of --python needs a full PyTorch. Example:
  python3 bench/peers/compare.py --python python3 --data data/demo/train
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="python3", help="an interpreter that imports torch")
    parser.add_argument("--tessera", default=str(ROOT / "build" / "cpu" / "apps" / "tessera"))
    parser.add_argument("--model", default="llama-demo")
    parser.add_argument("--data", default=str(ROOT / "data" / "demo" / "train"))
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"))
    for name, default in (("ranks", 2), ("seq-len", 128), ("global-batch", 16), ("micro-batch", 8), ("steps", 12), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def ours(options):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        subprocess.run([options.tessera, "train", "--model", options.model, "--data", options.data, "--dtype", options.dtype,
                        "--backend", "local", "--ranks", str(options.ranks), "--gtp", str(options.ranks), "--seq-len",
                        str(options.seq_len), "--micro-batch", str(options.micro_batch), "--global-batch",
                        str(options.global_batch), "--steps", str(options.steps), "--out", str(out)],
                       check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line.get("skipped") or line["loss"] is None or line["grad_norm"] is None:  # null: not finite
            sys.exit(f"tessera train: step {line['step']} was skipped or is not finite (loss {line['loss']}, norm "
                     f"{line['grad_norm']}): no figure is reported")
    return statistics.median(line["tokens_per_second"] for line in lines[2:])


def plain_torch(options):
    result = subprocess.run([options.python, str(ROOT / "bench" / "peers" / "plain_torch.py"), "--model",
                             str(ROOT / "configs" / options.model), "--data", options.data, "--dtype", options.dtype,
                             "--threads", str(options.ranks), "--seq-len", str(options.seq_len), "--global-batch",
                             str(options.global_batch), "--steps", str(options.steps)],
                            check=False, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"plain_torch.py ended with {result.returncode} (--python {options.python}): {result.stderr.strip()}")
    report = json.loads(result.stdout.splitlines()[-1])
    return options.global_batch * options.seq_len / report["median_step_ms"] * 1e3


def main():
    options = parse_arguments()
    pairs = []
    for _ in range(options.rounds):
        pairs.append((ours(options), plain_torch(options)))
        print(f"tessera {pairs[-1][0]:8.0f} tokens/s    plain PyTorch {pairs[-1][1]:8.0f} tokens/s", flush=True)
    medians = [statistics.median(column) for column in zip(*pairs)]
    print(json.dumps({"tessera": medians[0], "plain_torch": medians[1], "ratio": medians[0] / medians[1],
                      "micro_batch": options.micro_batch, "global_batch": options.global_batch, "ranks": options.ranks}))


if __name__ == "__main__":
    main()
