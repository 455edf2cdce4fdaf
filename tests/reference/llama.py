"""A Llama in numpy and fp64, with handwritten forward and backward passes. Tests compare the C++ program with it.

Weights are a dict with Hugging Face names. All functions process one sequence: tokens [S].
"""
import json
import pathlib

import numpy as np

BYTES = {"F64": "<f8", "F32": "<f4", "BF16": "<u2"}


def load_safetensors(path):
    raw = path.read_bytes()
    header_size = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8:8 + header_size]), raw[8 + header_size:]
    weights = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        values = np.frombuffer(data[first:last], BYTES[entry["dtype"]])
        if entry["dtype"] == "BF16":
            values = (values.astype("<u4") << 16).view("<f4")
        weights[name] = values.astype(np.float64).reshape(entry["shape"])
    return weights


def load_folder(folder):
    """Returns (config, weights) of a Hugging Face folder with one or several files."""
    folder = pathlib.Path(folder)
    weights = {}
    for path in sorted(folder.glob("*.safetensors")):
        weights |= load_safetensors(path)
    return json.loads((folder / "config.json").read_text()), weights


def rope_frequencies(config):
    """Returns the frequencies [head_dim / 2]. With rope_type llama3, low frequencies are divided by `factor`, and middle
    frequencies are interpolated."""
    dim = config["head_dim"]
    frequency = config["rope_theta"] ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    scaling = config.get("rope_scaling")
    if not scaling:
        return frequency
    if scaling["rope_type"] != "llama3":
        raise ValueError(f"rope_type {scaling['rope_type']}: expected llama3")
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    turns = scaling["original_max_position_embeddings"] * frequency / (2 * np.pi)  # within the original context
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return frequency * (keep + (1 - keep) / factor)


def rotate(x, angle, sign=1.0):
    """Rotates the pairs (i, i + dim / 2) of x [S, heads, dim] by angle [S, dim / 2]. Sign -1 is the inverse rotation."""
    half = x.shape[-1] // 2
    cosine, sine = np.cos(angle)[:, None, :], sign * np.sin(angle)[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], axis=-1)


def rms_norm(x, weight, eps):
    scale = 1.0 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return x * scale * weight, scale


def rms_norm_backward(dy, x, weight, scale):
    """Returns (dx, dweight)."""
    unit = x * scale
    du = dy * weight
    return scale * (du - unit * (du * unit).mean(-1, keepdims=True)), (dy * unit).sum(0)


