"""The rows of the tables of runs, and the flags that several rows share."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """One row: a training run, or another subcommand that prints a JSON object. The flags replace the same flags of COMMON.

    The model is a model or a folder of weights of inputs.py. For plans and layouts, it may also be a folder in configs/. A training
    run starts from the weights of a folder (--init)."""
    name: str
    flags: str = ""
    model: str = "odd"
    task: str = "train"         # the words of the subcommand
    resumes: str | None = None  # flags of an earlier training run; this row reads the last checkpoint of that run
    kept: str = ""              # flags that the resumed run takes from the checkpoint
    varying: tuple = ()         # keys that depend on measured times, in addition to those of ignored.py


@dataclass(frozen=True)
class Timing:
    """One measurement of step times: flags of `tessera bench step`."""
    name: str
    flags: str


MIN = "--gather-budget min --reduce-budget min"
AUTO = "--gather-budget auto --reduce-budget auto"
POISON = "--debug-poison on --debug-delays 3"
NODES = "--reduce-order hierarchical --ranks-per-node"
SP = "--sequence-parallel on"
PIECES = f"{SP} --tp-overlap on"
WHOLE = f"{SP} --tp-overlap off"
FP8 = "--dtype bf16 --wire-format fp8 --gemm-format fp8"
DROPOUT = "--hidden-dropout 0.2 --embedding-dropout 0.1"
ROUTERS = "--router-z-loss 1e-3 --expert-counts 2"
BIASES = "--expert-bias-rate 0.0078125 --expert-counts 1"
CAPACITY = "--expert-capacity 1.1"
HALF = "--steps 2 --schedule-steps 4"  # a run that a later run of 4 steps resumes
MESH = "--tp --gtp --dp"
