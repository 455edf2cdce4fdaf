"""Trains a Llama on random tokens with PyTorch's FSDP2 and torch.compile, one process per GPU, and prints one JSON line.

This program is compared with `tessera bench step` on GPUs, so it uses every option that makes FSDP2 fast. Each compiled
block is one group of parameters; the embedding and the output are separate groups. Gathers and reductions are in bf16.
`--state` names the types of parameters and moments, and the update (updates.py). Attention is cuDNN's with grouped heads.
Projections of the same input are one product. Clipping and AdamW use few kernels over many weights. The host never waits
for the GPU between steps. Example:
  torchrun --standalone --nproc-per-node 4 bench/peers/fsdp2.py --model llama3-8b --seq-len 8192 --reshard off
"""
import argparse
import gc
import itertools
import json
import math
import os
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel

import updates
from quantiles import quantile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def rotate(x, cosine, sine):
    """RoPE of [batch, heads, length, dim]; cosine and sine are [length, dim / 2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, ffn, eps = config["hidden_size"], config["intermediate_size"], config["rms_norm_eps"]
        self.dim, kv_heads = config["head_dim"], config["num_key_value_heads"]
        self.parts = [heads * self.dim for heads in (config["num_attention_heads"], kv_heads, kv_heads)]
        self.attention_norm, self.mlp_norm = nn.RMSNorm(hidden, eps), nn.RMSNorm(hidden, eps)
        self.qkv = nn.Linear(hidden, sum(self.parts), bias=False)
        self.out = nn.Linear(self.parts[0], hidden, bias=False)
        self.gate_up, self.down = nn.Linear(hidden, 2 * ffn, bias=False), nn.Linear(ffn, hidden, bias=False)

    def forward(self, x, cosine, sine):
        qkv = self.qkv(self.attention_norm(x))
        batch, length, _ = qkv.shape
        q, k, v = (part.view(batch, length, -1, self.dim).transpose(1, 2) for part in qkv.split(self.parts, dim=-1))
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            attention = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(attention.transpose(1, 2).reshape(batch, length, -1))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embedding = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.blocks = nn.ModuleList(Block(config) for _ in range(config["num_hidden_layers"]))
        self.norm = nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        self.output = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)

    def forward(self, tokens, cosine, sine):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cosine, sine)
        return self.output(self.norm(x))


def initialize(model, config):
    """Overwrites the weights, or this process's shards, with random values."""
    with torch.no_grad():
        for weight in map(updates.local, model.parameters()):
            weight.normal_(std=config.get("initializer_range", 0.02)) if weight.dim() > 1 else weight.fill_(1)


