"""A dots1 in numpy and fp64: the routing of DeepSeek-V3 in a Llama with norms of heads (docs/numerics.md)."""
import math
from fractions import Fraction

import numpy as np

from llama import Llama, rms_norm, rms_norm_backward
from mixtral import Mixtral


class Dots1(Mixtral):
    """A sample is one block. `capacity` is 0 or --expert-capacity. self.counts holds the counts of the samples by layer,
    and self.dropped the number of choices beyond the capacity."""

    MODULE, MATRICES = "mlp.", ("gate_proj", "up_proj", "down_proj")

    def __init__(self, config, weights, capacity):
        Llama.__init__(self, config, weights)
        self.experts, self.k, self.capacity = config["n_routed_experts"], config["num_experts_per_tok"], capacity
        self.biases = {name: weights.pop(name) for name in list(weights) if name.endswith("e_score_correction_bias")}
        self.aux = self.z = 0.0
        self.begin_step()

    def begin_step(self):
        self.counts = {name: np.zeros(self.experts, np.int64) for name in self.biases}
        self.dropped = 0

    def update_biases(self, rate):
        for name, bias in self.biases.items():
            counts = self.counts[name]
            bias += rate * np.sign(counts.sum() - self.experts * counts)

    def norm_heads(self, name, s, q, k):
        normed = []
        for part, x in (("q", q), ("k", k)):
            rows = x.reshape(-1, self.dim)
            out, scale = rms_norm(rows, self.w[f"{name}self_attn.{part}_norm.weight"], self.eps)
            s[part + "_rows"], s[part + "_scale"] = rows, scale
            normed.append(out.reshape(x.shape))
        return normed

    def norm_heads_backward(self, name, s, dq, dk, g):
        gradients = []
        for part, d in (("q", dq), ("k", dk)):
            weight = f"{name}self_attn.{part}_norm.weight"
            dx, dweight = rms_norm_backward(d.reshape(-1, self.dim), s[part + "_rows"], self.w[weight], s[part + "_scale"])
            g[weight] += dweight
            gradients.append(dx.reshape(d.shape))
        return gradients

    def is_dense(self, name):
        return f"{name}mlp.gate.weight" not in self.w

    def choose(self, ranks):
        """ranks: [tokens, experts]. Returns the chosen experts: [tokens, k]."""
        groups, chosen = self.config["n_group"], self.config["topk_group"]
        parts = ranks.reshape(len(ranks), groups, -1)
        if groups > 1:
            best = np.sort(parts, -1)[..., -2:].sum(-1)
            out = np.argsort(-best, -1, kind="stable")[:, chosen:]
            ranks = parts.copy()
            np.put_along_axis(ranks, out[..., None], -np.inf, 1)
        return np.argsort(-ranks.reshape(len(parts), -1), -1, kind="stable")[:, :self.k]

    def within_capacity(self, s):
        kept = np.ones_like(s["chosen"], bool)
        if not self.capacity:
            return kept
        most = max(1, math.ceil(Fraction(str(self.capacity)) * len(kept) * self.k / self.experts))
        for expert in range(self.experts):
            tokens, slots = np.nonzero(s["chosen"] == expert)
            dropped = np.argsort(-s["weights"][tokens, slots], kind="stable")[most:]
            kept[tokens[dropped], slots[dropped]] = False
        self.dropped += int((~kept).sum())
        return kept

    def mlp(self, name, s):
        if self.is_dense(name):
            return Llama.mlp(self, name, s)
        w, module = self.w, name + self.MODULE
        s["scores"] = 1.0 / (1.0 + np.exp(-s["m"] @ w[module + "gate.weight"].T))
        s["bias"] = module + "gate.e_score_correction_bias"
        s["chosen"] = self.choose(s["scores"] + self.biases[s["bias"]])
        weights = np.take_along_axis(s["scores"], s["chosen"], -1)
        s["sum"] = weights.sum(-1, keepdims=True) + 1e-20 if self.config["norm_topk_prob"] else np.ones((len(weights), 1))
        s["weights"] = weights / s["sum"] * self.config["routed_scaling_factor"]
        out = self.run_experts(module, s, self.within_capacity(s))
        if self.config["n_shared_experts"]:
            s["shared"] = {"m": s["m"]}
            out = out + self.feed_forward(module + "shared_experts.", s["shared"])
        return out

    def begin_backward(self, tape, targets, scale):
        for s in tape:
            if "chosen" in s:
                self.counts[s["bias"]] += np.bincount(s["chosen"][targets >= 0].ravel(), minlength=self.experts)

    def mlp_backward(self, name, dout, s, g):
        if self.is_dense(name):
            return Llama.mlp_backward(self, name, dout, s, g)
        module, factor = name + self.MODULE, self.config["routed_scaling_factor"]
        dm, dweights = self.experts_backward(dout, s, g)
        mean = (dweights * s["weights"]).sum(-1, keepdims=True) if self.config["norm_topk_prob"] else 0.0
        dscores = np.zeros_like(s["scores"])
        np.put_along_axis(dscores, s["chosen"], (factor * dweights - mean) / s["sum"], -1)
        dlogits = dscores * s["scores"] * (1.0 - s["scores"])
        g[module + "gate.weight"] += dlogits.T @ s["m"]
        dm = dm + dlogits @ self.w[module + "gate.weight"]
        if "shared" in s:
            dm = dm + self.feed_forward_backward(module + "shared_experts.", dout, s["shared"], g)
        return dm
