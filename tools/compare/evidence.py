"""Converts the results of a run to one flat table, so that two sides can be compared."""
import json

from difference import flatten


class Failure(Exception):
    """Raised if a run has no results to compare. The message is one line."""


def without_ignored(kind, values, ignored):
    """Returns the values without the ignored keys. `ignored` contains names such as `metrics.step_ms`."""
    return {key: value for key, value in values.items() if f"{kind}.{key}" not in ignored}


def of_metrics(text, ignored):
    """Returns every value of every line of metrics.jsonl, by step."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            values = dict(json.loads(line))
            step = values.pop("step")
        except (ValueError, TypeError, KeyError) as error:
            raise Failure(f"metrics.jsonl:{number}: expected an object with a step: {error!r}") from error
        if f"step {step}" in found:
            raise Failure(f"metrics.jsonl:{number}: step {step} occurs twice")
        found[f"step {step}"] = without_ignored("metrics", values, ignored)
    if not found:
        raise Failure("metrics.jsonl contains no step")
    return {f"{step}: {key}": leaf for step, values in found.items() for key, leaf in flatten(values).items()}


def of_object(kind, text, ignored):
    """Returns every value of a JSON object."""
    try:
        values = dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise Failure(f"{kind}: expected a JSON object: {error}") from error
    return {f"{kind}: {key}": leaf for key, leaf in flatten(without_ignored(kind, values, ignored)).items()}


def of_settings(text, ignored):
    """Returns every value of config.json: the settings, and the other state of the run."""
    try:
        state = dict(json.loads(text))
        settings = json.dumps(state.pop("config"))
    except (ValueError, TypeError, KeyError) as error:
        raise Failure(f"config.json: expected an object with the key config: {error!r}") from error
    return {**of_object("settings", settings, ignored), **of_object("run", json.dumps(state), ignored)}


def of_events(text):
    """Returns the lines of a file of events: the events of a step, and the names of its parameters."""
    lines = text.splitlines()
    if not lines:
        raise Failure("the file of events is empty")
    return {f"events: line {number}": line for number, line in enumerate(lines, 1)}


def of_checkpoint(text):
    """Returns type, shape and hash of every logical tensor, from `tessera inspect --json`, independent of the files."""
    try:
        tensors = json.loads(text)["tensors"]
        found = {f"tensor {tensor['kind']}/{tensor['name']}: {key}": tensor[key]
                 for tensor in tensors for key in ("dtype", "shape", "hash")}
    except (ValueError, TypeError, KeyError) as error:
        raise Failure(f"tessera inspect: expected tensors with kind, name, dtype, shape and hash: {error!r}") from error
    if not found:
        raise Failure("tessera inspect: the checkpoint contains no tensor")
    return found


def prefixed(prefix, table):
    """Returns the table with the name of a stage of the run before each place."""
    return {f"{prefix}: {where}": value for where, value in table.items()}
