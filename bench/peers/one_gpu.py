"""Trains a Llama or a model with experts on random tokens with plain PyTorch on one GPU, and prints one JSON line.

`tessera bench step` on one GPU is compared with this program. Models and steps are those of fsdp2.py and experts.py, without
FSDP2: weights are bf16, and the states with fp32 parameters store them separately as masters. Examples:
  python3 bench/peers/one_gpu.py --model llama3-8b --layers 8 --state bf16-moments
  python3 bench/peers/one_gpu.py --model mixtral-8x7b --layers 2 --routing skewed
"""
import torch

import experts
import fsdp2
import updates


def model_on_gpu(config, routing):
    """Returns a model in bf16. routing: None if the model has no experts."""
    with torch.device("cuda"):
        model = (experts.Sparse if routing else fsdp2.Llama)(config).bfloat16()
    fsdp2.initialize(model, config)
    if routing:
        experts.set_routing(model, routing)
    for block in model.blocks:
        block.compile()
    return model


def main():
    parser = fsdp2.parser_of(__doc__)
    updates.add_state(parser)
    experts.add_routing(parser)
    options = parser.parse_args()
    config = fsdp2.read_config(options)
    routing = options.routing if {"num_local_experts", "num_experts"} & set(config) else None
    torch.manual_seed(0)
    fsdp2.train_and_print(model_on_gpu(config, routing), config, options, {"peer": "one GPU", "routing": routing})


if __name__ == "__main__":
    main()
