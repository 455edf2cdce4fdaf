"""Comparing what two runs left: flat tables of `where: value`, bit for bit."""
import struct
from dataclasses import dataclass

ABSENT = object()  # what a side has where it has no value


@dataclass(frozen=True)
class Difference:
    """The first place where two runs differ, and what each side has there."""
    where: str
    a: object
    b: object

    def __str__(self):
        return f"{self.where}: A {shown(self.a)}, B {shown(self.b)}"


def same(a, b):
    """Whether two values of JSON are the same, down to the bits of a number and its type."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    return a == b


def shown(value):
    """A value as a person reads it; a float also with all its bits."""
    if value is ABSENT:
        return "absent"
    return f"{value!r} ({value.hex()})" if isinstance(value, float) else repr(value)


def flatten(value, where=""):
    """The leaves of a value of JSON in their order, {path: leaf}. An empty list or object is a leaf."""
    if isinstance(value, dict) and value:
        parts = ((f"{where}.{key}" if where else key, part) for key, part in value.items())
    elif isinstance(value, list) and value:
        parts = ((f"{where}[{index}]", part) for index, part in enumerate(value))
    else:
        return {where: value}
    return {path: leaf for inner, part in parts for path, leaf in flatten(part, inner).items()}


def first_difference(a, b):
    """The first place in the order of A, then of B, at which two flat tables differ; None where they are equal."""
    for where in [*a, *(where for where in b if where not in a)]:
        ours, theirs = a.get(where, ABSENT), b.get(where, ABSENT)
        if not same(ours, theirs):
            return Difference(where, ours, theirs)
    return None
