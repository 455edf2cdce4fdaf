"""Finds cycles of includes within a layer: A includes B, and B includes A, directly or through other files.

A unit is a header with the source files of the same name (X.h, X.cpp, X_cpu.cpp, X_cuda.cu, ...). Two units may include each
other, for example a file and its helper. Cycles of three or more units are refused, except those in ALLOWED.
"""
import re

from sources import CPP, Finding, read

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"(tessera/[^"]+)"', re.M)
BACKEND = re.compile(r"_(cpu|no_cuda|cuda)$")
# Accepted cycles: the first unit in alphabetical order, and the reason.
ALLOWED = {
    "tessera/comm/backend": "communicator.cpp calls its backend, whose operations hold buffers of communicator.h",
    "tessera/comm/mpi/board_messages": "the progress thread runs tasks and sends statuses",
    "tessera/layout/dense": "layout.cpp stacks dense parts, and dense.cpp merges their pieces",
    "tessera/ops/attention/attention": "its internal headers use the types of attention.h",
    "tessera/plan/replica_kinds": "step_plan.cpp plans each kind of replica and counts its traffic",
    "tessera/quant/cuda/quantize": "quantize_cuda.h declares what the units of the table implement",
}


def unit_of(name):
    return BACKEND.sub("", name.rsplit(".", 1)[0])


def graph_of(root, files):
    """Returns {unit: the units of the same layer that it includes}."""
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
    """Returns the sorted tuples of units that all reach each other."""
    reached = {unit: reachable(graph, unit) for unit in graph}
    found = {tuple(sorted(other for other in reached[unit] if unit in reached.get(other, ())))
             for unit in graph if unit in reached[unit]}
    return sorted(found)


def check(root, files):
    findings = []
    for circle in circles(graph_of(root, files)):
        if len(circle) > 2 and circle[0] not in ALLOWED:
            headers = [path for path in files if unit_of(str(path)) == circle[0]]
            findings.append(Finding(str(headers[0]), 1, f"a cycle of includes: {', '.join(circle)}"))
    return findings
