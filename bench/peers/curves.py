"""Trains a model of Hugging Face transformers on the samples, the schedule and the optimizer of `tessera train`.

The flags are flags of `tessera train`. --model is a folder with a config.json; if it also has weights, training starts from them, as
with --init. The auxiliary loss of a model with experts is the pooled loss of each microbatch. Prints one JSON line for each
step. Needs PyTorch and transformers. Example with the demo's text, beside the same run of Tessera:

  python3 bench/peers/curves.py --model configs/mixtral-demo --data data/demo/train --valid data/demo/valid --seq-len 128 \\
      --global-batch 16 --micro-batch 4 --steps 300 --lr 2e-3 --warmup-steps 30 --seed 1
"""
import argparse
import contextlib
import json
import pathlib
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "reference"))
import train_reference  # noqa: E402
from samples import Samples, permuted  # noqa: E402

VALID_BATCH = 64


def parse_arguments(arguments):
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--micro-batch", type=int, default=1)
    own.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="bf16: autocast")
    own.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    own.add_argument("--threads", type=int, default=0)
    options, others = own.parse_known_args(arguments)
    return argparse.Namespace(**vars(train_reference.parse_arguments(others)), **vars(options))


def make_model(options):
    folder = pathlib.Path(options.model)
    torch.manual_seed(options.seed)
    # The other implementations need sizes that are multiples of 16 bytes.
    experts = {"experts_implementation": "eager"} if "num_experts_per_tok" in (folder / "config.json").read_text() else {}
    if any(folder.glob("*.safetensors")):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **experts)
    else:
        config = transformers.AutoConfig.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, **experts)
    return model.to(options.device).train()


def windows(samples, numbers, device):
    """Returns the tokens of samples, with the token after each sample: [samples, seq_len + 1]."""
    starts = np.asarray(numbers)[:, None] * samples.seq_len + np.arange(samples.seq_len + 1)
    return torch.from_numpy(samples.tokens[starts].astype(np.int64)).to(device)


def cross_entropy(logits, tokens):
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def losses_of(model, tokens):
    """Returns the cross-entropy and the auxiliary loss with its coefficient."""
    coefficient = getattr(model.config, "router_aux_loss_coef", 0) if hasattr(model.config, "num_experts_per_tok") else 0
    out = model(tokens[:, :-1], **({"output_router_logits": True} if coefficient else {}))
    aux = coefficient * out.aux_loss if coefficient else torch.zeros((), device=tokens.device)
    return cross_entropy(out.logits, tokens), aux


def held_out_loss(model, samples, device):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for first in range(0, samples.count, VALID_BATCH):
            tokens = windows(samples, range(first, min(first + VALID_BATCH, samples.count)), device)
            total += cross_entropy(model(tokens[:, :-1]).logits, tokens).item() * tokens.shape[0]
    model.train()
    return total / samples.count


def train(options):
    """Yields a dictionary for each step."""
    model = make_model(options)
    decays = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": decays, "weight_decay": options.weight_decay}, {"params": others, "weight_decay": 0}],
                                  betas=(options.beta1, options.beta2), eps=options.eps)
    narrow = torch.autocast(options.device, torch.bfloat16) if options.dtype == "bf16" else contextlib.nullcontext()
    samples = Samples(options.data, options.seq_len, options.seed, False)
    held_out = Samples(options.valid, options.seq_len, options.seed, False) if options.valid else None
    for step in range(1, options.steps + 1):
        positions = range((step - 1) * options.global_batch, step * options.global_batch)
        numbers = [permuted(options.seed, position // samples.count, samples.count, position % samples.count) for position in positions]
        loss = aux = 0.0
        for microbatch in windows(samples, numbers, options.device).split(options.micro_batch):
            with narrow:
                one, other = losses_of(model, microbatch)
            share = microbatch.shape[0] / options.global_batch
            ((one + other) * share).backward()
            loss, aux = loss + one.detach() * share, aux + other.detach() * share
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        for group in optimizer.param_groups:
            group["lr"] = train_reference.learning_rate(step, options)
        optimizer.step()
        optimizer.zero_grad()
        line = {"step": step, "loss": float(loss), "aux_loss": float(aux), "grad_norm": float(norm)}
        if train_reference.is_evaluated(step, options):
            with narrow:
                line["valid_loss"] = held_out_loss(model, held_out, options.device)
        yield line


def main():
    options = parse_arguments(sys.argv[1:])
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.backends.cuda.matmul.allow_tf32 = False
    start = time.monotonic()
    for line in train(options):
        print(json.dumps(line | {"seconds": round(time.monotonic() - start, 1)}), flush=True)


if __name__ == "__main__":
    main()
