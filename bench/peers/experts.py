"""Trains a model with experts on random tokens with PyTorch, and prints one JSON line.

`tessera bench step` is compared with this program for Mixtral and Qwen3-MoE. It uses what makes PyTorch fast for experts:
compiled blocks, grouped products over rows that are sorted by expert (no token is dropped), cuDNN's attention with grouped
heads, one product for projections of the same input, and fused AdamW. The host never waits for the GPU between steps.

On one GPU, weights and AdamW's state are in bf16, which is less work than Tessera's fp32 states unless --masters on is given.
Under torchrun with several processes, FSDP2 shards all weights over the GPUs, the experts' by expert. Master weights and
AdamW's state are then in fp32, gathers and reductions in bf16 (fsdp2.py). Examples:
  python3 bench/peers/experts.py --model mixtral-8x7b --layers 2 --routing skewed
  torchrun --standalone --nproc-per-node 2 bench/peers/experts.py --model mixtral-8x7b --layers 4 --reshard off
"""
import argparse
import json
import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import distribute_tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import fsdp2
from fsdp2 import cross_entropy, measure, read_config, rope_tables, rotate
from quantiles import quantile


def sizes_of_experts(config):
    """Returns (experts, choices of a token, width, whether a token's weights are divided by their sum)."""
    if config["model_type"] == "mixtral":
        return config["num_local_experts"], config["num_experts_per_tok"], config["intermediate_size"], True
    return config["num_experts"], config["num_experts_per_tok"], config["moe_intermediate_size"], config["norm_topk_prob"]


class SparseBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, eps, self.dim = config["hidden_size"], config["rms_norm_eps"], config["head_dim"]
        kv_heads = config["num_key_value_heads"]
        self.parts = [heads * self.dim for heads in (config["num_attention_heads"], kv_heads, kv_heads)]
        self.attention_norm, self.mlp_norm = nn.RMSNorm(hidden, eps), nn.RMSNorm(hidden, eps)
        self.has_head_norms = config["model_type"] == "qwen3_moe"
        if self.has_head_norms:
            self.q_norm, self.k_norm = nn.RMSNorm(self.dim, eps), nn.RMSNorm(self.dim, eps)
        self.qkv = nn.Linear(hidden, sum(self.parts), bias=False)
        self.out = nn.Linear(self.parts[0], hidden, bias=False)
        self.experts, self.choices, width, self.normalizes = sizes_of_experts(config)
        self.router = nn.Linear(hidden, self.experts, bias=False)
        self.gate_up = nn.Parameter(torch.empty(self.experts, 2 * width, hidden))
        self.down = nn.Parameter(torch.empty(self.experts, hidden, width))

    def attention(self, x, cosine, sine):
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, -1, self.dim) for part in self.qkv(self.attention_norm(x)).split(self.parts, dim=-1))
        if self.has_head_norms:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = rotate(q.transpose(1, 2), cosine, sine), rotate(k.transpose(1, 2), cosine, sine), v.transpose(1, 2)
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            attention = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(attention.transpose(1, 2).reshape(batch, length, -1))

    def mixture(self, x):
        """x: [tokens, hidden]. Sorts the rows by expert, multiplies each group, and adds the rows of each token."""
        weights, chosen = torch.topk(F.softmax(self.router(x).float(), dim=-1), self.choices, dim=-1)
        if self.normalizes:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.zeros(self.experts, dtype=torch.int32, device=x.device)
        ends = counts.index_add_(0, chosen.flatten(), torch.ones_like(chosen.flatten(), dtype=torch.int32)).cumsum(0, dtype=torch.int32)
        tokens = order // self.choices
        gate, up = torch._grouped_mm(x[tokens], self.gate_up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
        rows = torch._grouped_mm(F.silu(gate) * up, self.down.transpose(1, 2), offs=ends)
        rows = rows * weights.flatten()[order].unsqueeze(1).to(x.dtype)
        return torch.zeros_like(x).index_add_(0, tokens, rows)

    def forward(self, x, cosine, sine):
        x = x + self.attention(x, cosine, sine)
        return x + self.mixture(self.mlp_norm(x).flatten(0, 1)).view_as(x)


class Sparse(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embedding = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.blocks = nn.ModuleList(SparseBlock(config) for _ in range(config["num_hidden_layers"]))
        self.norm = nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        self.output = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)

    def forward(self, tokens, cosine, sine):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cosine, sine)
        return self.output(self.norm(x))