def attention(q, k, v, mask):
    """q [S, heads, dim], k and v [S, kv_heads, dim]. Returns the output and the probabilities [heads, S, S]."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = np.einsum("shd,thd->hst", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(mask, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return np.einsum("hst,thd->shd", p, v), p


def attention_backward(do, q, k, v, p):
    kv_heads, group = k.shape[1], q.shape[1] // k.shape[1]
    kr, vr = np.repeat(k, group, 1), np.repeat(v, group, 1)
    dp = np.einsum("shd,thd->hst", do, vr)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
    dv, dk = np.einsum("hst,shd->thd", p, do), np.einsum("hst,shd->thd", ds, q)

    def sum_groups(x):
        return x.reshape(x.shape[0], kv_heads, group, -1).sum(2)

    return np.einsum("hst,thd->shd", ds, kr), sum_groups(dk), sum_groups(dv)


class Llama:
    def __init__(self, config, weights):
        self.config, self.w = config, weights
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads") or self.heads
        self.config.setdefault("head_dim", config["hidden_size"] // self.heads)
        self.dim, self.eps = config["head_dim"], config["rms_norm_eps"]
        self.frequencies = rope_frequencies(config)
        self.output = "model.embed_tokens.weight" if config.get("tie_word_embeddings") else "lm_head.weight"

    def forward(self, sample):
        """Returns the output of the last block, its norm, the scale of the norm, the angles of positions, and the values that
        the backward pass reads."""
        angle = sample["positions"][:, None] * self.frequencies
        x, tape = self.w["model.embed_tokens.weight"][sample["tokens"]], []
        for layer in range(self.config["num_hidden_layers"]):
            x, saved = self.block(f"model.layers.{layer}.", x, angle, sample["mask"])
            tape.append(saved)
        normed, norm_scale = rms_norm(x, self.w["model.norm.weight"], self.eps)
        return x, normed, norm_scale, angle, tape

    def loss(self, sample):
        """Returns the sum of the token losses. Targets of -1 do not count."""
        return self.cross_entropy(self.forward(sample)[1] @ self.w[self.output].T, sample["targets"])[0]

    def loss_and_gradient(self, sample, gradient, scale):
        """Returns the sum of the token losses and adds scale * its gradient to `gradient`. Targets of -1 do not count."""
        tokens, targets = sample["tokens"], sample["targets"]
        x, normed, norm_scale, angle, tape = self.forward(sample)
        loss, dlogits = self.cross_entropy(normed @ self.w[self.output].T, targets)
        dlogits *= scale
        self.begin_backward(tape, targets, scale)
        gradient[self.output] += dlogits.T @ normed
        dx, dnorm = rms_norm_backward(dlogits @ self.w[self.output], x, self.w["model.norm.weight"], norm_scale)
        gradient["model.norm.weight"] += dnorm
        for layer in reversed(range(self.config["num_hidden_layers"])):
            dx = self.block_backward(f"model.layers.{layer}.", dx, tape[layer], angle, gradient)
        np.add.at(gradient["model.embed_tokens.weight"], tokens, dx)
        return loss

    def begin_backward(self, tape, targets, scale):
        """Called before the backward pass of a sample. A model with experts computes the losses of its routers here."""

    @staticmethod
    def cross_entropy(logits, targets):
        counted = targets >= 0
        shifted = logits - logits.max(-1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        rows = np.arange(targets.size)[counted]
        dlogits = np.where(counted[:, None], np.exp(log_p), 0.0)
        dlogits[rows, targets[counted]] -= 1.0
        return -log_p[rows, targets[counted]].sum(), dlogits

    def block(self, name, x, angle, mask):
        w, s = self.w, {"x": x}
        s["h"], s["h_scale"] = rms_norm(x, w[name + "input_layernorm.weight"], self.eps)
        shape = (x.shape[0], -1, self.dim)
        q, k, v = ((s["h"] @ w[f"{name}self_attn.{part}_proj.weight"].T).reshape(shape) for part in "qkv")
        q, k = self.norm_heads(name, s, q, k)
        s["q"], s["k"], s["v"] = rotate(q, angle), rotate(k, angle), v
        out, s["p"] = attention(s["q"], s["k"], s["v"], mask)
        s["o"] = out.reshape(x.shape[0], -1)
        s["y"] = x + s["o"] @ w[name + "self_attn.o_proj.weight"].T
        s["m"], s["m_scale"] = rms_norm(s["y"], w[name + "post_attention_layernorm.weight"], self.eps)
        return s["y"] + self.mlp(name, s), s

    def norm_heads(self, name, s, q, k):
        """q [S, heads, dim], k [S, kv_heads, dim]. A model with norms of heads computes them here."""
        return q, k

    def norm_heads_backward(self, name, s, dq, dk, g):
        return dq, dk

    def mlp(self, name, s):
        return self.feed_forward(name + "mlp.", s)

    def feed_forward(self, module, s):
        w = self.w
        s["gate"] = s["m"] @ w[module + "gate_proj.weight"].T
        s["up"] = s["m"] @ w[module + "up_proj.weight"].T
        s["sigmoid"] = 1.0 / (1.0 + np.exp(-s["gate"]))
        s["act"] = s["gate"] * s["sigmoid"] * s["up"]
        return s["act"] @ w[module + "down_proj.weight"].T

    def block_backward(self, name, dout, s, angle, g):
        w = self.w
        dm = self.mlp_backward(name, dout, s, g)
        dy, dweight = rms_norm_backward(dm, s["y"], w[name + "post_attention_layernorm.weight"], s["m_scale"])
        g[name + "post_attention_layernorm.weight"] += dweight
        dy = dout + dy
        g[name + "self_attn.o_proj.weight"] += dy.T @ s["o"]
        do = (dy @ w[name + "self_attn.o_proj.weight"]).reshape(s["q"].shape)
        dq, dk, dv = attention_backward(do, s["q"], s["k"], s["v"], s["p"])
        dh = np.zeros_like(s["h"])
        dq, dk = self.norm_heads_backward(name, s, rotate(dq, angle, -1.0), rotate(dk, angle, -1.0), g)
        for part, d in zip("qkv", (dq, dk, dv)):
            flat = d.reshape(d.shape[0], -1)
            g[f"{name}self_attn.{part}_proj.weight"] += flat.T @ s["h"]
            dh += flat @ w[f"{name}self_attn.{part}_proj.weight"]
        dx, dweight = rms_norm_backward(dh, s["x"], w[name + "input_layernorm.weight"], s["h_scale"])
        g[name + "input_layernorm.weight"] += dweight
        return dy + dx

    def mlp_backward(self, name, dout, s, g):
        return self.feed_forward_backward(name + "mlp.", dout, s, g)

    def feed_forward_backward(self, module, dout, s, g):
        w = self.w
        g[module + "down_proj.weight"] += dout.T @ s["act"]
        dact = dout @ w[module + "down_proj.weight"]
        silu = s["gate"] * s["sigmoid"]
        dup = dact * silu
        dgate = dact * s["up"] * (s["sigmoid"] + silu * (1.0 - s["sigmoid"]))
        g[module + "gate_proj.weight"] += dgate.T @ s["m"]
        g[module + "up_proj.weight"] += dup.T @ s["m"]
        return dgate @ w[module + "gate_proj.weight"] + dup @ w[module + "up_proj.weight"]
