"""What a run left behind, as one flat table that two sides can be compared by."""
import json

from difference import flatten


class Failure(Exception):
    """Why a run gave nothing to compare; one line."""


def without_ignored(kind, values, ignored):
    """The values of a file's object that count; `ignored` holds names such as `metrics.step_ms`."""
    return {key: value for key, value in values.items() if f"{kind}.{key}" not in ignored}


def of_metrics(text, ignored):
    """Every value of every line of metrics.jsonl, by step."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            values = dict(json.loads(line))
            step = values.pop("step")
        except (ValueError, TypeError, KeyError) as error:
            raise Failure(f"metrics.jsonl:{number}: expected an object with a step: {error!r}") from error
        if f"step {step}" in found:
            raise Failure(f"metrics.jsonl:{number}: step {step} comes twice")
        found[f"step {step}"] = without_ignored("metrics", values, ignored)
    if not found:
        raise Failure("metrics.jsonl holds no step")
    return {f"{step}: {key}": leaf for step, values in found.items() for key, leaf in flatten(values).items()}


def of_object(kind, text, ignored):
    """Every value of an object of JSON."""
    try:
        values = dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise Failure(f"{kind}: expected an object of JSON: {error}") from error
    return {f"{kind}: {key}": leaf for key, leaf in flatten(without_ignored(kind, values, ignored)).items()}


def of_checkpoint(text):
    """Type, shape and hash of every logical tensor, from `tessera inspect --json`. How files hold them is left out."""
    try:
        tensors = json.loads(text)["tensors"]
        found = {f"tensor {tensor['kind']}/{tensor['name']}: {key}": tensor[key]
                 for tensor in tensors for key in ("dtype", "shape", "hash")}
    except (ValueError, TypeError, KeyError) as error:
        raise Failure(f"tessera inspect: expected tensors with kind, name, dtype, shape and hash: {error!r}") from error
    if not found:
        raise Failure("tessera inspect: the checkpoint holds no tensor")
    return found


def prefixed(prefix, table):
    """The same table, its places behind the name of a stage of the run."""
    return {f"{prefix}: {where}": value for where, value in table.items()}
