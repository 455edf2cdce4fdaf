"""Quantiles of step times with the definition of `tessera bench step`, so that all programs are compared equally."""
import math


def quantile(values, part):
    """Returns the nearest-rank quantile of sorted values; of two equally near values, the upper one."""
    return values[math.floor(part * (len(values) - 1) + 0.5)]