def set_routing(model, routing):
    """Changes the initial values as Tessera's benchmark does. With embeddings that are 1000 times as large as usual, tokens choose
    experts independently of each other. Skewed routing also multiplies row e of each router by 1 / (e + 1)."""
    model.embedding.weight.mul_(1000)
    if routing == "even":
        return
    for block in model.blocks:
        divisors, weight = torch.arange(1, block.experts + 1, device="cuda", dtype=torch.float32).unsqueeze(1), block.router.weight
        if isinstance(weight, nn.Parameter) and hasattr(weight, "to_local"):
            weight.to_local().div_(distribute_tensor(divisors, weight.device_mesh, weight.placements).to_local())
        else:
            weight.div_(divisors)


def sparse_model(config, routing):
    """Returns a model in bf16 on one GPU."""
    with torch.device("cuda"):
        model = Sparse(config).bfloat16()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=config.get("initializer_range", 0.02)) if weight.dim() > 1 else weight.fill_(1)
        set_routing(model, routing)
    for block in model.blocks:
        block.compile()
    return model


def training_step(config, options):
    """Returns a function that runs one whole step and returns its loss as a tensor on the GPU."""
    model = sparse_model(config, options.routing)
    parameters = list(model.parameters())
    masters = [weight.detach().float().requires_grad_() for weight in parameters] if options.masters == "on" else parameters
    optimizer = torch.optim.AdamW(masters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tables = rope_tables(config, options.seq_len)

    def step():
        tokens = torch.randint(config["vocab_size"], (options.micro_batch, options.seq_len + 1), device="cuda")
        loss = cross_entropy(model(tokens[:, :-1], *tables), tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        if masters is not parameters:
            for master, weight in zip(masters, parameters):
                master.grad = weight.grad.float()
        optimizer.step()
        if masters is not parameters:
            torch._foreach_copy_([weight.detach() for weight in parameters], masters)
            optimizer.zero_grad()
        model.zero_grad()
        return loss.detach()

    return step


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mixtral-8x7b", help="a name under configs/, or a config.json")
    parser.add_argument("--layers", type=int, help="number of layers (default: the model's)")
    parser.add_argument("--routing", choices=("even", "skewed"), default="even", help="load of the experts")
    parser.add_argument("--masters", choices=("on", "off"), default="off", help="one GPU: update masters in fp32, as Tessera does")
    fsdp2.add_reshard(parser)
    for name, default in (("seq-len", 8192), ("micro-batch", 1), ("steps", 20), ("warmup", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def run_sharded(options):
    """Runs one of several processes of torchrun."""
    config = read_config(options)
    fsdp2.begin_process()
    model = fsdp2.sharded_model(Sparse, config, options.reshard == "on")
    with torch.no_grad():
        set_routing(model, options.routing)
    measured = measure(fsdp2.training_step(model, config, options), options)
    words = {"peer": "experts, FSDP2", "reshard": options.reshard, "routing": options.routing, "masters": "on"}
    fsdp2.print_result(measured, options, words, options.micro_batch * options.seq_len)
    dist.destroy_process_group()


def main():
    options = parse_arguments()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        run_sharded(options)
        return
    torch.manual_seed(0)
    times, memory, losses = measure(training_step(read_config(options), options), options)
    losses = losses.tolist()
    for step, loss in enumerate(losses, 1):
        if not math.isfinite(loss):
            raise SystemExit(f"error: the loss of step {step} of {len(losses)} is {loss}: no figure is reported")
    p10, median, p90 = (quantile(times, part) for part in (0.1, 0.5, 0.9))
    print(json.dumps({"peer": "experts", "torch": torch.__version__, "median_ms": median, "p10_ms": p10, "p90_ms": p90,
                      "peak_memory_bytes": memory, "steps": options.steps, "routing": options.routing, "masters": options.masters,
                      "tokens_per_second_per_gpu": options.micro_batch * options.seq_len / median * 1e3, "gpus": 1,
                      "loss": losses[-1]}), flush=True)


if __name__ == "__main__":
    main()
