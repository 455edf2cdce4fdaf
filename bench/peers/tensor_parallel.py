"""Trains the Llama of fsdp2.py with PyTorch's DTensor tensor parallelism over all GPUs and prints one JSON line.

Activations between products are sharded by tokens (sequence parallelism), blocks are compiled, products are bf16 by
autocast, and weights and AdamW's state are fp32. With `--async on`, torch.compile divides products and their transfers
into pieces that overlap (micro-pipelined tensor parallelism). The JSON line counts the fused operators of a step, and
the program fails if it counts 0. Each GPU's part of a stacked projection is stacked alone (q | k | v, gate | up),
which only permutes random rows. Example:
  torchrun --standalone --nproc-per-node 2 bench/peers/tensor_parallel.py --model llama3-8b --layers 8 --async on
"""
import os
import sys

import fsdp2
import updates
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel,
                                               parallelize_module)

FUSED = ("fused_all_gather", "fused_matmul_reduce", "fused_scaled_matmul_reduce")


class Block(fsdp2.Block):
    """A block that computes this GPU's heads and its part of the feed-forward layer."""

    def __init__(self, config):
        super().__init__(config)
        self.parts = [part // dist.get_world_size() for part in self.parts]


def tensor_parallel_model(config, mesh):
    """Returns a Llama whose weights are sharded over the mesh's GPUs."""
    with torch.device("meta"):
        model = fsdp2.Llama(config)
        model.blocks = nn.ModuleList(Block(config) for _ in range(config["num_hidden_layers"]))
    tokens, norm = Shard(1), SequenceParallel(use_local_output=True)
    column = ColwiseParallel(input_layouts=tokens, use_local_output=True)
    row = RowwiseParallel(input_layouts=Shard(-1), output_layouts=tokens, use_local_output=True)
    parallelize_module(model, mesh, {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=tokens, use_local_output=True),
        "norm": norm, "output": ColwiseParallel(input_layouts=tokens, output_layouts=Shard(-1), use_local_output=False)})
    for block in model.blocks:
        parallelize_module(block, mesh, {"attention_norm": norm, "mlp_norm": norm, "qkv": column, "gate_up": column,
                                         "out": row, "down": row})
        block.compile()
    model.to_empty(device="cuda")
    with torch.no_grad():
        for weight in model.parameters():
            shard = weight.to_local()
            shard.normal_(std=config.get("initializer_range", 0.02)) if weight.dim() == 2 else shard.fill_(1)
    return model


def training_step(config, options, mesh):
    """Returns a function that runs one whole step and returns its loss as a tensor on the GPU."""
    model = tensor_parallel_model(config, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, **updates.SETTINGS)
    tables = fsdp2.rope_tables(config, options.seq_len)

    def step():
        tokens = torch.randint(config["vocab_size"], (options.micro_batch, options.seq_len + 1), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens[:, :-1], *tables)
        with loss_parallel():
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), updates.MAX_NORM, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.detach()
        return loss.full_tensor() if hasattr(loss, "full_tensor") else loss

    return step


def fused_operators(step):
    """Returns how often a step calls each operator that overlaps a product with its transfer."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
        torch.cuda.synchronize()
    return {event.key: event.count for event in profile.key_averages() if any(word in event.key for word in FUSED)}


def use_async(mesh):
    import torch._inductor.config
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group
    torch._inductor.config._micro_pipeline_tp = True
    enable_symm_mem_for_group(mesh.get_group().group_name)


def main():
    parser = fsdp2.parser_of(__doc__)
    parser.add_argument("--async", dest="is_async", choices=("on", "off"), default="off",
                        help="overlap products with transfers")
    options = parser.parse_args()
    config = fsdp2.read_config(options)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(0)  # all GPUs read the same tokens
    torch._dynamo.config.cache_size_limit = 64
    if options.is_async == "on":
        use_async(mesh)
    step = training_step(config, options, mesh)
    measured = fsdp2.measure(step, options)
    fused = fused_operators(step)
    if options.is_async == "on" and not fused:
        sys.exit("error: --async on: torch.compile fused no product with a transfer: no figure is reported")
    fsdp2.print_result(measured, options, {"peer": "dtensor tp", "async": options.is_async, "fused": fused},
                       options.micro_batch * options.seq_len / dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
