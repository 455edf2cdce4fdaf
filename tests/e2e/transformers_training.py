"""Trains a model in Hugging Face transformers as Tessera does. The argument is a JSON object: `transformers_training.py SPEC`.

`config` contains the fields of a config.json. The initial fp64 model is written to `folder`, and the fp64 gradients of the first
step to the safetensors file `gradients`. `tokens` is one sequence. `flags` are flags of `tessera train`. Prints one JSON object:
the loss of the first step and the logits of the sequence in fp64, and the losses of all steps in fp32.

A model with experts is also written to `folder`-fused, with fused tensors. Each sequence has an auxiliary loss of its own, as a block has
in Tessera. The losses of all steps are in fp64, and `aux_losses` are the auxiliary losses with their coefficient (dots1: zeros). The
biases of routers are random and stay as they are.
"""
import contextlib
import json
import pathlib
import sys

import numpy as np
import safetensors.torch
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "reference"))
from samples import Samples  # noqa: E402
from train_reference import learning_rate, parse_arguments  # noqa: E402


@contextlib.contextmanager
def everything_in_fp64():
    """Replaces torch's names of fp32 with fp64, because models compute norms, RoPE and softmax in fp32 by name."""
    names = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = names


def make(config, folder):
    """Writes and returns a model with random weights. Biases and norms are also random, instead of zeros and ones."""
    torch.manual_seed(3)
    eager = {"experts_implementation": "eager"} if "num_experts_per_tok" in config else {}  # others refuse fp64
    config = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64, attn_implementation="eager", **eager)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn_like(parameter)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer += 0.1 * torch.randn_like(buffer)
    model.save_pretrained(folder)
    if has_experts(model):
        model.save_pretrained(f"{folder}-fused", save_original_format=False)
    return model


def has_experts(model):
    return hasattr(model.config, "num_experts_per_tok")


def losses_of(model, batch):
    """Returns the cross-entropy and the auxiliary loss with its coefficient, or zero."""
    if not has_experts(model):
        return loss_of(model, batch), torch.zeros(())
    if not hasattr(model.config, "router_aux_loss_coef"):  # dots1 has no auxiliary loss
        losses = [loss_of(model, [sample]) for sample in batch]
        return torch.stack(losses).mean(), torch.zeros(())
    losses, aux = [], []
    for sample in batch:
        out = model(torch.tensor(sample["tokens"].astype("int64"))[None], output_router_logits=True)
        losses.append(torch.nn.functional.cross_entropy(out.logits[0], torch.tensor(sample["targets"].astype("int64"))))
        aux.append(model.config.router_aux_loss_coef * out.aux_loss)
    return torch.stack(losses).mean(), torch.stack(aux).mean()


def loss_of(model, batch):
    tokens = torch.tensor(np.stack([sample["tokens"] for sample in batch]).astype("int64"))
    targets = torch.tensor(np.stack([sample["targets"] for sample in batch]).astype("int64"))
    logits = model(tokens).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(model, options, samples):
    decays = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": decays, "weight_decay": options.weight_decay}, {"params": others, "weight_decay": 0}],
                                  betas=(options.beta1, options.beta2), eps=options.eps)
    losses, aux_losses = [], []
    for step in range(1, options.steps + 1):
        loss, aux = losses_of(model, samples.of_step(step, options.global_batch))
        optimizer.zero_grad()
        (loss + aux).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options)
        optimizer.step()
        losses.append(loss.item())
        aux_losses.append(aux.item())
    return {"losses": losses, "aux_losses": aux_losses}


def main():
    spec = json.loads(sys.argv[1])
    options = parse_arguments(["--model", spec["folder"], *spec["flags"]])
    samples = Samples(options.data, options.seq_len, options.seed, False)
    with everything_in_fp64():
        model = make(spec["config"], spec["folder"])
        with torch.no_grad():
            logits = model(torch.tensor([spec["tokens"]])).logits[0].tolist()
        loss, aux = losses_of(model, samples.of_step(1, options.global_batch))
        (loss + aux).backward()
    safetensors.torch.save_file({name: parameter.grad for name, parameter in model.named_parameters()}, spec["gradients"])
    found = {"loss": loss.item(), "logits": logits}
    if has_experts(model):
        with everything_in_fp64():
            found |= train(model, options, samples)
    else:
        narrow = transformers.AutoModelForCausalLM.from_pretrained(spec["folder"], dtype=torch.float32, attn_implementation="eager")
        found |= train(narrow, options, samples)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
