"""Writes models and text for the runs; every call writes the same files. Uses only the standard library."""
import json
import random
import struct

VOCABULARY = 331  # a prime number, so that it is not divisible by any degree
# Few degrees divide the sizes of these models.
ODD = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 96,
       "intermediate_size": 200, "num_hidden_layers": 3, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 32,
       "max_position_embeddings": 512, "rope_theta": 10000.0, "rope_scaling": None, "rms_norm_eps": 1e-5,
       "initializer_range": 0.02, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False}
LONG_POSITIONS = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 64}
MODELS = {
    "odd": ODD,
    "tied": {**ODD, "tie_word_embeddings": True},
    # Five query heads share each key head; the head size is not a power of two; positions are scaled.
    "groups": {**ODD, "hidden_size": 61, "intermediate_size": 77, "num_hidden_layers": 2, "num_attention_heads": 25,
               "num_key_value_heads": 5, "head_dim": 10, "rope_scaling": LONG_POSITIONS},
}


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


def write_inputs(folder):
    """Writes all models and texts into a folder. Returns {name: value of the flag}."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, config in MODELS.items():
        (folder / f"{name}.json").write_text(json.dumps(config, indent=2))
    return {**{name: folder / f"{name}.json" for name in MODELS},
            "data": write_tokens(folder / "train", documents(seed=20, count=150)),
            "valid": write_tokens(folder / "valid", documents(seed=21, count=12))}
