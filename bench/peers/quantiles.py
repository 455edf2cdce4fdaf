"""Quantiles of step times as `tessera bench step` takes them, so that programs beside it are compared by the same."""
import math


def quantile(values, part):
    """Of sorted values the one whose rank is the nearest, the upper of two."""
    return values[math.floor(part * (len(values) - 1) + 0.5)]
