"""Clipping and AdamW of the peers on GPUs. `--state` names what a peer stores and how it updates.

| state | parameters | moments | update |
|---|---|---|---|
| fp32 | fp32 | fp32 | torch.optim.AdamW, fused |
| fp32-compiled | fp32 | fp32 | CompiledAdamW |
| bf16-moments | fp32 | bf16, rounded to nearest | CompiledAdamW |
| bf16 | bf16 | bf16 | torch.optim.AdamW, fused |

A model may compute with bf16 weights beside fp32 parameters. The parameters are then separate masters, and an update also writes the
weights. No update waits for the GPU.
"""
import dataclasses

import torch
from torch import nn

SETTINGS = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
MAX_NORM = 1.0


@dataclasses.dataclass(frozen=True)
class State:
    parameters: torch.dtype
    moments: torch.dtype
    is_compiled: bool


STATES = {"fp32": State(torch.float32, torch.float32, False), "fp32-compiled": State(torch.float32, torch.float32, True),
          "bf16-moments": State(torch.float32, torch.bfloat16, True), "bf16": State(torch.bfloat16, torch.bfloat16, False)}


def add_state(parser):
    parser.add_argument("--state", choices=STATES, default="fp32", help="what the peer stores (updates.py; default: fp32)")


def groups_of(model):
    """Returns the parameters of each block, and those outside of blocks one by one. Blocks have equal shapes, so they share code."""
    blocks = [list(block.parameters()) for block in model.blocks]
    inside = {id(weight) for block in blocks for weight in block}
    return blocks + [[weight] for weight in model.parameters() if id(weight) not in inside]


def make_update(model, state):
    """Returns the update of a model in `state`, a key of STATES. Weights in another type than the state's get separate masters."""
    state, groups = STATES[state], groups_of(model)
    if state.is_compiled:
        return CompiledAdamW(groups, state, **SETTINGS)
    return FusedAdamW(groups, state, **SETTINGS)


def local(tensor):
    """Returns the shard of a DTensor, and other tensors unchanged. Call it without autograd."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def local_gradient(weight):
    gradient = weight.grad
    if hasattr(gradient, "to_local") and gradient.placements != weight.placements:
        gradient = gradient.redistribute(placements=weight.placements)
    return local(gradient)


def master_of(weight, state):
    """Returns a parameter of the state's type: the weight if it has this type, otherwise a copy."""
    return weight if weight.dtype == state.parameters else weight.detach().to(state.parameters)


def bytes_of(tensors):
    return sum(local(tensor).nbytes for tensor in tensors)


class Update:
    """The weights of a model and their masters."""

    def __init__(self, groups, state):
        self.groups, self.state = groups, state
        self.weights = [weight for group in groups for weight in group]
        self.masters = [[master_of(weight, state) for weight in group] for group in groups]

    def moments(self):
        """Returns the first moments in the order of the weights, then the second moments."""
        raise NotImplementedError

    @torch.no_grad()
    def stored_bytes(self):
        """Returns the bytes of a parameter between steps. The master is 0 if the weight itself is updated."""
        masters = [master for group in self.masters for master in group]
        separate = [master for master, weight in zip(masters, self.weights) if master is not weight]
        count = sum(local(weight).numel() for weight in self.weights)
        return {name: bytes_of(tensors) / count for name, tensors in
                (("weight", self.weights), ("master", separate), ("moments", self.moments()))}


class FusedAdamW(Update):
    """torch.optim.AdamW with fused kernels. Gradients of separate masters are converted first, as AdamW needs gradients in the
    parameters' type."""

    def __init__(self, groups, state, **settings):
        super().__init__(groups, state)
        self.parameters = [master for group in self.masters for master in group]
        self.has_masters = self.parameters[0] is not self.weights[0]
        self.optimizer = torch.optim.AdamW(self.parameters, fused=True, **settings)

    def moments(self):
        return [state[name] for name in ("exp_avg", "exp_avg_sq") for state in self.optimizer.state.values()]

    def step(self):
        # DTensors do not use foreach by default.
        nn.utils.clip_grad_norm_(self.weights, MAX_NORM, foreach=True)
        if self.has_masters:
            for master, weight in zip(self.parameters, self.weights):
                master.grad, weight.grad = weight.grad.float(), None
        self.optimizer.step()
        if self.has_masters:
            torch._foreach_copy_([weight.detach() for weight in self.weights], self.parameters)
        self.optimizer.zero_grad()


def update_group(parameters, gradients, first, second, weights, scalars, betas, eps):
    """Updates a group of tensors in place: AdamW with decoupled decay, computed in fp32. The new parameters are computed from the
    new moments before their rounding. scalars: fp32 tensors of one element, which scalars_of() returns."""
    factor, keep, rate, root = scalars
    for parameter, gradient, m, v, weight in zip(parameters, gradients, first, second, weights):
        gradient = gradient.float() * factor
        new_m = torch.lerp(m.float(), gradient, 1 - betas[0])
        new_v = betas[1] * v.float() + (1 - betas[1]) * gradient * gradient
        new = parameter * keep - rate * new_m / (new_v.sqrt() / root + eps)
        m.copy_(new_m)
        v.copy_(new_v)
        parameter.copy_(new)
        if weight is not parameter:
            weight.copy_(new)


def scalars_of(norm, count, settings):
    """Returns the factor that clips gradients of this norm, 1 - lr decay, lr / (1 - beta1^count) and sqrt(1 - beta2^count).
    norm, count and settings["lr"] are tensors of one element."""
    lr, (beta1, beta2) = settings["lr"], settings["betas"]
    factor = (MAX_NORM / (norm.double() + 1e-6)).clamp(max=1)
    exact = (factor, 1 - lr * settings["weight_decay"], lr / (1 - beta1**count), (1 - beta2**count).sqrt())
    return [scalar.float() for scalar in exact]


class CompiledAdamW(Update):
    """AdamW in kernels of torch.compile, which clip, convert gradients, round moments and write the weights in one pass.

    A call updates a group of parameters, and groups of equal shapes share their code, so few graphs are compiled. The number of the
    update and the rate are tensors on the device: a step neither waits for the device nor compiles again.
    """

    def __init__(self, groups, state, *, lr, betas, eps, weight_decay, compiles=True):
        super().__init__(groups, state)
        device = self.weights[0].device
        self.settings = {"lr": torch.tensor(lr, dtype=torch.float64, device=device), "betas": betas, "weight_decay": weight_decay}
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.eps = eps
        # Static shapes, because vector loads need sizes that the compiler knows. fullgraph: no part runs without being compiled.
        self.update = torch.compile(update_group, fullgraph=True, dynamic=False) if compiles else update_group
        with torch.no_grad():
            self.first, self.second = ([[torch.zeros_like(local(master), dtype=state.moments) for master in group]
                                        for group in self.masters] for _ in range(2))

    def moments(self):
        return [moment for groups in (self.first, self.second) for group in groups for moment in group]

    @torch.no_grad()
    def step(self):
        norm = nn.utils.get_total_norm([weight.grad for weight in self.weights], foreach=True)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        self.count += 1
        scalars = scalars_of(norm, self.count, self.settings)
        for weights, masters, first, second in zip(self.groups, self.masters, self.first, self.second):
            # FSDP2 may replace the shard of a parameter in the first forward pass, so shards are read in each step. Shards may be empty.
            rows = [row for row in zip(map(local, masters), map(local_gradient, weights), first, second, map(local, weights))
                    if row[0].numel() > 0]
            if rows:
                self.update(*map(list, zip(*rows)), scalars, self.settings["betas"], self.eps)
        for weight in self.weights:
            weight.grad = None
