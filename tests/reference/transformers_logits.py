"""Compares models in transformers. `transformers_logits.py QUANTIZED VALUES PLAIN` prints one JSON object.

QUANTIZED is a folder with fp8 blocks, which is loaded with dequantize=True. VALUES contains its dequantized values in bf16. PLAIN
is the bf16 model that was quantized.
"""
import json
import sys

import accelerate
import torch
import transformers

DEQUANTIZE = transformers.FineGrainedFP8Config(dequantize=True)


def load(folder, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **options).eval()


def bits(tensor):
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor


def main():
    quantized, values, plain = sys.argv[1:]
    models = [load(quantized, quantization_config=DEQUANTIZE), load(values), load(plain)]
    weights = [model.state_dict() for model in models]
    tokens = torch.randint(0, models[0].config.vocab_size, (3, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = [model(tokens).logits.float() for model in models]
    print(json.dumps({
        "versions": {module.__name__: module.__version__ for module in (transformers, torch, accelerate)},
        "names": sorted(set(weights[0]) ^ set(weights[1])),
        "different": [name for name, weight in weights[1].items() if not torch.equal(bits(weight), bits(weights[0][name]))],
        "to_values": (logits[0] - logits[1]).abs().max().item(),
        "to_plain": (logits[0] - logits[2]).abs().max().item(),
        "greatest": logits[2].abs().max().item(),
    }))


if __name__ == "__main__":
    main()
