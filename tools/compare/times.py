"""Step times of two programs that take turns. They are printed and decide nothing."""
import json
import re
import statistics

from commands import flags_of, words_of
from evidence import Failure
from programs import output_of

NEEDED = "median_ms"


def turns(rounds):
    """The order of the sides: A B, then B A, and so on, so that a drift of the machine hits both alike."""
    return [side for number in range(rounds) for side in ("AB" if number % 2 == 0 else "BA")]


def median_of_steps(output):
    """The median step time that `tessera bench step --json` printed."""
    for line in reversed(output.splitlines()):
        if re.match(r"\{", line):
            try:
                return float(json.loads(line)[NEEDED])
            except (ValueError, TypeError, KeyError) as error:
                raise Failure(f"bench step: expected an object with {NEEDED}: {error!r}") from error
    raise Failure("bench step printed no JSON object")


def spread(values):
    """The least and the greatest as text."""
    return f"{min(values):.4g} to {max(values):.4g}"


def summary(ms):
    """One line of {side: [ms of each round]}: medians with their spread, and the ratio with that of single rounds."""
    medians = {side: statistics.median(values) for side, values in ms.items()}
    ratios = [b / a for a, b in zip(ms["A"], ms["B"])]
    sides = ", ".join(f"{side} {medians[side]:.4g} ms ({spread(ms[side])})" for side in "AB")
    return f"{sides}, B/A {medians['B'] / medians['A']:.4f} (rounds {spread(ratios)})"


def measure(timing, programs, rounds):
    """(whether both sides ran, what to say) of a row of the table of times."""
    arguments = ["bench", "step", *words_of(flags_of(timing.flags)), "--json"]
    ms = {"A": [], "B": []}
    for side in turns(rounds):
        try:
            ms[side].append(median_of_steps(output_of(programs["AB".index(side)], arguments)))
        except Failure as failure:
            return False, f"{side}: {failure}"
    return True, summary(ms)
