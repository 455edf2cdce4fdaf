"""A Mixtral in numpy and fp64: a Llama whose feed-forward parts consist of experts (docs/numerics.md)."""
import numpy as np

from llama import Llama


class Mixtral(Llama):
    """`aux`: "layer" or "pooled". The sums of the router's losses over the samples, each times the targets of its sample, are
    in self.aux and self.z. A sample is one block."""

    def __init__(self, config, weights, aux, z_coefficient):
        super().__init__(config, weights)
        self.experts, self.k = config["num_local_experts"], config["num_experts_per_tok"]
        self.pooled, self.z_coefficient = aux == "pooled", z_coefficient
        self.aux_coefficient = config["router_aux_loss_coef"]
        self.aux = self.z = 0.0

    MODULE, MATRICES = "block_sparse_moe.", ("w1", "w3", "w2")  # gate, up, down

    def mlp(self, name, s):
        module, w = name + self.MODULE, self.w
        logits = s["m"] @ w[module + "gate.weight"].T
        most = logits.max(-1, keepdims=True)
        s["lse"] = (most + np.log(np.exp(logits - most).sum(-1, keepdims=True)))[:, 0]
        s["probabilities"] = np.exp(logits - s["lse"][:, None])
        s["chosen"] = np.argsort(-s["probabilities"], axis=-1, kind="stable")[:, :self.k]
        weights = np.take_along_axis(s["probabilities"], s["chosen"], -1)
        s["sum"] = weights.sum(-1, keepdims=True)
        s["weights"] = weights / s["sum"]
        return self.run_experts(module, s, np.ones_like(s["chosen"], bool))

    def run_experts(self, module, s, kept):
        """kept: [tokens, k], the choices that an expert computes."""
        w, out, s["experts"] = self.w, np.zeros_like(s["m"]), {}
        for expert in range(self.experts):
            tokens, slots = np.nonzero(kept & (s["chosen"] == expert))
            x, names = s["m"][tokens], [f"{module}experts.{expert}.{matrix}.weight" for matrix in self.MATRICES]
            gate, up = x @ w[names[0]].T, x @ w[names[1]].T
            sigmoid = 1.0 / (1.0 + np.exp(-gate))
            plain = (gate * sigmoid * up) @ w[names[2]].T
            out[tokens] += s["weights"][tokens, slots][:, None] * plain
            s["experts"][expert] = tokens, slots, x, names, gate, up, sigmoid, plain
        return out

    def begin_backward(self, tape, targets, scale):
        counted = targets >= 0
        total = counted.sum()
        counts = [np.bincount(s["chosen"][counted].ravel(), minlength=self.experts).astype(np.float64) for s in tape]
        for layer, s in enumerate(tape):
            s["dlse"] = np.where(counted, 2 * self.z_coefficient * scale * s["lse"], 0.0)
            self.z += self.z_coefficient * (s["lse"][counted] ** 2).sum()
            if self.pooled:
                share = sum(counts) / (len(tape) * total) / len(tape)
            else:
                share = counts[layer] / (self.k * total)
            self.aux += self.aux_coefficient * self.experts * (share * s["probabilities"][counted].sum(0)).sum()
            s["dprobabilities"] = np.outer(counted, self.aux_coefficient * self.experts * scale * share)

    def experts_backward(self, dout, s, g):
        """Returns the gradients of the experts' inputs and of the routing weights."""
        w, dm, dweights = self.w, np.zeros_like(s["m"]), np.zeros_like(s["weights"])
        for tokens, slots, x, names, gate, up, sigmoid, plain in s["experts"].values():
            dweights[tokens, slots] = (dout[tokens] * plain).sum(-1)
            dplain = s["weights"][tokens, slots][:, None] * dout[tokens]
            silu = gate * sigmoid
            g[names[2]] += dplain.T @ (silu * up)
            dact = dplain @ w[names[2]]
            dgate, dup = dact * up * (sigmoid + silu * (1.0 - sigmoid)), dact * silu
            g[names[0]] += dgate.T @ x
            g[names[1]] += dup.T @ x
            dm[tokens] += dgate @ w[names[0]] + dup @ w[names[1]]
        return dm, dweights

    def mlp_backward(self, name, dout, s, g):
        w = self.w
        dm, dweights = self.experts_backward(dout, s, g)
        dp = s["dprobabilities"].copy()
        mean = (dweights * s["weights"]).sum(-1, keepdims=True)
        np.put_along_axis(dp, s["chosen"], np.take_along_axis(dp, s["chosen"], -1) + (dweights - mean) / s["sum"], -1)
        p = s["probabilities"]
        dlogits = p * (dp - (p * dp).sum(-1, keepdims=True)) + s["dlse"][:, None] * p
        g[name + "block_sparse_moe.gate.weight"] += dlogits.T @ s["m"]
        return dm + dlogits @ w[name + "block_sparse_moe.gate.weight"]
