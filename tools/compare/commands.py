"""Converts a row of the table to the arguments of the program."""
import re
import shlex

import runs
from inputs import FOLDERS, MODELS

# Flags that a resumed run reads from the command line. The run reads all other settings from the checkpoint.
ON_RESUME = ("--steps", "--gather-budget", "--reduce-budget", "--backend", "--deterministic")
# Some versions of the program read these settings from the checkpoint, others from the command line. These settings are
# always passed, so that both sides run with the same settings, unless the row takes them from the checkpoint.
GIVEN_ON_RESUME = {"--backend": "local", "--tp": 1, "--gtp": 1, "--dp": 1, "--zero": "on", "--sequence-parallel": "off",
                   "--recompute": "none", "--embedding": "auto", "--save-every": 0}


def flags_of(text):
    """Returns flags as {name: value}. A flag without a value, such as --evaluate, maps to None."""
    found, name = {}, None
    for word in shlex.split(text):
        if word.startswith("--"):
            if word in found:
                raise ValueError(f"{word} is given twice in '{text}'")
            name, found[word] = word, None
        elif name is None or found[name] is not None:
            raise ValueError(f"'{word}' does not follow a flag in '{text}'")
        else:
            found[name] = word
    return found


def words_of(flags):
    """Returns the flags as a list of arguments."""
    return [str(word) for pair in flags.items() for word in pair if word is not None]


def unused_of(flags):
    """Returns the number of places that --dead and --idle name, such as 3 for `--dead dp0.gtp1:0,3;dp2:1`."""
    slots = re.findall(r":([\d,]+)", f"{flags.get('--dead', '')};{flags.get('--idle', '')}")
    return sum(len(text.split(",")) for text in slots)


def ranks_of(flags):
    """Returns the number of ranks that the flags request."""
    return int(flags.get("--tp", 1)) * int(flags.get("--gtp", 1)) * int(flags.get("--dp", 1)) - unused_of(flags)


def most_ranks_of(run):
    """Returns the largest number of ranks of the runs of a row."""
    return max(ranks_of(flags_of(text)) for text in (run.flags, run.resumes or ""))


def processes_of(flags):
    """Returns the number of processes that mpirun starts. Returns None if the program starts its ranks itself."""
    return ranks_of(flags) if flags.get("--backend") == "mpi" else None


def model_flag(run, inputs):
    """Returns the flag that names the model, or the folder of weights, of a training run."""
    return {"--init" if run.model in FOLDERS else "--model": inputs[run.model]}


def training(run, text, common, inputs, out):
    """Returns the flags of a run that starts at step 1."""
    return {**model_flag(run, inputs), "--data": inputs["data"], "--valid": inputs["valid"], **flags_of(common),
            **flags_of(text), "--out": out}


def resumed(run, common, checkpoint, out):
    """Returns the flags of a run that resumes from a checkpoint."""
    kept = {name: value for name, value in flags_of(common).items() if name in ON_RESUME}
    given = {name: value for name, value in GIVEN_ON_RESUME.items() if name not in flags_of(run.kept)}
    return {"--resume": checkpoint, **given, **kept, **flags_of(run.flags), "--out": out}


def planned(run, inputs):
    """Returns the flags of `tessera plan` or `tessera inspect layout`. A model that inputs.py does not create is the name of a folder
    in configs/."""
    model = inputs[run.model] if run.model in MODELS else run.model
    return {"--model": model, **flags_of(runs.COMMON_OF_PLANS), **flags_of(run.flags), "--json": None}


def stored(run, inputs):
    """Returns the flags of a subcommand that reads stored weights. `{valid}` is the held-out data."""
    return {**flags_of(run.flags.format(**inputs)), "--json": None}
