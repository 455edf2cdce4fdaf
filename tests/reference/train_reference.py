"""Trains a Hugging Face Llama folder for some steps in numpy and fp64. Prints one JSON line for each step: step, loss and
grad_norm, and valid_loss if the step is followed by an evaluation.

It shares only the definitions in docs/numerics.md with the C++ code. The flags are flags of `tessera train`.
"""
import argparse
import fnmatch
import json
import math
import sys

import numpy as np

from dots1 import Dots1
from llama import Llama, load_folder
from mixtral import Mixtral
from muon import Muon
from samples import Samples

PROJECTIONS = ("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight")  # the matrices that Muon updates

def learning_rate(step, options):
    if step <= options.warmup_steps:
        return options.lr * step / options.warmup_steps
    if options.lr_schedule == "constant":
        return options.lr
    is_wsd = options.lr_schedule == "wsd"
    begin = options.schedule_steps - options.decay_steps if is_wsd else options.warmup_steps
    span = max(options.schedule_steps - begin, 1)
    progress = min(max(step - begin, 0), span) / span
    shape = options.decay_shape if is_wsd else options.lr_schedule
    left = {"linear": 1 - progress, "sqrt": 1 - math.sqrt(progress), "cosine": 0.5 * (1 + math.cos(math.pi * progress))}[shape]
    return options.min_lr + (options.lr - options.min_lr) * left


def rules(text):
    """Parses PATTERN=NUMBER,PATTERN=NUMBER. The patterns are those of Hugging Face's names."""
    return [(pattern, float(number)) for pattern, number in (rule.split("=") for rule in text.split(",") if rule)]


def chosen(rules, name, default):
    return next((number for pattern, number in reversed(rules) if fnmatch.fnmatchcase(name, pattern)), default)


def update(weights, gradient, moments, matrices, step, scale, options):
    """matrices: the state of Muon by name. AdamW updates the other weights."""
    for name, weight in weights.items():
        rate = learning_rate(step, options) * chosen(options.lr_rules, name, 1)
        g = gradient[name] * scale
        if name in matrices:
            _, weight[...] = matrices[name].step(weight, g, rate * (options.muon_lr or options.lr) / options.lr, options.weight_decay)
            continue
        first, second = moments[name]
        first += (1 - options.beta1) * (g - first)
        second += (1 - options.beta2) * (g * g - second)
        weight *= 1 - rate * chosen(options.decay_rules, name, options.weight_decay if weight.ndim == 2 else 0)
        denominator = np.sqrt(second) / math.sqrt(1 - options.beta2 ** step) + options.eps
        weight -= rate / (1 - options.beta1 ** step) * first / denominator


def held_out_loss(model, samples):
    """Returns the mean loss over the targets that are not -1."""
    tokens = sum(int((sample["targets"] >= 0).sum()) for sample in samples)
    return sum(model.loss(sample) for sample in samples) / tokens


def is_evaluated(step, options):
    return options.valid and (step == options.steps or (options.eval_every > 0 and step % options.eval_every == 0))


def make_model(config, weights, options):
    if config["model_type"] == "mixtral":
        return Mixtral(config, weights, options.moe_aux, options.router_z_loss)
    if config["model_type"] == "dots1":
        return Dots1(config, weights, options.expert_capacity)
    return Llama(config, weights)


def train(options):
    """Yields the line of each step. loss and grad_norm precede the update of the step, and valid_loss follows it."""
    config, weights = load_folder(options.model)
    model = make_model(config, weights, options)
    masks = options.mask_documents == "on"
    samples = Samples(options.data, options.seq_len, options.seed, masks)
    held_out = Samples(options.valid, options.seq_len, options.seed, masks).in_order() if options.valid else []
    matrices = {name: Muon(weight.shape, options.muon_momentum, options.muon_nesterov == "on", options.muon_steps, options.muon_scale)
                for name, weight in weights.items() if options.optimizer == "muon" and name.endswith(PROJECTIONS)}
    moments = {name: (np.zeros_like(weight), np.zeros_like(weight)) for name, weight in weights.items()}
    for step in range(1, options.steps + 1):
        batch = samples.of_step(step, options.global_batch)
        tokens = sum(int((sample["targets"] >= 0).sum()) for sample in batch)
        gradient = {name: np.zeros_like(weight) for name, weight in weights.items()}
        loss = sum(model.loss_and_gradient(sample, gradient, 1.0 / tokens) for sample in batch) / tokens
        norm = math.sqrt(sum(float((g * g).sum()) for g in gradient.values()))
        line = {"step": step, "loss": loss, "grad_norm": norm}
        if isinstance(model, Mixtral):
            line |= {"aux_loss": model.aux / tokens, "z_loss": model.z / tokens}
            model.aux = model.z = 0.0
        if isinstance(model, Dots1):
            model.update_biases(options.expert_bias_rate)
            line |= {"expert_counts": [counts.tolist() for counts in model.counts.values()], "expert_dropped": model.dropped}
            model.begin_step()
        update(weights, gradient, moments, matrices, step, min(1.0, options.clip / (norm + 1e-6)), options)
        if is_evaluated(step, options):
            line["valid_loss"] = held_out_loss(model, held_out)
        yield line


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="Hugging Face folder")
    parser.add_argument("--data", required=True, help="PREFIX of PREFIX.bin and PREFIX.idx")
    parser.add_argument("--valid", help="PREFIX of held-out data")
    parser.add_argument("--eval-every", type=int, default=0)
    for name, kind, default in (("seq-len", int, 128), ("global-batch", int, 8), ("steps", int, 5), ("seed", int, 0),
                                ("schedule-steps", int, 0), ("warmup-steps", int, 0), ("decay-steps", int, 0), ("lr", float, 3e-4),
                                ("min-lr", float, 0.0), ("beta1", float, 0.9), ("beta2", float, 0.95),
                                ("eps", float, 1e-8), ("weight-decay", float, 0.1), ("clip", float, 1.0)):
        parser.add_argument(f"--{name}", type=kind, default=default)
    parser.add_argument("--lr-schedule", choices=("constant", "cosine", "linear", "wsd"), default="cosine")
    parser.add_argument("--lr-rules", type=rules, default=[])
    parser.add_argument("--decay-rules", type=rules, default=[])
    parser.add_argument("--decay-shape", choices=("linear", "sqrt", "cosine"), default="linear")
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    parser.add_argument("--muon-lr", type=float)
    parser.add_argument("--muon-momentum", type=float, default=0.95)
    parser.add_argument("--muon-nesterov", choices=("on", "off"), default="on")
    parser.add_argument("--muon-steps", type=int, default=5)
    parser.add_argument("--muon-scale", choices=("moonshot", "original"), default="moonshot")
    parser.add_argument("--moe-aux", choices=("layer", "pooled"), default="layer")
    parser.add_argument("--router-z-loss", type=float, default=0.0)
    parser.add_argument("--expert-capacity", type=float, default=0.0)
    parser.add_argument("--expert-bias-rate", type=float, default=0.001)
    parser.add_argument("--mask-documents", choices=("on", "off"), default="off")
    options = parser.parse_args(arguments)
    options.schedule_steps = options.schedule_steps or options.steps
    return options


def main():
    for line in train(parse_arguments(sys.argv[1:])):
        print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
