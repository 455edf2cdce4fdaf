"""From a row of the table to the arguments of the program."""
import shlex

import runs
from inputs import MODELS

# What a training that goes on from a checkpoint takes from the command line; it finds the rest in the checkpoint.
ON_RESUME = ("--steps", "--gather-budget", "--reduce-budget", "--backend", "--deterministic")
# What some programs take from the checkpoint and others from the command line: given, so that both sides run alike.
GIVEN_ON_RESUME = {"--backend": "local", "--tp": 1, "--gtp": 1, "--dp": 1, "--zero": "on", "--sequence-parallel": "off",
                   "--recompute": "none", "--embedding": "auto", "--save-every": 0}


def flags_of(text):
    """Flags as {name: value}; a flag without a value, such as --evaluate, has None."""
    found, name = {}, None
    for word in shlex.split(text):
        if word.startswith("--"):
            if word in found:
                raise ValueError(f"{word} comes twice in '{text}'")
            name, found[word] = word, None
        elif name is None or found[name] is not None:
            raise ValueError(f"'{word}' belongs to no flag in '{text}'")
        else:
            found[name] = word
    return found


def words_of(flags):
    """The flags as a list of arguments."""
    return [str(word) for pair in flags.items() for word in pair if word is not None]


def ranks_of(flags):
    """How many ranks the flags ask for."""
    return int(flags.get("--tp", 1)) * int(flags.get("--gtp", 1)) * int(flags.get("--dp", 1))


def processes_of(flags):
    """How many processes mpirun starts; None where the program starts its ranks itself."""
    return ranks_of(flags) if flags.get("--backend") == "mpi" else None


def training(run, text, common, inputs, out):
    """Flags of a training from its beginning."""
    return {"--model": inputs[run.model], "--data": inputs["data"], "--valid": inputs["valid"], **flags_of(common),
            **flags_of(text), "--out": out}


def resumed(run, common, checkpoint, out):
    """Flags of a training that goes on from a checkpoint."""
    kept = {name: value for name, value in flags_of(common).items() if name in ON_RESUME}
    return {"--resume": checkpoint, **GIVEN_ON_RESUME, **kept, **flags_of(run.flags), "--out": out}


def plan(run, inputs):
    """Flags of `tessera plan`; a model that inputs.py does not make is one under configs/."""
    model = inputs[run.model] if run.model in MODELS else run.model
    return {"--model": model, **flags_of(runs.COMMON_OF_PLANS), **flags_of(run.flags), "--json": None}
