"""Trains a Llama in one process of plain PyTorch. This program is compared with `tessera train` on the same model and batch.

Needs a full PyTorch (the small CPU build in .venv has no Python package that imports). Prints one JSON line with
tokens_per_second over the steps after the warm-up. Example with the demo's configuration:
  python3 bench/peers/plain_torch.py --model configs/llama-demo --data data/demo/train --seq-len 128 --global-batch 16 --threads 2
"""
import argparse
import json
import math
import pathlib
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads, self.kv_heads, self.dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
        hidden = config["hidden_size"]
        self.qkv = nn.Linear(hidden, (self.heads + 2 * self.kv_heads) * self.dim, bias=False)
        self.out = nn.Linear(self.heads * self.dim, hidden, bias=False)

    def forward(self, x, cosine, sine):
        batch, length, _ = x.shape
        parts = [self.heads * self.dim, self.kv_heads * self.dim, self.kv_heads * self.dim]
        q, k, v = (part.view(batch, length, -1, self.dim).transpose(1, 2) for part in self.qkv(x).split(parts, dim=-1))
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        group = self.heads // self.kv_heads
        if group > 1:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).reshape(batch, length, -1))


def rotate(x, cosine, sine):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, ffn, eps = config["hidden_size"], config["intermediate_size"], config["rms_norm_eps"]
        self.attention_norm, self.mlp_norm = nn.RMSNorm(hidden, eps), nn.RMSNorm(hidden, eps)
        self.attention = Attention(config)
        self.gate_up, self.down = nn.Linear(hidden, 2 * ffn, bias=False), nn.Linear(ffn, hidden, bias=False)

    def forward(self, x, cosine, sine):
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.blocks = nn.ModuleList(Block(config) for _ in range(config["num_hidden_layers"]))
        self.norm = nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        self.output = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=config.get("initializer_range", 0.02))
        if config.get("tie_word_embeddings"):
            self.output.weight = self.embedding.weight

    def forward(self, tokens):
        dim, x = self.config["head_dim"], self.embedding(tokens)
        frequency = self.config["rope_theta"] ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        angle = torch.outer(torch.arange(tokens.shape[1], dtype=torch.float64), frequency)
        cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cosine, sine)
        return self.output(self.norm(x))


def batches(options, vocab_size):
    """Yields batches [global_batch, seq_len + 1] of the data's first tokens, or of random tokens."""
    size = options.global_batch * options.seq_len
    if options.data:
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
        from indexed_dataset import read_dataset
        stream = torch.from_numpy(read_dataset(options.data)[0])
    else:
        stream = torch.randint(vocab_size, ((options.warmup + options.steps) * size + 1,))
    for step in range(options.warmup + options.steps):
        first = step * size % max(len(stream) - size - 1, 1)
        rows = stream[first:first + size + 1].unfold(0, options.seq_len + 1, options.seq_len)
        yield rows[:options.global_batch]


def train_step(model, optimizer, batch, options):
    """Runs one step over the global batch in micro-batches. Returns the loss."""
    total = 0.0
    for rows in batch.split(options.micro_batch):
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten(), reduction="sum")
        loss = loss / (batch.shape[0] * options.seq_len)
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return total


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=pathlib.Path("configs/llama-demo"))
    parser.add_argument("--data", help="PREFIX of a token file; default: random tokens")
    for name, default in (("seq-len", 128), ("global-batch", 16), ("micro-batch", 0), ("steps", 20), ("warmup", 3),
                          ("threads", 2), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    return parser.parse_args()


def main():
    options = parse_arguments()
    options.micro_batch = options.micro_batch or options.global_batch
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    path = options.model / "config.json" if options.model.is_dir() else options.model
    config = json.loads(path.read_text())
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    if config.get("rope_scaling"):
        sys.exit("error: this peer does not support RoPE scaling")
    model = Llama(config).to(torch.bfloat16 if options.dtype == "bf16" else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    times, losses = [], []
    for batch in batches(options, config["vocab_size"]):
        start = time.perf_counter()
        losses.append(train_step(model, optimizer, batch, options))
        times.append(time.perf_counter() - start)
        if not math.isfinite(losses[-1]):
            sys.exit(f"error: the loss of step {len(losses)} is {losses[-1]}: no figure is reported")
    seconds = sorted(times[options.warmup:])
    tokens = options.global_batch * options.seq_len
    print(json.dumps({"peer": "plain_torch", "torch": torch.__version__, "dtype": options.dtype, "threads": options.threads,
                      "tokens_per_second": tokens * len(seconds) / sum(seconds), "step_ms": 1e3 * sum(seconds) / len(seconds),
                      "median_step_ms": 1e3 * seconds[len(seconds) // 2], "first_loss": losses[0], "last_loss": losses[-1]}))


if __name__ == "__main__":
    main()
