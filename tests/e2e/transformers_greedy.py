"""Generates greedy tokens with Hugging Face transformers. The argument is a JSON object: `transformers_greedy.py SPEC`.

`models` maps names to the fields of a config.json. Each random fp32 model is written to `folder`/NAME. `prompt` is a list of
ids, and `tokens` the number of new tokens. Prints one JSON object: for each name the new tokens and `closest`, the smallest
distance of the two greatest logits, relative to the greatest.
"""
import json
import pathlib
import sys

import torch
import transformers


def make(config, folder):
    """Writes and returns a model with random weights. Biases and norms are also random, instead of zeros and ones."""
    torch.manual_seed(3)
    options = {"experts_implementation": "eager"} if any("experts" in field for field in config) else {}
    config = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager", **options)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model.eval()


def main():
    spec = json.loads(sys.argv[1])
    prompt = torch.tensor([spec["prompt"]])
    results = {}
    for name, config in spec["models"].items():
        model = make(config, pathlib.Path(spec["folder"]) / name)
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=spec["tokens"], do_sample=False,
                             eos_token_id=None, pad_token_id=0, return_dict_in_generate=True, output_logits=True)
        logits = torch.cat(out.logits)
        best = logits.topk(2).values
        closest = ((best[:, 0] - best[:, 1]) / logits.abs().amax(1)).min().item()
        results[name] = {"tokens": out.sequences[0, prompt.shape[1]:].tolist(), "closest": closest}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
