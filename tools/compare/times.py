"""Measures step times of two programs in alternation. Times are printed and do not change the exit code."""
import json
import re
import statistics

from commands import flags_of, words_of
from evidence import Failure
from programs import output_of

NEEDED = "median_ms"


def turns(rounds):
    """Returns the order of the sides: A B, then B A, and so on, so that a drift of the machine affects both sides equally."""
    return [side for number in range(rounds) for side in ("AB" if number % 2 == 0 else "BA")]


def median_of_steps(output):
    """Returns the median step time in the output of `tessera bench step --json`."""
    for line in reversed(output.splitlines()):
        if re.match(r"\{", line):
            try:
                return float(json.loads(line)[NEEDED])
            except (ValueError, TypeError, KeyError) as error:
                raise Failure(f"bench step: expected an object with {NEEDED}: {error!r}") from error
    raise Failure("bench step printed no JSON object")


def spread(values):
    """Returns the minimum and the maximum as text."""
    return f"{min(values):.4g} to {max(values):.4g}"


def summary(ms):
    """Formats {side: [ms of each round]} as one line: medians, ranges, the ratio of medians and the range of the ratios."""
    medians = {side: statistics.median(values) for side, values in ms.items()}
    ratios = [b / a for a, b in zip(ms["A"], ms["B"])]
    sides = ", ".join(f"{side} {medians[side]:.4g} ms ({spread(ms[side])})" for side in "AB")
    return f"{sides}, B/A {medians['B'] / medians['A']:.4f} (rounds {spread(ratios)})"


def measure(timing, programs, rounds):
    """Measures a row of the table of timings. Returns (whether both sides ran, message)."""
    arguments = ["bench", "step", *words_of(flags_of(timing.flags)), "--json"]
    ms = {"A": [], "B": []}
    for side in turns(rounds):
        try:
            ms[side].append(median_of_steps(output_of(programs["AB".index(side)], arguments)))
        except Failure as failure:
            return False, f"{side}: {failure}"
    return True, summary(ms)
