"""Pairwise covering sets: rows of settings in which every pair of values of two factors occurs."""
import itertools


def pairs_of(row):
    return {((a, row[a]), (b, row[b])) for a, b in itertools.combinations(sorted(row), 2)}


def covering_rows(factors, draw, is_allowed=lambda row: True, attempts=30):
    """Yields rows {factor: value}, each with many pairs that no earlier row has, until a number of attempts finds none.

    factors: {name: values}. draw: a random.Random. Rows that are not allowed are not drawn."""
    def random_row():
        while True:
            row = {name: draw.choice(values) for name, values in factors.items()}
            if is_allowed(row):
                return row

    def improved(row, covered):
        """Replaces single values as long as that adds new pairs."""
        best = len(pairs_of(row) - covered)
        for name in draw.sample(list(factors), len(factors)):
            for value in factors[name]:
                other = row | {name: value}
                if is_allowed(other) and (found := len(pairs_of(other) - covered)) > best:
                    row, best = other, found
        return row, best

    covered, misses = set(), 0
    while misses < attempts:
        row, new = max((improved(random_row(), covered) for _ in range(5)), key=lambda found: found[1])
        misses = misses + 1 if new == 0 else 0
        if new:
            covered |= pairs_of(row)
            yield row
