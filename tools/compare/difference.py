"""Compares the results of two runs, flat tables of `where: value`, bit for bit."""
import struct
from dataclasses import dataclass

ABSENT = object()  # represents a missing value


@dataclass(frozen=True)
class Difference:
    """The first place where two runs differ, and the value of each side."""
    where: str
    a: object
    b: object

    def __str__(self):
        return f"{self.where}: A {shown(self.a)}, B {shown(self.b)}"


def same(a, b):
    """Returns whether two JSON values have the same type and the same bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    return a == b


def shown(value):
    """Formats a value for the output. A float is also printed with all its bits."""
    if value is ABSENT:
        return "absent"
    return f"{value!r} ({value.hex()})" if isinstance(value, float) else repr(value)


def flatten(value, where=""):
    """Returns the leaves of a JSON value in order, as {path: leaf}. An empty list or object is a leaf."""
    if isinstance(value, dict) and value:
        parts = ((f"{where}.{key}" if where else key, part) for key, part in value.items())
    elif isinstance(value, list) and value:
        parts = ((f"{where}[{index}]", part) for index, part in enumerate(value))
    else:
        return {where: value}
    return {path: leaf for inner, part in parts for path, leaf in flatten(part, inner).items()}


def first_difference(a, b):
    """Returns the first difference of two flat tables, in the order of A and then of B. Returns None if they are equal."""
    for where in [*a, *(where for where in b if where not in a)]:
        ours, theirs = a.get(where, ABSENT), b.get(where, ABSENT)
        if not same(ours, theirs):
            return Difference(where, ours, theirs)
    return None
