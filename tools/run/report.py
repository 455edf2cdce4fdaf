"""Prints the demo's last lines: the held-out loss, the checkpoint and the next commands. Called by `./run train`."""
import json
import pathlib
import sys


DEFAULT_MODEL = "llama-demo"  # of ./run train


def next_flags(summary, config):
    """Returns the flags that resume the run on its mesh, and the flags that train its model on another mesh."""
    has_experts = "mesh" in summary
    axes = ["tp", "gtp"] + (["dp"] if config["dp"] > 1 else []) + (["etp", "ep", "egtp"] if has_experts else [])
    degrees = {axis: config[axis] for axis in axes}
    other = {"tp": 1, "gtp": 4}
    if has_experts:
        other["egtp"] = 4
        if degrees.items() >= other.items():
            other = {"tp": 1, "gtp": 4, "ep": 2, "egtp": 2}
    model = [] if config["model"] == DEFAULT_MODEL else ["--model", config["model"]]
    resumed, trained = ([f"--{axis} {degree}" for axis, degree in mesh.items()] for mesh in (degrees, other))
    return " ".join(resumed), " ".join(model + trained)


def main():
    out, meta_path = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    summary = json.loads((out / "summary.json").read_text())
    if summary["interrupted"]:
        return 0  # the program has printed how to resume
    unigram = json.loads(meta_path.read_text())["unigram_loss"]
    valid = summary.get("valid_loss")  # a number, or the text "NaN" or "Infinity"
    checkpoints = sorted((out / "checkpoints").glob("step-*"))
    print()
    if valid is not None:
        verdict = "below it: the model predicts from context, not only from word frequencies" if float(valid) < unigram else \
            "not below it: train for longer"
        print(f"held-out loss     {float(valid):.4f} nats a token")
        print(f"unigram baseline  {unigram:.4f} nats a token ({verdict})")
    if not checkpoints:
        print(f"no checkpoint in {out / 'checkpoints'}")
        return 1
    last = checkpoints[-1]
    print(f"checkpoint        {last}")
    config = json.loads((out / "config.json").read_text())["config"]
    mesh, other = next_flags(summary, config)
    print("\nNext commands:")
    for aim, command in (
            ("continue a text", f"tessera generate {out} --prompt Water"),
            ("show the run again, or several runs together", f"tessera plot {out}"),
            ("show the content of the checkpoint", f"tessera inspect {last}"),
            ("convert the model to a Hugging Face folder", f"tessera convert {last} {out}/hf"),
            ("resume and train longer", f"train --resume latest --out {out} {mesh} --steps 600 --schedule-steps 600"),
            ("train the same model with another sharding", f"train {other}")):
        print(f"  {aim}:\n    ./run {command}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
