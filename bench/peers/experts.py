"""Trains a model with experts on random tokens with PyTorch's FSDP2, one process per GPU, and prints one JSON line.

`tessera bench step` is compared with this program for Mixtral and Qwen3-MoE. It uses what makes PyTorch fast for experts:
compiled blocks, grouped products over rows that are sorted by expert (no token is dropped), cuDNN's attention with grouped
heads, and one product for projections of the same input. The host never waits for the GPU between steps.

FSDP2 shards all weights over the GPUs, the experts' by expert. Gathers and reductions are in bf16. `--state` names the types
of parameters and moments, and the update (updates.py). Example:
  torchrun --standalone --nproc-per-node 2 bench/peers/experts.py --model mixtral-8x7b --layers 4 --reshard off
"""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import distribute_tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import fsdp2
import updates
from fsdp2 import rotate


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


@torch.no_grad()
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


def add_routing(parser):
    parser.add_argument("--routing", choices=("even", "skewed"), default="even", help="load of the experts")


def main():
    parser = fsdp2.parser_of(__doc__)
    fsdp2.add_reshard(parser)
    updates.add_state(parser)
    add_routing(parser)
    parser.set_defaults(model="mixtral-8x7b")
    options = parser.parse_args()
    config = fsdp2.read_config(options)
    fsdp2.begin_process()
    model = fsdp2.sharded_model(Sparse, config, options)
    set_routing(model, options.routing)
    words = {"peer": "experts, FSDP2", "reshard": options.reshard, "routing": options.routing}
    fsdp2.train_and_print(model, config, options, words)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
