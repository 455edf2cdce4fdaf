"""Circles of includes within a layer: A includes B, which includes A again, directly or through others.

A unit is a header with the source files of the same name (X.h, X.cpp, X_cpu.cpp, X_cuda.cu, ...). Two units may include each
other (a file and its helper). Circles of three and more are refused, but for those of ALLOWED.
"""
import re

from sources import CPP, Finding, read

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"(tessera/[^"]+)"', re.M)
BACKEND = re.compile(r"_(cpu|no_cuda|cuda)$")
# The first units, by name, of circles that stay, with what closes them.
ALLOWED = {
    "tessera/comm/backend": "communicator.cpp calls its backend, whose operations hold buffers of communicator.h",
    "tessera/comm/mpi/board_messages": "the progress thread runs tasks and sends statuses",
    "tessera/layout/dense": "layout.cpp stacks dense parts, and dense.cpp merges their pieces",
    "tessera/ops/attention/attention": "its internal headers use its types",
    "tessera/quant/cuda/quantize": "quantize_cuda.h declares what the units of the table implement",
}


def unit_of(name):
    return BACKEND.sub("", name.rsplit(".", 1)[0])


def graph_of(root, files):
    """By unit: the units of its layer that it includes."""
    graph = {}
    for path in files:
        if path.suffix not in CPP or path.parts[0] != "tessera" or len(path.parts) < 3:
            continue
        unit = unit_of(str(path))
        included = {unit_of(name) for name in INCLUDE.findall(read(root, path))
                    if name.split("/")[1] == path.parts[1]}
        graph.setdefault(unit, set()).update(included - {unit})
    return graph


def reachable(graph, start):
    found, waiting = set(), [start]
    while waiting:
        for unit in graph.get(waiting.pop(), ()):
            if unit not in found:
                found.add(unit)
                waiting.append(unit)
    return found


def circles(graph):
    """Sorted lists of units that all reach each other."""
    reached = {unit: reachable(graph, unit) for unit in graph}
    found = {tuple(sorted(other for other in reached[unit] if unit in reached.get(other, ())))
             for unit in graph if unit in reached[unit]}
    return sorted(found)


def check(root, files):
    findings = []
    for circle in circles(graph_of(root, files)):
        if len(circle) > 2 and circle[0] not in ALLOWED:
            headers = [path for path in files if unit_of(str(path)) == circle[0]]
            findings.append(Finding(str(headers[0]), 1, f"a circle of includes: {', '.join(circle)}"))
    return findings
