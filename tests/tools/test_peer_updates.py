#!/usr/bin/env python3
"""Compares the updates of the peers on GPUs (bench/peers/updates.py) on a CPU with torch.optim.AdamW and with a formula in fp64.

The test needs a full PyTorch, for example `TORCH_PYTHON=/opt/torch/bin/python`.

An update rounds a number about ten times, each time by at most 2^-24 relative to the parameter or to its smaller change. So after
N updates from equal states, parameters of a size up to S differ by at most 10 N S 2^-24.
"""
import os
import pathlib
import sys
import tempfile
import unittest

try:
    import torch
except ImportError as reason:
    python = os.environ.pop("TORCH_PYTHON", None)
    if python is None:
        print(f"skipped: {reason}: expected a Python with torch in $TORCH_PYTHON")
        sys.exit(77)
    os.execvp(python, [python, *sys.argv])

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "tools"), str(ROOT / "bench" / "peers")]

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import distribute_tensor  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import updates  # noqa: E402
from summary import run_cases  # noqa: E402

# The rate and the decay are large, so that a missing decay or correction is far outside of the bounds.
SETTINGS = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
RANKS, BLOCKS = 2, 3


class Model(nn.Module):
    """Blocks of equal shapes. One rank has no row of the last weight of a block, and ranks have different shares of others."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(5)
        self.embedding = nn.Embedding(33, 24)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(24, 7), nn.Linear(7, 24), nn.Linear(24, 1)) for _ in range(BLOCKS))
        self.to(dtype)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = x + block(x)
        return 30 * x.float().square().mean()  # so that gradients are clipped


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def size_of(tensors):
    return max(1.0, *(tensor.abs().max().item() for tensor in tensors))


def bound(count, tensors):
    return 10 * count * 2**-24 * size_of(tensors)


def set_gradients(models, number, scale):
    """Sets equal random gradients. A scale of 1 gives a norm that is clipped."""
    torch.manual_seed(number)
    for weights in zip(*(model.parameters() for model in models)):
        gradient = torch.randn(weights[0].shape) * scale
        for weight in weights:
            weight.grad = gradient.to(weight.dtype, copy=True)


def rounded(values):
    """Rounds fp64 to bf16 numbers, to nearest, ties to even."""
    mantissa, exponent = torch.frexp(values)
    return torch.ldexp(torch.round(mantissa * 256) / 256, exponent)


def adamw(parameter, gradient, m, v, count):
    """Returns the new parameter and moments of one update in fp64."""
    (beta1, beta2), lr = SETTINGS["betas"], SETTINGS["lr"]
    m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2
    step = m / (1 - beta1**count) / ((v / (1 - beta2**count)).sqrt() + SETTINGS["eps"])
    return parameter * (1 - lr * SETTINGS["weight_decay"]) - lr * step, m, v


def compiled_update(model, state, compiles):
    return updates.CompiledAdamW(updates.groups_of(model), updates.STATES[state], **SETTINGS, compiles=compiles)


class Updates(unittest.TestCase):
    def test_fp32_moments_equal_those_of_torch(self):
        for compiles, scale in ((False, 1), (True, 1), (True, 1e-3)):
            ours, theirs = Model(), Model()
            update, optimizer = compiled_update(ours, "fp32-compiled", compiles), torch.optim.AdamW(theirs.parameters(), **SETTINGS)
            for number in range(20):
                set_gradients((ours, theirs), number, scale)
                self.assertEqual(scale == 1, nn.utils.clip_grad_norm_(theirs.parameters(), updates.MAX_NORM).item() > updates.MAX_NORM)
                update.step()
                optimizer.step()
            for mine, other in zip(ours.parameters(), theirs.parameters()):
                self.assertLessEqual((mine - other).abs().max().item(), bound(20, (mine,)), (compiles, scale))

    def check_bf16_update(self, update, model, number):
        """Compares one update with adamw(). Returns (moments that differ, moments)."""
        weights, masters = update.weights, [master for group in update.masters for master in group]
        old = [[tensor.detach().double() for tensor in tensors] for tensors in (masters, *self.moments(update))]
        gradients = [weight.grad.double() for weight in weights]
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        if weights[0].dtype == torch.bfloat16:  # torch computes the norm of bf16 gradients in bf16
            norm = nn.utils.get_total_norm([weight.grad for weight in weights], foreach=True).double()
        gradients = [gradient * min(1, updates.MAX_NORM / (norm.item() + 1e-6)) for gradient in gradients]
        update.step()
        different = count = 0
        for parameter, gradient, m, v, master, weight, *moments in zip(*(old[:1] + [gradients] + old[1:]), masters, weights,
                                                                       *self.moments(update)):
            expected, *exact = adamw(parameter, gradient, m, v, number + 1)
            self.assertLessEqual((master.double() - expected).abs().max().item(), bound(1, (expected,)))
            self.assertTrue(torch.equal(weight, master.to(weight.dtype)))
            for stored, value in zip(moments, exact):
                self.assertEqual(torch.bfloat16, stored.dtype)
                error = (stored.double() - rounded(value)).abs()
                # Numbers near a tie may become the other neighbor, which is up to 2^-7 away. A sum near 0 has the error of its terms.
                self.assertTrue(torch.all(error <= 2**-7 * value.abs() + 2**-22 * (m.abs() + gradient.abs())), error.max())
                different, count = different + (error > 0).sum().item(), count + error.numel()
        return different, count

    def moments(self, update):
        return [[moment for group in groups for moment in group] for groups in (update.first, update.second)]

    def test_bf16_moments_are_rounded_to_nearest(self):
        """Sums in fp32 change a rounding with a probability of about 2^-13. Other roundings would change half of the moments."""
        for compiles, dtype, scale in ((False, torch.float32, 1), (True, torch.float32, 1e-3), (True, torch.bfloat16, 1)):
            model = Model(dtype)
            update, counts = compiled_update(model, "bf16-moments", compiles), []
            for number in range(20):
                set_gradients((model,), number, scale)
                counts.append(self.check_bf16_update(update, model, number))
            different, count = map(sum, zip(*counts))
            self.assertLessEqual(different, 2**-9 * count, (compiles, dtype))

    def test_no_update_waits_for_the_device(self):
        for state in ("fp32-compiled", "bf16-moments"):
            model = Model()
            update = compiled_update(model, state, compiles=False)
            set_gradients((model,), 0, 1)
            with Recorder() as recorder:
                update.step()
            self.assertIn("aten.lerp.Scalar", recorder.names)
            self.assertFalse({"aten._local_scalar_dense.default", "aten.item.default", "aten.equal.default"} & set(recorder.names))

    def test_blocks_share_compiled_code(self):
        torch._dynamo.reset()
        counters.clear()
        model = Model()
        update = updates.make_update(model, "bf16-moments")
        for number in range(3):
            set_gradients((model,), number, 1)
            update.step()
        self.assertEqual(2, counters["stats"]["unique_graphs"])  # of blocks, and of the embedding

    def test_stored_bytes_are_those_of_the_state(self):
        expected = {"fp32": (2, 4, 8), "fp32-compiled": (2, 4, 8), "bf16-moments": (2, 4, 4), "bf16": (2, 0, 4)}
        self.assertEqual(set(updates.STATES), set(expected))
        for state, numbers in expected.items():
            model = Model(torch.bfloat16)
            update = updates.make_update(model, state)
            set_gradients((model,), 0, 1)
            before = model.embedding.weight.detach().clone()
            update.step()
            self.assertEqual(dict(zip(("weight", "master", "moments"), numbers)), update.stored_bytes())
            self.assertTrue(all(weight.grad is None for weight in model.parameters()))
            self.assertFalse(torch.equal(before, model.embedding.weight))

    def test_shards_of_fsdp2_are_updated_like_whole_parameters(self):
        for state in ("fp32", "bf16-moments"):
            with tempfile.TemporaryDirectory() as folder:
                torch.multiprocessing.spawn(train_shards, args=(state, f"file://{folder}/store"), nprocs=RANKS)


def train_shards(rank, state, store):
    """Trains a model whose weights are sharded over the ranks, and the same whole model on the tokens of all ranks."""
    torch.set_num_threads(1)
    updates.SETTINGS["lr"] = SETTINGS["lr"]
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    sharded, whole = Model(), Model()
    mesh = init_device_mesh("cpu", (RANKS,))
    for block in sharded.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    update, other = updates.make_update(sharded, state), updates.make_update(whole, state)
    empty = torch.tensor(sum(weight.to_local().numel() == 0 for weight in sharded.parameters()))
    dist.all_reduce(empty)
    assert empty > 0, "the test expects an empty shard"
    start = whole.embedding.weight.detach().clone()
    for number in range(5):
        torch.manual_seed(number)
        tokens = torch.randint(33, (RANKS, 40))
        sharded(tokens[rank]).backward()
        (sum(whole(row) for row in tokens) / RANKS).backward()
        assert nn.utils.get_total_norm([weight.grad for weight in whole.parameters()]) > updates.MAX_NORM
        update.step()
        other.step()
    assert (whole.embedding.weight - start).abs().max() > SETTINGS["lr"]
    # Gradients of both models differ by roundings. AdamW divides by the root of v, so differences are relative to the rate.
    for shard, weight in zip(sharded.parameters(), whole.parameters()):
        difference = (shard.full_tensor() - weight).abs().max()
        assert difference <= SETTINGS["lr"] * 2**-6, (state, difference)
    # AdamW hides a wrong norm, but its moments do not.
    for moment, other_moment, weight in zip(update.moments(), other.moments(), [*sharded.parameters()] * 2):
        expected = distribute_tensor(other_moment, mesh, weight.placements).to_local()
        moment = updates.local(moment)
        assert torch.all((moment - expected).abs() <= 2**-6 * other_moment.abs().max()), state
    dist.destroy_process_group()


if __name__ == "__main__":
    run_cases()