def sharded_model(build, config, options):
    """Returns build(config) on this process's GPU with one parameter group per block. options.reshard: whether the backward pass
    gathers parameters again.
    """
    reshard = options.reshard == "on"
    with torch.device("meta"):
        model = build(config).to(updates.STATES[options.state].parameters)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    fully_shard(model.embedding, mp_policy=policy, reshard_after_forward=reshard)
    model.embedding.set_unshard_in_backward(False)  # backward does not read the embedding
    for block in model.blocks:
        block.compile()
        # Backward starts with the output and the last block, so they stay gathered.
        fully_shard(block, mp_policy=policy, reshard_after_forward=reshard and block is not model.blocks[-1])
    fully_shard([model.norm, model.output], mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cuda")
    initialize(model, config)
    return model


def rope_tables(config, length):
    dim = config["head_dim"]
    frequency = config["rope_theta"] ** (-torch.arange(0, dim, 2, device="cuda", dtype=torch.float64) / dim)
    angle = torch.outer(torch.arange(length, device="cuda", dtype=torch.float64), frequency)
    return angle.cos().bfloat16(), angle.sin().bfloat16()


@torch.compile
def cross_entropy(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def training_step(model, update, config, options):
    """Returns a function that runs one whole step and returns its loss as a tensor on the GPU. update: of updates.make_update()."""
    tables = rope_tables(config, options.seq_len)

    def step():
        tokens = torch.randint(config["vocab_size"], (options.micro_batch, options.seq_len + 1), device="cuda")
        loss = cross_entropy(model(tokens[:, :-1], *tables), tokens[:, 1:])
        loss.backward()
        update.step()
        return loss.detach()

    return step


def mark():
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def measure(step, options):
    """Returns the sorted milliseconds of the timed steps, this GPU's maximum memory after a step, and all steps' losses."""
    marks, memory, losses = [mark()], 0, []
    for index in range(options.warmup + options.steps):
        if index == options.warmup:
            gc.collect()
            gc.disable()
        losses.append(step())
        marks.append(mark())
        free, total = torch.cuda.mem_get_info()
        memory = max(memory, total - free)
    torch.cuda.synchronize()
    return sorted(begin.elapsed_time(end) for begin, end in itertools.pairwise(marks[options.warmup:])), memory, torch.stack(losses)


def read_config(options):
    """Reads the config.json of --model: a file, a folder that holds one, or a name under configs/."""
    path = pathlib.Path(options.model)
    path = path if path.exists() else ROOT / "configs" / options.model
    config = json.loads((path / "config.json" if path.is_dir() else path).read_text())
    if config.get("rope_scaling") or config.get("tie_word_embeddings"):
        sys.exit("error: this peer does not support RoPE scaling or tied embeddings")
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    config["num_hidden_layers"] = options.layers or config["num_hidden_layers"]
    return config


def parser_of(description):
    """Returns a parser of the flags of all peers on GPUs."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama3-8b", help="a name under configs/, or a config.json")
    parser.add_argument("--layers", type=int, help="number of layers (default: the model's)")
    for name, default in (("seq-len", 8192), ("micro-batch", 1), ("steps", 20), ("warmup", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser


def print_result(measured, options, words, tokens):
    """Prints the JSON line on the first GPU. measured: the result of measure(). words: what the line also contains. tokens: of
    a GPU and step. Ends the program if a loss is not finite."""
    times, memory, losses = measured
    gpus = dist.get_world_size() if dist.is_initialized() else 1
    if gpus > 1:
        most = torch.tensor(memory, device="cuda")
        dist.all_reduce(most, dist.ReduceOp.MAX)
        dist.all_reduce(losses)
        memory = most.item()
    losses = [loss / gpus for loss in losses.tolist()]
    for step, loss in enumerate(losses, 1):
        if not math.isfinite(loss):
            sys.exit(f"error: the loss of step {step} of {len(losses)} is {loss}: no figure is reported")
    if gpus == 1 or dist.get_rank() == 0:
        p10, median, p90 = (quantile(times, part) for part in (0.1, 0.5, 0.9))
        print(json.dumps(words | {"torch": torch.__version__, "median_ms": median, "p10_ms": p10, "p90_ms": p90,
                                  "peak_memory_bytes": memory, "steps": options.steps,
                                  "tokens_per_second_per_gpu": tokens / median * 1e3, "gpus": gpus,
                                  "loss": losses[-1]}), flush=True)


def train_and_print(model, config, options, words):
    """Measures the steps of a model and prints the JSON line, which also contains words and what the model stores."""
    update = updates.make_update(model, options.state)
    measured = measure(training_step(model, update, config, options), options)
    words |= {"state": options.state, "stored_bytes": update.stored_bytes()}
    print_result(measured, options, words, options.micro_batch * options.seq_len)


def begin_process():
    """Selects the GPU of a process of torchrun and joins the other processes."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(dist.get_rank())


def add_reshard(parser):
    parser.add_argument("--reshard", choices=("on", "off"), default="on", help="gather the weights again in backward")


def main():
    parser = parser_of(__doc__)
    add_reshard(parser)
    updates.add_state(parser)
    options = parser.parse_args()
    config = read_config(options)
    begin_process()
    model = sharded_model(Llama, config, options)
    train_and_print(model, config, options, {"peer": "fsdp2", "reshard": options.reshard})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
