"""Writes models, weights and text for the runs; every call writes the same files. Uses only the standard library."""
import array
import json
import random
import struct
import sys

VOCABULARY = 331  # a prime number, so that it is not divisible by any degree
# Few degrees divide the sizes of these models.
ODD = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 96,
       "intermediate_size": 200, "num_hidden_layers": 3, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 32,
       "max_position_embeddings": 512, "rope_theta": 10000.0, "rope_scaling": None, "rms_norm_eps": 1e-5,
       "initializer_range": 0.02, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False}
LONG_POSITIONS = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 64}
# Fields of every architecture. The lists of the other fields differ.
SMALL = {name: ODD[name] for name in ("vocab_size", "max_position_embeddings", "rope_theta", "rms_norm_eps", "initializer_range",
                                      "hidden_act", "tie_word_embeddings")}
SMALL |= {"num_hidden_layers": 2, "attention_bias": False}
EXPERTS = {**SMALL, "hidden_size": 59, "intermediate_size": 71, "num_attention_heads": 15, "num_key_value_heads": 3, "head_dim": 14,
           "num_experts_per_tok": 2, "moe_intermediate_size": 29, "norm_topk_prob": True}
MODELS = {
    "odd": ODD,
    "tied": {**ODD, "tie_word_embeddings": True},
    # Five query heads share each key head; the head size is not a power of two; positions are scaled.
    "groups": {**ODD, "hidden_size": 61, "intermediate_size": 77, "num_hidden_layers": 2, "num_attention_heads": 25,
               "num_key_value_heads": 5, "head_dim": 10, "rope_scaling": LONG_POSITIONS},
    # Number formats with 4 bits need even sizes. No size is divisible by the size of a tile.
    "even": {**ODD, "hidden_size": 72, "intermediate_size": 332, "num_hidden_layers": 2, "num_attention_heads": 6,
             "num_key_value_heads": 2, "head_dim": 12},
    "qwen2": {**SMALL, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 57, "intermediate_size": 83,
              "num_attention_heads": 21, "num_key_value_heads": 7, "head_dim": 6, "use_sliding_window": False,
              "tie_word_embeddings": True},
    "qwen3": {**SMALL, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 59, "intermediate_size": 71,
              "num_attention_heads": 15, "num_key_value_heads": 3, "head_dim": 14, "use_sliding_window": False},
    "mixtral": {**SMALL, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 61, "intermediate_size": 29,
                "num_attention_heads": 25, "num_key_value_heads": 5, "head_dim": 10, "sliding_window": None, "num_local_experts": 7,
                "num_experts_per_tok": 2, "router_aux_loss_coef": 0.02},
    # The second layer is dense.
    "qwen3_moe": {**EXPERTS, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "use_sliding_window": False,
                  "num_experts": 7, "router_aux_loss_coef": 0.01, "decoder_sparse_step": 1, "mlp_only_layers": [1]},
    # The first layer is dense. Each router chooses two of three groups of experts first.
    "dots1": {**EXPERTS, "architectures": ["Dots1ForCausalLM"], "model_type": "dots1", "sliding_window": None,
              "scoring_func": "noaux_tc", "n_routed_experts": 9, "n_shared_experts": 2, "n_group": 3, "topk_group": 2,
              "routed_scaling_factor": 2.5, "first_k_dense_replace": 1},
}
# GPUs multiply matrices directly if all sizes are multiples of 8, or of 128 for tiles. Other matrices are padded.
WHOLE = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
MODELS |= {
    "whole": {**ODD, **WHOLE, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 64},
    "whole-experts": {**MODELS["mixtral"], **WHOLE, "intermediate_size": 64},
    "whole-dots1": {**MODELS["dots1"], **WHOLE, "intermediate_size": 256, "moe_intermediate_size": 64},
}
# Hugging Face folders: the model of each.
FOLDERS = {"odd-weights": "odd", "mixtral-weights": "mixtral"}


def documents(seed, count):
    """Yields texts of tokens. Most tokens follow from the token before, so that a model can learn them."""
    draw = random.Random(seed)
    for _ in range(count):
        token = draw.randrange(VOCABULARY)
        text = []
        for _ in range(draw.randrange(20, 110)):
            token = (7 * token + 3) % VOCABULARY if draw.random() < 0.75 else draw.randrange(VOCABULARY)
            text.append(token)
        yield text


def write_tokens(prefix, texts):
    """Writes PREFIX.bin and PREFIX.idx for `--data PREFIX`, and returns the prefix."""
    texts = list(texts)
    lengths = [len(text) for text in texts]
    offsets = [2 * sum(lengths[:index]) for index in range(len(texts))]
    count = len(texts)
    prefix.with_suffix(".bin").write_bytes(b"".join(struct.pack(f"<{len(text)}H", *text) for text in texts))
    prefix.with_suffix(".idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1) + struct.pack(f"<{count}i", *lengths)
        + struct.pack(f"<{count}q", *offsets) + struct.pack(f"<{count + 1}q", *range(count + 1)))
    return prefix


def feed_forward_shapes(config):
    """Returns {name in a layer: shape} of the feed-forward part of Llama or Mixtral."""
    hidden, inner, experts = config["hidden_size"], config["intermediate_size"], config.get("num_local_experts", 0)
    if not experts:
        return {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)}
    return {"block_sparse_moe.gate": (experts, hidden),
            **{f"block_sparse_moe.experts.{expert}.{name}": (hidden, inner) if name == "w2" else (inner, hidden)
               for expert in range(experts) for name in ("w1", "w2", "w3")}}


def tensor_shapes(config):
    """Returns {Hugging Face name: shape} of every tensor of a Llama or Mixtral without biases and tied weights."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    heads = {name: config[f"num_{kind}_heads"] * config["head_dim"]
             for name, kind in (("q", "attention"), ("k", "key_value"), ("v", "key_value"))}
    layer = {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,), "self_attn.o_proj": (hidden, heads["q"]),
             **{f"self_attn.{name}_proj": (rows, hidden) for name, rows in heads.items()}, **feed_forward_shapes(config)}
    return {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden),
            **{f"model.layers.{index}.{name}.weight": shape for index in range(config["num_hidden_layers"])
               for name, shape in layer.items()}}


def write_weights(folder, config, seed):
    """Writes a Hugging Face folder with random fp32 weights, and returns the folder. Norms are near 1."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    draw, header, values = random.Random(seed), {}, array.array("f")
    for name, shape in tensor_shapes(config).items():
        begin, count, middle = len(values), shape[0] * (shape[1] if len(shape) > 1 else 1), float(len(shape) == 1)
        values.extend(middle + 0.1 * (draw.random() - 0.5) for _ in range(count))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [4 * begin, 4 * len(values)]}
    if sys.byteorder == "big":
        values.byteswap()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + values.tobytes())
    return folder


def write_inputs(folder, names):
    """Writes the texts, all models and those folders of weights that are among the names. Returns {name: value of the flag}."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, config in MODELS.items():
        (folder / f"{name}.json").write_text(json.dumps(config, indent=2))
    return {**{name: folder / f"{name}.json" for name in MODELS},
            **{name: write_weights(folder / name, MODELS[model], seed=22) for name, model in FOLDERS.items() if name in names},
            "data": write_tokens(folder / "train", documents(seed=20, count=150)),
            "valid": write_tokens(folder / "valid", documents(seed=21, count=12))}
